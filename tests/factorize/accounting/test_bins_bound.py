"""The Gram matrix of bins for every structure, and the closed-form bounds made of it, by the accountant and the checker."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from bin_cases import INTERVALS, PAIRS, ROUNDED, Pair, inverse_roots, of_matrix
from flint import arb
from hypothesis import given
from hypothesis import strategies as st
from star_claims import log_star

from benchmarks.forged_claims import truncated_root
from factorize.accounting import BinGram, BinsLaw, bin_gram
from factorize.accounting.bins_law import log_put_of_second_moment
from factorize.accounting.star_estimate import log_single_bin
from factorize.checker.sampling import bins as checker_bins
from factorize.checker.sampling import star
from factorize.checker.sampling.bins import Gram
from factorize.checker.strategy import Strategy
from factorize.errors import InvalidParameter, InvalidStrategy, TooLarge
from factorize.factors.factor_file import load
from factorize.numbers.gaussian import gaussian_delta, noise_multiplier_for_epsilon
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.endless import EndlessMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*/*.safetensors"))
ENDLESS = [path for path in GOLDEN if "endless" in path.stem]
_SIGNS = np.random.default_rng(2).standard_normal((12, 12))
_SIGNS[np.diag_indices(12)] = 1.0
_BANDS = np.array([np.append(np.diagonal(_SIGNS, -d), np.zeros(d)) for d in range(3)])
SIGNED = [
    DenseMatrix(np.tril(_SIGNS)),
    ToeplitzMatrix(np.array([1.0, -0.5, 0.25, 0.0, -1.0]), 12),
    BandedMatrix(_BANDS),
    ColumnScaled(BandedMatrix(_BANDS), 2.0 ** np.arange(-6, 6)),
]
MATRICES = [pytest.param(load(path).strategy, id=path.stem) for path in GOLDEN if path not in ENDLESS]
MATRICES += [pytest.param(matrix, id=f"signed {matrix.structure}") for matrix in SIGNED]


def exact_gram(whole: np.ndarray, bins: int) -> list[list[Fraction]]:
    """Return <m_j, m_l> of doubles, exactly and the long way."""
    n = len(whole)
    columns = [
        [sum((abs(Fraction(float(whole[t, i]))) for i in range(j, t + 1, bins)), Fraction(0)) for t in range(n)]
        for j in range(bins)
    ]
    return [[sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0)) for b in columns] for a in columns]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("bins", [1, 4, 7])
def test_both_grams_are_those_of_the_summed_columns_from_above(matrix: Matrix, bins: int) -> None:
    """That of the accountant, and that by which the checker tests claims."""
    found, proved = (
        bin_gram(matrix, bins),
        checker_bins.gram(Strategy(matrix.structure, matrix.tensors(), matrix.n), bins),
    )
    assert (found.bins, found.steps, found.epochs) == (bins, matrix.n, math.ceil(matrix.n / bins))
    stored = matrix in SIGNED or matrix.structure in ("dense", "toeplitz", "banded_toeplitz", "banded", "tree")
    whole = matrix.dense() if stored else np.linalg.inv(matrix.inverse_rows(0, matrix.n))
    expected = exact_gram(whole, bins)
    for enclosed, close in ((found.gram, 10**8), (proved.high, 10**11)):
        for row, true in zip(enclosed, expected, strict=True):
            for above, value in zip(row, true, strict=True):
                least = value if stored else value * (1 - Fraction(1, 10**12))
                assert least <= Fraction(float(above)) <= value * (1 + Fraction(1, close)) + Fraction(1, 10**15)
    assert (proved.near <= proved.high).all() and (proved.high - proved.near <= 1e-12 * proved.high.max()).all()


def test_bins_that_do_not_fit_are_refused() -> None:
    matrix = ToeplitzMatrix(np.ones(3), 6)
    for bins in (0, 7, 2.0, True):
        with pytest.raises(InvalidParameter, match="from 1 to 6; .*n=6"):
            bin_gram(matrix, bins)  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match="4096"):
        bin_gram(ToeplitzMatrix(np.ones(1), 10_000), 5000)
    with pytest.raises(TooLarge, match="70000000000 products, and the limit is 68719476736.*use larger batches"):
        bin_gram(BandedMatrix(np.arange(1.0, 70_001.0)[None]), 1000)


@pytest.mark.parametrize("path", ENDLESS, ids=lambda path: path.stem)
def test_a_strategy_without_end_has_no_bins(path: Path) -> None:
    strategy = load(path).strategy
    assert isinstance(strategy, EndlessMatrix)
    with pytest.raises(InvalidParameter, match="solve for a number n"):
        bin_gram(strategy, 4)


def as_proved(gram: BinGram) -> Gram:
    """What the checker would know of the same bins."""
    return Gram(gram.gram, gram.gram)


@pytest.mark.parametrize("pair", PAIRS)
def test_bounds_are_above_the_truth_and_the_lower_bound_below(pair: Pair) -> None:
    """Those of the accountant, and those by which the checker tests claims."""
    gram = of_matrix(pair.kernel)
    law, enclosed = BinsLaw(gram), star.addition(as_proved(gram), 1.0, pair.epsilon)
    for log_removal in (law.removal(1.0, pair.epsilon).log_delta, log_star(as_proved(gram), 1.0, pair.epsilon)):
        assert pair.removal <= math.exp(log_removal) < 8 * pair.removal
    for addition in (math.exp(law.addition(1.0, pair.epsilon).log_delta), float(enclosed)):
        assert pair.addition <= addition <= min(2 * pair.addition, pair.closed * (1 + 5e-4))
    assert float(enclosed.rad()) < 1e-12
    assert math.exp(log_single_bin(gram, 1.0, pair.epsilon)) <= pair.removal * (1 + 1e-6)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("order", [2, 3, 5])
def test_moments_are_above_those_of_the_pair_by_enumeration(pair: Pair, order: int) -> None:
    """E L^m is the mean over all tuples of exp(sum of K over their pairs); it is below E*(m)."""
    kernel = np.array(pair.kernel)
    tuples = itertools.product(range(len(kernel)), repeat=order)
    true = np.mean([math.exp(sum(kernel[a, b] for a, b in itertools.combinations(t, 2))) for t in tuples])
    direct = np.mean(np.exp(order / 2 * kernel).mean(axis=1) ** (order - 1))
    assert true <= direct * (1 + 1e-12)
    estimated, proved = BinsLaw(of_matrix(kernel)).log_moment(1.0, order), float(star.log_moment(kernel, order))
    assert proved == pytest.approx(math.log(direct), abs=1e-9) == estimated
    assert proved >= math.log(direct) - 1e-13


@pytest.mark.parametrize(("bins", "sigma", "epsilon", "low", "high"), INTERVALS)
def test_random_allocation_is_between_the_bounds(
    bins: int, sigma: float, epsilon: float, low: float, high: float
) -> None:
    found = checker_bins.gram(Strategy("banded_toeplitz", {"coefficients": np.ones(1)}, bins), bins)
    np.testing.assert_allclose(found.high, np.eye(bins), atol=1e-12)
    assert log_star(found, sigma, epsilon) >= math.log(low / ROUNDED)


@pytest.mark.parametrize(
    ("epsilon", "mu", "delta"),
    [(1.0, 0.5, 6.8296e-3), (8.0, 2.0, 4.9540e-4), (2.0, 0.25, 5.0921e-17), (4.0, 0.4, None)],
)
def test_one_bin_is_the_gaussian_mechanism(epsilon: float, mu: float, delta: float | None) -> None:
    gram = bin_gram(ToeplitzMatrix(np.array([1.0]), 4), 1)  # four steps of norm 1: a shift of norm 2
    law, true = BinsLaw(gram), gaussian_delta(epsilon, mu)
    assert true == pytest.approx(delta or true, rel=1e-4)
    assert true <= law.delta(2.0 / mu, epsilon) <= true * (1 + 1e-6)
    assert law.sigma(epsilon, true) == pytest.approx(2.0 / mu, rel=2e-7)
    enclosed, other = star.gaussian_delta(arb(epsilon), arb(mu)), star.addition(as_proved(gram), 2.0 / mu, epsilon)
    assert float(enclosed) == pytest.approx(true, rel=1e-6) and float(other) == pytest.approx(true, rel=1e-4)
    assert log_star(as_proved(gram), 2.0 / mu, epsilon) >= math.log(float(enclosed.lower()))


# sigma by the sampler (+-0.2 %), of the design's section 5, and the star ceiling's ratio to it.
CEILINGS = [(32, 8.0, 1e-5, 1.7207, 1.081), (32, 2.0, 1e-6, 4.196, 1.2045)]


@pytest.mark.parametrize(("taps", "epsilon", "delta", "sampled", "ratio"), CEILINGS)
def test_sigma_is_the_published_ceiling(taps: int, epsilon: float, delta: float, sampled: float, ratio: float) -> None:
    gram = bin_gram(inverse_roots(taps, 2048), 256)
    sigma = BinsLaw(gram).sigma(epsilon, delta)
    assert sigma == pytest.approx(ratio * sampled, rel=3e-3)
    assert sigma < noise_multiplier_for_epsilon(epsilon, delta) * gram.sensitivity
    assert BinsLaw(gram).delta(sigma, epsilon) <= delta
    assert BinsLaw(gram).epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-5)
    assert math.exp(log_single_bin(gram, sampled, epsilon)) < delta


def test_deltas_of_production_stay_meaningful() -> None:
    gram = bin_gram(inverse_roots(32, 2048), 256)
    sigmas = [BinsLaw(gram).sigma(2.0, delta) for delta in (1e-6, 1e-10, 1e-15, 1e-20)]
    assert sigmas == sorted(sigmas)
    assert BinsLaw(gram).delta(sigmas[-1], 2.0) == pytest.approx(1e-20, rel=1e-4)


@given(seed=st.integers(0, 10**6), size=st.integers(2, 5), epsilon=st.floats(0.1, 6), noise=st.floats(0.5, 4))
def test_bounds_grow_with_every_entry_of_the_gram(seed: int, size: int, epsilon: float, noise: float) -> None:
    """Corollary 1 makes rounding up safe; the bounds must not undo it."""
    rng = np.random.default_rng(seed)
    sums = rng.uniform(0, 1, (7, size))
    more = sums + rng.uniform(0, 0.5, (7, size)) * (rng.random((7, size)) < 0.3)
    small, large = (BinsLaw(of_matrix(m.T @ m)).bounds(noise, epsilon) for m in (sums, more))
    assert all(one.log_delta <= other.log_delta + 1e-7 for one, other in zip(small, large, strict=True))


def test_a_short_last_epoch_is_covered() -> None:
    """n = 10, b = 4: bins 2 and 3 have a step less, and their Gram entries are smaller."""
    gram = bin_gram(ToeplitzMatrix(np.array([1.0]), 10), 4)
    np.testing.assert_allclose(gram.gram, np.diag([3.0, 3.0, 2.0, 2.0]), rtol=1e-8, atol=1e-300)


def test_plain_sums_of_a_signed_strategy_understate() -> None:
    """n=4, k=2, b=2: an adaptive user gains from the signs, so plain column sums are no bound (theorem 3 d)."""
    signed = DenseMatrix(np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 1, 0], [0, -1, 0, 1]]))
    plain = signed.dense().reshape(4, 2, 2).sum(axis=1)
    assert (bin_gram(signed, 2).gram.diagonal() >= 2 * (plain.T @ plain).diagonal()).all()
    assert bin_gram(signed, 2).signed


@pytest.mark.parametrize("bins", [0, -1, True, 2.0])
def test_the_checker_refuses_a_number_of_bins_that_is_none(bins: int) -> None:
    with pytest.raises(InvalidParameter, match="integer of at least 1"):
        checker_bins.gram(Strategy("toeplitz", {"coefficients": np.ones(6)}, 6), bins)


def test_the_checker_refuses_what_is_too_large() -> None:
    with pytest.raises(TooLarge, match="limited to 4096 bins"):
        checker_bins.gram(Strategy("toeplitz", {"coefficients": np.ones(6)}, 6), 5000)
    with pytest.raises(InvalidStrategy, match="exceed the range"):
        checker_bins.gram(Strategy("toeplitz", {"coefficients": np.full(6, 1e200)}, 6), 2)
    long = np.zeros((1, 1 << 20))
    long[0] = 1.0
    with pytest.raises(TooLarge, match="products, and the limit is"):
        checker_bins.gram(Strategy("banded", {"bands": long}, 1 << 20), 4000)


@pytest.mark.parametrize("epsilon, delta, sigma", [(8.0, 1e-5, 2.0271), (2.0, 1e-6, 5.0541), (2.0, 1e-10, 6.6669)])
def test_sigma_of_the_star_bound_for_truncated_square_roots(epsilon: float, delta: float, sigma: float) -> None:
    """Published prefix errors 5.45, 17.7 and 23.36 at n=2048 and 8 epochs of 256 bins."""
    column = truncated_root(2048, 64 if epsilon == 8 else 32)
    found = checker_bins.gram(Strategy("toeplitz", {"coefficients": column}, 2048), 256)
    for factor, holds in ((1.0003, True), (0.9997, False)):
        bound = log_star(found, sigma * factor, epsilon)
        assert (bound <= math.log(delta)) == holds
        assert star.addition(found, sigma * factor, epsilon) < delta


def test_the_other_direction_is_enclosed_where_the_rounding_of_the_gram_matters() -> None:
    kernel = np.array([[2.0, 0.5], [0.5, 1.0]])
    near, far = Gram(kernel, kernel), Gram(kernel * 1.001, kernel * 0.999)
    inner, outer = star.addition(near, 1.0, 1.0), star.addition(far, 1.0, 1.0)
    assert outer.contains(inner) and outer.rad() > inner.rad()


def test_nothing_known_of_the_moment_is_no_bound() -> None:
    assert star.put_of_second_moment(arb(0), 1.0) == 1 == star.put_of_second_moment(arb(40), 0.1)
    assert log_put_of_second_moment(-1.0, 1.0) == 0 == log_put_of_second_moment(40.0, 0.1)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_no_convex_function_of_a_normal_number_has_more_below(epsilon: float) -> None:
    """Theorem 7 b by quadrature over kinked functions, and next to equality for a straight one."""
    g = np.linspace(-10, 10, 8_001)
    mass = np.exp(-(g**2) / 2) * (g[1] - g[0]) / math.sqrt(2 * math.pi)
    for seed in range(epsilon == 0.2, 50):  # at 0.2 half of the straight one is below
        rng = np.random.default_rng(seed)
        slopes = np.cumsum(rng.exponential(0.2, 4)) * (seed > 0) + 0.4 * (seed == 0)
        kinks = np.sort(rng.normal(0, 2, 3))
        raised = slopes[0] * g + sum(np.diff(slopes)[i] * np.maximum(g - kinks[i], 0) for i in range(3))
        ratio = np.exp(raised) / (mass @ np.exp(raised))
        true, moment = mass @ np.maximum(1 - math.exp(epsilon) * ratio, 0), math.log(mass @ ratio**2)
        for bound in (
            float(star.put_of_second_moment(arb(moment), epsilon)),
            math.exp(log_put_of_second_moment(moment, epsilon)),
        ):
            assert true <= bound * (1 + 1e-6) + 1e-12
            assert seed or bound < true * 1.5


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan, 1e-200])
def test_a_sigma_that_is_none_is_refused(sigma: float) -> None:
    with pytest.raises(InvalidParameter, match="sigma"):
        star.scale_gram(np.ones((1, 1)), sigma)
