"""Both engines, live, once a session. Tests here must pass on each without knowing which it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.live import LiveEngine

ARGS = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 64}


@pytest.fixture(scope="module", params=["v0", "v1"])
def live(request: pytest.FixtureRequest) -> Iterator[LiveEngine]:
    """An engine with room to spare."""
    engine = LiveEngine(request.param, **ARGS)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=["v0", "v0-chunked", "v1"])
def cramped(request: pytest.FixtureRequest) -> Iterator[LiveEngine]:
    """An engine whose cache holds one full sequence and little more, with small chunks where it chunks."""
    engine, _, chunked = request.param.partition("-")
    chunks = {"max_num_batched_tokens": 32, "max_num_seqs": 16} if chunked or engine == "v1" else {"max_num_seqs": 16}
    if chunked:
        chunks["enable_chunked_prefill"] = True
    it = LiveEngine(engine, dtype="float32", max_model_len=256, num_kv_blocks=20, **chunks)
    yield it
    it.close()
