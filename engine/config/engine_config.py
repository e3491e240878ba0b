"""The resolved configuration of one engine: frozen, complete, no ``None`` that means "decide later".

Owns the nouns. ``engine/config/resolve.py`` makes them from ``EngineArgs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
AttentionBackendName = Literal["torch", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model's files are. ``files`` are absolute paths of weight files, in load order."""

    kind: Literal["huggingface", "gguf"]
    #: The directory (huggingface) or the file (gguf).
    path: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Context extension of rotary embeddings; the fields each kind reads are those of its paper.

    "factors" divides each inverse frequency by the entry of ``factors`` at its place: GGUF files
    carry Llama 3's scaling in that form (their ``rope_freqs.weight`` tensor).
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn", "factors"]
    factor: float
    original_max_position: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    #: Kind "factors" only: ``head_dim / 2`` divisors.
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a decoder-only transformer, whatever file format it came from."""

    #: Key of ``engine/models/registry.py``.
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    #: Attention sees only this many newest tokens, itself included; ``None`` sees all.
    sliding_window: int | None
    attention_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, in which number format, for how long a context."""

    #: What the user asked for, before resolution.
    model: str
    served_name: str
    source: ModelSource
    architecture: Architecture
    dtype: Dtype
    load_format: LoadFormat
    max_model_len: int
    seed: int
    skip_tokenizer_init: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache: ``num_blocks`` blocks of ``block_size`` tokens."""

    block_size: int
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step; both engines read the same fields and have the same defaults."""

    max_num_seqs: int
    max_num_batched_tokens: int
    #: V0 only: mix chunks of prompts with decodes. V1 always does.
    enable_chunked_prefill: bool
    #: Requests that may wait; one more is answered 503.
    max_num_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine process needs to know."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: Device
    attention_backend: AttentionBackendName
    num_threads: int
