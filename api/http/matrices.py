"""Files by sha256, rows and pictures of C, C_inv and B as numbers, and the upload of a user's own matrix.

Every byte of a file comes from a buffer that was hashed (storage/blobs.py).
"""

import base64
import math
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import numpy as np
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from starlette.responses import Response

from factorize.api.http.access import Call, ReadCall, UploadCall
from factorize.api.http.answers import (
    LASTING_CACHE,
    RAW,
    check_match,
    digest_in,
    heavy,
    in_threads,
    is_current,
    json_response,
    lasting,
    not_known,
    result_of,
    stream,
    whole,
)
from factorize.api.http.problems import ProblemAnswer
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import RAW_BODY, answers
from factorize.api.http.work_gate import working
from factorize.api.pictures.cell_grid import MAX_CELLS, MAX_ENTRIES, MAX_WORK, CellGrid, work_per_entry
from factorize.api.pictures.factorization_plot import bound_per_query, error_curve
from factorize.api.results import Block, RowBlocks
from factorize.api.service import SolverService
from factorize.errors import InvalidParameter, NotFound, TooLarge
from factorize.format.tensors import MATRIX_NAMES, MatrixName
from factorize.storage.blobs import Blob, blob_key
from factorize.storage.index import Result
from factorize.workloads.matrix import MAX_SIDE

_ROWS = re.compile(r"(\d{0,15}):(\d{0,15})", re.ASCII)
_uploads = CapacityLimiter(4)

router = APIRouter(default_response_class=Response)
MAX_QUERIES = 256
_PAIR = re.compile(r"(\d{1,15}):(\d{1,15})", re.ASCII)
_PAIR_FORM = "two whole numbers with a colon between, such as 0:128"
_Range = Annotated[str | None, Query(max_length=40, description="first:end, all by default")]


@router.get("/v1/factorizations/{name}/matrices/{matrix}", responses=answers(200, 404, 410, media=RAW))
async def get_rows(
    call: ReadCall,
    name: str,
    matrix: str,
    rows: Annotated[str | None, Query(max_length=40, description="first:end, all rows by default")] = None,
) -> Response:
    """Give rows of a matrix as little-endian float64 in C order, whatever the mechanism.

    Up to 4 MiB come with the digest of these rows (Repr-Digest) and a checksum that is quicker to compare.
    """
    wanted, results = _matrix(matrix), call.service.results
    meaning = "first:end, such as 0:128; either may be left out"
    start, stop = _pair("rows", rows, _ROWS, meaning) or (None, None)

    def prepare() -> tuple[Result, RowBlocks, Block | None]:
        result = result_of(call, name)
        blocks = results.rows(result, wanted, start, stop)
        return result, blocks, results.block(blocks)

    async with working(call, "rows"):
        result, blocks, block = await run_sync(prepare, limiter=heavy)
    headers = _about(call, result, blocks.shape, "float64")
    headers["Content-Length"] = str(8 * math.prod(blocks.shape))
    if block is None:
        return await stream(call, in_threads(blocks.blocks(), heavy), headers=headers)
    headers |= {"Repr-Digest": _repr_digest(block.sha256), "X-Factorize-Crc32": f"{block.crc32:08x}"}
    return await stream(call, whole(block.data), headers=headers)


def _matrix(name: str) -> MatrixName:
    for known in MATRIX_NAMES:
        if known == name:
            return known
    raise ProblemAnswer("not-found", f"a factorization has the matrices {', '.join(MATRIX_NAMES)}")


def _about(call: Call, result: Result, shape: tuple[int, int], dtype: str) -> dict[str, str]:
    """Return the headers of numbers of a result that an address has named, unless If-Match names another."""
    check_match(call.request, f'"{result.digest}"')
    return {
        "X-Factorize-Shape": f"{shape[0]},{shape[1]}",
        "X-Factorize-Dtype": dtype,
        "X-Factorize-Digest": result.digest,
        "Cache-Control": lasting(call.request, result),
    }


def _repr_digest(sha256: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256).decode('ascii')}:"


