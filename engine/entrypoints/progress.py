"""``Progress``: the bar of an offline batch: requests done, and output tokens per second. Torch-free."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tqdm.auto import tqdm

_REDRAW_S = 0.2


class Progress:
    """Counts what ends and what is generated, and draws it.

    Args:
        num_requests: how many will end.
        use_tqdm: whether to draw, or what makes a bar in place of ``tqdm``.
    """

    def __init__(self, num_requests: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._started = self._drawn = time.perf_counter()
        self._num_tokens = 0
        self._bar: Any = None
        if use_tqdm:
            make = tqdm if use_tqdm is True else use_tqdm
            self._bar = make(total=num_requests, desc="Processed prompts", unit="req", dynamic_ncols=True)

    def add_tokens(self, count: int) -> None:
        """``count`` more output tokens; redraws now and then."""
        self._num_tokens += count
        if self._bar is not None and time.perf_counter() - self._drawn >= _REDRAW_S:
            self._show_speed(refresh=True)

    def end_request(self) -> None:
        if self._bar is not None:
            self._show_speed(refresh=False)
            self._bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._show_speed(refresh=True)
            self._bar.close()

    def _show_speed(self, refresh: bool) -> None:
        self._drawn = time.perf_counter()
        speed = self._num_tokens / max(self._drawn - self._started, 1e-9)
        self._bar.set_postfix_str(f"output: {speed:.1f} tok/s", refresh=refresh)
