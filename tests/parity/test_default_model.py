"""Greedy parity on the default model in fp32: V0 == V1 == transformers, token for token.

Twenty prompts of 5 to 400 tokens, 64 tokens each, all sent at once so that each engine batches
them as it likes; transformers runs them one at a time.
"""

from __future__ import annotations

import pytest

from tests.support.live import LiveEngine
from tests.support.reference import greedy
from tests.support.texts import passage

LENGTHS = [5, 8, 11, 16, 17, 23, 32, 33, 47, 48, 64, 80, 96, 128, 160, 200, 255, 256, 330, 400]
NEW_TOKENS = 64


def prompts(tokenizer) -> list[list[int]]:
    """Texts cut to exact token counts, block boundaries and their neighbours among them."""
    return [tokenizer.encode(passage(seed, 420))[:length] for seed, length in enumerate(LENGTHS)]


@pytest.mark.parametrize(
    ("engine", "args"),
    [
        ("v0", {}),
        ("v0", {"enable_chunked_prefill": True, "max_num_batched_tokens": 64, "max_num_seqs": 24}),
        ("v1", {}),
        ("v1", {"max_num_batched_tokens": 64, "max_num_seqs": 24}),
        ("v1", {"attention_backend": "torch"}),
    ],
    ids=["v0", "v0-chunked-64", "v1", "v1-chunked-64", "v1-torch-attention"],
)
def test_tokens_equal_transformers(engine: str, args: dict) -> None:
    live = LiveEngine(engine, dtype="float32", max_model_len=1024, **args)
    try:
        ids = prompts(live.tokenizer)
        requests = [live.request(p, temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True) for p in ids]
        got = live.tokens(*requests)
        live.wait_idle()
    finally:
        live.close()
    for prompt, tokens in zip(ids, got, strict=True):
        assert tokens == greedy(prompt, NEW_TOKENS), f"prompt of {len(prompt)} tokens"
