"""A strategy matrix from its tensors: what can be read off it exactly, for every structure of the file format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy, TooLarge
from factorize.exact.arithmetic.integers import Limbs, Numbers, integers, limbs, product, split, squares
from factorize.exact.description import PARTS, SCALE, UNSCALED
from factorize.exact.structures import blt, buffered, inverse_banded_toeplitz, redrawn
from factorize.exact.structures import tree as trees

LARGEST_WHOLE = 2048
_COLUMNS_AT_ONCE = 1 << 18  # entries of one block of columns, so that limbs stay small beside the matrix


class Strategy:
    """C as exact numbers: an array, a first column, decays and scales, bands, buffers, or what its inverse does.

    Beside these there may be a factor for each column.

    Args:
        parts: tensors by suffix, as the file format lists them for the structure.
        structure: name of the structure.
        n: side.

    Raises:
        CorruptObject: the tensors do not make that structure.
        InvalidStrategy: not finite, not lower-triangular bit by bit, or a diagonal that is not positive.
    """

    def __init__(self, structure: str, parts: Mapping[str, np.ndarray], n: int) -> None:
        self.n = n
        self.scale: np.ndarray | None = None
        self.array: np.ndarray | None = None
        self.column: np.ndarray | None = None
        self.bands: np.ndarray | None = None
        self.buffers: buffered.Buffers | None = None
        self.inverse: redrawn.RedrawnInverse | None = None
        self.tree: trees.TreeNodes | None = None
        self.decays: blt.Decays | inverse_banded_toeplitz.Renewal | None = None
        parts = dict(parts)
        if not all(np.isfinite(part).all() for part in parts.values()):
            raise InvalidStrategy("C holds NaN or infinity")
        if structure == "scaled":
            self.scale = _checked(parts.pop(SCALE, np.empty(0)), (n,))
            structure = _inner_structure(parts, n)
        self.structure = structure
        try:
            self._set(structure, parts)
        except KeyError as missing:
            raise CorruptObject(f"a {structure} matrix needs the tensor {missing}, which the file lacks") from None
        if parts:
            raise CorruptObject(f"a {structure} matrix has no tensors {sorted(parts)}")
        self._check_signs()

    def _set(self, structure: str, parts: dict[str, np.ndarray]) -> None:
        n = self.n
        if structure == "dense":
            self.array = _checked(parts.pop(""), (n, n))
            self.column = _toeplitz_column(self.array)
        elif structure in ("toeplitz", "banded_toeplitz"):
            given = parts.pop("coefficients")
            if given.ndim != 1 or not 1 <= len(given) <= n or (structure == "toeplitz") != (len(given) == n):
                raise CorruptObject(f"a {structure} column of a matrix with n={n} cannot have shape {given.shape}")
            self.column = np.concatenate([given, np.zeros(n - len(given))])
        elif structure == "banded":
            self.bands = parts.pop("bands")
            if self.bands.ndim != 2 or self.bands.shape[1] != n or not 1 <= len(self.bands) <= n:
                raise CorruptObject(f"bands of a matrix with n={n} cannot have shape {self.bands.shape}")
        elif structure in ("buffered", "state_space"):
            self.buffers = buffered.read(parts, n)
        elif structure == "redrawn":
            self.inverse = redrawn.read(parts, n)
        elif structure == "blt":
            self.decays = blt.read(parts)
        elif structure == "inverse_banded_toeplitz":
            self.decays = inverse_banded_toeplitz.read(parts, n)
        elif structure == "tree":
            self._set_tree(trees.read(parts.pop("tree.nodes"), parts.pop("tree.restart"), n), parts.pop("", None))
        else:
            raise CorruptObject(f"this checker knows no structure {structure[:40]!r}")

    def _set_tree(self, tree: trees.TreeNodes, stored: np.ndarray | None) -> None:
        """Keep an array up to the limit; a stored one must be the same matrix, and beyond there is none."""
        self.tree, self.array = tree, tree.whole() if self.n <= LARGEST_WHOLE else None
        if stored is not None and (self.array is None or not np.array_equal(stored, self.array)):
            raise CorruptObject("the stored C and tree.nodes are not the same matrix")

    def _check_signs(self) -> None:
        if self.array is not None:
            diagonal = np.diagonal(self.array)
            above = np.argwhere(np.triu(self.array, 1) != 0)
            if len(above):
                i, j = above[0]
                raise InvalidStrategy(f"entry ({i}, {j}) above the diagonal is {float(self.array[i, j])!r}, not 0")
        elif self.column is not None:
            diagonal = self.column[:1]
        elif self.bands is not None:
            diagonal = self.bands[0]
            beyond = np.arange(self.n) + np.arange(len(self.bands))[:, None] >= self.n
            if (self.bands[beyond] != 0).any():
                raise InvalidStrategy("bands[d, j] is not 0 where j + d >= n")
        elif self.tree is not None:
            diagonal = self.tree.nodes[0]
        elif self.decays is not None:
            diagonal = np.ones(1)
        elif self.inverse is not None:
            diagonal = self.inverse.direct[0]
        else:
            assert self.buffers is not None
            diagonal = self.buffers.diagonal
        if (diagonal <= 0).any() or (self.scale is not None and (self.scale <= 0).any()):
            raise InvalidStrategy("the diagonal of C is not positive")

    @cached_property
    def factors(self) -> Numbers | None:
        """The factor of each column, if there is one."""
        return None if self.scale is None else integers(self.scale)

    @cached_property
    def series(self) -> Numbers | None:
        """The first column of a Toeplitz matrix, without the columns' factors; enclosed for decays and scales."""
        if self.decays is not None:
            return self.decays.series(self.n)
        return None if self.column is None else integers(self.column)

    @property
    def toeplitz(self) -> Numbers | None:
        """The first column, if C is Toeplitz entry for entry."""
        return self.series if self.scale is None else None

    @cached_property
    def monotone(self) -> bool:
        """Whether C is Toeplitz with coefficients that are non-negative and do not increase."""
        if self.decays is not None:
            return self.decays.monotone
        return self.column is not None and bool(
            (self.column >= 0).all() and (self.column[1:] <= self.column[:-1]).all()
        )

    @cached_property
    def signed(self) -> bool:
        """Whether an entry is negative (or may be: buffers and inverses are not multiplied out for this)."""
        if self.inverse is not None:
            return True
        if self.buffers is not None:
            return not self.buffers.nonnegative
        if self.decays is not None:
            return not self.decays.nonnegative
        nodes = None if self.tree is None else self.tree.nodes
        stored = next(part for part in (self.array, self.column, self.bands, nodes) if part is not None)
        return bool((stored < 0).any())

    @property
    def computed(self) -> bool:
        """Whether the entries of C are computed from what is stored."""
        return self.buffers is not None or self.decays is not None or self.inverse is not None

    @cached_property
    def bandwidth(self) -> int:
        """Diagonals up to the last one that is not all zero, the main one included."""
        if self.column is not None:
            return int(np.flatnonzero(self.column)[-1]) + 1
        if self.bands is not None:
            return int(np.flatnonzero(self.bands.any(axis=1))[-1]) + 1
        if self.decays is not None:
            return min(self.decays.bandwidth, self.n)
        if self.tree is not None:
            return self.tree.bandwidth
        if self.array is None:
            return self.n
        rows, columns = np.nonzero(self.array)
        return int((rows - columns).max()) + 1

    @cached_property
    def column_norms(self) -> Numbers:
        """Squared norms of the columns, exact but for buffers and decays."""
        if self.series is not None:
            norms = _prefix_norms(self.series)
        elif self.buffers is not None:
            norms = buffered.column_norms(self.buffers)
        elif self.inverse is not None:
            norms = self.by_columns.column_norms() if self.n > LARGEST_WHOLE else squares(self.whole)
        elif self.tree is not None:
            norms = self.tree.column_norms()
        else:
            norms = _norms(self.array if self.array is not None else self.bands)
        return norms if self.factors is None else norms.scaled(self.factors).scaled(self.factors)

    def _pairs(self, left: np.ndarray | slice, right: np.ndarray | slice) -> Numbers:
        """Products of the factors of some columns and of others."""
        assert self.factors is not None
        values = self.factors.values
        return Numbers(np.multiply.outer(values[left], values[right]), 2 * self.factors.exponent)

    def columns(self, indices: np.ndarray) -> Limbs:
        """Return some columns without their factors, shape (n, len(indices))."""
        if self.array is not None:
            return limbs(self.array[:, indices])
        if self.tree is not None:
            return limbs(self.tree.columns(indices))
        if self.computed:
            return self.whole.take(slice(None), indices)
        out = np.zeros((self.n, len(indices)))
        for place, j in enumerate(indices):
            entries = self.column if self.column is not None else self.bands[:, j]  # type: ignore[index]  # one of the two is set
            stop = min(len(entries), self.n - int(j))
            out[j : j + stop, place] = entries[:stop]
        return limbs(out)

    @cached_property
    def whole(self) -> Limbs:
        """All of C without its columns' factors.

        Raises:
            TooLarge: n is above the limit of an n x n array here.
        """
        if self.n > LARGEST_WHOLE:
            raise TooLarge(f"the exact check of whole matrices is limited to n={LARGEST_WHOLE}; got n={self.n}")
        if self.buffers is not None:
            return split(buffered.entries(self.buffers))
        if self.inverse is not None:
            return split(redrawn.entries(self.inverse))
        if self.decays is not None:
            return split(_toeplitz_entries(self.decays.series(self.n)))
        return self.columns(np.arange(self.n))

    @cached_property
    def by_columns(self) -> redrawn.ByColumns:
        """A C that is too long to be had whole, by its inverse."""
        assert self.inverse is not None
        return redrawn.ByColumns(self.inverse)

    def gram(self, indices: np.ndarray) -> Numbers:
        """Return the Gram matrix of some columns."""
        if self.inverse is not None and self.n > LARGEST_WHOLE:
            return self.by_columns.gram(indices)
        chosen = self.columns(indices)
        found = product(chosen.transpose(), chosen)
        return found if self.factors is None else found.scaled(self._pairs(indices, indices))

    def gram_rows(self, start: int, stop: int) -> Numbers:
        """Return rows start..stop-1 of C^T C."""
        block = self.whole.take(slice(None), slice(start, stop))
        found = product(block.transpose(), self.whole)
        return found if self.factors is None else found.scaled(self._pairs(slice(start, stop), slice(None)))

    def numbers(self) -> Numbers:
        """Return every entry of C; see `whole` for the limit."""
        found = self.whole.numbers()
        return found if self.factors is None else found.scaled(self.factors)


