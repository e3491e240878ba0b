"""engine/metrics/stats.py: the order of the fields is the wire format, so it only grows at the end."""

import msgspec

from engine.metrics.stats import EngineStats

ORDER = [
    "num_running",
    "num_waiting",
    "num_swapped",
    "kv_blocks_total",
    "kv_blocks_free",
    "slots_total",
    "slots_used",
    "num_steps",
    "prompt_tokens",
    "generation_tokens",
    "preemptions",
    "requests_finished",
    "requests_aborted",
]


def test_known_fields_keep_their_places() -> None:
    assert [field.name for field in msgspec.structs.fields(EngineStats)][: len(ORDER)] == ORDER


def test_the_wire_has_them_in_that_order() -> None:
    stats = EngineStats(**{name: number for number, name in enumerate(ORDER)})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats))[: len(ORDER)] == list(range(len(ORDER)))
