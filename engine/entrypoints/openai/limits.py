"""``HttpLimits``: the bounds of one HTTP connection and of all of them together.

Owns the numbers. ``http_protocol.py`` enforces those of connections and headers, ``parsing.py``
those of bodies, ``lifecycle.py`` the number of requests, ``server.py`` the drain.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Defaults suit a server on the open network; sizes in bytes, times in seconds."""

    #: Request line and headers, or trailers, of one request.
    max_header_bytes: int = 16 << 10
    max_headers: int = 100
    max_body_bytes: int = 8 << 20
    #: From the first byte of a request (or from connecting) to the end of its headers.
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    #: A connection may wait this long between requests.
    keep_alive_s: int = 75
    #: A client that lets its answer wait this long without reading is cut off.
    write_timeout_s: float = 60.0
    max_connections: int = 4096
    #: Requests being answered; one more gets 503.
    max_concurrent_requests: int = 2048
    #: From the first SIGTERM to the end of the streams still open.
    drain_timeout_s: float = 30.0
    #: Deadline of the engine's answer to a health check.
    health_timeout_s: float = 2.0
