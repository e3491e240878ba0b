"""The torch backend against dense attention, and the C++ kernel against the torch backend."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.backend import make_backend
from engine.attention.cpu_backend import CpuBackend
from engine.attention.torch_backend import TorchBackend
from engine.kernels.native import IsaLevel
from engine.kernels.paged_attention import paged_attention
from engine.kv.tensors import LayerKVCache
from tests.attention.ragged_batches import RaggedBatch, dense_attention, make_batch
from tests.kernels.levels import DTYPES, LEVELS, SUPPORTED

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
MIXED = [(1, 1), (1, 300), (5, 20), (70, 200), (1, 1100), (130, 130), (3, 600)]


def reference(batch: RaggedBatch, scale: float, window: int | None) -> torch.Tensor:
    return TorchBackend().forward(batch.query, batch.cache, batch.metadata, scale=scale, sliding_window=window)


def kernel(batch: RaggedBatch, scale: float, window: int | None, level: IsaLevel | None = None) -> torch.Tensor:
    return paged_attention(batch.query, batch.cache, batch.metadata, scale=scale, sliding_window=window, level=level)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 1, 9])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (5, 1)])
def test_torch_backend_is_dense_attention(heads: tuple[int, int], window: int | None) -> None:
    batch = make_batch([(1, 1), (1, 30), (5, 20), (33, 40), (17, 17)], heads=heads, head_dim=16)
    torch.testing.assert_close(
        reference(batch, 0.3, window).double(), dense_attention(batch, 0.3, window), rtol=1e-5, atol=1e-5
    )


@LEVELS
@DTYPES
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("head_dim", [64, 72, 256])
def test_kernel_on_a_mixed_batch(head_dim: int, window: int | None, dtype: str, level: IsaLevel) -> None:
    batch = make_batch(MIXED, heads=(6, 2), head_dim=head_dim, dtype=getattr(torch, dtype))
    scale = head_dim**-0.5
    close(kernel(batch, scale, window, level), reference(batch, scale, window))


@LEVELS
@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (14, 2), (8, 1), (100, 1)])
def test_kernel_with_any_number_of_heads(heads: tuple[int, int], level: IsaLevel) -> None:
    batch = make_batch([(1, 40), (4, 4), (60, 70)], heads=heads)
    close(kernel(batch, 0.125, None, level), reference(batch, 0.125, None))


@st.composite
def ragged_lens(draw: st.DrawFn) -> list[tuple[int, int]]:
    lens = []
    for _ in range(draw(st.integers(1, 6))):
        query_len = draw(st.one_of(st.integers(0, 3), st.integers(1, 140)))
        history = draw(st.one_of(st.just(0), st.integers(0, 80), st.integers(400, 1100)))
        lens.append((query_len, max(1, query_len + history)))
    return lens


@settings(max_examples=50, deadline=None)
@given(
    lens=ragged_lens(),
    heads=st.sampled_from([(1, 1), (4, 2), (9, 3), (7, 1)]),
    head_dim=st.sampled_from([8, 24, 64, 128]),
    block_size=st.sampled_from([8, 16, 32]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    window=st.one_of(st.none(), st.integers(1, 600)),
    level=st.sampled_from(SUPPORTED),
)
def test_kernel_on_any_batch(
    lens: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
    level: IsaLevel,
) -> None:
    batch = make_batch(lens, heads=heads, head_dim=head_dim, block_size=block_size, dtype=dtype)
    close(kernel(batch, head_dim**-0.5, window, level), reference(batch, head_dim**-0.5, window))


@LEVELS
@DTYPES
def test_a_sequence_does_not_depend_on_its_batch_or_on_threads(dtype: str, level: IsaLevel) -> None:
    batch = make_batch(MIXED, dtype=getattr(torch, dtype))
    starts = batch.metadata.query_start_loc.tolist()
    together = kernel(batch, 0.125, None, level)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(kernel(batch, 0.125, None, level), together)
    finally:
        torch.set_num_threads(threads)
    for i, (start, end) in enumerate(pairwise(starts)):
        metadata = replace(
            batch.metadata,
            query_start_loc=torch.tensor([0, end - start], dtype=torch.int32),
            seq_lens=batch.metadata.seq_lens[i : i + 1],
            block_table=batch.metadata.block_table[i : i + 1],
        )
        alone = kernel(replace(batch, query=batch.query[start:end], metadata=metadata), 0.125, None, level)
        assert torch.equal(alone, together[start:end])


@LEVELS
def test_chunks_of_a_prompt_agree_with_the_whole(level: IsaLevel) -> None:
    whole = make_batch([(700, 700)], dtype=torch.float32)
    expected = kernel(whole, 0.125, None, level)
    for start, end in ((0, 1), (1, 129), (129, 650), (650, 699), (699, 700)):
        metadata = replace(
            whole.metadata,
            query_start_loc=torch.tensor([0, end - start], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
        )
        close(
            kernel(replace(whole, query=whole.query[start:end], metadata=metadata), 0.125, None, level),
            expected[start:end],
        )


@LEVELS
def test_scores_far_apart_neither_overflow_nor_vanish(level: IsaLevel) -> None:
    batch = make_batch([(1, 200), (40, 200)])
    batch = replace(batch, query=batch.query * 100)
    # A score of some hundreds is exact to 1e-4 or so, and so is its weight.
    torch.testing.assert_close(kernel(batch, 1.0, None, level), reference(batch, 1.0, None), rtol=1e-3, atol=1e-3)


def test_blocks_before_the_window_are_not_read() -> None:
    batch = make_batch([(1, 200), (60, 200)])
    expected = kernel(batch, 0.125, 20)
    batch.metadata.block_table[:, :2] = -1
    batch.metadata.block_table[0, :11] = -1  # its window begins in block 11
    assert torch.equal(kernel(batch, 0.125, 20), expected)


@pytest.mark.parametrize("name", ["torch", "cpu"])
def test_backend_reads_back_what_it_wrote(name: str) -> None:
    batch = make_batch([(12, 12), (40, 40)], heads=(4, 2))
    cache = LayerKVCache(torch.full_like(batch.cache.key, torch.nan), torch.full_like(batch.cache.value, torch.nan))
    backend = make_backend("cpu" if name == "cpu" else "torch")
    assert isinstance(backend, CpuBackend if name == "cpu" else TorchBackend)
    backend.write_kv(cache, torch.cat(batch.keys), torch.cat(batch.values), batch.metadata.slot_mapping)
    fused = torch.cat((batch.query, batch.query), dim=1)  # the query as a view of a wider tensor
    output = backend.forward(fused[:, 4:], cache, batch.metadata, scale=0.125, sliding_window=None)
    assert output.is_contiguous()
    torch.testing.assert_close(output.double(), dense_attention(batch, 0.125, None), rtol=1e-5, atol=1e-5)


def bad_metadata(batch: RaggedBatch) -> dict[str, torch.Tensor]:
    table, lens = batch.metadata.block_table, batch.metadata.seq_lens
    foreign = table.clone()
    foreign[1, 1] = batch.cache.key.shape[0]
    negative = table.clone()
    negative[0, 0] = -1
    return {
        "foreign": foreign,
        "negative": negative,
        "too_long": lens + 1000,
        "shorter_than_query": torch.tensor([10, 3], dtype=torch.int32),
    }


@pytest.mark.parametrize("case", ["foreign", "negative", "too_long", "shorter_than_query"])
def test_indices_outside_of_the_cache_are_refused(case: str) -> None:
    batch = make_batch([(1, 10), (4, 30)])
    bad = bad_metadata(batch)[case]
    metadata = replace(batch.metadata, block_table=bad) if bad.dim() == 2 else replace(batch.metadata, seq_lens=bad)
    with pytest.raises(ValueError, match="block_table"):
        kernel(replace(batch, metadata=metadata), 0.125, None)


def test_query_start_loc_must_cover_the_query() -> None:
    batch = make_batch([(1, 10), (4, 30)])
    for starts in ([0, 1, 4], [1, 2, 5], [0, 6, 5]):
        metadata = replace(batch.metadata, query_start_loc=torch.tensor(starts, dtype=torch.int32))
        with pytest.raises(ValueError, match="query_start_loc"):
            kernel(replace(batch, metadata=metadata), 0.125, None)


def test_tensors_that_do_not_fit_are_refused() -> None:
    batch = make_batch([(1, 10), (4, 30)])
    query, cache, metadata = batch.query, batch.cache, batch.metadata
    cases = {
        "one dtype": (query.half(), cache, metadata),
        "head_dim": (query[..., :60].contiguous(), cache, metadata),
        "num_kv_heads": (query[:, :8].contiguous(), cache, metadata),
        "contiguous": (query, LayerKVCache(cache.key[:, :, :1], cache.value[:, :, :1]), metadata),
        "query must be": (query[0], cache, metadata),
        "must be int32": (query, cache, replace(metadata, seq_lens=metadata.seq_lens.long())),
        "block_table": (query, cache, replace(metadata, block_table=metadata.block_table[:1])),
    }
    for words, (q, kv, batch_metadata) in cases.items():
        with pytest.raises(ValueError, match=words):
            paged_attention(q, kv, batch_metadata, scale=0.125)
