"""engine/v0/llm_engine without sockets: requests in, deltas out, and why they end."""

import pytest
import tokenizers

from engine.api import Logprob, RequestOutput, SamplingParams
from engine.api.outputs import merge
from engine.errors import RequestError
from engine.text.tokenizer import Tokenizer
from engine.v0.core.execute_model import ExecuteModelRequest, SamplerOutput, SequenceGroupOutput, SequenceOutput
from engine.v0.llm_engine.llm_engine import LLMEngine
from tests.v0.helpers import EOS, expected_tokens, greedy, make_config, make_engine, request, run_to_end, token_ids


class ScriptedExecutor:
    """Gives every sequence the tokens of one script, one a step."""

    def __init__(self, script: list[int]) -> None:
        self._script = script

    def execute_model(self, request: ExecuteModelRequest) -> SamplerOutput:
        return [
            SequenceGroupOutput(
                [
                    SequenceOutput(seq_id, token := self._script[data.num_output_tokens], {token: Logprob(-1.0, 1)})
                    for seq_id, data in group.seq_data.items()
                ]
            )
            for group in request.seq_group_metadata_list
        ]


def letters() -> Tokenizer:
    """Token ``ord(c)`` is the character ``c``."""
    vocab = {chr(i): i for i in range(128)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="?"))
    core.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(core, eos_token_ids=(EOS,))


def generate(text: str, params: SamplingParams, *, end: list[int] | None = None) -> RequestOutput:
    """What a model that says ``text`` (and then the tokens ``end``) gives a request; deltas added up."""
    script = [ord(char) for char in text] + (end or []) + [ord("~")] * 40
    engine = LLMEngine(make_config(), ScriptedExecutor(script), letters())
    engine.add_request(request("r", [65], params))
    total = RequestOutput("r", [], [], finished=False)
    for delta in run_to_end(engine)["r"]:
        assert not total.finished
        merge(total, delta)
    return total


def end_of(output: RequestOutput) -> tuple[str, int, str | None, int | str | None]:
    part = output.outputs[0]
    return part.text, len(part.token_ids), part.finish_reason, part.stop_reason


def test_max_tokens_is_length() -> None:
    assert end_of(generate("hello", greedy(3))) == ("hel", 3, "length", None)


def test_eos_counts_as_a_token_but_is_not_text() -> None:
    assert end_of(generate("hi", greedy(9), end=[EOS])) == ("hi", 3, "stop", None)


def test_ignore_eos_goes_on() -> None:
    assert end_of(generate("hi", greedy(4, ignore_eos=True), end=[EOS]))[1:] == (4, "length", None)


def test_a_stop_id_is_the_reason_and_is_not_text() -> None:
    assert end_of(generate("abc", greedy(9, stop_token_ids=[ord("c")]))) == ("ab", 3, "stop", ord("c"))
    shown = greedy(9, stop_token_ids=[ord("c")], include_stop_str_in_output=True)
    assert end_of(generate("abc", shown)) == ("abc", 3, "stop", ord("c"))


def test_a_stop_string_across_tokens_cuts_the_text_and_keeps_the_tokens() -> None:
    assert end_of(generate("one two", greedy(9, stop=["e t"]))) == ("on", 5, "stop", "e t")


def test_a_stop_string_completed_by_the_last_token_allowed_is_a_stop() -> None:
    assert end_of(generate("abcd", greedy(3, stop=["bc"]))) == ("a", 3, "stop", "bc")


def test_nothing_stops_before_min_tokens() -> None:
    params = greedy(9, min_tokens=3, stop=["b"], stop_token_ids=[ord("a")])
    assert end_of(generate("abcbz", params)) == ("abc", 4, "stop", "b")
    assert end_of(generate("a", greedy(9, min_tokens=2), end=[EOS, EOS]))[1:] == (2, "stop", None)


def test_text_held_back_for_a_stop_string_comes_out_at_the_end() -> None:
    assert end_of(generate("abc", greedy(3, stop=["cx"]))) == ("abc", 3, "length", None)


