"""``EngineClient``: all that the HTTP server and ``LLM`` know about an engine.

Owns the contract. ``engine/select.py`` makes one; ``engine/v0/llm_engine/client.py`` and
``engine/v1/llm_engine/client.py`` implement it; ``tests/conformance`` holds both to it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from engine.api import GenerateRequest, ModelLimits, RequestOutput
from engine.metrics.stats import EngineStats


class EngineClient(Protocol):
    """One engine, in processes of its own. Use it from one event loop.

    Life cycle: constructed -> ``start`` -> (``generate`` | ``abort`` | ``stats``)* -> ``close``.
    """

    async def start(self) -> ModelLimits:
        """Starts the engine processes and waits until they can serve.

        Raises:
            StartupError: the engine refused or failed to start; every process it started is gone.
        """
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput, None]:
        """Yields deltas; the last has ``finished`` set, and exactly one such item is yielded.

        Leaving the iteration early (``aclose``, cancellation) aborts the request. A slow reader
        gets merged deltas, so at most one unread item exists.

        Raises:
            RequestError: the request cannot be served; the engine is untouched.
            EngineDeadError: the engine ended first.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Ends a request; its stream ends with ``finish_reason`` "abort". Unknown ids are ignored."""
        ...

    async def stats(self) -> EngineStats:
        """A fresh snapshot, answered by the engine process itself."""
        ...

    @property
    def dead(self) -> bool:
        """Whether the engine process has ended; noticed within milliseconds."""
        ...

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine process, once started."""
        ...

    async def wait_dead(self) -> str:
        """Returns, in words, how the engine process ended, once it has without being asked to."""
        ...

    async def close(self) -> None:
        """Ends all engine processes; open streams end with ``EngineDeadError``. Idempotent."""
        ...
