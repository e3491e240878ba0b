"""Framing of messages between our own processes: what is on the wire, and nothing else.

A message is two frames: a fixed header (protocol version, epoch) and a msgpack body of a
closed msgspec type. Owns the header and the checks; sockets are ``ipc/link.py``, the message
types belong to each engine's ``messages.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from engine.errors import ProtocolError

#: Raised whenever a message type changes in a way that is not an appended field.
PROTOCOL_VERSION = 1

#: One body may not be larger; the largest honest one is a prompt of a million tokens.
MAX_BODY_BYTES = 64 * 1024 * 1024

_HEADER = struct.Struct("<HxxxxxxQ")  # version, padding, epoch

M = TypeVar("M")


class Wire(Generic[M]):
    """Encodes and decodes the messages of one direction, within one epoch.

    ``message_type`` is a ``msgspec.Struct`` or a tagged union of them. An epoch is one life of
    an engine process; a message of another epoch comes from a process that should be dead.
    """

    def __init__(self, message_type: Any, epoch: int) -> None:
        self._header = _HEADER.pack(PROTOCOL_VERSION, epoch)
        self._epoch = epoch
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_type)

    def encode(self, message: M) -> list[bytes]:
        """The frames of ``message``.

        Raises:
            ProtocolError: the body is larger than ``MAX_BODY_BYTES``.
        """
        body = self._encoder.encode(message)
        if len(body) > MAX_BODY_BYTES:
            raise ProtocolError(f"A message has {len(body)} bytes; at most {MAX_BODY_BYTES} are allowed.")
        return [self._header, body]

    def decode(self, frames: Sequence[bytes]) -> M:
        """The message in ``frames``.

        Raises:
            ProtocolError: wrong frame count, version, epoch or size, or a body of another type.
        """
        if len(frames) != 2 or len(frames[0]) != _HEADER.size:
            raise ProtocolError("A message must be a header frame and a body frame.")
        version, epoch = _HEADER.unpack(frames[0])
        if version != PROTOCOL_VERSION:
            raise ProtocolError(f"A message has protocol version {version}; this process speaks {PROTOCOL_VERSION}.")
        if epoch != self._epoch:
            raise ProtocolError(f"A message belongs to epoch {epoch}; this is epoch {self._epoch}.")
        if len(frames[1]) > MAX_BODY_BYTES:
            raise ProtocolError(f"A message has {len(frames[1])} bytes; at most {MAX_BODY_BYTES} are allowed.")
        try:
            return self._decoder.decode(frames[1])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ProtocolError("A message body does not fit its type.") from error
