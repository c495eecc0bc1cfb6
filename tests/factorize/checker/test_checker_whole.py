"""The exact checker's arithmetic and its sensitivities, against fractions and every pattern."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import arb

from factorize.checker.arithmetic.balls import of_doubles
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.check import check_factor_file, check_matrix_sensitivity
from factorize.checker.losses import series, variances, whole_matrices
from factorize.checker.losses.products import WorkloadRows
from factorize.checker.sensitivity import bracket_sensitivity
from factorize.checker.spec.objectives import weighing_of
from factorize.checker.strategy import Strategy
from factorize.errors import (
    CertificateError,
    InvalidStrategy,
    TooLarge,
)
from factorize.structures.buffered import BufferedMatrix


def turning(n: int) -> dict[str, np.ndarray]:
    """Buffers whose transitions rotate: their absolute values grow without end, and they themselves do not."""
    angle, half = 0.3, np.full((n, 2), 0.5)
    turn = 0.999 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return {"diagonal": np.ones(n), "transition": np.tile(turn, (n, 1, 1, 1)), "input": half, "output": half}


def test_rotating_buffers_are_enclosed() -> None:
    n = 1000
    exact = Strategy("state_space", turning(n), n)
    bracket = bracket_sensitivity(exact, {"kind": "single"})
    assert bracket.exact
    assert float(bracket.upper) == pytest.approx(BufferedMatrix(*turning(n).values()).column_norms_squared().max())
    n = 400
    values, far = Strategy("state_space", turning(n), n).near_columns(np.arange(n))
    dense = BufferedMatrix(*turning(n).values()).dense()
    assert far.max() < 1e-11 and np.allclose(values, dense, rtol=0, atol=1e-12)


def test_long_structured_matrices() -> None:
    n = 20_000
    column = 0.9 ** np.arange(64.0)
    bands = np.zeros((8, n))
    for d in range(8):
        bands[d, : n - d] = 0.5**d
    twice = {"kind": "min_sep", "min_sep": 5_000, "max_participations": 2}
    toeplitz = bracket_sensitivity(Strategy("banded_toeplitz", {"coefficients": column}, n), twice)
    banded = bracket_sensitivity(Strategy("banded", {"bands": bands}, n), {"kind": "fixed_epochs", "epochs": 4})
    assert toeplitz.lower <= 2 * sum(Fraction(c) ** 2 for c in column) <= toeplitz.upper and toeplitz.exact
    assert banded.lower <= 4 * sum(Fraction(1, 4**d) for d in range(8)) <= banded.upper and banded.exact
    with pytest.raises(TooLarge, match="columns that overlap are formed up to"):
        bracket_sensitivity(Strategy("banded", {"bands": bands}, n), {"kind": "min_sep", "min_sep": 4})


def test_matrices_that_are_no_strategies() -> None:
    for array, message in ((np.triu(np.ones((3, 3))), "transposed"), (np.ones((3, 2)), "square")):
        with pytest.raises(InvalidStrategy, match=message):
            check_matrix_sensitivity(array, {"kind": "single"})


def test_entries_whose_squares_overflow_are_checked_without_a_warning() -> None:
    assert not check_matrix_sensitivity(np.eye(3) * 1e150, {"kind": "single"}, claim=1.0).supported
    assert check_matrix_sensitivity(np.eye(3) * 1e150, {"kind": "single"}, claim=1.1e150).supported
    with pytest.raises(CertificateError, match="scale C"):
        check_matrix_sensitivity(np.eye(3) * 1e200, {"kind": "single"}, claim=1.1e200)


def test_the_checker_shares_the_reader_and_no_other_code_with_what_it_checks() -> None:
    allowed = {"factorize.encoding", "factorize.errors", "factorize.spec", "factorize.numbers.compiling"}
    allowed.add("factorize.format.signatures")  # of the command alone
    for path in Path(check_factor_file.__code__.co_filename).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(name.name.startswith(("factorize", "solvers", "api")) for name in node.names), path
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert node.level == 0 and module != "factorize" and "import_module" not in {n.name for n in node.names}
                if module.startswith(("factorize", "solvers", "api")):
                    assert module in allowed or module.startswith(("factorize.checker", "factorize.format")), path


def test_states_of_very_different_sizes_are_enclosed_as_well() -> None:
    """Powers of two that move from outputs to inputs change no entry of C."""
    n, rng = 300, np.random.default_rng(9)
    parts = {
        "diagonal": np.ones(n),
        "decay": np.full((n, 2), 0.99),
        "input": rng.random((n, 2)),
        "output": rng.random((n, 2)),
    }
    moved = parts | {"input": parts["input"] * [1.0, 2.0**60], "output": parts["output"] * [1.0, 2.0**-60]}
    prefix, mean = {"kind": "prefix", "n": n}, {"kind": "mean"}
    found = [variances.losses(Strategy("buffered", given, n), prefix, mean, 1 << 24) for given in (parts, moved)]
    assert found[0] is not None and found[0] == found[1]


def test_a_series_whose_inverse_grows_or_with_too_many_restarts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    column = of_doubles(np.concatenate([[1.0, 3.0], np.zeros(62)]))
    found = series.losses(column, column, weighing_of({"kind": "mean"}, 64))  # A = C, so that B is the identity
    assert found.total == pytest.approx((64, 64), rel=1e-12)
    long = of_doubles(np.concatenate([[1.0, 3.0], np.zeros(998)]))
    with pytest.raises(NotEnclosed, match="grows too much"):
        series.losses(long, of_doubles(np.eye(1, 1000)[0]), weighing_of({"kind": "mean"}, 1000))
    monkeypatch.setattr(series, "MAX_RESTART_WORK", 64 * 32 - 1)
    with pytest.raises(NotEnclosed, match="followed up to n tau = 2047; got n=64"):
        series.losses(column, column, weighing_of({"kind": "lambda_tau", "tau": 32}, 64))
    with pytest.raises(NotEnclosed, match="differ from 0"):
        series.quotient([arb(1)], [arb(0, 1)])


CHAINS: list[dict[str, Any]] = [
    {"kind": "prefix"},
    {"kind": "decay", "rate": 0.9},
    {"kind": "schedule", "learning_rates": [1.0, 0.5, 1e-3, 1e-6, 0.25, 1.0, 2.0, 1e-9, 1.0, 0.125, 1.0, 1.0]},
    {"kind": "momentum", "momentum": 0.9},
]


@pytest.mark.parametrize("workload", CHAINS, ids=lambda workload: workload["kind"])
@pytest.mark.parametrize("apart", [0.0, 1e-6, 1e-2])
def test_the_norm_of_the_inverse_holds_for_every_guess(workload: dict[str, Any], apart: float) -> None:
    n, rng = 12, np.random.default_rng(5)
    array = np.tril(rng.normal(size=(n, n))) + 4 * np.eye(n)
    entries, rows = whole_matrices.entries_of(Strategy("dense", {"": array}, n)), WorkloadRows({"n": n, **workload}, {})
    assert (rows.chain is None) == (workload["kind"] == "momentum")
    inverse = np.linalg.inv(array)
    guess = np.tril(inverse * (1 + apart * rng.normal(size=(n, n))))
    decoder = rows.guess(guess)
    rest = whole_matrices.residual_norms(decoder, entries, rows)
    found = whole_matrices._norm_of_inverse(guess, entries, rows, decoder, rest)
    true = float(np.linalg.norm(inverse, 2))
    assert true <= found * (1 + 1e-12)
    assert apart or found <= 3 * true
