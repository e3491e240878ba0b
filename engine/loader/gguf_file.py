"""``GgufFile``: a GGUF file's metadata and tensors, with nothing in it trusted. Torch-free.

Owns the checks. The ``gguf`` package reads the format; ``_Reader`` puts bounds under it and
replaces its parsing of arrays, which makes a Python object of every string (2 s for the
vocabulary of a small model, against 20 ms for stepping over it here).

Every count, length and offset is a Python int compared with the file's size before anything is
allocated for it. What it means is not this module's business: see ``gguf_config`` and
``gguf_weights``. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.gguf_reader import GGUFReader, ReaderField

from engine.errors import ModelError
from engine.loader.fields import show

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

MAX_KEYS = 4096
MAX_TENSORS = 16384
MAX_STRING_BYTES = 1 << 20
MAX_ARRAY_LENGTH = 1 << 20
#: Bytes of keys and values: bounds the time a file of nothing but strings can take.
MAX_METADATA_BYTES = 64 << 20
MAX_DIMS = 4
MIN_ALIGNMENT = 8

_HEADER = struct.Struct("<4sIQQ")
_LENGTH = struct.Struct("<Q")


class _Malformed(ValueError):
    """A bound does not hold; the text goes into the ``ModelError``."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One stored tensor; ``shape`` is row-major, so a linear weight is ``(out, in)``."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    #: The stored bytes, quantized blocks of the last dimension end to end: [num_bytes] uint8.
    data: npt.NDArray[np.uint8]


class GgufFile:
    """An open GGUF file. Keeps the file mapped as long as it, or the data of a tensor, is referenced.

    Raises:
        ModelError: the file cannot be read, is not GGUF, is truncated, contradicts itself, or
            holds a tensor type outside ``SUPPORTED_TYPES``.
    """

    def __init__(self, path: str) -> None:
        name = os.path.basename(path)
        try:
            _check_header(path)
            reader = _Reader(path)
        except _Malformed as problem:
            raise ModelError(f"{name}: {problem}") from None
        except OSError as error:
            raise ModelError(f"{name} cannot be read ({error.strerror}); check the path.") from None
        except (ValueError, KeyError, IndexError, TypeError, OverflowError):
            # What the gguf package itself objects to: unknown value types, duplicate keys, bad UTF-8.
            raise ModelError(f"{name} has a malformed GGUF header; download it again.") from None
        self.metadata: Mapping[str, Any] = _Metadata(reader, name)
        self.tensors: dict[str, GgufTensor] = {tensor.name: tensor for tensor in reader.checked_tensors}


def _check_header(path: str) -> None:
    """Magic, version and counts, in words of our own rather than the package's."""
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
    if head[:4] != b"GGUF":
        raise _Malformed("is not a GGUF file (it does not begin with GGUF); give a GGUF file or a model directory.")
    if len(head) < _HEADER.size:
        raise _Malformed(f"is truncated after {len(head)} bytes; download it again.")
    _, version, num_tensors, num_keys = _HEADER.unpack(head)
    if version not in (2, 3):
        raise _Malformed(f"has GGUF version {version}; versions 2 and 3, little-endian, are supported.")
    if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
        raise _Malformed(
            f"claims {num_tensors} tensors and {num_keys} keys; at most {MAX_TENSORS} and {MAX_KEYS} are allowed."
        )


