"""``GET /openapi.json``: made from the table of routes and the msgspec schemas, once, at start."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.entrypoints.openai.page import PAGES
from engine.entrypoints.openai.protocol import ChatCompletionRequest, ChatMessage, CompletionRequest, StreamOptions
from engine.entrypoints.openai.responses import ErrorResponse
from engine.entrypoints.openai.routes import GET_ROUTES, POST_ROUTES, GetRoute, PostRoute

REF = "#/components/schemas/{name}"
OPENAPI_PATH = "/openapi.json"


def openapi_document(version: str, *, needs_key: bool) -> dict[str, Any]:
    """An OpenAPI 3.1 document of every route."""
    types = _types()
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = dict(zip(types, schemas, strict=True))
    for kind in (ChatCompletionRequest, CompletionRequest, ChatMessage, StreamOptions):
        for name, values in kind.NEUTRAL.items():
            components[kind.__name__]["properties"][name]["enum"] = [None, *values]
    paths: dict[str, Any] = {}
    for get in GET_ROUTES:
        paths[get.path] = {"get": _get(get, schema_of)}
    for post in POST_ROUTES:
        paths[post.path] = {"post": _post(post, schema_of)}
    paths[OPENAPI_PATH] = {"get": _plain("This document", "application/json")}
    for path in PAGES:
        paths[path] = {"get": _plain("The chat page" if path == "/" else "Part of the chat page", "*/*")}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "OpenAI-compatible LLM server", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _types() -> list[type[msgspec.Struct]]:
    """Every Struct of every route, once, in a stable order."""
    types: dict[type[msgspec.Struct], None] = {ErrorResponse: None}
    for get in GET_ROUTES:
        if not isinstance(get.answer, str):
            types[get.answer] = None
    for post in POST_ROUTES:
        for kind in (post.body, post.answer, post.event):
            if kind is not None:
                types[kind] = None
    return list(types)


def _get(route: GetRoute, schema_of: dict[type[msgspec.Struct], Any]) -> dict[str, Any]:
    if isinstance(route.answer, str):
        return _plain(route.summary, route.answer)
    operation = _operation(route.summary, {"application/json": {"schema": schema_of[route.answer]}}, schema_of)
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    return operation


def _post(route: PostRoute, schema_of: dict[type[msgspec.Struct], Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema_of[route.answer]}}
    if route.event is not None:
        content["text/event-stream"] = {"schema": schema_of[route.event]}
    operation = _operation(route.summary, content, schema_of)
    body = {"application/json": {"schema": schema_of[route.body]}}
    operation["requestBody"] = {"required": True, "content": body}
    return operation


def _operation(summary: str, content: dict[str, Any], schema_of: dict[type[msgspec.Struct], Any]) -> dict[str, Any]:
    error = {"description": "Error", "content": {"application/json": {"schema": schema_of[ErrorResponse]}}}
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}, "default": error}}


def _plain(summary: str, media_type: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": {media_type: {}}}}}
