"""GGUF's quantized blocks -> plain tensors, vectorised in torch.

Owns the block layouts of llama.cpp (``ggml-quants.c``) that this package supports. Each value is
computed in float32 exactly as ``gguf.quants`` computes it, then rounded once to the wanted dtype.

A function below takes ``blocks`` [n, bytes of a block] uint8 and fills ``out`` [n, values of a block]
float32. Work goes in chunks that stay in the CPU's second-level cache, so the float32 values never
travel to memory: this is several times faster than whole tensors at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from gguf.constants import GGML_QUANT_SIZES

from engine.loader.gguf_file import GgufTensor

_CHUNK_VALUES = 1 << 18

_PLAIN_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
)


def dequantize(tensor: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of a stored tensor, of its shape, in ``dtype``, on the CPU.

    A tensor that is stored in ``dtype`` already is returned as a view of the mapped file.
    """
    stored = torch.from_numpy(tensor.data)  # [num_bytes]
    plain = _PLAIN_DTYPES.get(tensor.type.name)
    if plain is not None:
        return stored.view(plain).view(tensor.shape).to(dtype)
    block_values, block_bytes = GGML_QUANT_SIZES[tensor.type]
    unpack = _UNPACK[tensor.type.name]
    blocks = stored.view(-1, block_bytes)
    result = torch.empty(blocks.shape[0], block_values, dtype=dtype)
    step = _CHUNK_VALUES // block_values
    scratch = torch.empty(min(step, blocks.shape[0]), block_values)
    for start in range(0, blocks.shape[0], step):
        chunk = blocks[start : start + step]
        values = scratch[: chunk.shape[0]]
        unpack(chunk, values)
        result[start : start + step] = values
    return result.view(tensor.shape)


def _halves(blocks: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """``count`` float16 numbers from byte ``start`` of each block, as [n, count] float32."""
    return blocks[:, start : start + 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """[n, groups, width] bytes -> ``out`` [n, groups, 2, width]: all low halves, then all high ones."""
    out[:, :, 0] = packed & 15
    out[:, :, 1] = packed >> 4


def _bits(packed: torch.Tensor, out: torch.Tensor, width: int) -> None:
    """[n, groups, bytes] -> ``out`` [n, groups, 8 / width, bytes]: ``width`` bits at a time, lowest first."""
    for part in range(8 // width):
        out[:, :, part] = (packed >> (part * width)) & ((1 << width) - 1)


def _fifth_bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The 32 bits of a Q5_0 or Q5_1 block, one a value, times 16: [n, 1, 2, 16] uint8."""
    bits = torch.empty(blocks.shape[0], 4, 8, dtype=torch.uint8)  # [n, byte, bit]
    for bit in range(8):
        bits[:, :, bit] = ((blocks[:, start : start + 4] >> bit) & 1) << 4
    return bits.view(-1, 1, 2, 16)


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, None, 2:], out.view(-1, 1, 2, 16))
    out.sub_(8).mul_(_halves(blocks, 0, 1))


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scale, minimum = _halves(blocks, 0, 2).chunk(2, dim=1)
    _nibbles(blocks[:, None, 4:], out.view(-1, 1, 2, 16))
    torch.addcmul(minimum, scale, out, out=out)


def _q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    values = out.view(-1, 1, 2, 16)
    _nibbles(blocks[:, None, 6:], values)
    values.add_(_fifth_bits(blocks, 2))
    out.sub_(16).mul_(_halves(blocks, 0, 1))


def _q5_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scale, minimum = _halves(blocks, 0, 2).chunk(2, dim=1)
    values = out.view(-1, 1, 2, 16)
    _nibbles(blocks[:, None, 8:], values)
    values.add_(_fifth_bits(blocks, 4))
    torch.addcmul(minimum, scale, out, out=out)


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(blocks[:, 2:].view(torch.int8), _halves(blocks, 0, 1), out=out)


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum of each 32 values of a Q4_K or Q5_K block: two [n, 8, 1] float32.

    Twelve bytes hold eight scales and eight minima of six bits. Four of each have their bits
    together; the others' low four bits share bytes 8 to 11, and their high bits top the first eight.
    """
    scale, minimum = _halves(blocks, 0, 2).chunk(2, dim=1)  # [n, 1] each
    low, high, rest = blocks[:, 4:16].chunk(3, dim=1)  # [n, 4] each
    scales = torch.cat((low & 63, (rest & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((high & 63, (rest >> 4) | ((high >> 2) & 48)), dim=1)
    return (scale * scales).unsqueeze(2), (minimum * minima).unsqueeze(2)


def _q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, minima = _k_scales(blocks)
    _nibbles(blocks[:, 16:].view(-1, 4, 32), out.view(-1, 4, 2, 32))
    values = out.view(-1, 8, 32)
    torch.addcmul(minima.neg_(), scales, values, out=values)


def _q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, minima = _k_scales(blocks)
    values = out.view(-1, 8, 32)
    fifth = torch.empty(values.shape, dtype=torch.uint8)
    _bits(blocks[:, None, 16:48], fifth.unsqueeze(1), 1)
    _nibbles(blocks[:, 48:].view(-1, 4, 32), out.view(-1, 4, 2, 32))
    values.add_(fifth.mul_(16))
    torch.addcmul(minima.neg_(), scales, values, out=values)


def _q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    high = torch.empty(blocks.shape[0], 2, 4, 32, dtype=torch.uint8)
    _bits(blocks[:, 128:192].view(-1, 2, 32), high, 2)
    _nibbles(blocks[:, :128].view(-1, 2, 64), out.view(-1, 2, 2, 64))
    out.add_(high.mul_(16).view(-1, 256)).sub_(32)
    scales = blocks[:, 192:208].view(torch.int8) * _halves(blocks, 208, 1)  # [n, 16]
    out.view(-1, 16, 16).mul_(scales.unsqueeze(2))


_UNPACK: Mapping[str, Callable[[torch.Tensor, torch.Tensor], None]] = MappingProxyType(
    {
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
    }
)
