"""The budget of a solve: its cost, from the integers of the spec, before any array exists."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from factorize.errors import TooLarge
from factorize.structures.base import MAX_DENSE

_DOUBLE = 8
_RATE = 3e10  # multiplications a second of a dense kernel on two cores
_BASE_SECONDS = 0.05
_BASE_BYTES = 2**26
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Estimate:
    """Rough cost of a solve, certificate included.

    Attributes:
        seconds: on two cores of a present-day machine; right within a factor of about three.
        bytes: largest resident memory; meant to be above the truth.
    """

    seconds: float
    bytes: int


def estimate_of(*, entries: float, multiplications: float) -> Estimate:
    """Return the estimate for a number of stored doubles and of multiplications."""
    return Estimate(_BASE_SECONDS + multiplications / _RATE, _BASE_BYTES + int(_DOUBLE * entries))


def with_work(estimate: Estimate, multiplications: float) -> Estimate:
    """Return the estimate for as many multiplications more."""
    return replace(estimate, seconds=estimate.seconds + multiplications / _RATE)


def refuse_beyond_dense(estimate: Estimate, n: int, m: int) -> Estimate:
    """Return the estimate of a solve that needs arrays of shape (m, n).

    Raises:
        TooLarge: a side is above the limit of dense arrays; with the estimate and the way out.
    """
    if max(n, m) > MAX_DENSE:
        raise TooLarge(
            f"a {m} x {n} result would take about {estimate.bytes / 2**30:.1f} GiB and {estimate.seconds:.3g} s, above "
            f"the limit of {MAX_DENSE} for dense arrays; lower n, or use nu_toeplitz on a time-invariant workload, "
            "which needs memory for one column only"
        )
    return estimate


def machine_memory() -> int:
    """Return the bytes this process may use: the machine's memory, or its control group's limit if that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _GROUP_LIMITS:
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return total


def refuse_beyond_memory(estimate: Estimate, what: str) -> None:
    """Raise if an estimate exceeds the machine's memory.

    Raises:
        TooLarge: with the estimate, the limit and the way out.
    """
    limit = machine_memory()
    if estimate.bytes > limit:
        raise TooLarge(
            f"{what} would take about {estimate.bytes / 2**30:.1f} GiB and {estimate.seconds:.0f} s; this machine has "
            f"{limit / 2**30:.1f} GiB; lower n, or use nu_toeplitz, which needs memory for one column only"
        )
