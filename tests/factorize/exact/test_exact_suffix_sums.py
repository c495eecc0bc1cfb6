"""Traces by suffix sums beside the same in fractions: what they are said to be off by is never too little."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from factorize.exact.doubles import polar_bound
from factorize.exact.doubles.roundings import column_norms
from factorize.exact.doubles.suffix_sums import SuffixSums
from factorize.exact.doubles.weighted_targets import Factor, WeightedTarget
from factorize.exact.doubles.workload_rows import WorkloadRows
from factorize.exact.spec import weighing_of

N, K = 24, 3
STEPS = np.arange(N).reshape(K, N // K).T


def fractions(array: np.ndarray) -> np.ndarray:
    return np.array([Fraction(float(v)) for v in array.ravel()], dtype=object).reshape(array.shape)


def target(blocks: np.ndarray) -> np.ndarray:
    """A F in fractions, columns in the order of the patterns."""
    found = np.full((N, N), Fraction(0), dtype=object)
    for p, steps in enumerate(STEPS):
        for e, step in enumerate(steps):
            for s in range(K):
                found[step:, p * K + s] += Fraction(float(blocks[p, e, s]))
    return found


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e140, 1e-300])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_lost_covers_what_is_rounded(seed: int, scale: float) -> None:
    luck = np.random.default_rng(seed)
    guess, near = luck.standard_normal((N, N)), 0.1 * luck.standard_normal((N, N))
    blocks = luck.standard_normal((N // K, K, K)) * scale * np.exp(3 * luck.standard_normal((N // K, 1, 1)))
    sums = SuffixSums.of(guess, column_norms(guess))
    exact_p, exact_e, exact_t = fractions(guess), fractions(near), target(blocks)
    for some in (slice(0, 3), slice(3, 4), slice(4, 8)):
        columns = np.arange(some.start * K, some.stop * K)
        found = sums.traces(STEPS[some], blocks[some], int(columns[0]), near.T[columns])
        turned = exact_p.dot(exact_e)[:, columns]
        true = ((exact_p[:, columns] - turned / 2) * exact_t[:, columns]).sum()
        said = sum((Fraction(part) for part in found.parts), start=Fraction(0))
        assert abs(said - true) <= Fraction(found.lost) * (1 - Fraction(1, 2**40))
        assert found.lost <= 1e-10 * np.abs(blocks[some]).sum() * N + 1e-150
        assert found.apart >= np.linalg.norm(near[:, columns])


def _weighted(objective: dict[str, object], kind: str = "prefix", **more: object) -> WeightedTarget:
    workload = WorkloadRows({"kind": kind, "n": N, **more}, {})
    weighing = weighing_of(objective, N)
    scales = np.array([1.0 if weighing.tau is None else 2.0] * N)
    return WeightedTarget(workload, weighing, scales)


def test_only_prefix_sums_are_taken_so() -> None:
    assert _weighted({"kind": "mean"}).of_ones
    assert not _weighted({"kind": "mean"})._replace(scales=np.full(N, 2.0)).of_ones
    assert not _weighted({"kind": "mean"}, "decay", rate=0.5).of_ones
    assert not _weighted({"kind": "mean"}, "window", width=3).of_ones


def test_both_ways_take_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    luck = np.random.default_rng(1)
    weighted = _weighted({"kind": "mean"})
    factor = Factor(STEPS, np.tril(luck.standard_normal((N // K, K, K))) + 3 * np.eye(K))
    whole = np.hstack([made()[0] for _, made in factor.targets(weighted)])
    left, _, right = np.linalg.svd(whole)
    guess = left @ right + 1e-3 * luck.standard_normal((N, N))
    steps = [polar_bound._Step(guess) for _ in range(2)]
    quick = steps[0].taken(weighted, factor)
    monkeypatch.setattr(WeightedTarget, "of_ones", False)
    slow = steps[1].taken(weighted, factor)
    assert float(quick) == pytest.approx(float(slow), rel=1e-12)
    assert np.allclose(steps[0].moved, steps[1].moved, rtol=0, atol=1e-14)
    assert float(slow) <= np.linalg.svd(whole, compute_uv=False).sum() * (1 + 1e-13)


@pytest.mark.parametrize("size", [1e-3, 1e-8])
def test_a_guess_that_is_near_is_summed_in_place(size: float) -> None:
    """No other step is taken from it then; one that is not near is kept for that."""
    luck = np.random.default_rng(2)
    weighted, factor = _weighted({"kind": "mean"}), Factor(STEPS, np.tile(np.eye(K), (N // K, 1, 1)))
    guess = np.linalg.qr(luck.standard_normal((N, N)))[0] + size * luck.standard_normal((N, N))
    given = guess.copy()
    polar_bound._Step(given).taken(weighted, factor)
    near = size == 1e-8
    assert (given == guess).all() != near
    assert not near or np.allclose(given, np.cumsum(guess[::-1], axis=0)[::-1], rtol=0, atol=1e-13)


def test_a_guess_is_kept_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums take the place of P in the last step alone: |E|^2 = 4e-10 n is four times what is near, and |E|^3 far below."""
    luck = np.random.default_rng(2)
    weighted = _weighted({"kind": "mean"})
    factor = Factor(STEPS, np.tril(luck.standard_normal((N // K, K, K))) + 3 * np.eye(K))
    whole = np.hstack([made()[0] for _, made in factor.targets(weighted)])
    left, values, right = np.linalg.svd(whole)
    monkeypatch.setattr(polar_bound, "_nearer", lambda given: given)
    seen: list[polar_bound._Step] = []
    taken = polar_bound._Step.taken
    monkeypatch.setattr(polar_bound._Step, "taken", lambda self, *given: seen.append(self) or taken(self, *given))
    for apart, steps in ((2e-5, 2), (1e-6, 1)):
        seen.clear()
        found = polar_bound.norm_below(weighted, factor, left @ right * np.sqrt(1 + apart))
        assert len(seen) == steps
        assert values.sum() * (1 - 1e-9) <= float(found) <= values.sum() * (1 + 1e-13)
