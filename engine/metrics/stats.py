"""``EngineStats``: a snapshot of an engine, the same shape from both. Torch-free.

Owns the schema; ``engine/metrics/prometheus.py`` renders it.
"""

from __future__ import annotations

import msgspec


class EngineStats(msgspec.Struct, array_like=True):
    """Gauges are values now; counters only grow while one engine process lives.

    New fields are appended: the order is the wire format (``tests/metrics/test_stats.py``).
    """

    # Gauges
    num_running: int = 0
    num_waiting: int = 0
    #: V0: sequence groups swapped to host memory. V1 has no such state.
    num_swapped: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    #: Most requests that may be scheduled together, and how many of those places are taken.
    slots_total: int = 0
    slots_used: int = 0
    # Counters
    num_steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
