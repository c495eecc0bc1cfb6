"""Strategies for prefix sums without end: buffered Toeplitz, tuned for a finite horizon, and nu-Toeplitz.

No strategy is best without end: every loss is infinite, and what it grows by can be made as small as one likes with
decays ever closer to 1, which take ever longer to help. So the buffers are optimised for a number of steps, that of
`optimize_for` or 2^20, and the result states the sensitivity of all the steps there may ever be.
"""

from dataclasses import replace

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.numbers.scalars import MAX_STEPS
from factorize.solvers import blt
from factorize.solvers.problem import Estimate, Problem, Reporter
from factorize.spec import Spec
from factorize.spec.mechanisms import Blt, NuToeplitz
from factorize.structures.endless import MAX_PATTERN_STEPS, EndlessBlt, EndlessNuToeplitz
from factorize.structures.toeplitz import BltMatrix
from factorize.workloads import Prefix

HORIZON = 1 << 20
"""The steps that a strategy is optimised for where the spec does not say."""
_SECONDS, _BYTES = 0.1, 1 << 26


def supports(spec: Spec) -> str | None:
    """Return why a spec without end has no strategy here, or None."""
    mechanism, spread = spec.mechanism, spec.participation.endless_spread()
    if not isinstance(mechanism, (Blt, NuToeplitz)):
        return (
            f"{mechanism.kind} needs a number of steps, but n is 'unbounded'; use blt, or nu_toeplitz with nu > 0, or "
            "give n"
        )
    if mechanism.normalization in ("columns", "fitted"):
        return "columns have equal norms if n is 'unbounded', with nothing to normalise; use normalization \"none\""
    if spread is not None and spread.most > MAX_PATTERN_STEPS:
        return f"max_participations={spread.most} exceeds {MAX_PATTERN_STEPS}, the limit for n='unbounded'; give fewer"
    if isinstance(mechanism, Blt):
        return blt.supports(_finite(spec))
    if not isinstance(mechanism.nu, float) or mechanism.nu == 0:
        return f"nu={mechanism.nu} has no finite sensitivity if n is 'unbounded'; give nu > 0 (tune it for a finite n)"
    if spread is not None and spread.most > 1:
        return f"nu_toeplitz with {spread.most} participations has no closed limit if n is 'unbounded'; use blt"
    return "optimize_for has no effect if nu is given; leave it out" if spec.optimize_for else None


def estimate(spec: Spec) -> Estimate:
    """Return the cost of the finite problem; that of a formula is next to nothing."""
    return Estimate(_SECONDS, _BYTES) if isinstance(spec.mechanism, NuToeplitz) else blt.estimate(_finite(spec))


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the strategy of a spec without end.

    Raises:
        SolveFailed: the optimum of the finite problem cannot go on without end.
    """
    mechanism = problem.spec.mechanism
    if isinstance(mechanism, NuToeplitz):
        assert isinstance(mechanism.nu, float)  # `supports` refuses the others
        Reporter(progress)(1, None)
        return Solution(EndlessNuToeplitz(np.array([mechanism.nu])), Outcome.CLOSED_FORM, 1)
    finite = _finite(problem.spec)
    solution = blt.solve(Problem(finite), progress)
    plain = solution.strategy
    if not isinstance(plain, BltMatrix):
        raise SolveFailed(
            f"the finite problem was solved by {plain.structure}, which has no unbounded form; use fewer buffers"
        )
    strategy = EndlessBlt(plain.theta, plain.omega)
    return replace(solution, strategy=strategy, provenance={"optimized_for": finite.workload.document()})


def _finite(spec: Spec) -> Spec:
    """Return the problem whose answer is used without end: of the workload to optimise for, at its number of steps."""
    workload = spec.optimize_for
    if workload is None:
        spread = spec.participation.endless_spread()
        reach = 1 if spread is None else spread.separation * spread.most
        workload = Prefix(kind="prefix", n=min(max(HORIZON, 2 * reach), MAX_STEPS))
    mechanism = spec.mechanism.model_copy(update={"normalization": "none"})
    return spec.model_copy(update={"workload": workload, "optimize_for": None, "mechanism": mechanism})
