"""The wire format of V1's messages: fields are appended, never moved, renamed or removed."""

import pytest

from engine.api import SamplingParams
from engine.errors import ProtocolError
from engine.ipc.framing import Wire
from engine.metrics.stats import EngineStats
from engine.v1.core.request import FinishCause, Finished
from engine.v1.llm_engine import messages

ORDER = {
    messages.AddRequest: (0, ["handle", "prompt_token_ids", "params"]),
    messages.AbortRequests: (1, ["handles"]),
    messages.GetStats: (2, ["call_id"]),
    messages.StepOutputs: (0, ["handles", "token_ids", "finished", "logprobs"]),
    messages.RequestFailed: (1, ["handle", "message", "param", "code", "overloaded"]),
    messages.StatsReply: (2, ["call_id", "stats"]),
    messages.TokenLogprobs: (None, ["handle", "token_ids", "logprobs", "rank"]),
    Finished: (None, ["handle", "cause", "stop_token_id"]),
}


@pytest.mark.parametrize("message", ORDER, ids=lambda m: m.__name__)
def test_field_order_and_tag(message: type) -> None:
    tag, fields = ORDER[message]
    assert message.__struct_config__.array_like
    assert (message.__struct_config__.tag, list(message.__struct_fields__)) == (tag, fields)


def test_causes_keep_their_numbers() -> None:
    assert {cause.name: cause.value for cause in FinishCause} == {"STOP": 1, "LENGTH": 2, "ABORT": 3, "ERROR": 4}


def test_all_messages_survive_the_wire() -> None:
    requests = [
        messages.AddRequest(3, [1, 2], SamplingParams(temperature=0.5, stop=("x",), seed=4)),
        messages.AbortRequests([1, 2]),
        messages.GetStats(9),
    ]
    rows = [messages.TokenLogprobs(1, [5, 6], [-0.5, -1.5], 1)]
    outputs = [
        messages.StepOutputs([1, 2], [5, 6], [Finished(1, FinishCause.STOP, 5)], rows),
        messages.RequestFailed(1, "no", "prompt", None, True),
        messages.StatsReply(9, EngineStats(num_running=3)),
    ]
    for union, group in ((messages.EngineRequest, requests), (messages.EngineOutput, outputs)):
        wire: Wire = Wire(union, epoch=7)
        for message in group:
            assert wire.decode(wire.encode(message)) == message


def test_a_frame_costs_few_bytes_a_token() -> None:
    wire: Wire = Wire(messages.EngineOutput, epoch=7)
    frames = wire.encode(messages.StepOutputs(list(range(1000, 1064)), [49151] * 64))
    assert sum(map(len, frames)) <= 64 * 6 + 32


def test_a_request_with_parameters_out_of_bounds_is_refused_by_the_wire() -> None:
    wire: Wire = Wire(messages.EngineRequest, epoch=7)
    params = SamplingParams()
    frames = wire.encode(messages.AddRequest(1, [1], params))
    tampered = wire._encoder.encode([0, 1, [1], {"temperature": -1.0}])
    with pytest.raises(ProtocolError):
        wire.decode([frames[0], tampered])
