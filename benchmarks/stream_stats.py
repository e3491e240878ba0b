"""Statistics of measured streams: small pure functions. Times are seconds of one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Stream:
    """One request as its client saw it."""

    submitted: float
    #: When something came, and how many tokens came with it.
    arrivals: tuple[tuple[float, int], ...]

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.arrivals)


@dataclass(frozen=True, slots=True)
class Spread:
    """A handful of measurements: too few for more than their middle and their ends."""

    median: float
    low: float
    high: float
    count: int


def ttft_ms(stream: Stream) -> float:
    """Time to first token."""
    return (stream.arrivals[0][0] - stream.submitted) * 1e3


def ms_per_token(stream: Stream) -> float | None:
    """Mean time of a token after the first arrival; ``None`` if nothing came after it.

    Tokens that arrived together share the time since the arrival before them.
    """
    later = stream.num_tokens - stream.arrivals[0][1]
    if later == 0:
        return None
    return (stream.arrivals[-1][0] - stream.arrivals[0][0]) * 1e3 / later


def output_tokens_per_s(streams: Sequence[Stream]) -> float:
    """Tokens of all streams, over the time from the first submission to the last arrival."""
    begin = min(stream.submitted for stream in streams)
    end = max(stream.arrivals[-1][0] for stream in streams)
    return sum(stream.num_tokens for stream in streams) / (end - begin)


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values), len(values))


def overlap(a: Spread, b: Spread) -> bool:
    """Whether the ranges have a point in common, so that the measurements show no difference."""
    return a.low <= b.high and b.low <= a.high
