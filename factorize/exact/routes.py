"""The routes to a claim, the quickest first: recursions, doubles with stated error bounds, and integers.

Each claim is tried on a copy of the report. What the quick routes prove is filed; where they do not, the next one
decides, and integers refute what they do not prove, as long as whole matrices of integers are within reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds.bound import lower_bound
from factorize.exact.claims import TOLERANCE, check_added_noise, check_bound, check_class_bound, check_dense_losses
from factorize.exact.doubles.dense_losses import DenseLosses
from factorize.exact.doubles.dense_proof import DenseProof, Inverse
from factorize.exact.file import FactorFile
from factorize.exact.losses import check_long, check_whole
from factorize.exact.report import CLASS_BOUND, LOSS, LOWER_BOUND, Report, Status
from factorize.exact.sensitivity import Bracket
from factorize.exact.strategy import Strategy

Route = Callable[[Report], None]

_BESIDE = 1024
"""Longest n for which the matrices of two bounds are in memory together: 8 MB each."""

_SHORT = 512
"""Longest n for which whole matrices are multiplied sooner than a recursion of many states is compiled and run."""
_SUGGESTING = 1e-2
"""Gap above which the guess of a polar factor that C suggests is never near: 8 n times the gap is |E|^2."""


class Reach(NamedTuple):
    """Longest n for which whole matrices are multiplied: in doubles, and as integers."""

    doubles: int
    integers: int


class Routes:
    """Residual, losses, bounds and added noise of a file.

    Args:
        file: the file.
        strategy: C.
        bracket: of its squared sensitivity.
        user: numbers of user-supplied workloads by sha256.
        reach: longest n for which whole matrices are multiplied.
        inverse: see `DenseProof`.
    """

    def __init__(
        self,
        file: FactorFile,
        strategy: Strategy,
        bracket: Bracket,
        user: Mapping[str, np.ndarray],
        reach: Reach,
        inverse: Inverse | None = None,
    ) -> None:
        self._file, self._strategy, self._bracket, self._user, self._reach = file, strategy, bracket, user, reach
        self._integers, self._inverse = strategy.n <= reach.integers, inverse
        self._ahead: Future[Fraction] | None = None
        self._losses_ahead: Future[DenseLosses] | None = None

    def check(self, report: Report) -> None:
        """File what is proved, false or out of reach."""
        matrices = self._file.matrices
        if not check_whole.is_known(self._file, self._user):
            check_whole.leave_unknown(report)
            self._check_inverse(report)
            return
        with ThreadPoolExecutor(2, "ahead") as beside:
            if self._both_in_doubles:
                self._ahead = beside.submit(self._class_bound)
            if self._inverse is not None and "B" not in matrices:  # a C that no recursion gives the losses of
                self._losses_ahead = beside.submit(self._losses)
            self._check_bounds(report)
        self._check_inverse(report)
        if "B" in matrices:
            self._check_stored(report)
            return
        check_added_noise(report, self._file, None)
        quick = [self._losses_of_recursion, self._losses_in_doubles]
        if self._strategy.n <= _SHORT:
            quick.reverse()
        self._first(report, LOSS, [self._losses_of_series, *quick], self._losses_in_integers)

    def _check_bounds(self, report: Report) -> None:
        certificate = self._file.manifest["certificate"]
        if certificate["lower_bound"] is None:
            check_bound(report, self._file, None)
        else:
            of_products = [self._bound_in_doubles, self._bound_by_vectors]
            if not self._suggests:
                of_products.reverse()
            self._first(report, LOWER_BOUND, [self._bound_of_recursion, *of_products], self._bound_in_integers)
        if certificate.get("class_lower_bound") is not None:
            of_class = [self._class_of_series, self._class_in_doubles]
            self._first(report, CLASS_BOUND, of_class, self._class_in_integers)

    @property
    def _suggests(self) -> bool:
        """Whether C is so near to the optimum, by what the file says of itself, that it suggests a polar factor."""
        gap = self._file.manifest["certificate"].get("relative_gap")
        return gap is None or bool(gap <= _SUGGESTING)

    @property
    def _both_in_doubles(self) -> bool:
        """Whether two lower bounds that do not follow from each other may be proved by products of short matrices."""
        certificate, n = self._file.manifest["certificate"], self._strategy.n
        both = certificate["lower_bound"], certificate.get("class_lower_bound")
        banded = self._file.manifest["spec"]["mechanism"]["kind"] == "banded"
        if not banded or None in both or n > min(_BESIDE, self._reach.doubles):
            return False
        return bool(both[0]["objective"] < both[1]["objective"])

    def _class_bound(self) -> Fraction:
        with np.errstate(all="ignore"):  # which a thread does not take over
            return self._dense.class_bound(self._wanted("class_lower_bound"))

    def _first(self, report: Report, claim: str, quick: Sequence[Route], integers: Route) -> None:
        """File the first trial that proves a claim; else what integers say, or the last trial that said anything."""
        kept: Report | None = None
        reasons: list[str] = []
        for route in [*quick, *([integers] if self._integers else [])]:
            trial = report.trial()
            try:
                route(trial)
            except NotEnclosed as reason:
                reasons.append(str(reason))
                continue
            except CertificateError:
                if route is integers or not self._integers:
                    raise
                continue
            kept = trial
            if trial.status(claim) is Status.PROVED:
                break
        if kept is None:
            report.leave(f"{claim}: {'; '.join(reasons)}", of=[claim])
        else:
            report.adopt(kept)

    @cached_property
    def _numbers(self) -> Numbers | None:
        return check_whole.numbers_of(self._file, self._user)

    @cached_property
    def _dense(self) -> DenseProof:
        if self._strategy.n > self._reach.doubles:
            raise NotEnclosed(f"whole matrices are multiplied up to n={self._reach.doubles}")
        return DenseProof(self._file.manifest["spec"], self._strategy, self._file.dual, self._user, self._inverse)

    def _bound_of_recursion(self, report: Report) -> None:
        found = check_long.bound_of_recursion(self._file)
        if found is None:
            raise NotEnclosed("the workload, or the evidence, is no recursion of few states")
        check_bound(report, self._file, found)

    def _losses_in_doubles(self, report: Report) -> None:
        found = self._losses() if self._losses_ahead is None else self._losses_ahead.result()
        check_dense_losses(report, self._file, found, self._dense.rows)

    def _losses(self) -> DenseLosses:
        return self._dense.losses()

    def _bound_in_doubles(self, report: Report) -> None:
        check_bound(
            report, self._file, self._enough("lower_bound", self._dense.lower_bound(self._wanted("lower_bound")))
        )

    def _bound_by_vectors(self, report: Report) -> None:
        check_bound(report, self._file, self._enough("lower_bound", self._dense.lower_bound_by_vectors()))

    def _bound_in_integers(self, report: Report) -> None:
        assert self._numbers is not None
        check_bound(report, self._file, lower_bound(self._file.manifest["spec"], self._file.dual, self._numbers))

    def _class_of_series(self, report: Report) -> None:
        check_class_bound(report, self._file, self._strategy, None)

    def _class_in_doubles(self, report: Report) -> None:
        check_class_bound(report, self._file, self._strategy, None, self._class_of_band)

    def _class_of_band(self) -> Fraction:
        found = self._class_bound() if self._ahead is None else self._ahead.result()
        return self._enough("class_lower_bound", found)

    def _wanted(self, name: str) -> float:
        """Return a bound that supports the claim, with room for what is rounded in the comparison."""
        claimed: float = self._file.manifest["certificate"][name]["objective"]
        return claimed * (1 - TOLERANCE / 2)

    def _enough(self, name: str, found: Fraction) -> Fraction:
        """Return a bound that supports the claim: one that does not says nothing against it, as any P may be bad.

        Raises:
            NotEnclosed: see above.
        """
        claimed = self._file.manifest["certificate"][name]["objective"]
        if claimed > float(found) * (1 + TOLERANCE):
            raise NotEnclosed(f"{name} {claimed!r}: the polar factor that was guessed proves {float(found)!r} only")
        return found

    def _class_in_integers(self, report: Report) -> None:
        check_class_bound(report, self._file, self._strategy, self._numbers)

    def _losses_of_series(self, report: Report) -> None:
        check_long.check_losses_of_series(report, self._file, self._strategy)

    def _losses_of_recursion(self, report: Report) -> None:
        check_long.check_losses_of_recursion(report, self._file, self._strategy)

    def _losses_in_integers(self, report: Report) -> None:
        assert self._numbers is not None
        check_whole.check_losses_alone(report, self._file, self._strategy, self._numbers)

    def _check_inverse(self, report: Report) -> None:
        if self._integers:
            check_whole.check_inverse(report, self._file, self._strategy, self._bracket)
        elif "C_inv" in self._file.matrices:
            check_long.check_stored_inverse(report, self._file, self._strategy, self._bracket)

    def _check_stored(self, report: Report) -> None:
        """B C - A and what rests on a stored B, in integers as far as they reach; its losses are those of A C^-1."""
        if self._integers:
            assert self._numbers is not None
            check_whole.check_decoder(report, self._file, self._strategy, self._bracket, self._numbers)
            return
        check_long.check_decoder(
            report, self._file, self._strategy, self._bracket, self._reach.integers, self._losses_otherwise
        )

    def _losses_otherwise(self, report: Report) -> None:
        self._first(report, LOSS, [self._losses_in_doubles], self._losses_in_integers)
