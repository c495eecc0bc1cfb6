"""A private JAX job: the digits of scikit-learn, jax_privacy's clipping, correlated noise as an optax transformation.

Trains logistic regression twice at the same (epsilon, delta): with independent noise (DP-SGD, C = I) and with the
optimal factorization. Solved here, or by a running service with `--service`.

    python examples/train_jax.py --epsilon 2 --epochs 10
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax_privacy import clipped_grad
from sklearn.datasets import load_digits

from factorize import parse_spec
from factorize.adapters.jax import correlated_noise
from factorize.client import load
from factorize.errors import FactorizeError
from factorize.privacy import PrivacyTarget, calibrate
from factorize.training import fixed_order
from factorize.training.auditor import ParticipationAuditor

TARGET_DELTA, CLIP_NORM, TRAINING = 1e-5, 1.0, 1440


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 1797 images of 8 x 8 with a constant feature, in one fixed random order."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return np.hstack([x[order] / 16, np.ones((len(y), 1))]).astype(np.float32), y[order]


def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(x @ weights, y).mean()


def factors(args: argparse.Namespace, mechanism: str, steps: int) -> Any:
    spec = {
        "workload": {"kind": "prefix", "n": steps},
        "participation": {"kind": "fixed_epochs", "epochs": args.epochs},
        "mechanism": {"kind": mechanism},
        "tolerance": 1e-6,
    }
    if args.service is not None:
        return load(spec, url=args.service)
    from factorize.solvers import solve

    return solve(parse_spec(spec))


def train(args: argparse.Namespace, mechanism: str) -> tuple[float, Any]:
    """Return the test accuracy after the last epoch, and the calibration."""
    x, y = digits()
    order = fixed_order(TRAINING, args.batch_size, epochs=args.epochs)
    made = factors(args, mechanism, len(order))
    target = PrivacyTarget(epsilon=args.epsilon, delta=TARGET_DELTA)
    scale = calibrate(made.sensitivity, target, clip_norm=CLIP_NORM, divisor=args.batch_size, adjacency="zero_out")
    seed = secrets.randbits(128) if args.seed is None else (1 << 64) + args.seed
    optimizer = optax.chain(correlated_noise(made, scale, seed=seed), optax.sgd(args.rate))
    gradient = clipped_grad(loss, l2_clip_norm=CLIP_NORM, batch_argnums=(1, 2))  # the noise is for their sum

    @partial(jax.jit, donate_argnums=1)  # the noise's buffers are not copied
    def step(weights: jax.Array, state: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        updates, state = optimizer.update(gradient(weights, x, y), state)
        return optax.apply_updates(weights, updates), state

    weights = jnp.zeros((x.shape[1], 10))
    state = optimizer.init(weights)
    auditor = ParticipationAuditor.of(scale, made.steps)
    for batch in order:
        auditor.record(batch)
        weights, state = step(weights, state, x[batch], y[batch])
    accuracy = (np.argmax(x[TRAINING:] @ np.asarray(weights), axis=1) == y[TRAINING:]).mean()
    return float(accuracy), scale


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="JAX on digits, with independent and with correlated noise.")
    parser.add_argument("--service", help="of a running `factorize serve`; without it the factors are solved here")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--rate", type=float, default=0.5, help="learning rate, for means of gradients")
    parser.add_argument("--seed", type=int, help="of the noise, for figures that repeat; a real job leaves it out")
    args = parser.parse_args(argv)
    began = time.monotonic()
    try:
        results = {name: train(args, kind) for name, kind in (("DP-SGD", "identity"), ("optimal", "auto"))}
    except FactorizeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    for name, (accuracy, scale) in results.items():
        stated = f"sensitivity {scale.sensitivity.value:.4f} ({scale.sensitivity.kind})"
        print(f"{name:<8} test accuracy {accuracy:.3f}   {stated}, sigma of sums {scale.sigma_of_sums:.4f}")
    print(
        f"({args.epsilon:g}, {TARGET_DELTA:g})-differential privacy, zero_out; {time.monotonic() - began:.1f} s "
        "in all; one draw of the noise each."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
