"""Losses, lower bounds and bounds within the class, each by one road that what A and C are decides.

Losses: series where A and C are Toeplitz; covariances where both are recursions of few states; whole matrices. Lower
bounds: resolvents where A is a recursion of one state, log-determinants of a few; whole matrices. What none of them
reaches is not looked at. The certificate records these numbers, and the checker proves those of a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.integers import integers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.bounds import determinants, resolvents
from factorize.exact.bounds.classes import toeplitz_bound
from factorize.exact.bounds.evidence import pieces_of, rows_of
from factorize.exact.doubles import whole
from factorize.exact.doubles.band_bound import band_evidence, cost_in_band
from factorize.exact.doubles.nuclear_norms import (
    WeightedTarget,
    grouped,
    guess_by_strategy,
    norm_below,
    norm_by_strategy,
    norm_by_vectors,
)
from factorize.exact.doubles.triangles import inverse_of
from factorize.exact.doubles.workload_rows import WorkloadRows
from factorize.exact.losses import balls, variances
from factorize.exact.losses.variances import Ends
from factorize.exact.losses.widths import WIDEST, width_of_losses
from factorize.exact.participation import allowed
from factorize.exact.spec import toeplitz_column, weighing_of, workload_numbers
from factorize.exact.strategy import Strategy

OUT_OF_REACH = (NotEnclosed, MemoryError)
"""Of a road; another may be left."""
SHORT = 512
"""Longest n for which whole matrices are multiplied sooner than the recursion of a stored C is compiled and run."""
_SUGGESTING = 1e-2
"""Gap above which the guess of a polar factor that C suggests is never near: 8 n times the gap is |E|^2."""


class Utility:
    """What is proved of how well C serves A; products are made when they are first needed.

    Args:
        spec: canonical spec.
        strategy: C.
        dual: evidence.
        user: numbers of user-supplied workloads by sha256.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        strategy: Strategy,
        dual: Mapping[str, np.ndarray],
        user: Mapping[str, np.ndarray],
    ) -> None:
        self._spec, self._strategy, self._dual, self._user = spec, strategy, dual, user

    def losses(self) -> Ends:
        """Return enclosures of the losses at sensitivity 1.

        Raises:
            NotEnclosed: no road reaches them.
        """
        wide, reasons = None, []
        for road in (self._losses_by_series, self._losses_by_recursion, self._losses_by_whole, self._losses_by_balls):
            try:
                ends = road()
            except OUT_OF_REACH as reason:
                reasons.append(str(reason))
                continue
            if width_of_losses(ends) <= WIDEST:
                return ends
            wide = ends
        if wide is None:
            raise NotEnclosed("; ".join(reasons))
        return wide

    def _losses_by_series(self) -> Ends:
        column, workload = self._strategy.toeplitz, None
        if column is not None and self._strategy.n <= series.LARGEST:
            workload = toeplitz_column(self._spec["workload"])
        if column is None or workload is None:
            raise NotEnclosed("C or the workload is not Toeplitz")
        return series.losses(column, workload, weighing_of(self._spec["objective"], self._strategy.n))

    def _losses_by_recursion(self) -> Ends:
        stored = self._strategy.array is not None or self._strategy.series is not None
        if stored and self._strategy.n <= SHORT:
            raise NotEnclosed("whole matrices are sooner multiplied")
        ends = variances.losses(self._strategy, self._spec["workload"], self._spec["objective"])
        if ends is None:
            raise NotEnclosed("C or the workload is no recursion of few states")
        return ends

    def _losses_by_whole(self) -> Ends:
        weighing = weighing_of(self._spec["objective"], self._workload.rows)
        return whole.losses(self._entries, self._inverse, self._workload, weighing)

    def _losses_by_balls(self) -> Ends:
        """Of a short C that is too ill-conditioned for doubles."""
        if max(self._workload.rows, self._strategy.n) > balls.LARGEST:
            raise NotEnclosed(f"matrices of balls are inverted up to n={balls.LARGEST}")
        workload = workload_numbers(self._spec["workload"], self._user)
        assert workload is not None  # as whole matrices have asked before
        stored, weighing = self._strategy.doubles, weighing_of(self._spec["objective"], len(workload.values))
        return balls.losses(self._strategy.numbers() if stored is None else integers(stored), workload, weighing)

    def lower_bound(self, wanted: float = math.inf, gap: float | None = None) -> Fraction:
        """Return a bound that no strategy matrix beats, from the evidence.

        Args:
            wanted: a bound that is large enough.
            gap: what the file says of how near C is to the optimum.

        Raises:
            CertificateError: the evidence has the wrong shape, is not finite or is all zero.
            NotEnclosed: it is of no kind that is evaluated here, or no road reaches a bound.
        """
        near = gap is not None and gap <= _SUGGESTING
        whole_roads = [self._bound_by_strategy, self._bound_by_vectors]
        roads = [self._bound_by_resolvents, self._bound_by_determinants, *(whole_roads if near else whole_roads[::-1])]
        reasons = []
        for road in roads:
            try:
                bound = road()
            except OUT_OF_REACH as reason:
                reasons.append(str(reason))
                continue
            if road != self._bound_by_strategy or bound >= wanted:
                return bound
            reasons.append(f"the polar factor that C suggests proves {float(bound)!r} only")
        raise NotEnclosed("; ".join(reasons))

    def _bound_by_resolvents(self) -> Fraction:
        return _known(resolvents.lower_bound(self._spec, self._dual))

    def _bound_by_determinants(self) -> Fraction:
        return _known(determinants.lower_bound(self._spec, self._dual))

    @cached_property
    def _evidence(self) -> tuple[WeightedTarget, list[Any], Fraction]:
        """W A, F, and what the square of the nuclear norm of their product is divided by."""
        check_products()
        weighing = weighing_of(self._spec["objective"], self._workload.rows)
        rows = rows_of(weighing, self._dual)
        pieces = pieces_of(self._spec["participation"], self._dual, self._strategy.n)
        if rows is None or pieces is None:
            raise NotEnclosed("evidence of this kind is not evaluated here")
        factors = grouped(pieces)
        cost = sum((factor.cost() for factor in factors), start=Fraction(0))
        return WeightedTarget(self._workload, weighing, rows[0]), factors, cost * rows[1]

    def _bound_by_strategy(self) -> Fraction:
        weighted, factors, cost = self._evidence
        return norm_by_strategy(weighted, factors, guess_by_strategy(weighted, factors, self._inverse)) ** 2 / cost

    def _bound_by_vectors(self) -> Fraction:
        weighted, factors, cost = self._evidence
        return norm_by_vectors(weighted, factors) ** 2 / cost

    def class_bound(self) -> Fraction:
        """Return a bound on the objective over the mechanism's class, from C alone.

        Raises:
            NotEnclosed: the class, or this size of it, is not evaluated here.
        """
        kind, strategy = self._spec["mechanism"]["kind"], self._strategy
        if kind == "banded" and strategy.reading.by_diagonals:
            return self._bound_in_band()
        if kind in ("toeplitz", "banded_toeplitz") and strategy.column is not None and strategy.n <= series.LARGEST:
            workload = toeplitz_column(self._spec["workload"])
            if workload is not None:
                return toeplitz_bound(
                    self._spec, strategy.column, workload, allowed(self._spec["participation"], strategy.n)
                )
        raise NotEnclosed(f"the class {kind} is not evaluated for n={strategy.n} and this workload")

    def _bound_in_band(self) -> Fraction:
        weighing = weighing_of(self._spec["objective"], self._workload.rows)
        form, bands = allowed(self._spec["participation"], self._strategy.n), int(self._spec["mechanism"]["bands"])
        rows = rows_of(weighing, {})
        if rows is None or not self._strategy.bandwidth <= bands <= form.separation:
            raise NotEnclosed("these bands can overlap, or the objective has no bound of this kind")
        weighted = WeightedTarget(self._workload, weighing, rows[0])
        factor, guess = band_evidence(weighted, self._inverse, bands)
        try:
            norm = norm_below(factor.targets(weighted), guess)
        except NotEnclosed:
            norm = norm_by_vectors(weighted, [factor])
        return form.most * norm**2 / (cost_in_band(factor, bands) * rows[1])

    @cached_property
    def _workload(self) -> WorkloadRows:
        return WorkloadRows(self._spec["workload"], self._user)

    @cached_property
    def _entries(self) -> whole.Entries:
        return whole.entries_of(self._strategy)

    @cached_property
    def _inverse(self) -> np.ndarray:
        return inverse_of(self._entries.values)


def _known(bound: Fraction | None) -> Fraction:
    if bound is None:
        raise NotEnclosed("the workload, or the evidence, is no recursion of few states")
    return bound
