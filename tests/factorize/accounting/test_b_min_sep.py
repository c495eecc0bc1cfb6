"""b-min-sep sampling: claims beside a second accountant, its two limits, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from flint import arb
from min_sep_accountant import deltas, steps
from specs import claimed, spec_of

from factorize.accounting import calibrate_sampling
from factorize.accounting.min_sep_estimate import MinSepEstimate
from factorize.accounting.min_sep_law import BEYOND_WORTH, MinSepLaw
from factorize.checker.sampling import bets, curved_field, min_sep
from factorize.checker.sampling.calibrations import check_claim
from factorize.checker.sampling.curved_field import CurvedField
from factorize.checker.sampling.star import lognormal_put
from factorize.checker.strategy import Strategy
from factorize.errors import ConditionNotMet, FactorizeError, InvalidParameter, TooLarge, UnsupportedAdjacency
from factorize.factors.factorization import Factorization
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import GivenNoise, SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.structures.banded import BandedMatrix
from factorize.training.sampling import BMinSep


def banded(n: int, bands: int, seed: int = 0) -> Factorization:
    """A file of a banded C with signs and columns of unequal norms."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((bands, n))
    for d in range(bands):
        rows[d, : n - d] = rng.normal(size=n - d) * 0.6**d if d else 1 + rng.random(n)
    participation = {"kind": "min_sep", "min_sep": bands} if bands > 1 else {"kind": "single"}
    return claimed(spec_of(n, {"kind": "banded", "bands": bands}, participation), BandedMatrix(rows))


def calibrated(made: Factorization, epsilon: float, delta: float, size: int, batch: int, **options: Any) -> Any:
    sizes = {"dataset_size": size, "batch_size": batch}
    return calibrate_sampling(
        made, PrivacyTarget(epsilon=epsilon, delta=delta), sampling="b_min_sep", **sizes, **options
    )


@pytest.fixture(scope="module")
def held() -> tuple[Factorization, Any]:
    made = banded(24, 3)
    return made, calibrated(made, 4.0, 1e-3, 240, 24)


def test_a_claim_is_not_below_a_second_accountant(held: tuple[Factorization, Any]) -> None:
    """The one here; benchmarks/b_min_sep_claims.py has forty."""
    (made, calibration), bands, epsilon, delta = held, 3, 4.0, 1e-3
    probability, sigma = calibration.sampling_probability, calibration.sigma_of_sums
    c = np.asarray(made.C)
    for direction, found in enumerate(deltas(c, bands, probability, sigma, epsilon, 20_000, 1)):
        assert found.delta - 4 * found.error <= delta, direction
    less = deltas(c, bands, probability, sigma / 1.04, epsilon, 20_000, 2)[0]
    assert less.delta + 4 * less.error > delta  # and at most 4 % above what is needed
    assert sigma < calibration.deterministic_sigma


def test_at_one_band_it_is_poisson_sampling() -> None:
    made = claimed(spec_of(16, "identity"), BandedMatrix(np.ones((1, 16))))
    target = PrivacyTarget(epsilon=4.0, delta=1e-4)
    other = calibrate_sampling(made, target, sampling="poisson", dataset_size=1600, batch_size=100)
    held = calibrated(made, 4.0, 1e-4, 1600, 100)
    assert held.sampling_probability == other.sampling_probability
    assert held.sigma_of_sums == pytest.approx(other.sigma_of_sums, rel=0.01)


def test_where_every_example_that_has_rested_takes_part_it_is_balls_in_bins() -> None:
    made = banded(8, 2)
    other = calibrate_sampling(made, PrivacyTarget(epsilon=4.0, delta=1e-2), sampling="balls_in_bins", bins=2)
    held = calibrated(made, 4.0, 1e-2, 64, 32)
    assert held.sampling_probability == 1.0
    assert held.sigma_of_sums == pytest.approx(other.sigma_of_sums, rel=0.01)


@pytest.mark.parametrize("epsilon", [1e-2, 1e-5])
def test_a_tiny_epsilon_whose_samples_took_minutes_is_claimed_by_bounds(epsilon: float) -> None:
    """Hundreds of paths a candidate; the checker refused so many, at 0.01, after the search."""
    made = banded(16, 2)
    found = calibrated(made, epsilon, 1e-5, 1000, 100)
    assert found.method == "deterministic" and found.sigma_of_sums == found.deterministic_sigma
    assert found.sigma_of_sums <= made.calibrate(epsilon=epsilon, delta=1e-5).sigma_of_sums * (1 + 1e-6)


