"""Shapes of the tensors of one matrix, in terms of n and of each other; their numbers are checked in `tensors.py`."""

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.names import COLUMN_SCALE, ENDLESS, ONLY_ENDLESS, SCALED
from factorize.format.tensors import SHAPES, VALUES, Parts, Shape, check_triangular, wrapped_structure

SCALES = 1e-60, 1e60
"""Of columns, smallest and largest: beyond, norms of inner columns that underflow would be scaled to what matters."""
BLOCKS: Shape = ("n", "groups", "states", "states")
"""The other shape of `transition`, block diagonal, with m = groups x states."""


def check_tensors(name: str, structure: str, parts: Parts, shape: tuple[int | None, int | None]) -> None:
    """Check the tensors of one matrix of a file.

    Args:
        name: C, C_inv or B.
        structure: as the manifest states it.
        parts: by suffix, as doubles.
        shape: as the manifest states it, which is the spec's.

    Raises:
        CorruptObject: a tensor is missing or too many, or a shape does not fit n and the others.
        InvalidStrategy: the numbers do not make such a matrix.
    """
    if name != "C":
        _check_derived(name, structure, parts, shape)
        return
    check_strategy_tensors(structure, parts, shape[1])


def check_strategy_tensors(structure: str, parts: Parts, n: int | None) -> str:
    """Check the tensors of a C, wherever they come from, and return its structure; of a scaled one, what is scaled.

    Args:
        structure: the contract's name.
        parts: by suffix, as doubles.
        n: steps, or None without end.

    Raises:
        CorruptObject, InvalidStrategy: see `check_tensors`.
    """
    if n is not None and n < 1:
        raise CorruptObject(f"n={n} is below 1")
    if structure == SCALED:
        if n is None:
            raise CorruptObject("columns without end have no scales")
        check_scale(parts, n)
        structure = wrapped_structure(parts, n)
        parts = {suffix: part for suffix, part in parts.items() if suffix != COLUMN_SCALE}
    known = ENDLESS if n is None else set(SHAPES) - set(ONLY_ENDLESS)
    if structure not in known:
        raise CorruptObject(f"structure {structure[:40]!r} is none of {', '.join(sorted(known))}; update factorize")
    _check_finite("C", parts)
    _check_shapes(structure, parts, n)
    VALUES[structure](parts, n)
    return structure


def _check_finite(name: str, parts: Parts) -> None:
    if not all(np.isfinite(part).all() for part in parts.values()):
        raise InvalidStrategy(f"{name} holds NaN or infinity; every entry must be finite")


def check_scale(parts: Parts, n: int) -> None:
    """Check the factors of columns; raise as `check_tensors` does."""
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
    if "groups" in letters and letters["groups"] * letters["states"] != letters["m"]:
        raise CorruptObject("the blocks of the transition are not those of the buffers")


def _bind(what: str, shape: tuple[int, ...], wanted: Shape, letters: dict[str, int]) -> None:
    """Compare a shape with letters, those that are known already and those that it tells."""
    if len(shape) != len(wanted) or not all(shape):
        raise CorruptObject(f"{what} has shape {shape}, not {wanted}")
    for side, letter in zip(shape, wanted, strict=True):
        if side != (letter if isinstance(letter, int) else letters.setdefault(letter, side)):
            raise CorruptObject(f"{what} has shape {shape}, which does not fit n and the other tensors")
