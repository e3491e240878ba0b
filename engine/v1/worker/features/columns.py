"""``SlotColumn``: one number a slot, staged on the host and read on the device."""

from __future__ import annotations

import numpy as np
import torch

from engine.v1.worker.layout import BatchLayout


class SlotColumn:
    """Values of one option; ``off`` is the one that does nothing. All are flushed in one copy."""

    def __init__(self, num_slots: int, dtype: type[np.generic], off: float, device: torch.device) -> None:
        self._off = off
        self._host = np.full(num_slots, off, dtype)  # [num_slots]
        self._device = torch.from_numpy(self._host).to(device, copy=True)  # [num_slots]
        self._staged = False

    def set(self, slot: int, value: float) -> None:
        self._host[slot] = value
        self._staged = True

    def flush(self) -> None:
        if self._staged:
            self._device.copy_(torch.from_numpy(self._host))
            self._staged = False

    def rows(self, layout: BatchLayout) -> torch.Tensor:
        """The values of the sampled slots, [num_sampled] on the device."""
        return self._device[layout.sampled_slots]

    def rows_if_used(self, layout: BatchLayout) -> torch.Tensor | None:
        """As ``rows``; ``None`` if the option is off for all of them, which the host can tell."""
        used = bool((self._host[layout.sampled] != self._off).any())
        return self.rows(layout) if used else None
