"""Thirty random specs of `min_sep` against semidefinite programs over all patterns: how far both ends are from them."""

from __future__ import annotations

import time
from typing import Any

import cvxpy
import numpy as np

import factorize
from factorize.solvers.min_sep.patterns import maximal_patterns
from factorize.solvers.problem import Problem
from factorize.spec import Spec, parse_spec

_SPECS = 30
_MAX_PATTERNS = 120  # the reference solver takes minutes with more


def draw_spec(rng: np.random.Generator) -> Spec | None:
    """Return a random spec of at most 16 steps, or None where it has too many patterns for the reference."""
    n = int(rng.integers(6, 17))
    kind = str(rng.choice(["prefix", "momentum", "weighted", "signed"]))
    workload: dict[str, Any] = {"kind": "prefix", "n": n}
    if kind == "momentum":
        workload = {"kind": "momentum", "n": n, "momentum": float(rng.choice([0.5, 0.9]))}
    if kind == "signed":
        rows = np.tril(rng.standard_normal((n, n))) + 2 * np.eye(n)
        workload = {"kind": "matrix", "rows": rows.tolist()}
    objective: dict[str, Any] = {"kind": "mean"}
    if kind == "weighted":
        objective = {"kind": "weighted", "weights": rng.uniform(0.1, 2.0, n).tolist()}
    separation, most = int(rng.integers(1, max(n // 2, 2))), int(rng.integers(2, 6))
    participation = {"kind": "min_sep", "min_sep": separation, "max_participations": most}
    spec = parse_spec(
        {
            "workload": workload,
            "participation": participation,
            "objective": objective,
            "mechanism": {"kind": "dense"},
        }
    ).canonical()
    if sum(map(len, maximal_patterns(n, *spec.participation.spread(n)[:2]))) > _MAX_PATTERNS:
        return None
    return spec


def reference(spec: Spec, *, vectors: bool) -> float:
    """Return the least loss over X, sensitive to vectors of any dimension or by absolute sums."""
    target, (separation, most, _) = Problem(spec).target, spec.participation.spread(spec.workload.n)
    n = target.shape[1]
    whole = cvxpy.Variable((2 * n, 2 * n), symmetric=True)
    x, sizes = whole[:n, :n], cvxpy.Variable((n, n))
    limits = [whole >> 0, whole[n:, :n] == target, sizes >= x, sizes >= -x]
    for pattern in maximal_patterns(n, separation, most):
        for steps in pattern.tolist():
            block, shares = np.ix_(steps, steps), cvxpy.Variable(len(steps))
            limits += [cvxpy.diag(shares) - x[block] >> 0, cvxpy.sum(shares) <= 1] if vectors else []
            limits += [] if vectors else [cvxpy.sum(sizes[block]) <= 1]
    found = cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(whole[n:, n:])), limits).solve(
        solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
    )
    return float(found) * spec.objective.scale(spec.workload.m)


def main() -> None:
    """Print a line for each spec, and the largest differences."""
    rng, apart, done = np.random.default_rng(20261127), [], 0
    while done < _SPECS:
        spec = draw_spec(rng)
        if spec is None:
            continue
        began = time.process_time()
        found = factorize.solve(spec).certificate
        seconds = time.process_time() - began
        ends = (
            found.loss.objective / reference(spec, vectors=False) - 1,
            found.lower_bound.objective / reference(spec, vectors=True) - 1,
        )
        apart.append(ends)
        done += 1
        print(
            f"{spec.workload.kind:9} n={spec.workload.n:2} {spec.participation.spread(spec.workload.n)[:2]} "
            f"{seconds:5.2f} s  C {ends[0]:+.2e}  bound {ends[1]:+.2e}  gap {found.relative_gap:.2e}",
            flush=True,
        )
    print("largest", np.abs(np.array(apart)).max(axis=0))


if __name__ == "__main__":
    main()
