"""``BlockAllocator``: hands out block ids and counts who holds them.

Owns the free list and the reference counts. Does not know what is in a block or which
sequence holds it (``block/table.py``).
"""

from __future__ import annotations


class BlockAllocator:
    """A pool of ``num_blocks`` ids. A block is free exactly when nobody holds a reference."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: the block freed last is the one most likely still in the CPU's caches.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """Takes a free block with one reference; asking for more than ``num_free`` is a bug."""
        assert self._free, "allocate() without a free block: the caller did not check"
        block_id = self._free.pop()
        self._ref_counts[block_id] = 1
        return block_id

    def free(self, block_id: int) -> None:
        """Drops one reference; the last one returns the block to the pool."""
        count = self._ref_counts[block_id] - 1
        assert count >= 0, f"block {block_id} was freed more often than it was held"
        self._ref_counts[block_id] = count
        if count == 0:
            self._free.append(block_id)

    def check_invariants(self, held: list[int]) -> None:
        """Raises ``AssertionError`` unless the counts are those of ``held``, one entry a reference."""
        counts = [0] * self.num_blocks
        for block_id in held:
            counts[block_id] += 1
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        assert len(set(self._free)) == len(self._free), "a block is in the free list twice"
        assert set(self._free) == {i for i, count in enumerate(counts) if count == 0}, "free list and counts differ"
