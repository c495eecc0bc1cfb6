"""Lower bounds of long recursions by log-determinants: against fractions, singular values and whole matrices."""

from __future__ import annotations

import decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_files import fractions, parts, sealed
from hypothesis import given
from hypothesis import strategies as st
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.encoding import tensor_digest
from factorize.errors import CertificateError
from factorize.exact import check_factor_file
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds import bound, determinants
from factorize.exact.bounds.determinant_kernels import determinant, pivots
from factorize.exact.losses.residual import approximation
from factorize.exact.spec import program_of, workload_numbers
from factorize.exact.spec.programs import Program, Statement, X
from factorize.factorization import Factorization
from factorize.solution import Outcome, Solution
from factorize.structures.toeplitz import ToeplitzMatrix

COSINE = {"kind": "cosine"}


def workloads(n: int) -> dict[str, dict[str, Any]]:
    rates = [1.0, 0.0, 0.5, 3.0] * n
    return {
        "identity": {"kind": "identity", "n": n},
        "prefix": {"kind": "prefix", "n": n, "learning_rates": None},
        "decay": {"kind": "decay", "n": n, "rate": 0.75},
        "momentum": {"kind": "momentum", "n": n, "momentum": 0.9},
        "nesterov": {"kind": "momentum", "n": n, "momentum": 0.9, "nesterov": True, "learning_rates": COSINE},
        "rates": {"kind": "schedule", "n": n, "learning_rates": rates[:n]},
        "coupled": {"kind": "weight_decay", "n": n, "rate": 0.125, "mode": "coupled", "momentum": 0.5},
        "decoupled": {"kind": "weight_decay", "n": n, "rate": 0.1, "mode": "decoupled", "learning_rates": rates[:n]},
        "srg": {"kind": "srg", "n": n, "momentum": 0.9, "decay": 0.5},
        "mu2 q": {"kind": "mu2", "n": n, "output": "q"},
        "mu2 w": {"kind": "mu2", "n": n, "output": "w"},
        "mu2 x": {"kind": "mu2", "n": n, "output": "x"},
    }


NAMES = list(workloads(4))
OBJECTIVES = ("mean", "lambda_tau", "weighted", "max")


def document(name: str, objective: str, n: int) -> dict[str, Any]:
    workload = {key: value for key, value in workloads(n)[name].items() if value is not None}
    options: dict[str, dict[str, Any]] = {
        "lambda_tau": {"tau": 3},
        "weighted": {"weights": [1.0, *(float(i % 3) for i in range(1, n))]},
    }
    chosen = {"kind": objective, **options.get(objective, {})}
    return spec_of(workload, "dense", objective=chosen).document()


