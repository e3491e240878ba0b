"""What the server tells about itself: health, version, engine, metrics."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.json_response import json_response
from engine.entrypoints.openai.lifecycle import Phase
from engine.entrypoints.openai.responses import Decision, EngineInfo, Health, Version
from engine.errors import EngineError
from engine.metrics.prometheus import CONTENT_TYPE
from engine.metrics.stats import EngineStats


async def health_live(request: Request, ctx: ServerContext) -> Response:
    """200 while the event loop turns, whatever the engine does."""
    return json_response(Health("live"))


async def health_ready(request: Request, ctx: ServerContext) -> Response:
    """200 when a request sent now would be served, else 503.

    The engine process itself has to answer: a live process that is stuck is not ready.
    """
    phase = ctx.lifecycle.phase
    if ctx.client.dead:
        return json_response(Health("dead"), 503)
    if phase is Phase.STARTING:
        return json_response(Health("starting"), 503)
    if phase is Phase.DRAINING:
        return json_response(Health("draining"), 503)
    if await _stats(ctx) is None:
        return json_response(Health("dead" if ctx.client.dead else "unresponsive"), 503)
    return json_response(Health("ready"))


async def version(request: Request, ctx: ServerContext) -> Response:
    return json_response(Version(ctx.info.version, ctx.info.decision.chosen, _decision(ctx)))


async def engine_info(request: Request, ctx: ServerContext) -> Response:
    """Which engine, why, with which configuration and limits, and what it can do."""
    limits = ctx.lifecycle.model_limits
    info = EngineInfo(
        version=ctx.info.version,
        decision=_decision(ctx),
        config=_public_config(ctx),
        capabilities=list(ctx.info.capabilities),
        model_limits=None if limits is None else msgspec.to_builtins(limits),
        http_limits=asdict(ctx.http),
    )
    return json_response(info)


async def metrics(request: Request, ctx: ServerContext) -> Response:
    """Prometheus text; the engine's part is missing while the engine does not answer."""
    stats = None if ctx.lifecycle.phase is Phase.STARTING or ctx.client.dead else await _stats(ctx)
    text = ctx.metrics.render(stats, ctx.lifecycle.in_flight)
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def _stats(ctx: ServerContext) -> EngineStats | None:
    try:
        async with asyncio.timeout(ctx.http.health_timeout_s):
            return await ctx.client.stats()
    except (TimeoutError, EngineError):
        return None


def _decision(ctx: ServerContext) -> Decision:
    decision = ctx.info.decision
    return Decision(decision.requested, decision.chosen, decision.source, list(decision.reasons))


def _public_config(ctx: ServerContext) -> dict[str, Any]:
    """The configuration without the directories of this machine."""
    config: dict[str, Any] = msgspec.to_builtins(ctx.info.config)
    source = config["model"]["source"]
    source["path"] = os.path.basename(source["path"])
    source["files"] = [os.path.basename(name) for name in source["files"]]
    if os.path.isabs(config["model"]["model"]):
        config["model"]["model"] = os.path.basename(config["model"]["model"])
    return config
