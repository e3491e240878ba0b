"""``LLM`` over a fake client: order, shapes, errors, progress, interruption and the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import LLM, SamplingParams
from engine.errors import ConfigError, EngineDeadError, RequestError, StartupError
from tests.entrypoints.fake_client import FakeClient, make_llm

ROOT = Path(__file__).resolve().parent.parent.parent


def texts(outputs: list[engine.RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def llm_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "llm"]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def llm(client: FakeClient):
    with make_llm(client) as made:
        yield made


# -- generate ------------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts_whatever_ends_first(llm: LLM, client: FakeClient) -> None:
    ended: list[str] = []
    prompts = [f"prompt {n}" for n in range(9)]
    client._on_token = lambda request: ended.append(request.prompt)
    outputs = llm.generate(prompts, use_tqdm=False)
    assert ended[0] != prompts[0], "the fake must end later requests first, or this shows nothing"
    assert texts(outputs) == prompts
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished and output.outputs[0].finish_reason == "stop" for output in outputs)
    assert outputs[3].outputs[0].token_ids == outputs[3].prompt_token_ids == list(map(ord, "prompt 3"))


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("ab", ["ab"]),
        ({"prompt": "ab"}, ["ab"]),
        ({"prompt_token_ids": (97, 98)}, ["ab"]),
        (["ab", {"prompt": "c"}, {"prompt_token_ids": [100]}], ["ab", "c", "d"]),
        ([], []),
    ],
)
def test_shapes_of_prompts(llm: LLM, prompts: Any, expected: list[str]) -> None:
    assert texts(llm.generate(prompts, use_tqdm=False)) == expected


def test_parameters_for_all_for_each_and_by_default(llm: LLM, client: FakeClient) -> None:
    llm.generate(["a", "b"], use_tqdm=False)
    llm.generate(["a", "b"], SamplingParams(max_tokens=3), use_tqdm=False)
    llm.generate(["a", "b"], [SamplingParams(max_tokens=4), SamplingParams(max_tokens=None)], use_tqdm=False)
    assert [request.params.max_tokens for request in client.requests] == [16, 16, 3, 3, 4, 63]
    assert len({request.request_id for request in client.requests}) == 6


@pytest.mark.parametrize(
    ("prompts", "where"),
    [
        (["ok", "", "ok"], r"prompts\[1\]: The prompt is empty"),
        (["ok", {"prompt_token_ids": [256]}], r"prompts\[1\]: .*outside the vocabulary"),
        (["x" * 64], r"context length"),
        (["ok", 7], r"prompts\[1\]: .*this is a int"),
        ([{"prompt": "a", "prompt_token_ids": [1]}, "b"], r"prompts\[0\]: .*'prompt', 'prompt_token_ids'"),
        ([{"prompt_token_ids": "abc"}], "prompt_token_ids"),
        ([{"prompt_token_ids": [1.5]}], "list of integers"),
        ([{"prompt_token_ids": 5}], "list of integers"),
        ([{}], "no keys"),
        (["ok", [1, 2, 3]], r"prompts\[1\]: .*this is a list"),
        (5, "not a int"),
    ],
)
def test_one_bad_prompt_is_named_and_nothing_is_submitted(
    llm: LLM, client: FakeClient, prompts: Any, where: str
) -> None:
    with pytest.raises(RequestError, match=where):
        llm.generate(prompts, use_tqdm=False)
    assert client.requests == []


def test_as_many_parameters_as_prompts(llm: LLM, client: FakeClient) -> None:
    with pytest.raises(RequestError, match="2 prompts and 1 sampling_params"):
        llm.generate(["a", "b"], [SamplingParams()], use_tqdm=False)
    assert client.requests == []


def test_without_a_tokenizer_prompts_are_token_ids() -> None:
    with make_llm(tokenizer=False) as llm:
        assert texts(llm.generate({"prompt_token_ids": [65]}, use_tqdm=False)) == ["A"]
        for call in (
            lambda: llm.generate("text"),
            lambda: llm.generate({"prompt_token_ids": [65]}, SamplingParams(stop=("x",))),
            lambda: llm.chat([{"role": "user", "content": "hi"}]),
            llm.get_tokenizer,
        ):
            with pytest.raises(RequestError, match="skip_tokenizer_init"):
                call()


def test_no_more_requests_are_open_than_the_engine_takes(client: FakeClient) -> None:
    with make_llm(client, max_open=3) as llm:
        prompts = [f"p{n}" for n in range(20)]
        assert texts(llm.generate(prompts, use_tqdm=False)) == prompts
    assert client.most_open == 3


# -- chat ----------------------------------------------------------------------------------------------


def test_chat_of_one_and_of_many(llm: LLM) -> None:
    one = [{"role": "user", "content": "hi"}]
    assert texts(llm.chat(one, use_tqdm=False)) == ["[user:hi]>"]
    assert texts(llm.chat([one, [*one, {"role": "assistant", "content": "yo"}]], use_tqdm=False)) == [
        "[user:hi]>",
        "[user:hi][assistant:yo]>",
    ]
    assert texts(llm.chat(one, SamplingParams(), False, add_generation_prompt=False)) == ["[user:hi]"]


def test_a_bad_chat_is_named(llm: LLM, client: FakeClient) -> None:
    good, bad = [{"role": "user", "content": "hi"}], [{"role": "user", "content": ""}]
    with pytest.raises(RequestError, match=r"^messages\[1\]: empty message"):
        llm.chat([good, bad], use_tqdm=False)
    with pytest.raises(RequestError, match=r"^empty message"):
        llm.chat(bad, use_tqdm=False)
    assert client.requests == []


def test_a_model_without_a_chat_template() -> None:
    with make_llm(chat=False) as llm, pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hi"}])


# -- progress ------------------------------------------------------------------------------------------


class RecordingBar:
    def __init__(self, total: int, **_: Any) -> None:
        self.total, self.done, self.closed, self.postfix = total, 0, False, ""

    def update(self, count: int) -> None:
        self.done += count

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.postfix = text

    def close(self) -> None:
        self.closed = True


def test_the_bar_counts_requests_and_speed(llm: LLM) -> None:
    bars: list[RecordingBar] = []
    llm.generate(["abc", "de"], use_tqdm=lambda **options: bars.append(RecordingBar(**options)) or bars[0])
    assert (bars[0].total, bars[0].done, bars[0].closed) == (2, 2, True)
    speed = float(bars[0].postfix.removeprefix("output: ").removesuffix(" tok/s"))
    assert 5 / 10 < speed < 5 / 0.001


def test_tqdm_draws_by_default_and_can_be_silent(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate("abc", use_tqdm=False)
    assert capsys.readouterr() == ("", "")
    llm.generate("abc")
    assert "1/1" in capsys.readouterr().err


# -- errors and interruption ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [EngineDeadError(), RequestError("refused")])
def test_the_first_error_ends_the_call_and_aborts_the_rest(error: Exception) -> None:
    def on_token(request: Any) -> None:
        if request.prompt == "bad":
            raise error

    client = FakeClient(on_token, hang=True)
    with make_llm(client) as llm:
        with pytest.raises(type(error)) as raised:
            llm.generate(["a", "bad", "c"], use_tqdm=False)
        assert raised.value is error
        assert len(client.left) == 3
        client.hang = False
        assert texts(llm.generate("again", use_tqdm=False)) == ["again"]


def test_ctrl_c_aborts_and_the_llm_can_go_on() -> None:
    client = FakeClient(hang=True)
    with make_llm(client) as llm:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], use_tqdm=False)
        assert len(client.left) == 2 and time.monotonic() - began < 2
        client.hang = False
        assert texts(llm.generate("again", use_tqdm=False)) == ["again"]


def test_from_a_running_event_loop(llm: LLM) -> None:
    async def notebook_cell() -> list[str]:
        return texts(llm.generate("abc", use_tqdm=False))

    assert asyncio.run(notebook_cell()) == ["abc"]


def test_from_several_threads(llm: LLM) -> None:
    got: dict[int, list[str]] = {}

    def work(n: int) -> None:
        got[n] = texts(llm.generate([f"{n}-{i}" for i in range(5)], use_tqdm=False))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert got == {n: [f"{n}-{i}" for i in range(5)] for n in range(4)}


# -- life ----------------------------------------------------------------------------------------------


def test_close_ends_all_and_may_be_called_twice(client: FakeClient) -> None:
    llm = make_llm(client)
    assert llm.stats().num_running == 0 and llm.engine_decision.chosen == "v0"
    llm.close()
    llm.close()
    assert client.closed == 1 and not llm_threads()
    for call in (lambda: llm.generate("a"), llm.stats):
        with pytest.raises(EngineDeadError, match="closed"):
            call()


def test_close_ends_calls_of_other_threads() -> None:
    """The fake does not end its streams as a real client does; even so nobody waits for ever."""
    llm = make_llm(FakeClient(hang=True))
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            llm.generate("a", use_tqdm=False)
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)
    llm.close()
    assert ended.wait(5)


def test_losing_the_last_reference_closes(client: FakeClient) -> None:
    llm = make_llm(client)
    llm.generate("a", use_tqdm=False)
    del llm
    gc.collect()
    assert client.closed == 1 and not llm_threads()


def test_a_failed_start_leaves_nothing_behind() -> None:
    client = FakeClient(start_error=StartupError("no such model"))
    with pytest.raises(StartupError, match="no such model"):
        make_llm(client)
    assert client.closed == 1 and not llm_threads()


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "llm.generate('a', use_tqdm=False)"])
def test_the_end_of_the_interpreter_closes(ending: str) -> None:
    code = f"""
from tests.entrypoints.fake_client import FakeClient, make_llm
class Client(FakeClient):
    async def close(self):
        print("closed", flush=True)
llm = make_llm(Client())
{ending}
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr, done.returncode) == ("closed\n", "", 3 if "3" in ending else 0)


# -- arguments and the package -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_model_length": 5}, "'max_model_length'; did you mean max_model_len"),
        ({"zzz": 5}, "known are model, "),
        ({"tensor_parallel_size": 2}, "Tensor parallelism"),
        ({"max_model_len": "5"}, "max_model_len must be int | None, not '5'"),
        ({"block_size": True}, "block_size must be int, not True"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
    ],
)
def test_arguments_are_checked_by_name_type_and_choice(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        LLM(**arguments)
    assert says in str(raised.value)


def test_importing_the_package_loads_next_to_nothing() -> None:
    code = "import sys, engine; print(engine.__version__, [m for m in sys.modules if m.startswith('engine.')])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert out == f"{version} []\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        engine.nothing  # noqa: B018
    assert set(engine.__all__) <= set(dir(engine))
