"""What the two kinds of configuration become, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import Architecture, ModelSource
from engine.errors import ModelError
from engine.loader.architecture import num_parameters, read_architecture
from engine.loader.huggingface_config import FAMILIES, huggingface_architecture
from engine.loader.source import find_model
from tests.loader.small_models import (
    HEAD_DIM,
    HIDDEN,
    VOCAB,
    SmallModel,
    hf_config,
    write_gguf,
    write_safetensors,
)

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def parse(**changes: Any) -> Architecture:
    return huggingface_architecture(hf_config(**changes), {})


def parse_gguf(path: Path, arch: str = "llama", **changes: Any) -> Architecture:
    tensors = changes.pop("tensors", None)
    metadata = {key.replace("__", "."): value for key, value in changes.items()}
    return read_architecture(find_model(str(write_gguf(path / "m.gguf", arch, metadata, tensors)), "auto", ""))


def test_a_llama_config() -> None:
    assert parse() == Architecture(
        family="llama",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        max_position=128,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=True,
        sliding_window=None,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(2,),
        bos_token_id=1,
    )


@pytest.mark.parametrize("class_name", FAMILIES)
def test_defaults_are_those_of_transformers(class_name: str) -> None:
    """The smallest config of each class, read by us and by transformers."""
    import transformers

    config = getattr(transformers, class_name.replace("ForCausalLM", "Config"))()
    ours = huggingface_architecture(
        {
            "architectures": [class_name],
            **{name: getattr(config, name) for name in ("vocab_size", "hidden_size", "intermediate_size")},
            **{name: getattr(config, name) for name in ("num_hidden_layers", "num_attention_heads")},
            "num_key_value_heads": config.num_key_value_heads,
        },
        {},
    )
    assert ours.max_position == config.max_position_embeddings
    assert ours.rms_norm_eps == config.rms_norm_eps
    assert ours.tie_word_embeddings == config.tie_word_embeddings
    assert ours.sliding_window == config.sliding_window if class_name == "MistralForCausalLM" else True
    assert ours.head_dim == getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    assert ours.rope_theta == config.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"num_key_value_heads": None}, "num_kv_heads", 4),
        ({"head_dim": 32}, "head_dim", 32),
        ({"attention_bias": True}, "attention_bias", True),
        ({"mlp_bias": True}, "mlp_bias", True),
        ({"eos_token_id": [2, 3, 2]}, "eos_token_ids", (2, 3)),
        ({"eos_token_id": None}, "eos_token_ids", ()),
        ({"bos_token_id": None}, "bos_token_id", None),
        ({"rope_theta": 500000}, "rope_theta", 500000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}, "rope_theta": None}, "rope_theta", 7e4),
        ({"architectures": ["MistralForCausalLM"]}, "sliding_window", 4096),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, "sliding_window", None),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 9}, "sliding_window", 9),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias", False),
        ({"architectures": ["Qwen2ForCausalLM"]}, "attention_bias", True),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}, "sliding_window", None),
        ({"architectures": ["Qwen3ForCausalLM"]}, "head_dim", 128),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "family", "llama"),
    ],
)
def test_fields_of_config_json(changes: dict[str, Any], field: str, value: object) -> None:
    assert getattr(parse(**changes), field) == value


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"max_window_layers": 0}, 9),
        ({"max_window_layers": 2}, None),
        ({"layer_types": ["sliding_attention"] * 2}, 9),
        ({"layer_types": ["full_attention"] * 2}, None),
    ],
)
@pytest.mark.parametrize("class_name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_sliding_window_on_all_layers_or_none(
    class_name: str, changes: dict[str, Any], window: int | None
) -> None:
    asked = {"architectures": [class_name], "use_sliding_window": True, "sliding_window": 9}
    assert parse(**asked, **changes).sliding_window == window
    with pytest.raises(ModelError, match="some layers only"):
        parse(**asked, max_window_layers=1)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("rope", "expected", "max_position"),
    [
        ({"type": "linear", "factor": 4}, {"kind": "linear", "factor": 4.0, "original_max_position": 128}, 512),
        ({"rope_type": "dynamic", "factor": 2.0}, {"kind": "dynamic", "original_max_position": 128}, 256),
        (
            {"rope_type": "llama3", **LLAMA3},
            {"kind": "llama3", "factor": 8.0, "original_max_position": 64, "high_freq_factor": 4.0},
            128,
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            {"kind": "yarn", "original_max_position": 64, "beta_fast": 32.0, "attention_factor": None},
            256,
        ),
        ({"rope_type": "yarn", "original_max_position_embeddings": 32}, {"factor": 4.0}, 128),
        (
            {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16},
            {"attention_factor": pytest.approx(1.138629 / 1.0693147), "beta_fast": 16.0},
            512,
        ),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}, {"attention_factor": 1.5}, 512),
    ],
)
def test_rope_scaling(key: str, rope: dict[str, Any], expected: dict[str, Any], max_position: int) -> None:
    architecture = parse(**{key: rope})
    for field, value in expected.items():
        assert getattr(architecture.rope_scaling, field) == value
    assert architecture.max_position == max_position
    assert architecture.rope_theta == 10000.0


def test_the_original_context_at_the_top_level_comes_first() -> None:
    scaling = parse(original_max_position_embeddings=32, rope_scaling={"rope_type": "llama3", **LLAMA3}).rope_scaling
    assert scaling is not None
    assert scaling.original_max_position == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures is .*GPT2.*supported are LlamaForCausalLM, Mistral"),
        ({"architectures": ["X"], "auto_map": {"a": "b"}}, "auto_map.* is never run"),
        ({"architectures": None}, "architectures is None"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architectures"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 0}, "hidden_size is 0; it must be an integer from 1 to"),
        ({"hidden_size": 66}, "no multiple of the 4 attention heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers is 2.0"),
        ({"head_dim": 1 << 20}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"eos_token_id": VOCAB}, "eos_token_id is 50"),
        ({"eos_token_id": [1, -1]}, "eos_token_id"),
        ({"bos_token_id": [1, 2]}, "bos_token_id"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .* is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type is 'longrope'; supported are default"),
        ({"rope_scaling": {"rope_type": 5}}, "rope_type"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]; it must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "rope_scaling.factor is nan"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "above low_freq_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "layer_types": ["chunked_attention"] * 2,
            },
            "layer_types has 'chunked_attention'",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 1, 1]}}, "mrope_section"),
    ],
)
def test_what_config_json_may_not_say(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        parse(**changes)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("changes", "message"), [({"num_key_value_heads": 3}, "must be a multiple"), ({"head_dim": 17}, "need an even one")]
)
def test_heads_that_cannot_work(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config(**changes)))
    with pytest.raises(ModelError, match=message):
        read_architecture(ModelSource(kind="huggingface", path=str(tmp_path), files=()))


@pytest.mark.parametrize("content", ["", "{", "null", "[1]", "[" * 200_000, '{"a": 1' + "0" * 5000 + "}", "\xff"])
def test_a_config_that_is_no_json_object(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, "latin-1")
    with pytest.raises(ModelError, match=r"config\.json"):
        read_architecture(ModelSource(kind="huggingface", path=str(tmp_path), files=()))


def test_a_config_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(ModelError, match="larger than 4 MiB"):
        read_architecture(ModelSource(kind="huggingface", path=str(tmp_path), files=()))


def test_end_tokens_also_come_from_the_generation_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config()))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_architecture(find_model(str(tmp_path), "dummy", "")).eos_token_ids == (2, 7)


def test_a_description_larger_than_the_weights_is_refused(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m")
    assert read_architecture(find_model(str(directory), "auto", "")).hidden_size == HIDDEN
    (directory / "config.json").write_text(json.dumps(hf_config(intermediate_size=200_000, num_hidden_layers=1000)))
    with pytest.raises(ModelError, match=r"describes .* weights, but its files hold at most"):
        read_architecture(find_model(str(directory), "auto", ""))
    with pytest.raises(ModelError, match=r"describes .* weights, but its files hold at most"):
        parse_gguf(tmp_path, llama__block_count=1000)


def test_the_number_of_parameters() -> None:
    matrices = sum(p.numel() for p in SmallModel().parameters() if p.ndim == 2)
    assert num_parameters(parse()) == matrices
    assert num_parameters(parse(tie_word_embeddings=False)) == matrices + VOCAB * HIDDEN


def test_a_gguf_file_says_the_same_as_a_config(tmp_path: Path) -> None:
    found = parse_gguf(tmp_path)
    assert found.rms_norm_eps == pytest.approx(1e-5)
    assert {**fields(found), "rms_norm_eps": 1e-5} == fields(parse())


def fields(architecture: Architecture) -> dict[str, Any]:
    return {name: getattr(architecture, name) for name in Architecture.__dataclass_fields__}


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"llama__attention__key_length": 16, "llama__attention__value_length": 16}, "head_dim", 16),
        ({"llama__attention__head_count_kv": None}, "num_kv_heads", 4),
        ({"llama__attention__sliding_window": 9}, "sliding_window", 9),
        ({"tokenizer__ggml__eot_token_id": 7}, "eos_token_ids", (2, 7)),
        ({"tokenizer__ggml__bos_token_id": None}, "bos_token_id", None),
        ({"llama__rope__freq_base": None}, "rope_theta", 10000.0),
        ({"tensors": {"output.weight": np.ones((VOCAB, HIDDEN), np.float32)}}, "tie_word_embeddings", False),
        ({"tensors": {"blk.0.attn_q.bias": np.ones(64, np.float32)}}, "attention_bias", True),
    ],
)
def test_keys_of_a_gguf_file(tmp_path: Path, changes: dict[str, Any], field: str, value: object) -> None:
    if field == "num_kv_heads":  # four heads of keys and values need larger matrices
        weight = np.ones((64, HIDDEN), np.float32)
        changes = {**changes, "tensors": {f"blk.{i}.attn_{p}.weight": weight for i in (0, 1) for p in "kv"}}
    assert getattr(parse_gguf(tmp_path, **changes), field) == value


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_the_other_gguf_architectures(tmp_path: Path, arch: str) -> None:
    assert parse_gguf(tmp_path, arch).family == arch


def test_gguf_rope_scaling(tmp_path: Path) -> None:
    linear = parse_gguf(tmp_path, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    assert linear.rope_scaling is not None
    assert (linear.rope_scaling.kind, linear.rope_scaling.factor, linear.max_position) == ("linear", 4.0, 512)
    assert parse_gguf(tmp_path, llama__rope__scaling__factor=4.0).rope_scaling == linear.rope_scaling
    yarn = parse_gguf(
        tmp_path,
        llama__rope__scaling__type="yarn",
        llama__rope__scaling__factor=4.0,
        llama__rope__scaling__original_context_length=32,
        llama__rope__scaling__attn_factor=2.0,
    )
    assert yarn.rope_scaling is not None
    assert (yarn.rope_scaling.kind, yarn.rope_scaling.original_max_position, yarn.max_position) == ("yarn", 32, 128)
    assert yarn.rope_scaling.attention_factor == pytest.approx(2 * 1.1386294)


def test_llama_3_scaling_baked_into_a_gguf_file(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    scaling = parse_gguf(tmp_path, tensors={"rope_freqs.weight": factors}).rope_scaling
    assert scaling is not None
    assert scaling.kind == "factors"
    assert scaling.factors == tuple(factors.tolist())
    for bad in (factors[1:], np.zeros_like(factors), np.full_like(factors, np.nan)):
        with pytest.raises(ModelError, match=r"rope_freqs\.weight must hold 8 positive"):
            parse_gguf(tmp_path, tensors={"rope_freqs.weight": bad})
    with pytest.raises(ModelError, match="both"):
        parse_gguf(
            tmp_path,
            tensors={"rope_freqs.weight": factors},
            llama__rope__scaling__type="linear",
            llama__rope__scaling__factor=2.0,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__block_count": None}, r"llama\.block_count is missing"),
        ({"llama__block_count": "two"}, r"llama\.block_count is 'two'"),
        ({"llama__attention__head_count": [4, 4]}, r"head_count is \[4, 4\]"),
        ({"llama__attention__head_count_kv": 0}, "head_count_kv is 0"),
        ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
        ({"llama__embedding_length": 32}, r"token_embd\.weight has the shape \[50, 64\]"),
        ({"llama__expert_count": 8}, "expert_count = 8 is not supported"),
        ({"llama__rope__dimension_count": 8}, "dimension_count = 8"),
        ({"llama__attention__value_length": 8}, "value_length = 8"),
        ({"llama__attention__causal": False}, "causal = False"),
        ({"llama__logit_scale": 2.0}, "logit_scale"),
        ({"llama__rope__scale_linear": 4.0}, "scale_linear"),
        ({"llama__rope__scaling__type": "longrope"}, "type is 'longrope'"),
        ({"split__count": 3}, "gguf-split --merge"),
        ({"tokenizer__ggml__eos_token_id": 50}, "eos_token_id is 50"),
        ({"tensors": {"token_embd.weight": None}}, "no tensor token_embd"),
    ],
)
def test_what_a_gguf_file_may_not_say(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_gguf(tmp_path, **changes)


def test_an_unsupported_gguf_architecture(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="architecture is 'gemma'; supported are llama, qwen2, qwen3"):
        parse_gguf(tmp_path, "gemma")
