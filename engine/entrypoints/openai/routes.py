"""The table of routes: method, path, handler and schemas, one line each.

Owns what exists. ``app.py`` serves it and ``openapi.py`` documents it, so neither can miss a route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from engine.api import ModelLimits
from engine.entrypoints.openai import models, responses, status
from engine.entrypoints.openai.chat import create_chat_completion
from engine.entrypoints.openai.completion import create_completion
from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from engine.entrypoints.openai.tokenize import detokenize, tokenize

ReadHandler = Callable[[Request, ServerContext], Awaitable[ASGIApp]]
WorkHandler = Callable[[Request, ServerContext, ModelLimits], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class GetRoute:
    """A route that reads; it answers in every phase. ``answer`` is a schema, or a media type."""

    path: str
    handler: ReadHandler
    answer: type[msgspec.Struct] | str
    summary: str


@dataclass(frozen=True, slots=True)
class PostRoute:
    """A route that works; it counts as a request in flight and is refused while starting or draining."""

    path: str
    handler: WorkHandler
    body: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    summary: str
    #: Schema of the events of ``stream: true``.
    event: type[msgspec.Struct] | None = None


POST_ROUTES = (
    PostRoute(
        "/v1/chat/completions",
        create_chat_completion,
        ChatCompletionRequest,
        responses.ChatCompletion,
        "Answer a chat",
        responses.ChatCompletionChunk,
    ),
    PostRoute(
        "/v1/completions",
        create_completion,
        CompletionRequest,
        responses.Completion,
        "Continue one or several prompts",
        responses.Completion,
    ),
    PostRoute("/tokenize", tokenize, TokenizeRequest, responses.TokenizeResponse, "Text or chat to token ids"),
    PostRoute("/detokenize", detokenize, DetokenizeRequest, responses.DetokenizeResponse, "Token ids to text"),
)

GET_ROUTES = (
    GetRoute("/v1/models", models.list_models, responses.ModelList, "List the models"),
    GetRoute("/v1/models/{model_id}", models.show_model, responses.ModelCard, "Show one model"),
    GetRoute("/v1/engine", status.engine_info, responses.EngineInfo, "Which engine runs, why, and what it can do"),
    GetRoute("/version", status.version, responses.Version, "Version and engine"),
    GetRoute("/health/live", status.health_live, responses.Health, "Whether the server runs"),
    GetRoute("/health/ready", status.health_ready, responses.Health, "Whether a request would be served now"),
    GetRoute("/health", status.health_ready, responses.Health, "Same as /health/ready"),
    GetRoute("/metrics", status.metrics, "text/plain", "Prometheus metrics"),
)
