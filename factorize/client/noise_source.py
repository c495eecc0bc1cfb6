"""The noise source that the tensors of a factor file describe, with numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from weakref import WeakKeyDictionary

import numpy as np

from factorize.client.recurrences import dense, toeplitz
from factorize.client.recurrences.banded import BandedRecurrence
from factorize.client.recurrences.base import NoiseCost, Recurrence, RowMaker, StructureRecurrence, Tensors
from factorize.client.recurrences.blt import BltRecurrence
from factorize.client.recurrences.buffered import BufferedRecurrence, StateSpaceRecurrence
from factorize.client.recurrences.inverse_banded_toeplitz import InverseBandedToeplitzRecurrence
from factorize.client.recurrences.redrawn import RedrawnRecurrence
from factorize.client.recurrences.scaled import ScaledRecurrence
from factorize.client.recurrences.toeplitz import BandedToeplitzRecurrence
from factorize.client.recurrences.tree import TreeRecurrence
from factorize.errors import CorruptObject, UnsupportedProblem
from factorize.format.claims import CertifiedFactors
from factorize.format.names import COLUMN_SCALE, ONLY_ENDLESS, SCALED
from factorize.format.tensors import TENSORS, wrapped_structure


@dataclass(frozen=True)
class Streamable:
    """A strategy whose noise needs a few vectors of state.

    Attributes:
        digest: of the factorization.
        structure: of C, the contract's name.
        recurrence: makes the arithmetic.
        cost: of a step.
    """

    digest: str
    structure: str
    recurrence: Callable[[], Recurrence]
    cost: NoiseCost


@dataclass(frozen=True)
class ComputedRows:
    """Rows of C^-1 that are computed from C when they are first wanted, and that the claim for C covers.

    Attributes:
        steps: n.
        digest: of the factorization.
        make: does the work once, and returns what gives row t of C^-1.
        cost: of a step.
    """

    steps: int
    digest: str
    make: RowMaker
    cost: NoiseCost


_MADE: WeakKeyDictionary[CertifiedFactors, Streamable | ComputedRows] = WeakKeyDictionary()


def source_of(factors: CertifiedFactors) -> Streamable | ComputedRows:
    """Return what makes the noise of these factors, from C alone; made once for as long as they live.

    The claim is that of C. A C_inv that is stored or streamed beside it is another matrix, of which it says nothing.

    Raises:
        See `noise_source`.
    """
    found = _MADE.get(factors)
    if found is None:
        found = noise_source(factors.structure, factors.strategy_tensors(), factors.steps, factors.digest)
        _MADE[factors] = found
    return found


def noise_source(structure: str, parts: Tensors, n: int, digest: str) -> Streamable | ComputedRows:
    """Return the way to make C^-1 z that needs the least memory.

    Args:
        structure: of C, the contract's name.
        parts: its tensors by suffix ('' for a dense matrix).
        n: number of steps, `ENDLESS` (factorize/format/manifest.py) where there is no last one.
        digest: of the factorization.

    Raises:
        CorruptObject: unknown structure, a tensor is missing, or a scale is around what cannot be scaled.
        UnsupportedProblem: a strategy without end whose noise has no recurrence.
    """
    try:
        inner = wrapped_structure(parts, n) if structure == SCALED else structure
        columns = parts[COLUMN_SCALE] if structure == SCALED else None
        if inner in ONLY_ENDLESS and inner not in _RECURRENCES:
            raise UnsupportedProblem(
                f"the noise of {inner} without end takes all the noise before it, which no memory holds for ever; "
                "use blt, which keeps one vector per buffer, or give n",
                field="structure",
            )
        if inner in _RECURRENCES:
            kind, own = _RECURRENCES[inner], {suffix: parts[suffix] for suffix in TENSORS[inner]}
            make, cost = partial(kind.of_tensors, own, n), kind.cost(own, n)
            return Streamable(digest, structure, _scaled(make, columns), _scaled_cost(cost, columns))
        make_rows = cache(_scaled_rows(_ROWS[inner](parts, n), columns))
        return ComputedRows(n, digest, make_rows, _scaled_cost(_all_rows(n), columns))
    except KeyError as missing:
        raise CorruptObject(f"a {structure[:40]} matrix is not known here, or its file lacks {missing}") from None


_RECURRENCES: dict[str, type[StructureRecurrence]] = {
    "banded": BandedRecurrence,
    "banded_toeplitz": BandedToeplitzRecurrence,
    "inverse_banded_toeplitz": InverseBandedToeplitzRecurrence,
    "blt": BltRecurrence,
    "buffered": BufferedRecurrence,
    "state_space": StateSpaceRecurrence,
    "redrawn": RedrawnRecurrence,
    "tree": TreeRecurrence,
}


_ROWS: dict[str, Callable[[Tensors, int], RowMaker]] = {"dense": dense.rows_of, "toeplitz": toeplitz.rows_of}


def _all_rows(n: int) -> NoiseCost:
    """Row t is a sum over z_0 .. z_t: t + 1 products, t sums; the only row of n = 1 is its gain."""
    return NoiseCost(n, float(n)) if n > 1 else NoiseCost(0, 0.0)


def _scaled_cost(cost: NoiseCost, columns: np.ndarray | None) -> NoiseCost:
    return cost if columns is None else cost._replace(flops=cost.flops + 1.0)


def _scaled(make: Callable[[], Recurrence], columns: np.ndarray | None) -> Callable[[], Recurrence]:
    return make if columns is None else lambda: ScaledRecurrence(make(), columns)


def _scaled_rows(make: RowMaker, columns: np.ndarray | None) -> RowMaker:
    """Scale rows of the inverse: (C diag(c))^-1 = diag(1/c) C^-1."""

    def scaled() -> Callable[[int], np.ndarray]:
        assert columns is not None
        inner, factors = make(), 1.0 / columns
        return lambda step: inner(step) * factors[step]

    return make if columns is None else scaled
