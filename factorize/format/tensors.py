"""Tensors that store each structure: their names, their shapes, and the numbers that they may hold.

Matrices that are built, written and read, and the light client, all use this one list.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy

MatrixName = Literal["C", "C_inv", "B"]
MATRIX_NAMES: tuple[MatrixName, ...] = ("C", "C_inv", "B")
"""The strategy, the noising matrix and the decoder."""
COLUMN_SCALE = "column_scale"
SCALED = "scaled"
ENDLESS_STRUCTURES = ("blt", "nu_toeplitz")
"""The structures of a C whose rows have no end."""
ENDLESS_ONLY_STRUCTURES = ("nu_toeplitz",)
"""The structures whose C always has rows without end."""
INNER_STRUCTURES = (
    "dense",
    "toeplitz",
    "banded_toeplitz",
    "banded",
    "buffered",
    "state_space",
    "blt",
    "inverse_banded_toeplitz",
)
"""The structures that `scaled` may wrap. Scales would spoil the sensitivity rules of trees and redraws."""


def tensor_name(matrix: str, suffix: str) -> str:
    """Return a tensor's name: `C` for a dense matrix, `C.coefficients` for a Toeplitz one; `tree.` stands alone."""
    if not suffix:
        return matrix
    return suffix if suffix.startswith("tree.") else f"{matrix}.{suffix}"


Parts = Mapping[str, np.ndarray]

MIN_GAP = 2.0**-43
"""The least distance of two decays of a `blt`; closer decays are one buffer in double precision."""
MIN_COEFFICIENT = 1e-100
"""The least size of `inverse_coefficients` after the first that are not 0."""
_ROWS_AT_ONCE = 256  # The rows whose part above the diagonal is checked together.
Check = Callable[[Parts, int | None], None]
Shape = tuple[str | int, ...]

SHAPES: dict[str, dict[str, Shape]] = {}
"""The shape of each tensor of a structure by suffix, '' for the matrix itself. n is the number of steps; every other
letter is at least 1 and has one value in a matrix. `scaled` has the tensors of its inner matrix and `column_scale`."""
VALUES: dict[str, Check] = {}
"""The check of the numbers of each structure."""


def stored(structure: str, shapes: dict[str, Shape]) -> Callable[[Check], Check]:
    """Return a decorator that enters a structure: the shapes of its tensors, and a function that checks the numbers."""

    def enter(check: Check) -> Check:
        if structure in SHAPES:
            raise TypeError(f"the structure {structure!r} is stated twice")
        SHAPES[structure], VALUES[structure] = shapes, check
        return check

    return enter


def check_triangular(array: np.ndarray) -> None:
    """Raise InvalidStrategy for an entry above the diagonal that is not 0, and name its place."""
    for start in range(0, len(array), _ROWS_AT_ONCE):
        stop = start + _ROWS_AT_ONCE
        if array[start:stop, stop:].any() or np.triu(array[start:stop, start:stop], 1).any():
            i, j = np.argwhere(np.triu(array[start:stop], start + 1))[0]
            entry = float(array[start + i, j])
            raise InvalidStrategy(f"entry ({start + i}, {j}) above the diagonal is {entry!r}; it must be exactly 0")


def _check_positive(diagonal: np.ndarray) -> None:
    if (diagonal <= 0).any():
        lowest = int(np.argmin(diagonal))
        raise InvalidStrategy(f"diagonal entry {lowest} is {float(diagonal[lowest])!r}; it must be positive")


@stored("dense", {"": ("n", "n")})
def _dense(parts: Parts, n: int | None) -> None:
    check_triangular(parts[""])
    _check_positive(np.diagonal(parts[""]))


@stored("toeplitz", {"coefficients": ("n",)})
def _toeplitz(parts: Parts, n: int | None) -> None:
    _check_positive(parts["coefficients"][:1])


@stored("banded_toeplitz", {"coefficients": ("bands",)})
def _check_banded_toeplitz(parts: Parts, n: int | None) -> None:
    _toeplitz(parts, n)
    if len(parts["coefficients"]) >= (n or 0):
        raise CorruptObject(f"a banded_toeplitz column needs fewer than n={n} coefficients; with {n} it is toeplitz")


