"""Objectives, which make one number of the rows' squared errors, read once for every loss and bound."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from factorize.errors import CertificateError


class Weighing:
    """An objective: a weighted sum of the squared errors of rows over a divisor, or the largest of them.

    Args:
        rows: m, the number of rows.
        weights: weights of the rows, shape (m,); None for the largest error.
        divisor: the divisor of a mean; None where nothing is divided.
        tau: steps between restarts, where a row's error is that of its difference from the row at the last restart;
            else None.
    """

    def __init__(
        self, rows: int, weights: list[Fraction] | None, *, divisor: int | None = None, tau: int | None = None
    ) -> None:
        self.rows, self.weights, self.divisor, self.tau = rows, weights, divisor, tau

    @cached_property
    def doubles(self) -> np.ndarray:
        """The weights, each rounded once; all are 1 for the largest error."""
        return np.ones(self.rows) if self.weights is None else self.multiplied(self.weights, 1)

    @staticmethod
    def multiplied(weights: list[Fraction], times: int) -> np.ndarray:
        """Return weights times a number, each rounded once; a weight that many rows share is rounded for all."""
        _, first, places = np.unique([id(weight) for weight in weights], return_index=True, return_inverse=True)
        return np.array([float(weights[k] * times) for k in first.tolist()])[places]

    def referred(self, rows: np.ndarray) -> np.ndarray:
        """Return the row that is subtracted from each row: that of the last multiple of tau before its step, or 0."""
        before = np.arange(self.rows) // (self.tau or self.rows) * (self.tau or self.rows)
        return np.concatenate([np.zeros_like(rows[:1]), rows])[before]


def weighing_of(objective: Mapping[str, object], rows: int) -> Weighing:
    """Read the objective of a spec.

    Args:
        objective: the objective in canonical form.
        rows: number of rows of A.

    Raises:
        CertificateError: the kind is not known, or the weights are not one for each row.
    """
    if objective["kind"] not in OBJECTIVES:
        raise CertificateError(f"this checker does not know the objective {str(objective['kind'])[:40]!r}")
    return OBJECTIVES[objective["kind"]](objective, rows)


def _weighted(objective: Mapping[str, Any], rows: int) -> Weighing:
    weights = [Fraction(weight) for weight in objective["weights"]]
    if len(weights) != rows:
        raise CertificateError(f"the spec states {len(weights)} weights, but the workload has {rows} rows")
    return Weighing(rows, weights)


def _restarted(objective: Mapping[str, Any], rows: int) -> Weighing:
    """Count row t in full where t is a multiple of tau, and as 1 / tau between."""
    tau = objective["tau"]
    whole, part = Fraction(1), Fraction(1, tau)
    return Weighing(rows, [part if t % tau else whole for t in range(1, rows + 1)], tau=tau)


OBJECTIVES: dict[str, Callable[[Mapping[str, Any], int], Weighing]] = {
    "mean": lambda _objective, rows: Weighing(rows, [Fraction(1)] * rows, divisor=rows),
    "max": lambda _objective, rows: Weighing(rows, None),
    "weighted": _weighted,
    "lambda_tau": _restarted,
}
"""The reader of each kind of objective."""
