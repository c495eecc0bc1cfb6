"""Workloads that may be asked for: one file per kind of workload, and the union of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from factorize.workloads.base import Workload
from factorize.workloads.decay import ExponentialDecay
from factorize.workloads.forms import BidiagonalInverse
from factorize.workloads.identity import Identity
from factorize.workloads.matrix import UserMatrix
from factorize.workloads.momentum import Momentum
from factorize.workloads.mu2 import MuSquared
from factorize.workloads.prefix import Prefix
from factorize.workloads.schedule import Schedule
from factorize.workloads.srg import RecursiveGradient
from factorize.workloads.weight_decay import WeightDecay
from factorize.workloads.window import SlidingWindow

KINDS: dict[str, type[Workload]] = {
    "prefix": Prefix,
    "momentum": Momentum,
    "schedule": Schedule,
    "weight_decay": WeightDecay,
    "decay": ExponentialDecay,
    "window": SlidingWindow,
    "srg": RecursiveGradient,
    "mu2": MuSquared,
    "identity": Identity,
    "matrix": UserMatrix,
}

AnyWorkload = Annotated[
    Prefix
    | Momentum
    | Schedule
    | WeightDecay
    | ExponentialDecay
    | SlidingWindow
    | RecursiveGradient
    | MuSquared
    | Identity
    | UserMatrix,
    Field(discriminator="kind"),
]

__all__ = [
    "KINDS",
    "AnyWorkload",
    "BidiagonalInverse",
    "ExponentialDecay",
    "Identity",
    "Momentum",
    "MuSquared",
    "Prefix",
    "RecursiveGradient",
    "Schedule",
    "SlidingWindow",
    "UserMatrix",
    "WeightDecay",
    "Workload",
]