def _checked(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape != shape:
        raise CorruptObject(f"a tensor of C has shape {array.shape}; the spec's n asks for {shape}")
    return array


def _inner_structure(parts: Mapping[str, np.ndarray], n: int) -> str:
    """The structure whose tensors these are, all of them and no other."""
    found = [name for name, own in PARTS.items() if name not in UNSCALED and own == set(parts)]
    if not found:
        raise CorruptObject(f"the tensors {sorted(parts)[:6]} beside {SCALE} are not those of one structure")
    if len(found) == 1:
        return found[0]
    return "toeplitz" if parts["coefficients"].shape == (n,) else "banded_toeplitz"


def _toeplitz_column(array: np.ndarray) -> np.ndarray | None:
    """The first column, if every diagonal of what has to be a lower-triangular array is constant bit by bit."""
    return array[:, 0].copy() if (array[1:, 1:] == array[:-1, :-1]).all() else None


def _norms(array: np.ndarray | None) -> Numbers:
    """Squared column norms of an array, a block of columns at a time."""
    assert array is not None
    step = _COLUMNS_AT_ONCE // len(array) + 1
    blocks = [squares(limbs(array[:, start : start + step])) for start in range(0, array.shape[1], step)]
    unit = min(block.exponent for block in blocks)
    aligned = [block.at(unit) for block in blocks]
    return Numbers(np.concatenate([b.values for b in aligned]), unit, max(b.radius for b in aligned))


def _prefix_norms(series: Numbers) -> Numbers:
    """Squared norms of the columns of a Toeplitz matrix: column j holds the first n - j coefficients."""
    sums = np.cumsum(series.values**2)[::-1]
    lost = 2 * series.radius * int(abs(series.values).sum()) + len(sums) * series.radius**2
    return Numbers(sums, 2 * series.exponent, lost)


def _toeplitz_entries(series: Numbers) -> Numbers:
    n = len(series.values)
    whole = np.full((n, n), 0, dtype=object)
    for j in range(n):
        whole[j:, j] = series.values[: n - j]
    return Numbers(whole, series.exponent, series.radius)
