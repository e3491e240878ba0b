"""engine/v1/core/block_pool.py against a naive model: a set of free blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.v1.core.block_pool import BlockPool


@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=60))
def test_the_pool_agrees_with_a_set(num_blocks: int, operations: list[tuple[bool, int]]) -> None:
    pool, free, held = BlockPool(num_blocks), set(range(num_blocks)), []
    for allocate, number in operations:
        if allocate:
            count = number % (pool.num_free + 1)
            blocks = pool.allocate(count)
            assert len(set(blocks)) == count and set(blocks) <= free
            free -= set(blocks)
            held += blocks
        else:
            returned = [held.pop(number % len(held)) for _ in range(min(number, len(held)))]
            pool.free(returned)
            free |= set(returned)
        assert pool.num_free == len(free)
        pool.check_invariants(held)


def test_a_block_returned_last_is_taken_first() -> None:
    """Or a cache that never holds many tokens would still touch all its memory."""
    pool = BlockPool(100)
    for _ in range(50):
        blocks = pool.allocate(3)
        assert max(blocks) < 3
        pool.free(blocks)


def test_misuse_is_seen_at_once() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="already free"):
        pool.free(blocks[:1])
    with pytest.raises(AssertionError, match="5 blocks wanted"):
        pool.allocate(5)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="lost"):
        pool.check_invariants([])
