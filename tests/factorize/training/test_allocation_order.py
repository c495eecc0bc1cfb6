"""Random allocation: the law of the draws, the auditor that tells them from kept bins, and a job from end to end."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest
from bin_cases import KEY, auditors, bin_of_each, replay

from factorize import parse_spec
from factorize.accounting import calibrate_bins
from factorize.auditor import ParticipationAuditor
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.solvers import solve
from factorize.training.bin_draws import overflow_probability
from factorize.training.bins import TAU
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins, random_allocation

SPEC = {
    "workload": {"kind": "prefix", "n": 12},
    "participation": {"kind": "fixed_epochs", "epochs": 3},
    "mechanism": {"kind": "identity"},
}


def test_draws_of_all_epochs_are_uniform_and_independent() -> None:
    order = random_allocation(60_000, 3, 3, KEY)
    draws = Counter(zip(*(bin_of_each(order, epoch).tolist() for epoch in range(3)), strict=True))
    assert set(draws) == set(itertools.product(range(3), repeat=3))
    mean = 60_000 / 27
    assert sum((count - mean) ** 2 / mean for count in draws.values()) < 26 + 6 * np.sqrt(52)


def test_every_example_has_one_step_in_each_epoch() -> None:
    order = random_allocation(50, 4, 3, KEY)
    for epoch in range(3):
        steps = [order[4 * epoch + j] for j in range(4)]
        assert sorted(np.concatenate(steps).tolist()) == list(range(50))
        for j, batch in enumerate(steps):
            assert (bin_of_each(order, epoch)[batch] == j).all()
    assert [batch.tolist() for batch in order] == [order[step].tolist() for step in reversed(range(12))][::-1]
    assert order[0].tolist() != balls_in_bins(50, 4, 3, KEY)[0].tolist()  # a key may serve one law, not show another


def test_capacity_is_charged_for_every_epoch() -> None:
    order = random_allocation(1000, 8, 5, KEY, physical_batch=10)
    assert order.capacity is not None and 0 < order.tau <= TAU
    assert order.tau == pytest.approx(5 * overflow_probability(1000, 8, order.capacity), rel=1e-9, abs=0)
    assert max(len(batch) for batch in order) <= order.capacity
    assert {order.micro_batches(step).mask.shape for step in range(40)} == {(order.capacity // 10, 10)}
    with pytest.raises(InvalidParticipation, match="holds more than capacity"):
        for last in range(200):  # the first epoch of some key fits, a later one does not
            random_allocation(100, 4, 6, hashlib.sha256(b"%d" % last).digest(), physical_batch=1, capacity=34)


def test_checkpoints_and_calibrations_of_the_other_law_are_refused() -> None:
    kept, anew = balls_in_bins(40, 4, 3, KEY), random_allocation(40, 4, 3, KEY)
    with pytest.raises(InvalidParameter, match="sampling"):
        anew.check_state(kept.state_dict())
    made = solve(parse_spec(SPEC))
    for order, other in (
        (anew, calibrate_bins(made, epsilon=4.0, delta=1e-5, method="deterministic")),
        (kept, calibrate_bins(made, sampling="random_allocation", epsilon=4.0, delta=1e-5)),
    ):
        with pytest.raises(InvalidParameter, match=f"sampling='{order.sampling}'"):
            order.check_calibration(other, 12)
    with pytest.raises(InvalidParameter, match="12 bins|balls in 4 bins"):
        anew.check_calibration(calibrate_bins(made, sampling="random_allocation", epsilon=4.0, delta=1e-5, bins=12), 12)
    with pytest.raises(
        InvalidParticipation, match="min_sep"
    ):  # where keys become known, steps are not those of an order
        anew.check({"kind": "fixed_epochs", "epochs": 3}, 12)
    anew.check(anew.participation, 12)
    with pytest.raises(InvalidParameter, match="BinsAuditor"):
        ParticipationAuditor.of(calibrate_bins(made, sampling="random_allocation", epsilon=4.0, delta=1e-5), 12)


def test_the_auditor_tells_what_is_not_drawn_anew() -> None:
    kept, order = balls_in_bins(40, 4, 3, KEY), random_allocation(40, 4, 3, KEY)
    with_order, without = auditors(order)
    assert "other steps than the order's" in str(replay(with_order, kept))
    assert "the bin of the epoch before" in str(replay(without, kept))
    other = random_allocation(40, 4, 3, hashlib.sha256(b"another").digest())
    assert "other steps than the order's" in str(replay(auditors(order)[0], other))
    twice = [*(order[step] for step in range(5)), np.append(order[5], order[4][0])]
    assert "twice in one epoch" in str(replay(auditors(order)[1], twice))
    short = [*(order[step] for step in range(7)), order[7][:-1]]
    assert "no step" in str(replay(auditors(order)[1], short))
    assert "examples of the bin are missing" in str(replay(auditors(order)[0], short))
    assert BinsAuditor(4000, 40, 2, sampling="random_allocation").tau > BinsAuditor(4000, 40, 2).tau
    assert "equal" in str(
        replay(BinsAuditor(4000, 40, 2, sampling="random_allocation"), np.arange(4000).reshape(40, 100))
    )
    with pytest.raises(InvalidParameter, match="not balls_in_bins or random_allocation"):
        BinsAuditor(40, 4, 3, sampling="poisson")
    with pytest.raises(InvalidParameter, match="sampling"):
        BinsAuditor(40, 4, 3, key=KEY).load_state_dict(without.state_dict())
