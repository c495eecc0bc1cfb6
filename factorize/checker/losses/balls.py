"""Losses of short matrices in balls of many digits (python-flint), for a C too ill-conditioned for doubles."""

from __future__ import annotations

import numpy as np
from flint import arb, arb_mat, ctx

from factorize.checker.arithmetic.integers import Numbers
from factorize.checker.arithmetic.intervals import NotEnclosed
from factorize.checker.doubles.roundings import TINY
from factorize.checker.losses.variances import Ends, weighed
from factorize.checker.spec import Weighing
from factorize.errors import CertificateError

LARGEST = 256
"""Longest n: a few seconds there."""
_PLACES = 2500


def losses(strategy: Numbers, workload: Numbers, weighing: Weighing) -> Ends:
    """Return the losses at sensitivity 1.

    Args:
        strategy: C, shape (n, n).
        workload: A, shape (m, n).
        weighing: of the objective, for m rows.

    Raises:
        NotEnclosed: C cannot be inverted, or numbers leave the range of doubles.
        CertificateError: the losses do, so that whatever is stated of them is false.
    """
    with ctx.workprec(_PLACES):
        try:
            decoder = _matrix(strategy).transpose().solve(_matrix(workload).transpose()).transpose().tolist()
        except ZeroDivisionError:
            raise NotEnclosed("C is too ill-conditioned to be inverted in balls") from None
        ends, since = _ends(decoder), None
        if weighing.tau is not None:
            rows = enumerate(weighing.references)
            since = _ends(
                [
                    decoder[t] if before < 0 else [a - b for a, b in zip(decoder[t], decoder[before], strict=True)]
                    for t, before in rows
                ]
            )
    return weighed(ends, weighing, since)


def _matrix(numbers: Numbers) -> arb_mat:
    radius = arb((int(numbers.radius), numbers.exponent))
    return arb_mat([[arb((int(entry), numbers.exponent), radius) for entry in row] for row in numbers.values])


def _ends(rows: list[list[arb]]) -> np.ndarray:
    """Ends of the squared norms of rows, shape (2, rows)."""
    squares = [sum((entry * entry for entry in row), arb(0)) for row in rows]
    ends = np.array([[float(square.lower()) for square in squares], [float(square.upper()) for square in squares]])
    if not np.isfinite(ends[0]).all():
        raise CertificateError("the losses of C exceed doubles, 1.8e308; scale the workload's numbers towards 1")
    if not np.isfinite(ends[1]).all():
        raise NotEnclosed("numbers leave the range of doubles")
    return np.array([np.maximum(ends[0] * (1 - 2.0**-50) - TINY, 0.0), ends[1] * (1 + 2.0**-50) + TINY])
