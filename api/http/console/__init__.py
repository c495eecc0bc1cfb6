"""The web page: what is stored and what runs, with links. One HTML file, no script."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from factorize.api.http.answers import RunningService, heavy

LIMIT = 200
_PAGE = (files(__package__) / "page.html").read_text(encoding="utf-8")
_STYLE = _PAGE.partition("<style>")[2].partition("</style>")[0]
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode("ascii")
# The style is let through by its digest, and nothing else is: no script, no frame, no other site.
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter()


@router.get("/", include_in_schema=False)
async def console(service: RunningService) -> Response:
    """Show the newest jobs and results."""
    items, following = await run_sync(
        lambda: service.page(state=None, workload=None, cursor=None, limit=LIMIT), limiter=heavy
    )
    rows = "\n".join(_row(item) for item in items) or '<tr><td colspan="6">Nothing yet: post a spec.</td></tr>'
    more = f"The newest {LIMIT} are shown; the list has them all." if following else ""
    page = _PAGE.replace("<!--rows-->", rows).replace("<!--more-->", more)
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})


def _row(item: dict[str, Any]) -> str:
    name = html.escape(item["spec_digest"])
    links = [f'<a href="/v1/factorizations/{name}">document</a>']
    if item["state"] == "done":
        links.append(f'<a href="/v1/factorizations/{name}/matrices/C_inv?rows=0:1">row 0 of C_inv</a>')
    cells = (html.escape(item["workload"]), item["state"], html.escape(_note(item)), html.escape(item["updated"][:19]))
    inner = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="{item["state"]}"><td><code>{name[:12]}</code></td>{inner}<td>{" · ".join(links)}</td></tr>'


def _note(item: dict[str, Any]) -> str:
    if item["error"]:
        return str(item["error"]["message"])[:200]
    progress = item["progress"]
    if item["state"] == "running" and progress:
        gap = progress["relative_gap"] if progress["relative_gap"] is not None else progress["class_gap"]
        return f"step {progress['iteration']}" + ("" if gap is None else f", gap {gap:.2g}")
    return ""
