"""``WaitingQueue``: requests without a slot, first come first served.

Owns the order. All operations are O(1), removal from the middle included, so a burst of
hang-ups costs no more than it must.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from engine.v1.core.request import Request


class WaitingQueue:
    """Oldest request first. A preempted request is older than all that wait: it goes to the front."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def push(self, request: Request) -> None:
        """Adds a new request at the end."""
        self._requests[request.handle] = request

    def push_front(self, request: Request) -> None:
        """Puts a preempted request back before all others."""
        self._requests[request.handle] = request
        self._requests.move_to_end(request.handle, last=False)

    def peek(self) -> Request:
        """The oldest request."""
        return next(iter(self._requests.values()))

    def remove(self, request: Request) -> None:
        """Takes ``request`` out, wherever it stands."""
        del self._requests[request.handle]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())
