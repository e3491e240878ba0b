"""Reading GGUF files: what a valid one gives, and that no hostile one gives anything but a ModelError."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.errors import ModelError
from engine.loader.gguf_config import gguf_architecture
from engine.loader.gguf_file import GgufFile
from tests.loader.small_models import HIDDEN, VOCAB, write_gguf

#: Widths of the scalar value types 0 to 12; 8 is a string, 9 an array.
SCALAR_BYTES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)
MAX_PEAK_BYTES = 8 << 20


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write_gguf(path, quantization=GGMLQuantizationType.Q8_0).read_bytes()


class Fields:
    """Walks a valid header and notes where each number is: (offset, width, what it is)."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        self.found: list[tuple[int, int, str]] = []
        self.number(4, "version")
        num_tensors, num_keys = self.number(8, "tensor count"), self.number(8, "key count")
        for _ in range(num_keys):
            self.string("key")
            self.value(self.number(4, "value type"))
        for _ in range(num_tensors):
            self.string("tensor name")
            for _ in range(self.number(4, "dimensions")):
                self.number(8, "dimension")
            self.number(4, "tensor type")
            self.number(8, "tensor offset")
        self.end = self.at

    def number(self, width: int, what: str) -> int:
        self.found.append((self.at, width, what))
        self.at += width
        return int.from_bytes(self.data[self.at - width : self.at], "little")

    def string(self, what: str) -> None:
        length = self.number(8, f"{what} length")
        self.at += length

    def value(self, kind: int) -> None:
        if kind == 8:
            self.string("string")
        elif kind == 9:
            item = self.number(4, "array type")
            length = self.number(8, "array length")
            for index in range(length):
                if index == 2:  # the rest is alike
                    self.at = self.skip(item, length - index)
                    break
                self.value(item)
        else:
            self.number(SCALAR_BYTES[kind], "value")

    def skip(self, item: int, count: int) -> int:
        at = self.at
        for _ in range(count):
            at += 8 + int.from_bytes(self.data[at : at + 8], "little") if item == 8 else SCALAR_BYTES[item]
        return at


def read_everything(path: Path) -> None:
    """Opens, decodes and interprets, as the server does before it allocates a model."""
    file = GgufFile(str(path))
    for key in file.metadata:
        file.metadata[key]
    for tensor in file.tensors.values():
        tensor.data[-1:].sum()
    gguf_architecture(file)


def survives(path: Path, data: bytes) -> bool:
    """Whether ``data`` loads; anything but success or a one-line ModelError fails the test."""
    path.write_bytes(data)
    started = time.process_time()
    try:
        read_everything(path)
    except ModelError as error:
        assert "\n" not in str(error)
        return False
    finally:
        assert time.process_time() - started < 1.0
    return True


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MAX_PEAK_BYTES


def hostile_numbers(value: int, width: int) -> set[int]:
    top = 1 << (8 * width)
    near = {value + 1, value - 1, value * 2, value ^ (top >> 1), value + (top >> 3)}
    return {number % top for number in {0, 1, 2, 7, 8, 9, 99, top - 1, top >> 1, (top >> 1) - 1, 1 << 31, *near}} - {
        value
    }


def test_a_valid_file(tmp_path: Path) -> None:
    metadata = {"test.floats": [0.5, 1.5], "test.texts": ["", "ä", "\n"], "test.negative": [-1, 2]}
    file = GgufFile(str(write_gguf(tmp_path / "m.gguf", metadata=metadata)))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.rope.freq_base"] == 10000.0
    assert file.metadata["tokenizer.ggml.add_bos_token"] is False
    assert file.metadata["tokenizer.ggml.tokens"] == [f"token{i}" for i in range(VOCAB)]
    assert file.metadata["test.floats"] == [0.5, 1.5]
    assert file.metadata["test.texts"] == ["", "ä", "\n"]
    assert file.metadata["test.negative"] == [-1, 2]
    assert "GGUF.version" not in file.metadata
    tensor = file.tensors["token_embd.weight"]
    assert tensor.shape == (VOCAB, HIDDEN)
    assert tensor.type == GGMLQuantizationType.F32
    assert tensor.data.nbytes == VOCAB * HIDDEN * 4


def test_every_hostile_number(tmp_path: Path, valid: bytes, bounded_memory: None) -> None:
    path, outcomes, seen = tmp_path / "m.gguf", {True: 0, False: 0}, Counter[str]()
    for offset, width, what in Fields(valid).found:
        seen[what] += 1
        if seen[what] > 8:  # enough of this kind
            continue
        old = int.from_bytes(valid[offset : offset + width], "little")
        for number in hostile_numbers(old, width):
            mutant = valid[:offset] + number.to_bytes(width, "little") + valid[offset + width :]
            outcomes[survives(path, mutant)] += 1
    assert outcomes[False] > 500  # the mutations do reach the checks


def test_truncation_anywhere(tmp_path: Path, valid: bytes) -> None:
    path, fields = tmp_path / "m.gguf", Fields(valid)
    edges = {offset + shift for offset, width, _ in fields.found for shift in (0, 1, width)}
    for length in sorted(edges | set(range(fields.end, len(valid), 4999)) | {len(valid) - 1}):
        assert not survives(path, valid[:length]), f"{length} of {len(valid)} bytes were accepted"


