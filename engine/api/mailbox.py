"""``Mailbox``: the place between one request's outputs and its one reader. Torch-free.

Owns at most one unread item, so a reader that is slow, or gone, costs no memory that grows
with time: what it has not read yet is merged.
"""

from __future__ import annotations

import asyncio

from engine.api.outputs import RequestOutput, merge
from engine.errors import EngineError


class Mailbox:
    """Written by the engine client's output task, read by one ``generate``; both on one event loop."""

    __slots__ = ("_error", "_reader", "_unread")

    def __init__(self) -> None:
        self._unread: RequestOutput | None = None
        self._error: EngineError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Adds a delta, which then belongs to the mailbox."""
        if self._unread is None:
            self._unread = output
        else:
            merge(self._unread, output)
        self._wake()

    def fail(self, error: EngineError) -> None:
        """Ends the stream: the reader gets what is unread, then ``error``. The first error stays."""
        if self._error is None:
            self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """The deltas since the last call, merged; waits only if there are none.

        Raises:
            EngineError: the one given to ``fail``.
        """
        while self._unread is None:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        output, self._unread = self._unread, None
        return output

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
