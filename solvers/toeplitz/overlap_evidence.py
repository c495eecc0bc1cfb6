"""Evidence for the bound over Toeplitz matrices whose columns overlap (lower_bounds/toeplitz_bounds.py).

For contributions correlated like R, the sensitivity of a Toeplitz column c is a quadratic form, and the best c for it
is found like any other (solvers/methods/projected_gradient.py); its loss is a lower bound, which the certificate proves
from c. R is searched among rho^|i - j|: one number, which leaves 1 to 9 per cent on prefix sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorize.certificate.lower_bounds.toeplitz_bounds import LARGEST_DENSE
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.solvers.methods.projected_gradient import Minimum, descend
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.toeplitz.gradients import ErrorForm, ToeplitzError, ToeplitzLoss

Array = NDArray[np.float64]

_MOST_CORRELATED = 0.95
_SEARCH = 8  # golden-section steps
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUGH, _FINE = 1e-4, 1e-8


@dataclass(frozen=True)
class CorrelatedColumns:
    """S = tr(R K), K the Gram matrix of the columns 0, b, 2b, ... of C.

    Attributes:
        correlations: R, shape (k, k).
        separation: b.
        n: number of steps.
    """

    correlations: Array
    separation: int
    n: int

    def value_and_gradient(self, column: Array) -> tuple[float, Array]:
        """Place the columns, mix them by R, and gather what each coefficient has moved."""
        count, bands = len(self.correlations), len(column)
        columns = np.zeros((count, self.n))
        for i, row in enumerate(columns):
            row[i * self.separation :][:bands] = column[: self.n - i * self.separation]
        mixed = self.correlations @ columns
        gradient = np.zeros(bands)
        for i, row in enumerate(mixed):
            part = row[i * self.separation :][:bands]
            gradient[: len(part)] += part
        return float(np.vdot(mixed, columns)), 2.0 * gradient


def class_evidence(problem: Problem, error: ErrorForm, best: Array, report: Reporter) -> dict[str, Array]:
    """Return `class_column` and `class_signs`, or nothing where the bound needs no evidence or has none.

    Args:
        problem: with a Toeplitz mechanism.
        error: E.
        best: the column that was found, shape (bands,).
        report: asked after each step whether to go on.
    """
    n, bands = problem.n, getattr(problem.spec.mechanism, "bands", problem.n)
    separation, count, _ = problem.participation.spread(n)
    plain = isinstance(error, ToeplitzError) and problem.spec.optimize_for is None
    if problem.participation.single or bands <= separation or n > LARGEST_DENSE or not plain:
        return {}
    start = strategy_coefficients(n, 0.0)[:bands] * 1e-3
    start[: len(best)] += best / best[0]

    def minimum(rho: float, tolerance: float) -> Minimum:
        loss = ToeplitzLoss(n, error, CorrelatedColumns(_correlations(rho, count), separation, n))
        return descend(
            loss, start / np.linalg.norm(start), tolerance=tolerance, report=lambda step, _gap: report(step, None)
        )

    low, high = 0.0, _MOST_CORRELATED
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [minimum(rho, _ROUGH).value for rho in inner]
    for _ in range(_SEARCH):
        if values[0] > values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = minimum(inner[0], _ROUGH).value
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = minimum(inner[1], _ROUGH).value
    rho = (low + high) / 2
    found = minimum(rho, _FINE).x
    column = np.concatenate([found, np.zeros(n - len(found))])
    return {"class_column": column * np.sign(column[0]), "class_signs": np.linalg.cholesky(_correlations(rho, count))}


def _correlations(rho: float, count: int) -> Array:
    return np.asarray(rho ** np.abs(np.subtract.outer(np.arange(count), np.arange(count))), dtype=np.float64)
