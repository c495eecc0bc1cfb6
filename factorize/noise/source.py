"""The noise source that the tensors of a factor file describe, with numpy alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from weakref import WeakKeyDictionary

import numpy as np

from factorize.errors import CorruptObject, UnsupportedProblem
from factorize.format.manifest import CertifiedFactors, certified
from factorize.format.tensors import COLUMN_SCALE, ENDLESS_ONLY_STRUCTURES, SCALED, SHAPES, wrapped_structure
from factorize.noise.recurrences.banded import (
    BandedRecurrence,
    BandedToeplitzRecurrence,
    InverseBandedToeplitzRecurrence,
)
from factorize.noise.recurrences.base import (
    NoiseCost,
    Recurrence,
    RowMaker,
    ScaledRecurrence,
    StructureRecurrence,
    Tensors,
)
from factorize.noise.recurrences.buffered import BltRecurrence, BufferedRecurrence, StateSpaceRecurrence
from factorize.noise.recurrences.redrawn import RedrawnRecurrence
from factorize.noise.recurrences.tree import TreeRecurrence
from factorize.numbers.covered import cover_column, cover_inverse
from factorize.numbers.triangular import series_quotient


@dataclass(frozen=True)
class Streamable:
    """A strategy whose noise needs a few vectors of state.

    Attributes:
        digest: digest of the factorization.
        recurrence: returns the arithmetic of a step.
        cost: cost of a step.
    """

    digest: str
    recurrence: Callable[[], Recurrence]
    cost: NoiseCost


@dataclass(frozen=True)
class ComputedRows:
    """Rows of C^-1 that are computed from C on first use, and that the claim for C covers.

    Attributes:
        steps: n.
        digest: digest of the factorization.
        make: inverts C once, and returns a function that gives row t of C^-1.
        cost: cost of a step.
    """

    steps: int
    digest: str
    make: RowMaker
    cost: NoiseCost


_SOURCES: WeakKeyDictionary[CertifiedFactors, Streamable | ComputedRows] = WeakKeyDictionary()


def source_of(factors: CertifiedFactors) -> Streamable | ComputedRows:
    """Return the source of the noise of these factors, from C alone; it is made once while the factors live.

    The claim is about C. A C_inv that is stored or streamed beside it is another matrix that the claim does not cover.

    Raises:
        See `certified` and `noise_source`.
    """
    source = _SOURCES.get(certified(factors))
    if source is None:
        source = noise_source(factors.structure, factors.strategy_tensors(), factors.steps, factors.digest)
        _SOURCES[factors] = source
    return source


def noise_source(structure: str, parts: Tensors, n: int, digest: str) -> Streamable | ComputedRows:
    """Return the way to make C^-1 z that needs the least memory.

    Args:
        structure: the contract's name of C's structure.
        parts: its tensors by suffix ('' for a dense matrix).
        n: number of steps, `ENDLESS_STEPS` (factorize/format/manifest.py) where there is no last one.
        digest: digest of the factorization.

    Raises:
        CorruptObject: the structure is unknown, a tensor is missing, or the inner structure cannot be scaled.
        UnsupportedProblem: the strategy has no end, and its noise no recurrence.
    """
    try:
        if structure == SCALED:
            return _scaled(noise_source(wrapped_structure(parts, n), parts, n, digest), parts[COLUMN_SCALE])
        if structure in ENDLESS_ONLY_STRUCTURES and structure not in _RECURRENCES:
            raise UnsupportedProblem(
                f"{structure} with n='unbounded' needs the noise of all earlier steps, which fits into no memory; use "
                "blt, which keeps one vector per buffer, or give n",
                field="structure",
            )
        if structure in _RECURRENCES:
            kind, own = _RECURRENCES[structure], {suffix: parts[suffix] for suffix in SHAPES[structure]}
            return Streamable(digest, partial(kind.of_tensors, own, n), kind.cost(own, n))
        # Row t sums z_0 .. z_t by t + 1 products and t sums; the only row of n = 1 is its gain.
        cost = NoiseCost(n, float(n)) if n > 1 else NoiseCost(0, 0.0)
        return ComputedRows(n, digest, cache(_ROWS[structure](parts, n)), cost)
    except KeyError as missing:
        raise CorruptObject(
            f"the structure {structure[:40]} is unknown, or its file lacks {missing}; update factorize, or get the "
            "file again"
        ) from None


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


def dense_rows(parts: Tensors, n: int) -> RowMaker:
    """Return a function that inverts C, enlarged so that the claim for C covers the inverse, and gives row t."""
    array = parts[""]
    return lambda: cover_inverse(array).__getitem__


def toeplitz_rows(parts: Tensors, n: int) -> RowMaker:
    """Return a function that computes C^-1 by its column, enlarged so that the claim covers it, and gives row t."""
    column = parts["coefficients"]

    def make() -> Callable[[int], np.ndarray]:
        inverse = cover_column(column, series_quotient(np.eye(1, n)[0], column))
        return lambda step: np.concatenate([inverse[step::-1], np.zeros(n - 1 - step)])

    return make


_ROWS: dict[str, Callable[[Tensors, int], RowMaker]] = {"dense": dense_rows, "toeplitz": toeplitz_rows}


def _scaled(inner: Streamable | ComputedRows, columns: np.ndarray) -> Streamable | ComputedRows:
    """Scale the columns of C, and so the rows of the inverse: (C diag(c))^-1 = diag(1/c) C^-1."""
    cost = inner.cost._replace(flops=inner.cost.flops + 1.0)
    if isinstance(inner, Streamable):
        return replace(inner, recurrence=lambda: ScaledRecurrence(inner.recurrence(), columns), cost=cost)
    return replace(inner, make=lambda: lambda step: inner.make()(step) * (1.0 / columns[step]), cost=cost)
