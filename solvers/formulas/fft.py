"""The FFT mechanism: noise drawn in the frequency domain of twice the length, as one square real matrix.

A Toeplitz workload with first column a is a block of the circulant matrix of (a_0, .., a_{n-1}, 0, .., 0), 2n numbers,
which the discrete Fourier transform F diagonalises: with L = diag(fft(a, zeros)),

    A = E^T F* L F E,    E the first n of 2n unit columns,    A = (E^T F* L^(1/2)) (L^(1/2) F E)

Complex noise through the left factor, its real part taken, has the covariance K = E^T F* |L| F E over the outputs, a
real symmetric Toeplitz matrix with the inverse transform of |L| as its first column. What is released depends on that
alone:

- decoder `circulant`, as published: B is the Cholesky factor of K, and C = B^-1 A.
- decoder `optimal`: the best decoder for the same encoder L^(1/2) F E, whose Gram matrix is K as well; C is the
  reversed Cholesky factor, C^T C = K, and B = A C^-1.

Reference: Choquette-Choo, McMahan, Rush, Thakurta, "Multi-Epoch Matrix Factorization Mechanisms for Private Machine
Learning", section 5 and its appendix on the optimal decoder (arXiv 2211.06530).
"""

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import ProgressCallback, Solution
from factorize.solvers.formulas.closed_form import finish
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of, refuse_beyond_dense
from factorize.spec import Spec
from factorize.spec.mechanisms import Fft
from factorize.structures.dense import DenseMatrix


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this mechanism, or None."""
    workload = spec.optimize_for or spec.workload
    if not workload.time_invariant:
        return (
            f"the FFT mechanism needs a Toeplitz workload, and {workload.kind} is none here; use optimize_for with "
            "the prefix workload, or tree"
        )
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: a Cholesky factor, a triangular solve and the certificate, all of n x n arrays."""
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    needed = estimate_of(entries=8.0 * n * m, multiplications=4.0 * n * n * m)
    return refuse_beyond_dense(needed, n, m)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the square equivalent of the mechanism's noise.

    Raises:
        SolveFailed: the covariance of the noise is singular in double precision.
    """
    mechanism = mechanism_of(problem.spec, Fft)
    column = problem.workload.coefficients
    assert column is not None  # supports() refuses other workloads
    strategy = DenseMatrix(square_equivalent(column, optimal=mechanism.decoder == "optimal"))
    return finish(problem, strategy, Reporter(progress))


def covariance(column: Array) -> Array:
    """Return the first column of K, the inverse transform of |fft(a, zeros)|, shape (n,)."""
    from scipy.fft import irfft, rfft

    n = len(column)
    return np.asarray(irfft(np.abs(rfft(column, 2 * n)), 2 * n)[:n])


def square_equivalent(column: Array, *, optimal: bool) -> Array:
    """Return the lower-triangular C with a positive diagonal, shape (n, n).

    Args:
        column: first column of the workload, shape (n,).
        optimal: whether to decode by the best decoder instead of the circulant one.

    Raises:
        SolveFailed: see `solve`.
    """
    from scipy.linalg import solve_triangular, toeplitz

    try:
        factor = np.linalg.cholesky(toeplitz(covariance(column)))
    except np.linalg.LinAlgError:
        raise SolveFailed(
            f"the covariance of the FFT mechanism's noise is singular in double precision at n={len(column)}; use "
            "optimize_for with the prefix workload, or tree"
        ) from None
    if optimal:  # K is the same read backwards, so its reversed factor is the factor turned around
        return np.ascontiguousarray(factor[::-1, ::-1].T)
    workload = toeplitz(column, np.zeros(len(column)))
    return np.tril(solve_triangular(factor, workload, lower=True))
