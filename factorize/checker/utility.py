"""Losses, lower bounds and bounds within the class, each by one road, which A and C determine.

docs/notes/checker.md has the roads. A number that none of them reaches is not looked at. The certificate states these
numbers, and the checker compares the claims of a file with them.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property, partial

import numpy as np

from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds import block_resolvents, determinants
from factorize.checker.bounds.classes import bound_in_band, toeplitz_bound
from factorize.checker.bounds.evidence import MAX_N_IN_BAND, LowerBound, evidence_of, rows_of
from factorize.checker.bounds.nuclear_norms import (
    MAX_N_OF_VECTORS,
    WeightedTarget,
    guess_by_strategy,
    merged,
    norm_below,
    norm_by_vectors,
    targets,
)
from factorize.checker.losses import loss_balls, series, variances, whole_matrices
from factorize.checker.losses.products import WorkloadRows, inverse_of
from factorize.checker.losses.variances import MAX_WIDTH, Ends, width_of_losses
from factorize.checker.participation import allowed
from factorize.checker.spec.objectives import Weighing, weighing_of
from factorize.checker.spec.workloads import Document, toeplitz_column
from factorize.checker.strategy import Strategy
from factorize.checker.structures import covariances

Tensors = Mapping[str, np.ndarray]
ROAD_FAILURES = (NotEnclosed, MemoryError)
"""The exceptions by which one road fails, after which another may still work."""
_MIN_N_WITHOUT_WHOLE, _MIN_GAP_WITHOUT_WHOLE = 128, 24
"""The n, and the steps between participations, from which lower bounds are quicker without whole matrices."""
_NORM_ROUNDING = 1e-6  # Equal squared norms differ by a smaller share once they are stored in float32.
_MAX_N_SERIES_FIRST, _WORK_BEFORE_SERIES = 1 << 16, 1 << 10
"""Above that n, a recursion of so much work a step comes before series, which take five times as long or more."""
_PRODUCTS_PER_UNIT = 16
"""The multiplications of whole matrices in the time of one unit of a recursion: 2e9 against 1.2e8 a second."""


class Utility:
    """Proofs of the utility of C for A; each proof, and each product, is made once, when it is first needed.

    Args:
        spec: canonical spec.
        strategy: C.
        dual: evidence.
        user: numbers of user-supplied workloads by sha256.
    """

    def __init__(self, spec: Document, strategy: Strategy, dual: Tensors, user: Tensors) -> None:
        self._spec, self._strategy, self._dual, self._user = spec, strategy, dual, user

    def concerns(self, spec: Document, strategy: Strategy, dual: Tensors) -> bool:
        """Return whether these proofs are about exactly the numbers of a spec, a C and its evidence."""
        same_spec = all(part == spec[name] for name, part in self._spec.items())
        return same_spec and _equal(self._strategy.parts, strategy.parts) and _equal(self._dual, dual)

    @cached_property
    def losses(self) -> Ends:
        """The enclosed losses at sensitivity 1.

        Raises:
            NotEnclosed: no road reaches them.
        """
        wide, reasons = None, []
        n = self._strategy.n
        short = min(max(n**3 // _PRODUCTS_PER_UNIT, covariances.MIN_WORK), covariances.MAX_WORK)
        roads: list[Callable[[], Ends]] = [
            self._losses_by_series,
            partial(self._losses_by_recursion, short),
            self._losses_by_whole,
            partial(self._losses_by_recursion, covariances.MAX_WORK),  # A short run that was too wide is repeated.
            self._losses_by_balls,
        ]
        if n > _MAX_N_SERIES_FIRST:
            roads.insert(0, partial(self._losses_by_recursion, _WORK_BEFORE_SERIES * n))
        for road in roads:
            try:
                ends = road()
            except ROAD_FAILURES as reason:
                reasons.append(str(reason))
                continue
            if width_of_losses(ends) <= MAX_WIDTH:
                return ends
            wide = ends
        if wide is None:
            raise NotEnclosed("; ".join(dict.fromkeys(reasons)))
        return wide

    def _losses_by_series(self) -> Ends:
        column, workload = self._strategy.toeplitz, None
        if column is not None and self._strategy.n <= series.MAX_N:
            workload = toeplitz_column(self._spec["workload"])
        if column is None or workload is None:
            raise NotEnclosed("C or the workload is not Toeplitz")
        return series.losses(column, workload, self._weighing)

    def _losses_by_recursion(self, most: int) -> Ends:
        return variances.losses(self._strategy, self._spec["workload"], self._spec["objective"], most)

    def _losses_by_whole(self) -> Ends:
        return whole_matrices.losses(self._entries, self._inverse, self._workload, self._weighing)

    def _losses_by_balls(self) -> Ends:
        """Return the losses of a short C that is too ill-conditioned for doubles."""
        if max(self._workload.rows, self._strategy.n) > loss_balls.MAX_N:
            raise NotEnclosed(f"ball arithmetic inverts matrices up to n={loss_balls.MAX_N}")
        if self._strategy.doubles is None:
            raise NotEnclosed("ball arithmetic needs the stored entries of C")
        return loss_balls.losses(self._strategy.doubles, self._spec["workload"], self._user, self._weighing)

    @cached_property
    def lower_bound(self) -> LowerBound:
        """A bound that no strategy matrix beats, from the evidence; see `lower_bound`."""
        return lower_bound(self._spec, self._dual, self._user, lambda: self._inverse)

    @cached_property
    def class_bound(self) -> LowerBound:
        """A bound on the objective over the mechanism's class, from C alone.

        Raises:
            NotEnclosed: the class, or this size of it, is not evaluated here.
        """
        kind, strategy = self._spec["mechanism"]["kind"], self._strategy
        if kind == "banded" and strategy.structure == "banded":
            bound, members = self._bound_in_band()
            return LowerBound(_below(bound), f"dual of the band, over matrices with these bands{members}")
        column = strategy.reading.column if strategy.n <= series.MAX_N and strategy.scale is None else None
        workload = toeplitz_column(self._spec["workload"]) if kind in ("toeplitz", "banded_toeplitz") else None
        if column is not None and workload is not None:
            bound = toeplitz_bound(self._spec, column, workload, allowed(self._spec["participation"], strategy.n))
            return LowerBound(_below(bound), "Hankel dual, over Toeplitz matrices with this many diagonals")
        raise NotEnclosed(f"the class {kind} is not evaluated for n={strategy.n}, scaled columns or this workload")

    def _bound_in_band(self) -> tuple[Fraction, str]:
        strategy, n = self._strategy, self._strategy.n
        form = allowed(self._spec["participation"], n)
        rows, bands = rows_of(self._weighing, {}), int(self._spec["mechanism"]["bands"])
        if n > MAX_N_IN_BAND:
            raise NotEnclosed(f"bounds over banded matrices are proved up to n={MAX_N_IN_BAND}")
        diagonals, squares = strategy.reading.bands, strategy.column_norms.values
        steps, members, span = np.arange(n), "", _NORM_ROUNDING * squares.max()
        groups, owners = steps, steps % form.separation if form.periodic else steps
        if form.most > 1 and np.ptp(squares) <= span:
            owners, members = steps, " and columns of equal norm"
        elif form.most > 1 and not form.periodic:  # A pattern has at most one step in each block.
            groups, members = steps // form.separation, f" and columns of equal norm in each block of {form.separation}"
            owners = np.zeros_like(steps[:: form.separation])
        alike = (np.abs(squares - squares[np.searchsorted(groups, groups)]) <= span).all()
        alike = alike and (owners is steps or form.periodic or len(owners) == form.most)
        served = self._workload.rows == n and strategy.bandwidth <= bands <= form.separation
        if rows is None or diagonals is None or not (served and alike):
            raise NotEnclosed("bands overlap, A is not square, or this objective or unequal columns have no bound")
        check_products()
        weighted = WeightedTarget(self._workload, self._weighing, rows[0])
        scaled = diagonals if strategy.scale is None else diagonals * strategy.scale
        bound = bound_in_band(weighted, scaled, bands, groups, owners) / rows[1]
        return bound * (form.most if owners is steps else 1), members

    @cached_property
    def _weighing(self) -> Weighing:
        return weighing_of(self._spec["objective"], self._spec["workload"].get("shape", [self._strategy.n])[0])

    @cached_property
    def _workload(self) -> WorkloadRows:
        return WorkloadRows(self._spec["workload"], self._user)

    @cached_property
    def _entries(self) -> whole_matrices.Entries:
        return whole_matrices.entries_of(self._strategy)

    @cached_property
    def _inverse(self) -> np.ndarray:
        return inverse_of(self._entries.values)


def _below(bound: Fraction) -> float:
    return math.nextafter(float(bound), 0.0)


def _equal(some: Tensors, others: Tensors) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(array, others[name]) for name, array in some.items())


def lower_bound(
    spec: Document, dual: Tensors, user: Tensors, inverse: Callable[[], np.ndarray] | None = None
) -> LowerBound:
    """Return a bound that no strategy matrix beats; arguments as for `Utility`.

    `inverse` returns something near C^-1 for a C near the optimum, which long whole matrices need.

    Raises:
        CertificateError: the evidence has the wrong shape, is not finite or is all zero.
        NotEnclosed: the evidence is of no known kind, or no road reaches a bound.
    """
    roads: list[tuple[str, Callable[[], Fraction | None]]] = [
        ("log-determinants", lambda: determinants.lower_bound(spec, dual)),
        ("block resolvents", lambda: block_resolvents.lower_bound(spec, dual)),
    ]
    m, n = spec["workload"].get("shape") or [spec["workload"]["n"]] * 2
    short = max(m, n) <= MAX_N_OF_VECTORS
    near = n < _MIN_N_WITHOUT_WHOLE or (short and allowed(spec["participation"], n).separation < _MIN_GAP_WITHOUT_WHOLE)

    def by_whole() -> Fraction:
        return bound_by_whole(spec, dual, WorkloadRows(spec["workload"], user), None if short else inverse)

    roads.insert(0 if near else len(roads), ("whole matrices", by_whole))
    reasons, nothing = [], None
    for name, road in roads:
        try:
            bound = road()
        except ROAD_FAILURES as reason:
            reasons.append(str(reason))
            continue
        if bound is not None:
            proved = LowerBound(_below(bound), f"nuclear norm dual, by {name}")
            if bound > 0:
                return proved
            nothing = nothing or proved  # Rounding took all of it; another road may lose less.
    if nothing is None:
        raise NotEnclosed("; ".join(reasons))
    return nothing


def bound_by_whole(
    spec: Document, dual: Tensors, workload: WorkloadRows, inverse: Callable[[], np.ndarray] | None
) -> Fraction:
    """Return the bound by the polar factor that C suggests, or without an inverse of C by the one of eigenvectors.

    Raises:
        CertificateError, NotEnclosed: see `lower_bound`.
    """
    check_products()
    weighing = weighing_of(spec["objective"], workload.rows)
    rows, listed = rows_of(weighing, dual), evidence_of(spec["participation"], dual, workload.columns)
    if rows is None or listed is None:
        raise NotEnclosed("evidence of this kind is not evaluated here")
    weighted, (factors, cost) = WeightedTarget(workload, weighing, rows[0]), merged(listed, workload.columns)
    if inverse is None:
        norm = norm_by_vectors(weighted, factors)
    else:
        blocks = (block for factor in factors for block in targets(factor, weighted))
        norm = norm_below(blocks, guess_by_strategy(weighted, factors, inverse()))
    return norm**2 / (cost * rows[1])
