"""Weights reach their parameters, each exactly once, from every kind of file."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from torch import nn

from engine.errors import ModelError
from engine.loader.architecture import read_architecture
from engine.loader.gguf_weights import gguf_weights, huggingface_name
from engine.loader.load import load_weights
from engine.loader.source import find_model
from tests.loader.small_models import (
    HEADS,
    HIDDEN,
    VOCAB,
    SmallModel,
    model_config,
    random_weights,
    tensor_names,
    write_gguf,
    write_safetensors,
)


def load(path: Path, model: SmallModel | None = None, **changes: Any) -> SmallModel:
    source = find_model(str(path), changes.get("load_format", "auto"), "")
    model = model or SmallModel()
    load_weights(model, model_config(source, read_architecture(source), **changes))
    return model


def assert_holds(model: SmallModel, weights: dict[str, np.ndarray]) -> None:
    held = model.weights()
    assert held.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(held[name].float().numpy(), values, err_msg=name)


def test_sharded_safetensors(tmp_path: Path) -> None:
    assert_holds(load(write_safetensors(tmp_path / "m")), random_weights())


def test_gguf_restores_the_order_of_query_and_key_rows(tmp_path: Path) -> None:
    assert_holds(load(write_gguf(tmp_path / "m.gguf")), random_weights())


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_other_gguf_architectures_are_not_reordered(tmp_path: Path, arch: str) -> None:
    assert_holds(load(write_gguf(tmp_path / "m.gguf", arch)), random_weights())


def test_gguf_biases_are_reordered_too(tmp_path: Path) -> None:
    """Each head's bias (x0 x1 ... y0 y1 ...) is stored as (x0 y0 x1 y1 ...)."""
    bias = np.arange(64, dtype=np.float32)
    stored = bias.reshape(HEADS, 2, 8).swapaxes(1, 2).reshape(64)
    source = find_model(str(write_gguf(tmp_path / "m.gguf", tensors={"blk.0.attn_q.bias": stored})), "auto", "")
    held = dict(gguf_weights(model_config(source, read_architecture(source)), num_workers=1))
    assert held["model.layers.0.self_attn.q_proj.bias"].tolist() == bias.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_quantized_gguf_in_the_dtype_of_the_model(tmp_path: Path, dtype: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", quantization=GGMLQuantizationType.Q8_0)
    model = load(path, SmallModel(getattr(torch, dtype)), dtype=dtype)
    for name, values in model.weights().items():
        assert values.dtype == getattr(torch, dtype)
        np.testing.assert_allclose(values.float().numpy(), random_weights()[name], atol=0.05)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_safetensors_are_converted_to_the_parameters_dtype(tmp_path: Path, stored: torch.dtype) -> None:
    directory = write_safetensors(tmp_path / "m")
    for shard in directory.glob("*.safetensors"):
        save_file({name: tensor.to(stored) for name, tensor in load_file(shard).items()}, shard)
    for name, values in load(directory).weights().items():
        assert values.dtype == torch.float32
        assert torch.equal(values, torch.from_numpy(random_weights()[name]).to(stored).float())


def test_loading_leaves_the_number_of_threads_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        load(write_gguf(tmp_path / "m.gguf"))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def change_shard(directory: Path, changes: dict[str, torch.Tensor | None]) -> None:
    shard = directory / "model-00001-of-00002.safetensors"
    tensors = load_file(shard) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, shard)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.extra.weight": torch.ones(2)},
            r"tensor 'model\.extra\.weight' of shape \[2\], which the model has no",
        ),
        ({"model.embed_tokens.weight": None}, r"lists 1 tensors that the files do not hold \('model\.embed_tokens"),
        ({"model.embed_tokens.weight": torch.ones(3, 2)}, r"embed_tokens\.weight has the shape \[3, 2\].*\[50, 64\]"),
        ({"model.embed_tokens.weight": torch.ones(1)}, r"embed_tokens\.weight has the shape \[1\]"),
        ({"model.embed_tokens.weight": torch.ones(50, 64, dtype=torch.int8)}, "dtype I8; supported are F32, F16, BF16"),
        ({"model.embed_tokens.weight": torch.ones(50, 64, dtype=torch.float64)}, "dtype F64"),
        ({"model.norm.weight": torch.ones(HIDDEN)}, r"'model\.norm\.weight' twice"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, changes: dict[str, torch.Tensor | None], message: str) -> None:
    directory = write_safetensors(tmp_path / "m")
    change_shard(directory, changes)
    with pytest.raises(ModelError, match=message):
        load(directory)


