"""Cells of matrices against the matrices, errors of queries against the rows of B, and the price of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from servers import LiveService

from factorize.api.pictures import cell_grid
from factorize.api.pictures.cell_grid import CellGrid
from factorize.api.results import RowBlocks
from factorize.errors import InvalidParameter, TooLarge
from factorize.format.tensors import MatrixName
from factorize.solvers import solve
from factorize.spec import parse_spec

SPEC: dict[str, Any] = {"workload": {"kind": "momentum", "n": 37, "momentum": 0.5}, "mechanism": {"kind": "tree", "decoder": "honaker_full"}}  # fmt: skip


def by_hand(matrix: np.ndarray, rows: tuple[int, int], columns: tuple[int, int], cells: tuple[int, int]) -> np.ndarray:
    """The entry of largest size of each cell, one cell after the other."""
    found = np.full(cells, np.nan)
    for i in range(cells[0]):
        for j in range(cells[1]):
            top, end = (rows[0] + k * (rows[1] - rows[0]) // cells[0] for k in (i, i + 1))
            left, right = (columns[0] + k * (columns[1] - columns[0]) // cells[1] for k in (j, j + 1))
            part = matrix[top:end, left:right].ravel()
            if left < end:
                found[i, j] = part[np.argmax(np.abs(part))]
    return found


@pytest.fixture(scope="module")
def digest(live_service: LiveService) -> str:
    return live_service.solve(SPEC)["digest"]


def whole(live: LiveService, digest: str, matrix: str) -> np.ndarray:
    answer = live.get(f"/v1/factorizations/{digest}/matrices/{matrix}")
    return np.frombuffer(answer.body, "<f8").reshape(37, -1)


@pytest.mark.parametrize("matrix", ["C", "C_inv", "B"])
@pytest.mark.parametrize(
    ("rows", "columns", "cells"),
    [
        ((0, 37), (0, 37), (37, 37)),
        ((0, 37), (0, 37), (5, 7)),
        ((20, 31), (3, 30), (4, 9)),
        ((36, 37), (0, 37), (1, 1)),
    ],
)
def test_cells_are_the_largest_entries(live_service, digest, matrix, rows, columns, cells) -> None:
    query = f"rows={rows[0]}:{rows[1]}&columns={columns[0]}:{columns[1]}&cells={cells[0]}:{cells[1]}"
    answer = live_service.get(f"/v1/factorizations/{digest}/matrices/{matrix}/cells?{query}")
    assert answer.status == 200
    assert answer.headers["x-factorize-shape"] == f"{cells[0]},{cells[1]}"
    assert (answer.headers["x-factorize-dtype"], answer.headers["x-factorize-exact"]) == ("float32", "true")
    assert "immutable" in answer.headers["cache-control"]
    found = np.frombuffer(answer.body, "<f4").reshape(cells)
    expected = by_hand(whole(live_service, digest, matrix), rows, columns, cells)
    np.testing.assert_array_equal(np.abs(found), np.abs(expected).astype("<f4"))


def test_all_of_a_matrix_is_the_default(live_service: LiveService, digest: str) -> None:
    answer = live_service.get(f"/v1/factorizations/{digest}/matrices/C_inv/cells")
    found = np.frombuffer(answer.body, "<f4").reshape(37, 37)
    np.testing.assert_array_equal(np.nan_to_num(found), whole(live_service, digest, "C_inv").astype("<f4"))
    assert np.isnan(found[0, 1:]).all()


def grid(
    spec: dict[str, Any], matrix: MatrixName, rows: int, columns: tuple[int, int], cells: tuple[int, int]
) -> CellGrid:
    return CellGrid(RowBlocks(solve(parse_spec(spec)), matrix, 0, rows), columns, cells)


def test_of_what_is_too_much_the_ends_of_each_cell_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_grid, "MAX_ENTRIES", 8 * 40)
    made = grid(
        {"workload": {"kind": "prefix", "n": 40}, "mechanism": {"kind": "square_root"}}, "C", 40, (0, 40), (4, 4)
    )
    assert not made.exact
    rows = [0, 9, 10, 19, 20, 29, 30, 39]
    matrix = made.rows.factorization.rows("C", 0, 40)
    looked = np.zeros_like(matrix)
    looked[rows] = matrix[rows]
    expected = by_hand(looked, (0, 40), (0, 40), (4, 4))
    np.testing.assert_array_equal(made.values(), expected)
    with pytest.raises(TooLarge, match="10 rows of 40 entries"):
        CellGrid(made.rows, (0, 40), (5, 4))


def test_a_strategy_without_end_is_shown_up_to_a_row() -> None:
    spec = {"workload": {"kind": "prefix", "n": "unbounded"}, "mechanism": {"kind": "nu_toeplitz", "nu": 0.1}}
    made = grid(spec, "C", 6, (0, 9), (6, 9))
    found = made.values()
    np.testing.assert_array_equal(np.nan_to_num(found[:, :6]), made.rows.factorization.rows("C", 0, 6))
    assert np.isnan(found[:, 6:]).all()
    with pytest.raises(InvalidParameter, match="columns"):
        CellGrid(made.rows, (3, 3), (1, 1))


def test_errors_are_the_norms_of_rows_of_b(live_service: LiveService, digest: str) -> None:
    manifest = live_service.get(f"/v1/factorizations/{digest}").json()
    found = live_service.get(f"/v1/factorizations/{digest}/errors").json()
    scale = manifest["certificate"]["sensitivity"]["value"]
    np.testing.assert_allclose(found["errors"], scale * np.linalg.norm(whole(live_service, digest, "B"), axis=1))
    assert found["queries"] == list(range(1, 38))
    assert found["rmse"] == manifest["certificate"]["loss"]["rmse"]
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(found["errors"]))))
    assert found["lower_bound"] == pytest.approx(np.sqrt(manifest["certificate"]["lower_bound"]["objective"]))
    a = np.tril(0.5 ** np.abs(np.subtract.outer(np.arange(37), np.arange(37))))
    np.testing.assert_allclose(found["independent"], np.linalg.norm(np.tril(np.ones((37, 37))) @ a, axis=1))


def test_errors_of_a_strategy_without_end_are_refused(live_service: LiveService) -> None:
    spec = {"workload": {"kind": "prefix", "n": "unbounded"}, "mechanism": {"kind": "nu_toeplitz", "nu": 0.1}}
    name = live_service.solve(spec)["digest"]
    live_service.get(f"/v1/factorizations/{name}/errors").problem(422, "unsupported-problem")
    answer = live_service.get(f"/v1/factorizations/{name}/matrices/C/cells?rows=0:8&columns=0:8")
    assert answer.headers["x-factorize-shape"] == "8,8"
