"""Rows of C^-1 in blocks: one pass, O(n) memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from factorize.errors import TooLarge
from factorize.predict.prediction import Inverse

MAX_STEPS = 16384
"""Reading all rows costs O(n^2); beyond this, 2 GB of numbers."""

_BLOCK_BYTES = 1 << 23


def inverse_blocks(inverse: Inverse) -> Iterator[np.ndarray]:
    """Return the blocks of consecutive rows of C^-1, each read when its turn comes.

    Raises:
        TooLarge: more than `MAX_STEPS` rows; before any is read.
    """
    n = inverse.shape("C_inv")[0]
    if n > MAX_STEPS:
        raise TooLarge(f"n={n} rows of n numbers are too many to read for a prediction; the limit is n={MAX_STEPS}")
    step = max(1, _BLOCK_BYTES // (8 * n))
    return (inverse.rows("C_inv", start, min(start + step, n)) for start in range(0, n, step))


def decayed_blocks(blocks: Iterator[np.ndarray], decay: float) -> Iterator[np.ndarray]:
    """Yield blocks of consecutive rows r_t of the recursion r_t = decay r_{t-1} + row_t."""
    if not decay:
        yield from blocks
        return
    last: np.ndarray | float = 0.0
    for block in blocks:
        rows = np.array(block)
        for row in rows:
            row += decay * last
            last = row
        yield rows
