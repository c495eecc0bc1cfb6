"""Structures as the exact checker reads them, one file each, and the register of who reads which."""

from __future__ import annotations

from factorize.exact.structures.banded import BandedReading
from factorize.exact.structures.base import EndlessReading, Reading
from factorize.exact.structures.blt import BltReading, EndlessBltReading
from factorize.exact.structures.buffered import BufferedReading, StateSpaceReading
from factorize.exact.structures.dense import DenseReading
from factorize.exact.structures.inverse_banded_toeplitz import InverseBandedToeplitzReading
from factorize.exact.structures.nu_toeplitz import EndlessNuReading
from factorize.exact.structures.redrawn import RedrawnReading
from factorize.exact.structures.toeplitz import BandedToeplitzReading, ToeplitzReading
from factorize.exact.structures.tree import TreeReading

READINGS: dict[str, type[Reading]] = {
    "dense": DenseReading,
    "toeplitz": ToeplitzReading,
    "banded_toeplitz": BandedToeplitzReading,
    "banded": BandedReading,
    "buffered": BufferedReading,
    "state_space": StateSpaceReading,
    "blt": BltReading,
    "inverse_banded_toeplitz": InverseBandedToeplitzReading,
    "redrawn": RedrawnReading,
    "tree": TreeReading,
}
"""Who reads a structure."""
ENDLESS_READINGS: dict[str, type[EndlessReading]] = {"blt": EndlessBltReading, "nu_toeplitz": EndlessNuReading}
"""Who reads a structure that has no last row."""
