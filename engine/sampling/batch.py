"""The nouns of sampling: what an engine hands to ``sample`` and what it gets back.

Owns shapes and their meaning. Does not own how an engine keeps these tensors between steps.
Row ``i`` of every tensor belongs to row ``i`` of the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PenaltyBatch:
    """Penalties of the ``m`` rows that have any; the other rows are left alone."""

    rows: Tensor  # [m] int64, row of the logits, no row twice
    repetition: Tensor  # [m] float32, 1 = off
    presence: Tensor  # [m] float32, 0 = off
    frequency: Tensor  # [m] float32, 0 = off
    prompt_mask: Tensor  # [m, vocab] bool, token occurs in the prompt
    output_counts: Tensor  # [m, vocab] int32, times the token was generated


@dataclass(frozen=True, slots=True, eq=False)
class BannedTokens:
    """``p`` pairs of a row and a token it must not sample now, e.g. EOS before ``min_tokens``."""

    rows: Tensor  # [p] int64
    token_ids: Tensor  # [p] int64, inside the vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class SamplingBatch:
    """How each of ``n`` rows of logits is to be sampled. ``None`` switches a filter off for all rows.

    All generators live on one device: the logits' own, or the CPU. With CPU generators one
    seed draws the same numbers on every kind of device.
    """

    temperature: Tensor  # [n] float32; below GREEDY_EPSILON the row is greedy
    #: Whether every row is greedy; known on the host, so that a GPU need not be asked.
    all_greedy: bool
    #: The engine's own generator, for rows without a seed.
    generator: torch.Generator
    top_k: Tensor | None = None  # [n] int64; below 1 keeps all tokens
    top_p: Tensor | None = None  # [n] float32; 1 keeps all tokens
    min_p: Tensor | None = None  # [n] float32; 0 keeps all tokens
    penalties: PenaltyBatch | None = None
    banned: BannedTokens | None = None
    #: Generators of seeded rows, by row. One number is drawn from each per call.
    generators: Mapping[int, torch.Generator] = field(default_factory=dict)
    #: How many most likely tokens to report beside the sampled one; ``None`` reports nothing.
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LogprobTensors:
    """Log probabilities under the model's own distribution, see ``logprobs.gather_logprobs``."""

    token_ids: Tensor  # [n, k + 1] int64, the sampled token first, then the k most likely
    logprobs: Tensor  # [n, k + 1] float32
    ranks: Tensor  # [n] int64, rank of the sampled token; 1 is the most likely


@dataclass(frozen=True, slots=True, eq=False)
class SamplerOutput:
    """One token for each row, on the logits' device."""

    token_ids: Tensor  # [n] int64
    #: Rows in which no token had a finite logit. Their token is 0 and means nothing: the
    #: request has to end with an error.
    invalid: Tensor  # [n] bool
    logprobs: LogprobTensors | None = None
