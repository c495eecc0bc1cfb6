"""Every structure's noise: the covariance that the guarantee needs, in shards, after restarts, to the last bit.

The check of the covariance is that of test_noise.py: noise whitened with C / sigma must have the second moments of
independent standard normals.
"""

from __future__ import annotations

import hashlib
import hmac
import json

import numpy as np
import pytest
from structure_cases import NAMES, N, strategies
from test_noise import statistic

from factorize.certificate.sensitivity import Sensitivity
from factorize.client import NoiseGenerator, even_shard
from factorize.client.noise_source import ComputedRows, Streamable, noise_source
from factorize.client.normals import BLOCK, CryptographicNormals, ReplayableNormals, commitment
from factorize.client.recurrences.base import Recurrence
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate
from factorize.structures.base import Matrix
from factorize.structures.layouts import BUILDERS

D = 40_000
SIGMA = 1.7


@pytest.fixture(scope="module")
def calibration():
    return calibrate(Sensitivity(1.0, "exact", "by hand", {"kind": "single"}), PrivacyTarget(mu=1.0), clip_norm=SIGMA)


STREAMS = [
    name for name, c in strategies().items() if isinstance(noise_source(c.structure, c.tensors(), N, ""), Streamable)
]


def source_of(strategy: Matrix) -> Streamable | ComputedRows:
    return noise_source(strategy.structure, strategy.tensors(), strategy.n, "digest")


class Known:
    """A strategy as `statistic` wants it."""

    def __init__(self, strategy: Matrix) -> None:
        self.strategy = strategy

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.strategy.rows(start, stop)


def draw(strategy: Matrix, calibration, *, shape=D, seed=11, **options) -> np.ndarray:
    return np.array(list(NoiseGenerator(source_of(strategy), calibration, shape, seed=seed, **options)))


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
    def test_covariance_over_restarts_and_shards(self, name, calibration):
        """Three workers, each with other threads, precision of checkpoints and places of restarts."""
        strategy = strategies()[name]
        parts = []
        for rank in range(3):
            options = {"shard": even_shard(D, rank, 3), "seed": 3, "threads": rank + 1}
            worker = NoiseGenerator(source_of(strategy), calibration, D, **options)
            rows = [worker.next() for _ in range(7 + rank)]
            state = worker.state_dict(arrays=rank != 1)
            resumed = NoiseGenerator(source_of(strategy), calibration, D, **options)
            resumed.load_state_dict(state)
            parts.append(np.array([*rows, *resumed]))
        drawn = np.concatenate(parts, axis=1)
        assert statistic(drawn, Known(strategy), SIGMA) < 1
        assert np.array_equal(drawn, draw(strategy, calibration, seed=3))

    def test_it_is_the_product_of_the_inverse_and_z(self, name, calibration):
        strategy = strategies()[name]
        product = strategy.inverse_rows(0, N) @ z(11, N, 1000)
        for precision, limit in ((None, 1e-6), ("float64", 2.0**-24)):  # the latter: what rounding to float32 costs
            made = NoiseGenerator(source_of(strategy), calibration, 1000, seed=11, precision=precision)
            assert SIGMA <= made.sigma <= SIGMA * 1.00001
            expected = made.sigma * product
            assert np.abs(np.array(list(made)) - expected).max() < limit * np.abs(expected).max()


class TestBits:
    @pytest.mark.parametrize("name", ["dense", "toeplitz", "scaled"])
    @pytest.mark.parametrize("memory", [0, 4 * 100 * 3, 1 << 20])
    def test_kept_drawn_again_and_made_ahead(self, name, memory, calibration):
        strategy = strategies()[name]
        generator = NoiseGenerator(source_of(strategy), calibration, 100, seed=11, memory_bytes=memory)
        got = [generator.next() for _ in range(5)]
        generator.skip(2)
        got += list(generator)
        whole = draw(strategy, calibration, shape=100)
        assert np.array_equal(np.array(got), np.delete(whole, [5, 6], axis=0))

    @pytest.mark.parametrize("name", NAMES)
    def test_skip(self, name, calibration):
        strategy = strategies()[name]
        generator = NoiseGenerator(source_of(strategy), calibration, 30, seed=11)
        generator.skip(3)
        generator.skip(N - 4)
        assert np.array_equal(generator.next(), draw(strategy, calibration, shape=30)[-1])

    def test_into_an_array_of_the_caller(self, calibration):
        strategy = strategies()["buffered"]
        generator, out = NoiseGenerator(source_of(strategy), calibration, (3, 4), seed=11), np.empty((3, 4), np.float32)
        assert generator.next(out) is out
        assert np.array_equal(out.ravel(), draw(strategy, calibration, shape=12)[0])
        for wrong in (np.empty((3, 4)), np.empty((4, 3), np.float32), np.empty((4, 3), np.float32).T):
            with pytest.raises(InvalidParameter, match="contiguous float32"):
                generator.next(wrong)
        assert generator.step == 1


