"""Random allocation: the law of the k-subsets, the auditor that holds a job to them, refusals, and a job from end to end."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resumed_job import STEPS, Job, stopped_and_resumed

from factorize import parse_spec
from factorize.accounting.laws.bounded_calibration import calibrate_allocation, calibrate_redrawn
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.solvers import solve
from factorize.training.bins import TAU
from factorize.training.bins_audit import BinsAuditor
from factorize.training.draws.bin_sizes import overflow_probability
from factorize.training.orders import balls_in_bins, random_allocation, redrawn_bins

KEY = hashlib.sha256(b"the tests").digest()
SPEC = {
    "workload": {"kind": "prefix", "n": 12},
    "participation": {"kind": "fixed_epochs", "epochs": 3},
    "mechanism": {"kind": "identity"},
}


def replay(auditor: BinsAuditor, batches: Any) -> str | None:
    try:
        for batch in batches:
            auditor.record(batch)
    except InvalidParticipation as error:
        return str(error)
    return None


def test_every_choice_of_steps_is_as_likely_as_any_other() -> None:
    """All 20 subsets of 3 of 6 steps, by a chi-square statistic of 19 degrees."""
    order = random_allocation(60_000, 2, 3, KEY)
    found = Counter(map(tuple, np.sort(order.steps_of_each(), axis=1).tolist()))
    assert set(found) == set(itertools.combinations(range(6), 3))
    assert sum((count - 3000) ** 2 / 3000 for count in found.values()) < 19 + 6 * np.sqrt(38)


def test_steps_hold_whom_they_were_chosen_by() -> None:
    order = random_allocation(50, 4, 3, KEY)
    own = order.steps_of_each()
    assert len(order) == 12 and (np.diff(np.sort(own, axis=1), axis=1) > 0).all()
    for step, batch in enumerate(order):
        assert batch.tolist() == np.flatnonzero((own == step).any(axis=1)).tolist()
    assert order[0].tolist() != redrawn_bins(50, 4, 3, KEY)[0].tolist()  # a key may serve one law, not show another
    everything = random_allocation(5, 1, 4, KEY)
    assert all(batch.tolist() == list(range(5)) for batch in everything)
    with pytest.raises(InvalidParameter, match="no bin of an epoch"):
        order.bin_of_each()
    with pytest.raises(IndexError):
        order[12]


def test_capacity_is_charged_for_every_step() -> None:
    order = random_allocation(1000, 8, 5, KEY, physical_batch=10)
    assert order.capacity is not None and 0 < order.tau <= TAU
    assert order.tau == pytest.approx(5 * overflow_probability(1000, 8, order.capacity), rel=1e-9)
    assert {order.micro_batches(step).mask.shape for step in range(40)} == {(order.capacity // 10, 10)}
    fullest = max(len(batch) for batch in order)
    random_allocation(1000, 8, 5, KEY, physical_batch=1, capacity=fullest)
    with pytest.raises(InvalidParticipation, match="holds more than capacity"):
        random_allocation(1000, 8, 5, KEY, physical_batch=1, capacity=fullest - 1)


def test_other_laws_and_checkpoints_are_refused() -> None:
    made = solve(parse_spec(SPEC))
    order, target = random_allocation(40, 4, 3, KEY), {"epsilon": 4.0, "delta": 1e-5}
    order.check_calibration(calibrate_allocation(made, **target), 12)
    with pytest.raises(InvalidParameter, match="sampling='random_allocation'"):
        order.check_calibration(calibrate_redrawn(made, **target), 12)
    with pytest.raises(InvalidParameter, match="12 bins|balls in 4 bins"):
        order.check_calibration(calibrate_allocation(made, **target, bins=12), 12)
    for other in (redrawn_bins(40, 4, 3, KEY), balls_in_bins(40, 4, 3, KEY)):
        with pytest.raises(InvalidParameter, match="sampling"):
            order.check_state(other.state_dict())
    with pytest.raises(InvalidParameter, match="another secret key"):
        order.check_state(random_allocation(40, 4, 3, hashlib.sha256(b"another").digest()).state_dict())
    with pytest.raises(InvalidParameter, match="secret_key"):
        random_allocation(40, 4, 3, b"short")
    with pytest.raises(InvalidParameter, match="sampling='random_alloc"):
        BinsAuditor(40, 4, 3, key=KEY, sampling="random_allocation")  # it could not tell who is missing


def test_the_auditor_takes_these_steps_and_no_others() -> None:
    order = random_allocation(40, 4, 3, KEY)
    batches = list(order)
    assert replay(BinsAuditor.of(order), batches) is None
    assert "order's" in str(replay(BinsAuditor.of(order), redrawn_bins(40, 4, 3, KEY)))
    assert "missing" in str(replay(BinsAuditor.of(order), [*batches[:7], batches[7][:-1]]))  # truncated
    outside = np.setdiff1d(np.arange(40), batches[7])[:1]
    assert "order's" in str(replay(BinsAuditor.of(order), [*batches[:7], np.append(batches[7], outside)]))
    first, resumed = BinsAuditor.of(order), BinsAuditor.of(order)
    assert replay(first, batches[:5]) is None and first.covered == ("random_allocation",)
    resumed.load_state_dict(first.state_dict())
    assert replay(resumed, batches[5:]) is None and resumed.step == 12


def test_a_job_from_a_file_restarts_to_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "factors.safetensors"
    solve(parse_spec(SPEC)).save(path)

    def job() -> Job:
        return Job(path, random_allocation(40, 4, 3, KEY, physical_batch=5), "random_allocation")

    assert stopped_and_resumed(job, 6).batches.step == STEPS