def target(spec: dict[str, Any], evidence: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """W A diag(sqrt v) in doubles and what its squared norm is divided by."""
    numbers = workload_numbers(spec["workload"], {})
    assert numbers is not None
    rows, n = approximation(numbers), spec["workload"]["n"]
    kind, v = spec["objective"]["kind"], evidence["weights"]
    divisor = v.sum()
    if kind == "mean":
        divisor *= n
    elif kind == "weighted":
        rows = np.sqrt(np.array(spec["objective"]["weights"]))[:, None] * rows
    elif kind == "max":
        rows, divisor = np.sqrt(evidence["row_weights"])[:, None] * rows, divisor * evidence["row_weights"].sum()
    else:
        tau = spec["objective"]["tau"]
        before = [rows[(t - 1) // tau * tau - 1] * (t > tau) for t in range(1, n + 1)]
        rows = (rows - before) * np.where(np.arange(1, n + 1) % tau == 0, 1.0, tau**-0.5)[:, None]
    return rows * np.sqrt(v), float(divisor)


def evidence_of(rng: np.random.Generator, n: int, spread: float) -> dict[str, np.ndarray]:
    return {"weights": 10.0 ** rng.uniform(-spread, spread, n), "row_weights": rng.random(n)}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_just_below_the_nuclear_norm(name: str, objective: str) -> None:
    for n, spread, seed in ((1, 1, 0), (5, 2, 1), (60, 1, 2), (60, 4, 3)):
        spec = document(name, objective, n)
        evidence = evidence_of(np.random.default_rng(seed), n, spread)
        if name in ("rates", "decoupled") and n > 1:
            evidence["weights"][0] = 0.0
        matrix, divisor = target(spec, evidence)
        true = np.linalg.svd(matrix, compute_uv=False).sum() ** 2 / divisor
        found = determinants.lower_bound(spec, evidence)
        assert found is not None
        assert true * (1 - 1e-11) <= float(found) <= true * (1 - 1e-14) or true == found == 0


def exact_determinant(matrix: list[list[Fraction]]) -> Fraction:
    rows, total = [list(row) for row in matrix], Fraction(1)
    for i, pivot in enumerate(rows):
        total *= pivot[i]
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            row[i:] = [a - factor * b for a, b in zip(row[i:], pivot[i:], strict=True)]
    return total


def rational_workload(spec: dict[str, Any]) -> list[list[Fraction]]:
    """A from the statements, in fractions."""
    n, found = spec["workload"]["n"], program_of(spec["workload"])
    assert found is not None
    if spec["objective"]["kind"] == "lambda_tau":
        found = determinants._restarted(found, n, spec["objective"]["tau"])
    program, output = found
    columns = []
    for j in range(n):
        states = dict.fromkeys(range(8), Fraction(0))
        column = []
        for i in range(n):
            states[X] = Fraction(int(i == j))
            for place, terms in program:
                factors = {s: factor[i] if isinstance(factor, list) else factor for s, factor in terms.items()}
                states[place] = sum((factor * states[s] for s, factor in factors.items()), Fraction(0))
            column.append(states[output])
        columns.append(column)
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("objective", ["mean", "lambda_tau", "weighted"])
@pytest.mark.parametrize("name", NAMES)
def test_restarted_recursions_are_the_workloads_differences(name: str, objective: str) -> None:
    spec = document(name, objective, 8)
    rows = rational_workload(spec)
    matrix, _ = target(spec | {"objective": {"kind": "mean"}}, {"weights": np.ones(8)})
    if objective == "lambda_tau":
        before = [[0.0] * 8 if t < 3 else list(matrix[t // 3 * 3 - 1]) for t in range(8)]
        matrix = matrix - np.array(before)
    assert np.allclose(np.array(rows, dtype=float), matrix, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("tau", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("name", ["prefix", "nesterov", "mu2 q", "mu2 w"])
def test_restarts_at_other_distances(name: str, tau: int) -> None:
    """At every step, at the last one, and at none."""
    spec = document(name, "mean", 8)
    whole = np.array(rational_workload(spec))
    rows = np.array(rational_workload(spec | {"objective": {"kind": "lambda_tau", "tau": tau}}))
    before = np.array([whole[t // tau * tau - 1] if t >= tau else np.full(8, Fraction(0)) for t in range(8)])
    assert (rows == whole - before).all()


@pytest.mark.parametrize("objective", ["mean", "lambda_tau"])
@pytest.mark.parametrize("name", NAMES)
def test_determinants_are_below_fractions_and_within_22_digits(name: str, objective: str) -> None:
    n, rng = 7, np.random.default_rng(len(name))
    spec = document(name, objective, n)
    found = program_of(spec["workload"])
    assert found is not None
    if objective == "lambda_tau":
        found = determinants._restarted(found, n, 3)
    rows = rational_workload(spec)
    inputs, weights = rng.random(n), rng.random(n)
    inputs[2], weights[4] = 0.0, 0.0
    given = (inputs, weights, determinants._states(found), *found.arrays(), found[1])
    (v,), (w,) = fractions(inputs[None]), fractions(weights[None])
    gram = [
        [w[i] * sum((rows[i][k] * v[k] * rows[j][k] for k in range(n)), Fraction(0)) for j in range(n)]
        for i in range(n)
    ]
    for power in (-40, -3, 0, 5, 60):
        shifted = [[gram[i][j] * Fraction(2) ** power + (i == j) for j in range(n)] for i in range(n)]
        true = exact_determinant(shifted)
        high, low, places = determinant(2.0**power, *given)
        value = (Fraction(high) + Fraction(low)) * Fraction(2) ** (400 * places)
        assert true * (1 - Fraction(1, 10 ** (22 if power < 60 else 6))) <= value
        assert value * (1 - n * Fraction(1, 2**94)) <= true
    inputs[2] = weights[4] = 1.0
    high, low, places = pivots(*given)
    true = Fraction(1)
    for i in range(n):
        true *= Fraction(inputs[i]) * Fraction(weights[i]) * rows[i][i] ** 2
    value = (Fraction(high) + Fraction(low)) * Fraction(2) ** (400 * places)
    assert true * (1 - Fraction(1, 10**11)) <= value <= true


def test_what_rounds_more_than_a_variance_is_given_up() -> None:
    """Where the second state is known from the first, an exact observation of it has no variance but what was lost."""
    program = [(0, {X: Fraction(1)}), (1, {0: Fraction(1, 3)}), (2, {1: Fraction(3), 0: Fraction(-1)})]
    given = (np.ones(9), np.ones(9), 3, *Program(program, 2).arrays(), 2)
    assert determinant(1.0, *given)[0] == 1.0
    assert determinant(2.0**120, *given) == (0.0, 0.0, 0)
    assert pivots(*given) == (0.0, 0.0, 0)
    growing = [(0, {0: Fraction(10**9), X: Fraction(1)})]
    given = (np.ones(40), np.eye(1, 40, 39)[0], 1, *Program(growing, 0).arrays(), 0)
    assert determinant(2.0**-300, *given) == (0.0, 0.0, 0)


def test_products_beyond_the_range_of_doubles() -> None:
    given = (np.ones(300), np.ones(300), 0, *Program([], X).arrays(), X)
    high, low, places = determinant(2.0**100, *given)
    assert places > 50
    found = determinants._logarithm(high, low, places, relative=0.0)
    assert found is not None and float(found) == pytest.approx(300 * 100 * np.log(2), rel=1e-15)
    for factor, sign in ((2.0**40, 1), (2.0**-40, -1)):
        high, low, places = pivots(np.full(300, factor), *given[1:])
        assert places * sign > 10
        found = determinants._logarithm(high, low, places, relative=0.0)
        assert found is not None and float(found) == pytest.approx(sign * 300 * 40 * np.log(2), rel=1e-9)
    assert pivots(np.full(3, 1e-180), np.ones(3), *given[2:]) == (0.0, 0.0, 0)


@given(st.floats(2.0**-399, 2.0**399), st.integers(-3, 3))
def test_logarithms_are_cut_below(value: float, places: int) -> None:
    found = determinants._logarithm(value, 0.0, places, relative=0.0)
    assert found is not None
    with decimal.localcontext(prec=60):
        true = Fraction(decimal.Decimal(value).ln() + 400 * places * decimal.Decimal(2).ln())
    assert true - Fraction(1, 10**25) <= found <= true + Fraction(1, 10**55)
    below = determinants._logarithm(value, 0.0, places, relative=0.25)
    assert below == found - Fraction(1, 4)


def test_terms_that_never_become_small_end_at_the_range_of_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + r and a tail r (r + r^2 + ...), r the root of 1 / 2 cut down."""
    monkeypatch.setattr(determinants, "_FARTHEST", 2)
    r = determinants._RATIO
    assert determinants._right(lambda k: Fraction(1), None, 3) == 1 + r + r * r / (1 - r)


def test_the_cost_of_evidence_is_taken_from_above() -> None:
    """A sum that a double rounds down: 1 and a third of its last place."""
    weights = np.array([1.0, 2.0**-53 * 0.75])
    assert float(np.sum(weights)) < sum(map(Fraction, weights)) <= determinants._above(weights) < 1 + Fraction(1, 2**51)


def test_logarithms_near_one_keep_their_digits() -> None:
    found = determinants._logarithm(1.0, 2.0**-70, 0, relative=0.0)
    assert found is not None
    assert Fraction(1, 2**70) - Fraction(1, 2**139) <= found <= Fraction(1, 2**70)
    assert determinants._logarithm(0.0, 0.0, 0, relative=0.0) is None


def test_the_logarithm_of_one_is_not_above_0() -> None:
    assert determinants._series(Fraction(1)) == 0 and determinants._logarithm(1.0, 0.0, 0, relative=0.0) == 0
    for mantissa in (Fraction(3, 2), Fraction(5, 4), Fraction(2)):
        with decimal.localcontext(prec=70):
            true = Fraction((decimal.Decimal(mantissa.numerator) / mantissa.denominator).ln())
        assert true - Fraction(400, 2**160) <= determinants._series(mantissa) < true


def short_of_sum(measured: dict[int, Fraction], saturated: Fraction | None, n: int) -> Fraction:
    return determinants._right(measured.get, saturated, n)


def test_tails_are_bounded() -> None:
    """One singular value: every sum stays below the whole integral, and a node that is not enclosed ends the right one."""
    decimal.getcontext().prec = 50

    def measure(k: int) -> Fraction:
        return Fraction((1 + decimal.Decimal(2) ** k).ln())

    whole = sum(
        (float(measure(k)) * 2.0 ** (-k / 2) for k in range(-150, 150)),
    )
    left, right = determinants._left(measure), determinants._right(measure, Fraction(0), 1)
    assert whole * (1 - 3e-12) <= float(left + right) <= whole * (1 + 1e-15)
    plain = determinants._right(measure, None, 1)
    assert whole * (1 - 1e-10) <= float(left + plain) <= whole * (1 + 1e-15)
    ended = determinants._right(lambda k: measure(k) if k < 30 else None, None, 1)
    assert float(ended) <= float(plain) * (1 + 1e-15) and float(ended) >= float(plain) * (1 - 1e-3)
    with pytest.raises(NotEnclosed, match="grows too much"):
        determinants._left(lambda k: None)
    assert determinants._right(lambda k: None, None, 1) == 0


def test_other_evidence_and_other_problems_have_no_bound_of_this_kind() -> None:
    spec = document("momentum", "mean", 4)
    ones = {"weights": np.ones(4)}
    for changed in (
        {"participation": {"kind": "fixed_epochs", "epochs": 2}},
        {"workload": {"kind": "window", "n": 4, "width": 2}},
        {"objective": {"kind": "max"}},
    ):
        assert determinants.lower_bound(spec | changed, ones) is None
    assert determinants.lower_bound(spec, {"factors": np.ones(4)}) is None
    for weights in (np.ones(3), -np.ones(4), np.array([1.0, 1.0, 1.0, np.nan]), np.zeros(4)):
        with pytest.raises(CertificateError, match="non-negative"):
            determinants.lower_bound(spec, {"weights": weights})


def test_learning_rates_of_another_length_are_refused() -> None:
    spec = document("momentum", "mean", 4)
    spec["workload"]["learning_rates"] = [1.0, 2.0, 3.0]
    with pytest.raises(CertificateError, match="3 learning rates for n=4"):
        determinants.lower_bound(spec, {"weights": np.ones(4)})


def test_evidence_in_fewer_bits_counts_as_it_is() -> None:
    spec, weights = document("momentum", "mean", 4), np.array([1e30, 1e-9, 0.1, 1.0], dtype=np.float32)
    assert determinants.lower_bound(spec, {"weights": weights}) == determinants.lower_bound(
        spec, {"weights": weights.astype(np.float64)}
    )


def test_numbers_beyond_the_range_of_doubles_say_nothing() -> None:
    program: list[Statement] = [(0, {X: Fraction(10) ** 305}), (1, {0: Fraction(1)})]
    given_ = (np.full(3, 1e-200), np.ones(3), 2, *Program(program, 1).arrays(), 1)
    assert determinant(1.0, *given_) == (0.0, 0.0, 0)


def test_lengths_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinants, "LARGEST", 4)
    assert determinants.lower_bound(document("momentum", "mean", 4), {"weights": np.ones(4)}) is not None
    monkeypatch.setattr(determinants, "LARGEST", 3)
    with pytest.raises(NotEnclosed, match="up to n=3"):
        determinants.lower_bound(document("momentum", "mean", 4), {"weights": np.ones(4)})


@pytest.mark.parametrize("name", ["momentum", "nesterov", "srg", "mu2 x"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_files_with_long_recursions(name: str, objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bound as by whole matrices; a claim above what the evidence proves fails, and so does spoilt evidence."""
    n = 48
    spec = document(name, objective, n)
    evidence = evidence_of(np.random.default_rng(1), n, 0.1)
    if objective != "max":
        del evidence["row_weights"]
    strategy = ToeplitzMatrix(0.5 ** np.arange(4.0), n)
    made = Factorization.from_solution(
        parse_spec(spec), Solution(strategy, Outcome.CLOSED_FORM, 0, evidence), solver={"mechanism": "identity"}
    )
    assert made.certificate.lower_bound is not None
    numbers = workload_numbers(spec["workload"], {})
    assert numbers is not None
    whole, long = bound.lower_bound(spec, made.dual, numbers), determinants.lower_bound(spec, made.dual)
    assert whole is not None and long is not None
    assert float(whole) * (1 - 1e-11) <= float(long) <= float(whole) * (1 + 1e-14)
    monkeypatch.setattr("factorize.exact.losses.residual.LARGEST", 8)
    report = check_factor_file(sealed(*parts(made)))
    assert report.supported, report.failed
    assert any("no strategy matrix has an objective below" in text for text in report.checked)
    assert any("every loss enclosed" in text for text in report.checked)
    manifest, tensors = parts(made)
    manifest["certificate"]["lower_bound"]["objective"] = float(long) * (1 + 1.01e-9)
    manifest["certificate"]["relative_gap"] = made.certificate.loss.objective / float(long) / (1 + 1.01e-9) - 1
    assert any("not supported" in text for text in check_factor_file(sealed(manifest, tensors)).failed)
    manifest, tensors = parts(made)
    tensors["dual.weights"][-1] *= 1e6
    manifest["dual"]["sha256"] = tensor_digest([tensors[tensor] for tensor in manifest["dual"]["tensors"]])
    assert any("not supported" in text for text in check_factor_file(sealed(manifest, tensors)).failed)


def test_a_solved_momentum_workload_is_proved_at_a_length_of_both_kinds() -> None:
    spec = {"workload": {"kind": "momentum", "n": 256, "momentum": 0.9}, "tolerance": 1e-6}
    made = solvers.solve(parse_spec(spec))
    numbers = workload_numbers(made.spec.document()["workload"], {})
    assert numbers is not None
    whole = bound.lower_bound(made.spec.document(), made.dual, numbers)
    long = determinants.lower_bound(made.spec.document(), made.dual)
    assert whole is not None and long is not None
    assert float(whole) * (1 - 1e-11) <= float(long) <= made.certificate.loss.objective


@given(st.integers(0, 200))
def test_determinants_of_any_recursion_are_not_above_the_true_one(seed: int) -> None:
    """States of every size, cancelling sums, zeros, and observations from hopeless to nearly exact."""
    rng = np.random.default_rng(seed)
    n, states = 5, int(rng.integers(1, 4))
    program: list[Statement] = []
    for place in range(states):
        sources = rng.choice(states + 1, size=rng.integers(1, 4), replace=True) - 1
        sizes = rng.choice([-1.0, 1.0, 0.0, 1 / 3], len(sources)) * 10.0 ** rng.uniform(-6, 6, len(sources)).round()
        program.append((place, {int(s): Fraction(size) for s, size in zip(sources, sizes, strict=True)}))
    inputs, weights = 10.0 ** rng.uniform(-9, 0, (2, n)) * rng.choice([0.0, 1.0], (2, n), p=[0.2, 0.8])
    output, power = states - 1, int(rng.integers(-120, 121))
    columns = []
    for j in range(n):
        held = dict.fromkeys(range(states), Fraction(0))
        column = []
        for i in range(n):
            held[X] = Fraction(int(i == j))
            for place, terms in program:
                held[place] = sum((factor * held[s] for s, factor in terms.items()), Fraction(0))
            column.append(held[output])
        columns.append(column)
    v, w = [Fraction(x) for x in inputs], [Fraction(x) * Fraction(2) ** power for x in weights]
    pairs = [
        [sum((columns[k][i] * v[k] * columns[k][j] for k in range(n)), Fraction(0)) for j in range(n)] for i in range(n)
    ]
    true = exact_determinant([[w[i] * pairs[i][j] + (i == j) for j in range(n)] for i in range(n)])
    given_ = (inputs, weights, states, *Program(program, output).arrays(), output)
    high, low, places = determinant(2.0**power, *given_)
    value = (Fraction(high) + Fraction(low)) * Fraction(2) ** (400 * places)
    assert value * (1 - n * Fraction(1, 2**94)) <= true
    high, low, places = pivots(*given_)
    entries = [v[i] * Fraction(weights[i]) * columns[i][i] ** 2 for i in range(n)]
    product = Fraction(1)
    for entry in entries:
        product *= entry
    assert (Fraction(high) + Fraction(low)) * Fraction(2) ** (400 * places) <= product


def test_weights_that_leave_nothing_prove_nothing() -> None:
    """What logarithms near 0 are off by counts 2^150 times: the norm came out below 0, and its square was a bound."""
    spec: dict[str, Any] = {
        "workload": {"kind": "identity", "n": 2},
        "participation": {"kind": "single"},
        "objective": {"kind": "weighted", "weights": [0.0, 1.0]},
    }
    dual, numbers = {"weights": np.array([1.0, 1e-120])}, workload_numbers(spec["workload"], {})
    assert numbers is not None
    whole = bound.lower_bound(spec, dual, numbers)
    assert whole is not None and 0 < whole < 1e-110
    found = determinants.lower_bound(spec, dual)
    assert found is not None and found <= whole


def test_what_logarithms_are_off_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the identity, four steps: log det(I + I) = 4 log 2 less 4 times what a step loses, and a product of pivots 1."""
    monkeypatch.setattr(determinants, "_LOST", 2.0**-10)
    monkeypatch.setattr(determinants, "_LOST_IN_PIVOTS", 2.0**-5)
    seen: list[tuple[Any, Any, int]] = []

    def right(measure: Any, saturated: Any, n: int) -> Fraction:
        seen.append((measure(0), saturated, n))
        return Fraction(2)

    monkeypatch.setattr(determinants, "_left", lambda measure: measure(0))
    monkeypatch.setattr(determinants, "_right", right)
    given_ = determinants.Recursion(np.ones(4), np.ones(4), 0, *Program([], X).arrays(), X)
    found = determinants._norm(given_)
    ((value, saturated, n),) = seen
    assert n == 4 and 0 <= -saturated - Fraction(4, 32) <= Fraction(1, 2**42)
    assert abs(value - 4 * determinants._LN2_BELOW + Fraction(4, 1024)) <= Fraction(1, 2**90)
    assert found == (value + 2) * determinants._LN2_BELOW / (2 * determinants._PI_ABOVE * (1 + determinants._ALIASING))
    assert determinants._ALIASING >= Fraction(1, 10**13)
    assert determinants._LN2_BELOW < determinants._LN2_ABOVE


@pytest.mark.parametrize(
    ("values", "asked"),
    [([1.0, 0.25, 1.0], 2), ([1.0, 0.75, 0.25], 3), ([100.0, 20.0, 1.0], 2), ([100.0, 30.0, 1.0], 3)],
)
def test_where_the_left_sum_ends(values: list[float], asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a term, and what is missing of it, are below a quarter of the sum: from 2^(1/2) v_1 + 2 v_2 on."""
    monkeypatch.setattr(determinants, "_CUTOFF", 0.25)
    seen: list[int] = []

    def measure(k: int) -> Fraction:
        seen.append(k)
        return Fraction(values[-k - 1]) if -k <= len(values) else Fraction(0)

    found, r = determinants._left(measure), determinants._RATIO
    assert seen == list(range(-1, -asked - 1, -1))
    terms = [factor * Fraction(value) for factor, value in zip((2 * r, 2, 4 * r), values[:asked], strict=False)]
    assert found == sum(terms) + terms[-1] * r / (1 - r)


def test_where_the_right_sum_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where L(1) is its own line already; else its tail is the larger of both."""
    seen: list[int] = []

    def measure(k: int) -> Fraction:
        seen.append(k)
        return Fraction(5) + 3 * k * determinants._LN2_BELOW

    r = determinants._RATIO
    steps = 3 * determinants._LN2_BELOW * r / (1 - r) ** 2
    assert determinants._right(measure, Fraction(5), 3) == 5 + 5 * r / (1 - r) + steps
    assert seen == [0]
    monkeypatch.setattr(determinants, "_FARTHEST", 2)
    line = -1 + 3 * determinants._LN2_BELOW
    found = determinants._right(lambda k: Fraction(1), Fraction(-1), 3)
    assert found == 1 + r + r * (line * r / (1 - r) + steps)
    low = determinants._right(lambda k: Fraction(1), Fraction(-100), 3)
    assert low == 1 + r + r * r / (1 - r)