class TestCheckpoints:
    @pytest.mark.parametrize("name", STREAMS)
    def test_state_is_a_few_vectors(self, name, calibration):
        strategy = strategies()[name]
        generator = NoiseGenerator(source_of(strategy), calibration, 30, seed=11)
        generator.next()
        recurrence: Recurrence = source_of(strategy).recurrence()
        assert generator.state_dict()["state"].shape == (recurrence.vectors, 30)
        assert recurrence.vectors <= 5
        assert json.loads(json.dumps(generator.state_dict(arrays=False)))["step"] == 1

    def test_vectors_of_another_step_or_damaged(self, calibration):
        generator = NoiseGenerator(source_of(strategies()["blt"]), calibration, 30, seed=11)
        generator.next()
        first = generator.state_dict()
        generator.next()
        second = generator.state_dict()
        damaged = {**second, "state": second["state"] + np.float32(1e-3)}
        for wrong in ({**first, "step": 2}, {**second, "state": first["state"]}, damaged):
            with pytest.raises(InvalidParameter, match="vectors are not those of step 2"):
                generator.load_state_dict(wrong)
        generator.load_state_dict(first)
        assert generator.step == 1

    @pytest.mark.parametrize("generator", ["sfc64", "shake128"])
    @pytest.mark.parametrize("name", ["blt", "dense"])
    def test_the_plain_part_tells_nothing_of_the_noise(self, calibration, name, generator):
        """No number that is drawn or released stands in it, and its commitment needs the seed."""
        options = {"seed": 11, "generator": generator}
        made = NoiseGenerator(source_of(strategies()[name]), calibration, 30, **options)
        rows = [made.next() for _ in range(3)]
        plain = made.state_dict(arrays=False)
        drawn = z(11, N, 30) if generator == "sfc64" else np.zeros((1, 1))
        secret = {value for row in [*rows, *drawn, *(SIGMA * drawn)] for value in row.tolist()}
        text = json.dumps(plain)
        assert not any(value.hex() in text or repr(value) in text for value in secret - {0.0})
        assert set(plain) == {
            *("version", "step", "steps", "shape", "sigma", "commitment", "factorization", "generator", "shard"),
            *(["precision"] if name == "blt" else []),
        }
        first = np.empty(64)
        made._normals.fill(first, 0, 0)
        assert plain["commitment"] != hashlib.sha256(first.tobytes()).hexdigest()
        keyed = hmac.new(made._normals.key, b"factorize commitment " + first.tobytes(), "sha256").hexdigest()
        assert plain["commitment"] == keyed

    def test_of_a_release_that_made_other_bits(self, calibration):
        made = NoiseGenerator(source_of(strategies()["blt"]), calibration, 30, seed=11)
        old = {**made.state_dict(), "version": 2, "canary": (0.3).hex()}
        with pytest.raises(InvalidParameter, match="version is 2, here it is 3; .* library versions"):
            made.load_state_dict(old)

    @pytest.mark.parametrize("options", [{"shard": (0, 10)}, {"precision": "float64"}, {"generator": "shake128"}])
    def test_of_another_worker(self, calibration, options):
        source = source_of(strategies()["blt"])
        state = NoiseGenerator(source, calibration, 30, seed=11).state_dict()
        with pytest.raises(InvalidParameter, match="checkpoint"):
            NoiseGenerator(source, calibration, 30, seed=11, **options).load_state_dict(state)


class TestGenerators:
    def test_cryptographic_noise_has_the_covariance_too(self, calibration):
        strategy = strategies()["buffered"]
        drawn = draw(strategy, calibration, generator="shake128")
        assert statistic(drawn, Known(strategy), SIGMA) < 1
        assert not np.array_equal(drawn, draw(strategy, calibration))

    @pytest.mark.parametrize(
        ("kind", "first"),
        [
            (ReplayableNormals, ["-0x1.49e6ffd35400bp-3", "0x1.d9e7c34f12ebdp-1"]),
            (CryptographicNormals, ["-0x1.2fbc02555f4e2p-3", "-0x1.6b100ff13239fp-1"]),
        ],
    )
    def test_the_streams_are_pinned(self, kind, first):
        """A library that draws another stream would break every checkpoint; these numbers must not change."""
        drawn = np.empty(2)
        kind(2024, "abc").fill(drawn, 3, 1)
        assert [value.hex() for value in drawn] == first

    @pytest.mark.parametrize("kind", [ReplayableNormals, CryptographicNormals])
    def test_first_entries_do_not_depend_on_how_many_follow(self, kind):
        normals, long, short = kind(1), np.empty(1001), np.empty(7)
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
            kind(seed, context).fill(row, step, block)
        assert len(np.unique(drawn)) == drawn.size
        assert commitment(kind(1)) != commitment(kind(2))


class TestRefusals:
    @pytest.mark.parametrize("rank", [-1, 3])
    def test_rank(self, rank):
        with pytest.raises(InvalidParameter, match="rank"):
            even_shard(10, rank, 3)


def test_even_shards_cover_everything_once():
    for size, count in ((10, 3), (3, 3), (7, 1)):
        ends = [even_shard(size, rank, count) for rank in range(count)]
        assert [first for first, _ in ends] == [0, *(last for _, last in ends[:-1])]
        assert ends[-1][1] == size
