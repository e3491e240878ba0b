"""``SamplingMetadata`` and its builder: how a step's logits become tokens, made from zero every step.

Owns the one thing a V0 worker keeps of a request: the generator of a seeded one, whose state
is how many numbers it has drawn. All else is read from the groups' parameters and tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.api import SamplingParams
from engine.sampling.batch import BannedTokens, PenaltyBatch, SamplingBatch
from engine.v0.core.sequence import SequenceData
from engine.v0.core.sequence_group import SequenceGroupMetadata


@dataclass(frozen=True, slots=True)
class SampledRow:
    """Whose token a row of the logits becomes."""

    #: Position of the group in the step's metadata list.
    group_index: int
    request_id: str
    seq_id: int
    data: SequenceData
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """A step's sampling: row ``i`` of the logits belongs to ``rows[i]``."""

    rows: list[SampledRow]
    selected_token_indices: torch.Tensor  # [num_rows] int64, the query tokens whose hidden state gets logits
    batch: SamplingBatch


class SamplingMetadataBuilder:
    """Makes ``SamplingMetadata``; all generators are local to this engine and live on the CPU."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...], seed: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._generator = torch.Generator().manual_seed(seed)
        self._seeded: dict[str, torch.Generator] = {}

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that ended."""
        for request_id in request_ids:
            self._seeded.pop(request_id, None)

    def build(self, metadata_list: Sequence[SequenceGroupMetadata]) -> SamplingMetadata | None:
        """The sampling of a batch; ``None`` if it holds nothing but chunks of unfinished prompts."""
        rows: list[SampledRow] = []
        selected: list[int] = []
        end = 0
        for group_index, metadata in enumerate(metadata_list):
            for seq_id, data in metadata.seq_data.items():
                end += metadata.token_chunk_size
                if metadata.do_sample:
                    rows.append(SampledRow(group_index, metadata.request_id, seq_id, data, metadata.params))
                    selected.append(end - 1)
        if not rows:
            return None
        return SamplingMetadata(rows, torch.tensor(selected, device=self._device), self._batch(rows))

    def _batch(self, rows: list[SampledRow]) -> SamplingBatch:
        params = [row.params for row in rows]
        all_greedy = all(p.greedy for p in params)
        # Filters shape the draw only; greedy rows make none.
        return SamplingBatch(
            temperature=self._floats([p.temperature for p in params]),
            all_greedy=all_greedy,
            generator=self._generator,
            top_k=self._top_k(params) if not all_greedy else None,
            top_p=self._optional([p.top_p for p in params], off=1.0) if not all_greedy else None,
            min_p=self._optional([p.min_p for p in params], off=0.0) if not all_greedy else None,
            penalties=self._penalties(rows),
            banned=self._banned(rows),
            generators={i: self._generator_of(row) for i, row in enumerate(rows) if _draws_by_seed(row.params)},
            num_logprobs=max((p.logprobs for p in params if p.logprobs is not None), default=None),
        )

    def _generator_of(self, row: SampledRow) -> torch.Generator:
        generator = self._seeded.get(row.request_id)
        if generator is None:
            assert row.params.seed is not None
            generator = self._seeded[row.request_id] = torch.Generator().manual_seed(row.params.seed)
        return generator

    def _top_k(self, params: list[SamplingParams]) -> torch.Tensor | None:
        if all(p.top_k <= 0 for p in params):
            return None
        return torch.tensor([p.top_k for p in params], dtype=torch.int64, device=self._device)  # [num_rows]

    def _optional(self, values: list[float], *, off: float) -> torch.Tensor | None:
        return None if all(value == off for value in values) else self._floats(values)

    def _floats(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)

    def _penalties(self, rows: list[SampledRow]) -> PenaltyBatch | None:
        """Counts every token of the penalised rows anew; counting is done on the device."""
        penalised = [i for i, row in enumerate(rows) if row.params.needs_penalties]
        if not penalised:
            return None
        params = [rows[i].params for i in penalised]
        shape = (len(penalised), self._vocab_size)
        prompt_mask = torch.zeros(shape, dtype=torch.bool, device=self._device)
        prompt_mask[self._pairs([rows[i].data.prompt_token_ids for i in penalised])] = True
        output_counts = torch.zeros(shape, dtype=torch.int32, device=self._device)
        output_pairs = self._pairs([rows[i].data.output_token_ids for i in penalised])
        ones = torch.ones_like(output_pairs[0], dtype=torch.int32)
        output_counts.index_put_(output_pairs, ones, accumulate=True)
        return PenaltyBatch(
            rows=torch.tensor(penalised, device=self._device),
            repetition=self._floats([p.repetition_penalty for p in params]),
            presence=self._floats([p.presence_penalty for p in params]),
            frequency=self._floats([p.frequency_penalty for p in params]),
            prompt_mask=prompt_mask,
            output_counts=output_counts,
        )

    def _banned(self, rows: list[SampledRow]) -> BannedTokens | None:
        """Before ``min_tokens`` are out, nothing that would end the sequence may be sampled."""
        lists = [array("q", self._ending_ids(row)) for row in rows]
        if not any(lists):
            return None
        row_indices, token_ids = self._pairs(lists)
        return BannedTokens(row_indices, token_ids)

    def _ending_ids(self, row: SampledRow) -> tuple[int, ...]:
        params = row.params
        if row.data.num_output_tokens >= params.min_tokens:
            return ()
        return params.stop_token_ids if params.ignore_eos else params.stop_token_ids + self._eos_token_ids

    def _pairs(self, lists: list[array[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Lists of token ids, one a row, as flat (row, token id) tensors."""
        row_indices = np.repeat(np.arange(len(lists)), [len(ids) for ids in lists])
        token_ids = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in lists])
        return torch.from_numpy(row_indices).to(self._device), torch.from_numpy(token_ids).to(self._device)


def _draws_by_seed(params: SamplingParams) -> bool:
    return params.seed is not None and not params.greedy
