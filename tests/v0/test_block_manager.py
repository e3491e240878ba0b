"""engine/v0/core/block_manager.py against a model that only counts."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.text.output_text import OutputText
from engine.v0.core.block.allocator import BlockAllocator
from engine.v0.core.block_manager import AllocStatus, BlockManager
from engine.v0.core.sequence import Sequence
from engine.v0.core.sequence_group import SequenceGroup
from tests.v0.helpers import greedy


def make_group(number: int, num_tokens: int) -> SequenceGroup:
    params = greedy(8)
    prompt = list(range(num_tokens))
    return SequenceGroup(f"r{number}", [Sequence(number, prompt, OutputText(None, prompt, params))], params, 0.0)


@pytest.mark.parametrize(
    ("num_tokens", "held", "status"),
    [
        (4, 0, AllocStatus.OK),
        (72, 0, AllocStatus.OK),  # 18 of 20 blocks, 2 of them the watermark
        (73, 0, AllocStatus.NEVER),
        (40, 8, AllocStatus.OK),
        (41, 8, AllocStatus.LATER),
    ],
)
def test_admission_keeps_the_watermark_free(num_tokens: int, held: int, status: AllocStatus) -> None:
    manager = BlockManager(block_size=4, num_blocks=20, watermark=0.1)
    if held:
        manager.allocate(make_group(1, held * 4))
    assert manager.can_allocate(make_group(0, num_tokens)) is status


def test_capacity_is_what_admission_can_ever_give() -> None:
    manager = BlockManager(block_size=4, num_blocks=20, watermark=0.1)
    assert manager.can_allocate(make_group(0, manager.capacity_tokens)) is AllocStatus.OK
    assert manager.can_allocate(make_group(0, manager.capacity_tokens + 1)) is AllocStatus.NEVER


def test_a_running_group_may_use_the_watermark() -> None:
    manager = BlockManager(block_size=4, num_blocks=20, watermark=0.1)
    group = make_group(0, 72)
    manager.allocate(group)
    for _ in range(8):
        group.seqs[0].data.append_token(1)
        assert manager.can_append_slots(group)
        manager.append_slots(group)
    assert manager.num_free_blocks == 0
    group.seqs[0].data.append_token(1)
    assert not manager.can_append_slots(group)


def test_a_block_freed_twice_is_noticed() -> None:
    allocator = BlockAllocator(2)
    block = allocator.allocate()
    allocator.free(block)
    with pytest.raises(AssertionError, match="more often"):
        allocator.free(block)


class BlockManagerMachine(RuleBasedStateMachine):
    """Allocate, grow and free in any order; the model is a dictionary of token counts."""

    NUM_BLOCKS = 12
    BLOCK_SIZE = 3

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(self.BLOCK_SIZE, self.NUM_BLOCKS, watermark=0.1)
        self.groups: dict[int, SequenceGroup] = {}
        self.next_id = 0

    def blocks_of(self, num_tokens: int) -> int:
        return (num_tokens + self.BLOCK_SIZE - 1) // self.BLOCK_SIZE

    def used(self) -> int:
        return sum(self.blocks_of(group.seqs[0].data.num_tokens) for group in self.groups.values())

    @rule(num_tokens=st.integers(1, 40))
    def allocate(self, num_tokens: int) -> None:
        group = make_group(self.next_id, num_tokens)
        need = self.blocks_of(num_tokens)
        status = self.manager.can_allocate(group)
        if need > self.NUM_BLOCKS - 1:
            assert status is AllocStatus.NEVER
        elif need > self.NUM_BLOCKS - self.used() - 1:
            assert status is AllocStatus.LATER
        else:
            assert status is AllocStatus.OK
            self.manager.allocate(group)
            self.groups[self.next_id] = group
            self.next_id += 1

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        group = self.groups[data.draw(st.sampled_from(sorted(self.groups)))]
        group.seqs[0].data.append_token(0)
        fits = self.used() <= self.NUM_BLOCKS
        assert self.manager.can_append_slots(group) == fits
        if fits:
            self.manager.append_slots(group)
        else:
            group.seqs[0].data.token_ids.pop()

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        group = self.groups.pop(data.draw(st.sampled_from(sorted(self.groups))))
        self.manager.free(group.seqs[0])
        self.manager.free(group.seqs[0])  # Whoever holds nothing may be freed again.

    @invariant()
    def tables_are_as_long_as_they_should_be(self) -> None:
        self.manager.check_invariants([group.seqs[0] for group in self.groups.values()])
        assert self.manager.num_free_blocks == self.NUM_BLOCKS - self.used()
        for group in self.groups.values():
            table = self.manager.block_table(group.seqs[0])
            assert len(table) == self.blocks_of(group.seqs[0].data.num_tokens)


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestBlockManagerMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
