"""Response schemas of the HTTP API, in the order OpenAI's own documents print them.

Owns the shapes that leave the server. Optional parts use ``UNSET``, which is left out of the JSON;
``None`` is sent as ``null`` where OpenAI sends ``null``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = int | str | None


class ErrorDetail(msgspec.Struct):
    """``param`` is the field at fault, ``code`` a stable word a program can compare."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct):
    """Every answer with a status of 400 or more, and the error event of a stream."""

    error: ErrorDetail


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """Token counts of one request, all its prompts together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(msgspec.Struct):
    """``bytes`` may be part of a character; null without a tokenizer."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: StopReason = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    object: Literal["chat.completion"] = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(msgspec.Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one element a token; ``text_offset`` counts characters of the generated text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """The whole answer, or one event of a stream: OpenAI uses one shape for both."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str


class ModelCard(msgspec.Struct):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "engine"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class Health(msgspec.Struct):
    status: Literal["live", "ready", "starting", "draining", "dead", "unresponsive"]


class Decision(msgspec.Struct):
    """Which engine runs and why; see ``engine/select.py``."""

    requested: str | None
    chosen: str
    source: str
    reasons: list[str]


class Version(msgspec.Struct):
    version: str
    engine: str
    decision: Decision


class EngineInfo(msgspec.Struct):
    """What ``GET /v1/engine`` tells: the decision, the configuration the engine received, and its limits."""

    version: str
    decision: Decision
    config: dict[str, Any]
    capabilities: list[dict[str, Any]]
    model_limits: dict[str, Any] | None
    http_limits: dict[str, Any]
