"""Sums of clipped vectors: a smaller clip norm pays for the cost of their roundings (docs/notes/clipping.md)."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from factorize.errors import InvalidParameter

MAX_ADDED_EXAMPLES = 512
"""The most examples that are added up at a time: the bound on roundings grows with the additions of one number."""
CLIP_FACTOR = 1 - 2.0**-20
"""The factor of the clip norm that pays for the roundings of norms, factors and sums in float64."""
MAX_ROUNDED_ADDITIONS = 1 << 31
"""The most examples of a step, times the additions that each is in, for which `CLIP_FACTOR` pays for the roundings."""
MAX_EXAMPLES_IN_FLOAT32 = 1 << 16
"""The most examples of a sum in float32: with these the clip norm is 2 % smaller, and with more it would be less."""
_TOO_MANY = {
    "examples": ("batch_size", "use a smaller batch_size, or parts of 1024 (physical_batch_size)"),
    "clients": ("clients_a_round", "admit fewer clients to a round"),
}
"""The field that an error names, and the remedy, by the unit of which a sum has too many."""


class GroupedSum:
    """A sum of vectors in float64, `MAX_ADDED_EXAMPLES` at a time, so that each number is in few additions.

    Args:
        size: size of the vectors.
    """

    def __init__(self, size: int) -> None:
        self._whole, self._begun, self._added = np.zeros(size), np.zeros(size), 0

    def add(self, vector: np.ndarray) -> None:
        """Add a vector, shape (size,)."""
        self._begun += vector
        self._added += 1
        if self._added % MAX_ADDED_EXAMPLES == 0:
            self._whole += self._begun
            self._begun[:] = 0

    @property
    def total(self) -> np.ndarray:
        """The sum of all vectors that were added, shape (size,)."""
        return self._whole + self._begun


def check_roundings(count: int, parts: int, together: int = MAX_ADDED_EXAMPLES, *, unit: str = "examples") -> None:
    """Refuse a sum whose roundings the clip norm does not pay for.

    Args:
        count: number of examples, or clients, of a step.
        parts: number of parts that they came in.
        together: the most that are added up one after another.
        unit: the unit that is counted: `examples`, or `clients`.

    Raises:
        InvalidParameter: there are too many.
    """
    additions = together + count // together + parts + 8
    if count * additions > MAX_ROUNDED_ADDITIONS:
        field, remedy = _TOO_MANY[unit]
        raise InvalidParameter(
            f"in a sum of {count} {unit} in {parts} parts, rounding may let one of them change it by more than the "
            f"clip norm; {remedy}",
            field=field,
        )


def shrink_for_float32(examples: int) -> float:
    """Return the factor of the clip norm that also pays for one rounding of the sum to float32.

    Args:
        examples: number of examples of a step, padding included.

    Raises:
        InvalidParameter: there are too many.
    """
    if examples > MAX_EXAMPLES_IN_FLOAT32:
        raise InvalidParameter(
            f"in a float32 sum over {examples} examples (padding included), rounding may let one of them change it by "
            f"more than the clip norm; use at most {MAX_EXAMPLES_IN_FLOAT32}, or float64 parameters (jax_enable_x64)",
            field="batch_size",
        )
    return CLIP_FACTOR - 2.0**-22 * examples


def host_array(part: object) -> np.ndarray:
    """Return an array of numpy, which does not know bfloat16; a tensor of torch may have a gradient."""
    detach = getattr(part, "detach", None)
    if detach is None:
        array = np.asarray(part)
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    tensor = detach().cpu()
    return np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)


def flattened(arrays: Iterable[ArrayLike]) -> np.ndarray:
    """Return the entries of all arrays, one array after another, as one vector, float64."""
    return np.concatenate([np.asarray(host_array(part), dtype=np.float64).reshape(-1) for part in arrays])


def unflattened(vector: np.ndarray, like: Sequence[tuple[tuple[int, ...], DTypeLike]]) -> list[np.ndarray]:
    """Return the arrays of a vector, in the given shapes and types."""
    ends = np.cumsum([math.prod(shape) for shape, _ in like])
    parts = zip(np.split(vector, ends[:-1]), like, strict=True)
    return [part.reshape(shape).astype(kind) for part, (shape, kind) in parts]


def clipped(update: Sequence[np.ndarray], clip_norm: float) -> np.ndarray | None:
    """Return an update as one vector of norm `clip_norm` at most, float64; None where it is not finite.

    Args:
        update: arrays, whose norm is that of all arrays together.
        clip_norm: the bound.

    Raises:
        InvalidParameter: an array has numbers that are not floating-point: a complex one would lose a part.
    """
    kinds = {np.asarray(part).dtype for part in update}
    if not all(np.issubdtype(kind, np.floating) for kind in kinds):
        message = f"the update has arrays of {', '.join(sorted(map(str, kinds)))}; send floating-point numbers"
        raise InvalidParameter(message, field="update")
    flat = flattened(update)
    largest = float(np.abs(flat).max(initial=0.0))
    if not math.isfinite(largest):
        return None
    if largest == 0.0:
        return flat
    norm = largest * float(np.linalg.norm(flat / largest))  # squares of large entries would overflow
    return flat * min(1.0, clip_norm * CLIP_FACTOR / norm)
