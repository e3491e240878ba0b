"""``create_app``: the HTTP server as an ASGI app, on any ``EngineClient``.

Owns the wiring. Sockets, signals and connection limits are ``server.py``'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.client import EngineClient
from engine.entrypoints.openai.context import ServerContext, ServerInfo
from engine.entrypoints.openai.errors import on_error, on_http_exception
from engine.entrypoints.openai.json_response import json_response
from engine.entrypoints.openai.layer import ServerLayer
from engine.entrypoints.openai.limits import HttpLimits
from engine.entrypoints.openai.openapi import OPENAPI_PATH, openapi_document
from engine.entrypoints.openai.page import PAGES, StaticFile
from engine.entrypoints.openai.routes import GET_ROUTES, POST_ROUTES, ReadHandler, WorkHandler
from engine.errors import EngineDeadError, RequestError

if TYPE_CHECKING:
    from engine.text.chat_template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

#: Served without the API key: that the process runs is no secret, and the page asks for the key itself.
OPEN_PATHS = frozenset({"/health/live", *PAGES})


def create_app(
    client: EngineClient,
    info: ServerInfo,
    tokenizer: Tokenizer | None,
    chat_template: ChatTemplate | None,
    limits: HttpLimits,
    *,
    api_key: str | None = None,
) -> Starlette:
    """The app; ``app.state.context`` is its ``ServerContext``.

    With ``info.limits`` it serves at once; without, it answers 503 until
    ``app.state.context.lifecycle.serving(limits)``. The app neither starts nor closes ``client``.
    """
    ctx = ServerContext(client, info, tokenizer, chat_template, limits)
    document = json_response(openapi_document(info.version, needs_key=api_key is not None))

    async def openapi(request: Request, ctx: ServerContext) -> Response:
        return document

    gets: list[tuple[str, ReadHandler]] = [(route.path, route.handler) for route in GET_ROUTES]
    gets += [(path, StaticFile(name)) for path, name in PAGES.items()]
    gets.append((OPENAPI_PATH, openapi))
    routes = [_route(path, "GET", ReadEndpoint(path, handler, ctx)) for path, handler in gets]
    routes += [_route(post.path, "POST", WorkEndpoint(post.path, post.handler, ctx)) for post in POST_ROUTES]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        ctx.close()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(ServerLayer, ctx=ctx, api_key=api_key, open_paths=OPEN_PATHS)],
        exception_handlers={
            RequestError: on_error,
            EngineDeadError: on_error,
            HTTPException: on_http_exception,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.context = ctx
    return app


class ReadEndpoint:
    """An ASGI app around a handler that reads."""

    def __init__(self, path: str, handler: ReadHandler, ctx: ServerContext) -> None:
        self._path = path
        self._handler = handler
        self._ctx = ctx

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route_path"] = self._path
        response = await self._handler(Request(scope, receive), self._ctx)
        await response(scope, receive, send)


class WorkEndpoint:
    """An ASGI app around a handler that works: in flight from here to the end of its answer."""

    def __init__(self, path: str, handler: WorkHandler, ctx: ServerContext) -> None:
        self._path = path
        self._handler = handler
        self._ctx = ctx

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route_path"] = self._path
        with self._ctx.lifecycle.admit() as limits:
            response = await self._handler(Request(scope, receive), self._ctx, limits)
            await response(scope, receive, send)


def _route(path: str, method: str, endpoint: ReadEndpoint | WorkEndpoint) -> Route:
    """Model ids may contain slashes, so the one parameter there is takes the rest of the path."""
    return Route(path.replace("}", ":path}"), endpoint, methods=[method])
