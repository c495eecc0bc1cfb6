"""Workloads: each kind of A from its definition in the spec, stated here a second time as a program.

Solvers use other code. Rates and factors are the spec's doubles, taken exactly. A sliding window is no program of few
states and is given by its rows; the numbers of a user's matrix are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.checker.arithmetic.balls import PLACES, Balls, ball
from factorize.checker.spec.programs import Coefficient, Program, Statement, X
from factorize.errors import CertificateError

Document = Mapping[str, Any]
_ONE = Fraction(1)
PROGRAMS: dict[str, Callable[[Document], Program]] = {}
"""The program of each kind of workload; `defines` enters the functions below."""
ARRAY_KINDS = ("window", "matrix")
"""The kinds that are no program of few states, and are given as arrays."""
_MAX_RADIUS = 2.0**-100
"""The largest radius of a column, relative to its largest entry; above, it is computed again with twice the places."""
_MAX_WORK = 1 << 28
"""The most steps times binary places; above, a column stays as wide as it is."""


def defines(*kinds: str) -> Callable[[Callable[[Document], Program]], Callable[[Document], Program]]:
    """Return a decorator that enters a function as the program of kinds of workload that have none yet."""

    def enter(program: Callable[[Document], Program]) -> Callable[[Document], Program]:
        for kind in kinds:
            if PROGRAMS.setdefault(kind, program) is not program:
                raise TypeError(f"the workload {kind!r} has two programs, {PROGRAMS[kind].__name__} and this one")
        return program

    return enter


def check_known(document: Document) -> None:
    """Raise CertificateError for a workload without a definition here, since no claim about it could be proved."""
    if document["kind"] not in KINDS:
        raise CertificateError(
            f"this checker does not know the workload {str(document['kind'])[:40]!r}, so it proves nothing of its "
            f"losses and bounds; known are {', '.join(KINDS)}"
        )


def program_of(document: Document) -> Program | None:
    """Return the workload as a program, or None for a kind that is none of few states (`ARRAY_KINDS`).

    Raises:
        CertificateError: the kind is not known, or the learning rates are not one for each step.
    """
    check_known(document)
    if document["kind"] in ARRAY_KINDS:
        return None
    rates = document.get("learning_rates")
    if rates is not None and len(rates) != document["n"]:  # Compiled loops do not check bounds.
        raise CertificateError(f"the spec states {len(rates)} learning rates, but n={document['n']}")
    return PROGRAMS[document["kind"]](document)


def toeplitz_column(document: Document) -> Balls | None:
    """Return the first column of A, shape (n,), where A is Toeplitz by its kind; else None."""
    from flint import arb, ctx

    if document["kind"] == "window":
        return ([arb(1)] * document["width"] + [arb(0)] * document["n"])[: document["n"]]
    program = program_of(document) if document["kind"] in KINDS else None
    if program is None or not program.constant:
        return None
    n, places = document["n"], PLACES
    while True:
        with ctx.workprec(places):
            column = list(program.run([arb(1)] + [arb(0)] * (n - 1), ball))
        # Balls cannot let errors cancel: in a damped oscillation, radii grow while the states shrink.
        loosest = max(float(each.rad()) for each in column)
        if loosest <= _MAX_RADIUS * max(abs(float(each)) for each in column) or places * n > _MAX_WORK:
            return column
        places *= 2


def balls_of(document: Document, user: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return A in balls, shape (m, n), or None for a user's matrix whose numbers are not given."""
    from flint import arb

    if document["kind"] in ARRAY_KINDS:
        array = array_of(document, user)
        return None if array is None else np.vectorize(arb, otypes=[object])(array)
    program, units = program_of(document), np.vectorize(arb, otypes=[object])(np.eye(document["n"]))
    assert program is not None  # Every other kind has one.
    return np.stack(list(program.run(units, ball)))


