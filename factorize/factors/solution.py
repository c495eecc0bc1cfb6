"""The solution that a solver claims: a strategy matrix, evidence for a bound, and the outcome. Nothing is trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from factorize.structures.endless import AnyStrategy

if TYPE_CHECKING:
    from factorize.spec import Spec


class Outcome(Enum):
    """The way in which a solver stopped; the value is the message, remedy included."""

    CONVERGED = "the solver's own stopping rule was met"
    CLOSED_FORM = "a closed form, nothing to converge"
    LOCAL_OPTIMUM = "converged to a stationary point of a class that is not convex; no smaller loss was found in it"
    ADDED = "a strategy of the user's own, not optimised here; compare its loss with a solver's"
    NOT_SEARCHED = "the start of a search that would not fit in memory; lower n or bands for the optimum of the class"
    ROUNDING_LIMIT = "no further progress in double precision; ask for a larger tolerance"
    ITERATION_LIMIT = "stopped at the iteration limit; ask for a larger tolerance"


@dataclass(frozen=True)
class Solution:
    """A solver's claim.

    Attributes:
        strategy: C, scaled as its structure defines it (dense: sensitivity 1; Toeplitz: first coefficient 1).
        dual: evidence for the lower bound, by name without the prefix `dual.`; see checker/bounds/evidence.py.
        outcome: how the solver stopped.
        iterations: steps of its outer loop.
        provenance: further fields for the manifest's `solver`, under names that format/manifest.py knows; never
            certified.
    """

    strategy: AnyStrategy
    outcome: Outcome
    iterations: int
    dual: Mapping[str, np.ndarray] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)


class Draft(NamedTuple):
    """A solution together with its spec, before anything is certified.

    Attributes:
        spec: canonical spec with a named mechanism.
        solution: the claim.
        solver: provenance (mechanism, version, seconds, environment).
    """

    spec: Spec
    solution: Solution
    solver: Mapping[str, Any]


PHASES = ("compile", "coarse grid", "refine", "bound", "certify", "prove", "store")
"""The phases of a solve, in this order: the search on a thinned problem, where that helps, and on the whole one; a
lower bound for a mechanism that brings none; the certificate; the proof from the written bytes; the publication."""


@dataclass(frozen=True)
class Progress:
    """One step of a running solve.

    Attributes:
        iteration: number of the step, from 1.
        relative_gap: gap to the best lower bound over all matrices so far, or None.
        class_gap: gap within the mechanism's own class, or None.
        seconds: seconds since the solve began.
        phase: the current phase, one of `PHASES`. The gaps of a coarse grid are those of its own, smaller problem, and
            those of `bound` are those of the search for a lower bound.
        seconds_left: seconds by the estimate of the whole solve; None where it has passed, or has no number for the
            phase.
    """

    iteration: int
    relative_gap: float | None
    class_gap: float | None
    seconds: float
    phase: str = "refine"
    seconds_left: float | None = None


ProgressCallback = Callable[[Progress], None]
"""A callback between steps, which may raise `factorize.errors.Cancelled` to stop the solve."""
