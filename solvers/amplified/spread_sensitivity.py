"""Spread sensitivity: what an amplified sigma feels of C, to first order.

Under balls in bins sigma is a function of the Gram matrix G of the bins, and Kahane's derivative says how:

    d log sigma = sum_ij D_ij dG_ij / (2 sum_ij D_ij G_ij),     D_ij = E_Q[L_i L_j delta_Dirac(L - T)] >= 0

with L_i the likelihood ratio of bin i over b. So at fixed D the squared sensitivity of a Toeplitz strategy gives way
to <D, G>, a quadratic form in its coefficients, and the points where that loss is stationary, with D taken there, are
those of the amplified error. Derivation: docs/notes/amplified-optimum.md.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.accounting.gram_matrix import BinGram
from factorize.accounting.star_estimate import StarEstimate, usual_samples
from factorize.errors import SolveFailed
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.transforms import Transforms
from factorize.spec import BinsSampling

SAMPLES = 8192
"""The samples of an estimate: 16384 of them found nothing better by 2e-4 at delta 1e-5, by 1.5e-3 at delta 1e-10."""
_BUMP_WIDTH = 0.35  # the width of the bump in log L that stands for the Dirac measure
_MIN_SIGMA = 1e-4  # a search that needs less noise than this part of the sensitivity has gone astray
_POWER = 12.0
_SMOOTHING_RADIUS = 2e-4
"""Where coefficients may change sign, |c| is rounded off below this part of the first coefficient."""


@dataclass(frozen=True, eq=False)
class SpreadSensitivity:
    """S(c) = (mean_i <D_i, G(c)>^p)^(1/p) of a Toeplitz column, with its derivative: nearly the largest of the forms.

    Each form was right where it was taken, D_i scaled so that it is sigma^2 there. Between two regimes, one bin that
    gives itself away and many that do together, one form alone would lead from the one far into the other.

    Attributes:
        forms: D_i, shape (forms, b, b), symmetric, not negative.
        n: number of steps.
        smooth: whether |c| is rounded off near zero, for columns whose signs may change.
    """

    forms: Array
    n: int
    smooth: bool = False

    def value_and_gradient(self, column: Array) -> tuple[float, Array]:
        """Return S and its derivative, O(n log n + b^2) for each form."""
        bins = self.forms.shape[1]
        magnitude, slope = self._magnitude(column)
        u = comb(np.pad(magnitude, (0, self.n - len(column))), bins)
        gradients = self._gradients(u)
        value, gradient = largest_form(gradients @ u / 2, gradients)  # the forms are quadratic
        return value, comb(gradient[::-1], bins)[::-1][: len(column)] * slope

    def _gradients(self, u: Array) -> Array:
        """Return the derivatives of <D, G> by u, shape (forms, n), G_ij = sum_{s < n - max(i, j)} u_{s + |i - j|} u_s.

        All terms of a lag have the same weight, but for the last ones, which not every bin reaches.
        """
        bins = self.forms.shape[1]
        lags = np.concatenate([self._suffixes[:, 0, :0:-1], self._suffixes[:, 0]], axis=1)
        gradients = Transforms(self.n + bins - 1).product(lags, u)[:, bins - 1 :]
        gradients[:, self.n - bins + 1 :] -= u[self.n - bins + 1 :] @ self._suffixes[:, :0:-1, :0:-1]
        return 2.0 * gradients

    @cached_property
    def _suffixes(self) -> Array:
        """Return the sums of the forms' entries along each diagonal, from the entry to the end, shape (forms, b, b)."""
        sums = self.forms.copy()
        for i in range(sums.shape[1] - 2, -1, -1):
            sums[:, i, :-1] += sums[:, i + 1, 1:]
        return sums

    def _magnitude(self, column: Array) -> tuple[Array, Array]:
        if not self.smooth:
            return np.abs(column), np.sign(column)
        radius = _SMOOTHING_RADIUS * column[0]
        length = np.hypot(column, radius)
        return length - radius, column / length


def by_epochs(values: Array, bins: int) -> Array:
    """Return the same entries by epoch and bin along the first axis, zeros after the last, shape (epochs, b, ...)."""
    filled = np.concatenate([values, np.zeros((-len(values) % bins, *values.shape[1:]))])
    return filled.reshape(-1, bins, *values.shape[1:])


def comb(values: Array, bins: int) -> Array:
    """Return u_t = c_t + u_{t-b}, shape (n,): of c, the column of |C|, the first bin's sum of columns."""
    return np.asarray(by_epochs(values, bins).cumsum(axis=0).ravel()[: len(values)])


def largest_form(values: Array, gradients: Array) -> tuple[float, Array]:
    """Return (mean of the values^p)^(1/p), nearly the largest one, and its derivative.

    Args:
        values: values of the forms, shape (forms,), positive.
        gradients: theirs, shape (forms, variables).
    """
    top = values.max()
    shares = (values / top) ** _POWER
    value = top * shares.mean() ** (1 / _POWER)
    return float(value), (value / shares.sum() * shares / values) @ gradients


@dataclass(frozen=True, eq=False)
class Amplified:
    """The standing of a strategy under sampling.

    Attributes:
        multiplier: sigma at clip norm 1 and without a divisor, a point estimate.
        form: D, scaled so that <D, G> is sigma^2 here.
    """

    multiplier: float
    form: Array


def amplify(
    gram: Array,
    n: int,
    sampling: BinsSampling,
    *,
    seed: int,
    forms: Array | None = None,
    samples: int = SAMPLES,
    tolerance: float | None = None,
) -> Amplified:
    """Return sigma and D of a strategy by the star sampler.

    Args:
        gram: Gram matrix of its bins, in plain doubles, shape (b, b).
        n: number of steps.
        sampling: the sampling with epsilon and delta.
        seed: seed of the common random numbers; an estimate chooses C and proves nothing.
        forms: forms of strategies near by, shape (forms, b, b): the largest one says what sigma may be.
        samples: the most samples of the estimate.
        tolerance: relative, of sigma; by default far below the estimate's own error.
    """
    held = BinGram(gram, n)
    estimate = StarEstimate(held, seed=seed, samples=min(samples, usual_samples(held.bins)))
    near = None if forms is None else math.sqrt(float(np.einsum("fij,ij->f", forms, gram).max()))
    with np.errstate(all="ignore"):
        multiplier = estimate.sigma(sampling.epsilon, sampling.delta, near=near, tolerance=tolerance)
    if not _MIN_SIGMA * held.sensitivity < multiplier < math.inf:
        raise SolveFailed(f"no sigma is usable at epsilon={sampling.epsilon:g} ({multiplier:g}); use a smaller one")
    form = estimate.pair_weights(multiplier, sampling.epsilon, width=_BUMP_WIDTH)
    here = float((form * gram).sum())
    if not (math.isfinite(here) and here > 0):
        raise SolveFailed(
            f"no sample met epsilon={sampling.epsilon:g} at the sigma found, {multiplier:g}; use a smaller one"
        )
    return Amplified(multiplier, form * (multiplier**2 / here))
