"""What jobs share that release gradients and their squares together: workloads, the second seed, and the floor."""

from __future__ import annotations

import hashlib
from typing import Any

from factorize.errors import InvalidParameter


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
