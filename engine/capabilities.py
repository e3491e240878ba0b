"""What each engine can do, as data: the one list that refusals, docs and tests read.

Owns the features, the state of each on each engine, the flags that ask for them and the
conflicts between them. ``refuse_unsupported`` reads it when an engine starts; the docs matrix is
``python -m engine capabilities``; ``tests/test_capabilities.py`` checks that every ``proven``
cell names tests that exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from engine.errors import ConfigError
from engine.select import EngineName


class Status(Enum):
    """How far a feature is on one engine."""

    PROVEN = "proven"  # works, and the tests named beside it hold it
    EXPERIMENTAL = "experimental"  # works, but nothing holds it yet
    REFUSED = "refused"  # this engine will not do it, by design
    ABSENT = "absent"  # not built yet


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the matrix. ``flag`` is what a user types to ask for it, if anything."""

    name: str
    title: str
    v0: Status
    v1: Status
    tests: tuple[str, ...] = ()
    flag: str | None = None
    why: str | None = None

    def status(self, engine: EngineName) -> Status:
        return self.v0 if engine == "v0" else self.v1

    def works_on(self, engine: EngineName) -> bool:
        return self.status(engine) in (Status.PROVEN, Status.EXPERIMENTAL)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two features that cannot be on together, and on which engines."""

    first: str
    second: str
    engines: tuple[EngineName, ...]
    why: str


def _both(name: str, title: str, *tests: str) -> Feature:
    return Feature(name, title, Status.PROVEN, Status.PROVEN, tests)


def _neither(name: str, title: str, flag: str | None = None) -> Feature:
    return Feature(name, title, Status.ABSENT, Status.ABSENT, flag=flag)


FEATURES: tuple[Feature, ...] = (
    _both("chat_completions", "/v1/chat/completions", "tests/conformance/test_openai_client.py"),
    _both("completions", "/v1/completions", "tests/conformance/test_openai_client.py"),
    _both("streaming", "Streaming over SSE", "tests/conformance/test_openai_client.py"),
    _both("offline", "Offline LLM class", "tests/conformance/test_llm.py"),
    _both("greedy_parity", "Greedy tokens equal to transformers in fp32", "tests/parity/test_default_model.py"),
    _both("continuous_batching", "Continuous batching", "tests/parity/test_default_model.py"),
    _both("sampling", "Temperature, top-k, top-p, min-p, seeds", "tests/conformance/test_client.py"),
    _both("penalties", "Presence, frequency and repetition penalties", "tests/conformance/test_client.py"),
    _both("stop", "Stop strings, stop ids, min and max tokens", "tests/conformance/test_client.py"),
    _both("logprobs", "Logprobs of output tokens", "tests/conformance/test_client.py"),
    _both(
        "abort",
        "Abort, and abort on disconnect",
        "tests/conformance/test_client.py",
        "tests/process/test_disconnect.py",
    ),
    _both("preemption", "Preemption by recompute", "tests/conformance/test_client.py"),
    _both("containment", "Bad input harms no other request", "tests/process/test_malformed.py"),
    _both("process_tree", "No orphan, no hung stream after a kill", "tests/process/test_kill.py"),
    Feature(
        "chunked_prefill",
        "Chunked prefill",
        Status.PROVEN,
        Status.PROVEN,
        ("tests/conformance/test_client.py",),
        flag="--enable-chunked-prefill",
    ),
    Feature(
        "whole_prefill",
        "Prompts prefilled whole",
        Status.PROVEN,
        Status.REFUSED,
        ("tests/v0/test_v0_scheduler.py",),
        flag="--no-enable-chunked-prefill",
        why="V1 has no prefill phase: every prompt is computed in chunks of the token budget",
    ),
    _neither("prefix_caching", "Prefix caching", "--enable-prefix-caching"),
    _neither("multi_step", "Multi-step scheduling", "--num-scheduler-steps"),
    _neither("swap", "Preemption by swap to host memory", "--swap-space"),
    _neither("async_scheduling", "Asynchronous scheduling", "--async-scheduling"),
    _neither("tensor_parallel", "Tensor parallelism", "--tensor-parallel-size"),
    _neither("pipeline_parallel", "Pipeline parallelism", "--pipeline-parallel-size"),
    _neither("speculative", "Speculative decoding", "--speculative-config"),
    _neither("lora", "LoRA adapters", "--enable-lora"),
    _neither("quantized_execution", "Quantized execution", "--quantization"),
    _neither("kv_cache_dtype", "FP8 KV cache", "--kv-cache-dtype"),
    _neither("priority", "Priority scheduling", "--scheduling-policy"),
    _neither("parallel_sampling", "n > 1, best_of, beam search"),
    _neither("prompt_logprobs", "Logprobs of prompt tokens"),
    _neither("logit_bias", "logit_bias, bad_words, allowed_token_ids"),
    _neither("structured_output", "JSON schema, regex and grammar output"),
    _neither("tools", "Tool calls"),
    _neither("multimodal", "Image and audio input"),
    _neither("embeddings", "/v1/embeddings"),
)

CONFLICTS: tuple[Conflict, ...] = ()


def matrix() -> list[dict[str, object]]:
    """The feature table as plain data, for ``/v1/engine`` and the docs."""
    return [
        {"feature": f.name, "title": f.title, "v0": f.v0.value, "v1": f.v1.value, "tests": list(f.tests)}
        for f in FEATURES
    ]


def feature(name: str) -> Feature:
    """The row of that name; ``KeyError`` if there is none."""
    for row in FEATURES:
        if row.name == name:
            return row
    raise KeyError(name)


def refuse_unsupported(engine: EngineName, asked: Iterable[str]) -> None:
    """Checks the features a user asked for against the chosen engine.

    Raises:
        ConfigError: the engine cannot do one of them; the text names the engine that can, if any.
    """
    names = set(asked)
    for name in sorted(names):
        row = feature(name)
        if not row.works_on(engine):
            raise ConfigError(_refusal(row, engine))
    for conflict in CONFLICTS:
        if engine in conflict.engines and {conflict.first, conflict.second} <= names:
            first, second = feature(conflict.first), feature(conflict.second)
            raise ConfigError(
                f"{first.title} and {second.title} exclude each other on {engine.upper()}: {conflict.why}."
            )


def _refusal(row: Feature, engine: EngineName) -> str:
    other: EngineName = "v0" if engine == "v1" else "v1"
    asked = f"{row.title} ({row.flag})" if row.flag else row.title
    reason = f": {row.why}" if row.why else ""
    if row.works_on(other):
        variable = f"ENGINE_V1={int(other == 'v1')}"
        return f"{asked} is not available on {engine.upper()}{reason}. {other.upper()} has it: set {variable}."
    return f"{asked} is not available on either engine yet{reason}. Leave it out."
