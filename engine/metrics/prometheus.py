"""``ServerMetrics``: what the API process counts, and its rendering together with ``EngineStats``.

Owns the names of all metrics (as vLLM's, with the prefix ``engine_``) and their Prometheus text. Every
sample carries the label ``engine`` ("v0" or "v1"). No global registry: two servers in one process,
or two tests, never share a counter.

All of it is used from the event loop's thread, so counting takes no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import CollectorRegistry

from engine.metrics.stats import EngineStats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

#: Upper bounds in seconds.
TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0, 480.0)

#: EngineStats field -> (metric, help). vLLM's names where it has the metric.
_GAUGES = {
    "num_running": ("engine_num_requests_running", "Requests in the running batch"),
    "num_waiting": ("engine_num_requests_waiting", "Requests waiting to be scheduled"),
    "num_swapped": ("engine_num_requests_swapped", "Requests swapped to host memory (V0)"),
    "kv_blocks_total": ("engine_kv_cache_blocks", "Blocks of the KV cache"),
    "kv_blocks_free": ("engine_kv_cache_blocks_free", "Free blocks of the KV cache"),
    "slots_total": ("engine_slots", "Requests that can be scheduled together"),
    "slots_used": ("engine_slots_used", "Places taken among them"),
}
_COUNTERS = {
    "num_steps": ("engine_steps", "Steps of the engine"),
    "prompt_tokens": ("engine_prompt_tokens", "Prompt tokens computed"),
    "generation_tokens": ("engine_generation_tokens", "Tokens generated"),
    "preemptions": ("engine_num_preemptions", "Preemptions"),
    "requests_finished": ("engine_requests_finished", "Requests the engine finished"),
    "requests_aborted": ("engine_requests_aborted", "Requests the engine aborted"),
}


class LatencyHistogram:
    """Counts of durations by bucket; some 0.3 microseconds an observation."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Adds ``count`` equal durations."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._sum += seconds * count

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Prometheus' cumulative buckets by upper bound, and the sum of all durations."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows, self._sum


class ServerMetrics:
    """The API process's own counters; routes write to the public attributes."""

    def __init__(self, engine: str, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name
        #: (route, method, status) -> requests; 499 is a client that hung up.
        self.http_requests: Counter[tuple[str, str, int]] = Counter()
        #: "stop", "length", "abort" or "error" -> requests.
        self.requests_finished: Counter[str] = Counter()
        #: Tokens of ended requests, as clients see them.
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.time_to_first_token = LatencyHistogram(TTFT_BUCKETS)
        self.inter_token_latency = LatencyHistogram(TOKEN_BUCKETS)
        self.time_per_output_token = LatencyHistogram(TOKEN_BUCKETS)
        self.e2e_latency = LatencyHistogram(E2E_BUCKETS)

    def render(self, stats: EngineStats | None, in_flight: int) -> bytes:
        """Prometheus text; without ``stats`` the engine's own metrics are left out."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Snapshot([*self._server(in_flight), *self._engine_stats(stats)]))
        return generate_latest(registry)

    def _server(self, in_flight: int) -> Iterator[Metric]:
        info = InfoMetricFamily("engine_model", "The model served", labels=["engine"])
        info.add_metric([self._engine], {"model_name": self._model_name})
        yield info
        yield self._gauge("engine_http_requests_in_flight", "Requests being answered", in_flight)
        http = CounterMetricFamily(
            "engine_http_requests", "HTTP requests answered", labels=["engine", "route", "method", "status"]
        )
        for (route, method, status), count in self.http_requests.items():
            http.add_metric([self._engine, route, method, str(status)], count)
        yield http
        finished = CounterMetricFamily(
            "engine_request_success", "Requests ended, by reason", labels=["engine", "finished_reason"]
        )
        for reason, count in self.requests_finished.items():
            finished.add_metric([self._engine, reason], count)
        yield finished
        yield self._counter("engine_server_prompt_tokens", "Prompt tokens of ended requests", self.prompt_tokens)
        yield self._counter("engine_server_generation_tokens", "Tokens answered", self.generation_tokens)
        yield self._histogram("engine_time_to_first_token_seconds", "TTFT, from tokenized on", self.time_to_first_token)
        yield self._histogram("engine_inter_token_latency_seconds", "Time between tokens", self.inter_token_latency)
        yield self._histogram(
            "engine_request_time_per_output_token_seconds", "TPOT: mean of a request", self.time_per_output_token
        )
        yield self._histogram("engine_e2e_request_latency_seconds", "From tokenized to ended", self.e2e_latency)

    def _engine_stats(self, stats: EngineStats | None) -> Iterator[Metric]:
        yield self._gauge("engine_up", "Whether the engine process answers", float(stats is not None))
        if stats is None:
            return
        for field, (name, help_text) in _GAUGES.items():
            yield self._gauge(name, help_text, getattr(stats, field))
        for field, (name, help_text) in _COUNTERS.items():
            yield self._counter(name, help_text, getattr(stats, field))
        used = stats.kv_blocks_total - stats.kv_blocks_free
        share = used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
        yield self._gauge("engine_kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1", share)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=["engine"])
        family.add_metric([self._engine], value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help_text, labels=["engine"])
        family.add_metric([self._engine], value)
        return family

    def _histogram(self, name: str, help_text: str, histogram: LatencyHistogram) -> Metric:
        family = HistogramMetricFamily(name, help_text, labels=["engine"])
        buckets, total = histogram.buckets()
        family.add_metric([self._engine], buckets, total)
        return family


class _Snapshot:
    """A collector that has its answer already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
