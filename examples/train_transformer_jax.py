"""The smallest private transformer in JAX: next words, optax, and users as the unit of privacy.

Each user has several sentences, and gives one of them to a step. The model begins at random weights; nothing is
downloaded. Each kind of noise has its own learning rate, the best of a few. `pip install 'factorize[jax,solve]'`:

    python examples/train_transformer_jax.py --epsilon 2 --epochs 12
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from factorize.adapters.jax_private import make_private
from factorize.errors import FactorizeError
from factorize.solvers import solve

WORDS, LENGTH, WIDTH, USERS = 24, 12, 32, 1500
KINDS = (1, 5)
"""The steps of the arithmetic progressions that sentences are: after two words the others are known."""


def sentences(count: int, seed: int) -> np.ndarray:
    """Return sentences of words, shape (count, LENGTH)."""
    rng = np.random.default_rng(seed)
    starts, steps = rng.integers(0, WORDS, count), rng.choice(KINDS, count)
    return (starts[:, None] + steps[:, None] * np.arange(LENGTH)) % WORDS


def weights(seed: int) -> dict[str, jax.Array]:
    """Return the weights of one layer: attention with one head, then a network of two layers."""
    shapes = {"words": (WORDS, WIDTH), "places": (LENGTH, WIDTH), "out": (WIDTH, WORDS)}
    shapes |= {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH)}
    shapes |= {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    keys = jax.random.split(jax.random.PRNGKey(seed), len(shapes))
    return {name: jax.random.normal(key, shape) * 0.2 for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def logits(w: dict[str, jax.Array], words: jax.Array) -> jax.Array:
    """Return the logits of the next word after each, shape (examples, LENGTH - 1, WORDS)."""
    x = w["words"][words[:, :-1]] + w["places"][: LENGTH - 1]
    scores = (x @ w["query"]) @ jnp.swapaxes(x @ w["key"], 1, 2) / WIDTH**0.5
    seen = jnp.where(jnp.tril(jnp.ones(scores.shape[1:])) > 0, scores, -1e9)
    x = x + jax.nn.softmax(seen) @ (x @ w["value"])
    x = x + jax.nn.relu(x @ w["up"]) @ w["down"]
    return x @ w["out"]


def loss(w: dict[str, jax.Array], words: jax.Array) -> jax.Array:
    """Return the mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(w, words), words[:, 1:]).mean()


def train(args: argparse.Namespace, mechanism: str, rate: float) -> float:
    """Return the part of the last words of new sentences that the model knows; print what is guaranteed."""
    owned = np.random.default_rng(1).integers(2, 9, USERS)  # the sentences of each user
    users, data = np.repeat(np.arange(USERS), owned), jnp.asarray(sentences(int(owned.sum()), 2))
    spec = {
        "workload": {"kind": "prefix", "n": args.epochs * (USERS // args.batch_size)},
        "participation": {"kind": "fixed_epochs", "epochs": args.epochs},
        "mechanism": {"kind": mechanism},
    }
    seed = secrets.randbits(128) if args.seed is None else (1 << 64) + args.seed
    made = make_private(
        spec,
        loss=loss,
        examples=len(data),
        users=users,
        epsilon=args.epsilon,
        delta=1e-5,
        epochs=args.epochs,
        batch_size=args.batch_size,
        seed=seed,
        solve=solve,
    )
    optimizer = optax.chain(made.noise, optax.adam(rate))
    w = weights(3)
    state = optimizer.init(w)

    @partial(jax.jit, donate_argnums=1)  # the noise's buffers are not copied
    def step(w: Any, state: Any, indices: jax.Array, mask: jax.Array) -> tuple[Any, Any]:
        updates, state = optimizer.update(made.gradients(w, (data,), indices, mask), state)
        return optax.apply_updates(w, updates), state

    for indices, mask in made.batches:
        w, state = step(w, state, indices, mask)
    print(made.statement)
    new = jnp.asarray(sentences(1000, 4))
    return float((logits(w, new)[:, 1:].argmax(-1) == new[:, 2:]).mean())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A small transformer in JAX, private per user.")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=12, help="turns of each user")
    parser.add_argument("--batch-size", type=int, default=150, help="users in a step")
    parser.add_argument("--seed", type=int, help="of the noise, for figures that repeat; a real job leaves it out")
    args = parser.parse_args(argv)
    if args.batch_size < 1:
        parser.error(f"--batch-size {args.batch_size} is below 1")
    if args.seed is not None and args.seed < 0:
        parser.error(f"--seed {args.seed} is below 0")
    try:
        for name, mechanism, rate in (("independent noise", "identity", 0.02), ("correlated noise", "auto", 0.06)):
            known = train(args, mechanism, rate)
            print(f"{name}: {known:.3f} of the words known\n")
    except FactorizeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
