"""``ChatEncoder``: a chat to token ids, where no message can forge a special token.

Owns the line between the template's special tokens and the same characters in a message. A prompt
in which somebody's text ends the turn and opens a ``system`` one is the oldest attack on chat models.

How. An ordinary chat is rendered and encoded as one text: exactly what transformers'
``apply_chat_template`` does, merges across the seams of template and message included. Only when a
message spells a special token, or begins or ends with a part of one, it is *guarded*: a marker (a random
name of this process) is put inside each spelled token and at the doubtful ends, and the template renders the
guarded messages. A special token in that text can now only be the template's own. These become one
private token each, the markers go away, and a twin of the tokenizer that knows no special tokens but the
private one encodes the whole. So a guarded chat, too, is encoded as one text, and where nothing was forged
it gives the same ids.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import AddedToken
from tokenizers import Tokenizer as Core

from engine.errors import RequestError
from engine.text.chat_template import ChatTemplate, check_messages
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as the model gets it."""

    text: str
    token_ids: list[int]


class ChatEncoder:
    """Encodes chats for one model. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        added = tokenizer.core.get_added_tokens_decoder()
        #: Text -> id and token of every special token.
        self._special = {added[i].content: (i, added[i]) for i in tokenizer.special_token_ids if added[i].content}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        #: A special token with the white space around it that it swallows.
        self._owned = re.compile("|".join(_owned_pattern(self._special[text][1]) for text in longest_first) or r"(?!)")
        self._beginnings = frozenset(text[:n] for text in self._special for n in range(1, len(text)))
        self._endings = frozenset(text[n:] for text in self._special for n in range(1, len(text)))
        self._longest = max(map(len, self._special), default=0)
        self._marker = f"\ue000{secrets.token_hex(16)}\ue001"

    def encode(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> ChatPrompt:
        """Renders and encodes a chat; see the module's text for what a message cannot do.

        Raises:
            RequestError: the messages are malformed, or the template refuses them.
        """
        check_messages(messages)
        guarded = [{"role": m["role"], "content": self._guard(m["content"])} for m in messages]
        text = self._template.render(guarded, add_generation_prompt)
        if all(safe["content"] == message["content"] for safe, message in zip(guarded, messages, strict=True)):
            return ChatPrompt(text, self._tokenizer.encode(text, add_special_tokens=False))
        return ChatPrompt(text.replace(self._marker, ""), self._encode_guarded(text))

    def _guard(self, content: str) -> str:
        """``content`` with markers wherever it has a special token or may become part of one.

        Templates may strip messages, hence ends are looked for behind white space.
        """
        marker = self._marker
        while match := self._spelled.search(content):  # Breaking one may leave another that overlapped it.
            if len(match[0]) == 1:
                raise RequestError(f"A message has the reserved character {match[0]!r}; remove it.", param="messages")
            content = self._spelled.sub(lambda match: match[0][0] + marker + match[0][1:], content)
        body = content.strip()
        sizes = range(1, min(len(body), self._longest) + 1)
        if any(body[-n:] in self._beginnings for n in sizes):
            end = len(content.rstrip())
            content = content[:end] + marker + content[end:]
        if any(body[:n] in self._endings for n in sizes):
            start = len(content) - len(content.lstrip())
            content = content[:start] + marker + content[start:]
        return content

    def _encode_guarded(self, text: str) -> list[int]:
        core, private_id, translation = self._twin
        pieces: list[str] = []
        owned: list[int] = []
        start = 0
        for match in self._owned.finditer(text):
            pieces.append(text[start : match.start()].replace(self._marker, ""))
            owned.append(self._special[match[match.lastindex or 0]][0])
            start = match.end()
        pieces.append(text[start:].replace(self._marker, ""))
        try:
            ids = core.encode(self._marker.join(pieces), add_special_tokens=False).ids
        except TypeError:
            raise RequestError(
                "A message has a lone surrogate code point; send valid Unicode.", param="messages"
            ) from None
        if not self._tokenizer.special_token_ids.isdisjoint(translation.get(i, i) for i in ids if i != private_id):
            raise RequestError("A message spells a special token that this model's tokenizer cannot encode as text.")
        template_ids = iter(owned)
        return [next(template_ids) if i == private_id else translation.get(i, i) for i in ids]

    @cached_property
    def _twin(self) -> tuple[Core, int, dict[int, int]]:
        """The tokenizer without special tokens but the marker, the marker's id, and its added ids -> ours.

        The twin shares the model (vocabulary, merges); only the list of added tokens is its own.
        """
        core = self._tokenizer.core
        twin = Core(core.model)
        if core.normalizer is not None:
            twin.normalizer = core.normalizer
        if core.pre_tokenizer is not None:
            twin.pre_tokenizer = core.pre_tokenizer
        translation: dict[int, int] = {}
        for token_id, token in sorted(core.get_added_tokens_decoder().items()):
            if not token.special:
                twin.add_tokens([token])
                translation[_id_of(twin, token.content)] = token_id
        twin.add_special_tokens([AddedToken(self._marker, special=True, normalized=False)])
        return twin, _id_of(twin, self._marker), translation


def _id_of(core: Core, content: str) -> int:
    token_id = core.token_to_id(content)
    if token_id is None:
        raise RequestError(
            "This model's tokenizer cannot encode special tokens as text; remove them from the messages."
        )
    return token_id


def _owned_pattern(token: AddedToken) -> str:
    before, after = (r"\s*" if token.lstrip else ""), (r"\s*" if token.rstrip else "")
    return f"{before}({re.escape(token.content)}){after}"
