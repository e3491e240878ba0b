"""``BlockTable``: the blocks of one sequence, in the order of its tokens.

Owns the list. Position ``p`` of the sequence is stored in block ``block_ids[p // block_size]``
at offset ``p % block_size``.
"""

from __future__ import annotations

from engine.v0.core.block.allocator import BlockAllocator


class BlockTable:
    """Grows to cover a sequence's tokens, and gives everything back at once."""

    __slots__ = ("_allocator", "_block_size", "block_ids")

    def __init__(self, block_size: int, allocator: BlockAllocator) -> None:
        self._block_size = block_size
        self._allocator = allocator
        self.block_ids: list[int] = []

    def num_missing(self, num_tokens: int) -> int:
        """Blocks to add before ``num_tokens`` tokens are covered."""
        return max(0, -(-num_tokens // self._block_size) - len(self.block_ids))

    def grow(self, num_tokens: int) -> None:
        """Covers ``num_tokens`` tokens; the allocator must have ``num_missing`` free blocks."""
        for _ in range(self.num_missing(num_tokens)):
            self.block_ids.append(self._allocator.allocate())

    def free(self) -> None:
        """Drops every block, the newest first, so that they are taken again in the same order."""
        while self.block_ids:
            self._allocator.free(self.block_ids.pop())
