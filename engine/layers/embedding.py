"""The two ends of a language model: token ids to vectors, and vectors to logits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from engine.kernels.linear import PackedWeight
from engine.layers.linear import Linear
from engine.layers.parameter import copy_weight, make_parameter, replace_weight


class VocabEmbedding(nn.Module):
    """A row of ``weight`` for each token id."""

    weight: nn.Parameter | PackedWeight  # [vocab, hidden]

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = make_parameter((vocab_size, hidden_size), self.load_rows)

    def load_rows(self, param: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        """The ``weight_loader`` of ``weight``."""
        copy_weight(param, loaded)

    def share_packed(self, head: LMHead) -> None:
        """After a tied head was packed: looks rows up in its weight, and frees the plain table."""
        if isinstance(head.weight, PackedWeight):
            replace_weight(self, head.weight)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:  # [num_tokens] -> [num_tokens, hidden]
        if isinstance(self.weight, PackedWeight):
            return self.weight.rows(input_ids)
        return F.embedding(input_ids, self.weight)


class LMHead(Linear):
    """Scores of every token of the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size, vocab_size)

    def tie(self, embedding: VocabEmbedding) -> None:
        """Makes the embedding's table this layer's weight: one parameter, loaded once, in memory once."""
        self.weight = embedding.weight
