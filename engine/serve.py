"""``python -m engine.serve``: a model behind the OpenAI-compatible HTTP server.

Owns the order of a start: decide on the engine, resolve the configuration (every user error
shows here, before anything is started), then start the engine process and, while it loads,
the tokenizer and the HTTP server. Torch-free, like everything in the API process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from engine import __version__, capabilities
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.config.arguments import add_engine_arguments, engine_args
from engine.config.resolve import resolve
from engine.entrypoints.openai.app import create_app
from engine.entrypoints.openai.context import ServerInfo
from engine.entrypoints.openai.lifecycle import Lifecycle
from engine.entrypoints.openai.limits import HttpLimits
from engine.entrypoints.openai.server import serve
from engine.envs import read_envs
from engine.select import EngineDecision, create_client, decide
from engine.startup import guarded, set_up_logging
from engine.text.chat_template import load_chat_template
from engine.text.tokenizer import load_tokenizer

log = logging.getLogger(__name__)

#: After the engine's death: the time that the error events of open streams have to leave.
LAST_ERRORS_S = 1.5


def run(argv: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it; returns the exit code."""
    started = time.perf_counter()
    arguments = _parser().parse_args(argv)
    set_up_logging()
    decision = decide()
    log.info("engine: %s (%s)", decision.chosen.upper(), "; ".join(decision.reasons))
    capabilities.refuse_unsupported(decision.chosen, arguments.absent_features or [])
    config = resolve(engine_args(arguments), decision.chosen)
    return uvloop.run(_run(decision, config, arguments, started))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engine serve", description="Serve a model over HTTP.")
    add_engine_arguments(parser)
    limits = HttpLimits()
    http = parser.add_argument_group("http")
    http.add_argument("--host", default="127.0.0.1", help="address to listen on")
    http.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one")
    http.add_argument(
        "--drain-timeout", type=float, default=limits.drain_timeout_s, help="seconds open streams get after SIGTERM"
    )
    return parser


async def _run(decision: EngineDecision, config: EngineConfig, arguments: argparse.Namespace, started: float) -> int:
    """Listens at once, answers 503 until the engine is ready, and ends when the server or the engine does."""
    tokenizer = None if config.model.skip_tokenizer_init else load_tokenizer(config.model.source)
    template = None if tokenizer is None else load_chat_template(config.model.source)
    limits = HttpLimits(drain_timeout_s=arguments.drain_timeout)
    client = create_client(decision, config, tokenizer)
    app = create_app(client, _info(decision, config), tokenizer, template, limits, api_key=read_envs().api_key)
    lifecycle: Lifecycle = app.state.context.lifecycle
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(app, arguments.host, arguments.port, limits, listening.set_result))
    try:
        await _first(server, listening)
        if not server.done():
            url = f"http://{arguments.host}:{listening.result()}"
            engine = asyncio.create_task(_serve_until_engine_ends(client, lifecycle, url, started))
            await _first(server, engine)
            if not server.done():
                return await engine
            engine.cancel()
        await server
        return 0
    finally:
        server.cancel()
        await asyncio.wait((server,))
        await client.close()


async def _serve_until_engine_ends(client: EngineClient, lifecycle: Lifecycle, url: str, started: float) -> int:
    """Starts the engine and waits for its end, which is the server's too: a supervisor restarts both."""
    lifecycle.serving(await client.start())
    seconds = time.perf_counter() - started
    print(f"Serving on {url} (ready in {seconds:.1f} s). Ctrl-C ends it.", flush=True)
    log.error("The engine process ended (%s); the server ends too.", await client.wait_dead())
    lifecycle.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_ERRORS_S):
            await lifecycle.wait_idle()
    return 1


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _info(decision: EngineDecision, config: EngineConfig) -> ServerInfo:
    return ServerInfo(
        decision=decision,
        config=config,
        version=__version__,
        model_name=config.model.served_name,
        created=int(time.time()),
        limits=None,
        capabilities=tuple(capabilities.matrix()),
    )


if __name__ == "__main__":
    sys.exit(guarded(run))
