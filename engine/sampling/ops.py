"""The steps of sampling, each a function of its arguments, on CPU and GPU tensors.

Owns the meaning of penalties, temperature, top-k, top-p, min-p and of the draw itself. Does
not own their order (``sampler.py``). Functions named ``apply_*`` and ``ban_tokens`` change
their first argument in place and return it. On a GPU none of them waits for the device.

Filters are defined by *strictly more likely* tokens, so that which tokens survive is a
function of the logits alone, never of how a sort happens to order equal ones:

* top-k keeps a token if fewer than k tokens are strictly more likely;
* top-p keeps a token if the strictly more likely tokens hold less than p of the probability
  (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration");
* min-p keeps a token if it is at least min_p times as likely as the most likely one
  (Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling").
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.sampling.batch import BannedTokens, PenaltyBatch, SamplingBatch

_NEVER = float("-inf")

#: On a CPU top-p first looks at this many most likely tokens, and sorts the whole row only if
#: they hold less than p. Selecting 1024 of 49152 costs a third of sorting them.
_TOP_P_CANDIDATES = 1024

#: With top-k it looks at this many more than k: logits of bfloat16 are coarse, and tokens equal to
#: the k-th are kept, so top-p can only tell what is left once it sees a smaller one.
_TIES = 256


def finite_logits(logits: Tensor) -> Tensor:
    """Logits as float32, with NaN and infinities as -inf, that is: never sampled.

    Returns:
        [n, vocab] float32; ``logits`` itself when nothing had to change.
    """
    logits = logits.float()
    if logits.device.type == "cpu" and bool(logits.amax(dim=-1).isfinite().all()):
        return logits  # NaN and +inf would show in the maximum
    return torch.nan_to_num(logits, nan=_NEVER, posinf=_NEVER, neginf=_NEVER)


def apply_penalties(logits: Tensor, penalties: PenaltyBatch) -> Tensor:
    """Repetition penalty over prompt and output, presence and frequency over the output; in place.

    A CPU visits only tokens that were seen. Counting them would make a host wait for a GPU, so
    there every token of the penalized rows is computed.

    Args:
        logits: [n, vocab] float32.
    """
    p = penalties
    seen = p.prompt_mask | p.output_counts.bool()  # [m, vocab]
    if logits.device.type == "cpu":
        row, token = seen.nonzero(as_tuple=True)  # [s], [s]
        values = logits[p.rows[row], token]
        counts = p.output_counts[row, token]
        values = _penalized(values, counts, p.repetition[row], p.presence[row], p.frequency[row])
        logits[p.rows[row], token] = values
    else:
        rows = logits[p.rows]  # [m, vocab]
        options = (p.repetition[:, None], p.presence[:, None], p.frequency[:, None])
        logits[p.rows] = torch.where(seen, _penalized(rows, p.output_counts, *options), rows)
    return logits


def _penalized(logits: Tensor, counts: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    """The new logits of seen tokens; all shapes broadcast.

    Repetition divides positive logits and multiplies negative ones (Keskar et al. 2019, "CTRL");
    presence and frequency subtract, as OpenAI's API defines them.
    """
    # A penalty that underflows to 0 must not make 0 / 0 of a logit of 0.
    repetition = repetition.clamp_min(torch.finfo(torch.float32).tiny)
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = logits - frequency * counts - presence * (counts > 0)
    return logits.clamp_max_(torch.finfo(torch.float32).max)  # overflow stays comparable; -inf stays banned


def ban_tokens(logits: Tensor, banned: BannedTokens) -> Tensor:
    """Gives each (row, token) pair the logit -inf, in place."""
    # Assigning the Python number would copy it from the host and wait for the GPU.
    return logits.index_put_((banned.rows, banned.token_ids), logits.new_full((), _NEVER))


def token_weights(logits: Tensor, row_max: Tensor, temperature: Tensor) -> Tensor:
    """``exp((logit - row_max) / temperature)``: probabilities, but for a factor of their row.

    Subtracting first keeps every temperature from overflowing.

    Args:
        logits: [n, vocab] float32, left alone.
        row_max: [n], finite.
        temperature: [n] float32, positive.

    Returns:
        [n, vocab] float32, a new tensor; the most likely tokens have the weight 1.
    """
    return torch.sub(logits, row_max[:, None]).div_(temperature[:, None]).exp_()


def apply_filters(weights: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """Sets the weight of tokens that top-k, top-p or min-p drops to 0, in place.

    Each filter is a smallest weight to keep, so one pass over the vocabulary serves all three.

    Args:
        weights: [n, vocab] float32 as ``token_weights`` makes them.
        top_k: [n] int64; below 1 keeps all.
        top_p: [n] float32; 1 keeps all. A share of what top-k has left.
        min_p: [n] float32; 0 keeps all.
    """
    threshold = weights.new_zeros(weights.shape[0], 1)
    if top_p is not None:
        no_top_k = torch.zeros_like(top_p, dtype=torch.int64)
        threshold = _top_p_threshold(weights, no_top_k if top_k is None else top_k, top_p)
    elif top_k is not None:
        threshold = _top_k_threshold(_largest(weights, _num_candidates(weights, top_k, None)), top_k)
    if min_p is not None:
        threshold = threshold.maximum(min_p[:, None])
    return weights.masked_fill_(weights < threshold, 0.0)


def draw_uniforms(num_rows: int, batch: SamplingBatch) -> Tensor:
    """One number in [0, 1) for each row: from the row's own generator if it is seeded.

    A seeded row uses one draw of its generator per call whatever else is in the batch, so its
    numbers depend on its seed and on how often it was sampled, and on nothing else.

    Returns:
        [n] float64 on the generators' device.
    """
    uniforms = torch.rand(num_rows, dtype=torch.float64, device=batch.generator.device, generator=batch.generator)
    for row, generator in batch.generators.items():
        torch.rand((), dtype=torch.float64, device=generator.device, generator=generator, out=uniforms[row])
    return uniforms


def sample_inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draws a token with probability proportional to its weight by inverting the distribution.

    One number a row suffices, where the exponential-race ("Gumbel") trick needs one a token.
    Drawing those would be the dearest part of sampling on a CPU (16 ns each), and tokens less
    likely than their resolution of 2^-24 would never be sampled. Sums are float64 for that, too.

    Args:
        weights: [n, vocab] float32.
        uniforms: [n] float64 in [0, 1).

    Returns:
        [n] int64; a token whose weight is 0 only if all of the row are.
    """
    cdf = weights.cumsum(dim=-1, dtype=torch.float64)  # [n, vocab], not normalised
    # Uniforms are at most 1 - 2^-53, so this never rounds up to the total, above which no token's share lies.
    target = uniforms[:, None] * cdf[:, -1:]  # [n, 1]
    return torch.searchsorted(cdf, target, right=True).squeeze(-1).clamp_max_(weights.shape[-1] - 1)


