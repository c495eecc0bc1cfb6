"""Factors of the columns of a Toeplitz strategy, fitted to balls in bins: C = T diag(f).

With T fixed, error and <D, G> are quadratic forms, one in 1 / f and one in f,

    error = sum_ij <column i of A, column j of A> <row i of T^-1, row j of T^-1> / (f_i f_j)
    <D, G> = sum_ij D_{i mod b, j mod b} <column i of |T|, column j of |T|> f_i f_j

so that a step of L-BFGS costs O(n^2). As for T, several forms D are kept. The stream of noise needs no more memory:
C^-1 = diag(1 / f) T^-1 scales what leaves it. Derivation: docs/notes/amplified-optimum.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from factorize.accounting.gram_matrix import gram_of_column
from factorize.errors import CertificateError, InvalidParameter, SolveFailed
from factorize.solvers.amplified.spread_sensitivity import SAMPLES, amplify, by_epochs, largest_form
from factorize.solvers.epochs.fitted_columns import error_of_factors
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Problem
from factorize.spec import BinsSampling

FIT_ROUNDS = 6
_STEPS = 30  # L-BFGS takes at most this many steps in a round
_FORMS = 4  # the fit keeps this many of the last forms
_MIN_GAIN = 5e-4  # a smaller fall of the logarithm of the error is no gain
_PATIENCE = 2  # rounds without a gain that end a fit: its first form may lead to the other regime, the second one back


@dataclass(frozen=True, eq=False)
class ColumnLoss:
    """The loss log(error x S) / 2 by the logarithms of the factors, S nearly the largest <D, G> of the forms.

    Attributes:
        error: form in 1 / f, shape (n, n).
        products: products of the columns of |T|, shape (n, n).
        forms: D, shape (forms, b, b).
    """

    error: Array
    products: Array
    forms: Array

    def __call__(self, logarithms: Array) -> tuple[float, Array]:
        """Return the loss and its derivative, shape (n,)."""
        factors = np.exp(logarithms)
        halves = self._through_bins(factors)
        spread, slope = largest_form(halves @ factors, 2 * halves)
        through = self.error @ (1 / factors)
        error = float((1 / factors) @ through)
        return math.log(error * spread) / 2, slope * factors / (2 * spread) - through / (factors * error)

    def _through_bins(self, factors: Array) -> Array:
        """Return half the derivative of <D, G> of each form by f, shape (forms, n).

        The steps of a bin are added first, whatever the form: then each form meets b numbers.
        """
        forms, bins, n = *self.forms.shape[:2], len(factors)
        ends, parts = n - n % bins, (-1, bins)
        of_bins = np.einsum("eb,ebi->bi", factors[:ends].reshape(parts), self.products[:ends].reshape(*parts, n))
        of_bins[: n - ends] += factors[ends:, None] * self.products[ends:]
        halves = np.einsum("fbk,ebk->feb", self.forms, by_epochs(of_bins.T, bins))
        return np.asarray(halves.reshape(forms, -1)[:, :n])


class ColumnFit:
    """Factors for one Toeplitz matrix.

    Args:
        problem: the problem with the workload and the objective.
        sampling: the sampling with epsilon and delta.
        column: first column of T, shape (n,).

    Attributes:
        products: products of the columns of |T|, shape (n, n).
        error: form in 1 / f, shape (n, n).
    """

    def __init__(self, problem: Problem, sampling: BinsSampling, column: Array) -> None:
        self.sampling, self.n, self._samples = sampling, problem.n, SAMPLES
        self.bins = sampling.bins(problem.participation, problem.n)
        self.products = gram_of_column(np.abs(column), self.n)
        self.error = error_of_factors(problem, column)

    def best(self, first_seed: int, rounds: int = FIT_ROUNDS, samples: int = SAMPLES) -> tuple[float, Array]:
        """Return the logarithm of the error at the privacy, as an estimate, and the factors, shape (n,), of mean 1."""
        self._samples, factors = samples, np.ones(self.n)
        value, form = self._value(factors, first_seed)
        kept, forms, idle = (value, factors), [form], 0
        for seed in range(first_seed + 1, first_seed + 1 + rounds):
            held = np.stack(forms[-_FORMS:])
            factors = self._descend(kept[1], held)
            try:
                value, form = self._value(factors, seed, held)
            except (SolveFailed, CertificateError, InvalidParameter):
                break
            idle = 0 if value < kept[0] - _MIN_GAIN else idle + 1
            kept = min(kept, (value, factors), key=lambda one: one[0])
            forms.append(form)
            if idle == _PATIENCE:
                break
        return kept

    def _value(self, factors: Array, seed: int, forms: Array | None = None) -> tuple[float, Array]:
        scaled = factors[:, None] * self.products * factors
        gram = by_epochs(by_epochs(scaled, self.bins).sum(axis=0).T, self.bins).sum(axis=0)
        here = amplify(gram, self.n, self.sampling, seed=seed, forms=forms, samples=self._samples)
        error = float((1 / factors) @ self.error @ (1 / factors))
        return math.log(here.multiplier) + math.log(error) / 2, here.form

    def _descend(self, factors: Array, forms: Array) -> Array:
        from scipy.optimize import minimize

        loss = ColumnLoss(self.error, self.products, forms)
        minimum = minimize(
            loss, np.log(factors), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "maxcor": 20}
        )
        reached = np.exp(minimum.x - minimum.x.max())
        return reached / reached.mean()
