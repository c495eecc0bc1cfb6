"""The exact checker's lower bound by hand: (nuclear norm of W A F)^2 over the cost of F, for two steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Limbs, Numbers, integers, limbs
from factorize.exact.bounds import bound

ONES = {"weights": np.ones(2)}


def found(objective: dict[str, Any], dual: dict[str, np.ndarray] = ONES, workload: Any = None) -> float:
    spec = {"participation": {"kind": "single"}, "objective": objective}
    array = np.eye(2) if workload is None else np.array(workload)
    proved = bound.lower_bound(spec, dual, integers(array))
    assert proved is not None
    return float(proved)


@pytest.mark.parametrize(
    ("objective", "dual", "true"),
    [
        ({"kind": "mean"}, {}, 2**2 / 2 / 2),
        ({"kind": "mean"}, {"weights": np.array([4.0, 1.0])}, 3**2 / 5 / 2),
        ({"kind": "weighted", "weights": [4.0, 1.0]}, {}, 3**2 / 2),
        ({"kind": "max"}, {"row_weights": np.array([4.0, 1.0])}, 3**2 / 2 / 5),
        ({"kind": "lambda_tau", "tau": 2}, {}, (0.5**0.5 + 1) ** 2 / 2),
        ({"kind": "lambda_tau", "tau": 1}, {}, 5 / 2),  # W = 1 0; -1 1, of nuclear norm sqrt(3 + 2)
    ],
)
def test_bounds_of_the_identity(objective: dict[str, Any], dual: dict[str, np.ndarray], true: float) -> None:
    value = found(objective, ONES | dual)
    assert true * (1 - 1e-12) <= value <= true


def test_bounds_of_other_workloads() -> None:
    assert found({"kind": "mean"}, workload=[[3.0, 0], [0, 4]]) == pytest.approx(49 / 4, rel=1e-12)
    tiny = found({"kind": "mean"}, workload=[[2.0**-10, 0], [0, 2.0**-10]])
    assert tiny == pytest.approx(2.0**-20, rel=1e-12)
    restarts = found({"kind": "lambda_tau", "tau": 2}, workload=[[1.0, 0], [0, 3]])
    assert restarts == pytest.approx((0.5**0.5 + 3) ** 2 / 2, rel=1e-12)
    wide = found({"kind": "mean"}, workload=[[3.0, 4.0]])
    assert wide == pytest.approx(25 / 2, rel=1e-12)
    tall = found({"kind": "mean"}, workload=[[1.0, 0], [1, 0], [0, 1]])
    assert tall == pytest.approx((2**0.5 + 1) ** 2 / 2 / 3, rel=1e-12)


def test_bounds_over_patterns() -> None:
    """One pattern of two steps: F = 2 I costs 4 (diagonal of F F^T), and W A F = 2 I has the nuclear norm 4."""
    spec = {"participation": {"kind": "fixed_epochs", "epochs": 2}, "objective": {"kind": "mean"}}
    proved = bound.lower_bound(spec, {"factors": 2 * np.eye(2)[None]}, integers(np.eye(2)))
    assert proved is not None and float(proved) == pytest.approx(4**2 / 4 / 2, rel=1e-12)


def test_what_is_unknown_of_the_workload_lowers_the_trace() -> None:
    """A within one unit, Q = F = I: the trace is 6 + 8, less one for each entry of Q."""
    pieces = [bound.Piece(np.array([j]), np.array([[1.0]])) for j in range(2)]
    workload = Numbers(np.array([[6, 0], [1, 8]], dtype=object), 0, 1)
    assert bound.trace(limbs(np.eye(2)), np.ones(2), [-1, -1], pieces, workload) == 14 - 2


def test_what_is_unknown_of_both_factors_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers off by up to 2 and by up to 3 in either direction, at each of four places."""
    through = bound._through
    monkeypatch.setattr(bound, "_through", lambda rows, block: through(rows, block)._replace(radius=3 << 52))
    entries, block = np.array([[40, -10], [50, 80]], dtype=object), np.array([[1.0, 0.0], [-2.0, 4.0]])
    guess = np.array([[16.0, -24.0], [8.0, 57.0]])
    part = (guess @ block.T).astype(int)
    least = sum(
        min((int(p) + a) * (int(e) + b) for a in (-3, 3) for b in (-2, 2))
        for p, e in zip(part.flat, entries.flat, strict=True)
    )
    slack = 2 * int(abs(part).sum()) + 3 * int(abs(entries).sum()) + 4 * 2 * 3
    assert least >= int((part * entries).sum()) - slack
    pieces = [bound.Piece(np.arange(2), block)]
    found = bound.trace(limbs(guess), np.ones(2), [-1, -1], pieces, Numbers(entries, -4, 2))
    assert found == Fraction(int((part * entries).sum()) - slack, 16) > 0


def test_what_is_no_evidence_or_none_of_this_kind() -> None:
    epochs = {"kind": "fixed_epochs", "epochs": 2}
    factors = {"factors": 2 * np.eye(2)[None]}

    def asked(dual: dict[str, np.ndarray], objective: str = "mean", participation: Any = None) -> Fraction | None:
        spec = {"participation": participation or {"kind": "single"}, "objective": {"kind": objective}}
        return bound.lower_bound(spec, dual, integers(np.eye(2)))

    for nothing in (
        asked({}),
        asked(ONES, "max"),
        asked(factors),
        asked(ONES, participation=epochs),
        asked(ONES | factors, "max", epochs),
    ):
        assert nothing is None
    assert asked(ONES | factors) is not None and asked(ONES | factors, participation=epochs) is not None
    half = asked({"weights": np.array([1.0, 0.0])})
    assert half is not None and float(half) == pytest.approx(1 / 2, rel=1e-12)
    for weights in ([1.0], [1.0, -1.0], [1.0, np.nan], [np.inf, 1.0]):
        with pytest.raises(CertificateError, match=r"dual\.weights must be 2 finite non-negative numbers"):
            asked({"weights": np.array(weights)})
        with pytest.raises(CertificateError, match=r"dual\.row_weights must be 2 finite"):
            asked(ONES | {"row_weights": np.array(weights)}, "max")
    for wrong in (np.eye(2), np.ones((1, 3, 2)), np.full((1, 2, 2), np.nan)):
        with pytest.raises(CertificateError, match=r"dual\.factors must be finite, of shape \(1, 2, 2\)"):
            asked({"factors": wrong}, participation=epochs)
    with pytest.raises(CertificateError, match="all zero"):
        asked({"weights": np.zeros(2)})
    with pytest.raises(CertificateError, match="no polar factor"):
        bound.polar(np.full((2, 2), 1e300), [bound.Piece(np.arange(2), np.full((2, 2), 1e300))])


def test_how_far_from_orthogonal() -> None:
    for array in ([[1.0, 0], [0, 4]], [[1.0, 0], [0, 4], [0, 0]], [[1.0, 0, 0], [0, 4, 0]]):
        assert bound.defect(limbs(np.array(array))) == 15
    assert bound.defect(limbs(np.array([[0.5]]))) == Fraction(3, 4)
    assert bound.defect(Limbs(np.array([[[2.0]]]), 0, 1)) >= 3 + 2 * (2**18 + 1)  # what the product may be off by
    assert bound._cost(bound.Piece(np.array([0]), np.array([[1.0, 2.0**-200]]))) > 1
