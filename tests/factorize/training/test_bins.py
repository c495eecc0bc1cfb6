"""Balls in bins and random allocation: the law of the draws, what is secret, room in the parts, and the auditor that holds a job to it."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import pickle
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bin_cases import KEY, bin_of_each
from hypothesis import given
from hypothesis import strategies as st
from private_cases import BinsNoise
from specs import solved
from training_cases import UnitNoise

import factorize
from factorize.accounting import calibrate_bins
from factorize.client import load
from factorize.errors import InvalidParameter, InvalidParticipation, UnsupportedAdjacency
from factorize.factors.factorization import Factorization
from factorize.factors.sensitivity import Sensitivity
from factorize.format.manifest import Manifest
from factorize.privacy import check_own
from factorize.privacy.adjacency import Adjacency
from factorize.training.auditor import ParticipationAuditor
from factorize.training.batches import AuditedBatches
from factorize.training.bin_draws import (
    capacity_for,
    derived_key,
    draw_bins,
    equal_sizes_probability,
    overflow_probability,
    regularity,
)
from factorize.training.bins_audit import BinsAuditor, RegularBins
from factorize.training.bins_order import TAU, BallsInBins
from factorize.training.orders import balls_in_bins, fixed_order, random_allocation
from papers.training.private_sums import PrivateSums

OTHER = hashlib.sha256(b"another").digest()


def noise(bins: int = 4, epochs: int = 3, adjacency: Adjacency = Adjacency.ZERO_OUT, **more) -> BinsNoise:
    participation = {"kind": "fixed_epochs", "epochs": epochs}
    return BinsNoise(
        noise_multiplier=1.0,
        sigma_of_sums=1.0,
        sensitivity=Sensitivity(1.0, "exact", "by hand", participation),
        clip_norm=1.0,
        adjacency=adjacency,
        epsilon=1.0,
        delta=1e-6,
        rho=0.5,
        mu=1.0,
        divisor=4,
        **{"bins": bins, **more},
    )


def replay(auditor: BinsAuditor, batches: Iterable[Iterable[int]]) -> str | None:
    """Return why the auditor stopped, None if it took all."""
    try:
        for batch in batches:
            auditor.record(batch)
    except InvalidParticipation as error:
        return str(error)
    return None


def auditors(order: BallsInBins) -> list[BinsAuditor]:
    """One that has the order, and one that learns the bins and hides them by a key."""
    sizes = order.examples, order.bins, order.epochs
    return [BinsAuditor.of(order), BinsAuditor(*sizes, key=KEY, sampling=order.sampling)]


def chi_square_z(counts: np.ndarray) -> float:
    """Standard score of a chi-square statistic of equally likely cells."""
    mean, degrees = counts.sum() / counts.size, counts.size - 1
    return float((((counts - mean) ** 2).sum() / mean - degrees) / math.sqrt(2 * degrees))


class TestLaw:
    """Keys are fixed, so that nothing here can fail by chance."""

    def test_rejection_is_exact_where_half_of_the_words_are_rejected(self):
        bins = 2**63 - 1  # two multiples of it fit into 64 bits, and two words are left over
        odd = 3 * 2**61  # a quarter of all words is rejected; modulo alone would favour the lower third
        drawn = draw_bins(KEY, 60_000, odd)
        assert abs(chi_square_z(np.bincount(drawn // 2**61, minlength=3))) < 3
        assert draw_bins(KEY, 9, bins).max() < bins

    def test_is_what_the_documentation_says(self):
        """By hand: SHAKE-128 of domain, key, bins, block and attempt, 64 bits little-endian for each example."""
        framed = (32).to_bytes(8, "little") + KEY
        message = b"factorize balls in bins 1\0draw" + framed + (10).to_bytes(8, "little") + bytes(16)
        stream = hashlib.shake_128(message).digest(8 * 65536)
        by_hand = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") % 10 for i in range(100)]
        assert draw_bins(KEY, 100, 10).tolist() == by_hand

    def test_more_examples_and_later_blocks_change_nobody(self):
        whole = draw_bins(KEY, 200_000, 9)
        assert np.array_equal(whole[:70_001], draw_bins(KEY, 70_001, 9))
        assert not np.array_equal(whole[:65_536], whole[65_536:131_072])

    @given(examples=st.integers(1, 60), bins=st.integers(1, 9), epochs=st.integers(1, 4))
    def test_steps_of_each_example_are_one_residue_class(self, examples, bins, epochs):
        order = balls_in_bins(examples, bins, epochs, KEY)
        assert len(order) == bins * epochs == len(list(order))
        found = [[t for t, batch in enumerate(order) if i in batch] for i in range(examples)]
        drawn = draw_bins(KEY, examples, bins)
        assert found == [[int(drawn[i]) + bins * e for e in range(epochs)] for i in range(examples)]
        assert np.array_equal(bin_of_each(order), drawn)
        order.check(order.participation)


class TestSecrecy:
    def test_nothing_public_shows_key_or_bins(self):
        order = balls_in_bins(50, 5, 2, KEY)
        shown = repr(order) + str(order) + json.dumps(order.state_dict())
        assert KEY.hex() not in shown and repr(KEY)[2:-1] not in shown and str(bin_of_each(order)) not in shown
        assert set(order.state_dict()) == {"sampling", "examples", "bins", "epochs", "commitment"}
        for copying in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InvalidParameter, match="would show its key"):
                copying(order)
        with pytest.raises(TypeError):
            json.dumps(order)
        with pytest.raises(TypeError):
            vars(order)

    def test_default_keys_differ(self):
        assert balls_in_bins(9, 3, 1).commitment != balls_in_bins(9, 3, 1).commitment

    @pytest.mark.parametrize(
        "key",
        [bytes(32), b"short", "a text, which is no bytes", 12345678901234567890, (7).to_bytes(32, "big"), b"ab" * 16],
    )
    def test_a_key_that_cannot_be_secret(self, key):
        with pytest.raises(InvalidParameter, match="token_bytes") as caught:
            balls_in_bins(10, 2, 1, key)
        assert caught.value.field == "secret_key"

    @pytest.mark.parametrize("end", ["little", "big"])
    def test_the_public_seed(self, end):
        with pytest.raises(InvalidParameter, match="public seed"):
            balls_in_bins(10, 2, 1, KEY, public_seed=int.from_bytes(KEY, end))
        balls_in_bins(10, 2, 1, KEY, public_seed=0)

    def test_a_restart_is_held_to_the_key(self):
        state = balls_in_bins(50, 5, 2, KEY).state_dict()
        balls_in_bins(50, 5, 2, KEY).check_state(state)
        with pytest.raises(InvalidParameter, match="another secret key.*of a private job: with its seed, factors and"):
            balls_in_bins(50, 5, 2, OTHER).check_state(state)
        with pytest.raises(InvalidParameter, match="bins is 5, but here it is 6"):
            balls_in_bins(50, 6, 2, KEY).check_state(state)


class TestDerivedKey:
    def test_is_a_function_of_seed_and_factorization(self):
        seed = 1 << 100
        assert len(derived_key(seed, "a")) == 32
        assert len({derived_key(s, d) for s in (seed, seed + 1, seed << 1) for d in ("a", "b")}) == 6

    @pytest.mark.parametrize("seed", [0, 11, (1 << 64) - 1, -(1 << 100), True, 1.5, "text"])
    def test_refuses_what_can_be_guessed(self, seed):
        with pytest.raises(InvalidParameter, match="randbits") as caught:
            derived_key(seed, "digest")
        assert caught.value.field == "seed"


class TestAuditedBatches:
    def batches(self, physical: int | None = 4, key: bytes = KEY) -> AuditedBatches:
        order = balls_in_bins(60, 5, 2, key, physical_batch=physical)
        return AuditedBatches(order, BinsAuditor.of(order))

    def test_hands_out_each_step_once_and_goes_on(self):
        whole = [parts.indices[parts.mask].tolist() for parts in self.batches()]
        assert whole == [batch.tolist() for batch in balls_in_bins(60, 5, 2, KEY)]
        started, resumed = self.batches(), self.batches()
        for _ in zip(range(3), started, strict=False):
            pass
        resumed.load_state_dict(started.state_dict())
        rest = [parts.indices[parts.mask].tolist() for parts in resumed]
        assert rest == whole[3:]
        with pytest.warns(UserWarning, match="all 10 steps of this run were taken, so no batch is left"):
            assert list(resumed) == []
        with pytest.raises(InvalidParameter, match="another secret key"):
            self.batches(key=OTHER).load_state_dict(started.state_dict())

    @pytest.mark.parametrize(("physical", "shape"), [(None, (1, 7)), (3, (3, 3)), (7, (1, 7))])
    def test_fixed_orders_have_equal_parts_too(self, physical, shape):
        order = fixed_order(20, 7, epochs=2, remainder="pad")
        batches = AuditedBatches(order, ParticipationAuditor(order.participation, len(order)), physical=physical)
        found = list(batches)
        assert {parts.mask.shape for parts in found} == {shape} and batches.step == len(batches) == 6
        assert [parts.indices[parts.mask].tolist() for parts in found] == [batch.tolist() for batch in order]

    def test_the_audit_comes_first(self):
        order = balls_in_bins(60, 5, 2, KEY, physical_batch=4)
        mixed = AuditedBatches(order, BinsAuditor.of(balls_in_bins(60, 5, 2, OTHER)))
        with pytest.raises(InvalidParticipation):
            next(iter(mixed))

    def test_needs_a_physical_batch(self):
        with pytest.raises(InvalidParameter, match="physical_batch"):
            self.batches(physical=None)
        with pytest.raises(InvalidParameter, match="physical_batch_size=0"):
            order = fixed_order(20, 5)
            AuditedBatches(order, ParticipationAuditor(order.participation, 4), physical=0)


class TestRoom:
    @pytest.mark.parametrize(("examples", "bins", "capacity"), [(44, 5, 20), (300, 7, 80), (30, 2, 25), (6, 3, 5)])
    def test_overflow_is_the_exact_tail(self, examples, bins, capacity):
        tail = sum(math.comb(examples, k) * (bins - 1) ** (examples - k) for k in range(capacity + 1, examples + 1))
        exact = bins * Fraction(tail, bins**examples)
        bound = overflow_probability(examples, bins, capacity)
        assert exact <= Fraction(bound) <= exact * Fraction(1 + 1e-9)

    def test_overflow_at_its_ends(self):
        assert overflow_probability(10, 3, 10) == 0 and overflow_probability(10, 1, 9) == 1
        assert overflow_probability(10**6, 4, 10) == 1
        assert 0 < overflow_probability(10**9, 256, 3_950_000) < 1e-30

    def test_capacity_is_the_smallest(self):
        capacity = capacity_for(60_000, 256, physical_batch=32, tau=2.0**-50)
        assert (
            overflow_probability(60_000, 256, capacity) <= 2.0**-50 < overflow_probability(60_000, 256, capacity - 32)
        )
        order = balls_in_bins(60_000, 256, 1, KEY, physical_batch=32)
        assert order.capacity == capacity and order.tau == overflow_probability(60_000, 256, capacity)
        assert order.extra_delta(8.0) == pytest.approx((1 + math.exp(8)) * order.tau, rel=1e-12, abs=0)

    def test_parts_are_equal_in_every_step_and_hold_the_batch(self):
        order = balls_in_bins(100, 7, 2, KEY, physical_batch=6)
        assert order.capacity is not None
        for step in range(len(order)):
            indices, mask = order.micro_batches(step)
            assert indices.shape == mask.shape == (order.capacity // 6, 6)
            assert np.array_equal(indices[mask], order[step]) and (indices[~mask] == 0).all()

    def test_unlimited_parts_follow_the_size(self):
        order = balls_in_bins(100, 7, 1, KEY, physical_batch=6, overflow="unlimited")
        assert order.tau == 0 and order.capacity is None and order.extra_delta(1.0) == 0
        assert {len(order.micro_batches(t).mask) for t in range(7)} == {-(-len(batch) // 6) for batch in order}

    def test_a_key_that_overflows_is_refused_before_any_step(self):
        with pytest.raises(InvalidParticipation, match="probability tau=1"):
            balls_in_bins(100, 7, 1, KEY, physical_batch=5, capacity=15)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"physical_batch": 0},
            {"physical_batch": 4, "capacity": 6},
            {"capacity": 8},
            {"physical_batch": 4, "capacity": 8, "overflow": "unlimited"},
            {"overflow": "truncate"},
            {"overflow": "drop"},
        ],
    )
    def test_settings_that_cannot_work(self, wrong):
        with pytest.raises(InvalidParameter):
            balls_in_bins(10, 2, 1, KEY, **wrong)
        with pytest.raises(InvalidParameter, match="integer >= 1"):
            balls_in_bins(10, 0, 1, KEY)

    def test_no_parts_without_their_size(self):
        with pytest.raises(InvalidParameter, match="physical_batch"):
            balls_in_bins(10, 2, 1, KEY).micro_batches(0)


class TestCalibration:
    def test_is_held_to_bins_epochs_and_adjacency(self):
        order = balls_in_bins(40, 4, 3, KEY)
        order.check_calibration(noise(), 12)
        for wrong, error in (
            (noise(bins=5), InvalidParameter),
            (noise(sampling="cyclic_poisson"), InvalidParameter),
            (noise(epochs=2), InvalidParticipation),
            (noise(adjacency=Adjacency.REPLACE_ONE), UnsupportedAdjacency),
        ):
            with pytest.raises(error):
                order.check_calibration(wrong, 12)
        with pytest.raises(InvalidParticipation):
            order.check_calibration(noise(), 16)
        longer = {"kind": "balls_in_bins", "bins": 4, "epochs": 4}  # n = 14: the last epoch is shorter
        order.check(longer, 14)
        for wrong, n in (({**longer, "bins": 5}, 14), (longer, 11), ({"kind": "min_sep", "min_sep": 4}, 12)):
            with pytest.raises(InvalidParticipation, match="solve for n=12"):
                order.check(wrong, n)
        with pytest.raises(InvalidParameter, match="bare Sensitivity"):
            order.check_calibration(Sensitivity(1.0, "exact", "by hand", {"kind": "single"}), 12)

    def test_another_auditor_does_not_take_it(self):
        with pytest.raises(InvalidParameter, match="BinsAuditor"):
            ParticipationAuditor.of(noise(), 12)


ORDER = balls_in_bins(60, 5, 2, KEY)
LEAST = min(len(batch) for batch in ORDER)
_RNG = np.random.default_rng(0)
NO_BINS = [
    ([*balls_in_bins(60, 5, 1, KEY), *balls_in_bins(60, 5, 1, OTHER)], "new bins in each epoch"),
    ([part for _ in range(2) for part in np.array_split(_RNG.permutation(60), 5)], "shuffle=True"),
    ([batch[:LEAST] for batch in ORDER], "truncated|drop_last"),  # as a loader with a fixed batch does
    ([batch[: LEAST if t >= 5 else None] for t, batch in enumerate(ORDER)], "truncated|drop_last"),
    ([np.flatnonzero(_RNG.random(60) < 0.2) for _ in range(10)], "twice in one epoch"),  # Poisson
]


class TestAuditor:
    @pytest.mark.parametrize("draw", [balls_in_bins, random_allocation])
    @given(examples=st.integers(1, 80), bins=st.integers(1, 6), epochs=st.integers(1, 3), seed=st.integers(0, 99))
    def test_takes_honest_draws(self, draw, examples, bins, epochs, seed):
        order = draw(examples, bins, epochs, hashlib.sha256(b"%d" % seed).digest())
        for auditor in auditors(order):
            assert replay(auditor, order) is None and auditor.step == len(order)
            with pytest.raises(InvalidParticipation, match="past n"):
                auditor.record([])

    @pytest.mark.parametrize(("bins", "epochs", "examples"), [(2, 2, 2), (3, 1, 2), (2, 1, 3)])
    def test_takes_exactly_the_functions_from_examples_to_bins(self, bins, epochs, examples):
        """All sets of steps there are, against the definition."""
        steps = bins * epochs
        subsets = [{t for t in range(steps) if bits >> t & 1} for bits in range(2**steps)]
        classes = [set(range(j, steps, bins)) for j in range(bins)]
        for chosen in itertools.product(subsets, repeat=examples):
            batches = [[i for i, mine in enumerate(chosen) if t in mine] for t in range(steps)]
            taken = replay(BinsAuditor(examples, bins, epochs), batches) is None
            assert taken == all(mine in classes for mine in chosen)

    @pytest.mark.parametrize(("batches", "reason"), NO_BINS, ids=lambda value: value if isinstance(value, str) else "")
    def test_refuses_what_keeps_no_bin(self, batches, reason):
        assert replay(BinsAuditor.of(ORDER), batches)
        for auditor in (BinsAuditor(60, 5, 2), BinsAuditor(60, 5, 2, key=KEY)):
            assert re.search(reason, str(replay(auditor, batches)))

    def test_a_dealt_permutation(self):
        dealt = fixed_order(4000, 100, epochs=2, seed=3)
        auditor = BinsAuditor(4000, 40, 2)
        assert 0 < auditor.tau < 2.0**-64
        assert "a permutation is cut into batches" in str(replay(auditor, dealt))

    def test_a_permutation_dealt_into_few_bins_warns(self):
        """Two equal halves are too likely for a refusal, and 10 equal parts are not what independent bins give."""
        assert replay(BinsAuditor(600, 2, 1), fixed_order(600, 300)) is None
        auditor = BinsAuditor(600, 10, 1)
        assert auditor.tau == 0
        with pytest.warns(RegularBins, match="more equal"):
            assert replay(auditor, fixed_order(600, 60)) is None

    def test_bins_of_the_order_are_never_too_equal(self):
        """An example in each bin, as happens to honest keys now and then: no refusal, nothing to charge."""
        key = next(k for i in range(999) if len(set(draw_bins(k := hashlib.sha256(b"%d" % i).digest(), 3, 3))) == 3)
        order = balls_in_bins(3, 3, 1, key)
        assert BinsAuditor.of(order).tau == 0 and replay(BinsAuditor.of(order), order) is None

    def test_a_divisor_that_is_the_size_of_the_batch(self):
        order = balls_in_bins(60, 5, 2, KEY)
        for auditor in auditors(order):
            auditor.record(order[0], divisor=len(order[0]))
            assert len(order[1]) != len(order[0])
            with pytest.raises(InvalidParticipation, match="for which the noise is calibrated"):
                auditor.record(order[1], divisor=len(order[1]))
            auditor.record(order[1], divisor=len(order[0]))
        with pytest.raises(InvalidParticipation, match="for which the noise is calibrated"):
            BinsAuditor.of(order, divisor=12).record(order[0], divisor=13)

    def test_a_restart_with_another_divisor(self):
        order = balls_in_bins(60, 5, 2, KEY)
        state = BinsAuditor.of(order, divisor=12).state_dict()
        with pytest.raises(InvalidParameter, match="divisor is 12"):
            BinsAuditor.of(order, divisor=13).load_state_dict(state)
        resumed = BinsAuditor.of(order)
        resumed.load_state_dict(state)
        assert resumed.divisor == 12

    def test_is_not_copied(self):
        for auditor in auditors(balls_in_bins(60, 5, 2, KEY)):
            with pytest.raises(InvalidParameter, match="would show its key"):
                pickle.dumps(auditor)

    def test_messages_name_nobody(self):
        order = balls_in_bins(60, 5, 2, KEY)
        auditor = BinsAuditor.of(order)
        with pytest.raises(InvalidParticipation) as caught:
            auditor.record(order[1])
        assert "example " not in str(caught.value).replace("an example ", "") and repr(auditor).count("step=0") == 1
        assert auditor.step == 0

    def test_twice_in_one_step_and_what_is_no_index(self):
        auditor = BinsAuditor(10, 2, 1)
        with pytest.raises(InvalidParticipation, match="twice"):
            auditor.record([3, 3])
        for wrong in ([-1], [0.5], ["a"]):
            with pytest.raises(InvalidParameter, match="integers from 0"):
                auditor.record(wrong)
        with pytest.raises(InvalidParameter, match=r"0\.\.9"):
            auditor.record([10])

    @pytest.mark.parametrize(
        ("sampling", "make"), [("balls_in_bins", balls_in_bins), ("random_allocation", random_allocation)]
    )
    def test_bins_of_another_number_than_the_calibrations(self, sampling, make):
        factors = factorize.solve("prefix", n=12, epochs=3, mechanism="identity")
        calibration = factors.calibrate(epsilon=2.0, delta=1e-5, sampling=sampling, bins=4)
        for bins in (2, 3, 6, 12):  # with fewer bins everybody takes part more often than epsilon counts on
            auditor = BinsAuditor.of(make(24, bins, 12 // bins, KEY))
            with pytest.raises(InvalidParameter, match=r"BinsAuditor\.of\(order\)"):
                factors.noise(calibration, 2, seed=1 << 70, auditor=auditor)
        factors.noise(calibration, 2, seed=1 << 70, auditor=BinsAuditor.of(make(24, 4, 3, KEY))).close()

    def test_sizes(self):
        with pytest.raises(InvalidParameter, match="examples=0 is not an integer >= 1"):
            BinsAuditor(0, 2, 1)
        with pytest.raises(InvalidParameter, match="the order has 60"):
            BinsAuditor(61, 5, 2, order=balls_in_bins(60, 5, 2, KEY))


class TestPrivateSums:
    def test_a_calibration_that_counts_on_sampling_wants_its_order(self):
        for calibration, order in (
            (noise(), fixed_order(40, 10, epochs=3)),
            (noise(bins=5), balls_in_bins(40, 4, 3, KEY)),
            (noise(sampling="cyclic_poisson"), fixed_order(40, 10, epochs=3)),
        ):
            with pytest.raises(InvalidParameter) as caught:
                PrivateSums(UnitNoise(12), calibration).check(order)
            assert caught.value.field == "calibration"


POINTS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32) / 10
STEPS = 12


class Job:
    """Descent on the sums of 40 points in 12 steps, at means of 10."""

    def __init__(self, path: Path, order: Any, sampling: str) -> None:
        factors = load(path)
        delta = 1e-5 - order.extra_delta(4.0)
        scale = factors.calibrate(epsilon=4.0, delta=delta, divisor=10, sampling=sampling)
        order.check_calibration(scale, factors.steps)
        self.noise = factors.noise(scale, 6, seed=1 << 100, auditor="not_looked_at")
        self.batches = AuditedBatches(order, BinsAuditor.of(order, divisor=10))
        self.weights = np.zeros(6, dtype=np.float32)

    def run(self, until: int) -> Job:
        for indices, mask in self.batches:
            total = (POINTS[indices] * mask[..., None]).sum(axis=(0, 1))
            self.weights -= total / 10 + self.noise.next()
            if self.batches.step == until:
                break
        return self


@pytest.mark.parametrize(("sampling", "mechanism"), [("balls_in_bins", "dense"), ("random_allocation", "identity")])
def test_a_job_from_a_file_restarts_to_the_same_bits(tmp_path, sampling, mechanism):
    draw = {"balls_in_bins": balls_in_bins, "random_allocation": random_allocation}[sampling]
    path = tmp_path / "factors.safetensors"
    solved(STEPS, mechanism, 3).save(path)

    def job() -> Job:
        return Job(path, draw(40, 4, 3, KEY, physical_batch=5), sampling)

    whole, part, resumed, drawn = job().run(STEPS), job().run(5), job(), job()
    resumed.noise.load_state_dict(part.noise.state_dict())
    resumed.batches.load_state_dict(part.batches.state_dict())
    resumed.weights = part.weights
    assert np.array_equal(resumed.run(STEPS).weights, whole.weights) and whole.noise.step == STEPS
    released = np.sum([drawn.noise.next() for _ in range(STEPS)], axis=0)
    assert np.allclose(whole.weights, -(3 * POINTS.sum(axis=0) / 10 + released), atol=1e-4)


def test_a_claim_is_for_one_factorization(tmp_path):
    """Equal sensitivity is not enough: two C may have it, and columns that are more or less alike."""
    made = solved(6, "identity")
    scale = calibrate_bins(made, epsilon=4.0, delta=1e-5, method="deterministic")
    check_own(scale, made)
    other = Factorization(made.spec, made.strategy, made.dual, Manifest(made.manifest, digest="0" * 64))
    with pytest.raises(InvalidParameter, match="depends on all of C"):
        check_own(scale, other)
    made.save(tmp_path / "factors.safetensors")
    factors = load(tmp_path / "factors.safetensors")
    factors.noise(scale, 3, seed=1 << 64, auditor="not_looked_at")
    factors.manifest["digest"] = "0" * 64
    with pytest.raises(InvalidParameter, match="depends on all of C"):
        factors.noise(scale, 3, seed=1 << 64, auditor="not_looked_at")


class TestRegularity:
    @pytest.mark.parametrize(("examples", "bins"), [(6, 3), (7, 3), (5, 2), (4, 4)])
    def test_equal_sizes_by_counting(self, examples, bins):
        ways = itertools.product(range(bins), repeat=examples)
        equal = sum(np.ptp(np.bincount(way, minlength=bins)) <= 1 for way in ways)
        assert equal_sizes_probability(examples, bins) == pytest.approx(equal / bins**examples, rel=1e-10)
        assert Fraction(equal_sizes_probability(examples, bins)) >= Fraction(equal, bins**examples)

    def test_the_lower_tail_of_chi_square(self):
        """Two degrees: 1 - e^(-x/2); ten: tables."""
        sizes = np.array([110, 95, 95])
        assert regularity(sizes) == pytest.approx(1 - math.exp(-((100 + 25 + 25) / 100) / 2))
        scaled = np.array([1000 + 50 * math.copysign(1, i - 4.5) for i in range(10)]).astype(
            int
        )  # 25.0, above the mean
        assert regularity(scaled) == 1
        assert regularity(np.array([5])) == 1 and regularity(np.zeros(3, int)) == 1


class TestCheckpoint:
    @pytest.mark.parametrize("draw", [balls_in_bins, random_allocation])
    @pytest.mark.parametrize("stop", [0, 3, 4, 5, 8])
    def test_goes_on_where_it_stopped(self, draw, stop):
        order = draw(60, 5, 2, KEY)
        for auditor, resumed in zip(auditors(order), auditors(order), strict=True):
            for step in range(stop):
                auditor.record(order[step])
            resumed.load_state_dict(auditor.state_dict())
            assert resumed.step == stop
            assert replay(resumed, [order[t] for t in range(stop, 10)]) is None

    def test_a_loader_that_starts_again(self):
        order = balls_in_bins(60, 5, 2, KEY)
        for auditor, resumed in zip(auditors(order), auditors(order), strict=True):
            resumed.load_state_dict(auditor_after(auditor, order, 3).state_dict())
            with pytest.raises(InvalidParticipation):
                resumed.record(order[0])

    def test_shows_no_bin(self):
        order = balls_in_bins(60, 5, 2, KEY)
        whole, learned = (auditor_after(auditor, order, 7).state_dict() for auditor in auditors(order))
        assert not any(isinstance(value, np.ndarray) for value in whole.values())
        hidden = learned["hidden"]
        assert hidden.tobytes() != bin_of_each(order).astype("<i8").tobytes()
        assert len(np.unique(hidden)) > 150  # of 480 bytes; the bins in clear have five values
        again = auditor_after(auditors(order)[1], order, 7).state_dict()
        assert not np.array_equal(again["hidden"], hidden)  # another nonce

    def test_an_auditor_without_order_and_key_has_no_checkpoint(self):
        with pytest.raises(InvalidParameter, match="every example's bin"):
            BinsAuditor(60, 5, 2).state_dict()

    def test_of_another_key_or_run(self):
        order = balls_in_bins(60, 5, 2, KEY)
        state, learned = BinsAuditor.of(order).state_dict(), auditor_state(order, 3)
        with pytest.raises(InvalidParameter, match="another secret key"):
            BinsAuditor.of(balls_in_bins(60, 5, 2, OTHER)).load_state_dict(state)
        with pytest.raises(InvalidParameter, match="another key"):
            BinsAuditor(60, 5, 2, key=OTHER).load_state_dict(learned)
        with pytest.raises(InvalidParameter, match="bins"):
            BinsAuditor(60, 6, 2, key=KEY).load_state_dict(learned)
        with pytest.raises(InvalidParameter, match="no auditor"):
            BinsAuditor.of(order).load_state_dict({})

    def test_damaged(self):
        order = balls_in_bins(60, 5, 2, KEY)
        state = auditor_state(order, 3)
        flipped = state["hidden"].copy()
        flipped[0] ^= 1
        for damage in (
            {"hidden": flipped},
            {"nonce": "00" * 16},
            {"nonce": "no"},
            {"tag": ""},
            {"step": 4},
            {"step": -1},
        ):
            with pytest.raises(InvalidParameter):
                BinsAuditor(60, 5, 2, key=KEY).load_state_dict({**state, **damage})


def auditor_after(auditor: BinsAuditor, order: BallsInBins, steps: int) -> BinsAuditor:
    for step in range(steps):
        auditor.record(order[step])
    return auditor


def auditor_state(order: BallsInBins, steps: int) -> dict:
    """Of an auditor that has learned the bins."""
    return auditor_after(auditors(order)[1], order, steps).state_dict()


class TestRandomAllocation:
    """A step of each example drawn anew in every epoch."""

    def test_draws_of_all_epochs_are_uniform_and_independent(self):
        order = random_allocation(60_000, 3, 3, KEY)
        draws = Counter(zip(*(bin_of_each(order, epoch).tolist() for epoch in range(3)), strict=True))
        assert set(draws) == set(itertools.product(range(3), repeat=3))
        mean = 60_000 / 27
        assert sum((count - mean) ** 2 / mean for count in draws.values()) < 26 + 6 * np.sqrt(52)

    def test_every_example_has_one_step_in_each_epoch(self):
        order = random_allocation(50, 4, 3, KEY)
        for epoch in range(3):
            steps = [order[4 * epoch + j] for j in range(4)]
            assert sorted(np.concatenate(steps).tolist()) == list(range(50))
            for j, batch in enumerate(steps):
                assert (bin_of_each(order, epoch)[batch] == j).all()
        assert [batch.tolist() for batch in order] == [order[step].tolist() for step in reversed(range(12))][::-1]
        kept = balls_in_bins(50, 4, 3, KEY)
        assert order[0].tolist() != kept[0].tolist(), "a key may serve one law, not show another"

    def test_capacity_is_charged_for_every_epoch(self):
        order = random_allocation(1000, 8, 5, KEY, physical_batch=10)
        assert order.capacity is not None and 0 < order.tau <= TAU
        assert order.tau == pytest.approx(5 * overflow_probability(1000, 8, order.capacity), rel=1e-9, abs=0)
        assert max(len(batch) for batch in order) <= order.capacity
        assert {order.micro_batches(step).mask.shape for step in range(40)} == {(order.capacity // 10, 10)}
        with pytest.raises(InvalidParticipation, match="has more than capacity"):
            for last in range(200):  # the first epoch of some key fits, a later one does not
                random_allocation(100, 4, 6, hashlib.sha256(b"%d" % last).digest(), physical_batch=1, capacity=34)

    def test_checkpoints_and_calibrations_of_the_other_law_are_refused(self):
        kept, anew = balls_in_bins(40, 4, 3, KEY), random_allocation(40, 4, 3, KEY)
        with pytest.raises(InvalidParameter, match="sampling"):
            anew.check_state(kept.state_dict())
        made = solved(12, "identity", 3)
        drawn_anew: Any = {"sampling": "random_allocation", "epsilon": 4.0, "delta": 1e-5}
        for order, other in (
            (anew, calibrate_bins(made, epsilon=4.0, delta=1e-5, method="deterministic")),
            (kept, calibrate_bins(made, **drawn_anew)),
        ):
            with pytest.raises(InvalidParameter, match=f"sampling='{order.sampling}'"):
                order.check_calibration(other, 12)
        with pytest.raises(InvalidParameter, match="12 bins|with 4 bins"):
            anew.check_calibration(calibrate_bins(made, **drawn_anew, bins=12), 12)
        # Where keys become known, steps are not those of an order.
        with pytest.raises(InvalidParticipation, match="min_sep"):
            anew.check({"kind": "fixed_epochs", "epochs": 3}, 12)
        anew.check(anew.participation, 12)
        with pytest.raises(InvalidParameter, match="BinsAuditor"):
            ParticipationAuditor.of(calibrate_bins(made, **drawn_anew), 12)

    def test_the_auditor_tells_what_is_not_drawn_anew(self):
        kept, order = balls_in_bins(40, 4, 3, KEY), random_allocation(40, 4, 3, KEY)
        with_order, without = auditors(order)
        assert "other steps than the order's key draws" in str(replay(with_order, kept))
        assert "the same bin as in the epoch before" in str(replay(without, kept))
        assert "other steps than the order's key draws" in str(
            replay(auditors(order)[0], random_allocation(40, 4, 3, OTHER))
        )
        twice = [*(order[step] for step in range(5)), np.append(order[5], order[4][0])]
        assert "twice in one epoch" in str(replay(auditors(order)[1], twice))
        short = [*(order[step] for step in range(7)), order[7][:-1]]
        assert "no step" in str(replay(auditors(order)[1], short))
        assert "examples of the bin are missing" in str(replay(auditors(order)[0], short))
        auditor = BinsAuditor(4000, 40, 2, sampling="random_allocation")
        assert auditor.tau > BinsAuditor(4000, 40, 2).tau
        assert "equal" in str(replay(auditor, np.arange(4000).reshape(40, 100)))
        with pytest.raises(InvalidParameter, match="not one of balls_in_bins, random_allocation"):
            BinsAuditor(40, 4, 3, sampling="poisson")
        with pytest.raises(InvalidParameter, match="sampling"):
            BinsAuditor(40, 4, 3, key=KEY).load_state_dict(without.state_dict())
