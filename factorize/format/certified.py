"""Factors by their checked manifest: what noise, calibrations and adapters ask of a strategy C, wherever it is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from factorize.errors import InvalidParameter
from factorize.format.claims import Sensitivity
from factorize.format.manifest import Manifest


class CertifiedFactors(ABC):
    """A strategy C and the sensitivity that was certified for it; `factorize.Factors` does all that rests on these.

    Attributes:
        manifest: what was asked, the matrices, and what was certified; checked.
    """

    manifest: Manifest

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """Certified, with kind, rule and participation."""
        return Sensitivity.of(self.manifest)

    @abstractmethod
    def opened(self) -> Any:
        """Return the `factorize.Factorization`, which has C in memory."""

    @abstractmethod
    def strategy_tensors(self) -> Mapping[str, np.ndarray]:
        """Return the tensors of C by suffix ('' for a dense one), as doubles."""

    @property
    def digest(self) -> str:
        """Names these bytes for ever: pin it."""
        return self.manifest.digest

    @property
    def spec_digest(self) -> str:
        """Names what was asked."""
        return self.manifest.spec_digest

    @property
    def structure(self) -> str:
        """Of C, the contract's name."""
        return self.manifest.matrix("C").structure

    @property
    def dtype(self) -> str:
        """Type in which C is stored; in memory its numbers are doubles."""
        return self.manifest.matrix("C").dtype

    @property
    def steps(self) -> int:
        """n; 10^15 - 1 where the rows have no end."""
        return self.manifest.steps


def certified(given: object) -> CertifiedFactors:
    """Return a factorization or factors; raise InvalidParameter for anything else."""
    if not isinstance(given, CertifiedFactors):
        message = f"a {type(given).__name__} is no factorization; pass what load or solve gave"
        raise InvalidParameter(message, field="factors")
    return given
