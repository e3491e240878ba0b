"""Every error this package raises on purpose.

Owns the hierarchy and the HTTP meaning of each class. Does not own how an error is
rendered (``entrypoints/openai/errors.py``) or reported at start (``cli.py``).

The texts are written for the person who caused them: they name the thing, the limit and
the way out, and never carry paths, addresses or ``str(exc)`` of an inner error.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors raised on purpose."""


class StartupError(EngineError):
    """The server or ``LLM`` cannot start as asked; one line for the user, exit code 2."""


class ConfigError(StartupError, ValueError):
    """A flag, a config field or an environment variable has a value that cannot work."""


class ModelError(StartupError):
    """The model cannot be found, read or supported."""


class RequestError(EngineError, ValueError):
    """One request cannot be served; every other request goes on.

    ``param`` is the public field at fault, ``code`` a stable machine-readable word.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class NotFoundError(RequestError):
    """The request names something that does not exist (a model, a route)."""

    status = 404
    kind = "not_found_error"


class OverloadedError(RequestError):
    """The queue is full or the server is draining; try again later."""

    status = 503
    kind = "overloaded_error"


class EngineDeadError(EngineError):
    """The engine process is gone. Every open request gets this exactly once."""

    status = 500
    kind = "engine_dead_error"

    def __init__(self, message: str = "The engine process ended before this request finished.") -> None:
        super().__init__(message)
        self.message = message


class ProtocolError(EngineError):
    """A message between our own processes does not fit the protocol: a bug or a stale process."""
