"""The web page: one HTML file, its style and its scripts, all from this origin; the page holds no data."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from factorize.api.http.access import OPEN
from factorize.api.http.answers import matches
from factorize.api.http.problems import ProblemAnswer

_MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Scripts and styles are files of this origin; no text becomes a script (trusted types), and nothing frames the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)


class PageFile:
    """A file of the page, with the tag by which browsers keep it.

    Args:
        name: its name.
        body: its bytes.
    """

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.media = f"{_MEDIA[name.rsplit('.', 1)[1]]}; charset=utf-8"
        self.tag = f'"{hashlib.sha256(body).hexdigest()}"'

    def answer(self, request: Request) -> Response:
        """Return the file, or 304 where the browser has it."""
        headers = {"ETag": self.tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
        if matches(request.headers.get("if-none-match"), self.tag):
            return Response(status_code=304, headers=headers)
        return Response(self.body, 200, headers | {"Content-Type": self.media})


_HERE = files(__package__)
_PAGE = PageFile("page.html", (_HERE / "page.html").read_bytes())
FILES = {entry.name: PageFile(entry.name, entry.read_bytes()) for entry in (_HERE / "static").iterdir()}
"""What the page loads, by name."""

router = APIRouter(default_response_class=Response)


@router.get("/", include_in_schema=False, dependencies=OPEN)
async def console(request: Request) -> Response:
    """Give the page."""
    return _PAGE.answer(request)


@router.get("/page/{name}", include_in_schema=False, dependencies=OPEN)
async def page_file(request: Request, name: str) -> Response:
    """Give a script, style or picture of the page."""
    if name not in FILES:
        raise ProblemAnswer("not-found", "the page has no such file")
    return FILES[name].answer(request)
