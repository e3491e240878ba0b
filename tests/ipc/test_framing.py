"""engine/ipc/framing.py: nothing but a message of this version, epoch and type gets through."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ProtocolError
from engine.ipc import framing
from engine.ipc.framing import Wire


class Add(msgspec.Struct, array_like=True, tag=0, forbid_unknown_fields=True):
    number: int


class Stop(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    reason: str


def wire(epoch: int = 5) -> Wire[Add | Stop]:
    return Wire(Add | Stop, epoch)


def test_a_union_travels() -> None:
    for message in (Add(3), Stop("x")):
        assert wire().decode(wire().encode(message)) == message


def test_another_epoch_is_refused() -> None:
    with pytest.raises(ProtocolError, match="epoch"):
        wire(6).decode(wire(5).encode(Add(1)))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = wire().encode(Add(1))
    monkeypatch.setattr(framing, "PROTOCOL_VERSION", 2)
    with pytest.raises(ProtocolError, match="version 1"):
        wire().decode(frames)


def test_a_body_over_the_limit_is_refused_by_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = wire().encode(Stop("x" * 100))
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 64)
    with pytest.raises(ProtocolError, match="64"):
        wire().encode(Stop("x" * 100))
    with pytest.raises(ProtocolError, match="64"):
        wire().decode(frames)


@given(st.lists(st.binary(max_size=64), max_size=3))
def test_noise_is_a_protocol_error(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        wire().decode(frames)


@given(st.binary(max_size=64))
def test_a_noisy_body_never_escapes_as_another_error(body: bytes) -> None:
    header = wire().encode(Add(1))[0]
    try:
        message = wire().decode([header, body])
    except ProtocolError:
        return
    assert isinstance(message, Add | Stop)


def test_deep_nesting_is_a_protocol_error() -> None:
    header = wire().encode(Add(1))[0]
    with pytest.raises(ProtocolError):
        wire().decode([header, b"\x91" * 100_000])
