"""The picture: what it shows is right, and it can be drawn for every structure and participation."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_cases import factorization

from factorize.api.pictures.cell_grid import whole_matrix
from factorize.api.pictures.factorization_plot import (
    bound_per_query,
    draw,
    error_curve,
    title,
)
from factorize.factors.factorization import Factorization
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix


def make(strategy: Matrix, **parts: Any) -> Factorization:
    return factorization(strategy.n, strategy=strategy, **{"mechanism": {"kind": "square_root"}, **parts})


def toeplitz(n: int, **parts: Any) -> Factorization:
    return make(ToeplitzMatrix(strategy_coefficients(n, 0.0), n), dual={"weights": np.ones(n)}, **parts)


def test_large_matrices_are_sampled_by_rows_and_say_so() -> None:
    grid = whole_matrix(toeplitz(50_000), "C")
    assert grid.cells == (335, 512) and not grid.exact and "rows sampled" in grid.note
    assert grid.values()[-1, -1] == 1.0


def test_many_queries_are_sampled_evenly_with_both_ends() -> None:
    factorization = toeplitz(300)
    whole, part = error_curve(factorization), error_curve(factorization, queries=7)
    assert part.queries[0] == 1 and part.queries[-1] == 300 and len(part.queries) == 7
    np.testing.assert_allclose(part.ours, whole.ours[part.queries - 1], rtol=1e-13)


def test_independent_noise_pays_for_every_epoch() -> None:
    curve = error_curve(toeplitz(8, participation={"kind": "fixed_epochs", "epochs": 2}))
    np.testing.assert_allclose(curve.independent, np.sqrt(2 * np.arange(1, 9)), rtol=1e-9)


def test_the_bound_is_a_line_only_where_it_bounds_an_average() -> None:
    mean = toeplitz(6)
    assert mean.certificate.lower_bound is not None
    assert bound_per_query(mean) == math.sqrt(mean.certificate.lower_bound.objective)
    assert bound_per_query(mean) < mean.certificate.loss.rmse
    weighted = toeplitz(6, objective={"kind": "weighted", "weights": [2.0] * 6})
    assert bound_per_query(weighted) == pytest.approx(bound_per_query(mean), rel=1e-12)
    assert bound_per_query(toeplitz(6, objective={"kind": "lambda_tau", "tau": 3})) is None
    assert bound_per_query(toeplitz(6, objective={"kind": "max"})) is None


def test_the_title_states_question_and_certificate() -> None:
    factorization = toeplitz(6)
    asked, certified = title(factorization).split("\n")
    assert asked == "prefix(n=6), single, mean, square_root(normalization=none)"
    loss = factorization.certificate.loss
    for text in ("(exact)", f"RMSE {loss.rmse:.6g}", f"max error {loss.max_error:.6g}", factorization.digest[:12]):
        assert text in certified
    unbounded = make(ToeplitzMatrix(strategy_coefficients(6, 0.0), 6))
    assert "no bound known" in title(unbounded)


STRANGE: dict[str, Callable[[], Factorization]] = {
    "one step": lambda: toeplitz(1),
    "negative entries": lambda: make(DenseMatrix(np.array([[1.0, 0.0], [-0.5, 1.0]]))),
    "min_sep": lambda: toeplitz(8, participation={"kind": "min_sep", "min_sep": 3}),
    "one query": lambda: make(
        ToeplitzMatrix(strategy_coefficients(3, 0.0), 3), workload={"kind": "matrix", "rows": [[1.0, 1.0, 1.0]]}
    ),
    "more queries than steps": lambda: make(
        ToeplitzMatrix(strategy_coefficients(2, 0.0), 2),
        workload={"kind": "matrix", "rows": [[1.0, 0.0], [1.0, 1.0], [0.5, 0.5]]},
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_every_kind_of_result_can_be_drawn(name: str, tmp_path: Path) -> None:
    figure = draw(STRANGE[name]())
    figure.savefig(tmp_path / "picture.png")
    assert len(figure.axes) == 6  # two heatmaps with their colour bars, two panels of errors
    scales = [(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes]
    assert np.isfinite(scales).all()
