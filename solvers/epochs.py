"""Fixed epochs, any workload: the optimum over all lower-triangular matrices.

The examples fall into b classes of k steps, pi_j = {j, j + b, ...}. Against contributions that are vectors of norm at
most 1, the best Gram matrix X is diagonal within every class, with class traces 1 (mathematics F.2), and the dual is

    ||T F||_*^2 / sum_j w_j,   F F^T = W = (+)_j w_j R_j,   R_j correlation matrices of size k            (F.3)

with T the target. Write T F = U diag(s) Q^T and H = Q diag(s) Q^T. Then X = F^-T H F^-1, and since ||T F||_* is convex
in F with gradient X F, replacing F_j by the matrix of the same cost that is most aligned with G_j = F_j^-T H_jj never
lowers the bound: normalise the rows of G_j for R_j, and take w_j proportional to the squared sum of its row norms.
Anderson's extrapolation of (log w, R) makes this fast.

A feasible matrix that is quadratically close comes from setting the entries of X within the classes to zero and scaling
the class traces to 1. All arrays here are in class order: index j k + s stands for step j + s b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from factorize.errors import SolveFailed
from factorize.participation import FixedEpochs
from factorize.solution import Outcome, ProgressCallback, Solution
from factorize.spec import Spec
from solvers.anderson import Anderson
from solvers.budget import Estimate, estimate_of, refuse_beyond_dense
from solvers.dense import loss_of, refuse_objective, right_singular, scaled
from solvers.problem import Problem, Reporter, StepReport

_UNIT = 2.0**-52
_MOST_STEPS = 400
_STALL = 25  # steps without a clearly better gap after which rounding, not work, is what is missing
_SAFETY = 0.3
_IDLE_WEIGHT = 1e-30  # of the largest, for a class whose columns are all zero
_IDLE_SHARE = 1e-12  # of a class's budget, for a step in it that moves nothing: enough to keep C invertible
_LEAST_EIGENVALUE = 1e-12  # of a correlation matrix; keeps its factor invertible
_RIDGES = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    if not isinstance(spec.participation, FixedEpochs):
        return f"the optimum over correlation blocks is for fixed_epochs; participation is {spec.participation.kind!r}"
    return refuse_objective(spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: about thirty decompositions of n x n matrices."""
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    return refuse_beyond_dense(estimate_of(entries=14.0 * n * m, multiplications=900.0 * n * n * m), n, m)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with fixed epochs.

    Raises:
        SolveFailed: the target leaves the range of double precision, or no candidate could be inverted.
    """
    ascent = _maximise(problem, problem.tolerance, Reporter(progress))
    strategy = _recover(ascent.best, problem.tolerance)
    return Solution(
        strategy=problem.with_unit_sensitivity(strategy),
        outcome=ascent.outcome,
        iterations=ascent.steps,
        dual={"factors": ascent.best.factors},
    )


def dual_factors(problem: Problem, accuracy: float, report: StepReport) -> np.ndarray:
    """Return dual factors, shape (b, k, k), with a bound within about `accuracy` of the optimum."""
    return _maximise(problem, accuracy, report).best.factors


@dataclass(frozen=True)
class _Iterate:
    """Dual factors and the decomposition of T F.

    Attributes:
        target: T in the original order of steps, shape (m, n).
        order: class order, shape (n,): column i of class-ordered arrays is step order[i].
        factors: F_j, shape (b, k, k), scaled to sum_j w_j = 1.
        s: singular values of T F, shape (r,).
        q: right singular vectors by class, shape (b, k, r).
        blocks: H_jj, shape (b, k, k).
    """

    target: np.ndarray
    order: np.ndarray
    factors: np.ndarray
    s: np.ndarray
    q: np.ndarray
    blocks: np.ndarray

    @property
    def lower(self) -> float:
        """The dual bound; the cost is 1."""
        return float(self.s.sum()) ** 2

    @property
    def idle(self) -> np.ndarray:
        """Which steps move nothing (a zero column of T), in class order, shape (b, k)."""
        moved = np.asarray(self.target.any(axis=0))
        return ~moved[self.order].reshape(self.q.shape[:2])

    def gram(self) -> np.ndarray:
        """X scaled so that tr(X W) = sum_j w_j = 1, in class order, shape (n, n); a mere trace of it for idle steps."""
        b, k, r = self.q.shape
        whitened = np.linalg.solve(self.factors.transpose(0, 2, 1), self.q).reshape(b * k, r)
        gram = (whitened * (self.s / self.s.sum())) @ whitened.T
        idle = np.flatnonzero(self.idle)
        gram[idle] = gram[:, idle] = 0.0
        gram[idle, idle] = _IDLE_SHARE
        return gram


@dataclass(frozen=True)
class _Ascent:
    best: _Iterate
    outcome: Outcome
    steps: int


def _maximise(problem: Problem, tolerance: float, report: StepReport) -> _Ascent:
    target = scaled(problem.target)
    assert isinstance(problem.participation, FixedEpochs)
    order = problem.participation.patterns(problem.n).ravel()
    k = problem.participation.epochs
    weights = np.sqrt(np.einsum("ij,ij->j", target, target))[order].reshape(-1, k).mean(axis=1)
    correlations = np.broadcast_to(np.eye(k), (len(weights), k, k))
    current = best = _evaluate(target, order, weights, correlations)
    mixer, lowest, best_step, step = Anderson(), np.inf, 1, 1
    while True:
        gap = _gap(current)
        report(step, gap)
        if gap < 0.9 * lowest:
            best_step = step
        if gap < lowest:
            best, lowest = current, gap
        if lowest <= _SAFETY * tolerance:
            return _Ascent(best, Outcome.CONVERGED, step)
        if step >= best_step + _STALL:
            return _Ascent(best, Outcome.ROUNDING_LIMIT, step)
        if step >= _MOST_STEPS:
            return _Ascent(best, Outcome.ITERATION_LIMIT, step)
        current = _advance(current, mixer)
        step += 1


def _evaluate(target: np.ndarray, order: np.ndarray, weights: np.ndarray, correlations: np.ndarray) -> _Iterate:
    b, k = correlations.shape[:2]
    weights = np.maximum(weights, _IDLE_WEIGHT * weights.max())
    factors = np.linalg.cholesky(correlations) * np.sqrt(weights / weights.sum())[:, None, None]
    factors /= np.sqrt(np.einsum("jik,jik->ji", factors, factors).max(axis=1).sum())
    columns = target[:, order].reshape(-1, b, k).transpose(1, 0, 2)
    s, q = right_singular((columns @ factors).transpose(1, 0, 2).reshape(len(target), b * k))
    q = q.reshape(b, k, -1)
    return _Iterate(target, order, factors, s, q, (q * s) @ q.transpose(0, 2, 1))


def _advance(at: _Iterate, mixer: Anderson) -> _Iterate:
    """One extrapolated step; the plain power step where the extrapolation is not allowed or loses ground."""
    weights, correlations = _power(at)
    plain = _pack(weights, correlations)
    mixed = mixer.mix(_pack(*_split(at.factors)), plain, _importance(at.factors))
    if mixed is not None:
        unpacked = _unpack(mixed, *correlations.shape[:2])
        if _positive(unpacked[1]):
            trial = _evaluate(at.target, at.order, *unpacked)
            if trial.lower >= at.lower * (1 - 1e-13):
                return trial
        mixer.forget()
    return _evaluate(at.target, at.order, weights, correlations)


def _power(at: _Iterate) -> tuple[np.ndarray, np.ndarray]:
    """The generalised power step: weights, shape (b,), and correlations, shape (b, k, k)."""
    aligned = np.linalg.solve(at.factors.transpose(0, 2, 1), at.blocks)
    norms = np.where(at.idle, 0.0, np.linalg.norm(aligned, axis=2))
    floor = 1e-100 * norms.max()
    rows = np.where((norms > floor)[:, :, None], aligned / np.maximum(norms, floor)[:, :, None], np.eye(norms.shape[1]))
    correlations = rows @ rows.transpose(0, 2, 1)
    return norms.sum(axis=1) ** 2, _regular(correlations)


def _regular(correlations: np.ndarray) -> np.ndarray:
    """Symmetric with a diagonal of ones, and just enough of the identity to be invertible."""
    k = correlations.shape[1]
    mixed = (correlations + correlations.transpose(0, 2, 1)) / 2 + k * _LEAST_EIGENVALUE * np.eye(k)
    root = np.sqrt(np.einsum("jii->ji", mixed))
    return mixed / root[:, :, None] / root[:, None, :]


def _split(factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return w_j and R_j of factors whose rows have one norm per class."""
    products = factors @ factors.transpose(0, 2, 1)
    weights = np.einsum("jii->ji", products).mean(axis=1)
    return weights, products / weights[:, None, None]


