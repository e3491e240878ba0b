"""What every route needs: the engine's client, the facts of this server, and text <-> tokens.

Owns the wiring object and keeping long tokenizations off the event loop. Holds nothing about a
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engine.api import ModelLimits
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.entrypoints.openai.lifecycle import Lifecycle
from engine.entrypoints.openai.limits import HttpLimits
from engine.entrypoints.openai.protocol import ChatMessage
from engine.errors import NotFoundError, RequestError
from engine.metrics.prometheus import ServerMetrics
from engine.select import EngineDecision
from engine.text.chat_encoding import ChatEncoder

if TYPE_CHECKING:
    from engine.text.chat_template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

T = TypeVar("T")

#: Texts of at least this many characters (and a quarter as many ids) go to a thread: a tokenizer does
#: some 2 MB/s, so this keeps the event loop for less than 10 ms. ``tokenizers`` releases the GIL.
LONG_TEXT_CHARS = 16 << 10
TOKENIZER_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The facts of one server that do not change while it runs."""

    decision: EngineDecision
    config: EngineConfig
    version: str
    model_name: str
    #: Seconds since the epoch at which the server started.
    created: int
    #: ``None`` while the engine starts; ``Lifecycle.serving`` brings them then.
    limits: ModelLimits | None
    #: Rows of ``engine.capabilities.matrix()``.
    capabilities: tuple[dict[str, Any], ...]


class ServerContext:
    """Shared by all routes of one app."""

    def __init__(
        self,
        client: EngineClient,
        info: ServerInfo,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        http: HttpLimits,
    ) -> None:
        self.client = client
        self.info = info
        self.tokenizer = tokenizer
        self._chat_encoder = ChatEncoder(tokenizer, chat_template) if tokenizer and chat_template else None
        self.http = http
        self.lifecycle = Lifecycle(http.max_concurrent_requests)
        if info.limits is not None:
            self.lifecycle.serving(info.limits)
        self.metrics = ServerMetrics(info.decision.chosen, info.model_name)
        self.fingerprint = f"{info.decision.chosen}-{info.version}"
        self._pool = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def check_model(self, name: str | None) -> None:
        """Raises ``NotFoundError`` unless ``name`` is the model served here, or left out."""
        if name is not None and name != self.info.model_name:
            raise NotFoundError(
                f"There is no such model here; this server has {self.info.model_name}.",
                param="model",
                code="model_not_found",
            )

    def need_tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError("This server runs without a tokenizer; send and take token ids.", param=param)
        return self.tokenizer

    async def encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenizes, on a thread if ``text`` is long."""
        tokenizer = self.need_tokenizer(param)
        return await self._run(len(text), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens))

    async def encode_chat(self, messages: list[ChatMessage], *, add_generation_prompt: bool = True) -> list[int]:
        """Renders the model's chat template and tokenizes; the template brings the special tokens."""
        self.need_tokenizer("messages")
        encoder = self._chat_encoder
        if encoder is None:
            raise RequestError(
                "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
            )
        turns = [_turn(message, i) for i, message in enumerate(messages)]
        num_chars = sum(len(turn["content"]) for turn in turns)
        return await self._run(num_chars, lambda: encoder.encode(turns, add_generation_prompt).token_ids)

    async def decode(self, token_ids: list[int]) -> str:
        tokenizer = self.need_tokenizer("tokens")
        return await self._run(len(token_ids) * 4, lambda: tokenizer.decode(token_ids, skip_special_tokens=False))

    async def _run(self, num_chars: int, function: Callable[[], T]) -> T:
        if num_chars < LONG_TEXT_CHARS:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)


def _turn(message: ChatMessage, index: int) -> dict[str, str]:
    """One message as a chat template reads it; text parts are joined by newlines, as vLLM does."""
    role = "system" if message.role == "developer" else message.role
    if role not in ("system", "user", "assistant"):
        raise RequestError(
            f"messages[{index}].role {role} is not supported yet; use system, developer, user or assistant.",
            param=f"messages[{index}].role",
            code="unsupported_parameter",
        )
    return {"role": role, "content": _content(message, f"messages[{index}].content")}


def _content(message: ChatMessage, param: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if not message.content:
        raise RequestError(f"{param} is required: a string or a list of text parts.", param=param)
    texts = []
    for i, part in enumerate(message.content):
        where = f"{param}[{i}]"
        if part.type != "text":
            kind = f"Parts of type {part.type}" if part.type in part.__struct_fields__ else "Parts of this type"
            raise RequestError(
                f"{kind} are not supported yet; send parts of type text.",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
        if part.text is None:
            raise RequestError(f"{where}.text is required.", param=f"{where}.text", code="missing_required_parameter")
        texts.append(part.text)
    return "\n".join(texts)