def _pair(field: str, text: str | None, form: re.Pattern[str], meaning: str = _PAIR_FORM) -> tuple[Any, Any] | None:
    """Read two numbers with a colon between; None for one that is left out, or for both."""
    if text is None:
        return None
    numbers = form.fullmatch(text)
    if numbers is None:
        raise InvalidParameter(f"{field} is {meaning}", field=field)
    return int(numbers[1]) if numbers[1] else None, int(numbers[2]) if numbers[2] else None


@router.post(
    "/v1/matrices",
    status_code=201,
    openapi_extra=RAW_BODY,
    responses=answers(201, 411, 413, document="UploadedMatrix"),
)
async def post_matrix(
    call: UploadCall,
    rows: Annotated[int, Query(ge=1, le=MAX_SIDE, description="Number of rows.")],
    columns: Annotated[int, Query(ge=1, le=MAX_SIDE, description="Number of columns.")],
) -> Response:
    """Take a workload matrix, little-endian float64 in C order, and give the sha256 that names it in a spec."""
    expected, limit = 8 * rows * columns, call.service.settings.max_upload_bytes
    declared = call.request.headers.get("content-length")
    if declared is None:
        raise ProblemAnswer(
            "length-required", f"send Content-Length: {expected} for {rows} x {columns} float64 numbers"
        )
    if int(declared) > limit:
        raise ProblemAnswer("too-much-data", f"the body has {declared} bytes; the limit is {limit}")
    if int(declared) != expected:
        detail = f"the body has {int(declared)} bytes, but {rows} x {columns} float64 numbers have {expected}"
        raise ProblemAnswer("invalid-parameter", detail)
    async with _uploads:
        body = await read_body(call.request, limit=expected, json=False)
        array = np.frombuffer(body, dtype="<f8").reshape(rows, columns)
        names = await run_sync(call.service.upload, array, call.caller, limiter=heavy)
        return json_response(names, 201, {"Location": f"/v1/blobs/{names['sha256']}"})


