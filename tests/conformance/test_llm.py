"""Offline ``LLM`` with real engines."""

from __future__ import annotations

import json

import pytest

from engine import LLM, SamplingParams
from engine.errors import RequestError
from tests.support.reference import greedy


@pytest.fixture(scope="module", params=["0", "1"])
def llm(request: pytest.FixtureRequest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINE_V1", request.param)
        made = LLM(dtype="float32", max_model_len=512)
    with made:
        yield made


def test_generate_keeps_order_and_takes_text_and_ids(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("The capital of France is")
    params = SamplingParams(temperature=0.0, max_tokens=8)
    outputs = llm.generate(["The capital of France is", "One two three four"], params, use_tqdm=False)
    (from_ids,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == from_ids.outputs[0].token_ids == greedy(ids, 8)
    assert outputs[0].prompt == "The capital of France is" and outputs[0].finished
    assert outputs[1].outputs[0].token_ids == greedy(outputs[1].prompt_token_ids, 8)


def test_chat(llm: LLM) -> None:
    (output,) = llm.chat(
        [{"role": "user", "content": "What is the capital of France?"}],
        SamplingParams(temperature=0.0, max_tokens=32),
        use_tqdm=False,
    )
    assert "Paris" in output.outputs[0].text


def test_a_list_of_params_is_one_a_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (2, 5, 3)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [2, 5, 3]


def test_a_bad_prompt_is_named_and_nothing_breaks(llm: LLM) -> None:
    with pytest.raises(RequestError):
        llm.generate([{"prompt_token_ids": [1]}, {"prompt_token_ids": [10**7]}], use_tqdm=False)
    assert llm.generate("still here", SamplingParams(max_tokens=1), use_tqdm=False)


def test_dummy_weights_and_no_tokenizer(tmp_path, monkeypatch) -> None:
    """The benchmark use: a config alone, token ids in and out."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    got = {}
    for engine in ("0", "1"):
        monkeypatch.setenv("ENGINE_V1", engine)
        with LLM(
            model=str(tmp_path),
            load_format="dummy",
            skip_tokenizer_init=True,
            seed=3,
            max_model_len=128,
            dtype="float32",
        ) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
            (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
            got[engine] = output.outputs[0].token_ids
    assert got["0"] == got["1"] and len(got["0"]) == 8
