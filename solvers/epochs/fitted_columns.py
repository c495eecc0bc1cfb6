"""Factors of the columns of a Toeplitz strategy over several epochs: C = T diag(f), at no memory for its noise.

With T fixed, the error is a form in 1 / f, and the squared sensitivity the largest over the patterns of one in f:

    error = sum_il <column i of W A, column l of W A> <row i of T^-1, row l of T^-1> / (f_i f_l)
    pattern p: sum over steps i, l of p of <column i of |T|, column l of |T|> f_i f_l

Under fixed epochs each class of steps is a pattern, and f is scaled so that each of them sums to 1. Under `min_sep` the
steps of a block of min_sep have one factor, and the pattern is {0, min_sep, 2 min_sep, ...}, the worst of a T that does
not increase; the certificate bounds the others. What is found is a stationary point.
"""

from functools import partial

import numpy as np

from factorize.accounting.gram_matrix import gram_of_column
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.transforms import reciprocal
from factorize.solvers.problem import Problem
from factorize.spec import Spec
from factorize.structures.base import Matrix
from factorize.structures.scaled import ColumnScaled

MAX_N_FITTED = 4096
"""The most steps of a fit, whose quadratic forms are arrays of 128 MiB each."""

_STEPS = 300  # L-BFGS takes at most this many steps; prefix sums take 10 to 40


def refuse_fitted(spec: Spec) -> str | None:
    """Return why no columns are fitted to the participation of a canonical spec with an end, or None."""
    n = (spec.optimize_for or spec.workload).n
    separation, most, _ = spec.participation.spread(n)
    fits = -(-n // separation)
    if n > MAX_N_FITTED:
        return f"n={n} is above {MAX_N_FITTED}, the limit for fitted columns; use normalization 'auto' or 'none'"
    if most < max(fits, 2):
        return (
            "normalization 'fitted' needs examples that take all steps that fit, 2 or more, but here they take "
            f"{most} of {fits}; use normalization 'auto', or give it a sampling or all participations that fit"
        )
    if not spec.objective.quadratic:
        return "normalization 'fitted' does not support objective 'max'; use normalization 'auto', or objective 'mean'"
    return None


def fitting_cost(spec: Spec) -> tuple[float, float]:
    """Return the entries and multiplications of `fitted_columns`, none where no column is fitted."""
    n = float((spec.optimize_for or spec.workload).n) if spec.mechanism.fitted and spec.sampling is None else 0.0
    return 6 * n * n, 2 * _STEPS * n * n + 2 * n**3


def fitted_columns(problem: Problem, strategy: Matrix) -> ColumnScaled:
    """Return a Toeplitz strategy with the factors of its columns that fit the participation."""
    from scipy.optimize import minimize

    n, column = problem.n, strategy.rows(problem.n - 1, problem.n)[0, ::-1]
    separation = problem.participation.spread(n).separation
    error, products = error_of_factors(problem, column), gram_of_column(np.abs(column), n)
    starts = np.arange(0, n, separation)
    if problem.participation.periodic:
        classes = np.arange(separation)
        forms = products.reshape(len(starts), separation, -1, separation)[:, classes, :, classes]
    else:
        forms = products[None, starts[:, None], starts]
        error = np.add.reduceat(np.add.reduceat(error, starts, axis=0), starts, axis=1)
    loss = partial(_loss, error=error, forms=forms)
    options = {"maxiter": _STEPS, "maxcor": 20}
    found = minimize(loss, np.zeros(len(error)), jac=True, method="L-BFGS-B", options=options)
    factors = np.exp(found.x).reshape(len(starts), -1)
    factors /= np.sqrt(_shares(factors, forms).sum(axis=0))
    if factors.shape[1] == 1:
        factors = np.repeat(factors, separation, axis=1)
    return ColumnScaled(strategy, factors.ravel()[:n])


def error_of_factors(problem: Problem, column: Array) -> Array:
    """Return the form of the error in 1 / f, shape (n, n), of a T with that column."""
    n, objective, workload = problem.n, problem.objective, problem.workload.coefficients
    error = gram_of_column(reciprocal(column, n), n)[::-1, ::-1]  # the form of the rows, from the last
    if workload is not None and objective.uniform:
        error = error * gram_of_column(workload, n)
    else:
        error = error * (problem.target.T @ problem.target)
    return np.asarray(error * objective.scale(problem.workload.m))


def _shares(factors: Array, forms: Array) -> Array:
    """Return what each step adds to the sum of its pattern, shape (steps, patterns)."""
    return np.asarray(np.einsum("pil,lp->ip", forms, factors) * factors)


def _loss(logarithms: Array, error: Array, forms: Array) -> tuple[float, Array]:
    """Return the logarithm of error times squared sensitivity, the patterns scaled to 1, and its derivative."""
    factors = np.exp(logarithms).reshape(-1, len(forms))
    shares = _shares(factors, forms)
    sums = shares.sum(axis=0)
    inverse = np.ravel(np.sqrt(sums) / factors)
    through = error @ inverse
    value, parts = float(inverse @ through), (inverse * through).reshape(factors.shape)
    slope = shares / sums * parts.sum(axis=0) - parts
    return float(np.log(value)), np.ravel(2 * slope / value)