def _num_candidates(weights: Tensor, top_k: Tensor, top_p: Tensor | None) -> int:
    """How many of the largest weights to look at. A GPU looks at all: choosing would mean waiting for it."""
    vocab = weights.shape[-1]
    if weights.device.type != "cpu":
        return vocab
    count = max(int(top_k.max()), 1)
    if top_p is not None:
        count += _TIES
        if bool(((top_p < 1) & (top_k < 1)).any()):
            count = max(count, _TOP_P_CANDIDATES)
    return min(count, vocab)


def _largest(weights: Tensor, count: int) -> Tensor:
    """The ``count`` largest of each row, descending: [n, vocab] -> [n, count], a new tensor.

    On a CPU numpy's vectorised selection and sort of bare values take a tenth of the time of
    ``torch.sort``, which carries indices along.
    """
    if weights.device.type != "cpu":
        return weights.sort(dim=-1, descending=True).values[:, :count]
    array = weights.numpy()
    if count < weights.shape[-1]:
        array = np.partition(array, -count, axis=-1)[:, -count:]
    return torch.from_numpy(np.sort(array, axis=-1)[:, ::-1].copy())


def _top_k_threshold(values: Tensor, top_k: Tensor) -> Tensor:
    """The k-th of the descending ``values``, 0 where top-k is off: [n, 1]."""
    index = top_k.clamp(1, values.shape[-1])[:, None] - 1
    return values.gather(1, index).masked_fill_(top_k[:, None] < 1, 0.0)


def _top_p_threshold(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The smallest weight that top-k, and top-p of what top-k leaves, keep: [n, 1]."""
    values = _largest(weights, _num_candidates(weights, top_k, top_p))  # [n, count], descending
    threshold, too_few = _nucleus(values, weights, top_k, top_p)
    if values.shape[-1] < weights.shape[-1]:
        rows = too_few.nonzero().squeeze(-1)
        if rows.numel():
            everything = _largest(weights[rows], weights.shape[-1])
            threshold[rows] = _nucleus(everything, everything, top_k[rows], top_p[rows])[0]
    return threshold


def _nucleus(values: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Where top-p, after top-k, ends among the largest weights of each row.

    Args:
        values: [n, count], descending.
        weights: [n, vocab], all weights of the row in any order.

    Returns:
        The smallest weight to keep [n, 1], and whether ``values`` are too few to tell [n].
    """
    limited = top_k >= 1
    kth = _top_k_threshold(values, top_k)
    values = values.masked_fill(values < kth, 0.0)
    left = torch.where(limited[:, None], values.sum(dim=-1, keepdim=True), weights.sum(dim=-1, keepdim=True))
    before = values.cumsum(dim=-1, dtype=torch.float64) - values  # [n, count], mass of the larger ones
    # A row without any weight, which ``sample`` will find invalid, counts none.
    last = ((before < top_p[:, None] * left).sum(dim=-1, keepdim=True) - 1).clamp_min_(0)  # [n, 1]
    # Rounding of ``left`` may count a token that top-k dropped when p is all but 1.
    nucleus_end = values.gather(1, last).maximum(kth)
    too_few = (last.squeeze(-1) == values.shape[-1] - 1) | (limited & (values[:, -1] > 0))
    off = top_p >= 1
    return torch.where(off[:, None], kth, nucleus_end), too_few & ~off
