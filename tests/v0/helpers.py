"""What the tests of V0 share: tiny configs, and an executor that is an oracle.

``HashExecutor`` stands in for the worker. Its next token is a hash of all tokens before it, read
back *through the block table* from a fake KV cache, so a wrong, stale, foreign or unwritten
block, a skipped or repeated token, all change the output or fail at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from engine.api import GenerateRequest, RequestOutput, SamplingParams
from engine.config import EngineConfig
from engine.v0.core.execute_model import ExecuteModelRequest, SamplerOutput, SequenceGroupOutput, SequenceOutput
from engine.v0.core.sequence_group import SequenceGroupMetadata
from engine.v0.llm_engine.llm_engine import LLMEngine
from tests.support.configs import tiny_config

VOCAB = 128
EOS = 2


def make_config(*, chunked: bool = False, **changes: Any) -> EngineConfig:
    """A complete config of a tiny dummy model without a tokenizer."""
    return tiny_config(**{"block_size": 4, "enable_chunked_prefill": chunked, **changes})


def with_max_model_len(config: EngineConfig, max_model_len: int) -> EngineConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, max_model_len=max_model_len))


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **options)  # type: ignore[arg-type]


def request(request_id: str, prompt: Sequence[int], params: SamplingParams) -> GenerateRequest:
    return GenerateRequest(request_id, list(prompt), params, arrival_time=0.0)


def next_token(tokens: Sequence[int]) -> int:
    """The hash model: any change anywhere in ``tokens`` changes the answer."""
    digest = hashlib.blake2b(bytes(str(list(tokens)), "ascii"), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def expected_tokens(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """What the hash model generates after ``prompt``, ended by EOS, a stop id or ``max_tokens``."""
    assert params.max_tokens is not None
    tokens = list(prompt)
    for _ in range(params.max_tokens):
        tokens.append(next_token(tokens))
        if (tokens[-1] == EOS and not params.ignore_eos) or tokens[-1] in params.stop_token_ids:
            break
    return tokens[len(prompt) :]


class HashExecutor:
    """An ``Executor`` that checks every batch it is given against the rules of the configuration."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._kv: dict[int, tuple[int, int]] = {}
        #: Requests that a real worker might still hold something for.
        self.live: set[str] = set()
        self.batches: list[list[SequenceGroupMetadata]] = []
        #: Request ids whose next sample is reported as impossible.
        self.poisoned: set[str] = set()

    def execute_model(self, request: ExecuteModelRequest) -> SamplerOutput:
        groups = request.seq_group_metadata_list
        self.batches.append(groups)
        self.live.difference_update(request.finished_request_ids)
        self.live.update(group.request_id for group in groups)
        self._check_batch(groups)
        for group in groups:
            self._write(group)
        return [SequenceGroupOutput(self._sample(group) if group.do_sample else []) for group in groups]

    def _check_batch(self, groups: list[SequenceGroupMetadata]) -> None:
        limits = self._config.scheduler
        assert len(groups) <= limits.max_num_seqs
        assert sum(group.token_chunk_size for group in groups) <= limits.max_num_batched_tokens
        stages = [group.is_prompt for group in groups]
        assert stages == sorted(stages, reverse=True), "prefills must come before decodes"
        assert limits.enable_chunked_prefill or len(set(stages)) <= 1, "prefill and decode in one batch"
        for group in groups:
            assert group.token_chunk_size > 0
            assert group.is_prompt or group.token_chunk_size == 1
            assert limits.enable_chunked_prefill or group.do_sample

    def _slots(self, group: SequenceGroupMetadata, seq_id: int, end: int) -> list[int]:
        table, size = group.block_tables[seq_id], self._config.cache.block_size
        return [table[position // size] * size + position % size for position in range(end)]

    def _write(self, group: SequenceGroupMetadata) -> None:
        for seq_id, data in group.seq_data.items():
            start, end = data.num_computed_tokens, data.num_computed_tokens + group.token_chunk_size
            slots = self._slots(group, seq_id, end)
            for position in range(start, end):
                self._kv[slots[position]] = (position, data.token_ids[position])

    def _sample(self, group: SequenceGroupMetadata) -> list[SequenceOutput]:
        samples = []
        for seq_id, data in group.seq_data.items():
            read = [self._kv[slot] for slot in self._slots(group, seq_id, data.num_tokens)]
            assert [position for position, _ in read] == list(range(data.num_tokens)), "a stale or foreign block"
            token_id = None if group.request_id in self.poisoned else next_token([token for _, token in read])
            samples.append(SequenceOutput(seq_id, token_id, None))
        return samples


def make_engine(config: EngineConfig) -> tuple[LLMEngine, HashExecutor]:
    executor = HashExecutor(config)
    return LLMEngine(config, executor, tokenizer=None), executor


def run_to_end(engine: LLMEngine, max_steps: int = 10_000) -> dict[str, list[RequestOutput]]:
    """Steps until nothing is left to do; the outputs by request."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return outputs
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_invariants()
    raise AssertionError(f"still working after {max_steps} steps")


def token_ids(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.outputs[0].token_ids]
