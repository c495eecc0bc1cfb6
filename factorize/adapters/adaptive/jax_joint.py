"""Adam in JAX whose second moments are released with noise of their own, in one mechanism with the first (JME)."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import optax
from jax import numpy as jnp

from factorize.accounting.joint_moments import JointMoments
from factorize.adapters.jax import NoiseState, NoiseTransformation, Precision, correlated_noise
from factorize.adapters.jobs import check_floor, second_seed


class JointState(NamedTuple):
    """The state that goes from step to step, and into checkpoints; the seed is not in it.

    Attributes:
        first: state of the noise of gradients.
        second: state of the noise of squares.
        count: number of steps taken, int32.
        mu: moving averages of released gradients.
        nu: moving averages of released squares.
    """

    first: NoiseState
    second: NoiseState
    count: jax.Array
    mu: optax.Updates
    nu: optax.Updates


def scale_by_joint_adam(
    first: object,
    second: object,
    moments: JointMoments,
    *,
    seed: int,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    floor: float | None = None,
    dtype: Precision = "float32",
    specs: object = None,
) -> NoiseTransformation:
    """Return the transformation of (sums of clipped gradients, sums of their squares) into Adam's direction.

    Put it first: `optax.chain(scale_by_joint_adam(...), optax.scale_by_learning_rate(rate))`. It adds row t of C1^-1 Z
    to the gradients and row t of C2^-1 Z' to their squares, with independent Z and Z', and returns
    m_hat / (max(v_hat, floor^2)^(1/2) + eps), since noisy squares may be negative. It divides both by the calibration's
    divisor, after the noise.

    Args:
        first: the factors of C1.
        second: the factors of C2.
        moments: noise of both, from `calibrate_moments`.
        seed: a secret integer, `secrets.randbits(128)`.
        b1: decay of the first moments.
        b2: decay of the second moments.
        eps: the number added to the roots.
        floor: the smallest root; by default the standard deviation of the second moments' noise, to the power 1/2.
        dtype: see `correlated_noise`.
        specs: PartitionSpecs of the gradients, see `correlated_noise`.

    Raises:
        InvalidParameter: noise of other factorizations, or a floor out of range.
    """
    noise = moments.second.sigma_of_means or moments.second.sigma_of_sums
    least = check_floor(noise**0.5 if floor is None else floor)
    make = partial(correlated_noise, dtype=dtype, specs=specs)
    # Without names: a notebook keeps the frame of a call that failed, and a noise in it would refuse the next one.
    both = (make(first, moments.first, seed=seed), make(second, moments.second, seed=second_seed(seed)))
    return NoiseTransformation.of(_JointAdam(*both, b1, b2, eps, least))


@dataclass(frozen=True)
class _JointAdam:
    """Adam over the noise of gradients and that of squares; see `scale_by_joint_adam`."""

    first: NoiseTransformation
    second: NoiseTransformation
    b1: float
    b2: float
    eps: float
    floor: float

    def init(self, params: optax.Params) -> JointState:
        """Return the state before step 0."""
        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.float32), params)
        return JointState(self.first.init(params), self.second.init(params), jnp.array(0, jnp.int32), zeros, zeros)

    def update(
        self,
        updates: tuple[optax.Updates, optax.Updates],
        state: JointState,
        params: optax.Params | None = None,
        **others: object,
    ) -> tuple[optax.Updates, JointState]:
        """Return Adam's direction from sums of gradients and of their squares, and the next state."""
        gradients, squares = updates
        noisy, kept = self.first.update(gradients, state.first, params, **others)
        noisy_squares, kept_squares = self.second.update(squares, state.second, params)
        mu = optax.tree.update_moment(noisy, state.mu, self.b1, 1)
        nu = optax.tree.update_moment(noisy_squares, state.nu, self.b2, 1)
        count = state.count + 1
        m, v = optax.tree.bias_correction(mu, self.b1, count), optax.tree.bias_correction(nu, self.b2, count)
        moved = jax.tree.map(lambda a, b: a / (jnp.sqrt(jnp.maximum(b, self.floor**2)) + self.eps), m, v)
        return moved, JointState(kept, kept_squares, count, mu, nu)

    def close(self) -> None:
        """Let another transformation make both noises."""
        self.first.close()
        self.second.close()
