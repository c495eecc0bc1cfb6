"""Rows of C, C_inv and B, and the upload of a user's own matrix."""

from __future__ import annotations

import base64
import re
from typing import Annotated

import numpy as np
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from factorize.api.http.answers import FOREVER, AskingCaller, RunningService, heavy, json_response, result_of, stream
from factorize.api.http.gateway.access import READ, UPLOAD
from factorize.api.http.gateway.work_gate import working
from factorize.api.http.problems import ProblemAnswer
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import RAW_BODY, answers
from factorize.api.results import Result
from factorize.api.row_blocks import Block, RowBlocks
from factorize.errors import InvalidParameter
from factorize.factorization import MATRIX_NAMES
from factorize.workloads.matrix import MAX_SIDE

_ROWS = re.compile(r"(\d{0,15}):(\d{0,15})", re.ASCII)
_uploads = CapacityLimiter(4)

router = APIRouter(default_response_class=Response)


@router.head("/v1/factorizations/{name}/matrices/{matrix}", include_in_schema=False, dependencies=READ)
@router.get(
    "/v1/factorizations/{name}/matrices/{matrix}",
    responses=answers(200, 404, 410, 422, 429, 503, media="application/octet-stream"),
    dependencies=READ,
)
async def get_rows(
    request: Request,
    service: RunningService,
    caller: AskingCaller,
    name: str,
    matrix: str,
    rows: Annotated[str | None, Query(max_length=40, description="first:end, all rows by default")] = None,
) -> Response:
    """Give rows of a matrix as little-endian float64 in C order, whatever the mechanism.

    Up to 4 MiB come with the digest of these rows (Repr-Digest) and a checksum that is quicker to compare.
    """
    wanted = next((known for known in MATRIX_NAMES if known == matrix), None)
    if wanted is None:
        raise ProblemAnswer("not-found", f"a factorization has the matrices {', '.join(MATRIX_NAMES)}")
    start, stop = _bounds(rows)

    def prepare() -> tuple[Result, RowBlocks, Block | None]:
        result = result_of(service, name, caller)
        rows = service.results.rows(result, wanted, start, stop)
        return result, rows, service.results.block(rows)

    async with working(request, "rows"):
        result, found, block = await run_sync(prepare, limiter=heavy)
    shape = found.shape
    headers = {
        "Content-Length": str(8 * shape[0] * shape[1]),
        "X-Factorize-Shape": f"{shape[0]},{shape[1]}",
        "X-Factorize-Dtype": "float64",
        "X-Factorize-Digest": result.digest,
        "Cache-Control": FOREVER if result.digest == name else "no-cache",
    }
    if block is None:
        return await stream(request, service, found.blocks(), status=200, headers=headers, limiter=heavy)
    headers["Repr-Digest"] = f"sha-256=:{base64.b64encode(block.sha256).decode('ascii')}:"
    headers["X-Factorize-Crc32"] = f"{block.crc32:08x}"
    return await stream(request, service, iter([block.data]), status=200, headers=headers, made=True)


def _bounds(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    found = _ROWS.fullmatch(text)
    if found is None:
        raise InvalidParameter("rows is first:end, such as 0:128; either may be left out", field="rows")
    return (int(found[1]) if found[1] else None), (int(found[2]) if found[2] else None)


@router.post(
    "/v1/matrices",
    status_code=201,
    openapi_extra=RAW_BODY,
    responses=answers(201, 411, 413, 422, 503, document="UploadedMatrix"),
    dependencies=UPLOAD,
)
async def post_matrix(
    request: Request,
    service: RunningService,
    caller: AskingCaller,
    rows: Annotated[int, Query(ge=1, le=MAX_SIDE, description="Number of rows.")],
    columns: Annotated[int, Query(ge=1, le=MAX_SIDE, description="Number of columns.")],
) -> Response:
    """Take a workload matrix, little-endian float64 in C order, and give the sha256 that names it in a spec."""
    expected, limit = 8 * rows * columns, service.settings.max_upload_bytes
    declared = request.headers.get("content-length")
    if declared is None:
        raise ProblemAnswer(
            "length-required", f"send Content-Length: {expected} for {rows} x {columns} float64 numbers"
        )
    if int(declared) > limit:
        raise ProblemAnswer("too-much-data", f"the body has {declared} bytes; the limit is {limit}")
    if int(declared) != expected:
        detail = f"the body has {int(declared)} bytes, and {rows} x {columns} float64 numbers are {expected}"
        raise ProblemAnswer("invalid-parameter", detail)
    async with _uploads:
        body = await read_body(request, limit=expected)
        array = np.frombuffer(body, dtype="<f8").reshape(rows, columns)
        names = await run_sync(service.upload, array, caller, limiter=heavy)
        return json_response(names, 201, {"Location": f"/v1/blobs/{names['sha256']}"})
