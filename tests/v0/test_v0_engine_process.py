"""engine/v0/llm_engine/engine_process.py with a list in place of its sockets."""

import pytest

from engine.api import GenerateRequest, SamplingParams
from engine.v0.llm_engine.engine_process import EngineProcess
from engine.v0.llm_engine.llm_engine import LLMEngine
from engine.v0.llm_engine.messages import AddRequest, GetStats, RequestFailed, StatsReply, StepOutputs
from tests.v0.helpers import greedy, make_config, make_engine, request


class _Line:
    """Stands in for the sockets: a list of requests, then the end of the test."""

    class End(Exception):
        pass

    def __init__(self, requests: list[object]) -> None:
        self._requests = requests
        self.sent: list[object] = []

    def receive(self, timeout_ms: int | None) -> object:
        if self._requests:
            return self._requests.pop(0)
        if timeout_ms is None:
            raise self.End  # Idle: a real process would sleep here for ever.
        return None

    def send(self, message: object) -> None:
        self.sent.append(message)


def serve(engine: LLMEngine, *requests: object) -> list[object]:
    line = _Line(list(requests))
    with pytest.raises(_Line.End):
        EngineProcess(engine, line).run()  # type: ignore[arg-type]
    return line.sent


def test_an_idle_engine_process_sleeps() -> None:
    engine, executor = make_engine(make_config())
    assert serve(engine) == [] and executor.batches == []
    serve(engine, AddRequest(request("r", [5], greedy(2, ignore_eos=True))))
    assert len(executor.batches) == 3  # two tokens, and the news that the request ended


def test_whatever_adding_raises_is_one_requests_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine(make_config())
    add = engine.add_request

    def sometimes(item: GenerateRequest) -> None:
        if item.request_id == "odd":
            raise KeyError("a bug")
        add(item)

    monkeypatch.setattr(engine, "add_request", sometimes)
    wrong = GenerateRequest("wrong", [], SamplingParams(), 0.0)
    requests = (request("odd", [5], greedy(1)), wrong, request("fine", [5], greedy(1)))
    odd, refused, fine = serve(engine, *(AddRequest(item) for item in requests))
    assert isinstance(odd, StepOutputs) and odd.outputs[0].finished
    assert odd.outputs[0].outputs[0].finish_reason == "error"
    assert isinstance(refused, RequestFailed) and refused.param == "prompt"
    assert isinstance(fine, StepOutputs) and fine.outputs[0].outputs[0].finish_reason == "length"


def test_a_failing_step_is_not_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executor = make_engine(make_config())
    monkeypatch.setattr(executor, "execute_model", lambda request: 1 / 0)
    line = _Line([AddRequest(request("r", [5], greedy(1)))])
    with pytest.raises(ZeroDivisionError):
        EngineProcess(engine, line).run()  # type: ignore[arg-type]


def test_stats_are_answered_without_a_step() -> None:
    engine, executor = make_engine(make_config())
    (reply,) = serve(engine, GetStats(7))
    assert isinstance(reply, StatsReply) and reply.call_id == 7 and reply.stats.kv_blocks_total == 64
    assert executor.batches == []