def test_text_held_back_comes_out_on_abort() -> None:
    engine = LLMEngine(make_config(), ScriptedExecutor([ord("a"), ord("b")]), letters())
    engine.add_request(request("r", [65], greedy(9, stop=["bx"])))
    shown = [output.outputs[0].text for _ in range(2) for output in engine.step()]
    last = engine.abort_request("r")
    assert last is not None and (shown, last.outputs[0].text) == (["a", ""], "b")


def test_logprobs_are_one_entry_a_token_with_texts() -> None:
    part = generate("ok", greedy(2, logprobs=0)).outputs[0]
    assert part.logprobs == [{ord("o"): Logprob(-1.0, 1, "o")}, {ord("k"): Logprob(-1.0, 1, "k")}]


def test_max_tokens_of_none_fills_the_context() -> None:
    engine, _ = make_engine(make_config(num_blocks=128))
    engine.add_request(request("r", [5] * 250, SamplingParams(max_tokens=None, ignore_eos=True)))
    outputs = run_to_end(engine)["r"]
    assert len(token_ids(outputs)) == 6 and outputs[-1].outputs[0].finish_reason == "length"


def test_the_cache_bounds_a_request_that_the_context_would_hold() -> None:
    engine, _ = make_engine(make_config(num_blocks=10, block_size=4))
    with pytest.raises(RequestError, match="KV cache of 40 tokens"):
        engine.add_request(request("r", [5] * 30, greedy(11)))
    engine.add_request(request("r", [5] * 30, greedy(10, ignore_eos=True)))
    assert len(token_ids(run_to_end(engine)["r"])) == 10


@pytest.mark.parametrize("prompt", [[], [128], [-1], [5] * 256])
def test_a_bad_request_is_refused_and_leaves_nothing(prompt: list[int]) -> None:
    engine, _ = make_engine(make_config())
    with pytest.raises(RequestError):
        engine.add_request(request("bad", prompt, greedy(4)))
    assert not engine.has_work
    assert engine.abort_request("bad") is None


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    engine, _ = make_engine(make_config())
    with pytest.raises(RequestError, match="need a tokenizer"):
        engine.add_request(request("r", [5], greedy(4, stop=["x"])))


def test_an_id_in_use_is_refused_and_the_first_goes_on() -> None:
    engine, _ = make_engine(make_config())
    engine.add_request(request("r", [5], greedy(4)))
    with pytest.raises(RequestError, match="in use"):
        engine.add_request(request("r", [6], greedy(4)))
    assert token_ids(run_to_end(engine)["r"]) == expected_tokens([5], greedy(4))


def test_logits_without_a_number_end_one_request() -> None:
    engine, executor = make_engine(make_config())
    for name in ("good", "bad"):
        engine.add_request(request(name, [5, 6], greedy(6, ignore_eos=True)))
    engine.step()
    executor.poisoned.add("bad")
    outputs = run_to_end(engine)
    (last,) = outputs["bad"]
    assert last.finished and last.outputs[0].finish_reason == "error" and last.outputs[0].token_ids == []
    assert token_ids(outputs["good"]) == expected_tokens([5, 6], greedy(6, ignore_eos=True))[1:]
    assert engine.block_manager.num_free_blocks == 64


def test_stats_count_what_happened() -> None:
    engine, _ = make_engine(make_config(num_blocks=6, max_num_seqs=2))
    for name in "abc":
        engine.add_request(request(name, [5] * 8, greedy(12, ignore_eos=True)))
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.slots_used, stats.slots_total) == (2, 1, 2, 2)
    assert (stats.kv_blocks_total, stats.kv_blocks_free) == (6, 2)
    engine.abort_request("c")
    run_to_end(engine)
    stats = engine.stats()
    assert (stats.requests_finished, stats.requests_aborted) == (2, 1)
    assert (stats.prompt_tokens, stats.generation_tokens) == (24, 24), "recomputation does not count twice"
    assert stats.preemptions >= 1 and stats.num_steps > 12
