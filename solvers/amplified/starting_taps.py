"""Taps to start from under balls in bins: a table of searches that ended, interpolated between its entries.

Made by `python -m benchmarks.starting_taps`. A start proves nothing: what is made of it is certified, and its noise is
claimed and tested, like any other's.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.solvers.methods.arrays import Array

BUFFERS = (1, 2)
BINS = (8, 32, 128, 512)
EPOCHS = (1, 4, 16)
EPSILONS = (0.5, 2.0, 8.0)
DELTA = 1e-6

# An entry for each of BUFFERS, then of BINS, EPOCHS and EPSILONS, the last the fastest.
_TABLE: tuple[tuple[float, ...], ...] = (
    (3.967, -6.008),
    (0.186, -0.145),
    (-0.418, 0.205),
    (7.441, 5.882),
    (0.624, 0.617),
    (0.196, 0.95),
    (5.561, 4.912),
    (0.339, 0.644),
    (0.015, 1.021),
    (7.383, 6.706),
    (-1.047, -0.57),
    (-1.697, -0.345),
    (-0.003, -0.215),
    (-1.527, -0.761),
    (-2.024, -0.441),
    (-0.495, -0.307),
    (-2.051, -1.204),
    (-2.29, -0.549),
    (-0.794, -0.642),
    (-2.301, -1.114),
    (-2.861, -0.942),
    (-1.503, -0.752),
    (-3.001, -1.623),
    (-3.502, -1.26),
    (-2.346, -1.392),
    (-3.338, -1.771),
    (-3.787, -1.445),
    (-1.656, -0.25),
    (-3.684, -1.932),
    (-3.958, -1.482),
    (-2.556, -0.781),
    (-4.294, -2.407),
    (-4.78, -1.987),
    (-3.383, -1.506),
    (-4.701, -2.662),
    (-5.194, -2.269),
    (4.848, -5.588, -2.321, -5.323),
    (-1.199, -2.905, 0.456, 0.071),
    (-0.058, 0.35, 0.739, 0.69),
    (7.83, 2.055, -4.448, 6.293),
    (1.174, 1.126, -0.265, -8.196),
    (0.327, 1.118, -2.994, -9.343),
    (6.464, -0.666, -2.828, 5.794),
    (1.795, 2.058, 1.204, -7.541),
    (0.149, -2.678, -10.687, 1.109),
    (6.076, -0.689, -2.125, 5.305),
    (-0.494, -0.596, 0.501, 0.272),
    (-1.73, -0.822, -0.018, 0.34),
    (0.397, -3.838, -7.438, 0.133),
    (9.162, 9.724, 10.596, 9.261),
    (-1.905, -11.186, -6.998, -0.32),
    (-0.675, -3.196, -5.399, -0.453),
    (0.702, 1.586, 2.395, 0.772),
    (-2.261, -8.704, -9.988, -0.514),
    (-0.64, -8.3, -4.567, -0.347),
    (-2.354, -2.049, -0.509, -0.205),
    (-3.132, -1.884, -0.709, 0.029),
    (-1.542, -5.872, -6.329, -0.908),
    (-2.104, -1.355, 0.195, 0.16),
    (-2.735, -1.149, -0.077, 0.22),
    (-1.396, -0.983, 0.397, 0.034),
    (-2.246, -1.231, 0.443, 0.216),
    (-2.927, -1.145, 0.02, 0.175),
    (-0.835, -0.103, 0.95, 0.467),
    (-3.812, -3.17, -1.298, -0.479),
    (-4.504, -2.968, -1.413, -0.288),
    (-2.657, -2.284, -0.546, -0.459),
    (-4.09, -3.165, -1.217, -0.472),
    (-4.644, -2.851, -1.332, -0.394),
    (-3.421, -2.859, -0.927, -0.554),
    (-4.39, -3.24, -1.174, -0.545),
    (-4.893, -2.939, -1.343, -0.471),
)


def starting_taps(buffers: int, bins: int, epochs: int, epsilon: float) -> Array | None:
    """Return variables of `families.BufferedTaps` to start from, shape (2 buffers,), or None for other buffers.

    Linear in the logarithms of bins, epochs and epsilon between the table's entries, and constant beyond them.
    """
    if buffers not in BUFFERS:
        return None
    shape = (len(BINS), len(EPOCHS), len(EPSILONS))
    per_table = math.prod(shape)
    first = per_table * BUFFERS.index(buffers)
    values = np.array(_TABLE[first : first + per_table]).reshape(*shape, 2 * buffers)
    for axis, at in ((BINS, bins), (EPOCHS, epochs), (EPSILONS, epsilon)):
        place = float(np.interp(math.log(at), np.log(axis), np.arange(len(axis))))
        low = min(int(place), len(axis) - 2)
        values = values[low] + (place - low) * (values[low + 1] - values[low])
    return np.asarray(values)
