"""Tensors of a matrix: their shapes in terms of n and of each other, and the numbers that they may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.names import (
    BLOCKS,
    COLUMN_SCALE,
    LARGEST_WHOLE_TREE,
    SCALED,
    SHAPES,
    TENSORS,
    Shape,
    wrapped_structure,
)

Parts = Mapping[str, np.ndarray]

SMALLEST_GAP = 2.0**-43
"""Between two decays of a `blt`: closer ones are one buffer in double precision."""
SMALLEST_SCALE = 1e-100
"""Of the entries of `inverse_coefficients` below the first, where they are not 0."""
SCALES = 1e-60, 1e60
"""Of columns, smallest and largest: beyond, norms of inner columns that underflow would be scaled to what matters."""

Check = Callable[[Parts, int | None], None]
VALUES: dict[str, Check] = {}
"""What is asked of the numbers of each structure: the functions below that say `checks`."""


def checks(*structures: str) -> Callable[[Check], Check]:
    """Enter a function as the check of structures that have none yet."""

    def enter(check: Check) -> Check:
        for structure in structures:
            if VALUES.setdefault(structure, check) is not check:
                raise TypeError(f"the structure {structure!r} has two checks of its numbers")
        return check

    return enter


def check_tensors(name: str, structure: str, parts: Parts, shape: tuple[int | None, int | None]) -> None:
    """Check the tensors of one matrix.

    Args:
        name: C, C_inv or B.
        structure: as the manifest states it.
        parts: by suffix, as doubles.
        shape: as the manifest states it, which is the spec's.

    Raises:
        CorruptObject: a tensor is missing or too many, or a shape does not fit n and the others.
        InvalidStrategy: the numbers do not make such a matrix.
    """
    n = shape[1]
    if structure == SCALED:
        assert n is not None  # format/description.py
        _check_scale(parts, n)
        structure = wrapped_structure(parts, n)
        parts = {suffix: part for suffix, part in parts.items() if suffix != COLUMN_SCALE}
    if not all(np.isfinite(part).all() for part in parts.values()):
        raise InvalidStrategy(f"{name} holds NaN or infinity; every entry must be finite")
    if name != "C":
        _check_derived(name, structure, parts, shape)
        return
    _check_shapes(structure, parts, n)
    VALUES[structure](parts, n)


def _check_scale(parts: Parts, n: int) -> None:
    scale = parts.get(COLUMN_SCALE)
    if scale is None or scale.shape != (n,):
        raise CorruptObject(f"a {SCALED} matrix needs {COLUMN_SCALE} of shape ({n},)")
    smallest, largest = SCALES
    if not ((scale >= smallest) & (scale <= largest)).all():
        raise InvalidStrategy(
            f"{COLUMN_SCALE} leaves [{smallest:g}, {largest:g}]; what underflows inside would count again outside: "
            "scale the inner matrix"
        )


def _check_derived(name: str, structure: str, parts: Parts, shape: tuple[int | None, int | None]) -> None:
    """A stored C_inv or B: an array of its own shape, or a column."""
    wanted = shape if structure == "dense" else shape[1:]
    part = parts.get(TENSORS[structure][0])
    if len(parts) != 1 or part is None or part.shape != wanted:
        raise CorruptObject(f"{name} of shape {shape} cannot be {structure} with these tensors")
    if structure == "dense" and shape[0] == shape[1]:
        _check_triangular(part)


def _check_shapes(structure: str, parts: Parts, n: int | None) -> None:
    known = SHAPES[structure]
    wanted = set(TENSORS[structure]) | ({""} if structure == "tree" and (n or 0) <= LARGEST_WHOLE_TREE else set())
    if set(parts) != wanted:
        raise CorruptObject(f"a {structure} matrix of n={n} has the tensors {sorted(wanted)}, not {sorted(parts)[:6]}")
    letters: dict[str, int] = {} if n is None else {"n": n}
    for suffix, part in parts.items():
        blocks = suffix == "transition" and part.ndim == len(BLOCKS)
        _bind(f"{structure} {suffix}".strip(), part.shape, BLOCKS if blocks else known[suffix], letters)
    if "groups" in letters and letters["groups"] * letters["states"] != letters["m"]:
        raise CorruptObject("the blocks of the transition are not those of the buffers")


def _bind(what: str, shape: tuple[int, ...], wanted: Shape, letters: dict[str, int]) -> None:
    """Compare a shape with letters, those that are known already and those that it tells."""
    if len(shape) != len(wanted) or not all(shape):
        raise CorruptObject(f"{what} has shape {shape}, not {wanted}")
    for side, letter in zip(shape, wanted, strict=True):
        if side != (letter if isinstance(letter, int) else letters.setdefault(letter, side)):
            raise CorruptObject(f"{what} has shape {shape}, which does not fit n and the other tensors")


def _check_triangular(array: np.ndarray) -> None:
    for i, row in enumerate(array):
        if row[i + 1 :].any():
            j = i + 1 + int(np.flatnonzero(row[i + 1 :])[0])
            raise InvalidStrategy(f"entry ({i}, {j}) above the diagonal is {float(row[j])!r}; it must be exactly 0")


def _check_positive(diagonal: np.ndarray) -> None:
    if (diagonal <= 0).any():
        lowest = int(np.argmin(diagonal))
        raise InvalidStrategy(f"diagonal entry {lowest} is {float(diagonal[lowest])!r}; it must be positive")


@checks("dense")
def _dense(parts: Parts, n: int | None) -> None:
    _check_triangular(parts[""])
    _check_positive(np.diagonal(parts[""]))


@checks("toeplitz")
def _toeplitz(parts: Parts, n: int | None) -> None:
    _check_positive(parts["coefficients"][:1])


@checks("banded_toeplitz")
def _banded_toeplitz(parts: Parts, n: int | None) -> None:
    _toeplitz(parts, n)
    if len(parts["coefficients"]) >= (n or 0):
        raise CorruptObject(f"a banded_toeplitz column of n={n} has fewer coefficients; with {n} it is toeplitz")


@checks("banded")
def _banded(parts: Parts, n: int | None) -> None:
    bands = parts["bands"]
    if len(bands) > bands.shape[1]:
        raise CorruptObject(f"{len(bands)} bands are more than n={n}")
    _check_positive(bands[0])
    if any(band[len(band) - d :].any() for d, band in enumerate(bands) if d):
        raise InvalidStrategy("bands[d, j] must be exactly 0 where j + d >= n: there is no such row")


@checks("buffered", "state_space")
def _buffered(parts: Parts, n: int | None) -> None:
    _check_positive(parts["diagonal"])


@checks("blt")
def _blt(parts: Parts, n: int | None) -> None:
    theta, omega = parts["theta"], parts["omega"]
    if (theta < 0).any() or (theta > 1).any() or (omega < 0).any() or (n is None and (theta >= 1).any()):
        raise InvalidStrategy(
            "decays must lie in [0, 1), or be 1 where n is given, and scales must not be negative, or no sensitivity "
            "by closed form holds; add the matrix as a dense one"
        )
    refuse_coinciding(theta)
    if (
        n is None
        and sum(Fraction(w) / (1 + Fraction(t)) for t, w in zip(theta.tolist(), omega.tolist(), strict=True)) >= 1
    ):
        raise InvalidStrategy(
            "the inverse of this strategy alternates and does not fade: C(-1) = 1 - sum omega / (1 + theta) is not "
            "positive, so noise without end would grow; use smaller scales"
        )


def refuse_coinciding(theta: np.ndarray) -> None:
    """Refuse two decays of a `blt` that double precision takes for one.

    Raises:
        InvalidStrategy: naming them.
    """
    ordered = np.sort(theta)
    gaps = np.diff(ordered)
    if len(gaps) and gaps.min() < SMALLEST_GAP:
        at = int(np.argmin(gaps))
        raise InvalidStrategy(
            f"decays {float(ordered[at])!r} and {float(ordered[at + 1])!r} are closer than {SMALLEST_GAP:.2g}, so they "
            "are one buffer in double precision; add their scales and drop one"
        )


@checks("inverse_banded_toeplitz")
def _inverse_banded_toeplitz(parts: Parts, n: int | None) -> None:
    column = parts["inverse_coefficients"]
    if len(column) > (n or 0):
        raise CorruptObject(f"the column of the inverse has {len(column)} entries, more than n={n}")
    below = column[1:]
    if column[0] != 1 or ((below > -SMALLEST_SCALE) & (below != 0)).any() or not fading(column):
        raise InvalidStrategy(
            "the inverse's column is 1 and below it numbers <= -1e-100 or 0 that sum to at least -1, or its own "
            "inverse is not enclosed; store C as `toeplitz`"
        )


def fading(noising: np.ndarray) -> bool:
    """Return whether a column is 1 and then nothing positive, with a sum that is not negative, exactly."""
    return bool((noising[1:] <= 0).all()) and sum(map(Fraction, noising.tolist())) >= 0


@checks("redrawn")
def _redrawn(parts: Parts, n: int | None) -> None:
    lag, direct, inputs = _whole_number(parts["lag"], "lag", n), parts["direct"], parts["input"]
    if len(direct) < 2:
        raise CorruptObject("without redraws the structure is `buffered`")
    _check_positive(direct[0])
    for m in range(1, len(direct)):
        if inputs[m, : m * lag].any() or direct[m, : m * lag].any():
            raise InvalidStrategy(f"input[{m}] and direct[{m}] must be exactly 0 before step {m * lag}")


@checks("tree")
def _tree(parts: Parts, n: int | None) -> None:
    nodes, restart = parts["tree.nodes"], _whole_number(parts["tree.restart"], "tree.restart", n)
    if len(nodes) != (restart - 1).bit_length() + 1:
        raise CorruptObject(f"trees of {restart} steps cannot have {len(nodes)} rows of nodes")
    _check_positive(nodes[0])
    leaves = np.arange(nodes.shape[1]) % restart
    unused = (leaves >> np.arange(len(nodes) - 1)[:, None]) & 1 == 0
    if nodes[1:][unused].any():
        raise InvalidStrategy("nodes[j + 1, i] must be exactly 0 where bit j of i mod restart is 0")
    if "" in parts and not np.array_equal(parts[""], _whole_tree(nodes, leaves)):
        raise InvalidStrategy("the whole matrix and tree.nodes are not the same matrix")


def _whole_tree(nodes: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """Rows are constant on the blocks behind a step: level j of leaf p has the 2^j steps from p's bits above j on."""
    n = nodes.shape[1]
    whole = np.diag(nodes[0])
    for i, p in enumerate(leaves.tolist()):
        for j in (j for j in range(len(nodes) - 1) if p >> j & 1):
            first = i - p + (p >> j + 1 << j + 1)
            whole[i, first : first + (1 << j)] = nodes[j + 1, i]
    assert whole.shape == (n, n)
    return whole


def _whole_number(given: np.ndarray, what: str, n: int | None) -> int:
    if not 1 <= given[0] <= (n or 0) or given[0] != int(given[0]):
        raise CorruptObject(f"{what} is {float(given[0])!r}, not a whole number from 1 to n={n}")
    return int(given[0])


@checks("nu_toeplitz")
def _nu_toeplitz(parts: Parts, n: int | None) -> None:
    if not 0 < parts["nu"][0] < 1:
        raise InvalidStrategy(
            f"nu={parts['nu'].tolist()!r} is not one number in (0, 1), where columns have a finite norm"
        )