@router.get("/v1/factorizations/{name}/matrices/{matrix}/cells", responses=answers(200, 404, 410, media=RAW))
async def get_cells(
    call: ReadCall,
    name: str,
    matrix: str,
    rows: _Range = None,
    columns: _Range = None,
    cells: Annotated[str | None, Query(max_length=40, description="down:across, up to 256:256 by default")] = None,
) -> Response:
    """Give a part of a matrix reduced to cells, as little-endian float32 in C order.

    Each cell has its entry of largest size, sign kept, and NaN where all of it is above the diagonal. X-Factorize-Exact
    says whether every entry was looked at, or the first and the last row of each cell.
    """
    wanted = _matrix(matrix)
    span, across = _pair("rows", rows, _PAIR), _pair("columns", columns, _PAIR)
    sides = _pair("cells", cells, _PAIR)

    def make() -> tuple[Result, CellGrid, bytes]:
        result = result_of(call, name)
        blocks = call.service.results.rows(result, wanted, *(span or (None, None)))
        first, end = across or (0, blocks.shape[1])
        default = min(blocks.shape[0], MAX_CELLS // 2), min(end - first, MAX_CELLS // 2)
        grid = CellGrid(blocks, (first, end), sides or default)
        return result, grid, grid.values().astype("<f4").tobytes()

    async with working(call, "rows"):
        result, grid, body = await run_sync(make, limiter=heavy)
    headers = {"X-Factorize-Exact": str(grid.exact).lower(), **_about(call, result, grid.cells, "float32")}
    return Response(body, 200, headers, RAW)


@router.get("/v1/factorizations/{name}/errors", responses=answers(200, 404, 410, document="QueryErrors"))
async def get_errors(call: ReadCall, name: str) -> Response:
    """Give the error of each query, or of evenly spaced ones, and of independent noise, beside the lower bound.

    They are standard deviations for noise of standard deviation 1 times the sensitivity. `lower_bound` is on the root
    mean square over the queries, null where none is known.
    """

    def make() -> tuple[Result, dict[str, object]]:
        result = result_of(call, name)
        factorization = call.service.results.open(result)
        n = factorization.shape("B")[1]
        affordable = int(min(MAX_ENTRIES / n, MAX_WORK / (4 * n * work_per_entry(factorization, "B"))))
        if affordable < 2:
            message = f"a row of B has {n} entries, and the limit is {MAX_ENTRIES}; ask for rows of B instead"
            raise TooLarge(message, field="name")
        curve = error_curve(factorization, queries=min(MAX_QUERIES, affordable))
        return result, {
            "queries": curve.queries.tolist(),
            "errors": curve.ours.tolist(),
            "independent": curve.independent.tolist(),
            "rmse": factorization.manifest.certificate["loss"]["rmse"],
            "lower_bound": bound_per_query(factorization),
        }

    async with working(call, "rows"):
        result, document = await run_sync(make, limiter=heavy)
    check_match(call.request, f'"{result.digest}"')
    return json_response(document, headers={"Cache-Control": lasting(call.request, result)})


_RANGE = re.compile(r"bytes\s*=[\s,]*(\d{0,4000})\s*-\s*(\d{0,4000})[\s,]*", re.ASCII | re.IGNORECASE)
"""One range, in a list whose other elements are empty, of numbers that Python reads: those of up to 4300 digits."""

SIGNED_SECONDS = 600.0
"""Seconds for which the address of a file in a bucket is good."""


@router.get("/v1/blobs/{sha256}", responses=answers(200, 206, 304, 307, 404, 410, 416, media=RAW))
async def get_blob(call: ReadCall, sha256: str) -> Response:
    """Give a file, or one range of it; or the address at which the store's bucket gives it, if the settings say so."""
    request, service = call.request, call.service
    wanted = await run_sync(service.holdings.upload_for, call.caller, digest_in(sha256))
    try:
        if request.method == "GET" and service.settings.downloads == "redirect":
            address = await run_sync(_address, service, wanted)
            if address is not None:
                return Response(status_code=307, headers={"Location": address, "Cache-Control": "no-store"})
        blob = await run_sync(service.store.blob, wanted)
    except NotFound:
        raise not_known(sha256) from None
    headers = {"ETag": f'"{blob.sha256}"', "Accept-Ranges": "bytes", "Cache-Control": LASTING_CACHE}
    headers["Repr-Digest"] = _repr_digest(bytes.fromhex(blob.sha256))
    check_match(request, headers["ETag"])
    if is_current(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    start, stop, status = 0, blob.size, 200
    part = request.headers.get("range", "").strip()
    # Other units are left out, and a range if If-Range says that the client has part of something else.
    if part.lower().startswith("bytes") and request.headers.get("if-range") in (None, headers["ETag"]):
        start, stop = _range(part, blob.size)
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
    headers["Content-Length"] = str(stop - start)
    return await stream(call, _views(blob, start, stop), status=status, headers=headers)


async def _views(blob: Blob, start: int, stop: int) -> AsyncIterator[memoryview]:
    """Yield bytes of a blob; what is in memory without a change of threads, which costs as much as sending it."""
    while start < stop:
        view = blob.kept(start, stop)
        if view is None:
            view = await run_sync(blob.read(start, stop).__next__)
        yield view
        start += len(view)


def _address(service: SolverService, sha256: str) -> str | None:
    """Return the address at which the medium gives a file out; None if it has none, or if the file is damaged.

    Raises:
        NotFound: there is no such file.
    """
    store = service.store
    store.revocations.check(sha256)
    if store.blobs.damaged(sha256, store.objects.status(blob_key(sha256)).version):
        return None
    return store.objects.sign(blob_key(sha256), SIGNED_SECONDS)


def _range(text: str, size: int) -> tuple[int, int]:
    """Return first byte and end of a Range header with one range.

    Raises:
        ProblemAnswer: it has more than one, or none that lies inside the file.
    """
    ends = _RANGE.fullmatch(text)
    if ends is not None and (ends[1] or ends[2]):
        if ends[1]:
            start, stop = int(ends[1]), min(int(ends[2] or size), size - 1) + 1
        else:
            start, stop = max(0, size - int(ends[2])), size
        if start < stop:
            return start, stop
    detail = f"ask for one range inside the file, bytes=0-{size - 1} at most"
    raise ProblemAnswer(
        "range-not-satisfiable", detail, headers={"Content-Range": f"bytes */{size}", "Accept-Ranges": "bytes"}
    )
