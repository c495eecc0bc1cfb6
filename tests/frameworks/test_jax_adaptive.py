"""Adam in JAX with moments of its own: what is released, how it steps, restarts, refusals."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from handmade import handmade
from jax import numpy as jnp
from private_cases import CLIP, EPOCHS, SIZE, N, factors
from test_jax_private import X, Y, fixed, job, loss

from factorize.accounting.joint_moments import calibrate_moments
from factorize.adapters.adaptive.jax_joint import scale_by_joint_adam
from factorize.adapters.jax import correlated_noise
from factorize.adapters.jobs import second_seed
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget
from factorize.structures.toeplitz import ToeplitzMatrix

RATE, SEED = 0.05, 0xC0FFEE << 90
SECOND = handmade(ToeplitzMatrix(0.8 ** np.arange(N), N), {"kind": "fixed_epochs", "epochs": EPOCHS}, value=3.0)
ROW = jax.jit(jax.grad(loss))
DATA = jnp.asarray(X), jnp.asarray(Y)


def rows_of(weights: Any, batch: np.ndarray, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """Clipped gradients of examples by jax.grad alone, shape (examples, 6, 3)."""
    rows = [np.asarray(ROW(weights, X[i : i + 1], Y[i : i + 1]), dtype=np.float64) * scale for i in batch]
    return np.stack([row * min(1.0, CLIP / np.linalg.norm(row)) for row in rows])


def drawn(made: optax.GradientTransformation) -> list[np.ndarray]:
    """The noise of all steps: what is added to zeros."""
    zeros, found = jnp.zeros((6, 3)), []
    state, update = made.init(zeros), jax.jit(made.update)
    for _ in range(N):
        row, state = update(zeros, state)
        found.append(np.asarray(row, dtype=np.float64))
    return found


def test_joint_moments_of_one_call_step_as_by_hand() -> None:
    """One example after the other, both rows of noise, algorithm 1 of Kingma and Ba with a floor; and a restart."""
    private = fixed(adaptive="joint", second=SECOND)
    target = PrivacyTarget(epsilon=4.0, delta=1e-5)
    moments = calibrate_moments(factors(), SECOND, target, clip_norm=CLIP, divisor=SIZE)
    assert private.statement.moments == moments and private.statement.document()["second_sigma_of_means"] == (
        moments.second.sigma_of_means
    )
    optimizer = optax.chain(private.noise, optax.scale_by_learning_rate(RATE))

    @jax.jit
    def step(weights, state, indices, mask):
        sums = private.gradients(weights, DATA, indices, mask)
        updates, state = optimizer.update(sums, state)
        return optax.apply_updates(weights, updates), state

    noises = [
        drawn(correlated_noise(factors(), moments.first, seed=SEED)),
        drawn(correlated_noise(SECOND, moments.second, seed=second_seed(SEED))),
    ]
    weights = jnp.zeros((6, 3))
    state, own, m, v, kept = optimizer.init(weights), np.zeros((6, 3)), 0.0, 0.0, None
    for t, (indices, mask) in enumerate(private.batches):
        rows = rows_of(jnp.asarray(own, jnp.float32), private.batches.order[t])
        m = 0.9 * m + 0.1 * (rows.sum(0) / SIZE + noises[0][t])
        v = 0.999 * v + 0.001 * ((rows**2).sum(0) / SIZE + noises[1][t])
        roots = np.sqrt(np.maximum(v / (1 - 0.999 ** (t + 1)), moments.second.sigma_of_means))
        own = own - RATE * m / (1 - 0.9 ** (t + 1)) / (roots + 1e-8)
        weights, state = step(weights, state, indices, mask)
        assert np.allclose(weights, own, atol=1e-4)
        if t == 3:
            kept = private.batches.state_dict(), weights, state
    private.noise.close()
    assert kept is not None
    private.batches.load_state_dict(kept[0])
    resumed, state = kept[1], kept[2]
    for indices, mask in private.batches:
        resumed, state = step(resumed, state, indices, mask)
    assert np.array_equal(resumed, weights)


def test_what_is_refused() -> None:
    for options, said in (
        ({"adaptive": "scaled"}, "not one of plain, joint"),
        ({"second": SECOND}, "adaptive='plain' does not release"),
        ({"adaptive": "joint", "second": SECOND, "sampling": "balls_in_bins"}, "no accountant for two moments"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            job(**{"sampling": "fixed", "calibration": None, **options})
    moments = calibrate_moments(factors(), SECOND, PrivacyTarget(mu=1.0), clip_norm=CLIP)
    with pytest.raises(InvalidParameter, match="floor=0"):
        scale_by_joint_adam(factors(), SECOND, moments, seed=1 << 64, floor=0)
    with pytest.raises(InvalidParameter, match="calibrate this one"):
        scale_by_joint_adam(SECOND, factors(), moments, seed=1 << 64)


@pytest.mark.single_use
def test_a_mistake_in_the_second_noise_leaves_the_first_to_the_mended_call() -> None:
    """As in a notebook, which keeps the frames of the call that failed."""
    moments = calibrate_moments(factors(), SECOND, PrivacyTarget(mu=1.0), clip_norm=CLIP)
    with pytest.raises(InvalidParameter, match="calibrate this one") as kept:
        scale_by_joint_adam(factors(), factors(), moments, seed=SEED + 1)
    correlated_noise(factors(), moments.first, seed=SEED + 1).close()
    assert kept