def test_an_estimate_with_less_noise_than_at_first_takes_a_smaller_order() -> None:
    columns = np.array([[1.0, 0.7], [1.0, 0.7], [1.0, 0.0]])
    estimate = MinSepEstimate(MinSepLaw(columns, 3.0, 0.1), samples=1)
    with pytest.raises(InvalidParameter):
        min_sep.Centres(min_sep.MinSepSteps(columns, 0.13, 0.1), 16)
    estimate.forward(20.0, 1.0, 16)
    assert estimate.forward(0.13, 1.0).tilt < 16


def test_where_doubles_hold_no_order_a_search_takes_more_noise() -> None:
    """At a large epsilon the search passed through so little noise, and its refusal ended the calibration."""
    columns = np.ones((60, 2))
    columns[-1, 1] = 0.0
    estimate = MinSepEstimate(MinSepLaw(columns, 9.0, 0.1), samples=1)
    with pytest.raises(InvalidParameter, match="sigma this small"):
        estimate.forward(0.2, 200.0)
    assert estimate.log_delta(0.2, 200.0) == 0.0


def test_an_estimate_that_sees_nothing_is_not_taken_for_a_small_delta(
    held: tuple[Factorization, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of the rounding alone had led the search to 10 % less noise than is needed.

    Of 8192 weights none is at the ceiling, with a chance of 5 % where 3 of 8192 are.
    """
    law = MinSepLaw.of(held[0].strategy.finite(), 240, 24)
    monkeypatch.setattr(min_sep, "removal", lambda *_: min_sep.Weights(arb(1e-3), lambda _: np.full(bets.CHUNK, 1e-12)))
    assert MinSepEstimate(law).log_delta(5.0, 4.0) == pytest.approx(math.log(1e-3 * 3 / 8192))
    monkeypatch.setattr(min_sep, "removal", lambda *_: min_sep.Weights(arb(0), lambda _: np.zeros(bets.CHUNK)))
    assert MinSepEstimate(law).log_delta(5.0, 4.0) < -600, "a ceiling that underflows is a small delta, and no fault"


def test_an_event_that_no_sample_meets_at_first_is_claimed_by_a_bet() -> None:
    """Delta is far below its bound, whose sigma was claimed, as no weight showed that."""
    found = calibrated(banded(16, 2), 2.0, 1e-8, 10_000, 100)
    assert found.method == "verified" and found.sigma_of_sums < 0.87 * found.deterministic_sigma


CASES = [(np.array([[1.0, 0.7], [0.8, 0.0]]), 0.4, 0.9, 1.0), (np.array([[1.2], [0.6]]), 0.3, 1.4, 0.5)]


@pytest.mark.parametrize(("columns", "chance", "sigma", "epsilon"), CASES)
def test_weights_have_the_mean_of_a_quadrature_and_bounds_are_above(
    columns: np.ndarray, chance: float, sigma: float, epsilon: float
) -> None:
    n, b = columns.shape
    law = min_sep.MinSepSteps(columns, sigma, chance)
    free = 1 / (1 + (b - 1) * chance)
    sets = {(): 0.0, (0,): free * chance * ((1 - chance) if b == 1 else 1), (1,): free * (1 - chance) * chance}
    sets |= {(1,): sets[(1,)] + (1 - free) * chance} if b == 2 else {(0, 1): chance**2}
    sets[()] = 1 - sum(sets.values())
    grid = np.linspace(-9, 9, 721)
    x = np.array(list(itertools.product(grid, grid)))
    density = np.exp(-(x**2).sum(axis=1) / 2) / (2 * math.pi) * (grid[1] - grid[0]) ** 2
    ratio = np.zeros(len(x))
    for chosen, weight in sets.items():
        mean = np.zeros(2)
        for t in chosen:
            mean[t:] += (
                columns[t, : n - t][:b] / sigma if b == 2 else np.array([columns[t, 0]] + [0.0] * (1 - t)) / sigma
            )
        ratio += weight * np.exp(x @ mean - mean @ mean / 2)
    assert np.allclose(np.exp(law.log_ratio(x[::997].T)), ratio[::997], rtol=1e-9)
    removal = float(density @ np.maximum(ratio - math.exp(epsilon), 0))
    addition = float(density @ np.maximum(1 - math.exp(epsilon) * ratio, 0))
    kinds = (min_sep.Centres, 2, 1), (min_sep.Centres, 4, 1), (min_sep.Centres, 4, 2), (min_sep.Centres, 4, 1024)
    for kind, order, boost in *kinds, (min_sep.ChainedTuples, 2, 1), (min_sep.ChainedTuples, 4, 1):
        tuples = kind(law, order)
        weights = min_sep.removal(tuples, epsilon, boost)
        drawn = np.concatenate([weights.draw(bets.Stream((7, order), chunk)) for chunk in range(4)])
        assert drawn.mean() == pytest.approx(removal, abs=4 * drawn.std() / math.sqrt(len(drawn)))
        assert 0 <= drawn.min() and drawn.max() <= float(weights.bound) * (1 + 1e-9)
        assert float(min_sep.log_ceiling(tuples, epsilon)) >= math.log(removal)
    for rate in (chance / 3, chance):
        weights = min_sep.addition(law, epsilon, 0.7, rate)
        drawn = np.concatenate([weights.draw(bets.Stream((7, 1), chunk)) for chunk in range(4)])
        assert drawn.mean() == pytest.approx(addition, abs=4 * drawn.std() / math.sqrt(len(drawn)))
        assert 0 <= drawn.min() and drawn.max() <= float(weights.bound) * (1 + 1e-9)
        field = min_sep.Field(law, rate)
        assert float(lognormal_put(field.less, field.square, epsilon)) >= addition * (1 - 1e-6)
    curved = CurvedField(law, 0.7, chance / 2, 4.5 * math.sqrt(law.largest))
    weights, beyond = curved_field.addition(curved, epsilon), float(curved.beyond)
    drawn = np.concatenate([weights.draw(bets.Stream((7, 2), chunk)) for chunk in range(4)])
    error = 4 * drawn.std() / math.sqrt(len(drawn))
    assert addition - error <= drawn.mean() <= addition + beyond + error and beyond < 1e-4
    assert 0 <= drawn.min() and drawn.max() <= float(weights.bound) * (1 + 1e-9)
    assert float(curved_field.ceiling(curved, epsilon)) >= addition


@pytest.mark.parametrize(("n", "b", "p", "order"), [(6, 3, 0.2, 4), (5, 2, 0.4, 3), (3, 4, 0.3, 3), (3, 1, 0.3, 5)])
def test_bounds_of_a_chain_hold_in_every_state(n: int, b: int, p: float, order: int) -> None:
    """The mean of what follows is at most the bound, for all numbers of examples in the last b - 1 steps."""
    columns = np.random.default_rng(n).random((n, b)) * (np.add.outer(np.arange(n), np.arange(b)) < n)
    law = min_sep.MinSepSteps(columns, 0.9, p)
    chain = min_sep.ChainedTuples(law, order)
    for t, (height, slope, pull) in enumerate(chain.lines.T):
        for last in itertools.product(range(order + 1), repeat=b - 1):  # in steps t - 1, ..., t - b + 1
            if (free := order - sum(last)) < 0:
                continue
            felt = sum(k * law.products[t - d, d] for d, k in enumerate(last, 1) if d <= t)
            mean = sum(
                math.comb(free, j) * p**j * (1 - p) ** (free - j)
                * math.exp(j * (j - 1) / 2 * law.products[t, 0] + j * (felt + chain.worth[t + b]))
                for j in range(free + 1)
            )  # fmt: skip
            assert math.log(mean) <= height + slope * (order - free) + pull * felt
    for s in range(-b + 1, n):
        after = range(max(s + 1, 0), min(s + b, n))
        kernel = [law.products[s, t - s] if s >= 0 else 0.0 for t in after]
        known = sum(chain.lines[1, t] + chain.lines[2, t] * k for t, k in zip(after, kernel, strict=True))
        assert chain.worth[s + b] == pytest.approx(known, abs=1e-12)


@pytest.mark.parametrize(("n", "b", "p"), [(12, 3, 0.05), (9, 2, 0.1), (5, 8, 0.02), (6, 1, 0.2)])
def test_a_curved_bound_is_below_the_likelihood_ratio(n: int, b: int, p: float) -> None:
    """Within its reach, near the mean of the draws and as far as it goes, for all of the rates and slopes."""
    rng = np.random.default_rng(n)
    columns = rng.random((n, b)) * (np.add.outer(np.arange(n), np.arange(b)) < n)
    law = min_sep.MinSepSteps(columns, 0.7, p)
    for rate, reach in itertools.product((p / 3, 0.8 * p, p), (1.0, 2.0, 5.0)):
        try:
            field = CurvedField(law, 5.0, rate, reach)
        except InvalidParameter as refused:
            assert refused.field == "reach" and reach < 5
            continue
        z = rng.normal(size=(n, 4000)) * rng.random(4000) * 4
        z[:, ::2] = -np.abs(z[:, ::2])  # where L is small
        u = law.matrix.T @ z
        z /= np.maximum(np.abs(u).max(axis=0) / reach, 1)
        u = law.matrix.T @ z
        bound = field.tilts @ u + field.curvature / 2 * (u**2).sum(axis=0) - float(field.less)
        gap = law.log_ratio(z) - bound
        assert gap.min() >= -1e-9
        assert gap[np.abs(u).max(axis=0) < 0.2].max(initial=0.0) < 1, "it is no bound of nothing"


def test_a_long_run_is_claimed_without_stars(monkeypatch: pytest.MonkeyPatch) -> None:
    made = banded(2304, 3)
    strategy = Strategy(made.strategy.structure, made.strategy.tensors(), 2304)
    whole = min_sep.columns_of(strategy, 3)
    monkeypatch.setattr(min_sep, "_ENTRIES_AT_ONCE", 2304 * 500)
    np.testing.assert_array_equal(min_sep.columns_of(strategy, 3), whole)
    rows = np.abs(made.strategy.tensors()["bands"])
    np.testing.assert_allclose(whole, rows.T, rtol=1e-15)
    found = calibrated(made, 8.0, 1e-5, 230_400, 500, method="deterministic")
    assert found.claim.pq.rule == "chain_bound"
    with pytest.raises(TooLarge, match="a star is supported up to n=2048 steps, and there are 2304"):
        failures(made, found, pq={"rule": "star_bound", "m": 2})
    with pytest.raises(TooLarge, match="up to n=16384 steps; got 16385"):
        calibrated(banded(16_385, 3), 8.0, 1e-5, 230_400, 500)


def test_a_curved_bound_is_claimed_and_a_false_one_is_refused() -> None:
    made = banded(64, 3)
    found = calibrated(made, 1.0, 1e-5, 2000, 50, method="deterministic")
    law = MinSepLaw.of(made.strategy.finite(), 2000, 50)
    field = law.curved(found.sigma_of_sums, 1.0)
    assert field is not None and float(curved_field.ceiling(field, 1.0)) < 1e-6 < found.delta
    bound = {"rule": "curved_bound", **{name: getattr(field, name).hex() for name in ("eta", "rate", "reach")}}
    failed = partial(failures, made, found)
    assert not failed(qp=bound)
    assert not failed(qp={**bound, "rule": "curved_bet", "lambda": (1e3).hex(), "samples": 8192}), "no bet is needed"
    for name, value, says in (
        ("rate", 0.5, "below 0.25 with 3 bands"),
        ("reach", 1e-3, "too small for a curved bound; use one above"),
        ("reach", field.reach / 3, "not proved"),
        ("eta", 1.0, "not proved"),
    ):
        assert says in failed(qp={**bound, name: value.hex()}), name


def test_a_curved_bet_is_won_by_the_delta_that_another_sampler_sees() -> None:
    law = MinSepLaw.of(banded(64, 3).strategy.finite(), 2000, 50)
    field, steps = law.curved(1.2, 0.5, BEYOND_WORTH), law.enough_at(1.2)
    assert field is not None
    curved, shifted = curved_field.addition(field, 0.5), min_sep.addition(steps, 0.5, 2.0, 0.02)
    drawn, others = (weights.draw(bets.Stream((1, 3), 0)) for weights in (curved, shifted))
    error = math.hypot(drawn.std(), others.std()) / math.sqrt(bets.CHUNK)
    assert drawn.mean() == pytest.approx(others.mean(), abs=4 * error + float(field.beyond))
    kept = curved_field.addition(CurvedField(steps, 5.0, 0.01, 9.0), 0.5).draw(bets.Stream((1, 3), 0))
    assert kept.mean() == pytest.approx(0.02715278809590722, rel=1e-9), (
        "claims of earlier releases have to be won again"
    )
    for share, won in (1.3, True), (0.8, False):
        delta = share * float(others.mean())
        stake = 0.9 / (float(curved.bound) - delta)
        assert bets.bet(curved, delta, stake, (1, 2), 4).accepted == won


def test_a_chain_draws_the_law_of_its_theorem() -> None:
    """Each tuple of m = 2 examples in proportion to its chance times e^K, by enumeration."""
    n, b, p, draws = 4, 2, 0.3, 200_000
    columns = np.array([[1.0, 0.6], [0.8, 0.5], [1.1, 0.4], [0.9, 0.0]])
    law = min_sep.MinSepSteps(columns, 1.1, p)
    chain = min_sep.ChainedTuples(law, 2)
    full = np.diag(law.columns[:, 0]) + np.diag(law.columns[: n - 1, 1], -1)
    sets = [s for k in range(3) for s in itertools.combinations(range(n), k) if np.all(np.diff(s) >= b)]
    expected: dict[tuple[int, ...], float] = {}
    for one, two in itertools.product(sets, repeat=2):
        numbers = tuple((one + two).count(t) for t in range(n))
        pair = math.exp((full.T @ full)[np.ix_(one, two)].sum())
        expected[numbers] = expected.get(numbers, 0.0) + _chance_of(one, n, b, p) * _chance_of(two, n, b, p) * pair
    assert math.log(sum(expected.values())) <= chain.log_moment
    counts, logs = chain.draw(np.random.default_rng(1).bit_generator.random_raw(draws * chain.words).reshape(draws, -1))
    found, times = np.unique(counts[logs == 0], axis=0, return_counts=True)
    seen = {tuple(map(int, numbers)): count / draws for numbers, count in zip(found, times, strict=True)}
    assert seen.keys() <= expected.keys()
    for numbers, weight in expected.items():
        chance = weight / math.exp(chain.log_moment)
        assert seen.get(numbers, 0.0) == pytest.approx(chance, abs=5 * math.sqrt(chance / draws) + 1e-9)


@pytest.mark.parametrize(
    ("p", "order", "scale"),
    [(1.0, 2, 50.0), (0.9, 256, 50.0), (0.1, 257, 50.0), (1e-101, 3, 1.0), (0.5, 256, 0.13), (1e-12, 80, 1.196)],
)
def test_a_chain_that_doubles_cannot_hold_is_refused(p: float, order: int, scale: float) -> None:
    """In the last, the chance that all 80 take part weighs as much as that none does, and chances between are 1e-240."""
    columns = np.array([[1.0, 0.0], [1.0, 0.0]]) if order == 80 else np.array([[1.0, 0.6], [1.0, 0.0]])
    with pytest.raises(InvalidParameter, match="order .* is too large"):
        min_sep.ChainedTuples(min_sep.MinSepSteps(columns, scale, p), order)


def test_what_is_claimed_of_a_mean_over_pairs_holds_for_every_centre() -> None:
    """The product of the gains is at least the mean over S of exp(m / 2 K(S, S1)), for all S1, by enumeration."""
    n, b, p, order = 9, 3, 0.35, 4
    rng = np.random.default_rng(3)
    columns = rng.random((n, b))
    columns[n - 2, 2] = columns[n - 1, 1:] = 0.0
    law = min_sep.MinSepSteps(columns, 1.1, p)
    centres = min_sep.Centres(law, order)
    every = [s for k in range(4) for s in itertools.combinations(range(n), k) if np.all(np.diff(s) >= b)]
    full = np.zeros((n, n))
    for t in range(n):
        full[t : t + b, t] = law.columns[t, : n - t]
    gram = full.T @ full
    chances = {s: _chance_of(s, n, b, p) for s in every}
    assert sum(chances.values()) == pytest.approx(1.0)
    moment = 0.0
    for one in every:
        mean = sum(chances[s] * math.exp(order / 2 * gram[np.ix_(s, one)].sum()) for s in every)
        bound = centres.log_begins[one[0]] if one else 0.0
        bound += sum(centres.log_gains[s, t] for s, t in itertools.pairwise(one))
        assert math.log(mean) <= bound + 1e-12
        assert len(one) > 1 or math.log(mean) == pytest.approx(bound)
        moment += chances[one] * math.exp((order - 1) * bound)
    assert centres.log_moment == pytest.approx(math.log(moment))


def _chance_of(chosen: tuple[int, ...], n: int, b: int, p: float) -> float:
    """The chance that exactly these steps are an example's, by all states that it may begin with."""
    total = 0.0
    for rest in range(b):
        chance, wait = (1.0 if rest == 0 else p) / (1 + (b - 1) * p), rest
        for t in range(n):
            if wait:
                chance, wait = chance * (t not in chosen), wait - 1
            elif t in chosen:
                chance, wait = chance * p, b - 1
            else:
                chance *= 1 - p
        total += chance
    return total


def failures(made: Factorization, calibration: Any, **changes: Any) -> str:
    """Return what the checker has against the claim with some fields changed."""
    document = json.loads(json.dumps(calibration.claim.document()))
    for name, value in changes.items():
        inside, _, last = name.rpartition("__")
        (document[inside] if inside else document)[last] = value.hex() if isinstance(value, float) else value
    strategy = Strategy(made.structure, made.strategy_tensors(), made.steps)
    return " ".join(check_claim(made.digest, lambda: strategy, document).failed)


def test_false_claims_are_refused(held: tuple[Factorization, Any]) -> None:
    made, calibration = held
    failed, true = partial(failures, made, calibration), calibration.claim.document()
    assert not failed()
    probability, sigma = calibration.sampling_probability, calibration.claim.sigma
    assert "not accepted" in failed(sigma=0.98 * sigma)
    assert failed(mechanism__sampling_probability=1.5 * probability)
    certain = {"rule": "closed_form", "rate": (0.5).hex()}
    assert "rate 0.5 must be 1.0" in failed(mechanism__sampling_probability=1.0, pq={"rule": "gaussian"}, qp=certain)
    assert "is outside" in failed(mechanism__sampling_probability=1.5) or failed(mechanism__sampling_probability=1.5)
    assert "3 bands" in failed(mechanism__bins=2, mechanism__epochs=12)
    assert "not below" in failed(pq__lambda=1e9) and failed(pq__m=4096) and failed(pq__m=calibration.claim.pq.tilt + 9)
    assert failed(unamplified__epsilon_at_delta=4.0) and failed(delta=1e-9)
    assert "fields" in failed(pq={**true["pq"], "shared": (0.0).hex()}) or failed(
        pq={**true["pq"], "shared": (0.0).hex()}
    )
    assert "no power of two" in failed(pq__boost=3)
    assert all("from 1 to 1024" in failed(pq__boost=boost) for boost in (0, 2048, True, "4"))
    assert failed(pq__rule="bet") and "not accepted" in failed(sigma=0.98 * sigma, pq__boost=1024)


def test_false_claims_by_a_chain_are_refused(held: tuple[Factorization, Any]) -> None:
    calibration = calibrated(held[0], 1.0, 1e-3, 240, 24)
    failed, sigma, pq = partial(failures, held[0], calibration), calibration.claim.sigma, calibration.claim.pq
    assert pq.rule == "chain_bet" and not failed() and "not accepted" in failed(sigma=0.98 * sigma)
    assert "m=9" in failed(pq={"rule": "chain_bound", "m": 9}) and "from 2 to 256" in failed(pq__m=257)
    bounded = calibrated(held[0], 1.0, 1e-3, 240, 24, method="deterministic")
    assert bounded.claim.pq.rule == "chain_bound"
    assert bounded.sigma_of_sums == pytest.approx(calibration.deterministic_sigma, rel=1e-6)
    assert "not accepted" in failed(pq__rule="bet") and "'boost' of pq" in failed(pq__boost=4)


def test_a_bet_whose_coin_is_not_boosted_is_still_proved(held: tuple[Factorization, Any]) -> None:
    """As claims of earlier releases state it; it takes more samples."""
    made, calibration = held
    claim = calibration.claim.document()
    assert claim["pq"]["rule"] == "boosted_bet" and claim["pq"].pop("boost") == 4
    claim["pq"] |= {"rule": "bet", "samples": 4 * claim["pq"]["samples"]}
    strategy = Strategy(made.structure, made.strategy_tensors(), made.steps)
    report = check_claim(made.digest, lambda: strategy, claim)
    assert report.supported and report.calibration["pq"]["rule"] == "bet"


def test_what_does_not_fit_is_refused_with_a_way_out(held: tuple[Factorization, Any]) -> None:
    made, _ = held
    with pytest.raises(ConditionNotMet, match="batch_size=90 is above 240 / 3.*use a smaller batch"):
        calibrated(made, 4.0, 1e-3, 240, 90)
    for given, missing in ({}, "dataset_size"), ({"dataset_size": 240}, "batch_size"):
        with pytest.raises(InvalidParameter, match="needs dataset_size and batch_size") as refused:
            calibrate_sampling(made, PrivacyTarget(epsilon=4.0, delta=1e-3), sampling="b_min_sep", **given)
        assert refused.value.field == missing
    with pytest.raises(UnsupportedAdjacency):
        calibrated(made, 4.0, 1e-3, 240, 24, adjacency="replace_one")
    with pytest.raises(InvalidParameter, match="bins=4 is not 3, the bands of C.*leave bins out"):
        calibrated(made, 4.0, 1e-3, 240, 24, bins=4)
    with pytest.raises(ConditionNotMet, match="fewer bands than steps.*use a banded mechanism, or balls_in_bins"):
        calibrated(banded(4, 4), 4.0, 1e-3, 240, 24)
    with pytest.raises(FactorizeError, match="no\\b|rho and mu|epsilon and delta"):
        calibrate_sampling(made, PrivacyTarget(mu=1.0), sampling="b_min_sep", dataset_size=240, batch_size=24)


def test_first_steps_keep_the_bands_and_the_probability_of_the_run(held: tuple[Factorization, Any]) -> None:
    made, calibration = held
    asked = SamplingOptions(dataset_size=240, batch_size=24)
    first = {steps: SAMPLINGS["b_min_sep"].of_first_steps(made, steps, asked)[0] for steps in (1, 2, 4, 24)}
    assert {steps: part.steps for steps, part in first.items()} == {1: 4, 2: 4, 4: 4, 24: 24}
    plain = {"dataset_size": 240, "batch_size": 24, "sampling": "b_min_sep", "method": "deterministic"}
    part = calibrate_sampling(made, GivenNoise(sigma=calibration.sigma_of_sums, delta=1e-3), steps=4, **plain)
    assert part.sampling_probability == calibration.sampling_probability and part.epsilon < 4.0


def test_the_order_has_the_law_of_the_claim(held: tuple[Factorization, Any]) -> None:
    made, calibration = held
    order = BMinSep(4000, calibration, steps=made.steps, seed=2**120 + 12345)
    batches = list(order)
    taken = np.zeros((4000, made.steps), dtype=bool)
    for t, batch in enumerate(batches):
        taken[batch, t] = True
    for lag in (1, 2):
        assert not (taken[:, lag:] & taken[:, :-lag]).any()
    own = steps(4000, made.steps, 3, calibration.sampling_probability, np.random.default_rng(5))
    for some in (np.s_[:, 0], np.s_[:, -1], np.s_[:]):
        assert taken[some].mean() == pytest.approx(0.1, abs=0.02) and own[some].mean() == pytest.approx(0.1, abs=0.02)
    again = (taken[:, :-3] & taken[:, 3:]).mean()
    assert again == pytest.approx(0.1 * calibration.sampling_probability, abs=0.004)
    assert all(np.array_equal(order[t], batches[t]) for t in (23, 0, 7))  # in any order
    order.check(calibration.sensitivity.participation, made.steps)
    with pytest.raises(InvalidParameter, match="calibrate for it"):
        BMinSep(100, calibrate_sampling(made, PrivacyTarget(mu=1.0), sampling="fixed"), steps=24, seed=2**120 + 1)