@stored("banded", {"bands": ("bands", "n")})
def _check_banded(parts: Parts, n: int | None) -> None:
    bands = parts["bands"]
    if len(bands) > bands.shape[1]:
        raise CorruptObject(f"{len(bands)} bands are more than n={n}")
    _check_positive(bands[0])
    if any(band[len(band) - d :].any() for d, band in enumerate(bands) if d):
        raise InvalidStrategy("bands[d, j] must be exactly 0 where j + d >= n: there is no such row")


@stored("state_space", {"diagonal": ("n",), "transition": ("n", "m", "m"), "input": ("n", "m"), "output": ("n", "m")})
@stored("buffered", {"diagonal": ("n",), "decay": ("n", "m"), "input": ("n", "m"), "output": ("n", "m")})
def _check_buffered(parts: Parts, n: int | None) -> None:
    _check_positive(parts["diagonal"])


@stored("blt", {"theta": ("m",), "omega": ("m",)})
def _blt(parts: Parts, n: int | None) -> None:
    theta, omega = parts["theta"], parts["omega"]
    if (theta < 0).any() or (theta > 1).any() or (omega < 0).any() or (n is None and (theta >= 1).any()):
        raise InvalidStrategy(
            "decays must be in [0, 1), or 1 at most if n is given, and scales at least 0; otherwise no closed form "
            "of the sensitivity is known, so add the matrix as a dense one"
        )
    refuse_coinciding(theta)
    if (
        n is None
        and sum(Fraction(w) / (1 + Fraction(t)) for t, w in zip(theta.tolist(), omega.tolist(), strict=True)) >= 1
    ):
        raise InvalidStrategy(
            "the noise of this strategy would grow without end, because C(-1) = 1 - sum omega / (1 + theta) is not "
            "positive; use smaller scales"
        )


def refuse_coinciding(theta: np.ndarray) -> None:
    """Refuse two decays of a `blt` that double precision takes for one.

    Raises:
        InvalidStrategy: two decays coincide; the message names them.
    """
    ordered = np.sort(theta)
    gaps = np.diff(ordered)
    if len(gaps) and gaps.min() < MIN_GAP:
        at = int(np.argmin(gaps))
        raise InvalidStrategy(
            f"decays {float(ordered[at])!r} and {float(ordered[at + 1])!r} are closer than {MIN_GAP:.2g}, too near to "
            "be two buffers; add their scales and drop one"
        )


@stored("inverse_banded_toeplitz", {"inverse_coefficients": ("bands",)})
def _inverse_banded_toeplitz(parts: Parts, n: int | None) -> None:
    column = parts["inverse_coefficients"]
    if len(column) > (n or 0):
        raise CorruptObject(f"the column of the inverse has {len(column)} entries, more than n={n}")
    below = column[1:]
    if column[0] != 1 or ((below > -MIN_COEFFICIENT) & (below != 0)).any() or not fading(column):
        raise InvalidStrategy(
            "the inverse's first column must be 1, then numbers that are 0 or <= -1e-100, with a sum of at least -1; "
            "store C as `toeplitz` instead"
        )


def fading(noising: np.ndarray) -> bool:
    """Return whether a column is exactly 1, then not positive, with a sum that is not negative."""
    return bool((noising[1:] <= 0).all()) and sum(map(Fraction, noising.tolist())) >= 0


@stored(
    "redrawn",
    {"decay": ("n", "m"), "output": ("n", "m"), "input": ("draws", "n", "m"), "direct": ("draws", "n"), "lag": (1,)},
)
def _check_redrawn(parts: Parts, n: int | None) -> None:
    lag, direct, inputs = _whole_number(parts["lag"], "lag", n), parts["direct"], parts["input"]
    _check_positive(direct[0])
    for m in range(1, len(direct)):
        if inputs[m, : m * lag].any() or direct[m, : m * lag].any():
            raise InvalidStrategy(f"input[{m}] and direct[{m}] must be exactly 0 before step {m * lag}")