def test_random_bytes(tmp_path: Path, valid: bytes, bounded_memory: None) -> None:
    rng, end = np.random.default_rng(0), Fields(valid).end
    for _ in range(500):
        mutant = bytearray(valid)
        for position in rng.integers(4, end, rng.integers(1, 6)):
            mutant[position] = rng.integers(256)
        survives(tmp_path / "m.gguf", bytes(mutant))


def first_field(data: bytes, what: str, skip: int = 0) -> tuple[int, int]:
    return [(offset, width) for offset, width, kind in Fields(data).found if kind == what][skip]


@pytest.mark.parametrize(
    ("what", "skip", "change", "message"),
    [
        ("tensor count", 0, lambda _: 1 << 40, "claims 1099511627776 tensors"),
        ("key count", 0, lambda _: 1 << 63, "claims .* keys"),
        ("version", 0, lambda _: 1, "version 1"),
        ("version", 0, lambda _: 3 << 24, "little-endian"),
        ("key length", 0, lambda _: 1 << 40, "string of 1099511627776 bytes"),
        ("array length", 0, lambda _: 1 << 62, "array of 4611686018427387904 values"),
        ("array length", 0, lambda _: 1 << 20, "truncated or malformed"),
        ("array type", 0, lambda _: 9, "array of arrays"),
        ("value type", 0, lambda _: 13, "malformed GGUF header"),
        ("dimensions", 0, lambda _: 5, "5 dimensions"),
        ("dimensions", 0, lambda _: 0, "0 dimensions"),
        ("dimension", 0, lambda old: old + 1, "cannot have"),
        ("dimension", 0, lambda _: 0, "cannot have"),
        ("dimension", 1, lambda _: 1 << 63, "truncated"),
        ("tensor type", 0, lambda _: 10, "type Q2_K; supported are F32"),
        ("tensor type", 0, lambda _: 12345, "type 12345"),
        ("tensor offset", 1, lambda old: old + 1, "not aligned"),
        ("tensor offset", 1, lambda _: 0, "overlaps"),
        ("tensor offset", 1, lambda _: 1 << 62, "truncated"),
    ],
)
def test_the_message_names_the_fault(
    tmp_path: Path, valid: bytes, what: str, skip: int, change: Callable[[int], int], message: str
) -> None:
    offset, width = first_field(valid, what, skip)
    number = change(int.from_bytes(valid[offset : offset + width], "little"))
    path = tmp_path / "small.gguf"
    path.write_bytes(valid[:offset] + number.to_bytes(width, "little") + valid[offset + width :])
    with pytest.raises(ModelError, match=f"small.gguf.* {message}"):
        GgufFile(str(path))


@pytest.mark.parametrize(
    ("name", "twin"), [(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"), (b"ggml.bos_token_id", b"ggml.eos_token_id")]
)
def test_duplicates_are_refused(tmp_path: Path, valid: bytes, name: bytes, twin: bytes) -> None:
    assert not survives(tmp_path / "m.gguf", valid.replace(name, twin, 1))


@pytest.mark.parametrize("left", range(8))
def test_a_string_array_cut_within_its_last_length(tmp_path: Path, left: int) -> None:
    """Nothing follows the array that could notice."""
    first = b"x" * 9
    array = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQQ", 9, 8, 2, len(first)) + first
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array + bytes(left))
    with pytest.raises(ModelError, match="truncated"):
        GgufFile(str(path)).metadata["k"]


def test_metadata_has_a_total_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.loader.gguf_file.MAX_METADATA_BYTES", 256)
    with pytest.raises(ModelError, match="of metadata, which no model needs"):
        GgufFile(str(write_gguf(tmp_path / "m.gguf")))


def test_alignment_must_suit_the_values(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata={"general.alignment": 4})
    with pytest.raises(ModelError, match="alignment 4"):
        GgufFile(str(path))


def test_invalid_utf8_is_found_when_it_is_read(tmp_path: Path, valid: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(valid.replace(b"token7", b"\xff\xfe\xfd\xfc\xfb\xfa", 1))
    file = GgufFile(str(path))
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens.*UTF-8"):
        file.metadata["tokenizer.ggml.tokens"]


@pytest.mark.parametrize("content", [b"", b"GG", b"GGUF", b"PK\x03\x04" + bytes(100), b"GGUF" + struct.pack("<I", 3)])
def test_not_a_gguf_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"not a GGUF file|truncated"):
        GgufFile(str(path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf cannot be read"):
        GgufFile(str(tmp_path / "none.gguf"))


def test_large_string_arrays_are_fast(tmp_path: Path) -> None:
    """The package's own reader needs a second for this file: it makes arrays of every string."""
    path = write_gguf(tmp_path / "m.gguf", metadata={"test.texts": [f"text{i}" for i in range(50_000)]})
    started = time.process_time()
    file = GgufFile(str(path))
    assert time.process_time() - started < 0.3
    assert file.metadata["test.texts"][-1] == "text49999"
