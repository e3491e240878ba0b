"""Both engines on an NVIDIA device: the tokens of the CPU, in fp32, whatever the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine import LLM, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
PROMPTS = [{"prompt_token_ids": [(7 * i + 11 * n) % 512 for i in range(5 + 9 * n)]} for n in range(12)]


def tokens(model: Path, device: str, params: SamplingParams, **args) -> list[list[int]]:
    with LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        device=device,
        kv_cache_memory_bytes=64 << 20,
        **args,
    ) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        stats = llm.stats()
        assert stats.slots_used == 0 and stats.kv_blocks_free == stats.kv_blocks_total
        return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("engine", ["0", "1"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=3, max_tokens=40, ignore_eos=True, detokenize=False),
        SamplingParams(
            temperature=0.0, repetition_penalty=1.3, min_tokens=30, logprobs=3, max_tokens=40, detokenize=False
        ),
    ],
    ids=["greedy", "seeded", "penalties"],
)
def test_the_device_changes_no_token(tmp_path: Path, monkeypatch, engine: str, params: SamplingParams) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("ENGINE_V1", engine)
    args = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "enable_chunked_prefill": True}
    assert tokens(tmp_path, "cuda", params, **args) == tokens(tmp_path, "cpu", params, **args)