@stored("tree", {"tree.nodes": ("levels", "n"), "tree.restart": (1,)})
def _tree(parts: Parts, n: int | None) -> None:
    nodes, restart = parts["tree.nodes"], _whole_number(parts["tree.restart"], "tree.restart", n)
    if len(nodes) != (restart - 1).bit_length() + 1:
        raise CorruptObject(f"trees of {restart} steps cannot have {len(nodes)} rows of nodes")
    _check_positive(nodes[0])
    leaves = np.arange(nodes.shape[1]) % restart
    unused = (leaves >> np.arange(len(nodes) - 1)[:, None]) & 1 == 0
    if nodes[1:][unused].any():
        raise InvalidStrategy("nodes[j + 1, i] must be exactly 0 where bit j of i mod restart is 0")


def _whole_number(given: np.ndarray, what: str, n: int | None) -> int:
    if not 1 <= given[0] <= (n or 0) or given[0] != int(given[0]):
        raise CorruptObject(f"{what} is {float(given[0])!r}, not a whole number from 1 to n={n}")
    return int(given[0])


@stored("nu_toeplitz", {"nu": (1,)})
def _nu_toeplitz(parts: Parts, n: int | None) -> None:
    if not 0 < parts["nu"][0] < 1:
        raise InvalidStrategy(
            f"nu={parts['nu'].tolist()!r} must be one number in (0, 1), so that columns have a finite norm"
        )


def wrapped_structure(tensors: Parts, n: int) -> str:
    """Return the structure under a scale, which is the one with exactly these tensors.

    Args:
        tensors: tensors of a `scaled` matrix, by suffix.
        n: side.

    Raises:
        CorruptObject: there is no scale for each column, or the tensors are not those of one structure.
    """
    if COLUMN_SCALE not in tensors:
        raise CorruptObject(f"a {SCALED} matrix needs the tensor {COLUMN_SCALE!r}, which the file lacks")
    if tensors[COLUMN_SCALE].shape != (n,):
        raise CorruptObject(f"{COLUMN_SCALE} of a matrix with n={n} cannot have shape {tensors[COLUMN_SCALE].shape}")
    inner = set(tensors) - {COLUMN_SCALE}
    fitting = [name for name in INNER_STRUCTURES if set(SHAPES[name]) == inner]
    if not fitting:
        raise CorruptObject(
            f"the tensors {sorted(inner)[:6]} beside {COLUMN_SCALE} do not belong to a structure that can be scaled: "
            f"{', '.join(INNER_STRUCTURES)}"
        )
    if len(fitting) == 1:
        return fitting[0]
    return "toeplitz" if tensors["coefficients"].shape == (n,) else "banded_toeplitz"


SCALE_LIMITS = 1e-60, 1e60
"""The limits of a column's scale; a larger one could turn inner norms that underflow into large ones."""
BLOCKS: Shape = ("n", "groups", "states", "states")
"""The other shape of `transition`, for block-diagonal matrices with m = groups x states."""


def check_tensors(name: str, structure: str, parts: Parts, shape: tuple[int | None, int | None]) -> None:
    """Check the tensors of one matrix of a file.

    Args:
        name: C, C_inv or B.
        structure: the structure that the manifest states.
        parts: tensors by suffix, as doubles.
        shape: the shape that the manifest states, which is the spec's.

    Raises:
        CorruptObject: a tensor is missing or unknown, or a shape does not fit n and the others.
        InvalidStrategy: the numbers do not make such a matrix.
    """
    if name != "C":
        _check_derived(name, structure, parts, shape)
        return
    check_strategy_tensors(structure, parts, shape[1])


