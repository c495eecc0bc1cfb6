"""Strategies that are a formula: nu-Toeplitz (C24), square roots whole or cut to bands (KL24), anti-PGD, identity."""

import math
from collections.abc import Callable
from itertools import count

import numpy as np

from factorize.factors.sensitivity import sensitivity_of
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.format.tensors import MIN_COEFFICIENT, fading
from factorize.numbers.triangular import series_product, series_quotient
from factorize.solvers.methods.transforms import square_root
from factorize.solvers.problem import (
    Estimate,
    Problem,
    Reporter,
    estimate_of,
    mechanism_of,
    plain_loss,
    refuse_beyond_dense,
)
from factorize.solvers.single.dense import refuse_weights
from factorize.spec import Spec
from factorize.spec.mechanisms import (
    AntiPgd,
    BandedInverseFractionalRoot,
    BandedInverseSquareRoot,
    BandedSquareRoot,
    BandedToeplitz,
    IdentityMechanism,
    LambdaCgd,
    NuToeplitz,
)
from factorize.spec.objective import LambdaTau
from factorize.structures.base import MAX_DENSE, Matrix
from factorize.structures.recursion import toeplitz
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import MAX_DIAGONALS, BltMatrix, InverseBandedToeplitz, ToeplitzMatrix, flushed
from factorize.structures.toeplitz import noising_coefficients as noising_coefficients
from factorize.structures.toeplitz import strategy_coefficients as strategy_coefficients

_BANDED_ROOTS = (BandedSquareRoot, BandedInverseSquareRoot)
_INVERSE_KINDS = (BandedInverseSquareRoot, BandedInverseFractionalRoot, LambdaCgd)
_DIAGONAL_WORK = 400.0  # multiplications for each diagonal of C^-1 and step: the column of C, and its enclosure
_DECODER_WORK = 320.0  # multiplications for each entry of a Toeplitz decoder, where differences of its rows matter
_QUOTIENT_WORK = 40.0  # multiplications for each pair of steps: an enclosed quotient by a column with bands
_STEP_WORK, _RESTART_WORK = 1.5e5, 300.0
"""Multiplications of a certificate for each step, and more for each step since its restart."""
_EVALUATIONS, _TRY_WORK = 60, 2e4  # evaluations of a parameter that is tuned, and multiplications of each for each step
_MAX_DIRECT_TERMS = 4096  # a root of up to this many terms comes from the recursion, which has no FFT's absolute error
_GRID = np.concatenate([np.geomspace(1e-9, 0.1, 17), [0.3, 0.9]])
_LOG_ACCURACY = 1e-6  # for the logarithm of a parameter; the loss is flat at its minimum, so this is 1e-12 of it


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside these formulas, or None: every participation and objective is certified."""
    if spec.optimize_for is not None and isinstance(spec.mechanism, NuToeplitz):
        return refuse_weights(spec)
    if isinstance(spec.mechanism, AntiPgd) and (spec.mechanism.damping or 0.0) > 1:
        return (
            f"damping={spec.mechanism.damping} exceeds 1, which turns differences into sums; use damping in [0, 1] (1 "
            "is independent noise)"
        )
    return refuse_bands(spec) if isinstance(spec.mechanism, _BANDED_ROOTS) else None


def refuse_bands(spec: Spec) -> str | None:
    """Return why the workload has no root cut to that many bands, or None."""
    workload = spec.optimize_for or spec.workload
    bands = spec.mechanism.diagonals or 1
    if bands > workload.n:
        return f"bands={bands} exceeds n={workload.n}; use bands <= n"
    if not workload.time_invariant:
        return (
            f"a root with few diagonals needs a Toeplitz workload, and {workload.kind} is none here; use optimize_for "
            "with the prefix workload, or nu_toeplitz"
        )
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: series of length n, or n x n arrays where the certificate needs the decoder whole."""
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    tries = _EVALUATIONS if spec.mechanism.tuned else 1
    if needs_decoder(spec):
        nested = spec.workload.time_invariant and spec.mechanism.columns == "none"
        work = _DECODER_WORK * n * m if nested else 2.0 * n * n * m
        return refuse_beyond_dense(estimate_of(entries=8.0 * n * m, multiplications=tries * work), n, m)
    entries, work = recursion_cost(spec)
    if isinstance(spec.mechanism, _INVERSE_KINDS):
        work += _DIAGONAL_WORK * float(n) * (spec.mechanism.diagonals or 2)
    elif isinstance(spec.mechanism, _BANDED_ROOTS):
        work += _QUOTIENT_WORK * float(n) ** 2
    restarts = spec.objective.tau if isinstance(spec.objective, LambdaTau) and spec.objective.tau < n else 0
    certified = n * (_STEP_WORK + _RESTART_WORK * restarts)
    return estimate_of(entries=40.0 * n + entries, multiplications=tries * (_TRY_WORK * n + work) + certified)


