"""Losses of short matrices in balls of many digits (python-flint), for a C too ill-conditioned for doubles."""

from collections.abc import Mapping

import numpy as np
from flint import arb, arb_mat, ctx

from factorize.checker.arithmetic.near import TINY, NotEnclosed
from factorize.checker.losses.variances import Ends, weighed
from factorize.checker.spec.objectives import Weighing
from factorize.checker.spec.workloads import balls_of
from factorize.errors import CertificateError

MAX_N = 256
"""The largest n, which takes a few seconds."""
_PLACES = 2500  # The binary places suffice for a C that is far too ill-conditioned for doubles.


def losses(
    strategy: np.ndarray, workload: Mapping[str, object], user: Mapping[str, np.ndarray], weighing: Weighing
) -> Ends:
    """Return the losses of C, shape (n, n), at sensitivity 1.

    Raises:
        NotEnclosed: C cannot be inverted, or numbers leave the range of doubles.
        CertificateError: the losses leave it, so that any finite claim about them is false.
    """
    with ctx.workprec(_PLACES):
        rows = balls_of(workload, user)
        if rows is None:
            raise NotEnclosed("the workload's numbers are not known here")
        try:
            decoder = arb_mat(strategy.T.tolist()).solve(arb_mat(rows.T.tolist())).transpose()
        except ZeroDivisionError:
            raise NotEnclosed("C is too ill-conditioned to be inverted in balls") from None
        entries = np.array(decoder.tolist(), dtype=object)
        ends, since = _ends(entries), None
        if weighing.tau is not None:
            since = _ends(entries - weighing.referred(entries))
    return weighed(ends, weighing, since)


def _ends(rows: np.ndarray) -> np.ndarray:
    """Return the ends of the squared norms of rows of balls, shape (2, rows)."""
    squares = [sum((entry * entry for entry in row), arb(0)) for row in rows]
    ends = np.array([[float(square.lower()) for square in squares], [float(square.upper()) for square in squares]])
    if not np.isfinite(ends[0]).all():
        raise CertificateError(
            "the losses of C exceed the largest double, 1.8e308; scale the workload's numbers towards 1"
        )
    if not np.isfinite(ends[1]).all():
        raise NotEnclosed("numbers leave the range of doubles")
    return np.array([np.maximum(ends[0] * (1 - 2.0**-50) - TINY, 0.0), ends[1] * (1 + 2.0**-50) + TINY])
