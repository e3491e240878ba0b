"""The chat page: a few static files, read once at start and served from memory by exact path."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from engine.entrypoints.openai.context import ServerContext

_STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

#: Nothing from elsewhere, nothing inline: what a model writes cannot become code.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class StaticFile:
    """One file as an endpoint."""

    def __init__(self, name: str) -> None:
        path = _STATIC / name
        self._content = path.read_bytes()
        self._media_type = _MEDIA_TYPES[path.suffix]

    async def __call__(self, request: Request, ctx: ServerContext) -> Response:
        return Response(self._content, headers=_HEADERS, media_type=self._media_type)


#: Path -> file name.
PAGES = {
    "/": "index.html",
    "/static/chat.css": "chat.css",
    "/static/chat.js": "chat.js",
    "/static/render.js": "render.js",
    "/static/icon.svg": "icon.svg",
}
