"""Samplings: laws by which examples take part in the steps of a run, one file each.

A sampling's class defines its law with its actions and texts. A sampling is one class and one entry of `SAMPLINGS`.
"""

from factorize.errors import InvalidParameter
from factorize.samplings.b_min_sep import BMinSepSampling
from factorize.samplings.balls_in_bins import BallsInBinsSampling
from factorize.samplings.base import Sampling
from factorize.samplings.cyclic_poisson import CyclicPoissonSampling
from factorize.samplings.fixed import FixedSampling
from factorize.samplings.poisson import PoissonSampling
from factorize.samplings.random_allocation import RandomAllocationSampling

SAMPLINGS: dict[str, Sampling] = {
    sampling.name: sampling
    for sampling in (
        FixedSampling(),
        CyclicPoissonSampling(),
        BallsInBinsSampling(),
        PoissonSampling(),
        RandomAllocationSampling(),
        BMinSepSampling(),
    )
}
"""The register of samplings, by name."""
_UNCOVERED_SAMPLINGS = {
    "shuffle": "shuffling into equal batches gives away the last bin, so it is not amplified here; use balls_in_bins, "
    "or fixed",
    "poisson_per_epoch": "no accountant is known for a C other than I if examples may take part twice in an epoch, or "
    "not at all; use balls_in_bins, or cyclic_poisson for a banded C",
}


def sampling_of(name: str, *, field: str = "sampling") -> Sampling:
    """Return the sampling that a field names; raise InvalidParameter if it is unknown, or has no accountant here."""
    if not isinstance(name, str) or name not in SAMPLINGS:
        reason = _UNCOVERED_SAMPLINGS.get(str(name), f"use one of {', '.join(SAMPLINGS)}")
        raise InvalidParameter(f"sampling={str(name)[:20]!r} is not supported: {reason}", field=field)
    return SAMPLINGS[name]
