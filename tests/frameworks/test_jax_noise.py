"""C^-1 in jax_privacy's own privatizer, and as an optax transformation: covariances, restarts, and the end at n."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import optax
import pytest
from handmade import Handmade, handmade
from jax import numpy as jnp
from jax_privacy.noise_addition import matrix_factorization_privatizer
from structure_cases import strategies
from test_noise import statistic

from factorize.adapters import jax as jax_noise
from factorize.adapters.coefficients import plan_table
from factorize.adapters.jax import correlated_noise, noising_matrix, raised_sigma_of_sums
from factorize.adapters.jax_arrays import jax_normals
from factorize.adapters.jax_arrays.jax_table import MAX_WRITTEN_TERMS, SplitDouble
from factorize.errors import InvalidParameter, TooLarge, UnsupportedProblem
from factorize.factors.sensitivity import Sensitivity
from factorize.noise.source import noise_source
from factorize.privacy import PrivacyTarget, calibrate

N, D, SIGMA = 20, 40_000, 1.7


@pytest.fixture
def x64() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def scale(made: Handmade):
    return calibrate(made.sensitivity, PrivacyTarget(mu=1.0), clip_norm=SIGMA)


def transformation(made: Handmade, *, seed: int = 7 << 64, **options) -> optax.GradientTransformation:
    return correlated_noise(made, scale(made), seed=seed, **options)


def parameters() -> dict[str, jax.Array]:
    return {"weights": jnp.zeros((D // 4, 3)), "bias": jnp.zeros(D - D // 4 * 3)}


def draw(noise: optax.GradientTransformation, state=None, *, steps: int = N, update=None) -> np.ndarray:
    zero = parameters()
    state = noise.init(zero) if state is None else state
    update, rows = update or jax.jit(noise.update), []
    for _ in range(steps):
        drawn, state = update(zero, state)
        rows.append(np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(drawn)]))
    return np.array(rows)


class TestNormals:
    KEY = np.array([123456789, 4000000000], np.uint32)

    @pytest.mark.parametrize("shape", [(), (5,), (3, 4, 2), (0, 3), (70_000,)])
    @pytest.mark.parametrize("most", [jax_normals.WIDE_COUNT, 1])  # counters of one word, and of two
    @pytest.mark.parametrize("kind", ["float32", "float64"])
    def test_have_the_bits_of_jax(self, x64, shape, most, kind, monkeypatch):
        monkeypatch.setattr(jax_normals, "WIDE_COUNT", most)
        like = jax.ShapeDtypeStruct(shape, kind)
        for step, leaf in ((0, 0), (7, 63), (2**31 - 1, 200)):
            own = jax.random.wrap_key_data(self.KEY, impl="threefry2x32")
            theirs = jax.random.normal(jax.random.fold_in(jax.random.fold_in(own, step), leaf), shape, kind)
            assert np.array_equal(theirs, jax_normals.normals(self.KEY, step, leaf, like, np.dtype(kind)))

    def test_follow_no_setting(self):
        like = jax.ShapeDtypeStruct((9,), np.float32)
        drawn = jax_normals.normals(self.KEY, 1, 2, like, like.dtype)
        with jax.threefry_partitionable(False):
            assert np.array_equal(drawn, jax_normals.normals(self.KEY, 1, 2, like, like.dtype))


class TestTransformation:
    @pytest.mark.parametrize(
        "name", ["dense", "banded", "buffered", "state_space", "redrawn", "blt", "tree", "scaled and banded"]
    )
    def test_covariance(self, name):
        made = handmade(strategies()[name])
        assert statistic(draw(transformation(made)), made.strategy, scale(made).sigma_of_sums) < 1

    @pytest.mark.parametrize("name", ["buffered", "dense"])
    def test_takes_sums_and_divides_after_the_noise(self, name):
        made = handmade(strategies()[name])
        means = calibrate(made.sensitivity, PrivacyTarget(mu=1.0), clip_norm=SIGMA, divisor=50)
        assert means.sigma_of_sums == scale(made).sigma_of_sums
        one, other = (correlated_noise(made, c, seed=7 << 64) for c in (scale(made), means))
        np.testing.assert_allclose(draw(other, steps=3), draw(one, steps=3) / 50, rtol=1e-6)
        total = jax.tree.map(lambda leaf: leaf + 100.0, parameters())
        one.close()
        other.close()
        (sums, _), (divided, _) = (noise.update(total, noise.init(total)) for noise in (one, other))
        for a, b in zip(jax.tree.leaves(sums), jax.tree.leaves(divided), strict=True):
            np.testing.assert_allclose(b, a / 50, rtol=1e-6)

    @pytest.mark.parametrize("name", ["buffered", "redrawn", "dense"])
    def test_a_restart_goes_on_with_the_same_bits(self, name):
        made = handmade(strategies()[name])
        noise, zero = transformation(made), parameters()
        update = jax.jit(noise.update)
        whole = draw(noise, update=update)
        noise.close()
        state = noise.init(zero)
        for _ in range(9):
            _, state = update(zero, state)
        plain = jax.tree.map(np.asarray, state)  # what a checkpoint holds
        resumed = draw(noise, jax.tree.map(jnp.asarray, plain), steps=N - 9, update=update)
        assert np.array_equal(resumed, whole[9:])

    @pytest.mark.parametrize("name", ["buffered", "dense"])
    def test_without_jit_a_step_is_traced_once(self, name, monkeypatch):
        noise, zero, traced = transformation(handmade(strategies()[name])), parameters(), []
        drawn = jax_noise.normals
        monkeypatch.setattr(jax_noise, "normals", lambda *given, **named: traced.append(1) or drawn(*given, **named))
        state = noise.init(zero)
        for step in range(3):
            _, state = noise.update(zero, state)
            assert traced if step == 0 else not traced
            traced.clear()

    def test_another_seed_is_other_noise(self):
        made = handmade(strategies()["one diagonal"])
        one, other = (draw(transformation(made, seed=seed), steps=1)[0] for seed in (7 << 64, 8 << 64))
        assert abs(one @ other) / (np.linalg.norm(one) * np.linalg.norm(other)) < 0.03

    @pytest.mark.parametrize("name", ["buffered", "redrawn", "dense"])
    def test_refuses_step_n(self, name):
        noise, zero = transformation(handmade(strategies()[name])), parameters()
        state = noise.init(zero)._replace(step=jnp.array(N))
        with pytest.raises(InvalidParameter, match=f"past n={N}"):
            noise.update(zero, state)
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"past n={N}"):
            jax.block_until_ready(jax.jit(noise.update)(zero, state))

    def test_in_a_chain_it_moves_the_parameters_by_gradient_and_noise(self):
        made = handmade(strategies()["blt"])
        optimizer = optax.chain(transformation(made), optax.sgd(0.5))
        params = {"w": jnp.ones(6, jnp.bfloat16)}
        gradient = {"w": jnp.full(6, 2.0, jnp.float32)}
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        alone, _ = transformation(made).update({"w": jnp.zeros(6)}, transformation(made).init(params))
        assert updates["w"].dtype == jnp.float32
        assert np.allclose(updates["w"], -0.5 * (2 + alone["w"]), rtol=1e-6)
        assert optax.apply_updates(params, updates)["w"].dtype == jnp.bfloat16

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize("name", ["buffered", "dense"])
    @pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16])
    def test_refuses_sums_that_were_rounded(self, kind, name, jit):
        """Of rounded sums one example may move more than the clip norm."""
        noise, params = transformation(handmade(strategies()[name])), {"w": jnp.ones(6, kind)}
        update = jax.jit(noise.update) if jit else noise.update
        with pytest.raises(InvalidParameter, match="clipped_grad"):
            update(params, noise.init(params))

    @pytest.mark.parametrize("name", ["buffered", "dense"])
    def test_no_digit_of_a_gradient_is_beyond_the_noise(self, x64, name):
        noise = transformation(handmade(strategies()[name]))
        gradient = jnp.full(6, 1 + 2.0**-45, jnp.float64)
        released, _ = noise.update(gradient, noise.init(gradient))
        assert released.dtype == np.float64
        assert np.array_equal(released, np.asarray(released, dtype=np.float32))

    def test_refusals(self):
        made = handmade(strategies()["buffered"])
        other = calibrate(Sensitivity(2.0, "exact", "by hand", {"kind": "single"}), PrivacyTarget(mu=1.0))
        with pytest.raises(InvalidParameter, match="calibrate this one"):
            correlated_noise(made, other, seed=1 << 64)
        with pytest.raises(InvalidParameter, match="bare"):
            correlated_noise(made, 1.0, seed=1 << 64)
        with pytest.raises(InvalidParameter, match="randbits"):
            transformation(made, seed=-1)
        with pytest.raises(InvalidParameter, match="not one of float32, float64"):
            transformation(made, dtype="float16")


class TestNoisingMatrix:
    @pytest.mark.parametrize("name", ["buffered", "dense"])
    def test_in_their_privatizer(self, name, x64):
        made = handmade(strategies()[name])
        privatizer = matrix_factorization_privatizer(
            noising_matrix(made), stddev=raised_sigma_of_sums(made, scale(made)), prng_key=3
        )
        assert statistic(draw(privatizer), made.strategy, scale(made).sigma_of_sums) < 1

    def test_normals_of_half_precision_are_refused(self):
        params = {"w": jnp.ones(6, jnp.bfloat16)}
        matrix = noising_matrix(handmade(strategies()["buffered"]), dtype="float32")
        for dtype, fits in ((None, False), (jnp.float32, True)):
            privatizer = matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=3, dtype=dtype)
            state = privatizer.init(params)
            if fits:
                privatizer.update(params, state)
                continue
            with pytest.raises(InvalidParameter, match="bfloat16"):
                privatizer.update(params, state)

    def test_draws_made_again_are_not_theirs_to_give(self, x64):
        with pytest.raises(UnsupportedProblem, match="correlated_noise"):
            noising_matrix(handmade(strategies()["redrawn"]))

    def test_has_no_row_past_n(self, x64):
        matrix = noising_matrix(handmade(strategies()["buffered"]))
        rows = matrix @ jnp.ones((N + 1, 2))
        assert np.isfinite(rows[:N]).all() and np.isnan(rows[N]).all()

    @pytest.mark.parametrize("name", ["buffered", "dense"])
    def test_float64_that_jax_would_round_is_refused(self, name):
        made = handmade(strategies()[name])
        assert jnp.asarray(np.zeros(1)).dtype == np.float32  # what JAX does without a word
        with pytest.raises(InvalidParameter, match="jax_enable_x64"):
            noising_matrix(made)
        with pytest.raises(InvalidParameter, match="jax_enable_x64"):
            transformation(made, dtype="float64")
        rounded = noising_matrix(made, dtype="float32")
        whole = rounded.materialize(N) if name == "buffered" else rounded
        assert whole.dtype == np.float32
        assert np.allclose(whole, np.linalg.inv(made.strategy.dense()), atol=1e-5)


def test_a_table_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("factorize.adapters.coefficients._MAX_NUMBERS", 100)
    strategy = strategies()["tree"]
    with pytest.raises(TooLarge, match="coefficients"):
        plan_table(noise_source(strategy.structure, strategy.tensors(), N, "x"))


def test_a_step_of_bands_replaces_one_state_and_one_of_buffers_moves_all():
    bands, buffers = (strategies()[name] for name in ("banded", "buffered"))
    found = plan_table(noise_source(bands.structure, bands.tensors(), N, "x"))
    assert found.slots.tolist() == [step % found.reads.shape[1] for step in range(N)]
    assert plan_table(noise_source(buffers.structure, buffers.tensors(), N, "x")).slots is None


@pytest.mark.parametrize("count", [1, 3, MAX_WRITTEN_TERMS + 1])
def test_the_sum_over_states_is_numpys(count):
    rng = np.random.default_rng(0)
    numbers, vectors = rng.normal(size=count), rng.normal(size=(count, 50)).astype(np.float32)
    found = SplitDouble.of(numbers, np.dtype("float32")).dot(jnp.asarray(vectors))
    np.testing.assert_allclose(found, numbers @ vectors, rtol=0, atol=2e-6 * count)
