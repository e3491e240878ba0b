"""``BlockManager``: says whether a group's tokens fit in the KV cache, and makes them fit.

Owns the block table of every admitted sequence. Does not decide who is admitted or preempted
(``scheduler.py``).
"""

from __future__ import annotations

import enum

from engine.v0.core.block.allocator import BlockAllocator
from engine.v0.core.block.table import BlockTable
from engine.v0.core.sequence import Sequence
from engine.v0.core.sequence_group import SequenceGroup


class AllocStatus(enum.Enum):
    """The answer to "can this group be admitted?"."""

    OK = enum.auto()
    #: Not now; blocks will come free.
    LATER = enum.auto()
    #: Not even in an empty cache.
    NEVER = enum.auto()


class BlockManager:
    """Block tables over one pool.

    ``watermark`` of the pool is kept free at admission: the groups already running are about to
    need blocks, and a newcomer that takes the last ones would be preempted a step later.
    """

    def __init__(self, block_size: int, num_blocks: int, *, watermark: float = 0.01) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._watermark_blocks = int(watermark * num_blocks)
        self._allocator = BlockAllocator(num_blocks)
        self._tables: dict[int, BlockTable] = {}

    @property
    def num_free_blocks(self) -> int:
        return self._allocator.num_free

    @property
    def capacity_tokens(self) -> int:
        """The most tokens, prompt and output, that one admitted sequence can ever reach."""
        return (self.num_blocks - self._watermark_blocks) * self.block_size

    def can_allocate(self, group: SequenceGroup) -> AllocStatus:
        """Whether every token the group has so far would fit, all of a chunked prompt included."""
        required = sum(-(-seq.data.num_tokens // self.block_size) for seq in group.unfinished_seqs)
        if required > self.num_blocks - self._watermark_blocks:
            return AllocStatus.NEVER
        if required > self._allocator.num_free - self._watermark_blocks:
            return AllocStatus.LATER
        return AllocStatus.OK

    def allocate(self, group: SequenceGroup) -> None:
        """Gives the group its blocks; ``can_allocate`` must have said ``OK``."""
        for seq in group.unfinished_seqs:
            assert seq.seq_id not in self._tables, f"sequence {seq.seq_id} already has blocks"
            table = BlockTable(self.block_size, self._allocator)
            table.grow(seq.data.num_tokens)
            self._tables[seq.seq_id] = table

    def can_append_slots(self, group: SequenceGroup) -> bool:
        """Whether there is room for the tokens sampled since the blocks were given."""
        missing = sum(self._tables[seq.seq_id].num_missing(seq.data.num_tokens) for seq in group.unfinished_seqs)
        return missing <= self._allocator.num_free

    def append_slots(self, group: SequenceGroup) -> None:
        """Covers the group's newest tokens; ``can_append_slots`` must have said so."""
        for seq in group.unfinished_seqs:
            self._tables[seq.seq_id].grow(seq.data.num_tokens)

    def block_table(self, seq: Sequence) -> list[int]:
        """The sequence's block ids; valid until the next call that changes them."""
        return self._tables[seq.seq_id].block_ids

    def free(self, seq: Sequence) -> None:
        """Takes the sequence's blocks back. A sequence that holds none (still waiting) is fine."""
        table = self._tables.pop(seq.seq_id, None)
        if table is not None:
            table.free()

    def check_invariants(self, admitted: list[Sequence]) -> None:
        """Raises ``AssertionError`` unless exactly ``admitted`` hold blocks, each block once, enough of them."""
        assert set(self._tables) == {seq.seq_id for seq in admitted}, "block tables and running sequences differ"
        for seq in admitted:
            table = self._tables[seq.seq_id]
            assert table.num_missing(seq.data.num_computed_tokens) == 0, f"sequence {seq.seq_id} has KV without a block"
        self._allocator.check_invariants([block_id for table in self._tables.values() for block_id in table.block_ids])
