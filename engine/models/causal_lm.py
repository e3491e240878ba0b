"""``CausalLM``: the pre-norm decoder skeleton that the families share, and the contract of a model.

Owns the residual stream and the two ends. What happens inside a layer is the family's choice of
attention and feed-forward module. Parameter names are those of Hugging Face checkpoints, but for
the merged ones that ``packed_modules`` lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import nn

from engine.config.engine_config import Architecture
from engine.layers.embedding import LMHead, VocabEmbedding
from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each on the normalised residual stream and added back to it."""

    def __init__(self, architecture: Architecture, self_attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(architecture.hidden_size, architecture.rms_norm_eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = RMSNorm(architecture.hidden_size, architecture.rms_norm_eps)
        self.mlp = mlp

    def forward(
        self,
        positions: torch.Tensor,  # [num_tokens]
        hidden: torch.Tensor,  # [num_tokens, hidden], output of the last block, not yet added to the stream
        residual: torch.Tensor | None,  # [num_tokens, hidden], the stream; None before the first layer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the next ``(hidden, residual)``."""
        if residual is None:
            residual, hidden = hidden, self.input_layernorm(hidden)
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.self_attn(positions, hidden)
        hidden, residual = self.post_attention_layernorm.add(hidden, residual)
        return self.mlp(hidden), residual


class Decoder(nn.Module):
    """Embedding, layers and final norm: token ids to hidden states."""

    def __init__(self, architecture: Architecture, layers: Iterable[DecoderLayer]) -> None:
        super().__init__()
        self.embed_tokens = VocabEmbedding(architecture.vocab_size, architecture.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(architecture.hidden_size, architecture.rms_norm_eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed_tokens(input_ids)
        residual: torch.Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
        assert residual is not None, "a model has at least one layer"
        return self.norm.add(hidden, residual)[0]


class CausalLM(nn.Module):
    """A language model on a ragged batch of tokens; runs inside a ``forward_context``."""

    #: Checkpoint module -> (merged module of this model, shard): ``q_proj`` is shard ``q`` of ``qkv_proj``.
    packed_modules: ClassVar[Mapping[str, tuple[str, str]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", "gate"),
        "up_proj": ("gate_up_proj", "up"),
    }

    def __init__(self, architecture: Architecture, layers: Iterable[DecoderLayer]) -> None:
        super().__init__()
        self.model = Decoder(architecture, layers)
        self.lm_head = LMHead(architecture.vocab_size, architecture.hidden_size)
        self.tied = architecture.tie_word_embeddings
        if self.tied:
            self.lm_head.tie(self.model.embed_tokens)

    def pack(self) -> None:
        """Called once, after loading: every linear layer takes the form its kernel is fastest with."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()
        if self.tied:
            self.model.embed_tokens.share_packed(self.lm_head)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states [num_tokens, hidden] of tokens and positions, both [num_tokens] int64."""
        hidden: torch.Tensor = self.model(input_ids, positions)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, vocab] logits, in the model's dtype, of those [n, hidden] states whose next token is wanted."""
        logits: torch.Tensor = self.lm_head(hidden)
        return logits
