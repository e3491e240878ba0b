"""engine/config/resolve.py: each rule derives what it says, and refuses what cannot work."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineArgs, EngineConfig
from engine.config.resolve import resolve
from engine.errors import ConfigError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def resolved(model: str, engine: str = "v1", **args) -> EngineConfig:
    return resolve(EngineArgs(model=model, load_format="dummy", device="cpu", **args), engine)


def test_both_engines_have_the_same_defaults_but_for_how_they_prefill(model: str) -> None:
    v0, v1 = resolved(model, "v0"), resolved(model, "v1")
    assert v0.model == v1.model and v0.cache == v1.cache
    assert (v0.attention_backend, v0.device, v0.num_threads) == (v1.attention_backend, v1.device, v1.num_threads)
    assert v0.scheduler.max_num_seqs == v1.scheduler.max_num_seqs
    assert (v0.scheduler.enable_chunked_prefill, v1.scheduler.enable_chunked_prefill) == (False, True)
    assert v0.scheduler.max_num_batched_tokens == 4096, "V0 prefills a prompt whole, so it must fit in a step"
    assert v1.scheduler.max_num_batched_tokens == 2048


def test_the_config_survives_the_wire(model: str) -> None:
    config = resolved(model)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


def test_the_cache_follows_bytes_or_blocks(model: str) -> None:
    per_block = 2 * 2 * 2 * 16 * 2 * 16  # keys and values, layers, kv heads, head_dim, bf16, tokens
    assert resolved(model, kv_cache_memory_bytes=per_block * 300 + 1).cache.num_blocks == 300
    assert resolved(model, num_kv_blocks=256).cache.num_blocks == 256


@pytest.mark.parametrize(
    ("engine", "args", "text"),
    [
        ("v1", {"enable_chunked_prefill": False}, "ENGINE_V1=0"),
        ("v0", {"max_num_batched_tokens": 1000}, "--enable-chunked-prefill"),
        ("v1", {"max_num_batched_tokens": 100}, "--max-num-seqs"),
        ("v1", {"max_model_len": 0}, "1 to 4096"),
        ("v1", {"max_model_len": 4097}, "1 to 4096"),
        ("v1", {"num_kv_blocks": 255}, "--max-model-len to 4080"),
        ("v1", {"num_kv_blocks": 256, "kv_cache_memory_bytes": 1 << 30}, "give one"),
        ("v1", {"kv_cache_memory_bytes": -1}, "--kv-cache-memory-bytes"),
        ("v1", {"block_size": 17}, "--block-size"),
        ("v1", {"max_num_seqs": 0}, "--max-num-seqs"),
        ("v1", {"max_num_waiting": 0}, "--max-num-waiting"),
        ("v1", {"num_threads": 0}, "--num-threads"),
    ],
)
def test_refusals_name_the_flag_to_change(model: str, engine: str, args: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolved(model, engine, **args)


def test_choices_are_checked_where_the_command_line_does_not(model: str) -> None:
    with pytest.raises(ConfigError, match="float64"):
        EngineArgs(dtype="float64")


def test_what_was_derived_is_said(model: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        resolved(model, "v0")
    said = " ".join(record.message for record in caplog.records)
    for part in ("max_model_len: 4096", "dtype: bfloat16", "KV cache:", "max_num_batched_tokens: 4096"):
        assert part in said
