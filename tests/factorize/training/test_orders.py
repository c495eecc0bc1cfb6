"""Orders: which examples are in which step, and whether a participation allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.auditor import ParticipationAuditor, numbered_users
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.training import Order, fixed_order, take_turns
from factorize.training.orders import min_sep_order


@pytest.mark.parametrize("batch", [[-1, 3], [0.5, 1.5], [True, False], [2**64 - 1, 3]])
def test_an_order_holds_positions(batch: list[Any]) -> None:
    with pytest.raises(InvalidParameter, match="integers >= 0"):
        Order([np.array(batch)])


def test_a_fixed_order_repeats_its_batches_and_drops_the_rest() -> None:
    order = fixed_order(10, 3, epochs=2, seed=0)
    assert len(order) == 6
    np.testing.assert_array_equal(order[1], order[4])
    assert len(np.unique(np.concatenate(list(order)))) == 9
    assert order.participation == {"kind": "fixed_epochs", "epochs": 2}
    assert len(fixed_order(10, 3, batches=2)) == 2
    for size, batches in ((0, None), (11, None), (3, 4), (3, 0)):
        with pytest.raises(InvalidParameter, match="full batches"):
            fixed_order(10, size, batches=batches)
    with pytest.raises(InvalidParameter, match="drop or pad"):
        fixed_order(11, 4, remainder="keep")
    with pytest.raises(IndexError):
        order[6]


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3))
def test_the_check_of_one_epoch_is_that_of_all_steps(seed: int, batches: int, epochs: int) -> None:
    """Against the steps of every example written out."""
    generator = np.random.default_rng(seed)
    order = Order([generator.permutation(5)[: generator.integers(1, 4)] for _ in range(batches)], epochs=epochs)
    steps = [[t for t, batch in enumerate(order) if example in batch] for example in range(5)]
    gaps = [b - a for found in steps for a, b in zip(found, found[1:], strict=False)]
    for min_sep in range(1, len(order) + 1):
        participation = {"kind": "min_sep", "min_sep": min_sep, "max_participations": 3}
        allowed = min(gaps, default=min_sep) >= min_sep and max(map(len, steps)) <= 3
        if allowed:
            order.check(participation)
        else:
            with pytest.raises(InvalidParticipation):
                order.check(participation)


@pytest.mark.parametrize(("batches", "epochs"), [([], 1), ([np.array([0])], 0), ([np.array([1, 1])], 1)])
def test_an_order_that_is_none_is_refused(batches: list[np.ndarray], epochs: int) -> None:
    with pytest.raises(InvalidParameter):
        Order(batches, epochs=epochs)


@given(st.integers(0, 10**6), st.lists(st.integers(1, 5), min_size=6, max_size=9), st.booleans())
def test_users_take_turns_through_what_they_have(seed: int, owned: list[int], apart: bool) -> None:
    """Whatever users have: one example a step, each as often as any other of theirs or once less, in the users' order."""
    users = np.random.default_rng(seed).permutation(np.repeat([f"user {i}" for i in range(len(owned))], owned))
    who = numbered_users(users)
    if apart:
        of_users = min_sep_order(len(owned), 2, min_sep=3, steps=17, seed=seed)
    else:
        of_users = fixed_order(len(owned), 4, epochs=7, seed=seed, remainder="pad")
    order = take_turns(of_users, users, seed=seed)
    auditor = ParticipationAuditor(order.participation, len(order), users=users)
    for batch, present in zip(order, of_users, strict=True):
        np.testing.assert_array_equal(who[batch], present)
        auditor.record(batch)
    times = np.bincount(np.concatenate(list(order)), minlength=len(who))
    for user in range(len(owned)):
        assert np.ptp(times[who == user]) <= 1


def test_users_with_one_example_each_have_the_order_of_their_examples() -> None:
    order = fixed_order(9, 4, epochs=2, seed=3)
    for batch, own in zip(order, take_turns(order, range(100, 109)), strict=True):
        np.testing.assert_array_equal(batch, own)
    with pytest.raises(InvalidParameter, match="and the examples are of 5 users"):
        take_turns(order, [0, 1, 2, 3, 4])
