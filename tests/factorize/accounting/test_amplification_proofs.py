"""The theorems of docs/notes/amplification-proofs.md on small cases: the best adaptive adversary, and what is false.

At n = 4 with two bins every adaptive choice of signs can be tried: the adversary sees the outputs so far, on a grid of
Gauss-Hermite nodes, and takes the better sign by backward induction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from factorize.numbers.gaussian import gaussian_delta

NODES = 16
BINS = 2
Convex = Callable[[np.ndarray], np.ndarray]
Games = tuple[np.ndarray, ...]


def smooth_hockey_stick(threshold: float) -> Convex:
    """A convex function near (x - threshold)+, smooth enough for the nodes."""
    return lambda x: (x - threshold + np.sqrt((x - threshold) ** 2 + 0.25)) / 2


def smooth_other_direction(threshold: float) -> Convex:
    return lambda x: (1 - threshold * x + np.sqrt((1 - threshold * x) ** 2 + 0.25)) / 2


CONVEX: dict[str, Convex] = {
    "removal": smooth_hockey_stick(1.5),
    "addition": smooth_other_direction(1.5),
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "kullback": lambda x: x * np.log(x),
}
STRATEGIES = {
    "prefix": np.tril(np.ones((4, 4))),
    "signed": np.array([[1, 0, 0, 0], [-0.5, 1, 0, 0], [-1, 0.7, 1, 0], [0.8, -1, -1, 1]]),
    "rows that disagree": np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [1, 1, -1, 1]]),
    "differences": np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 1, 0], [0, -1, 0, 1]]),
}


def adversary(strategy: np.ndarray, convex: Convex, sigma: float = 1.5, fixed: Games | None = None) -> float:
    """The largest E phi(L) over adaptive signs, or that of fixed signs; example x draws bin 0 or 1."""
    places, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    scaled = strategy / sigma

    def play(t: int, logs: list[np.ndarray], signs: list[np.ndarray]) -> np.ndarray:
        if t == len(scaled):
            return convex(sum(np.exp(log) for log in logs) / BINS)
        choices = (1.0, -1.0) if fixed is None else (float(fixed[0][t]),)
        best = None
        for sign in choices:
            now = [*(s[..., None] for s in signs), np.full((*logs[0].shape, 1), sign)]
            moved = []
            for j, log in enumerate(logs):
                steps = range(j, t + 1, BINS)
                mean = sum((scaled[t, step] * now[step] for step in steps), np.zeros((*logs[0].shape, 1)))
                moved.append(log[..., None] + mean * places - mean**2 / 2)
            spread = [np.broadcast_to(s, moved[0].shape) for s in now]
            value = play(t + 1, moved, spread) @ weights
            best = value if best is None else np.maximum(best, value)
        assert best is not None
        return best

    return float(play(0, [np.zeros(()), np.zeros(())], []))


def pair(strategy: np.ndarray, convex: Convex, sigma: float = 1.5) -> float:
    """E phi(L) of the pair whose means are the column sums of a matrix."""
    return adversary(strategy, convex, sigma, (np.ones(len(strategy)),))


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("convex", CONVEX)
def test_no_adaptive_adversary_beats_the_sums_of_magnitudes(name: str, convex: str) -> None:
    strategy, phi = STRATEGIES[name], CONVEX[convex]
    best, bound = adversary(strategy, phi), pair(np.abs(strategy), phi)
    assert best <= bound * (1 + 1e-4)
    if (strategy >= 0).all() or name == "differences":  # then signs exist that attain it
        assert best == pytest.approx(bound, rel=1e-4)


@pytest.mark.parametrize("convex", ["removal", "square"])
def test_sums_of_signed_columns_are_no_bound(convex: str) -> None:
    strategy, phi = STRATEGIES["differences"], CONVEX[convex]
    believed = pair(strategy, phi)
    attained = adversary(strategy, phi, 1.5, (np.array([1, 1, -1, -1]),))  # not even adaptive
    assert attained > 1.05 * believed
    assert attained == pytest.approx(pair(np.abs(strategy), phi), rel=1e-9)


def mixture(centres: list[tuple[float, float]], sigma: float, axis: np.ndarray) -> np.ndarray:
    """The density of a uniform mixture of two-dimensional normals on a grid."""
    x, y = np.meshgrid(axis, axis, indexing="ij")
    parts = [np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2)) for a, b in centres]
    return np.asarray(sum(parts) / (len(parts) * 2 * math.pi * sigma**2))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float, axis: np.ndarray) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (axis[1] - axis[0]) ** 2)


def test_a_shuffle_into_batches_of_equal_size_is_not_balls_in_bins() -> None:
    """Two batches, C = I, sigma = 0.6, epsilon = 2: the other example's place shows that of x."""
    axis, sigma, epsilon = np.linspace(-6, 6, 1501), 0.6, 2.0
    bins = hockey_stick(mixture([(1, 0), (0, 1)], sigma, axis), mixture([(0, 0)], sigma, axis), epsilon, axis)
    other = -1.0
    shuffled = hockey_stick(
        mixture([(1, other), (other, 1)], sigma, axis), mixture([(0, other), (other, 0)], sigma, axis), epsilon, axis
    )
    assert bins == pytest.approx(0.1185, abs=5e-4)
    assert shuffled > 0.2 > 1.6 * bins
    assert shuffled <= gaussian_delta(epsilon, 1 / sigma)


def test_batch_sizes_that_are_told_undo_the_sampling() -> None:
    """The proof is given the bins of all others; then the size of each batch is the bin of x, seen without noise."""
    axis, sigma, epsilon = np.linspace(-6, 6, 1501), 0.6, 2.0
    told = [
        hockey_stick(mixture([place], sigma, axis), mixture([(0, 0)], sigma, axis), epsilon, axis)
        for place in ((1, 0), (0, 1))
    ]
    assert np.mean(told) == pytest.approx(gaussian_delta(epsilon, 1 / sigma), rel=1e-4) and np.mean(told) > 0.2


@pytest.mark.parametrize("epsilon, delta", [(8.0, 1e-5), (2.0, 1e-6), (2.0, 1e-10)])
def test_the_gaussian_delta_is_convex_in_the_squared_norm_where_the_lower_bound_needs_it(
    epsilon: float, delta: float
) -> None:
    """On [0, g] with delta_G(epsilon + log b, sqrt g) = b delta, b = 256 (theorem 8 c); on a grid."""
    bins = 256
    squares = np.linspace(0.02, 60, 3000)
    values = np.array([gaussian_delta(epsilon + math.log(bins), math.sqrt(g)) for g in squares])
    used = values <= bins * delta
    assert 10 < used.sum() < len(squares)
    assert (np.diff(values[used], 2) >= -1e-16).all()
