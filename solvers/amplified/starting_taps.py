"""Taps to start from under balls in bins: a table of searches that ended, interpolated between its entries.

`python -m benchmarks.starting_taps` writes the table, starting_taps.json: an entry for each of `BUFFERS`, then of
`BINS`, `EPOCHS` and `EPSILONS`, the last the fastest. A start proves nothing: what is made of it is certified, and its
noise is claimed and tested, like any other's.
"""

import math
from pathlib import Path

import numpy as np

from factorize.encoding import read_json
from factorize.solvers.methods.compiled import Array

BUFFERS = (1, 2)
BINS = (8, 32, 128, 512)
EPOCHS = (1, 4, 16)
EPSILONS = (0.5, 2.0, 8.0)
DELTA = 1e-6
TABLE = Path(__file__).with_name("starting_taps.json")


def starting_taps(buffers: int, bins: int, epochs: int, epsilon: float) -> Array | None:
    """Return variables of `families.BufferedTaps` to start from, shape (2 buffers,), or None for other buffers.

    Linear in the logarithms of bins, epochs and epsilon between the table's entries, and constant beyond them.
    """
    if buffers not in BUFFERS:
        return None
    shape = (len(BINS), len(EPOCHS), len(EPSILONS))
    per_table = math.prod(shape)
    first = per_table * BUFFERS.index(buffers)
    values = np.array(read_json(TABLE.read_bytes())[first : first + per_table]).reshape(*shape, 2 * buffers)
    for axis, at in ((BINS, bins), (EPOCHS, epochs), (EPSILONS, epsilon)):
        place = float(np.interp(math.log(at), np.log(axis), np.arange(len(axis))))
        low = min(int(place), len(axis) - 2)
        values = values[low] + (place - low) * (values[low + 1] - values[low])
    return np.asarray(values)
