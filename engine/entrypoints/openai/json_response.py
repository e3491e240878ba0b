"""JSON answers made by msgspec."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode


def json_response(document: Any, status: int = 200) -> Response:
    """``document`` is a Struct, or anything else msgspec encodes."""
    return Response(_encode(document), status, media_type="application/json")
