"""Structures as the exact checker reads them, one file for each family, and the register of their readings."""

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from factorize.checker.structures.base import Reading
from factorize.checker.structures.buffered import BufferedReading
from factorize.checker.structures.dense import BandedReading, DenseReading
from factorize.checker.structures.redrawn import RedrawnReading
from factorize.checker.structures.toeplitz import (
    BltReading,
    InverseBandedToeplitzReading,
    ToeplitzReading,
    enclose_limit_of_blt,
    enclose_limit_of_nu,
)
from factorize.checker.structures.tree import TreeReading

READINGS: dict[str, type[Reading]] = {
    "dense": DenseReading,
    "toeplitz": ToeplitzReading,
    "banded_toeplitz": ToeplitzReading,
    "banded": BandedReading,
    "buffered": BufferedReading,
    "state_space": BufferedReading,
    "blt": BltReading,
    "inverse_banded_toeplitz": InverseBandedToeplitzReading,
    "redrawn": RedrawnReading,
    "tree": TreeReading,
}
"""The reading of each structure."""
LIMITS: dict[str, Callable[[Mapping[str, np.ndarray], int, int], tuple[Fraction, Fraction]]] = {
    "blt": enclose_limit_of_blt,
    "nu_toeplitz": enclose_limit_of_nu,
}
"""The bound of the squared sensitivity of each structure without a last row, from tensors, separation and count."""
