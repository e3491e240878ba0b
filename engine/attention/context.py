"""``ForwardContext``: how a step's attention inputs reach the attention layers.

Owns the one context variable of the package, so that a model's forward is
``(input_ids, positions)`` and knows nothing of caches or batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from engine.attention.backend import AttentionBackend
from engine.attention.metadata import AttentionMetadata
from engine.kv.tensors import LayerKVCache


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What the attention layers of one forward pass read."""

    metadata: AttentionMetadata
    kv_caches: Sequence[LayerKVCache]
    backend: AttentionBackend


_CURRENT: ContextVar[ForwardContext] = ContextVar("forward_context")


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Makes ``context`` current for the model calls inside the block."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_context() -> ForwardContext:
    """The context of the running forward pass; ``LookupError`` outside of one."""
    return _CURRENT.get()
