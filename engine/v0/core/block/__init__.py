"""Blocks of the KV cache: who holds which. Numbers only; the tensors are engine/kv's."""
