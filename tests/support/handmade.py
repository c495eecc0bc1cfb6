"""Factorizations by hand: a strategy, and a sensitivity that nobody certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorize.factors import Factors
from factorize.factors.sensitivity import Sensitivity
from factorize.format.manifest import CertifiedFactors, Manifest
from factorize.spec import Spec, parse_spec


@dataclass(frozen=True, eq=False)
class Handmade(CertifiedFactors):
    """The parts that `CertifiedFactors` asks for, and C."""

    strategy: Any
    sensitivity: Any = None
    digest: str = "handmade"

    @property
    def manifest(self) -> Manifest:
        return Manifest(digest=self.digest, spec=self.spec.document())

    @property
    def steps(self) -> int:
        return int(self.strategy.finite().n)

    @property
    def structure(self) -> str:
        return str(self.strategy.structure)

    @property
    def spec(self) -> Spec:
        prefix = {"kind": "prefix", "n": self.steps}
        return parse_spec({"workload": prefix, "participation": dict(self.sensitivity.participation)})

    @property
    def matrix(self) -> Any:
        return self.strategy.finite()

    def strategy_tensors(self) -> Mapping[str, np.ndarray]:
        return self.strategy.tensors()

    def opened(self) -> Handmade:
        return self

    calibrate = Factors.calibrate  # as an opened factorization has it


def handmade(strategy: Any, participation: dict[str, Any] | None = None, *, value: float = 1.0) -> Handmade:
    stated = Sensitivity(value, "exact", "by hand", participation or {"kind": "single"})
    return Handmade(strategy, stated)