def array_of(document: Document, user: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the A of a kind without a program, or None for a user's matrix whose numbers are not given."""
    if document["kind"] == "matrix":
        array = user.get(document["sha256"])
        known = array is not None and array.shape == tuple(document["shape"])
        return np.asarray(array, dtype=np.float64) if known else None
    behind = np.subtract.outer(np.arange(document["n"]), np.arange(document["n"]))
    return ((behind >= 0) & (behind < document["width"])).astype(np.float64)


def _rates(document: Document) -> Coefficient:
    rates = document.get("learning_rates")
    return _ONE if rates is None else [Fraction(rate) for rate in rates]


def _factor(document: Document, name: str) -> Fraction:
    return Fraction(document.get(name, 0.0))


@defines("identity")
def _identity(_document: Document) -> Program:
    return Program([], X)


@defines("prefix")
def _prefix(_document: Document) -> Program:
    return Program([(0, {0: _ONE, X: _ONE})], 0)


@defines("decay")
def _decay(document: Document) -> Program:
    return Program([(0, {0: Fraction(document["rate"]), X: _ONE})], 0)


@defines("momentum", "schedule")
def _momentum(document: Document) -> Program:
    """Sum eta_i times the step, with m_i = mu m_{i-1} + g_i. The step is m_i, or g_i + mu m_i for Nesterov."""
    mu, eta = _factor(document, "momentum"), _rates(document)
    first: Statement = (0, {0: mu, X: _ONE})
    if document.get("nesterov"):
        return Program([first, (1, {X: _ONE, 0: mu}), (2, {2: _ONE, 1: eta})], 2)
    return Program([first, (1, {1: _ONE, 0: eta})], 1)


@defines("weight_decay")
def _weight_decay(document: Document) -> Program:
    """Return s_i = (1 - eta_i rate) s_{i-1} + eta_i m_i, or for coupled decay, subtract rate s_{i-1} from gradients."""
    mu, rate, eta = _factor(document, "momentum"), Fraction(document["rate"]), _rates(document)
    if document["mode"] == "coupled":
        return Program([(0, {0: mu, X: _ONE, 1: -rate}), (1, {1: _ONE, 0: eta})], 1)
    kept: Coefficient = [1 - step * rate for step in eta] if isinstance(eta, list) else 1 - eta * rate
    return Program([(0, {0: mu, X: _ONE}), (1, {1: kept, 0: eta})], 1)


@defines("adam")
def _adam(document: Document) -> Program:
    """Return a_i = (beta w_i / w_{i-1}) a_{i-1} + w_i g_i, or the sum of w_i times m_i = beta m_{i-1} + g_i."""
    beta, weights = float(document["beta"]), []
    total = 0.0
    for _ in range(document["n"]):
        total = 1.0 + beta * total
        weights.append(Fraction(1.0 / total))
    if document.get("output", "moment") == "iterate":
        return Program([(0, {0: Fraction(beta), X: _ONE}), (1, {1: _ONE, 0: list(weights)})], 1)
    before = [_ONE, *weights]
    kept = [Fraction(beta) * each / last for each, last in zip(weights, before, strict=False)]
    return Program([(0, {0: list(kept), X: list(weights)})], 0)


@defines("srg")
def _srg(document: Document) -> Program:
    estimate: Statement = (0, {0: Fraction(document["decay"]), X: _ONE})
    return Program([estimate, (1, {1: Fraction(document["momentum"]), 0: _ONE}), (2, {2: _ONE, 1: _ONE})], 2)


@defines("mu2")
def _mu2(document: Document) -> Program:
    """Return the sums q = S s and w = S q, then x_i = ((i + 1) x_{i-1} + 2 w_i) / (i + 3)."""
    program: list[Statement] = [(0, {0: _ONE, X: _ONE}), (1, {1: _ONE, 0: _ONE})]
    if document["output"] in ("q", "w"):
        states = 1 if document["output"] == "q" else 2
        return Program(program[:states], states - 1)
    n = document["n"]
    average: Statement = (2, {2: [Fraction(i + 1, i + 3) for i in range(n)], 1: [Fraction(2, i + 3) for i in range(n)]})
    return Program([*program, average], 2)


KINDS = (*PROGRAMS, *ARRAY_KINDS)
"""The kinds of workload that this checker knows, by its own definition or by the user's numbers."""
