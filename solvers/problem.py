"""The problem that a solver is given: the spec seen as one matrix to factor, what it costs, and a voice for progress.

A cost is known from the integers of the spec, before any array exists.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from factorize.errors import TooLarge
from factorize.factors.plain_sensitivity import plain_sensitivity
from factorize.factors.solution import Progress, ProgressCallback
from factorize.participation import AnyParticipation
from factorize.spec import Spec
from factorize.spec.mechanisms import AnyMechanism
from factorize.spec.objective import Objective
from factorize.structures.base import MAX_DENSE, Matrix, check_dense
from factorize.structures.dense import DenseMatrix
from factorize.workloads import Workload

_ROUNDING_ROOM = 2.0**-50
"""Room for each product of a column and each step of a pattern, more than the checker leaves for rounding."""

Mechanism = TypeVar("Mechanism", bound=AnyMechanism)


def mechanism_of(spec: Spec, kind: type[Mechanism]) -> Mechanism:
    """Return the mechanism of a spec that came to the solver of its kind."""
    assert isinstance(spec.mechanism, kind)
    return spec.mechanism


StepReport = Callable[[int, float | None], None]
"""A function to which an iteration tells its step and its gap; it may raise `Cancelled`."""


def outline_of(spec: Spec) -> Workload:
    """Return the workload to optimise for as prices ask it: the same forms, and no long arrays that nobody listed."""
    workload = spec.optimize_for or spec.workload
    return workload if spec.objective.listed else workload.outline()


@dataclass(frozen=True)
class Problem:
    """A canonical spec with a named mechanism, as the solvers read it.

    Every objective but `max` is scale * sens(C)^2 * ||T C^-1||_F^2 with one target T = W A.

    Attributes:
        spec: the spec.
    """

    spec: Spec

    @property
    def workload(self) -> Workload:
        """The workload to optimise for."""
        return self.spec.optimize_for or self.spec.workload

    @property
    def n(self) -> int:
        """Number of steps."""
        return self.workload.n

    @property
    def participation(self) -> AnyParticipation:
        """The participation over which the sensitivity is taken."""
        return self.spec.participation

    @property
    def objective(self) -> Objective:
        """The objective that is minimised."""
        return self.spec.objective

    @property
    def tolerance(self) -> float:
        """Relative gap asked for."""
        return self.spec.tolerance

    @cached_property
    def target(self) -> np.ndarray:
        """T = W A, shape (m, n).

        Raises:
            UnsupportedProblem: the objective is `max`, which no fixed W expresses.
        """
        return np.ascontiguousarray(self.objective.weigh(self.workload.dense()))

    @cached_property
    def kept(self) -> np.ndarray:
        """Return which columns of T are not exactly zero, shape (n,); a zero learning rate makes one that is."""
        return np.asarray(self.target.any(axis=0))

    @property
    def evaluates_itself(self) -> bool:
        """Return whether the workload to optimise for is the one to evaluate on, so that their duals are the same."""
        return self.spec.optimize_for is None

    def with_unit_sensitivity(self, strategy: np.ndarray) -> DenseMatrix:
        """Return C scaled so that its certified sensitivity is at most 1, and within 1e-9 of it.

        Args:
            strategy: lower-triangular, shape (n, n); given away.
        """
        n = len(strategy)
        strategy.setflags(write=False)
        plain = plain_sensitivity(DenseMatrix(strategy), self.participation)
        room = (n + 8) * self.participation.spread(n).most * _ROUNDING_ROOM
        scaled = strategy * ((1 - room) / plain)
        scaled.setflags(write=False)
        return DenseMatrix(scaled)


def plain_loss(spec: Spec, matrix: Matrix) -> float:
    """Return the objective of a strategy matrix in plain doubles, to choose among matrices by; infinity beyond doubles.

    Raises:
        TooLarge: the decoder has no structure and n is above the limit of dense arrays.
    """
    workload, objective = spec.workload, spec.objective
    with np.errstate(over="ignore", invalid="ignore"):
        squared = _decoder_loss(workload, objective, matrix) * plain_sensitivity(matrix, spec.participation) ** 2
    return float(squared) if math.isfinite(squared) else math.inf


def _decoder_loss(workload: Workload, objective: Objective, matrix: Matrix) -> float:
    if objective.by_row_errors(workload.m):
        decoder = None if workload.coefficients is None else matrix.divide(workload.coefficients)
        if decoder is not None:
            return objective.of_row_errors(np.cumsum(decoder**2))
        states = workload.state_space()
        errors = None if states is None else matrix.decoder_errors(states)
        if errors is not None:
            return objective.of_row_errors(errors)
    check_dense(max(matrix.n, workload.m))
    rows = matrix.right_solve(workload.dense())
    if objective.by_row_errors(workload.m):
        return objective.of_row_errors(np.einsum("ij,ij->i", rows, rows))
    rows = objective.weigh(rows)
    return objective.scale(workload.m) * float(np.vdot(rows, rows))


class Reporter:
    """Passes steps on to the caller, who knows since when they are searched.

    Args:
        callback: the caller's; what it raises ends the solve.
        phase: one of `factorize.factors.solution.PHASES`.
    """

    def __init__(self, callback: ProgressCallback, phase: str = "refine") -> None:
        self._callback, self._phase = callback, phase

    def within(self, phase: str) -> Reporter:
        """Return a reporter of a phase."""
        return Reporter(self._callback, phase)

    def __call__(self, iteration: int, relative_gap: float | None, class_gap: float | None = None) -> None:
        """Report one step of the outer loop, counted from 1."""
        self._callback(Progress(iteration, relative_gap, class_gap, 0.0, self._phase))


_DOUBLE = 8
_MULTIPLICATIONS_PER_SECOND = 3e10  # multiplications a second of a dense kernel on two cores
_BASE_SECONDS = 0.05
_BASE_BYTES = 2**26
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Estimate:
    """Rough cost of a solve, certificate included.

    Attributes:
        seconds: seconds on two cores of a present-day machine; right within a factor of about three.
        bytes: largest resident memory; meant to be above the truth.
    """

    seconds: float
    bytes: int


def estimate_of(*, entries: float, multiplications: float) -> Estimate:
    """Return the estimate for a number of stored doubles and of multiplications."""
    return Estimate(_BASE_SECONDS + multiplications / _MULTIPLICATIONS_PER_SECOND, _BASE_BYTES + int(_DOUBLE * entries))


def with_work(estimate: Estimate, multiplications: float) -> Estimate:
    """Return the estimate for as many multiplications more."""
    return replace(estimate, seconds=estimate.seconds + multiplications / _MULTIPLICATIONS_PER_SECOND)


def refuse_beyond_dense(estimate: Estimate, n: int, m: int) -> Estimate:
    """Return the estimate of a solve that needs arrays of shape (m, n).

    Raises:
        TooLarge: a side is above the limit of dense arrays; with the estimate and the way out.
    """
    if max(n, m) > MAX_DENSE:
        raise TooLarge(
            f"a {m} x {n} result would take about {estimate.bytes / 2**30:.1f} GiB and {estimate.seconds:.3g} s, above "
            f"the limit of {MAX_DENSE} for dense arrays; lower n, or use nu_toeplitz on a time-invariant workload, "
            "which needs memory for one column only"
        )
    return estimate


def machine_memory() -> int:
    """Return the bytes this process may use: the machine's memory, or its control group's limit if that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _GROUP_LIMITS:
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return total


def refuse_beyond_memory(estimate: Estimate, what: str) -> None:
    """Raise if an estimate exceeds the machine's memory.

    Raises:
        TooLarge: with the estimate, the limit and the way out.
    """
    limit = machine_memory()
    if estimate.bytes > limit:
        raise TooLarge(
            f"{what} would take about {estimate.bytes / 2**30:.1f} GiB and {estimate.seconds:.0f} s; this machine has "
            f"{limit / 2**30:.1f} GiB; lower n, or use nu_toeplitz, which needs memory for one column only"
        )
