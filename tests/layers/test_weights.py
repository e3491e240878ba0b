"""engine/layers: each parameter takes exactly the tensors that belong in it."""

import pytest
import torch
from torch import nn

from engine.errors import ModelError
from engine.layers.embedding import LMHead, VocabEmbedding
from engine.layers.linear import Linear, MergedLinear, QKVLinear
from engine.layers.norm import RMSNorm


def load(layer: nn.Module, name: str, tensor: torch.Tensor, shard: str | None = None) -> None:
    param = layer.get_parameter(name)
    param.weight_loader(param, tensor, shard)  # type: ignore[attr-defined]


def test_merged_parts_land_in_their_rows() -> None:
    layer = QKVLinear(8, num_heads=4, num_kv_heads=2, head_dim=3, bias=True)
    parts = {"q": torch.randn(12, 8), "k": torch.randn(6, 8), "v": torch.randn(6, 8)}
    for shard, part in reversed(parts.items()):  # files have any order
        load(layer, "weight", part, shard)
        load(layer, "bias", part[:, 0], shard)
    x = torch.randn(5, 8)
    expected = torch.cat([x @ part.T + part[:, 0] for part in parts.values()], dim=1)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("shard", ["v", None])
def test_a_merged_weight_refuses_parts_it_does_not_have(shard: str | None) -> None:
    layer = MergedLinear(4, {"gate": 2, "up": 2})
    with pytest.raises(ModelError, match="in the parts gate, up, not"):
        load(layer, "weight", torch.zeros(2, 4), shard)


def test_wrong_shapes_are_refused_not_broadcast() -> None:
    cases: list[tuple[nn.Module, str, torch.Tensor, str | None]] = [
        (Linear(4, 3), "weight", torch.zeros(1, 4), None),
        (Linear(4, 3, bias=True), "bias", torch.zeros(1), None),
        (MergedLinear(4, {"gate": 2, "up": 2}), "weight", torch.zeros(4), "up"),
        (RMSNorm(4, 1e-6), "weight", torch.zeros(1), None),
        (VocabEmbedding(5, 4), "weight", torch.zeros(4), None),
    ]
    for layer, name, tensor, shard in cases:
        with pytest.raises(ModelError, match="where the model needs"):
            load(layer, name, tensor, shard)


def test_loading_converts_the_number_format() -> None:
    layer = Linear(4, 3)
    load(layer, "weight", torch.ones(3, 4, dtype=torch.bfloat16))
    weight = layer.get_parameter("weight")
    assert weight.dtype == torch.float32
    assert torch.equal(weight, torch.ones(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 7, 64])
def test_packing_does_not_change_the_product(dtype: torch.dtype, num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((96, 64), (96,), (num_tokens, 64))
    )
    layer = Linear(64, 96, bias=True).to(dtype)
    load(layer, "weight", weight)
    load(layer, "bias", bias)
    layer.pack()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    expected = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    torch.testing.assert_close(layer(x).float(), expected, rtol=tolerance, atol=tolerance * 8)


def test_a_packed_head_and_its_tied_embedding_share_one_weight() -> None:
    embedding, head = VocabEmbedding(32, 16).to(torch.bfloat16), LMHead(32, 16)
    head.tie(embedding)
    assert head.weight is embedding.weight
    rows = torch.randn(32, 16).bfloat16()
    load(head, "weight", rows)
    head.pack()
    embedding.share_packed(head)
    assert embedding.weight is head.weight
    assert torch.equal(embedding(torch.tensor([3, 31])), rows[[3, 31]])
    x = torch.randn(2, 16).bfloat16()
    torch.testing.assert_close(head(x), x @ rows.T, rtol=2e-2, atol=0.1)