class _Reader(GGUFReader):
    """The package's reader with bounds, whole arrays as one part each, and checked tensors."""

    def __init__(self, path: str) -> None:
        self.checked_tensors: list[GgufTensor] = []
        # Copy-on-write: torch warns about views of read-only memory. Nothing ever writes.
        super().__init__(path, "c")

    def _get(
        self,
        offset: int,
        dtype: npt.DTypeLike,
        count: int = 1,
        override_order: Literal["I", "S", "<"] | None = None,
    ) -> npt.NDArray[Any]:
        kind = np.dtype(dtype)
        self._require(offset, int(count) * kind.itemsize)
        return np.frombuffer(self.data, kind, int(count), offset)

    def _require(self, offset: int, num_bytes: int) -> None:
        if offset + num_bytes > self.data.nbytes:
            raise _Malformed(
                f"is truncated or malformed: {num_bytes} bytes are needed at offset {offset} "
                f"of {self.data.nbytes}; download it again."
            )

    def _get_str(self, offset: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        length = self._get(offset, np.uint64)
        if int(length[0]) > MAX_STRING_BYTES:
            raise _Malformed(f"has a string of {length[0]} bytes; at most {MAX_STRING_BYTES} are allowed.")
        return length, self._get(offset + 8, np.uint8, int(length[0]))

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        if int(raw_type) != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        length = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + 12
        if item == GGUFValueType.ARRAY:
            raise _Malformed("has an array of arrays in its metadata, which is not supported.")
        if length > MAX_ARRAY_LENGTH:
            raise _Malformed(f"has an array of {length} values; at most {MAX_ARRAY_LENGTH} are allowed.")
        if item == GGUFValueType.STRING:
            payload = self._get(start, np.uint8, self._strings_end(start, length) - start)
        else:
            payload = self._get(start, self.gguf_scalar_to_np[item], length)
        if start + payload.nbytes > MAX_METADATA_BYTES:
            raise _Malformed(f"has more than {MAX_METADATA_BYTES >> 20} MiB of metadata, which no model needs.")
        return 12 + payload.nbytes, [payload, np.array([length])], [0], [GGUFValueType.ARRAY, item]

    def _strings_end(self, start: int, count: int) -> int:
        """Steps over ``count`` length-prefixed strings; returns the offset behind the last, which may lie outside."""
        data, offset, last, read = self.data.data, start, self.data.nbytes - _LENGTH.size, _LENGTH.unpack_from
        for _ in range(count):
            if offset > last:
                self._require(offset, _LENGTH.size)
            (length,) = read(data, offset)
            offset += _LENGTH.size + length
        return offset

    def _get_tensor_info_field(self, orig_offs: int) -> ReaderField:
        length, _ = self._get_str(orig_offs)
        dims = int(self._get(orig_offs + 8 + int(length[0]), np.uint32)[0])
        if not 1 <= dims <= MAX_DIMS:
            raise _Malformed(f"has a tensor of {dims} dimensions; 1 to {MAX_DIMS} are allowed.")
        return super()._get_tensor_info_field(orig_offs)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        if int(self.alignment) % MIN_ALIGNMENT:
            raise _Malformed(f"has alignment {self.alignment}; it must be a multiple of {MIN_ALIGNMENT}.")
        end = 0
        placed = sorted(fields, key=lambda field: int(field.parts[5][0]))
        for field in placed:
            tensor, offset = self._make_tensor(field, int(start_offs))
            if offset < end:
                raise _Malformed(f"tensor {show(tensor.name)} overlaps another one; download it again.")
            end = offset + tensor.data.nbytes
            self.checked_tensors.append(tensor)
        if len({tensor.name for tensor in self.checked_tensors}) != len(fields):
            raise _Malformed("has two tensors of the same name.")

    def _make_tensor(self, field: ReaderField, start: int) -> tuple[GgufTensor, int]:
        """The tensor of one info record, and the absolute offset of its data."""
        name, dims = field.name, [int(dim) for dim in field.parts[3]]
        kind = _tensor_type(name, int(field.parts[4][0]))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if 0 in dims or dims[0] % block:
            raise _Malformed(f"tensor {show(name)} has the shape {dims[::-1]}, which {kind.name} cannot have.")
        num_elements = 1
        for dim in dims:
            num_elements *= dim
        relative = int(field.parts[5][0])
        if relative % int(self.alignment):
            raise _Malformed(f"tensor {show(name)} is not aligned to {self.alignment} bytes; download it again.")
        try:
            data = self._get(start + relative, np.uint8, num_elements // block * block_bytes)
        except _Malformed:
            raise _Malformed(
                f"is truncated: the data of tensor {show(name)} ends behind it; download it again."
            ) from None
        return GgufTensor(name, tuple(reversed(dims)), kind, data), start + relative


def _tensor_type(name: str, number: int) -> GGMLQuantizationType:
    known = {int(kind): kind for kind in GGMLQuantizationType}
    kind = known.get(number)
    if kind is None or kind.name not in SUPPORTED_TYPES:
        raise _Malformed(
            f"tensor {show(name)} has the type {kind.name if kind else number}; "
            f"supported are {', '.join(SUPPORTED_TYPES)}."
        )
    return kind


class _Metadata(Mapping[str, Any]):
    """Key -> value; arrays are decoded at each access, so a caller that needs one keeps it."""

    def __init__(self, reader: _Reader, file_name: str) -> None:
        self._fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        self._file_name = file_name

    def __getitem__(self, key: str) -> Any:
        field = self._fields[key]
        try:
            return _decode(field)
        except UnicodeDecodeError:
            raise ModelError(f"{self._file_name}: {show(key)} is not valid UTF-8; download the file again.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _decode(field: ReaderField) -> Any:
    payload = field.parts[field.data[0]]
    if field.types[0] == GGUFValueType.STRING:
        return str(payload.data, "utf-8")
    if field.types[0] != GGUFValueType.ARRAY:
        return payload[0].item()
    if field.types[1] != GGUFValueType.STRING:
        return payload.tolist()
    view, offset, strings = payload.data, 0, []
    for _ in range(int(field.parts[field.data[0] + 1][0])):
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(view, offset)[0]
        strings.append(str(view[start:offset], "utf-8"))
    return strings
