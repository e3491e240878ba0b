"""A complete ``EngineConfig`` of a tiny model that no file holds, for tests without weights."""

from __future__ import annotations

import dataclasses
from typing import Any

from engine.config import Architecture, CacheConfig, EngineConfig, ModelConfig, ModelSource, SchedulerConfig

ARCHITECTURE = Architecture(
    family="llama",
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=256,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    sliding_window=None,
    attention_bias=False,
    mlp_bias=False,
    eos_token_ids=(2,),
    bos_token_id=1,
)
_MODEL = ModelConfig(
    model="tiny",
    served_name="tiny",
    source=ModelSource(kind="huggingface", path="/nowhere", files=()),
    architecture=ARCHITECTURE,
    dtype="float32",
    load_format="dummy",
    max_model_len=256,
    seed=0,
    skip_tokenizer_init=True,
)
_SCHEDULER = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=256, enable_chunked_prefill=False, max_num_waiting=64
)
_CONFIG = EngineConfig(
    model=_MODEL,
    cache=CacheConfig(block_size=16, num_blocks=64),
    scheduler=_SCHEDULER,
    device="cpu",
    attention_backend="torch",
    num_threads=1,
)


def tiny_config(**changes: Any) -> EngineConfig:
    """The config above with fields of it, or of any part of it, changed by name."""
    architecture = _changed(_CONFIG.model.architecture, changes)
    model = _changed(dataclasses.replace(_CONFIG.model, architecture=architecture), changes)
    cache, scheduler = _changed(_CONFIG.cache, changes), _changed(_CONFIG.scheduler, changes)
    config = _changed(dataclasses.replace(_CONFIG, model=model, cache=cache, scheduler=scheduler), changes)
    assert not changes, f"no such fields: {sorted(changes)}"
    return config


def _changed(part: Any, changes: dict[str, Any]) -> Any:
    """``part`` with its own fields taken out of ``changes``."""
    own = {item.name: changes.pop(item.name) for item in dataclasses.fields(part) if item.name in changes}
    return dataclasses.replace(part, **own)
