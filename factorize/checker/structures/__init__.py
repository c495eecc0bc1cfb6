"""Structures as the exact checker reads them, one file each, and the register of who reads which."""

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from factorize.checker.structures import blt, nu_toeplitz
from factorize.checker.structures.banded import BandedReading
from factorize.checker.structures.base import Reading
from factorize.checker.structures.blt import BltReading
from factorize.checker.structures.buffered import BufferedReading
from factorize.checker.structures.dense import DenseReading
from factorize.checker.structures.inverse_banded_toeplitz import InverseBandedToeplitzReading
from factorize.checker.structures.redrawn import RedrawnReading
from factorize.checker.structures.toeplitz import ToeplitzReading
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
"""Who reads a structure."""
LIMITS: dict[str, Callable[[Mapping[str, np.ndarray], int, int], tuple[Fraction, Fraction]]] = {
    "blt": blt.squared_limit,
    "nu_toeplitz": nu_toeplitz.squared_limit,
}
"""What encloses the squared sensitivity of a structure that has no last row: its tensors, separation and count."""
