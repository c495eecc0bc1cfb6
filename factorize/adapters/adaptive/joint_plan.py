"""A plan whose job releases gradients and their squares together: two factorizations, and the noise of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from factorize.accounting.moments.joint_moments import JointMoments, calibrate_moments
from factorize.adapters.jobs import Planned, TrainingJob
from factorize.adapters.statement import PrivacyStatement
from factorize.errors import InvalidParameter
from factorize.format.claims import CertifiedFactors, certified
from factorize.training.orders import fixed_order


@dataclass(frozen=True, kw_only=True)
class PlannedMoments(Planned):
    """A plan with the second moments' factorization.

    Attributes:
        second: factors of C2.
        moments: noise of both; `calibration` is that of the first.
    """

    second: CertifiedFactors
    moments: JointMoments

    def statement(self, examples: int, sampling: str, unit: str, ranks: int = 1) -> PrivacyStatement:
        """Return what the job guarantees, of both releases together."""
        return replace(super().statement(examples, sampling, unit, ranks), moments=self.moments)


def joint_plan(
    job: TrainingJob,
    find: Callable[..., Any],
    find_second: Callable[..., Any],
    remainder: Literal["drop", "pad"],
    order_seed: int,
) -> PlannedMoments:
    """Plan the same public batches in every epoch, for both moments.

    Args:
        job: what is asked for.
        find: gives the factors of C1 for (steps, participation).
        find_second: gives those of C2.
        remainder: of the order.
        order_seed: public, of the order.

    Raises:
        InvalidParameter: factorizations of other steps or participations than each other's.
        InvalidParticipation: the participation is not that of the order.
    """
    order = fixed_order(job.examples, job.size, epochs=job.epochs, seed=order_seed, remainder=remainder)
    first, second = (certified(each(len(order), order.participation)) for each in (find, find_second))
    moments = calibrate_moments(
        first, second, job.target, clip_norm=job.clip_norm, divisor=job.size, adjacency=job.adjacency
    )
    order.check(moments.first.sensitivity.participation, first.steps)
    return PlannedMoments(first, moments.first, order, second=second, moments=moments)


def iterate_workload(beta: float, steps: int) -> dict[str, Any]:
    """Return the workload of Adam's iterate where the second moments stay the same, in the contract's JSON form.

    Args:
        beta: beta1.
        steps: n.
    """
    return {"kind": "adam", "n": steps, "beta": float(beta), "output": "iterate"}


def second_workload(beta: float, steps: int) -> dict[str, Any]:
    """Return the workload of Adam's second moments, in the contract's JSON form.

    Args:
        beta: beta2.
        steps: n.
    """
    return {"kind": "adam", "n": steps, "beta": float(beta), "output": "moment"}


def refuse_joint(sampling: str) -> None:
    """Refuse orders other than a fixed one.

    Raises:
        InvalidParameter: batches are sampled.
    """
    if sampling != "fixed":
        raise InvalidParameter(
            f"sampling={str(sampling)[:20]!r} has no accountant for two moments together; use sampling='fixed', or "
            "adaptive='plain', where second moments are made of noisy gradients",
            field="sampling",
        )


def second_seed(seed: int) -> int:
    """Return the seed of the second moments' noise: another one, also where both moments have one factorization."""
    named = b"factorize second moments " + str(int(seed)).encode()
    return int.from_bytes(hashlib.shake_256(named).digest(16), "little")


def check_floor(floor: float) -> float:
    """Return the floor of roots of second moments.

    Raises:
        InvalidParameter: it is not positive and finite.
    """
    if not 0 < floor < float("inf"):
        raise InvalidParameter(f"floor={floor!r} is not a positive number; give one, 1e-3 say", field="floor")
    return float(floor)
