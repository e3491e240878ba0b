"""engine/v1/llm_engine/output_processor.py: tokens become deltas, each request ends once."""

import asyncio

import pytest
import tokenizers

from engine.api import GenerateRequest, RequestOutput, SamplingParams
from engine.errors import EngineDeadError, RequestError
from engine.text.tokenizer import Tokenizer
from engine.v1.core.request import FinishCause, Finished
from engine.v1.llm_engine.messages import StepOutputs, TokenLogprobs
from engine.v1.llm_engine.output_processor import OutputProcessor


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token a letter; 0 is end of sequence."""
    alphabet = {"</s>": 0} | {letter: i for i, letter in enumerate("abcdefghij", start=1)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=alphabet, merges=[]))
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens(["</s>"])
    return Tokenizer(core, eos_token_ids=(0,))


def ask(**params: object) -> GenerateRequest:
    return GenerateRequest("r", [1], SamplingParams(**params), 0.0)


def read(mailbox) -> RequestOutput:
    return asyncio.run(asyncio.wait_for(mailbox.get(), 0.1))


def test_tokens_become_text_and_the_end_its_words(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    first, second = processor.open(1, ask()), processor.open(2, ask())
    assert processor.process(StepOutputs([1, 2], [1, 2])) == []
    assert processor.process(StepOutputs([2, 1], [3, 0], [Finished(1, FinishCause.STOP)])) == []
    one, two = read(first), read(second)
    assert (one.outputs[0].text, one.outputs[0].token_ids, one.outputs[0].finish_reason) == ("a", [1, 0], "stop")
    assert one.finished and one.outputs[0].stop_reason is None
    assert (two.outputs[0].text, two.outputs[0].token_ids, two.finished) == ("bc", [2, 3], False)
    assert len(processor) == 1


@pytest.mark.parametrize(
    ("end", "reason", "stop_reason"),
    [
        (Finished(1, FinishCause.LENGTH), "length", None),
        (Finished(1, FinishCause.STOP, 2), "stop", 2),
        (Finished(1, FinishCause.ABORT), "abort", None),
        (Finished(1, FinishCause.ERROR), "error", None),
    ],
)
def test_ends(tokenizer: Tokenizer, end: Finished, reason: str, stop_reason: int | None) -> None:
    processor = OutputProcessor(tokenizer)
    mailbox = processor.open(1, ask())
    with_token = end.cause in (FinishCause.LENGTH, FinishCause.STOP)
    processor.process(StepOutputs([1], [2], [end]) if with_token else StepOutputs([], [], [end]))
    got = read(mailbox)
    assert got.finished and (got.outputs[0].finish_reason, got.outputs[0].stop_reason) == (reason, stop_reason)
    assert not processor.close(1), "an ended request needs no abort"


def test_a_stop_string_ends_it_here_and_is_reported_for_abort(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    mailbox = processor.open(1, ask(stop=("cd",)))
    aborts = [processor.process(StepOutputs([1], [token])) for token in (1, 2, 3, 4, 5)]
    assert aborts == [[], [], [], [1], []]
    got = read(mailbox).outputs[0]
    assert (got.text, got.token_ids, got.finish_reason, got.stop_reason) == ("ab", [1, 2, 3, 4], "stop", "cd")


def test_a_stop_string_in_the_last_token_needs_no_abort(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    mailbox = processor.open(1, ask(stop=("b",)))
    assert processor.process(StepOutputs([1], [2], [Finished(1, FinishCause.LENGTH)])) == []
    assert read(mailbox).outputs[0].stop_reason == "b"


def test_logprobs_are_cut_to_what_was_asked(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    boxes = [processor.open(handle, ask(logprobs=wish)) for handle, wish in ((1, 0), (2, 2), (3, None))]
    rows = [TokenLogprobs(handle, [3, 1, 3, 2], [-1.5, -1.0, -1.5, -3.0], 2) for handle in (1, 2)]
    processor.process(StepOutputs([1, 2, 3], [3, 3, 3], [], rows))
    none, two, missing = (read(box).outputs[0].logprobs for box in boxes)
    assert missing is None
    assert none is not None and two is not None
    assert {k: (v.logprob, v.rank, v.decoded_token) for k, v in none[0].items()} == {3: (-1.5, 2, "c")}
    assert [(k, v.rank) for k, v in two[0].items()] == [(3, 2), (1, 1)]


def test_readers_that_left_are_ignored_and_the_dead_engine_ends_the_rest(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    gone, failed, rest = (processor.open(handle, ask()) for handle in (1, 2, 3))
    assert processor.close(1)
    processor.process(StepOutputs([1], [1], [Finished(1, FinishCause.LENGTH)]))
    processor.fail(2, RequestError("no"))
    processor.fail_all("dead")
    with pytest.raises(RequestError, match="no"):
        read(failed)
    with pytest.raises(EngineDeadError, match="dead"):
        read(rest)
    with pytest.raises(TimeoutError):
        read(gone)
    assert len(processor) == 0


def test_a_fault_in_one_output_ends_that_request_only(tokenizer: Tokenizer, monkeypatch) -> None:
    processor = OutputProcessor(tokenizer)
    bad, good = processor.open(1, ask(logprobs=0)), processor.open(2, ask())
    rows = [TokenLogprobs(1, [], [], 1)]  # not even the sampled token
    assert processor.process(StepOutputs([1, 2], [1, 2], [], rows)) == [1]
    assert read(bad).outputs[0].finish_reason == "error"
    assert read(good).outputs[0].text == "b"
