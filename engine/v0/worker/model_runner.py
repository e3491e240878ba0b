"""``ModelRunner``: one step on the device, from metadata to sampled tokens on the host.

Owns the order of the parts. Remembers nothing between steps; what a step needs is rebuilt from
its metadata (``model_input.py``, ``sampling_metadata.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import Logprob, PositionLogprobs
from engine.attention.backend import AttentionBackend
from engine.attention.context import ForwardContext, forward_context
from engine.kv.tensors import LayerKVCache
from engine.models.causal_lm import CausalLM
from engine.sampling import batch as sampling
from engine.sampling.sampler import sample
from engine.v0.core.execute_model import ExecuteModelRequest, SamplerOutput, SequenceGroupOutput, SequenceOutput
from engine.v0.worker.model_input import ModelInput, ModelInputBuilder
from engine.v0.worker.sampling_metadata import SampledRow, SamplingMetadataBuilder


class ModelRunner:
    """Runs a model on batches of sequence groups."""

    def __init__(
        self,
        model: CausalLM,
        kv_caches: Sequence[LayerKVCache],
        backend: AttentionBackend,
        input_builder: ModelInputBuilder,
        sampling_builder: SamplingMetadataBuilder,
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._backend = backend
        self._input_builder = input_builder
        self._sampling_builder = sampling_builder

    @torch.inference_mode()
    def execute_model(self, request: ExecuteModelRequest) -> SamplerOutput:
        """Computes one batch; waits for the device, since the next schedule needs the tokens."""
        self._sampling_builder.drop(request.finished_request_ids)
        metadata_list = request.seq_group_metadata_list
        if not metadata_list:
            return []
        hidden = self._forward(self._input_builder.build(metadata_list))  # [num_tokens, hidden]
        output: SamplerOutput = [SequenceGroupOutput([]) for _ in metadata_list]
        metadata = self._sampling_builder.build(metadata_list)
        if metadata is not None:
            logits = self._model.compute_logits(hidden[metadata.selected_token_indices])  # [num_rows, vocab]
            sampled = _to_host(sample(logits, metadata.batch), metadata.rows)
            for row, token in zip(metadata.rows, sampled, strict=True):
                output[row.group_index].samples.append(token)
        return output

    def _forward(self, inputs: ModelInput) -> torch.Tensor:
        with forward_context(ForwardContext(inputs.attention, self._kv_caches, self._backend)):
            hidden: torch.Tensor = self._model(inputs.input_ids, inputs.positions)
        return hidden


def _to_host(output: sampling.SamplerOutput, rows: list[SampledRow]) -> list[SequenceOutput]:
    """The device's answer as Python values, one a row."""
    token_ids: list[int] = output.token_ids.tolist()
    invalid: list[bool] = output.invalid.tolist()
    logprobs = _logprobs_to_host(output.logprobs, rows)
    return [
        SequenceOutput(row.seq_id, None if bad else token_id, None if bad else position)
        for row, token_id, bad, position in zip(rows, token_ids, invalid, logprobs, strict=True)
    ]


def _logprobs_to_host(tensors: sampling.LogprobTensors | None, rows: list[SampledRow]) -> list[PositionLogprobs | None]:
    """Each row's own number of alternatives out of the batch's largest; ``None`` where none were asked for."""
    if tensors is None:
        return [None] * len(rows)
    columns = zip(rows, tensors.token_ids.tolist(), tensors.logprobs.tolist(), tensors.ranks.tolist(), strict=True)
    return [
        None if row.params.logprobs is None else _position(ids, values, rank, row.params.logprobs)
        for row, ids, values, rank in columns
    ]


def _position(ids: list[int], values: list[float], rank: int, num_logprobs: int) -> PositionLogprobs:
    """The sampled token first, then the ``num_logprobs`` most likely; a token in both keeps its first place."""
    position = {ids[0]: Logprob(values[0], rank)}
    for best_rank, (token_id, value) in enumerate(zip(ids[1:], values[1:], strict=True), start=1):
        if best_rank <= num_logprobs:
            position.setdefault(token_id, Logprob(value, best_rank))
    return position