def needs_decoder(spec: Spec) -> bool:
    """Return whether the certificate forms the decoder as an n x n array, because it is not Toeplitz."""
    if recursive(spec):
        return False
    normalization = spec.mechanism.columns
    scaled = normalization in ("columns", "fitted") or (normalization == "auto" and spec.workload.n <= MAX_DENSE)
    return scaled or not spec.workload.time_invariant or not spec.objective.by_row_errors(spec.workload.m)


def recursive(spec: Spec) -> bool:
    """Return whether C has so few diagonals, or buffers, that the certificate carries its losses along the steps."""
    few = isinstance(spec.mechanism, (AntiPgd, LambdaCgd, BandedToeplitz, BandedSquareRoot, IdentityMechanism))
    if not few or (spec.mechanism.diagonals or 1) > MAX_DIAGONALS:
        return False
    return spec.workload.outline().recursions() is not None


def recursion_cost(spec: Spec) -> tuple[float, float]:
    """Return entries and multiplications of carrying the losses along the steps, none where the decoder is whole."""
    if not recursive(spec):
        return 0.0, 0.0
    n, bands = float(spec.workload.n), float(spec.mechanism.diagonals or 1)
    return 6.0 * n * (bands + 16), 10.0 * n * (bands + 16) ** 2


def solve_nu_toeplitz(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the nu-Toeplitz strategy for the given nu, or for the nu of the smallest loss."""
    mechanism, n = mechanism_of(problem.spec, NuToeplitz), problem.n
    report, nu = Reporter(progress), mechanism.nu
    if isinstance(nu, str):
        nu = tune(
            problem,
            _GRID,
            lambda nu: ToeplitzMatrix(strategy_coefficients(n, nu), n),
            lambda workload, nu: series_product(workload, noising_coefficients(n, nu)),
            report,
        )
    return finish(problem, ToeplitzMatrix(strategy_coefficients(n, nu), n), report)


def solve_square_root(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the square root of the prefix sum: nu = 0."""
    return finish(problem, ToeplitzMatrix(strategy_coefficients(problem.n, 0.0), problem.n), Reporter(progress))


def solve_banded_square_root(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the first `bands` diagonals of the workload's square root (KL24, BSR)."""
    mechanism = mechanism_of(problem.spec, BandedSquareRoot)
    column = root_coefficients(workload_series(problem)[: mechanism.bands])
    return finish(problem, ToeplitzMatrix(flushed(column / column[0]), problem.n), Reporter(progress))


def solve_banded_inverse_square_root(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the inverse of the first `bands` diagonals of the workload's inverse square root (BISR).

    C^-1 has `bands` diagonals; where none below the first is positive (prefix sums, momentum, decay) it is what is
    stored, and noise needs bands - 1 vectors of state. Else C is stored by its n coefficients, and noise needs all.
    """
    mechanism = mechanism_of(problem.spec, BandedInverseSquareRoot)
    root = root_coefficients(workload_series(problem)[: mechanism.bands])
    noising = series_quotient(np.eye(1, len(root))[0], root / root[0])
    noising[0] = 1.0  # long quotients, by transforms, miss it by a rounding
    return finish(problem, strategy_of_noising(noising, problem.n), Reporter(progress))


def strategy_of_noising(noising: np.ndarray, n: int) -> Matrix:
    """Return C by the few diagonals of its inverse where that defines it to the last digit, else by its column.

    Args:
        noising: first column of C^-1 down to its last diagonal, shape (bands,), beginning with 1.
        n: side, at least `bands`.
    """
    if fading(noising) and not ((noising[1:] > -MIN_COEFFICIENT) & (noising[1:] != 0)).any():
        return InverseBandedToeplitz(noising, n)
    return ToeplitzMatrix(flushed(toeplitz(noising, n).inverse().products(np.eye(1, n))[0]), n)


def workload_series(problem: Problem) -> np.ndarray:
    """Return the first column of a Toeplitz workload, shape (n,)."""
    series = problem.workload.coefficients
    assert series is not None  # `supports` refuses the others
    return series


def root_coefficients(series: np.ndarray) -> np.ndarray:
    """Return the square root of a power series modulo x^n, first coefficient positive; the formula for prefix sums.

    Others: 2 r_0 r_t = a_t - sum_{0 < s < t} r_s r_{t-s} up to 4096 terms, Newton's iteration with FFTs above.

    Args:
        series: shape (n,), first entry positive.
    """
    n = len(series)
    if (series == 1.0).all():
        return strategy_coefficients(n, 0.0)
    if n > _MAX_DIRECT_TERMS:
        return square_root(series)
    root = np.zeros(n)
    root[0] = math.sqrt(series[0])
    for t in range(1, n):
        root[t] = (series[t] - root[1:t] @ root[t - 1 : 0 : -1]) / (2.0 * root[0])
    return root


def solve_anti_pgd(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return C with coefficients (1 - damping)^t: the noise of a step is z_t - (1 - damping) z_{t-1} (C24)."""
    mechanism = mechanism_of(problem.spec, AntiPgd)
    return finish(problem, powers(1.0 - (mechanism.damping or 0.0), problem.n), Reporter(progress))


def powers(kept: float, n: int) -> Matrix:
    """Return C with coefficients kept^t: a buffered Toeplitz matrix with one buffer, and stored as that."""
    return BltMatrix(np.array([kept + 0.0]), np.array([kept + 0.0]), n)


def solve_identity(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return C = I: independent noise."""
    return finish(problem, ToeplitzMatrix(np.ones(1), problem.n), Reporter(progress))


def tune(
    problem: Problem,
    grid: np.ndarray,
    strategy: Callable[[float], Matrix],
    decoder: Callable[[np.ndarray, float], np.ndarray],
    report: Reporter,
) -> float:
    """Return the parameter of the smallest loss: 0, or by a bounded search around the best point of a grid.

    The loss is the objective itself, sens(C)^2 times the error, for the problem's workload and participation.

    Args:
        problem: what is solved.
        grid: positive and ascending.
        strategy: C of a parameter.
        decoder: the first column of A C^-1 of that of A, shape (n,), and a parameter.
        report: told each parameter that is tried.
    """
    from scipy.optimize import minimize_scalar

    loss, tried = _loss_of(problem, strategy, decoder), count(1)

    def of(parameter: float) -> float:
        report(next(tried), None)
        return loss(parameter)

    best = int(np.argmin([of(parameter) for parameter in grid]))
    minimum = minimize_scalar(
        lambda logarithm: of(math.exp(logarithm)),
        bounds=(math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, len(grid) - 1)])),
        method="bounded",
        options={"xatol": _LOG_ACCURACY},
    )
    return min((0.0, float(grid[best]), math.exp(float(minimum.x))), key=of)


def _loss_of(
    problem: Problem, strategy: Callable[[float], Matrix], decoder: Callable[[np.ndarray, float], np.ndarray]
) -> Callable[[float], float]:
    """Return the loss of a parameter: by the decoder's column where its rows nest, else as certified."""
    workload, objective = problem.workload.coefficients, problem.objective
    if workload is None or not objective.by_row_errors(problem.workload.m) or needs_decoder(problem.spec):
        own = problem.spec.model_copy(update={"workload": problem.workload, "optimize_for": None})
        return lambda parameter: plain_loss(own, normalised(own, strategy(parameter)))

    def loss(parameter: float) -> float:
        sensitivity = sensitivity_of(strategy(parameter), problem.participation)
        return sensitivity.value**2 * objective.of_row_errors(np.cumsum(decoder(workload, parameter) ** 2))

    return loss


def finish(problem: Problem, matrix: Matrix, report: Reporter) -> Solution:
    """Return the answer of a formula, with the columns that the spec asks for."""
    report(1, None)
    return Solution(normalised(problem.spec, matrix), Outcome.CLOSED_FORM, 1)


def normalised(spec: Spec, matrix: Matrix, other: Matrix | None = None, *, carried: bool | None = None) -> Matrix:
    """Scale the columns to norm 1 if asked to; with `auto`, if that lowers the loss.

    Args:
        spec: what is asked.
        matrix: the matrix without scaling.
        other: the one to scale, if it is another one.
        carried: whether losses are carried along the steps; by default as `recursive` says.
    """
    normalization, carried = spec.mechanism.columns, recursive(spec) if carried is None else carried
    if normalization == "none" or (normalization == "auto" and spec.workload.n > MAX_DENSE and not carried):
        return matrix
    scaled = unit_columns(matrix if other is None else other)
    if normalization == "auto" and plain_loss(spec, scaled) >= plain_loss(spec, matrix):
        return matrix
    return scaled


def unit_columns(matrix: Matrix) -> ColumnScaled:
    """Return the matrix with its columns divided by their norms."""
    return ColumnScaled(matrix, 1.0 / np.sqrt(matrix.column_norms_squared()))
