"""A claim is proved by an enclosure that is narrow, and by no other: C so ill-conditioned that doubles say nothing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_files import SOLVER, parts, sealed
from specs import solved

from factorize import parse_spec
from factorize.exact import check, check_factor_file, claims, routes
from factorize.exact.doubles.dense_proof import DenseProof
from factorize.exact.losses import check_whole, residual
from factorize.exact.report import (
    ADDED_NOISE,
    CLASS_BOUND,
    CONVERGED,
    DECODER,
    GAP,
    INVERSE,
    LOSS,
    LOWER_BOUND,
    MECHANISM,
    SENSITIVITY,
    STRATEGY,
    Status,
)
from factorize.factorization import Factorization
from factorize.rounded import cast
from factorize.solution import Outcome, Solution
from factorize.structures.dense import DenseMatrix

N = 16
WIDE = Fraction(1, 10**8)


def cancelling() -> tuple[np.ndarray, Fraction]:
    """C = I but for a column of 1e-20 and six numbers that sum to 1 in doubles, and by how much they do not."""
    rng = np.random.default_rng(0)
    while True:
        column = rng.random(6) / 6
        column[5] = 1.0 - column[:5].sum()
        left = 1 - sum(map(Fraction, column.tolist()), Fraction(0))
        if abs(left) > Fraction(1, 10**17):
            break
    array = np.eye(N)
    array[0, 0], array[1:7, 0] = 1e-20, column
    return array, left


def test_losses_that_cancel_in_doubles_are_not_proved() -> None:
    """Rows from 6 on have (1 - sum c) / 1e-20 as first entry: about 2000, where doubles may say 0."""
    array, left = cancelling()
    document = {
        "workload": {"kind": "prefix", "n": N},
        "mechanism": {"kind": "dense"},
        "objective": {"kind": "weighted", "weights": [0.0] * 6 + [1.0] * (N - 6)},
    }
    result = Factorization.from_solution(
        parse_spec(document), Solution(DenseMatrix(array), Outcome.CLOSED_FORM, 0), solver=SOLVER
    )
    true = sum(i + (left / Fraction(1e-20)) ** 2 for i in range(6, N))
    for objective in (float(sum(range(6, N))), result.certificate.loss.objective):
        assert abs(float(true) / objective - 1) > 1e-3
        manifest, tensors = parts(result)
        manifest["certificate"]["loss"]["objective"] = objective
        report = check_factor_file(sealed(manifest, tensors))
        assert report.status(LOSS) is not Status.PROVED
        assert report.status(SENSITIVITY) is Status.PROVED, "1, whatever column spans many places"


def test_losses_below_the_normal_numbers_are_not_proved() -> None:
    """Rows of 1e-170 have squares that doubles round to 0."""
    rows = (np.tril(np.ones((4, 4))) * 1e-170).tolist()
    document = {"workload": {"kind": "matrix", "rows": rows}, "mechanism": {"kind": "dense"}}
    spec = parse_spec(document)
    result = Factorization.from_solution(spec, Solution(DenseMatrix(np.eye(4)), Outcome.CLOSED_FORM, 0), solver=SOLVER)
    assert result.certificate.loss.total_squared == 0.0
    own = spec.user_matrices()["workload"]
    report = check_factor_file(sealed(*parts(result)), user={str(own.sha256): own.array})
    assert report.status(LOSS) is Status.NOT_LOOKED_AT


def test_losses_beside_a_b_in_single_precision_are_proved() -> None:
    """They are those of A C^-1, whatever B is stored."""
    for mechanism in ({"kind": "dense"}, {"kind": "square_root"}):
        found = cast(solved(8, mechanism=mechanism), "float32").with_matrices(["C", "B"])
        report = check_factor_file(sealed(*parts(found)))
        assert report.supported and {LOSS, DECODER} <= set(report.stated) - set(report.unseen)


FILE: dict[str, Any] = {
    "mechanism": {"kind": "banded", "bands": 3},
    "participation": {"kind": "fixed_epochs", "epochs": 2},
    "tolerance": 1e-6,
}


def _losses(found: Any) -> Any:
    names = ("total", "largest", "last", "objective")
    ends = {name: (getattr(found, name)[0] * (1 - 1e-8), getattr(found, name)[1] * (1 + 1e-8)) for name in names}
    return found._replace(**ends)


def _halved(bound: Fraction) -> Fraction:
    return bound / 2


def _bracket(found: Any) -> Any:
    return found._replace(lower=found.lower * (1 - WIDE), upper=found.upper * (1 + WIDE))


WIDER: list[tuple[Any, str, int | None, Callable[[Any], Any]]] = [
    (check, "squared_sensitivity", None, _bracket),
    (claims, "check_ends", 2, _losses),
    (routes, "check_bound", 2, _halved),
    (claims, "class_bound", None, _halved),
    (DenseProof, "class_bound", None, _halved),
    (check_whole, "check_added_noise", 2, lambda encoder: 2 * encoder),
    (check_whole, "check_noising", 2, lambda found: found._replace(distance=Fraction(1, 4))),
    (residual, "_magnitude", None, lambda found: found + 1),
]
"""Where enclosures are made: the argument, or the result, that is made wide."""


def made_wider(real: Callable[..., Any], place: int | None, wider: Callable[[Any], Any]) -> Callable[..., Any]:
    def called(*given: Any) -> Any:
        if place is None:
            return wider(real(*given))
        return real(*given[:place], wider(given[place]), *given[place + 1 :])

    return called


def test_enclosures_made_wide_prove_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim that rests on numbers; what says of itself that it is finite and triangular has no enclosure."""
    data = sealed(*parts(solved(8, **FILE).with_matrices(["C", "B", "C_inv"])))
    report = check_factor_file(data)
    numbers = {SENSITIVITY, LOSS, LOWER_BOUND, CLASS_BOUND, GAP, CONVERGED, DECODER, INVERSE, ADDED_NOISE}
    assert report.supported and not report.unseen and set(report.stated) == numbers | {MECHANISM, STRATEGY}
    for residuals in (True, False):  # one above its limit ends the check of B, and what rests on B is not reached
        with monkeypatch.context() as patched:
            for room, name, place, wide in WIDER:
                if residuals == (room is residual):
                    patched.setattr(room, name, made_wider(getattr(room, name), place, wide))
            report = check_factor_file(data)
        wide_claims = {DECODER} if residuals else numbers - {DECODER}
        assert [name for name in wide_claims if report.status(name) is Status.PROVED] == []
