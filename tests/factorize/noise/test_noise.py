"""Correlated noise has the covariance that the guarantee needs, and a job cannot draw it wrongly: for every structure, in
shards, after restarts, to the last bit.

The covariance test: whiten the noise of n steps and d coordinates with C / sigma, which must give independent standard
normals. With S the n x n second-moment matrix of the whitened noise, d/2 ||S - I||_F^2 is asymptotically chi-squared
with n(n+1)/2 degrees of freedom. A right generator exceeds the limit with probability 1e-6; seeds are fixed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from door_contract import ended_on_the_way
from redrawn_cases import likely
from scipy import stats
from structure_cases import NAMES, N, strategies

from factorize.client import NoiseGenerator, even_shard
from factorize.errors import InvalidParameter
from factorize.factors.sensitivity import Sensitivity
from factorize.noise.normals import BLOCK, CryptographicNormals, ReplayableNormals, _ziggurat, commitment
from factorize.noise.recurrences.base import Recurrence
from factorize.noise.source import ComputedRows, Streamable, noise_source
from factorize.privacy import PrivacyTarget, calibrate
from factorize.structures.base import Matrix
from factorize.structures.layouts import BUILDERS
from factorize.structures.redrawn import RedrawnMatrix

D = 40_000
SEED = 11 << 64
SIGMA = 1.7
CONFIDENCE = 1e-6
UNIT = Sensitivity(1.0, "exact", "by hand", {"kind": "single"})
CALIBRATION = calibrate(UNIT, PrivacyTarget(mu=1.0), clip_norm=SIGMA)
STREAMS = [
    name for name, c in strategies().items() if isinstance(noise_source(c.structure, c.tensors(), N, ""), Streamable)
]


def source_of(strategy: Matrix) -> Streamable | ComputedRows:
    return noise_source(strategy.structure, strategy.tensors(), strategy.n, "digest")


def generator_of(name: str = "dense", shape: Any = 3, **options: Any) -> NoiseGenerator:
    settings: dict[str, Any] = {"source": source_of(strategies()[name]), "calibration": CALIBRATION, "seed": SEED}
    return NoiseGenerator(shape=shape, **{**settings, **options})


def draw(name: str, shape: Any = D, **options: Any) -> np.ndarray:
    return np.array(list(generator_of(name, shape, **options)))


def statistic(drawn: np.ndarray, strategy: Matrix, sigma: float) -> float:
    """Distance of whitened noise, shape (n, d), from independent standard normals, in units of the limit."""
    n, d = drawn.shape
    white = strategy.dense() @ drawn.astype(np.float64) / sigma
    distance = d / 2 * np.linalg.norm(white @ white.T / d - np.eye(n)) ** 2
    return float(distance / stats.chi2.isf(CONFIDENCE, n * (n + 1) / 2))


def z(seed: int, n: int, size: int) -> np.ndarray:
    rows, normals = np.empty((n, size)), ReplayableNormals(seed, "digest")
    for step in range(n):
        for block in range(-(-size // BLOCK)):
            normals.fill(rows[step, block * BLOCK : (block + 1) * BLOCK], step, block)
    return rows


def test_every_structure_is_here():
    assert set(BUILDERS) <= set(NAMES)
    assert {"banded", "banded_toeplitz", "blt", "buffered", "state_space", "tree"} <= set(STREAMS)


@pytest.mark.parametrize("name", NAMES)
class TestDistribution:
    def test_covariance_over_restarts_and_shards(self, name):
        """Three workers, each with other threads, precision of checkpoints and places of restarts."""
        parts = []
        for rank in range(3):
            options = {"shard": even_shard(D, rank, 3), "seed": 3 << 64, "threads": rank + 1}
            worker = generator_of(name, D, **options)
            rows = [worker.next() for _ in range(7 + rank)]
            state = worker.state_dict(arrays=rank != 1)
            resumed = generator_of(name, D, **options)
            resumed.load_state_dict(state)
            parts.append(np.array([*rows, *resumed]))
        drawn = np.concatenate(parts, axis=1)
        assert statistic(drawn, strategies()[name], SIGMA) < 1
        assert np.array_equal(drawn, draw(name, seed=3 << 64))

    def test_it_is_the_product_of_the_inverse_and_z(self, name):
        product = strategies()[name].inverse_rows(0, N) @ z(SEED, N, 1000)
        for precision, limit in ((None, 1e-6), ("float64", 2.0**-24)):  # the latter: what rounding to float32 costs
            made = generator_of(name, 1000, precision=precision)
            assert SIGMA <= made.sigma <= SIGMA * 1.00001
            expected = made.sigma * product
            assert np.abs(np.array(list(made)) - expected).max() < limit * np.abs(expected).max()


def test_each_whitened_row_is_normal():
    white = strategies()["dense"].dense() @ draw("dense").astype(np.float64) / SIGMA
    assert min(stats.kstest(row, "norm").pvalue for row in white) > CONFIDENCE


class TestAddition:
    def test_the_noise_is_for_sums_whatever_the_divisor(self):
        means = calibrate(UNIT, PrivacyTarget(rho=0.1), divisor=50)
        drawn, strategy = draw("dense", calibration=means), strategies()["dense"]
        assert statistic(drawn, strategy, math.sqrt(1 / 0.2)) < 1
        generator = generator_of("dense", D, calibration=means)
        added = np.array([generator.add_to_mean(np.zeros(D)) for _ in range(N)])
        np.testing.assert_allclose(added, drawn / 50, rtol=1e-6)

    def test_a_sum_gets_the_noise_of_its_step(self):
        one, other = (generator_of(shape=(2, 3)) for _ in range(2))
        for dtype in (np.float32, np.float64):
            total = np.arange(6, dtype=dtype).reshape(2, 3)
            noisy = one.add_to_sum(total)
            assert noisy.dtype == np.float32 and (total == np.arange(6).reshape(2, 3)).all()
            np.testing.assert_array_equal(noisy, (total + other.next()).astype(np.float32))

    def test_without_a_divisor_nothing_is_added_to_means(self):
        generator = generator_of()
        with pytest.raises(InvalidParameter, match=r"for sums, and this calibration has no divisor.*divisor="):
            generator.add_to_mean(np.zeros(3))
        assert generator.step == 0

    def test_a_sum_that_is_called_a_mean_is_refused(self):
        """600 clipped contributions that have nothing in common still add up to 24 clip norms."""
        means = calibrate(UNIT, PrivacyTarget(mu=1.0), divisor=600)
        generator, rng = generator_of(shape=1000, calibration=means), np.random.default_rng(1)
        each = rng.standard_normal((600, 1000))
        total = (each / np.linalg.norm(each, axis=1, keepdims=True)).sum(axis=0)
        with pytest.raises(InvalidParameter, match=r"the norm of the mean is above 1\.6.*it is a sum.*add_to_sum"):
            generator.add_to_mean(total)
        assert generator.step == 0
        assert np.linalg.norm(generator.add_to_mean(total / 600) - total / 600) > 0

    @pytest.mark.parametrize("wrong", [np.zeros(4), np.zeros((1, 3)), np.zeros(3, np.float16), np.zeros(3, int), 0.0])
    def test_another_shape_or_fewer_digits_are_refused(self, wrong):
        generator = generator_of(calibration=calibrate(UNIT, PrivacyTarget(mu=1.0), divisor=2))
        for add in (generator.add_to_sum, generator.add_to_mean):
            with pytest.raises(InvalidParameter, match="clip and add up in that shape"):
                add(wrong)
            with pytest.raises(InvalidParameter, match="has masked entries; fill them first"):
                add(np.ma.masked_array(np.zeros(3), mask=[True, False, False]))
        assert generator.step == 0


class TestRefusals:
    def test_more_than_n_steps(self):
        generator = generator_of()
        generator.skip(N - 1)
        generator.next()
        with pytest.raises(InvalidParameter, match=f"step {N + 1} is past n={N}"):
            generator.next()
        with pytest.raises(InvalidParameter, match="past n"):
            generator.skip()
        assert generator.step == N

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            *(({"calibration": bare}, "pass the Calibration") for bare in (1.0, None, np.float64(2.0), UNIT)),
            *(({"seed": seed}, "seed") for seed in (0, (1 << 64) - 1, -1, 1.0, True, None, "1")),
            *(
                ({"shape": shape}, "is not an integer >= 1")
                for shape in (0, (3, 0), (-1,), (2.7,), True, ("3",), {2}, {2: 3})
            ),
            ({"shape": 2**47}, "takes 5.24e.05 GiB, more than this machine has"),
            *(({"shard": shard}, "first < last <= 3") for shard in ((0, 0), (3, 2), (-1, 2), (0, 4))),
            ({"threads": 0}, "threads"),
            ({"threads": 1.5}, "threads"),
            ({"precision": "half"}, "precision"),
            ({"generator": "r"}, "generator"),
        ],
    )
    def test_what_makes_no_generator(self, given, says):
        with pytest.raises(InvalidParameter, match=says):
            generator_of(**given)

    def test_going_back(self):
        with pytest.raises(InvalidParameter, match="would repeat noise"):
            generator_of().skip(-1)


class TestBits:
    @pytest.mark.parametrize("name", ["dense", "toeplitz", "scaled"])
    @pytest.mark.parametrize("memory", [0, 4 * 100 * 3, 1 << 20])
    def test_kept_drawn_again_and_made_ahead(self, name, memory):
        generator = generator_of(name, 100, memory_bytes=memory)
        got = [generator.next() for _ in range(5)]
        generator.skip(2)
        got += list(generator)
        assert np.array_equal(np.array(got), np.delete(draw(name, 100), [5, 6], axis=0))

    @pytest.mark.parametrize("precision", ["float32", "float64"])
    def test_compiled_loops_are_numpy_to_the_last_bit(self, precision, monkeypatch):
        assert _ziggurat() is not None
        strategy = {name: source_of(strategies()[name]).recurrence() for name in STREAMS}
        assert {name for name in STREAMS if strategy[name].vector_step(3) is not None} >= {
            "banded",
            "banded_toeplitz",
            "blt",
            "buffered",
        }
        size, found = BLOCK + 3 * 1024 + 5, []
        for compiled in (True, False):
            if not compiled:
                monkeypatch.setattr("factorize.noise.engines.HAS_COMPILER", False)
                monkeypatch.setattr("factorize.noise.normals._ziggurat", lambda: None)
            for name in STREAMS:
                generator = generator_of(name, size, precision=precision, shard=(5, size), threads=2)
                generator.skip(2)
                rows = [generator.next() for _ in range(4)]
                found.append(np.array(rows).tobytes() + np.ascontiguousarray(generator.vectors).tobytes())
                generator.close()
        assert found[: len(STREAMS)] == found[len(STREAMS) :]

    @pytest.mark.parametrize("name", NAMES)
    def test_skip(self, name):
        generator = generator_of(name, 30)
        generator.skip(3)
        generator.skip(N - 4)
        assert np.array_equal(generator.next(), draw(name, 30)[-1])

    def test_into_an_array_of_the_caller(self):
        generator, out = generator_of("buffered", (3, 4)), np.empty((3, 4), np.float32)
        assert generator.next(out) is out
        assert np.array_equal(out.ravel(), draw("buffered", 12)[0])
        for wrong in (np.empty((3, 4)), np.empty((4, 3), np.float32), np.empty((4, 3), np.float32).T):
            with pytest.raises(InvalidParameter, match="contiguous float32"):
                generator.next(wrong)
        assert generator.step == 1


def test_draws_of_earlier_epochs_are_those_that_have_a_weight(monkeypatch):
    """The first return has one up to step 7, the second at the last step."""
    lag = 6
    whole, drawn, fill = likely(N, redraws=2, lag=lag), [], ReplayableNormals.fill
    inputs, direct = whole.input.copy(), whole.direct.copy()
    inputs[1, 8:], direct[1, 8:] = 0, 0
    inputs[2], direct[2, :-1] = 0, 0
    matrix = RedrawnMatrix(whole.decay, whole.output, inputs, direct, lag)

    def recorded(self: ReplayableNormals, out: np.ndarray, step: int, block: int) -> None:
        drawn.append(step)
        fill(self, out, step, block)

    generator = generator_of(source=source_of(matrix))
    monkeypatch.setattr(ReplayableNormals, "fill", recorded)
    list(generator)
    again = {6: [0], 7: [1], N - 1: [N - 1 - 2 * lag]}
    assert drawn == [one for step in range(N) for one in (step, *again.get(step, []))]


class TestCheckpoints:
    @pytest.mark.parametrize("name", STREAMS)
    def test_state_is_a_few_vectors(self, name):
        generator = generator_of(name, 30)
        generator.next()
        recurrence: Recurrence = source_of(strategies()[name]).recurrence()
        assert generator.state_dict()["state"].shape == (recurrence.vectors, 30)
        assert recurrence.vectors <= 5
        assert json.loads(json.dumps(generator.state_dict(arrays=False)))["step"] == 1

    @pytest.mark.parametrize("name", NAMES)
    def test_a_step_that_was_ended_on_the_way(self, name):
        """Closing does not hide it, and without vectors all earlier rows are made again."""
        run, rows = generator_of(name), draw(name, 3)
        run.next()
        with ended_on_the_way():
            run.next()
        for _ in range(2):
            for act in (run.next, run.skip, run.state_dict):
                with pytest.raises(InvalidParameter, match="step 1 of the noise was begun and not finished"):
                    act()
            run.close()
        run.load_state_dict(run.state_dict(arrays=False))
        assert np.array_equal(np.stack(list(run)), rows[1:])

    def test_vectors_of_another_step_or_damaged(self):
        generator = generator_of("blt", 30)
        generator.next()
        first = generator.state_dict()
        generator.next()
        second = generator.state_dict()
        damaged = {**second, "state": second["state"] + np.float32(1e-3)}
        for wrong in ({**first, "step": 2}, {**second, "state": first["state"]}, damaged):
            with pytest.raises(InvalidParameter, match="vectors are not those of step 2"):
                generator.load_state_dict(wrong)
        with pytest.raises(InvalidParameter, match=r"steps 1 to 1 have used their noise.*call close\(\)"):
            generator.load_state_dict(first)
        generator.close()
        generator.load_state_dict(first)
        assert generator.step == 1

    @pytest.mark.parametrize("generator", ["sfc64", "shake128"])
    @pytest.mark.parametrize("name", ["blt", "dense"])
    def test_the_plain_part_tells_nothing_of_the_noise(self, name, generator):
        """No number that is drawn or released stands in it, and its commitment needs the seed."""
        made = generator_of(name, 30, generator=generator)
        rows = [made.next() for _ in range(3)]
        plain = made.state_dict(arrays=False)
        drawn = z(SEED, N, 30) if generator == "sfc64" else np.zeros((1, 1))
        secret = {value for row in [*rows, *drawn, *(SIGMA * drawn)] for value in row.tolist()}
        text = json.dumps(plain)
        assert not any(value.hex() in text or repr(value) in text for value in secret - {0.0})
        assert made.state_dict().keys() - plain.keys() == ({"state", "state_sha256"} if name == "blt" else set())
        assert set(plain) == {
            *("version", "step", "steps", "shape", "sigma", "commitment", "factorization", "generator", "shard"),
            *(["precision"] if name == "blt" else []),
        }
        first = np.empty(64)
        made._normals.fill(first, 0, 0)
        assert plain["commitment"] != hashlib.sha256(first.tobytes()).hexdigest()
        keyed = hmac.new(made._normals.key, b"factorize commitment " + first.tobytes(), "sha256").hexdigest()
        assert plain["commitment"] == keyed

    @pytest.mark.parametrize(
        ("options", "changes", "says"),
        [
            ({"seed": 8 << 64}, {}, "commitment"),
            ({"shape": 4}, {}, "shape"),
            ({"calibration": calibrate(UNIT, PrivacyTarget(mu=2.0))}, {}, "sigma"),
            ({"source": replace(source_of(strategies()["blt"]), digest="other")}, {}, "commitment"),
            ({}, {"factorization": "other"}, "factorization"),
            ({"shard": (0, 2)}, {}, "shard"),
            ({"precision": "float64"}, {}, "sigma"),
            ({"generator": "shake128"}, {}, "commitment"),
            ({}, {"precision": "float64"}, "precision"),
            ({}, {"generator": "shake128"}, "generator"),
            ({}, {"steps": N - 1}, "steps"),
            ({}, {"step": N + 1}, "step"),
            ({}, {"version": 2, "canary": (0.3).hex()}, "version is 2, but here it is 3; .* library versions"),
        ],
    )
    def test_of_another_run_or_release(self, options, changes, says):
        state = generator_of("blt", **options).state_dict() | changes
        with pytest.raises(InvalidParameter, match=f"the checkpoint's {says}"):
            generator_of("blt").load_state_dict(state)


class TestGenerators:
    def test_cryptographic_noise_has_the_covariance_too(self):
        drawn = draw("buffered", generator="shake128")
        assert statistic(drawn, strategies()["buffered"], SIGMA) < 1
        assert not np.array_equal(drawn, draw("buffered"))

    @pytest.mark.parametrize(
        ("kind", "first"),
        [
            (ReplayableNormals, ["-0x1.117830adf2b26p-4", "0x1.074770b6477b1p-2"]),
            (CryptographicNormals, ["0x1.281459a7c7de9p-4", "0x1.3170bf7d6ee03p+1"]),
        ],
    )
    def test_the_streams_are_pinned(self, kind, first):
        """A library that draws another stream would break every checkpoint; these numbers must not change."""
        drawn = np.empty(2)
        kind(2024 << 64, "abc").fill(drawn, 3, 1)
        assert [value.hex() for value in drawn] == first

    @pytest.mark.parametrize("kind", [ReplayableNormals, CryptographicNormals])
    def test_first_entries_do_not_depend_on_how_many_follow(self, kind):
        normals, long, short = kind(1 << 64), np.empty(1001), np.empty(7)
        normals.fill(long, 2, 3)
        normals.fill(short, 2, 3)
        assert np.array_equal(short, long[:7])

    @pytest.mark.parametrize("kind", [ReplayableNormals, CryptographicNormals])
    def test_seed_context_step_and_block_all_count(self, kind):
        drawn = np.empty((6, 50))
        for row, (seed, context, step, block) in zip(
            drawn,
            [(1, "", 0, 0), (1, "", 1, 0), (1, "", 0, 1), (2, "", 0, 0), (1, "a", 0, 0), (256, "", 0, 0)],
            strict=True,
        ):
            kind(seed << 64, context).fill(row, step, block)
        assert len(np.unique(drawn)) == drawn.size
        assert commitment(kind(1 << 64)) != commitment(kind(2 << 64))


def test_even_shards_cover_everything_once():
    for size, count in ((10, 3), (3, 3), (7, 1)):
        ends = [even_shard(size, rank, count) for rank in range(count)]
        assert [first for first, _ in ends] == [0, *(last for _, last in ends[:-1])]
        assert ends[-1][1] == size
    for rank in (-1, 3):
        with pytest.raises(InvalidParameter, match="rank"):
            even_shard(10, rank, 3)
