"""``MinTokens``: what would end a request is banned until it has its ``min_tokens``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.sampling.batch import BannedTokens
from engine.v1.core.step import NewRequest
from engine.v1.worker.layout import BatchLayout


@dataclass(slots=True)
class _Ban:
    """``token_ids`` may not be sampled ``left`` more times."""

    left: int
    token_ids: tuple[int, ...]


class MinTokens:
    """A ``Feature``. Forgets a request as soon as it may end."""

    def __init__(self, eos_token_ids: tuple[int, ...], device: torch.device) -> None:
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._bans: dict[int, _Ban] = {}

    def add(self, request: NewRequest) -> None:
        params = request.params
        left = params.min_tokens - (len(request.token_ids) - request.num_prompt_tokens)
        ends = params.stop_token_ids + (() if params.ignore_eos else self._eos_token_ids)
        if left > 0 and ends:
            self._bans[request.slot] = _Ban(left, ends)

    def remove(self, slot: int) -> None:
        self._bans.pop(slot, None)

    def flush(self) -> None:
        """Nothing to do: bans are sent with each batch, while there are any."""

    def sampled(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        for slot in self._bans.keys() & layout.row_of.keys():
            self._bans[slot].left -= 1
            if self._bans[slot].left == 0:
                del self._bans[slot]

    def banned(self, layout: BatchLayout) -> BannedTokens | None:
        """Pairs of row and token for the sampled slots; ``None`` if there are none."""
        pairs = [
            (layout.row_of[slot], token_id)
            for slot, ban in self._bans.items()
            if slot in layout.row_of
            for token_id in ban.token_ids
        ]
        if not pairs:
            return None
        rows, token_ids = torch.tensor(pairs, dtype=torch.int64).to(self._device).unbind(1)
        return BannedTokens(rows, token_ids)
