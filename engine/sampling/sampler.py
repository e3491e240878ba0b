"""``sample``: from a step's logits to one token a row.

Owns the order of the steps: penalties and bans on the logits, then for rows that are not
greedy temperature, top-k, top-p, min-p and the draw. ``ops.py`` owns what each step means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.api.sampling_params import GREEDY_EPSILON
from engine.sampling import ops
from engine.sampling.batch import SamplerOutput, SamplingBatch
from engine.sampling.logprobs import gather_logprobs

#: 8 rows of 49152 float32 logits are 1.5 MiB: two or three such buffers fit a core's L2 cache.
_CPU_ROWS = 8


def sample(logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
    """Samples one token for each row. All arithmetic is float32 or wider.

    Rows do not influence each other: a row of NaN is ``invalid`` and leaves its neighbours
    as they are. Equal logits of a greedy row resolve to the smallest token id.

    Args:
        logits: [n, vocab] in the model's dtype; left alone.
        batch: the sampling options of the n rows, on the logits' device.
    """
    raw = ops.finite_logits(logits)  # [n, vocab] float32
    processed = _penalize(raw, batch)
    row_max, token_ids = processed.max(dim=-1)  # [n], [n]
    invalid = row_max == float("-inf")
    if not batch.all_greedy:
        token_ids = _sample_random(processed, row_max.masked_fill(invalid, 0.0), token_ids, batch)
    token_ids = token_ids.masked_fill(invalid, 0)
    logprobs = None if batch.num_logprobs is None else gather_logprobs(raw, token_ids, batch.num_logprobs)
    return SamplerOutput(token_ids=token_ids, invalid=invalid, logprobs=logprobs)


def _penalize(raw: Tensor, batch: SamplingBatch) -> Tensor:
    """Penalties and bans on a copy; ``raw`` itself when the batch has neither."""
    if batch.penalties is None and batch.banned is None:
        return raw
    processed = raw.clone()
    if batch.penalties is not None:
        ops.apply_penalties(processed, batch.penalties)
    if batch.banned is not None:
        ops.ban_tokens(processed, batch.banned)
    return processed


def _sample_random(logits: Tensor, row_max: Tensor, greedy_ids: Tensor, batch: SamplingBatch) -> Tensor:
    """Replaces the greedy choice in the rows that are to be sampled.

    A CPU works on those rows only, a few at a time so that their intermediate values stay in
    its cache. Telling which they are would make a host wait for a GPU, so there all rows are
    sampled at once and the greedy ones thrown away.

    Args:
        logits: [n, vocab] float32, left alone.
        row_max: [n], 0 in rows without a finite logit.
        greedy_ids: [n] int64.
    """
    uniforms = ops.draw_uniforms(logits.shape[0], batch).to(logits.device, non_blocking=True)
    random = batch.temperature >= GREEDY_EPSILON  # [n]
    if batch.top_k is not None:
        random &= batch.top_k != 1  # top_k=1 asks for the most likely token, equals included
    if logits.device.type != "cpu":
        all_rows = torch.arange(logits.shape[0], device=logits.device)
        return torch.where(random, _draw(logits, row_max, uniforms, all_rows, batch), greedy_ids)
    token_ids = greedy_ids.clone()
    random_rows = random.nonzero().squeeze(-1)
    for start in range(0, random_rows.numel(), _CPU_ROWS):
        rows = random_rows[start : start + _CPU_ROWS]
        token_ids[rows] = _draw(logits, row_max, uniforms, rows, batch)
    return token_ids


def _draw(logits: Tensor, row_max: Tensor, uniforms: Tensor, rows: Tensor, batch: SamplingBatch) -> Tensor:
    """Temperature, filters and the draw for ``rows`` [r] of the batch; returns [r] token ids."""
    temperature = batch.temperature[rows].clamp_min(GREEDY_EPSILON)
    weights = ops.token_weights(logits[rows], row_max[rows], temperature)  # [r, vocab]
    top_k, top_p, min_p = (None if p is None else p[rows] for p in (batch.top_k, batch.top_p, batch.min_p))
    if not (top_k is None and top_p is None and min_p is None):
        ops.apply_filters(weights, top_k, top_p, min_p)
    return ops.sample_inverse_cdf(weights, uniforms[rows])
