"""The conic program as the literature writes it, by CVXPY and SCS; for small n, and a reference for the other solvers.

minimise tr Y over [[X, T^T], [T, Y]] >= 0 with diag X <= 1, or for fixed epochs X diagonal within each class with
traces at most 1 (docs/notes/method.md). A first-order solver returns X to about 1e-5 and calls it optimal: here its X
is made symmetric, definite and feasible, the dual is computed from that X alone, and the status is not looked at.
"""

import warnings
from importlib import import_module
from typing import Any

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.epochs.feasible_strategies import candidates, strategy_of
from factorize.solvers.problem import Estimate, Problem, Reporter, StepReport, estimate_of
from factorize.solvers.single.dense import loss_of, refuse_objective, right_singular, scaled, triangle
from factorize.spec import Spec

MAX_N = 64
_MIN_ERROR, _MAX_ERROR = 1e-9, 1e-4
_MAX_STEPS = 50_000
_ROUND = 500
"""The steps of SCS between two looks at it, 2 s at the largest n."""
_MIN_EIGENVALUE = 1e-9  # eigenvalues of X below this share of the largest are raised to it


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    if spec.workload.n > MAX_N:
        return (
            f"'semidefinite' is a reference for n <= {MAX_N}, got n={spec.workload.n}; use 'dense', which gives the "
            "same optimum"
        )
    if spec.participation.passes is None:
        return "'semidefinite' is for single participation and fixed_epochs; use nu_toeplitz or square_root for min_sep"
    return refuse_objective(spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: thousands of eigendecompositions of a cone of side 2 n."""
    n = spec.workload.n
    return estimate_of(entries=2.0**25, multiplications=3e10 + 2e5 * float(n) ** 3)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Solve the conic program, repair its X and compute the dual of the repaired matrix.

    Raises:
        SolveFailed: SCS returned nothing usable.
    """
    report = Reporter(progress)
    report(1, None)
    target = scaled(problem.target)
    epochs = problem.participation.spread(problem.n).most
    order = np.arange(problem.n).reshape(epochs, -1).T.ravel()
    gram, steps = _conic(_few_rows(target[:, order]), epochs, problem.tolerance, report)
    strategy = _repair(gram, target, order, epochs)
    loss, factors = _multipliers(target, strategy, order, epochs)
    gap = loss / _bound(target[:, order], factors) - 1
    report(steps + 1, gap)
    outcome = Outcome.CONVERGED if gap <= problem.tolerance else Outcome.ROUNDING_LIMIT
    dual = {"weights": factors[:, 0, 0] ** 2} if epochs == 1 else {"factors": factors}
    return Solution(problem.with_unit_sensitivity(strategy), outcome, steps, dual)


def _few_rows(target: np.ndarray) -> np.ndarray:
    """Return R with R^T R = T^T T and at most n rows: only this enters the problem."""
    return triangle(target) if target.shape[0] > target.shape[1] else target


def _conic(factor: np.ndarray, epochs: int, tolerance: float, report: StepReport) -> tuple[np.ndarray, int]:
    """Return SCS's X in class order, whatever it is worth, and its steps.

    SCS runs by rounds, each from where the one before has ended, so that a solve can be told of and stopped; a
    problem that takes one round is solved as without them.
    """
    cp: Any = import_module("cvxpy")
    r, n = factor.shape
    whole = cp.Variable((n + r, n + r), symmetric=True)
    classes = np.arange(n).reshape(-1, epochs)
    first, second = np.triu_indices(epochs, 1)
    limits = [whole >> 0, whole[n:, :n] == factor]
    limits += [cp.sum(cp.diag(whole)[members]) <= 1 for members in classes]
    if epochs > 1:
        limits.append(whole[classes[:, first].ravel(), classes[:, second].ravel()] == 0)
    program = cp.Problem(cp.Minimize(cp.trace(whole[n:, n:])), limits)
    try:
        with warnings.catch_warnings():  # the warning that the solution "may be inaccurate" says what is assumed anyway
            warnings.simplefilter("ignore")
            data, *inversion = program.get_problem_data(cp.SCS)
            solution, steps = _rounds(data, min(max(0.1 * tolerance, _MIN_ERROR), _MAX_ERROR), report)
            program.unpack_results(solution, *inversion)
    except cp.error.SolverError as error:
        raise SolveFailed(
            f"SCS gave up: {str(error)[:200]}; use mechanism 'dense', which gives the same optimum"
        ) from None
    if whole.value is None or not np.isfinite(whole.value).all():
        raise SolveFailed("SCS returned no finite matrix; use mechanism 'dense', which gives the same optimum")
    return whole.value[:n, :n], steps


def _rounds(data: dict[str, Any], accuracy: float, report: StepReport) -> tuple[dict[str, object], int]:
    """Return the last answer of SCS and its steps in all."""
    scs: Any = import_module("scs")
    sides = data["dims"]
    cones = {"z": sides.zero, "l": sides.nonneg, "q": sides.soc, "ep": sides.exp, "s": sides.psd}
    problem = {name: data[name] for name in ("A", "b", "c")}
    solver = scs.SCS(problem, cones, eps_abs=accuracy, eps_rel=accuracy, max_iters=_ROUND, verbose=False)
    solution = solver.solve(warm_start=False)
    done = solution["info"]["iter"]
    while solution["info"]["status_val"] != scs.SOLVED and solution["info"]["iter"] >= _ROUND and done < _MAX_STEPS:
        report(done, None)
        solution = solver.solve(warm_start=True)
        done += solution["info"]["iter"]
    return solution, done


def _repair(gram: np.ndarray, target: np.ndarray, order: np.ndarray, epochs: int) -> np.ndarray:
    """Return the best C, in the order of steps, among those of definite and feasible matrices near X."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    if values[-1] <= 0:
        raise SolveFailed("SCS returned a matrix without a positive eigenvalue; use mechanism 'dense' instead")
    definite = (vectors * np.maximum(values, _MIN_EIGENVALUE * values[-1])) @ vectors.T
    repaired = [strategy_of(candidate, order) for candidate in candidates(definite, epochs)]
    usable = [strategy for strategy in repaired if strategy is not None]
    if not usable:
        raise SolveFailed("SCS returned a matrix that is too ill-conditioned to repair; use mechanism 'dense' instead")
    return min(usable, key=lambda strategy: loss_of(target, strategy))


def _multipliers(target: np.ndarray, strategy: np.ndarray, order: np.ndarray, epochs: int) -> tuple[float, np.ndarray]:
    """Return the loss, and factors of the diagonal blocks of X^-1 T^T T X^-1, shape (b, k, k)."""
    from scipy.linalg import solve_triangular

    decoder = solve_triangular(strategy, target.T, trans="T", lower=True).T
    half = solve_triangular(strategy, decoder.T, lower=True)[order].reshape(-1, epochs, len(target))
    blocks = half @ half.transpose(0, 2, 1)
    blocks += 1e-14 * blocks.max() * np.eye(epochs)
    return float(np.vdot(decoder, decoder)), np.linalg.cholesky(blocks)


def _bound(target: np.ndarray, factors: np.ndarray) -> float:
    """Return ||T F||_*^2 / cost(F) for T in class order."""
    b, k = factors.shape[:2]
    products = target.reshape(-1, b, k).transpose(1, 0, 2) @ factors
    s, _ = right_singular(products.transpose(1, 0, 2).reshape(-1, b * k))
    cost = float(np.einsum("jik,jik->ji", factors, factors).max(axis=1).sum())
    return float(s.sum()) ** 2 / cost
