"""``ChatTemplate``: messages to the text a chat model was trained on. Torch-free.

Owns loading a model's Jinja template and running it in a sandbox. A template comes from the model,
never from a request. ``chat_encoding.py`` turns the text into token ids.

The environment is the one ``transformers.apply_chat_template`` gives to templates, so the text is the
same: trimmed blocks, ``raise_exception``, ``strftime_now``, ``tojson``, loop controls and ``generation``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engine.config import ModelSource
from engine.errors import ModelError, RequestError
from engine.loader.gguf_file import GgufFile
from engine.loader.source import model_file
from engine.text.tokenizer import read_side_file, read_special_tokens

MAX_TEMPLATE_CHARS = 1 << 20
MAX_RENDERED_CHARS = 1 << 25
MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")

_MAX_REASON_CHARS = 300
_MAX_REPEATED = 1 << 20
_MAX_EXPONENT = 64


class ChatTemplate:
    """A compiled chat template. ``special_tokens`` are names templates use, such as ``bos_token``.

    Raises:
        ModelError: the template is too large or is not valid Jinja.
    """

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        if len(template) > MAX_TEMPLATE_CHARS:
            raise ModelError(
                f"The chat template has {len(template)} characters; at most {MAX_TEMPLATE_CHARS} are allowed."
            )
        try:
            self._template = _Environment().from_string(template)
        except Exception as error:  # Whatever goes wrong in compiling, the file is at fault.
            where = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ModelError(
                f"The model's chat template is not valid Jinja{where}; fix it or use another model."
            ) from None
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt text of a chat.

        Args:
            messages: ``{"role": ..., "content": ...}`` each, oldest first.
            add_generation_prompt: end with the beginning of the assistant's turn.

        Raises:
            RequestError: a message is malformed, or the template refuses the chat.
        """
        check_messages(messages)
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate(
                self._special_tokens,
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            ):
                num_chars += len(piece)
                if num_chars > MAX_RENDERED_CHARS:
                    raise _Refused(f"the chat is longer than {MAX_RENDERED_CHARS} characters")
                pieces.append(piece)
        except _Refused as refusal:
            raise RequestError(f"The model's chat template refused the messages: {refusal}", param="messages") from None
        except Exception:  # The template is the model author's program; its failure is this request's.
            raise RequestError(
                "The model's chat template failed on these messages; check roles and their order.", param="messages"
            ) from None
        return "".join(pieces)


def check_messages(messages: Sequence[Mapping[str, str]]) -> None:
    """Checks the shape of a chat; which orders of roles make sense is up to the template.

    Roles are a closed set because templates build special tokens of them (``'<|' + role + '|>'``).

    Raises:
        RequestError: it is no list of 1 to ``MAX_MESSAGES`` messages, or one of them is malformed.
    """
    if not isinstance(messages, Sequence) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages.", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise RequestError(
                f"messages[{index}] must be an object with role and content, and nothing else.", param="messages"
            )
        if message["role"] not in ROLES:
            raise RequestError(f"messages[{index}].role must be one of {', '.join(ROLES)}.", param="messages")
        if not isinstance(message["content"], str):
            raise RequestError(f"messages[{index}].content must be a string.", param="messages")


def load_chat_template(source: ModelSource) -> ChatTemplate | None:
    """The chat template of a model; ``None`` if it has none (a base model).

    Raises:
        ModelError: there is one and it cannot be used.
    """
    if source.kind == "gguf":
        return _load_gguf(GgufFile(source.path).metadata)
    path = model_file(source, "chat_template.jinja")
    template = (
        _default_template(read_side_file(source, "tokenizer_config.json").get("chat_template"))
        if path is None
        else _read_template(path)
    )
    return None if template is None else ChatTemplate(template, read_special_tokens(source))


def _load_gguf(metadata: Mapping[str, Any]) -> ChatTemplate | None:
    template = _default_template(metadata.get("tokenizer.chat_template"))
    if template is None:
        return None
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    special: dict[str, str] = {}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if type(token_id) is int and 0 <= token_id < len(tokens):
            special[f"{ours}_token"] = tokens[token_id]
    return ChatTemplate(template, special)


def _read_template(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_TEMPLATE_CHARS + 1)
    except (OSError, UnicodeDecodeError):
        raise ModelError("chat_template.jinja cannot be read as UTF-8 text; check the model directory.") from None


def _default_template(value: Any) -> str | None:
    """One template, or the one named "default" of several."""
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict) and entry.get("name") == "default"]
        value = named[0].get("template") if named else None
    return value if isinstance(value, str) else None


class _Refused(jinja2.TemplateError):
    """``raise_exception`` was called: the one error whose words are meant for the user."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only groups them."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _SafeNamespace(Namespace):
    """``namespace()`` whose attributes cannot pose as Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, attributes = args[0], dict(*args[1:], **kwargs)
        Namespace.__init__(self)
        for name, value in attributes.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError("names in a namespace cannot begin with an underscore")
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox templates run in: no access to Python's internals, no change to the messages."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals = {
            "raise_exception": _raise_exception,
            "strftime_now": lambda format: datetime.now().strftime(format),
            "namespace": _SafeNamespace,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "range": self.globals["range"],
        }

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Bounds the two operators that make something huge out of something small."""
        if operator == "**" and isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
            raise jinja2.exceptions.SecurityError("exponent too large")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if hasattr(sequence, "__len__") and isinstance(times, int) and len(sequence) * times > _MAX_REPEATED:
                    raise jinja2.exceptions.SecurityError("repetition too large")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> None:
    raise _Refused(str(message)[:_MAX_REASON_CHARS])


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
