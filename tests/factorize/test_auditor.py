"""The auditor refuses every order that its participation excludes, against a count by hand; the helpers conform."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.accounting.amplification import AmplifiedCalibration
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.factors.sensitivity import Sensitivity
from factorize.privacy import PrivacyTarget, calibrate
from factorize.training.auditor import ParticipationAuditor
from factorize.training.orders import Order, fixed_order, min_sep_order
from factorize.training.sampling import CyclicPoisson

N = 12
SINGLE = {"kind": "single"}
EPOCHS = {"kind": "fixed_epochs", "epochs": 3}
MIN_SEP = {"kind": "min_sep", "min_sep": 4, "max_participations": 2}


def amplified(groups: int = 4, probability: float = 0.3, steps: int = N) -> AmplifiedCalibration:
    participation = {"kind": "min_sep", "min_sep": groups, "max_participations": -(-steps // groups)}
    plain = calibrate(Sensitivity(1.0, "exact", "by hand", participation), PrivacyTarget(mu=1.0), divisor=4)
    return AmplifiedCalibration(
        **vars(plain),
        sampling_probability=probability,
        groups=groups,
        compositions=-(-steps // groups),
        largest_column=1.0,
        dataset_size=1000,
        batch_size=round(1000 // groups * probability),
    )


def allowed(participation: dict, steps: list[int]) -> bool:
    """By hand: may one example take part in exactly these steps?"""
    gaps = [b - a for a, b in combinations(steps, 2)]
    if participation["kind"] == "single":
        return len(steps) <= 1
    if participation["kind"] == "fixed_epochs":
        return all(gap % (N // participation["epochs"]) == 0 for gap in gaps)
    return len(steps) <= participation["max_participations"] and all(gap >= participation["min_sep"] for gap in gaps)


def accepts(auditor: ParticipationAuditor, batches: Iterable[Iterable[int]]) -> bool:
    try:
        for batch in batches:
            auditor.record(np.array(list(batch), dtype=int))
    except InvalidParticipation:
        return False
    return True


@pytest.mark.parametrize("participation", [SINGLE, EPOCHS, MIN_SEP])
@given(steps=st.lists(st.sets(st.integers(0, N - 1), max_size=4), min_size=1, max_size=5))
def test_agrees_with_a_count_by_hand(participation, steps):
    batches = [[i for i, mine in enumerate(steps) if t in mine] for t in range(N)]
    expected = all(allowed(participation, sorted(mine)) for mine in steps)
    assert accepts(ParticipationAuditor(participation, N), batches) == expected
    try:
        Order(batches).check(participation, N)
    except InvalidParticipation:
        assert not expected
    else:
        assert expected


class TestRecord:
    def test_refuses_names_and_does_not_record(self):
        auditor = ParticipationAuditor(MIN_SEP, N)
        for batch in ([0, 7], [1], [2]):
            auditor.record(batch)
        before = auditor.state_dict()
        with pytest.raises(InvalidParticipation, match=r"3 apart, below min_sep=4 \(example 7\)"):
            auditor.record([4, 7])
        assert auditor.step == 3 and all(np.array_equal(before[key], auditor.state_dict()[key]) for key in before)
        auditor.record([4])
        auditor.record([7])
        assert auditor.most == 2 and auditor.closest == 4

    def test_no_step_past_n(self):
        auditor = ParticipationAuditor(SINGLE, 1)
        auditor.record([])
        with pytest.raises(InvalidParticipation, match="past n=1"):
            auditor.record([])

    def test_an_example_twice_in_one_step(self):
        with pytest.raises(InvalidParticipation, match="example 3 2 times"):
            ParticipationAuditor(EPOCHS, N).record([3, 1, 3])

    def test_users(self):
        auditor = ParticipationAuditor(MIN_SEP, N, users=["ann", "bob", "ann", "cy"])
        auditor.record([0, 1])
        assert auditor.refusal(2) == "two steps of one example are 1 apart, below min_sep=4" and not auditor.refusal(3)
        with pytest.raises(InvalidParticipation, match="user of example 0"):
            auditor.record([2])
        with pytest.raises(InvalidParticipation, match="per user"):
            ParticipationAuditor(MIN_SEP, N, users=["ann", "bob", "ann"]).record([0, 2])
        with pytest.raises(InvalidParameter, match="example 9 has no user"):
            auditor.record([9])

    def test_groups_other_than_those_that_a_calibration_counts_on(self):
        counted = amplified()
        ParticipationAuditor.of(counted, N).check_calibration(counted, N)
        for groups in (None, 2):
            auditor = ParticipationAuditor(counted.sensitivity.participation, N, groups=groups)
            with pytest.raises(InvalidParameter):
                auditor.check_calibration(counted, N)

    def test_groups_of_cyclic_sampling(self):
        auditor = ParticipationAuditor.of(amplified(), N)
        for batch in ([0], [1], [2], [3]):
            auditor.record(batch)
        with pytest.raises(InvalidParticipation, match=r"modulo 4 \(an example\)"):
            auditor.record([1])  # it moves to group 0, three steps later

    @pytest.mark.parametrize("wrong", [[-1], [0.5], ["a"]])
    def test_what_is_no_index(self, wrong):
        with pytest.raises(InvalidParameter, match="integers"):
            ParticipationAuditor(SINGLE, N).record(wrong)

    def test_unknown_participation(self):
        with pytest.raises(InvalidParameter, match="docs/spec.md"):
            ParticipationAuditor({"kind": "poisson"}, N)


class TestCheckpoint:
    def test_goes_on_where_it_stopped(self):
        order = fixed_order(20, 5, epochs=3)
        auditor, resumed = ParticipationAuditor(EPOCHS, N), ParticipationAuditor(EPOCHS, N)
        for step in range(7):
            auditor.record(order[step])
        resumed.load_state_dict(auditor.state_dict())
        with pytest.raises(InvalidParticipation):  # a loader that starts again after a restart
            resumed.record(order[0])
        for step in range(7, N):
            resumed.record(order[step])
        assert resumed.most == 3 and resumed.closest == 4

    def test_of_another_run(self):
        state = ParticipationAuditor(EPOCHS, N).state_dict()
        with pytest.raises(InvalidParameter, match="participation"):
            ParticipationAuditor(MIN_SEP, N).load_state_dict(state)
        with pytest.raises(InvalidParameter, match="unit is example, but here it is user"):
            ParticipationAuditor(EPOCHS, N, users=["a", "b"]).load_state_dict(state)
        earlier = {key: value for key, value in state.items() if key != "unit"}  # did not state it
        ParticipationAuditor(EPOCHS, N, users=["a", "b"]).load_state_dict(earlier)

    def test_damaged(self):
        auditor = ParticipationAuditor(EPOCHS, N)
        auditor.record([0, 1])
        for damage in ({"last": np.array([5, 0])}, {"count": np.zeros(2, int)}):
            with pytest.raises(InvalidParameter, match="damaged"):
                ParticipationAuditor(EPOCHS, N).load_state_dict({**auditor.state_dict(), **damage})
        for step in range(1, 5):
            auditor.record([0] if step == 4 else [step + 1])
        whole = auditor.state_dict()
        assert (whole["most"], whole["closest"], whole["period"]) == (2, 4, 4)
        for name, wrong in (
            ("most", (1, 3, None, "2")),
            ("closest", (None, 0, -4, "4", 4.0, N)),
            ("period", (None, 0, 3, 8, True)),
            ("last", (None, ["a"] * len(whole["last"]))),
        ):
            for value in wrong:
                with pytest.raises(InvalidParameter, match="damaged"):
                    ParticipationAuditor(EPOCHS, N).load_state_dict({**whole, name: value})
        with pytest.raises(InvalidParameter, match="damaged"):
            ParticipationAuditor(EPOCHS, N).load_state_dict({**whole, "count": whole["count"].clip(max=1)})
        listed = {name: value.tolist() if name in ("last", "count") else value for name, value in whole.items()}
        ParticipationAuditor(EPOCHS, N).load_state_dict(listed)
        for step in (-1, N + 1, True, None):
            with pytest.raises(InvalidParameter, match=f"outside 0..{N}"):
                ParticipationAuditor(EPOCHS, N).load_state_dict({**auditor.state_dict(), "step": step})


class TestOrders:
    @given(examples=st.integers(1, 60), size=st.integers(1, 12), epochs=st.integers(1, 4))
    def test_padding_uses_every_example_in_every_epoch(self, examples, size, epochs):
        order = fixed_order(examples, size, epochs=epochs, seed=1, remainder="pad")
        assert len(order) == epochs * -(-examples // size)
        counts = np.bincount(np.concatenate(list(order)), minlength=examples)
        assert (counts == epochs).all()
        assert accepts(ParticipationAuditor(order.participation, len(order)), order)

    @given(per_group=st.integers(1, 9), size=st.integers(1, 4), apart=st.integers(1, 5), steps=st.integers(1, 40))
    def test_min_sep(self, per_group, size, apart, steps):
        examples = apart * (per_group + size) - 1
        if examples // apart < size:
            return
        order = min_sep_order(examples, size, min_sep=apart, steps=steps, seed=3)
        assert len(order) == steps and all(len(batch) == size for batch in order)
        order.check(order.participation)
        auditor = ParticipationAuditor(order.participation, steps)
        assert accepts(auditor, order)
        assert auditor.most <= order.participation.get("max_participations", 1)

    def test_min_sep_shuffles_again(self):
        order = min_sep_order(20, 2, min_sep=2, steps=20, seed=0)
        assert {frozenset(order[0]), frozenset(order[2])} != {frozenset(order[10]), frozenset(order[12])}
        with pytest.raises(InvalidParameter, match="smaller batches"):
            min_sep_order(20, 6, min_sep=4, steps=20, seed=0)

    def test_an_order_made_for_another_participation(self):
        with pytest.raises(InvalidParticipation):
            Order([np.array([0]), np.array([0])], participation=SINGLE).check(SINGLE)


class TestCyclicPoisson:
    def test_samples_each_group_with_the_probability(self):
        order = CyclicPoisson(4000, amplified(steps=200), steps=200, seed=11 << 64)
        assert accepts(ParticipationAuditor.of(amplified(steps=200), 200), order)
        counts = np.bincount(np.concatenate(list(order)), minlength=4000)  # 50 tries each
        assert counts.mean() == pytest.approx(15, abs=5 * np.sqrt(50 * 0.21 / 4000))
        assert counts.var() == pytest.approx(50 * 0.21, rel=0.1)
        assert (order[5] % 4 == 1).all() and np.array_equal(order[5], order[5]) and len(order) == 200
        assert not np.array_equal(order[5], order[9])

    def test_check(self):
        order = CyclicPoisson(40, amplified(), steps=N, seed=1 << 64)
        order.check(order.participation, N)
        for wrong in (
            SINGLE,
            EPOCHS,
            {**order.participation, "min_sep": 5},
            {**order.participation, "max_participations": 2},
        ):
            with pytest.raises(InvalidParticipation):
                order.check(wrong)
        with pytest.raises(InvalidParticipation, match="solve for n="):
            order.check(order.participation, N - 1)

    def test_needs_a_calibration_that_counts_on_it(self):
        with pytest.raises(InvalidParameter, match="is not for sampling='cyclic_poisson'"):
            CyclicPoisson(40, Sensitivity(1.0, "exact", "by hand", SINGLE), steps=N, seed=1 << 64)
        with pytest.raises(InvalidParameter, match="examples=3 .* >= 4"):
            CyclicPoisson(3, amplified(), steps=N, seed=1 << 64)


@pytest.mark.parametrize("kind", [lambda i: ("site", i), lambda i: f"u{i}", lambda i: i / 2, lambda i: frozenset([i])])
def test_users_of_any_kind_are_told_apart(kind):
    """numpy reads a list of pairs as rows of a matrix, whose entries are nobody."""
    auditor = ParticipationAuditor(SINGLE, N, users=[kind(i % 2) for i in range(6)])
    auditor.record([0, 3])
    with pytest.raises(InvalidParticipation, match="the user of example 0"):
        auditor.record([4])


@pytest.mark.parametrize("users", [[1, "1"], ["1", 1.0], [2**53 + 1, 2.0**53], ["a", "a\0"], [b"a", "a"]])
def test_users_that_are_not_equal_stay_apart(users):
    """In one array of numpy the two would be one user."""
    auditor = ParticipationAuditor(SINGLE, N, users=[*users, users[0]])
    auditor.record([0, 1])
    assert auditor.refusal(2) is not None


@pytest.mark.parametrize("users", [[1, 1.0, True], np.array([7, 7, 7]), np.array(["a", "a", "a"], dtype=object)])
def test_users_that_are_equal_are_one(users):
    with pytest.raises(InvalidParticipation, match="3 times"):
        ParticipationAuditor(SINGLE, N, users=users).record([0, 1, 2])


@pytest.mark.parametrize(
    "users", [np.zeros((3, 2)), [[1], [2]], [float("nan"), None], np.array([np.nan]), np.array("ab"), "ab"]
)
def test_users_that_are_nobody_are_refused(users):
    with pytest.raises(InvalidParameter) as caught:
        ParticipationAuditor(SINGLE, N, users=users)
    assert caught.value.field == "users"


def test_sampling_amplifies_for_examples_not_for_users_with_several():
    """Three examples of one user in a group are sampled three times as often as the accounting counts on."""
    with pytest.raises(InvalidParameter, match="several examples") as caught:
        ParticipationAuditor(MIN_SEP, N, users=["ann", "bob", "cy", "ann"], groups=3)
    assert caught.value.field == "users"
    ParticipationAuditor(MIN_SEP, N, users=["ann", "bob", "cy", "dee"], groups=3).record([0, 3])
