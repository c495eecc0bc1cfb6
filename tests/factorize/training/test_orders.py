"""Orders: which examples are in which step, and whether a participation allows it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.accounting.amplification import AmplifiedCalibration
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.factors.sensitivity import Sensitivity
from factorize.privacy import PrivacyTarget, calibrate
from factorize.training import Order, fixed_order, take_turns
from factorize.training.auditor import Auditor, ParticipationAuditor, numbered_users
from factorize.training.batches import Batches
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins, min_sep_order, random_allocation
from factorize.training.sampling import BMinSep, CyclicPoisson


@pytest.mark.parametrize("batch", [[-1, 3], [0.5, 1.5], [True, False], [2**64 - 1, 3]])
def test_an_order_holds_positions(batch: list[Any]) -> None:
    with pytest.raises(InvalidParameter, match="integers from 0"):
        Order([np.array(batch)])


def test_a_fixed_order_repeats_its_batches_and_drops_the_rest() -> None:
    order = fixed_order(10, 3, epochs=2, seed=0)
    assert len(order) == 6
    np.testing.assert_array_equal(order[1], order[4])
    assert len(np.unique(np.concatenate(list(order)))) == 9
    assert order.participation == {"kind": "fixed_epochs", "epochs": 2}
    assert len(fixed_order(10, 3, batches=2)) == 2
    for size, batches, said in (
        (0, None, "not an integer"),
        (11, None, "from 1 to"),
        (3, 4, "from 1 to"),
        (3, 0, "not an"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            fixed_order(10, size, batches=batches)
    with pytest.raises(InvalidParameter, match="'keep' is not one of drop, pad"):
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
    with pytest.raises(InvalidParameter, match="make an order of 5 users"):
        take_turns(order, [0, 1, 2, 3, 4])


STEPS, GROUPS, KEEPERS = 24, 3, 30


def drawn(kind: str, seed: int, users: np.ndarray) -> tuple[Batches, Auditor]:
    """Return a secret order of users, and the auditor that is told of their examples."""
    if kind in ("balls_in_bins", "random_allocation"):
        make = balls_in_bins if kind == "balls_in_bins" else random_allocation
        order = make(KEEPERS, GROUPS, STEPS // GROUPS, sha256(bytes([seed])).digest(), physical_batch=4)
        return order, BinsAuditor.of(order, users=users)
    participation = {"kind": "min_sep", "min_sep": GROUPS, "max_participations": STEPS // GROUPS}
    plain = calibrate(Sensitivity(1.0, "exact", "by hand", participation), PrivacyTarget(mu=1.0))
    sizes = {"dataset_size": KEEPERS, "batch_size": 4, "compositions": STEPS // GROUPS, "largest_column": 1.0}
    noise = AmplifiedCalibration(**vars(plain), groups=GROUPS, sampling_probability=0.4, **sizes)
    law = {"cyclic_poisson": CyclicPoisson, "b_min_sep": type("Drawn", (BMinSep,), {"_fits": lambda *_: True})}[kind]
    groups = GROUPS if kind == "cyclic_poisson" else 1
    order = law(KEEPERS, noise, steps=STEPS, seed=2**100 + seed)
    return order, ParticipationAuditor(participation, STEPS, users=users, groups=groups, draws_users=True)


@pytest.mark.parametrize("kind", ["cyclic_poisson", "b_min_sep", "balls_in_bins", "random_allocation"])
def test_users_are_drawn_by_the_law_of_the_order_and_give_an_example_that_follows_from_the_step(kind: str) -> None:
    """So that nothing but the law's own draws is secret: under two secrets a user gives a step the same example."""
    users = np.random.default_rng(5).permutation(np.repeat(np.arange(KEEPERS), 1 + np.arange(KEEPERS) % 4))
    who, given_to = numbered_users(users), dict[tuple[int, int], int]()
    for seed in (1, 2, 3):
        of_users, auditor = drawn(kind, seed, users)
        order = take_turns(of_users, users, seed=7)
        assert (order.sampling, order.drawn, order.participation) == (kind, True, of_users.participation)
        for step, batch in enumerate(order):
            np.testing.assert_array_equal(who[batch], of_users[step])
            auditor.record(batch)
            assert all(given_to.setdefault((step, user), i) == i for user, i in zip(who[batch], batch, strict=True))
            if order.physical_batch is not None:
                indices, mask = order.micro_batches(step)
                np.testing.assert_array_equal(indices[mask], batch)
                assert not indices[~mask].any()
        assert auditor.unit == "user" and order.used(len(users)) == len(users)
        _, other = drawn(kind, seed, users)
        twice = np.flatnonzero(who == who[np.argmax(np.bincount(who)[who])])[:2]
        with pytest.raises(InvalidParticipation):
            other.record(twice)
    for user in range(KEEPERS):  # one example after the other, each in a period of its own
        turns = {step // GROUPS: i for (step, own), i in given_to.items() if own == user}
        count = np.count_nonzero(who == user)
        assert all((i == j) == ((s - t) % count == 0) for s, i in turns.items() for t, j in turns.items())
