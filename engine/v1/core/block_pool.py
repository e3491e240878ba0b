"""``BlockPool``: which KV cache blocks are free. Knows block numbers, neither requests nor tensors.

The free list is intrusive: two integer arrays hold each block's neighbours, and one extra
entry, the sentinel, is both ends of the list. Taking and returning a block is a few integer
stores at any pool size; no node is ever created, and no operation has an empty-list case.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class BlockPool:
    """Blocks ``0 .. num_blocks - 1``, each either in the free list or held by one caller.

    A held block's links point at itself, which makes a double free visible at once. The block
    returned last is taken first: its memory is warm, and a cache that never holds many tokens
    never touches the pages of the rest.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._sentinel = num_blocks
        ring = range(num_blocks + 1)
        self._next = array("i", [(block + 1) % len(ring) for block in ring])
        self._prev = array("i", [(block - 1) % len(ring) for block in ring])

    def allocate(self, count: int) -> list[int]:
        """Takes ``count`` blocks; the caller has checked ``num_free``."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        return [self._pop_front() for _ in range(count)]

    def free(self, blocks: Iterable[int]) -> None:
        """Returns held blocks."""
        for block in blocks:
            self._push_front(block)

    def check_invariants(self, held: Iterable[int]) -> None:
        """Every block is free or in ``held``, and none is both or twice. O(num_blocks)."""
        free = []
        block = self._next[self._sentinel]
        while block != self._sentinel:
            assert self._next[self._prev[block]] == block == self._prev[self._next[block]], f"block {block}: bad links"
            free.append(block)
            block = self._next[block]
        assert len(free) == self.num_free, f"{len(free)} blocks in the free list, {self.num_free} counted"
        assert sorted([*free, *held]) == list(range(self.num_blocks)), "a block is lost, or held and free at once"

    def _pop_front(self) -> int:
        block = self._next[self._sentinel]
        after = self._next[block]
        self._next[self._sentinel] = after
        self._prev[after] = self._sentinel
        self._next[block] = self._prev[block] = block
        self.num_free -= 1
        return block

    def _push_front(self, block: int) -> None:
        assert self._next[block] == block, f"block {block} is already free"
        after = self._next[self._sentinel]
        self._next[self._sentinel] = self._prev[after] = block
        self._next[block] = after
        self._prev[block] = self._sentinel
        self.num_free += 1
