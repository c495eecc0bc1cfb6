"""Factorizations by hand, as the adapters take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from factorize.certificate.sensitivity import Sensitivity


@dataclass(frozen=True)
class Certificate:
    sensitivity: Any


@dataclass(frozen=True)
class Handmade:
    """A strategy, and a sensitivity that nobody certified."""

    strategy: Any
    certificate: Certificate
    digest: str = "handmade"


def handmade(strategy: Any, participation: dict[str, Any] | None = None, *, value: float = 1.0) -> Handmade:
    stated = Sensitivity(value, "exact", "by hand", participation or {"kind": "single"})
    return Handmade(strategy, Certificate(stated))
