"""``GET /v1/models`` and ``GET /v1/models/{id}``: this server has one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.json_response import json_response
from engine.entrypoints.openai.responses import ModelCard, ModelList


async def list_models(request: Request, ctx: ServerContext) -> Response:
    return json_response(ModelList([_card(ctx)]))


async def show_model(request: Request, ctx: ServerContext) -> Response:
    """Raises ``NotFoundError`` for another id; ids may contain slashes."""
    ctx.check_model(request.path_params["model_id"])
    return json_response(_card(ctx))


def _card(ctx: ServerContext) -> ModelCard:
    info = ctx.info
    return ModelCard(info.model_name, info.created, info.config.model.max_model_len)