def _importance(factors: np.ndarray) -> np.ndarray:
    """Weights of the unknowns in Anderson's least squares: the root of their class's share of the bound."""
    b, k = factors.shape[:2]
    root = np.sqrt(np.einsum("jik,jik->j", factors, factors))
    return np.concatenate([root, np.repeat(root, k * (k - 1) // 2)])


def _pack(weights: np.ndarray, correlations: np.ndarray) -> np.ndarray:
    rows, columns = np.tril_indices(correlations.shape[1], -1)
    logs = np.log(np.maximum(weights, _IDLE_WEIGHT * weights.max()) / weights.sum())
    return np.concatenate([logs, correlations[:, rows, columns].ravel()])


def _unpack(vector: np.ndarray, b: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.tril_indices(k, -1)
    correlations = np.broadcast_to(np.eye(k), (b, k, k)).copy()
    entries = vector[b:].reshape(b, -1)
    correlations[:, rows, columns] = correlations[:, columns, rows] = entries
    return np.exp(vector[:b] - vector[:b].max()), correlations


def _positive(correlations: np.ndarray) -> bool:
    return bool(np.linalg.eigvalsh(correlations).min() > _LEAST_EIGENVALUE)


def _gap(at: _Iterate) -> float:
    """Gap of the masked matrix, or of X itself scaled by its largest class sum where the masked one is not definite."""
    gram, rounding = at.gram(), 16 * len(at.order) * _UNIT
    strategy = strategy_of_gram(masked(gram, at.q.shape[1]), at.order)
    if strategy is not None:
        loss = loss_of(at.target, strategy)
        if np.isfinite(loss):
            return max(loss / at.lower - 1, 0.0) + rounding
    return max(float(_class_sums(gram, at.q.shape[1]).max()) - 1, 0.0) + rounding


def _recover(at: _Iterate, tolerance: float) -> np.ndarray:
    """Return lower-triangular C whose Gram matrix is diagonal within the classes, with class traces 1, shape (n, n).

    The masked X first, then with ridges; then X made diagonal by adding to it, which is definite whatever X is.

    Raises:
        SolveFailed: no candidate could be inverted.
    """
    best, lowest = None, np.inf
    for candidate in _candidates(at.gram(), at.q.shape[1]):
        strategy = strategy_of_gram(candidate, at.order)
        loss = np.inf if strategy is None else loss_of(at.target, strategy)
        if loss < lowest:
            best, lowest = strategy, loss
        if lowest <= at.lower * (1 + 0.5 * tolerance):
            break
    if best is None:
        raise SolveFailed(
            "no invertible strategy was found in double precision; rescale the workload so that its entries lie near 1"
        )
    return best


def _candidates(gram: np.ndarray, k: int) -> Iterator[np.ndarray]:
    for base in (gram, dominating(gram, k)):
        for ridge in _RIDGES:
            yield masked(base + ridge / k * np.eye(len(base)), k)


def masked(gram: np.ndarray, k: int) -> np.ndarray:
    """Return the matrix with its entries within classes set to zero off the diagonal, and class traces scaled to 1."""
    out, diagonal = _with_diagonal_blocks(gram, k, lambda blocks: np.einsum("jss->js", blocks))
    scale = np.repeat(1 / np.sqrt(np.maximum(diagonal.sum(axis=1), 1e-300)), k)
    return out * scale * scale[:, None]


def dominating(gram: np.ndarray, k: int) -> np.ndarray:
    """Return a matrix above X / c, c its largest class sum, diagonal within classes with traces 1 (proof of F.2)."""
    top = float(_class_sums(gram, k).max())
    out, diagonal = _with_diagonal_blocks(gram / top, k, lambda blocks: np.abs(blocks).sum(axis=2))
    spare = np.repeat((1 - diagonal.sum(axis=1)) / k, k)
    return out + np.diag(np.maximum(spare, 0.0))


def _with_diagonal_blocks(
    gram: np.ndarray, k: int, diagonal_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    b = len(gram) // k
    classes = np.arange(b)
    out = np.array(gram).reshape(b, k, b, k)
    diagonal = diagonal_of(out[classes, :, classes, :])
    out[classes, :, classes, :] = diagonal[:, :, None] * np.eye(k)
    return out.reshape(b * k, b * k), diagonal


def _class_sums(gram: np.ndarray, k: int) -> np.ndarray:
    b = len(gram) // k
    classes = np.arange(b)
    return np.abs(gram.reshape(b, k, b, k)[classes, :, classes, :]).sum(axis=(1, 2))


def strategy_of_gram(gram: np.ndarray, order: np.ndarray) -> np.ndarray | None:
    """Return C by Cholesky from the end (D.4), in the original order of steps, or None if X is not definite."""
    in_steps = np.empty_like(gram)
    in_steps[np.ix_(order, order)] = gram
    try:
        lower = np.linalg.cholesky(in_steps[::-1, ::-1])
    except np.linalg.LinAlgError:
        return None
    return np.ascontiguousarray(lower.T[::-1, ::-1])
