"""From what users pass to ``LLM.generate`` and ``LLM.chat`` to token ids. Torch-free.

Owns the accepted shapes, and saying which prompt of a list is at fault.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.errors import RequestError
from engine.text.chat_encoding import ChatEncoder
from engine.text.tokenizer import Tokenizer

#: A text, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``.
Prompt: TypeAlias = str | Mapping[str, Any]
#: Messages ``{"role": ..., "content": ...}``, oldest first.
Conversation: TypeAlias = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model gets it; ``name`` is what errors call it."""

    name: str
    token_ids: list[int]
    text: str | None


class PromptEncoder:
    """Encodes prompts and chats for one model. Without a tokenizer only token ids are prompts."""

    def __init__(self, tokenizer: Tokenizer | None, chat_encoder: ChatEncoder | None) -> None:
        self._tokenizer = tokenizer
        self._chat_encoder = chat_encoder

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; ``RequestError`` if there is none."""
        if self._tokenizer is None:
            raise RequestError(
                'This LLM was made with skip_tokenizer_init=True; use {"prompt_token_ids": [...]}.', param="prompt"
            )
        return self._tokenizer

    def encode(self, prompts: Prompt | Sequence[Prompt]) -> list[EncodedPrompt]:
        """Encodes one prompt or a list of them.

        Raises:
            RequestError: a prompt has none of the accepted shapes; in a list, its index is named.
        """
        if isinstance(prompts, str | Mapping):
            return [self._encode(prompts, "prompt")]
        if not isinstance(prompts, Sequence):
            raise RequestError(f"prompts must be a prompt or a list of them, not {_kind(prompts)}.", param="prompt")
        encoded = []
        for index, prompt in enumerate(prompts):
            with naming(f"prompts[{index}]"):
                encoded.append(self._encode(prompt, f"prompts[{index}]"))
        return encoded

    def encode_chats(
        self, messages: Conversation | Sequence[Conversation], add_generation_prompt: bool
    ) -> list[EncodedPrompt]:
        """Encodes one conversation or a list of them with the model's chat template.

        Raises:
            RequestError: the model has no template, or a conversation cannot be encoded.
        """
        if self._chat_encoder is None:
            self.tokenizer  # noqa: B018 (for its error)
            raise RequestError("This model has no chat template; use generate with a text.", param="messages")
        if not messages or isinstance(messages[0], Mapping):
            chats: list[tuple[str, Any]] = [("messages", messages)]
        else:
            chats = [(f"messages[{index}]", chat) for index, chat in enumerate(messages)]
        encoded = []
        for name, chat in chats:
            with naming(name if len(chats) > 1 else None):
                prompt = self._chat_encoder.encode(chat, add_generation_prompt)
                encoded.append(EncodedPrompt(name, prompt.token_ids, prompt.text))
        return encoded

    def _encode(self, prompt: Prompt, name: str) -> EncodedPrompt:
        if isinstance(prompt, str):
            return EncodedPrompt(name, self.tokenizer.encode(prompt), prompt)
        match prompt:
            case {"prompt": str(text), **rest} if not rest:
                return EncodedPrompt(name, self.tokenizer.encode(text), text)
            case {"prompt_token_ids": ids, **rest} if not rest:
                return EncodedPrompt(name, _token_ids(ids), None)
        raise RequestError(
            'A prompt is a text, {"prompt": text} or {"prompt_token_ids": [ids]}'
            f"; this is {_kind(prompt)}{_keys(prompt)}.",
            param="prompt",
        )


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Puts the name of a prompt before the text of a ``RequestError``; ``None`` leaves it."""
    try:
        yield
    except RequestError as error:
        if name is None:
            raise
        raise type(error)(f"{name}: {error.message}", param=error.param, code=error.code) from None


def _token_ids(ids: Any) -> list[int]:
    try:
        return [operator.index(token_id) for token_id in ids]
    except TypeError:
        raise RequestError("prompt_token_ids must be a list of integers.", param="prompt") from None


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _keys(value: object) -> str:
    return f" with {', '.join(map(repr, value)) or 'no keys'}" if isinstance(value, Mapping) else ""
