"""``Request``: what the core knows of one request, and the words for its states and its end.

Owns the nouns. Torch-free: ``Finished`` is also part of the messages to the API process. While a
request runs, its counts and tokens live in the arrays of ``core/slots.py`` and its ``Request`` is not
touched; that is read on arrival, preemption and end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from engine.api import SamplingParams


class RequestStatus(enum.Enum):
    """WAITING -> RUNNING -> FINISHED; RUNNING -> PREEMPTED -> RUNNING when blocks run out."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


class FinishCause(enum.IntEnum):
    """Why a request ended; crosses the process boundary as one byte."""

    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request's one terminal event. Part of the wire format: fields are append-only."""

    handle: int
    cause: FinishCause
    #: The stop token id that ended it; ``None`` for end of sequence and all other causes.
    stop_token_id: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One admitted request, from its arrival to its one terminal event."""

    #: Chosen by the client; names the request on the wire.
    handle: int
    #: Place in the order of arrival: of two requests, the smaller number is the older.
    order: int
    #: The prompt, followed after a preemption by all tokens generated so far.
    token_ids: list[int]
    num_prompt_tokens: int
    #: ``max_tokens`` is resolved: a number that the context has room for.
    params: SamplingParams
    status: RequestStatus = RequestStatus.WAITING
    #: The slot it occupies; only a running request has one.
    slot: int | None = None
    num_preemptions: int = 0