def check_strategy_tensors(structure: str, parts: Parts, n: int | None) -> str:
    """Check the tensors of a C from any source, and return its structure, or that of the inner matrix of a scaled one.

    Args:
        structure: the contract's name of the structure.
        parts: tensors by suffix, as doubles.
        n: number of steps, or None without end.

    Raises:
        CorruptObject, InvalidStrategy: see `check_tensors`.
    """
    if n is not None and n < 1:
        raise CorruptObject(f"n={n} is below 1")
    if structure == SCALED:
        if n is None:
            raise CorruptObject("a strategy without a last step cannot have scaled columns")
        check_scale(parts, n)
        structure = wrapped_structure(parts, n)
        parts = {suffix: part for suffix, part in parts.items() if suffix != COLUMN_SCALE}
    known = ENDLESS_STRUCTURES if n is None else set(SHAPES) - set(ENDLESS_ONLY_STRUCTURES)
    if structure not in known:
        raise CorruptObject(f"structure {structure[:40]!r} is not one of {', '.join(sorted(known))}; update factorize")
    _check_finite("C", parts)
    _check_shapes(structure, parts, n)
    VALUES[structure](parts, n)
    return structure


def _check_finite(name: str, parts: Parts) -> None:
    if not all(np.isfinite(part).all() for part in parts.values()):
        raise InvalidStrategy(f"{name} contains NaN or infinity; every entry must be finite")


def check_scale(parts: Parts, n: int) -> None:
    """Check the factors of columns; raise as `check_tensors` does."""
    scale = parts.get(COLUMN_SCALE)
    if scale is None or scale.shape != (n,):
        raise CorruptObject(f"a {SCALED} matrix needs {COLUMN_SCALE} of shape ({n},)")
    smallest, largest = SCALE_LIMITS
    if not ((scale >= smallest) & (scale <= largest)).all():
        raise InvalidStrategy(
            f"{COLUMN_SCALE} has numbers outside [{smallest:g}, {largest:g}]; scale the inner matrix instead"
        )


def _check_derived(name: str, structure: str, parts: Parts, shape: tuple[int | None, int | None]) -> None:
    """Check a stored C_inv or B, which is an array of its own shape, or a column."""
    _check_finite(name, parts)
    wanted = shape if structure == "dense" else shape[1:]
    part = parts.get(*SHAPES[structure])
    if len(parts) != 1 or part is None or part.shape != wanted:
        raise CorruptObject(f"{name} of shape {shape} cannot be {structure} with these tensors")
    if structure == "dense" and shape[0] == shape[1]:
        check_triangular(part)


def _check_shapes(structure: str, parts: Parts, n: int | None) -> None:
    known = SHAPES[structure]
    if set(parts) != set(known):
        raise CorruptObject(f"a {structure} matrix of n={n} has the tensors {sorted(known)}, not {sorted(parts)[:6]}")
    letters: dict[str, int] = {} if n is None else {"n": n}
    for suffix, part in parts.items():
        blocks = suffix == "transition" and part.ndim == len(BLOCKS)
        _bind(f"{structure} {suffix}".strip(), part.shape, BLOCKS if blocks else known[suffix], letters)
    if "groups" in letters:
        _check_blocks(letters["groups"], letters["states"], letters["m"])


def _check_blocks(groups: int, states: int, m: int) -> None:
    """Refuse blocks that are not those of the buffers, or whose bytes are also those of larger blocks."""
    if groups * states != m:
        raise CorruptObject("the blocks of the transition are not those of the buffers")
    numbers = m * (states + 2)  # of a step, in transition, input and output: a digest covers these, and no shape
    for larger in range(states + 1, math.isqrt(numbers + 1)):
        if numbers % (larger * (larger + 2)) == 0:
            raise CorruptObject(
                f"{groups} blocks of {states} states have as many numbers as {numbers // (larger * (larger + 2))} of "
                f"{larger}, so that one digest would name two matrices; add blocks of zeros"
            )


def _bind(what: str, shape: tuple[int, ...], wanted: Shape, letters: dict[str, int]) -> None:
    """Compare a shape with letters, and enter the values of letters that were not known."""
    if len(shape) != len(wanted) or not all(shape):
        raise CorruptObject(f"{what} has shape {shape}, not {wanted}")
    for side, letter in zip(shape, wanted, strict=True):
        if side != (letter if isinstance(letter, int) else letters.setdefault(letter, side)):
            raise CorruptObject(f"{what} has shape {shape}, which does not fit n and the other tensors")
