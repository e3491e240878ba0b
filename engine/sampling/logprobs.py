"""Log probabilities of sampled and most likely tokens.

They are those of the *model*: the log-softmax of its raw logits, before penalties, bans,
temperature and filters. Both engines report the same numbers whatever the sampling options.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.sampling.batch import LogprobTensors


def gather_logprobs(logits: Tensor, sampled: Tensor, num_logprobs: int) -> LogprobTensors:
    """The log probability and rank of each sampled token, and the most likely alternatives.

    Equally likely tokens share a rank. A row without any finite logit has NaN.

    Args:
        logits: [n, vocab] float32, as the model gave them.
        sampled: [n] int64.
        num_logprobs: how many alternatives, 0 for none; no more than the vocabulary are given.
    """
    raw = logits.log_softmax(dim=-1)  # [n, vocab]
    own = raw.gather(1, sampled[:, None])  # [n, 1]
    best, best_ids = raw.topk(min(num_logprobs, raw.shape[-1]), dim=-1)  # [n, k]
    return LogprobTensors(
        token_ids=torch.cat((sampled[:, None], best_ids), dim=-1),
        logprobs=torch.cat((own, best), dim=-1),
        ranks=(raw > own).sum(dim=-1) + 1,
    )
