"""Structures as the exact checker reads them, one file each, and the register of who reads which."""

from __future__ import annotations

from factorize.checker.structures.banded import BandedReading
from factorize.checker.structures.base import EndlessReading, Reading
from factorize.checker.structures.blt import BltReading, EndlessBltReading
from factorize.checker.structures.buffered import BufferedReading
from factorize.checker.structures.dense import DenseReading
from factorize.checker.structures.inverse_banded_toeplitz import InverseBandedToeplitzReading
from factorize.checker.structures.nu_toeplitz import EndlessNuReading
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
ENDLESS_READINGS: dict[str, type[EndlessReading]] = {"blt": EndlessBltReading, "nu_toeplitz": EndlessNuReading}
"""Who reads a structure that has no last row."""
