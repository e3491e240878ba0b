"""engine/v0/llm_engine/messages.py: the wire format is what it was, and needs no torch."""

import subprocess
import sys

import msgspec
import pytest

from engine.api import CompletionOutput, GenerateRequest, Logprob, RequestOutput, SamplingParams
from engine.metrics.stats import EngineStats
from engine.v0.llm_engine.messages import (
    AbortRequest,
    AddRequest,
    EngineOutput,
    EngineRequest,
    GetStats,
    RequestFailed,
    StatsReply,
    StepOutputs,
)

#: Fields may be appended; these must keep their places, and a tag its meaning.
WIRE = {
    AddRequest: (0, ("request",)),
    AbortRequest: (1, ("request_id",)),
    GetStats: (2, ("call_id",)),
    StepOutputs: (0, ("outputs",)),
    RequestFailed: (1, ("request_id", "message", "param", "code")),
    StatsReply: (2, ("call_id", "stats")),
    RequestOutput: (None, ("request_id", "prompt_token_ids", "outputs", "finished", "num_cached_tokens", "prompt")),
    CompletionOutput: (None, ("index", "text", "token_ids", "logprobs", "finish_reason", "stop_reason")),
    Logprob: (None, ("logprob", "rank", "decoded_token")),
}


@pytest.mark.parametrize("message_type", WIRE, ids=lambda t: t.__name__)
def test_field_order_is_the_wire_format(message_type: type[msgspec.Struct]) -> None:
    tag, fields = WIRE[message_type]
    config = message_type.__struct_config__
    assert config.array_like
    assert config.tag == tag
    assert message_type.__struct_fields__[: len(fields)] == fields


def test_every_message_survives_the_wire() -> None:
    params = SamplingParams(temperature=0.5, stop=("x",), stop_token_ids=(4,), seed=-3, logprobs=2)
    part = CompletionOutput(0, "é", [5], [{5: Logprob(-0.5, 1, "é")}], "stop", "x")
    requests = [AddRequest(GenerateRequest("r", [1, 2], params, 1.5)), AbortRequest("r"), GetStats(7)]
    outputs = [
        StepOutputs([RequestOutput("r", [], [part], True)]),
        RequestFailed("r", "no", "prompt", None),
        StatsReply(7, EngineStats(num_running=3)),
    ]
    for messages, union in ((requests, EngineRequest), (outputs, EngineOutput)):
        for message in messages:
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union) == message


def test_the_client_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, engine.v0.llm_engine.client, engine.v0.llm_engine.messages\n"
        "import engine.v0.llm_engine.output_processor, engine.v0.core.scheduler\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
