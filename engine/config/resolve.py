"""``resolve``: from what the user asked to what the engine runs with.

Owns the rules. Each is small and pure, derives one thing, and says in the log what it derived
and why; the first that cannot work raises an error naming the flag to change.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from pathlib import Path

from engine.capabilities import refuse_unsupported
from engine.config.engine_args import EngineArgs
from engine.config.engine_config import (
    Architecture,
    AttentionBackendName,
    CacheConfig,
    Device,
    Dtype,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.envs import read_envs
from engine.errors import ConfigError
from engine.kv.spec import spec_of
from engine.loader.architecture import read_architecture
from engine.loader.source import find_model
from engine.select import EngineName

log = logging.getLogger(__name__)

MIB = 1 << 20
#: Enough for 64 chats of a 135M model; every page costs memory only once it is written.
DEFAULT_CPU_CACHE_BYTES = 512 * MIB
DEFAULT_CUDA_CACHE_BYTES = 8192 * MIB
DEFAULT_BATCHED_TOKENS = 2048
BLOCK_SIZES = (8, 16, 32, 64, 128)
MAX_SEQS_LIMIT = 16384
MAX_BATCHED_TOKENS_LIMIT = 1 << 20


def resolve(args: EngineArgs, engine: EngineName) -> EngineConfig:
    """Resolves and checks everything that can be known before an engine process exists.

    Raises:
        ConfigError: a flag cannot work, or the engine does not have what it asks for.
        ModelError: the model cannot be found, read or supported.
    """
    chunked = _chunked_prefill(args, engine)
    source = find_model(args.model, args.load_format, read_envs().cache_dir)
    architecture = read_architecture(source)
    device = _device(args)
    dtype = _dtype(args)
    max_model_len = _max_model_len(args, architecture)
    model = ModelConfig(
        model=args.model,
        served_name=args.served_model_name or args.model,
        source=source,
        architecture=architecture,
        dtype=dtype,
        load_format=args.load_format,  # type: ignore[arg-type]  # checked by EngineArgs' choices
        max_model_len=max_model_len,
        seed=args.seed,
        skip_tokenizer_init=args.skip_tokenizer_init,
    )
    return EngineConfig(
        model=model,
        cache=_cache(args, architecture, dtype, device, max_model_len),
        scheduler=_scheduler(args, chunked, max_model_len),
        device=device,
        attention_backend=_attention_backend(args, device),
        num_threads=_num_threads(args),
    )


def _chunked_prefill(args: EngineArgs, engine: EngineName) -> bool:
    wished = args.enable_chunked_prefill
    if wished is not None:
        refuse_unsupported(engine, ["chunked_prefill" if wished else "whole_prefill"])
        return wished
    return engine == "v1"


def _device(args: EngineArgs) -> Device:
    if args.device == "cpu":
        return "cpu"
    reason = _no_cuda_reason()
    if args.device == "cuda":
        if reason is not None:
            raise ConfigError(f"--device cuda cannot work here: {reason}. Use --device cpu.")
        return "cuda"
    device: Device = "cpu" if reason is not None else "cuda"
    log.info("device: %s (%s)", device, reason or "an NVIDIA device and a CUDA build of torch are here")
    return device


def _no_cuda_reason() -> str | None:
    """Why CUDA cannot be used, found without importing torch (which takes seconds)."""
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA device"
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    version = (Path(spec.origin).parent / "version.py").read_text()
    if re.search(r"^cuda\b[^=]*=\s*['\"]", version, re.MULTILINE) is None:
        return "the installed torch was built without CUDA"
    return None


def _dtype(args: EngineArgs) -> Dtype:
    if args.dtype == "auto":
        log.info("dtype: bfloat16 (the default; float32 is exact and slower)")
        return "bfloat16"
    return args.dtype  # type: ignore[return-value]  # checked by EngineArgs' choices


def _max_model_len(args: EngineArgs, architecture: Architecture) -> int:
    own = architecture.max_position
    if args.max_model_len is None:
        log.info("max_model_len: %d (the model's own)", own)
        return own
    if not 1 <= args.max_model_len <= own:
        raise ConfigError(f"--max-model-len is {args.max_model_len}; this model allows 1 to {own}.")
    return args.max_model_len


def _cache(
    args: EngineArgs, architecture: Architecture, dtype: Dtype, device: Device, max_model_len: int
) -> CacheConfig:
    if args.block_size not in BLOCK_SIZES:
        raise ConfigError(f"--block-size is {args.block_size}; use one of {', '.join(map(str, BLOCK_SIZES))}.")
    block_bytes = spec_of(architecture, args.block_size, dtype).block_bytes
    if args.num_kv_blocks is not None:
        if args.kv_cache_memory_bytes is not None:
            raise ConfigError("--num-kv-blocks and --kv-cache-memory-bytes say the same thing; give one.")
        num_blocks, origin = args.num_kv_blocks, "--num-kv-blocks"
    else:
        default = DEFAULT_CPU_CACHE_BYTES if device == "cpu" else DEFAULT_CUDA_CACHE_BYTES
        size = default if args.kv_cache_memory_bytes is None else args.kv_cache_memory_bytes
        num_blocks, origin = size // block_bytes, f"{size // MIB} MiB"
    needed = -(-max_model_len // args.block_size)
    if num_blocks < needed:
        raise ConfigError(
            f"The KV cache of {num_blocks} blocks ({origin}) cannot hold one sequence of {max_model_len} tokens, "
            f"which takes {needed} blocks or {needed * block_bytes} bytes. Raise --kv-cache-memory-bytes or lower "
            f"--max-model-len to {max(num_blocks, 0) * args.block_size}."
        )
    log.info("KV cache: %d blocks of %d tokens (%s)", num_blocks, args.block_size, origin)
    return CacheConfig(block_size=args.block_size, num_blocks=num_blocks)


def _scheduler(args: EngineArgs, chunked: bool, max_model_len: int) -> SchedulerConfig:
    _bounded(args.max_num_seqs, "--max-num-seqs", MAX_SEQS_LIMIT)
    _bounded(args.max_num_waiting, "--max-num-waiting", MAX_BATCHED_TOKENS_LIMIT)
    tokens = args.max_num_batched_tokens
    if tokens is not None:
        _bounded(tokens, "--max-num-batched-tokens", MAX_BATCHED_TOKENS_LIMIT)
    if not chunked:
        # A prompt that is prefilled whole must fit in one step.
        if tokens is not None and tokens < max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens is {tokens}, but without chunked prefill a prompt of --max-model-len "
                f"{max_model_len} must fit in one step. Raise it, or use --enable-chunked-prefill."
            )
        if tokens is None:
            tokens = max(DEFAULT_BATCHED_TOKENS, max_model_len)
            log.info("max_num_batched_tokens: %d (a whole prompt must fit in one step)", tokens)
    tokens = DEFAULT_BATCHED_TOKENS if tokens is None else tokens
    if tokens < args.max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens ({tokens}) must be at least --max-num-seqs ({args.max_num_seqs}), "
            "one token for each running request."
        )
    return SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=tokens,
        enable_chunked_prefill=chunked,
        max_num_waiting=args.max_num_waiting,
    )


def _attention_backend(args: EngineArgs, device: Device) -> AttentionBackendName:
    if args.attention_backend == "auto":
        return "cpu" if device == "cpu" else "torch"
    if args.attention_backend == "cpu" and device != "cpu":
        raise ConfigError("--attention-backend cpu needs --device cpu; use torch on a GPU.")
    return args.attention_backend  # type: ignore[return-value]  # checked by EngineArgs' choices


def _num_threads(args: EngineArgs) -> int:
    cores = len(os.sched_getaffinity(0))
    if args.num_threads is None:
        return cores
    _bounded(args.num_threads, "--num-threads", cores)
    return args.num_threads


def _bounded(value: int, flag: str, high: int) -> None:
    if not 1 <= value <= high:
        raise ConfigError(f"{flag} is {value}; use 1 to {high}.")
