"""Runs of one seed and several factorizations: neither their noise nor their secret batches may be the same.

Two runs compose as if their draws were independent; with one draw for both, each batch has the noise of both against it.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from factorize.adapters.jobs import FactorSource, plan
from factorize.samplings import SAMPLINGS
from factorize.solvers import solve
from factorize.training.job import JobBatching, JobData, JobNoise, JobPrivacy, TrainingJob

EXAMPLES, SIZE, SEED = 400, 100, 7 << 100
SECRET = [name for name, law in SAMPLINGS.items() if law.drawn and law.trained_as == name]


def first_batch(sampling: str, epochs: int, seed: int = SEED) -> list[int]:
    source = FactorSource(
        "auto", lambda steps: {"kind": "prefix", "n": steps}, bands=1 if "bins" not in sampling else None, solve=solve
    )
    batching = JobBatching(size=SIZE, epochs=epochs, sampling=sampling, overflow="unlimited")
    job = TrainingJob(
        JobData(examples=EXAMPLES),
        batching,
        JobPrivacy(epsilon=4.0, delta=1e-5),
        JobNoise(source=source, seed=seed),
    )
    return sorted(np.asarray(plan(job, (sampling,)).order[0]).tolist())


@pytest.mark.parametrize("sampling", SECRET)
def test_one_seed_draws_other_batches_for_another_factorization(sampling: str) -> None:
    drawn = [first_batch(sampling, epochs) for epochs in (2, 3)] + [first_batch(sampling, 2, SEED + 1)]
    for one, other in combinations(drawn, 2):
        assert one != other and 2 * len({*one} & {*other}) < len(one), "they share a quarter of their examples"
    assert first_batch(sampling, 2) == drawn[0]
