"""Products of whole matrices in doubles, and what they prove of one file: its losses and its lower bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.arithmetic.pairs import LONGEST_IN_PAIRS
from factorize.exact.bounds.bound import pieces_of, rows_of
from factorize.exact.doubles.band_bound import band_evidence, cost_in_band
from factorize.exact.doubles.dense_losses import DenseLosses, enclosed_losses
from factorize.exact.doubles.polar_bound import norm_below, polar_guess
from factorize.exact.doubles.triangles import inverse_of
from factorize.exact.doubles.vector_bound import bound_by_vectors, cost_of, grouped
from factorize.exact.doubles.weighted_targets import Factor, WeightedTarget
from factorize.exact.doubles.workload_rows import WorkloadRows
from factorize.exact.losses.widths import WIDEST, width_of_losses
from factorize.exact.participation import allowed
from factorize.exact.spec import weighing_of
from factorize.exact.strategy import Rounded, Strategy

LARGEST = 16384
"""Longest n for which whole matrices are multiplied in doubles: 3 n^2 doubles are 6 GB there."""

Inverse = Callable[[], np.ndarray]
_AHEAD = 512
"""Shortest n for which a thread pays."""


@contextmanager
def inverse_ahead(strategy: Strategy, longest: int) -> Iterator[Inverse | None]:
    """Start on a guess of C^-1 beside what is proved without it; None where it may not be asked for, or takes memory.

    Args:
        strategy: C.
        longest: n for which whole matrices are multiplied.
    """
    whole = strategy.array is not None and strategy.column is None and strategy.structure != "tree"
    array = strategy.doubles if whole and _AHEAD <= strategy.n <= min(longest, LONGEST_IN_PAIRS) else None
    if array is None:
        yield None
        return
    with ThreadPoolExecutor(1, "inverse") as beside:
        yield beside.submit(inverse_of, array).result


class DenseProof:
    """The products of one C, each made when it is first asked for.

    Args:
        spec: canonical spec.
        strategy: C.
        dual: evidence.
        user: numbers of user-supplied workloads by sha256.
        inverse: gives a guess of C^-1 that is made already; see `inverse_ahead`.

    Raises:
        NotEnclosed: doubles of this machine cannot be relied on, or C is too long.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        strategy: Strategy,
        dual: Mapping[str, np.ndarray],
        user: Mapping[str, np.ndarray],
        inverse: Inverse | None = None,
    ) -> None:
        check_products()
        if strategy.n > LARGEST:
            raise NotEnclosed(f"whole matrices are multiplied in doubles up to n={LARGEST}")
        self._spec, self._dual, self._strategy = spec, dual, strategy
        self._ahead = inverse
        self._workload = WorkloadRows(spec["workload"], user)
        self._weighing = weighing_of(spec["objective"], self._workload.rows)

    @property
    def rows(self) -> int:
        """Rows of A."""
        return int(self._workload.rows)

    def class_bound(self, wanted: float = math.inf) -> Fraction:
        """Return a bound on the objective over matrices with these bands; see bounds/classes.py for the others.

        Args:
            wanted: a bound that is large enough.

        Raises:
            NotEnclosed: the class is not evaluated in doubles, or C is too far from its best.
        """
        form = allowed(self._spec["participation"], self._strategy.n)
        bands, rows = int(self._spec["mechanism"].get("bands") or 0), rows_of(self._weighing, {})
        given = self._spec["mechanism"]["kind"] == "banded" and self._strategy.reading.by_diagonals
        if not given or rows is None or not self._strategy.bandwidth <= bands <= form.separation:
            raise NotEnclosed("the class is not evaluated in doubles")
        weighted = WeightedTarget(self._workload, self._weighing, rows[0])
        factor, guess = band_evidence(weighted, self._inverse, bands)
        unit = form.most / (cost_in_band(factor, bands) * rows[1])
        return unit * norm_below(weighted, factor, guess, enough=lambda norm: unit * norm**2 >= wanted) ** 2

    @property
    def _array(self) -> np.ndarray:
        return self._entries.values

    @cached_property
    def _entries(self) -> Rounded:
        stored = self._strategy.doubles
        found = self._strategy.rounded if stored is None else Rounded(stored, 0)
        if found is None:  # evidence for a bound over all matrices needs no C
            raise NotEnclosed("the entries of C are computed from what is stored, and no doubles")
        return found

    @cached_property
    def _inverse(self) -> np.ndarray:
        return inverse_of(self._array) if self._ahead is None else self._ahead()

    def losses(self) -> DenseLosses:
        """Return the losses.

        Raises:
            NotEnclosed: they are not enclosed to relative `WIDEST`.
        """
        found = enclosed_losses(self._array, self._inverse, self._workload, self._weighing, self._entries.times)
        if not width_of_losses(found.ends) <= WIDEST:
            raise NotEnclosed(f"doubles enclose the losses to relative {width_of_losses(found.ends):.2g} only")
        return found

    def lower_bound(self, wanted: float = math.inf) -> Fraction:
        """Return a bound that no strategy matrix beats, from the evidence.

        Args:
            wanted: see `class_bound`.

        Raises:
            CertificateError: the evidence has the wrong shape, is not finite or is all zero.
            NotEnclosed: it is of no kind that is evaluated here, or no polar factor is guessed from C.
        """
        rows, factor = self._rows, self._evidence()
        if rows is None or factor is None:
            raise NotEnclosed("evidence of this kind is not evaluated in doubles")
        weighted = WeightedTarget(self._workload, self._weighing, rows[0])
        unit = 1 / (cost_of(factor) * rows[1])
        guess = polar_guess(weighted, factor, self._inverse)
        return unit * norm_below(weighted, factor, guess, enough=lambda norm: unit * norm**2 >= wanted) ** 2

    def lower_bound_by_vectors(self) -> Fraction:
        """Return the same without help from C.

        Raises:
            CertificateError: the evidence has the wrong shape or is not finite.
            NotEnclosed: see `bound_by_vectors`.
        """
        rows = self._rows
        pieces = pieces_of(self._spec["participation"], self._dual, self._strategy.n)
        if rows is None or pieces is None:
            raise NotEnclosed("evidence of this kind is not evaluated in doubles")
        weighted = WeightedTarget(self._workload, self._weighing, rows[0])
        return bound_by_vectors(weighted, grouped(pieces)) / rows[1]

    @cached_property
    def _rows(self) -> tuple[np.ndarray, Fraction] | None:
        return rows_of(self._weighing, self._dual)

    def _evidence(self) -> Factor | None:
        participation, n = self._spec["participation"], self._strategy.n
        pieces = pieces_of(participation, self._dual, n)
        if pieces is None or len({piece.block.shape for piece in pieces}) > 1:
            return None
        found = Factor(np.array([piece.steps for piece in pieces]), np.array([piece.block for piece in pieces]))
        if not found.blocks.any():
            raise CertificateError("the dual evidence is all zero")
        return found if found.blocks.shape[1] == found.blocks.shape[2] else None
