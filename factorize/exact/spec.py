"""The workload A from its definition in the spec, in fixed-point intervals; not the code that solvers use.

Every kind is an optimizer's recursion driven by unit impulses: at step i the input of column i is 1, all states are
kept for all columns at once, and the output is row i of A. Rates and factors are the spec's doubles, taken exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Numbers, integers
from factorize.exact.arithmetic.intervals import Dyadic, Interval, dyadic

ONE = Dyadic(1, 0)


def workload_numbers(document: Mapping[str, Any], user: Mapping[str, np.ndarray]) -> Numbers | None:
    """Return A, shape (m, n), or None for a user's matrix whose numbers are not given.

    Args:
        document: the spec's workload, in canonical form.
        user: numbers of user-supplied matrices by sha256.

    Raises:
        CertificateError: the kind has no definition here.
    """
    check_known(document)
    if document["kind"] == "matrix":
        array = user.get(document["sha256"])
        return None if array is None else integers(array)
    found = list(_ROWS[document["kind"]](document))
    return Interval(np.stack([row.low for row in found]), np.stack([row.high for row in found])).numbers()


def check_known(document: Mapping[str, Any]) -> None:
    """Refuse a workload that has no definition here: nothing that is claimed of it could be proved.

    Raises:
        CertificateError: see above.
    """
    if document["kind"] not in KINDS:
        raise CertificateError(
            f"this checker knows no workload {str(document['kind'])[:40]!r}, and can prove nothing of its losses and "
            f"bounds; known are {', '.join(KINDS)}"
        )


def toeplitz_column(document: Mapping[str, Any]) -> Numbers | None:
    """Return the first column of A, shape (n,), where A is Toeplitz by its kind; else None."""
    if document["kind"] not in _TOEPLITZ or document.get("learning_rates") is not None or document.get("output") == "x":
        return None
    found = list(_ROWS[document["kind"]]({**document, "columns": 1}))
    return Interval(np.concatenate([row.low for row in found]), np.concatenate([row.high for row in found])).numbers()


def _inputs(document: Mapping[str, Any]) -> Iterator[Interval]:
    """Unit impulses for the first `columns` columns, all by default."""
    n = document["n"]
    zeros = Interval.zeros(document.get("columns", n))
    for i in range(n):
        if i < len(zeros.low):
            unit = np.zeros(len(zeros.low), dtype=np.int64)
            unit[i] = 1
            yield Interval.of_integers(unit)
        else:
            yield zeros


def _follow(rows: Iterator[Interval], factor: Dyadic) -> Iterator[Interval]:
    """y_i = factor y_{i-1} + x_i."""
    state: Interval | None = None
    for row in rows:
        state = row if state is None else state.times(factor).plus(row)
        yield state


def _rates(document: Mapping[str, Any]) -> list[Dyadic]:
    rates = document.get("learning_rates")
    return [ONE] * document["n"] if rates is None else [dyadic(rate) for rate in rates]


def _identity(document: Mapping[str, Any]) -> Iterator[Interval]:
    return _inputs(document)


def _prefix(document: Mapping[str, Any]) -> Iterator[Interval]:
    return _follow(_inputs(document), ONE)


def _decay(document: Mapping[str, Any]) -> Iterator[Interval]:
    return _follow(_inputs(document), dyadic(document["rate"]))


def _window(document: Mapping[str, Any]) -> Iterator[Interval]:
    columns = np.arange(document.get("columns", document["n"]))
    for i in range(document["n"]):
        yield Interval.of_integers(((columns <= i) & (columns > i - document["width"])).astype(np.int64))


def _momentum(document: Mapping[str, Any]) -> Iterator[Interval]:
    """m_i = mu m_{i-1} + g_i; the step is m_i, or g_i + mu m_i for Nesterov; the output sums eta_i times the step."""
    mu = dyadic(document.get("momentum", 0.0))
    steps = _follow(_inputs(document), mu)
    if document.get("nesterov"):
        steps = (x.plus(m.times(mu)) for x, m in zip(_inputs(document), steps, strict=True))
    return _follow((step.times(rate) for step, rate in zip(steps, _rates(document), strict=True)), ONE)


def _weight_decay(document: Mapping[str, Any]) -> Iterator[Interval]:
    """Decoupled: s_i = (1 - eta_i rate) s_{i-1} + eta_i m_i. Coupled: rate s_{i-1} is taken from the gradient."""
    mu, rate = dyadic(document.get("momentum", 0.0)), dyadic(document["rate"])
    minus = Dyadic(-rate.value, rate.exponent)
    s = m = Interval.zeros(document.get("columns", document["n"]))
    for x, eta in zip(_inputs(document), _rates(document), strict=True):
        m = m.times(mu).plus(x)
        if document["mode"] == "coupled":
            m = m.plus(s.times(minus))
            s = s.plus(m.times(eta))
        else:
            s = s.times(ONE.plus(eta.times(minus))).plus(m.times(eta))
        yield s


def _srg(document: Mapping[str, Any]) -> Iterator[Interval]:
    estimate = _follow(_inputs(document), dyadic(document["decay"]))
    return _follow(_follow(estimate, dyadic(document["momentum"])), ONE)


def _mu2(document: Mapping[str, Any]) -> Iterator[Interval]:
    """Sums q = S s and w = S q, then x_i = sum over j <= i of 2 (j + 2) w_j / ((i + 2)(i + 3))."""
    rows = _prefix(document)
    if document["output"] == "q":
        return rows
    rows = _follow(rows, ONE)
    if document["output"] == "w":
        return rows
    sums = _follow((row.times(Dyadic(2 * (j + 2), 0)) for j, row in enumerate(rows)), ONE)
    return (row.over((i + 2) * (i + 3)) for i, row in enumerate(sums))


_ROWS: dict[str, Callable[[Mapping[str, Any]], Iterator[Interval]]] = {
    "prefix": _prefix,
    "schedule": _momentum,
    "momentum": _momentum,
    "weight_decay": _weight_decay,
    "decay": _decay,
    "window": _window,
    "srg": _srg,
    "mu2": _mu2,
    "identity": _identity,
}
KINDS = (*_ROWS, "matrix")
"""Kinds of workload that this checker has a definition of, its own or the user's numbers."""
_TOEPLITZ = ("prefix", "momentum", "weight_decay", "decay", "window", "srg", "mu2", "identity")
