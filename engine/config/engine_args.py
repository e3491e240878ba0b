"""``EngineArgs``: what a user may ask for, with the defaults both engines share.

Owns names, defaults and help texts: the command line and ``LLM(...)`` are made from these
fields. ``None`` means "derive it"; ``engine/config/resolve.py`` does, and says how.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from engine.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"


def _arg(default: Any, help: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """User options of an engine; ``--max-model-len`` on the command line is ``max_model_len`` here."""

    model: str = _arg(DEFAULT_MODEL, "a name the package knows, a Hugging Face directory, a GGUF file, or a hub id")
    served_model_name: str | None = _arg(None, "the name clients use; default: the model as given")
    dtype: str = _arg("auto", "number format of weights and activations", ("auto", "float32", "bfloat16", "float16"))
    load_format: str = _arg(
        "auto", "weights to load; dummy makes random ones", ("auto", "safetensors", "gguf", "dummy")
    )
    max_model_len: int | None = _arg(None, "longest prompt plus output, in tokens; default: the model's own")
    seed: int = _arg(0, "seed of the engine's own generator, and of dummy weights")
    skip_tokenizer_init: bool = _arg(False, "no tokenizer: prompts and outputs are token ids")
    device: str = _arg("auto", "where the model runs", ("auto", "cpu", "cuda"))
    attention_backend: str = _arg("auto", "attention implementation", ("auto", "torch", "cpu"))
    block_size: int = _arg(16, "tokens in one KV cache block")
    kv_cache_memory_bytes: int | None = _arg(None, "size of the KV cache; default: 512 MiB on a CPU")
    num_kv_blocks: int | None = _arg(None, "size of the KV cache in blocks, in place of bytes")
    max_num_seqs: int = _arg(256, "most requests in one step")
    max_num_batched_tokens: int | None = _arg(None, "most tokens in one step; default: 2048, or a whole prompt")
    max_num_waiting: int = _arg(2048, "most requests waiting; one more is answered 503")
    enable_chunked_prefill: bool | None = _arg(None, "mix chunks of prompts with decodes; V1 always does")
    num_threads: int | None = _arg(None, "CPU threads of the model; default: all cores")

    def __post_init__(self) -> None:
        """Checks the fields that have a closed set of values; numbers are checked by ``resolve``."""
        for item in fields(self):
            choices = item.metadata["choices"]
            if choices is not None and getattr(self, item.name) not in choices:
                raise ConfigError(f"{item.name} is {getattr(self, item.name)!r}; use one of {', '.join(choices)}.")
