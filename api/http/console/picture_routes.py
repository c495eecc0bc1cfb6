"""Routes of pictures: cells of a matrix and errors of queries, both as numbers for whoever draws them."""

from __future__ import annotations

import re
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from factorize.api.http.answers import FOREVER, AskingCaller, RunningService, heavy, json_response, result_of
from factorize.api.http.gateway.access import READ
from factorize.api.http.gateway.work_gate import working
from factorize.api.http.problems import ProblemAnswer
from factorize.api.http.schema import answers
from factorize.api.pictures.cell_grid import MOST_CELLS, MOST_ENTRIES, MOST_WORK, CellGrid, work_per_entry
from factorize.api.pictures.factorization_plot import bound_per_query, error_curve
from factorize.api.results import Result
from factorize.api.service import SolverService
from factorize.errors import InvalidParameter, TooLarge
from factorize.factorization import MATRIX_NAMES, MatrixName

MOST_QUERIES = 256
_PAIR = re.compile(r"(\d{1,15}):(\d{1,15})", re.ASCII)
_Range = Annotated[str | None, Query(max_length=40, description="first:end, all by default")]

router = APIRouter(default_response_class=Response)


@router.get(
    "/v1/factorizations/{name}/matrices/{matrix}/cells",
    responses=answers(200, 404, 410, 422, 429, 503, media="application/octet-stream"),
    dependencies=READ,
)
async def get_cells(
    request: Request,
    service: RunningService,
    caller: AskingCaller,
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
    wanted = next((known for known in MATRIX_NAMES if known == matrix), None)
    if wanted is None:
        raise ProblemAnswer("not-found", f"a factorization has the matrices {', '.join(MATRIX_NAMES)}")
    asked = _pair("rows", rows), _pair("columns", columns), _pair("cells", cells)

    def make() -> tuple[Result, CellGrid, bytes]:
        result = result_of(service, name, caller)
        grid = grid_of(service, result, wanted, *asked)
        return result, grid, grid.values().astype("<f4").tobytes()

    async with working(request, "rows"):
        result, grid, body = await run_sync(make, limiter=heavy)
    headers = {
        "X-Factorize-Shape": f"{grid.cells[0]},{grid.cells[1]}",
        "X-Factorize-Dtype": "float32",
        "X-Factorize-Exact": "true" if grid.exact else "false",
        "X-Factorize-Digest": result.digest,
        "Cache-Control": FOREVER if result.digest == name else "no-cache",
    }
    return Response(body, 200, headers, "application/octet-stream")


Pair = tuple[int, int] | None


def grid_of(
    service: SolverService, result: Result, matrix: MatrixName, rows: Pair, columns: Pair, cells: Pair
) -> CellGrid:
    """Return the cells of a stored result; None is all, and as many cells as there are up to 256.

    Raises:
        InvalidParameter: outside the matrix.
        TooLarge: too many rows to look at.
    """
    found = service.results.rows(result, matrix, *(rows or (None, None)))
    across = columns or (0, found.shape[1])
    default = min(found.shape[0], MOST_CELLS // 2), min(across[1] - across[0], MOST_CELLS // 2)
    return CellGrid(found, across, cells or default)


def _pair(field: str, text: str | None) -> Pair:
    if text is None:
        return None
    found = _PAIR.fullmatch(text)
    if found is None:
        raise InvalidParameter(f"{field} is two whole numbers with a colon between, such as 0:128", field=field)
    return int(found[1]), int(found[2])


@router.get(
    "/v1/factorizations/{name}/errors",
    responses=answers(200, 404, 410, 422, 429, 503, document="QueryErrors"),
    dependencies=READ,
)
async def get_errors(request: Request, service: RunningService, caller: AskingCaller, name: str) -> Response:
    """Give the error of each query, or of evenly spaced ones, and of independent noise, beside the lower bound.

    They are standard deviations for noise of standard deviation 1 times the sensitivity. `lower_bound` is on the root
    mean square over the queries, null where none is known.
    """

    def make() -> tuple[Result, dict[str, object]]:
        result = result_of(service, name, caller)
        made = service.results.opened(result)
        n = made.shape("B")[1]
        affordable = int(min(MOST_ENTRIES / n, MOST_WORK / (4 * n * work_per_entry(made, "B"))))
        if affordable < 2:
            message = f"a row of B has {n} entries, and at most {MOST_ENTRIES} are looked at; ask for rows of B instead"
            raise TooLarge(message, field="name")
        curve = error_curve(made, queries=min(MOST_QUERIES, affordable))
        return result, {
            "queries": curve.queries.tolist(),
            "errors": curve.ours.tolist(),
            "independent": curve.independent.tolist(),
            "rmse": made.certificate.loss.rmse,
            "lower_bound": bound_per_query(made),
        }

    async with working(request, "rows"):
        result, document = await run_sync(make, limiter=heavy)
    kept = FOREVER if result.digest == name else "no-cache"
    return json_response(document, headers={"Cache-Control": kept})
