"""``Seeds``: a generator for each request that has a seed and draws."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.v1.core.step import NewRequest
from engine.v1.worker.layout import BatchLayout


class Seeds:
    """A ``Feature``. Generators live on the CPU, so a seed gives the same draws on every device.

    A sampled token costs its generator one draw. Hence a request that comes back after a preemption
    goes on exactly where it was: its new generator skips one draw for each token it has.
    """

    def __init__(self) -> None:
        self._generators: dict[int, torch.Generator] = {}

    def add(self, request: NewRequest) -> None:
        params = request.params
        if params.seed is None or params.greedy:
            return
        generator = torch.Generator().manual_seed(params.seed)
        num_drawn = len(request.token_ids) - request.num_prompt_tokens
        torch.rand(num_drawn, dtype=torch.float64, generator=generator)
        self._generators[request.slot] = generator

    def remove(self, slot: int) -> None:
        self._generators.pop(slot, None)

    def flush(self) -> None:
        """Nothing to do: generators live on the host."""

    def sampled(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        """Nothing to do: the draw itself moved the generator on."""

    def generators(self, layout: BatchLayout) -> Mapping[int, torch.Generator]:
        """The generators of the sampled slots, by row."""
        return {layout.row_of[slot]: g for slot, g in self._generators.items() if slot in layout.row_of}
