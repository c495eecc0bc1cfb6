"""Workloads that a spec may name: one file per kind, whose import below is its entry in the register."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from factorize.workloads.adam import Adam as Adam
from factorize.workloads.base import Workload as Workload
from factorize.workloads.base import kinds_among
from factorize.workloads.decay import ExponentialDecay as ExponentialDecay
from factorize.workloads.identity import Identity as Identity
from factorize.workloads.matrix import UserMatrix as UserMatrix
from factorize.workloads.momentum import Momentum as Momentum
from factorize.workloads.mu2 import MuSquared as MuSquared
from factorize.workloads.operators import BidiagonalInverse as BidiagonalInverse
from factorize.workloads.prefix import Prefix as Prefix
from factorize.workloads.schedule import Schedule as Schedule
from factorize.workloads.srg import RecursiveGradient as RecursiveGradient
from factorize.workloads.weight_decay import WeightDecay as WeightDecay
from factorize.workloads.window import SlidingWindow as SlidingWindow

KINDS: dict[str, type[Workload]] = kinds_among(globals().values())
"""The register of all kinds that are imported above, by the contract's name."""

if TYPE_CHECKING:
    AnyWorkload = Workload
else:
    AnyWorkload = Annotated[reduce(or_, KINDS.values()), Field(discriminator="kind")]
