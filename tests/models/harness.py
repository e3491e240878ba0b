"""Runs a model on a paged KV cache without any engine.

A ``PagedRunner`` holds sequences in scattered blocks of a cache full of junk, and runs whatever
mix of chunks it is told to in one ragged batch. So a test can ask whether how a text is computed
changes what comes out.
"""

from collections.abc import Sequence

import torch

from engine.attention.backend import make_backend
from engine.attention.context import ForwardContext, forward_context
from engine.attention.metadata import AttentionMetadata
from engine.config.engine_config import AttentionBackendName, ModelConfig
from engine.kv.spec import spec_of
from engine.kv.tensors import allocate_kv_caches
from engine.models.causal_lm import CausalLM

#: The steps of a run; each is a batch of (sequence, number of its next tokens).
Schedule = Sequence[Sequence[tuple[int, int]]]

#: Stands in block tables past a sequence's end, where nothing may be followed.
NO_BLOCK = 2**30


class PagedRunner:
    """``num_seqs`` growing sequences of at most ``max_len`` tokens."""

    def __init__(
        self,
        model: CausalLM,
        config: ModelConfig,
        num_seqs: int,
        max_len: int,
        backend: AttentionBackendName = "torch",
        block_size: int = 16,
    ) -> None:
        self.model = model
        self.backend = make_backend(backend)
        self.block_size = block_size
        self.lens = [0] * num_seqs
        blocks_per_seq = -(-max_len // block_size)
        num_blocks = 2 * num_seqs * blocks_per_seq
        spec = spec_of(config.architecture, block_size, config.dtype)
        self.caches = allocate_kv_caches(spec, num_blocks, torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        for cache in self.caches:
            cache.key.fill_(97.0)
            cache.value.fill_(-89.0)
        blocks = torch.randperm(num_blocks, generator=generator)[: num_seqs * blocks_per_seq]
        self.block_table = blocks.view(num_seqs, blocks_per_seq).int()

    @torch.inference_mode()
    def step(self, chunks: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """Appends tokens to sequences in one batch; returns each chunk's logits [len, vocab]."""
        starts = [self.lens[seq] for seq, _ in chunks]
        query_lens = [len(tokens) for _, tokens in chunks]
        for seq, tokens in chunks:
            self.lens[seq] += len(tokens)
        positions = torch.cat([torch.arange(start, start + n) for start, n in zip(starts, query_lens, strict=True)])
        input_ids = torch.tensor([token for _, tokens in chunks for token in tokens])
        context = ForwardContext(
            self._metadata([seq for seq, _ in chunks], query_lens, positions), self.caches, self.backend
        )
        with forward_context(context):
            hidden = self.model(input_ids, positions)
        return list(torch.split(self.model.compute_logits(hidden).float(), query_lens))

    def _metadata(self, seqs: list[int], query_lens: list[int], positions: torch.Tensor) -> AttentionMetadata:
        seq_lens = torch.tensor([self.lens[seq] for seq in seqs], dtype=torch.int32)
        row_of_token = torch.repeat_interleave(torch.tensor(seqs), torch.tensor(query_lens))
        blocks = self.block_table[row_of_token, positions // self.block_size].long()
        block_table = self.block_table[seqs].clone()
        columns = torch.arange(block_table.shape[1])
        block_table[columns >= -(-seq_lens // self.block_size)[:, None]] = NO_BLOCK
        return AttentionMetadata(
            query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).int(),
            seq_lens=seq_lens,
            block_table=block_table,
            slot_mapping=blocks * self.block_size + positions % self.block_size,
            max_query_len=max(query_lens),
            max_seq_len=int(seq_lens.max()),
        )


def paged_logits(
    model: CausalLM,
    config: ModelConfig,
    sequences: Sequence[Sequence[int]],
    schedule: Schedule | None = None,
    backend: AttentionBackendName = "torch",
    block_size: int = 16,
) -> list[torch.Tensor]:
    """Logits [len, vocab] of each sequence; without a schedule each one is computed alone and at once."""
    runner = PagedRunner(model, config, len(sequences), max(map(len, sequences)), backend, block_size)
    steps = schedule or [[(index, len(sequence))] for index, sequence in enumerate(sequences)]
    parts: list[list[torch.Tensor]] = [[] for _ in sequences]
    for step in steps:
        chunks = [(seq, sequences[seq][runner.lens[seq] : runner.lens[seq] + n]) for seq, n in step]
        for (seq, _), logits in zip(chunks, runner.step(chunks), strict=True):
            parts[seq].append(logits)
    assert runner.lens == [len(sequence) for sequence in sequences], "the schedule leaves tokens out"
    return [torch.cat(part) for part in parts]


def greedy_tokens(
    model: CausalLM,
    config: ModelConfig,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    backend: AttentionBackendName = "torch",
) -> list[list[int]]:
    """The most likely continuations of all prompts, decoded as one batch."""
    runner = PagedRunner(model, config, len(prompts), max(map(len, prompts)) + num_tokens, backend)
    outputs: list[list[int]] = [[] for _ in prompts]
    chunks: list[tuple[int, Sequence[int]]] = list(enumerate(prompts))
    for _ in range(num_tokens):
        tokens = [int(logits[-1].argmax()) for logits in runner.step(chunks)]
        for output, token in zip(outputs, tokens, strict=True):
            output.append(token)
        chunks = [(seq, [token]) for seq, token in enumerate(tokens)]
    return outputs
