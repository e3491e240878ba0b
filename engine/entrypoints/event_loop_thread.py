"""``EventLoopThread``: an event loop of one's own, for synchronous code. Torch-free.

Owns the thread, waiting for its work from any other thread, and an orderly end. Because the
loop is not the caller's, it works where one already runs, as in a notebook.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

log = logging.getLogger(__name__)

T = TypeVar("T")

#: What cancelled work gets to tidy up (to send its aborts), and the last work to finish.
UNWIND_S = 5.0


class EventLoopThread:
    """Runs coroutines on a daemon thread. ``run`` may be called from several threads at once."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        # Work is either launched before the loop's last task, which ends it, or refused.
        self._lock = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` and waits for it; returns its result or raises its exception.

        A ``KeyboardInterrupt`` here cancels the work, waits until it has unwound, and goes on.

        Raises:
            RuntimeError: the thread was closed.
        """
        ended = threading.Event()
        tasks: list[asyncio.Task[T]] = []

        def launch() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("The event loop thread is closed.")
            self._loop.call_soon_threadsafe(launch)
        try:
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            ended.wait(UNWIND_S)
            raise
        return tasks[0].result()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs ``last``, cancels all else, and ends the thread.

        Call it once. Waits for that unless it is called on the loop's own thread, where the garbage
        collector may run as anywhere.
        """
        with self._lock:
            self._closed = True
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._finish(last)))
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * UNWIND_S)

    async def _finish(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await asyncio.wait_for(last(), UNWIND_S)
        except Exception:
            log.exception("Closing did not go as it should.")
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest, timeout=UNWIND_S)
            self._loop.stop()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