def test_harmless_extras_are_skipped(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m")
    inverse_frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    change_shard(directory, {**inverse_frequencies, "lm_head.weight": torch.zeros(VOCAB, HIDDEN)})
    assert_holds(load(directory), random_weights())


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m", {n: w for n, w in random_weights().items() if "layers.1" not in n})
    (directory / "padding.safetensors").write_bytes(b"")
    (directory / "config.json").write_text(
        (directory / "config.json").read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 1')
    )
    with pytest.raises(ModelError, match=r"lack 9 tensors: model\.layers\.1\.input_layernorm\.weight, .*, \.\.\.;"):
        load(directory)


def test_a_parameters_own_complaint_names_the_tensor(tmp_path: Path) -> None:
    model = SmallModel()

    def refuse(param: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        raise ModelError(f"no room for {shard}")

    model.get_parameter("model.layers.0.self_attn.qkv_proj.weight").weight_loader = refuse  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match=r"Tensor model\.layers\.0\.self_attn\.(\w)_proj\.weight: no room for \1"):
        load(write_safetensors(tmp_path / "m"), model)


def test_gguf_names() -> None:
    for name, (stored, _) in tensor_names().items():
        assert huggingface_name(stored) == name
    assert huggingface_name("blk.17.attn_k_norm.weight") == "model.layers.17.self_attn.k_norm.weight"
    assert huggingface_name("blk.3.attn_v.bias") == "model.layers.3.self_attn.v_proj.bias"
    for unknown in ("blk.0.ffn_gate_inp.weight", "blk.x.attn_q.weight", "blk.0.attn_q", "", "v.blk.0.attn_q.weight"):
        with pytest.raises(ModelError, match="no place"):
            huggingface_name(unknown)


def test_dummy_weights_depend_on_seed_and_name_only(tmp_path: Path) -> None:
    (directory := write_safetensors(tmp_path / "m")).joinpath("model.safetensors.index.json").unlink()
    first, again, other = (load(directory, load_format="dummy", seed=seed).weights() for seed in (0, 0, 1))
    name = "model.layers.1.mlp.up_proj.weight"
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first["model.layers.0.mlp.up_proj.weight"])
    assert 0.015 < first[name].std() < 0.025
    assert torch.equal(first["model.layers.0.input_layernorm.weight"], torch.ones(HIDDEN))


class Reversed(SmallModel):
    """Lists its parameters backwards."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return reversed(list(super().named_parameters(*args, **kwargs)))


def test_dummy_weights_do_not_depend_on_order(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m")
    plain = load(directory, load_format="dummy").weights()
    backwards = load(directory, Reversed(), load_format="dummy").weights()
    assert all(torch.equal(plain[name], backwards[name]) for name in plain)


def hostile_safetensors(valid: bytes) -> list[bytes]:
    """Lies about lengths, offsets, shapes and dtypes; broken JSON; truncations; random bytes."""
    length = struct.unpack("<Q", valid[:8])[0]
    header, body = json.loads(valid[8 : 8 + length]), valid[8 + length :]

    def packed(changed: object) -> bytes:
        text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        return struct.pack("<Q", len(text)) + text + body

    mutants = [
        struct.pack("<Q", n) + valid[8:] for n in (0, 1, length - 1, length + 1, 1 << 30, 1 << 63, (1 << 64) - 1)
    ]
    mutants += [valid[:cut] for cut in (0, 1, 7, 8, 9, length, 8 + length, len(valid) - 1)] + [valid + b"x"]
    name = next(n for n in header if n != "__metadata__")
    lies: list[dict[str, Any]] = [
        {"data_offsets": [0, 1 << 62]},
        {"data_offsets": [10, 0]},
        {"data_offsets": [-1, 4]},
        {"data_offsets": [0, 0]},
        {"data_offsets": [0]},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [-1]},
        {"shape": []},
        {"shape": [[1]]},
        {"dtype": "F7"},
        {"dtype": None},
    ]
    mutants += [packed(header | {name: header[name] | lie}) for lie in lies]
    mutants += [packed(text) for text in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000)]
    rng = np.random.default_rng(0)
    for _ in range(200):
        mutant = bytearray(valid)
        for position in rng.integers(0, 8 + length, 3):
            mutant[position] = rng.integers(256)
        mutants.append(bytes(mutant))
    return mutants


def test_hostile_safetensors(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m")
    shard = directory / "model-00002-of-00002.safetensors"
    for mutant in hostile_safetensors(shard.read_bytes()):
        shard.write_bytes(mutant)
        started = time.process_time()
        try:
            load(directory)
        except ModelError as error:
            assert "\n" not in str(error)
        assert time.process_time() - started < 1.0


def test_hostile_gguf_never_leaves_a_parameter_unset(tmp_path: Path) -> None:
    """Bytes of the header changed at random: a refusal, or a model without holes."""
    path = write_gguf(tmp_path / "m.gguf", quantization=GGMLQuantizationType.Q8_0)
    valid, rng = path.read_bytes(), np.random.default_rng(0)
    end = valid.rindex(b"blk.1.") + 64
    for _ in range(300):
        mutant = bytearray(valid)
        mutant[rng.integers(4, end)] = rng.integers(256)
        path.write_bytes(bytes(mutant))
        try:
            model = load(path)
        except ModelError:
            continue
        assert not any(parameter.isnan().any() for parameter in model.parameters())
