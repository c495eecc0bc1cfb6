"""Files by sha256, whole or in part. Every byte comes from a buffer that was hashed (storage/blobs.py)."""

from __future__ import annotations

import base64
import re

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import Response

from factorize.api.http.access import READ
from factorize.api.http.answers import FOREVER, AskingCaller, RunningService, digest_in, matches, not_known, stream
from factorize.api.http.problems import ProblemAnswer
from factorize.api.http.schema import answers
from factorize.api.service import SolverService
from factorize.errors import NotFound
from factorize.storage.blobs import Blob, blob_key

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.ASCII | re.IGNORECASE)

SIGNED_SECONDS = 600.0
"""How long the address of a file in a bucket is good."""
router = APIRouter(default_response_class=Response)


@router.head("/v1/blobs/{sha256}", include_in_schema=False, dependencies=READ)
@router.get(
    "/v1/blobs/{sha256}",
    responses=answers(200, 206, 304, 307, 404, 410, 416, 503, media="application/octet-stream"),
    dependencies=READ,
)
async def get_blob(request: Request, service: RunningService, caller: AskingCaller, sha256: str) -> Response:
    """Give a file, or one range of it; or the address at which the store's bucket gives it, if the settings say so."""
    wanted = await run_sync(service.holdings.upload_for, caller, digest_in(sha256))
    try:
        if request.method == "GET" and service.settings.downloads == "redirect":
            address = await run_sync(_address, service, wanted)
            if address is not None:
                return Response(status_code=307, headers={"Location": address, "Cache-Control": "no-store"})
        blob = await run_sync(service.store.blob, wanted)
    except NotFound:
        raise not_known(sha256) from None
    headers = _headers(blob)
    if matches(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    start, stop, status = 0, blob.size, 200
    part = _wanted_range(request, headers["ETag"])
    if part is not None:
        start, stop = _range(part, blob.size)
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
    headers["Content-Length"] = str(stop - start)
    return await stream(request, service, blob.read(start, stop), status=status, headers=headers)


def _address(service: SolverService, sha256: str) -> str | None:
    """Return where the medium gives a file out; None if it does not, or if there is something to say about the file.

    Raises:
        NotFound: there is no such file.
    """
    store = service.store
    store.revocations.check(sha256)
    if store.blobs.damaged(sha256):
        return None
    store.objects.status(blob_key(sha256))
    return store.objects.sign(blob_key(sha256), SIGNED_SECONDS)


def _headers(blob: Blob) -> dict[str, str]:
    digest = base64.b64encode(bytes.fromhex(blob.sha256)).decode("ascii")
    return {
        "ETag": f'"{blob.sha256}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": FOREVER,
        "Repr-Digest": f"sha-256=:{digest}:",
    }


def _wanted_range(request: Request, tag: str) -> str | None:
    """The Range header, unless it counts in other units or If-Range says that the client has part of something else."""
    wanted = request.headers.get("range", "").strip()
    counts_bytes = wanted.lower().startswith("bytes")
    return wanted if counts_bytes and request.headers.get("if-range") in (None, tag) else None


def _range(text: str, size: int) -> tuple[int, int]:
    """Return first byte and end of a Range header with one range.

    Raises:
        ProblemAnswer: it has more than one, or none that lies inside the file.
    """
    found = _RANGE.fullmatch(text)
    if found is not None and (found[1] or found[2]):
        if found[1]:
            start, stop = int(found[1]), min(int(found[2] or size), size - 1) + 1
        else:
            start, stop = max(0, size - int(found[2])), size
        if start < stop:
            return start, stop
    detail = f"ask for one range inside the file, bytes=0-{size - 1} at most"
    raise ProblemAnswer(
        "range-not-satisfiable", detail, headers={"Content-Range": f"bytes */{size}", "Accept-Ranges": "bytes"}
    )
