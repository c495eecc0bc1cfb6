"""The streaming optimum with few buffers: against dense optima, finite differences and its own dense form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import solved, spec_of

from factorize import solvers
from factorize.errors import Cancelled, SolveFailed, UnsupportedProblem
from factorize.solvers import automatic
from factorize.solvers.buffered import buffered_optimum as buffered_linear
from factorize.solvers.buffered.buffered_optimum import optimise, thinned
from factorize.solvers.buffered.loss import BufferedLoss, places, starts_of_blocks
from factorize.solvers.buffered.points import differences
from factorize.solvers.buffered.tuned_poles import tune
from factorize.solvers.methods import trust_region
from factorize.solvers.methods.poles import zolotarev_with
from factorize.solvers.methods.trust_region import minimise
from factorize.solvers.problem import Reporter
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.momentum import MomentumFilters
from factorize.solvers.single.newton import maximise
from factorize.spec import Spec, parse_spec

QUIET = Reporter(lambda _step: None)

STEP = {"kind": "step", "every": 50, "factor": 0.3}
SPECS: dict[str, dict[str, Any]] = {
    "prefix": {"workload": {"kind": "prefix", "n": 192}},
    "lambda_tau": {"workload": {"kind": "prefix", "n": 192}, "objective": {"kind": "lambda_tau", "tau": 48}},
    "uneven blocks": {"workload": {"kind": "prefix", "n": 192}, "objective": {"kind": "lambda_tau", "tau": 70}},
    "schedule": {"workload": {"kind": "schedule", "n": 192, "learning_rates": STEP}},
    "weighted decay": {
        "workload": {"kind": "weight_decay", "n": 192, "rate": 0.01, "mode": "decoupled"},
        "objective": {"kind": "weighted", "weights": [1.0 + i % 3 for i in range(192)]},
    },
}
MOMENTUM = {"workload": {"kind": "momentum", "n": 192, "momentum": 0.9}}


def buffered(document: dict[str, Any], buffers: int, **more: Any) -> Spec:
    return spec_of(document, {"kind": "buffered_linear", "buffers": buffers}, **more)


def gap(document: dict[str, Any], buffers: int) -> float:
    certificate = solvers.solve(buffered(document, buffers, tolerance=1e-3)).certificate
    assert certificate.sensitivity.kind == "exact"
    assert 1 - 1e-11 < certificate.sensitivity.value <= 1
    assert certificate.relative_gap is not None
    return certificate.relative_gap


def example(n: int = 30, m: int = 3, seed: int = 0) -> tuple[BufferedLoss, np.ndarray, np.ndarray]:
    """A workload with a restart, and its loss."""
    rng = np.random.default_rng(seed)
    p, q = rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n)
    q[[0, n // 3]] = 0.0
    structure = Bidiagonal(p, q)
    optimum = maximise(structure, tolerance=1e-9)
    loss = BufferedLoss(p, q, optimum.v, m, optimum.lower_bound, 2)
    loss.use(zolotarev_with(*structure.interval(optimum.v), count=m + 1))
    return loss, p, q


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gradient_is_that_of_differences(seed: int) -> None:
    loss, _, _ = example(seed=seed)
    z = 0.3 * np.random.default_rng(seed).normal(size=loss.origin.size)
    value, gradient = loss(z)
    assert value == loss.value(z)
    steps = 1e-5 * np.eye(z.size)
    differences = np.array([(loss.value(z + step) - loss.value(z - step)) / 2e-5 for step in steps])
    np.testing.assert_allclose(gradient, differences, atol=2e-8 * np.abs(gradient).max())


def test_the_gradient_is_that_of_differences_over_several_segments() -> None:
    """The adjoints recompute segments of 256 steps."""
    loss, _, _ = example(n=600, m=2)
    z = 0.1 * np.random.default_rng(0).normal(size=loss.origin.size)
    along = np.random.default_rng(1).normal(size=z.size)
    slope = (loss.value(z + 1e-5 * along) - loss.value(z - 1e-5 * along)) / 2e-5
    assert loss(z)[1] @ along == pytest.approx(slope, rel=1e-6)


def test_the_loss_is_that_of_the_dense_matrix() -> None:
    loss, p, q = example()
    z = 0.2 * np.random.default_rng(5).normal(size=loss.origin.size)
    strategy = loss.strategy(z)
    workload = np.linalg.inv(np.diag(p) - np.diag(q[1:], -1))
    decoder = workload @ np.linalg.inv(strategy.dense())
    assert (decoder**2).sum() / loss._bound - 1 == pytest.approx(loss.value(z), rel=1e-8)
    np.testing.assert_allclose((strategy.dense() ** 2).sum(axis=0), 1, rtol=1e-11)


@pytest.mark.parametrize("name", SPECS)
def test_the_distance_to_the_optimum_falls_with_the_buffers(name: str) -> None:
    gaps = [gap(SPECS[name], buffers) for buffers in (1, 2, 4, 6)]
    assert all(0 <= after < 0.5 * before for before, after in zip(gaps, gaps[1:], strict=False)), gaps
    assert gaps[2] < 5e-4
    assert gaps[3] < 6e-5


@pytest.mark.parametrize("name", ["prefix", "schedule", "uneven blocks"])
def test_the_gap_is_the_distance_to_the_dense_optimum(name: str) -> None:
    dense = solvers.solve(parse_spec(SPECS[name])).certificate.loss.objective
    found = solvers.solve(buffered(SPECS[name], 3, tolerance=1e-3)).certificate
    assert found.loss.objective / dense - 1 == pytest.approx(found.relative_gap, abs=1e-8)


def test_optimising_is_worth_a_digit() -> None:
    """6 buffers at n = 512: the truncation by poles alone is 4e-6 away at best."""
    found = optimise(np.ones(512), np.r_[0.0, np.ones(511)], 6, 1e-9, QUIET)
    assert found.end.finished
    assert found.end.value < 2.5e-7
    assert found.loss.value(found.loss.origin) > 10 * found.end.value


FILTERED: dict[str, dict[str, Any]] = {
    "momentum": MOMENTUM,
    "momentum with a schedule": {"workload": {**MOMENTUM["workload"], "learning_rates": STEP}},
    "nesterov": {"workload": {**MOMENTUM["workload"], "nesterov": True}},
    "srg": {"workload": {"kind": "srg", "n": 192, "momentum": 0.8, "decay": 0.9}},
}


@pytest.mark.parametrize("name", FILTERED)
def test_a_projected_optimum_needs_few_states(name: str) -> None:
    gaps = [gap(FILTERED[name], buffers) for buffers in (1, 2, 3, 5)]
    assert all(after < 0.5 * before for before, after in zip(gaps, gaps[1:], strict=False)), gaps
    assert gaps[2] < 1e-4
    assert gaps[3] < 1e-6


def test_too_few_states_to_invert_are_an_error() -> None:
    mu2 = {"workload": {"kind": "mu2", "n": 192, "output": "x"}}
    with pytest.raises(SolveFailed, match="use more buffers"):
        solvers.solve(buffered(mu2, 1))
    assert gap(mu2, 4) < 1e-5 < gap(mu2, 2) < 1e-2


def test_long_momentum_has_pairs_of_buffers() -> None:
    structure = MomentumFilters(np.full(192, 0.9), np.ones(192), np.ones(192))
    optimum = maximise(structure, tolerance=1e-9)
    workload = parse_spec(MOMENTUM).workload.state_space()
    assert workload is not None
    found = [
        tune(
            structure,
            optimum.v,
            count,
            workload=workload,
            lower_bound=optimum.lower_bound,
            tolerance=1e-3,
            report=QUIET,
        )
        for count in (1, 2, 4)
    ]
    assert found[2].value < 0.5 * found[1].value < 0.25 * found[0].value
    assert found[2].value < 3e-3
    assert found[2].strategy.tensors()["transition"].shape == (192, 4, 2, 2)


@pytest.mark.parametrize("document", [SPECS["schedule"], MOMENTUM])
def test_the_recurrence_makes_the_noise(document: dict[str, Any]) -> None:
    """x = (y - eta . R s) / delta, s <- R s + g x, run by hand, against C^-1 y."""
    strategy = solvers.solve(buffered(document, 4, tolerance=1e-2)).strategy
    tensors = strategy.tensors()
    y = np.random.default_rng(3).normal(size=192)
    state, noise = np.zeros(4), np.empty(192)
    for i in range(192):
        if "decay" in tensors:
            state = tensors["decay"][i] * state
        else:
            state = tensors["transition"][i] @ state
        noise[i] = (y[i] - tensors["output"][i] @ state) / tensors["diagonal"][i]
        state = state + tensors["input"][i] * noise[i]
    np.testing.assert_allclose(noise, np.linalg.solve(strategy.dense(), y), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(strategy.inverse_rows(0, 192) @ y, noise, rtol=1e-10, atol=1e-12)


def test_auto_streams_a_long_workload() -> None:
    found = solved(20_000, tolerance=1e-4)
    assert found.spec.mechanism.kind == "buffered_linear"
    assert found.spec.mechanism.buffers == automatic.BUFFERS_AUTOMATIC
    assert found.certificate.converged
    assert 0 <= found.certificate.relative_gap < 5e-5
    assert found.certificate.sensitivity.kind == "exact"
    assert found.certificate.sensitivity.value <= 1
    assert found.strategy.structure == "buffered"


def test_one_workload_optimised_and_another_evaluated() -> None:
    document = {
        "workload": {"kind": "momentum", "n": 192, "momentum": 0.5},
        "optimize_for": SPECS["prefix"]["workload"],
    }
    found = solvers.solve(buffered(document, 3, tolerance=1e-2))
    own = solved(document["workload"])
    assert found.certificate.loss.objective > own.certificate.loss.objective
    assert found.certificate.lower_bound.objective <= own.certificate.loss.objective


def test_a_thinned_workload_keeps_its_blocks() -> None:
    ones, q = np.ones(20_000), np.ones(20_000)
    q[[0, 9_001]] = 0.0
    p_few, q_few = thinned(ones, q)
    assert starts_of_blocks(q_few).tolist() == [0, 1126]
    assert len(p_few) == 1126 + 1375
    short = np.where(np.arange(20_000) % 100 == 0, 0.0, 1.0)
    p_few, q_few = thinned(np.arange(20_000.0) + 1, short)
    assert len(p_few) % 100 == 0
    assert p_few[0] == 8_801
    assert starts_of_blocks(q_few).tolist() == list(range(0, len(p_few), 100))


def test_places_are_symmetric_in_each_block() -> None:
    x = places(np.array([0.0, 1.0, 1.0, 0.0, 1.0]))
    np.testing.assert_allclose(x, [-np.log(5), 0, np.log(5), -np.log(3), np.log(3)])


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (SPECS["prefix"], 25, "double precision"),
    ({"workload": {"kind": "prefix", "n": 12}}, 7, "largest rank"),
    ({"workload": {**MOMENTUM["workload"], "n": 9000}}, 3, "is odd"),
    ({"workload": {"kind": "window", "n": 64, "width": 3}}, 2, "no banded inverse"),
    ({"workload": {"kind": "schedule", "n": 64, "learning_rates": {"kind": "cosine"}}}, 2, "of zero"),
    ({**SPECS["prefix"], "objective": {"kind": "max"}}, 2, "objective 'max'"),
    ({**SPECS["prefix"], "participation": {"kind": "min_sep", "min_sep": 4}}, 2, "single participation"),
]


@pytest.mark.parametrize(("document", "buffers", "words"), REFUSED)
def test_what_has_no_answer_is_refused(document: dict[str, Any], buffers: int, words: str) -> None:
    with pytest.raises(UnsupportedProblem, match=words) as refusal:
        solvers.solve(buffered(document, buffers))
    assert "use " in str(refusal.value)


def test_auto_names_another_where_it_cannot_stream() -> None:
    assert solvers.choose(spec_of({"kind": "window", "n": 9000, "width": 3})).mechanism.kind == "toeplitz"


@pytest.mark.parametrize("workload", [{"kind": "identity", "n": 64}, {"kind": "decay", "n": 64, "rate": 0.001}])
@pytest.mark.parametrize("buffers", [1, 24])
def test_a_workload_of_one_scale_needs_no_buffers(workload: dict[str, Any], buffers: int) -> None:
    assert gap({"workload": workload}, buffers) < 1e-6


class Lost:
    """A loss whose every truncation is lost to rounding."""

    origin = np.zeros(2)

    def use(self, poles: object) -> None:
        pass

    def value(self, z: np.ndarray) -> float:
        return float("inf")


def test_poles_that_coincide_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FloatingPointError, match="3 poles coincide"):
        buffered_linear._choose_poles(Lost(), (1e-3, 1.0), 3)
    monkeypatch.setattr(BufferedLoss, "value", Lost.value)
    with pytest.raises(SolveFailed, match="use fewer buffers than 3"):
        solvers.solve(buffered(SPECS["prefix"], 3))


def test_what_the_callback_raises_ends_the_solve() -> None:
    def cancel(step: object) -> None:
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        solvers.solve(buffered(SPECS["prefix"], 2), progress=cancel)


@pytest.mark.parametrize(("n", "m"), [(30, 1), (37, 2), (45, 3)])
def test_eight_points_at_a_time_give_the_differences_of_single_ones(n: int, m: int) -> None:
    """37 and 45 steps are no whole segments, and 20 or 30 coefficients no whole vectors."""
    loss, _, _ = example(n=n, m=m)
    z = 0.1 * np.random.default_rng(n).normal(size=loss.origin.size)
    _, gradient = loss(z)
    told: list[None] = []
    found = loss.hessian(z, gradient, 1e-4, lambda: told.append(None))
    one_by_one = trust_region._differences(loss, z, gradient, 1e-4, lambda: None)
    assert told
    assert (found == found.T).all()
    np.testing.assert_allclose(found, one_by_one, atol=1e-9 * np.abs(one_by_one).max())


def test_two_cores_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, _, _ = example(n=60)
    gradient = loss(loss.origin)[1]
    alone = loss.hessian(loss.origin, gradient, 1e-4, lambda: None)
    monkeypatch.setattr(differences, "_PARALLEL_WORK", 0)
    assert (loss.hessian(loss.origin, gradient, 1e-4, lambda: None) == alone).all()


def test_a_point_where_pivots_are_lost_has_no_derivatives() -> None:
    loss, _, _ = example(n=30, m=1)
    gradient = loss(loss.origin)[1]
    assert not loss.hessian(loss.origin, gradient, 1e6, lambda: None).any()  # beyond the numbers of doubles


def test_what_ends_a_hessian_ends_the_search() -> None:
    loss, _, _ = example(n=30, m=1)

    def cancel() -> None:
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        loss.hessian(loss.origin, loss(loss.origin)[1], 1e-4, cancel)


@pytest.mark.parametrize("largest", [0, 1 << 17])
def test_many_buffers_over_many_steps_are_moved_one_by_one(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight points take memory; either way leads to the same place."""
    monkeypatch.setattr(buffered_linear, "_MOST_AT_POINTS", largest)
    found = optimise(np.ones(64), np.r_[0.0, np.ones(63)], 2, 1e-6, QUIET)
    assert found.end.finished
    assert (len(found.loss._points) > 0) == (largest > 0)
    assert found.end.value == pytest.approx(6.2e-4, rel=2e-2)


def test_the_trust_region_leaves_a_saddle() -> None:
    def function(z: np.ndarray) -> tuple[float, np.ndarray]:
        x, y = z
        value = 1e-3 + 100 * x**2 + (y**2 - 1) ** 2
        return value, np.array([200 * x, 4 * y * (y**2 - 1)])

    found = minimise(function, np.array([0.5, 1e-3]), tolerance=1e-14, rounds=5, report=lambda _step, _value: None)
    assert found.finished
    assert found.value == pytest.approx(1e-3, rel=1e-9)
    assert abs(found.z[1]) == pytest.approx(1, rel=1e-6)
