"""``KVCacheManager``: which blocks each slot holds.

Owns the scheduler's block tables and the pool. Workers mirror the tables from the diffs of
``core/step.py``; a table only ever grows until its slot is freed, so a diff is an append.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.config import CacheConfig
from engine.v1.core.block_pool import BlockPool


class KVCacheManager:
    """Block tables as arrays over slots; only slots that grow or end get attention of their own."""

    def __init__(self, cache: CacheConfig, num_slots: int, max_model_len: int) -> None:
        self.block_size = cache.block_size
        self.pool = BlockPool(cache.num_blocks)
        self._table = np.zeros((num_slots, self.blocks_for(max_model_len)), np.int32)  # [num_slots, max_blocks]
        self.num_held = np.zeros(num_slots, np.int32)  # [num_slots] valid entries of each table row

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def missing(self, slots: NDArray[np.int64], num_tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Blocks that each of ``slots`` lacks to hold its ``num_tokens`` tokens: mostly zeros."""
        needed = (num_tokens + (self.block_size - 1)) // self.block_size
        missing: NDArray[np.int32] = np.maximum(needed - self.num_held[slots], 0)
        return missing

    def grow(self, slot: int, count: int) -> list[int]:
        """Appends ``count`` blocks to the slot's table and returns them; the pool must have them."""
        blocks = self.pool.allocate(count)
        held = int(self.num_held[slot])
        self._table[slot, held : held + count] = blocks
        self.num_held[slot] = held + count
        return blocks

    def free(self, slot: int) -> None:
        """Returns all blocks of the slot, the newest first."""
        self.pool.free(self._blocks_of(slot)[::-1].tolist())
        self.num_held[slot] = 0

    def check_invariants(self) -> None:
        """Free + held == total, and no block has two owners. O(num_blocks)."""
        slots = np.flatnonzero(self.num_held).tolist()
        held = [block for slot in slots for block in self._blocks_of(slot).tolist()]
        self.pool.check_invariants(held)

    def _blocks_of(self, slot: int) -> NDArray[np.int32]:
        return self._table[slot, : self.num_held[slot]]
