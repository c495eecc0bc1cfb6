"""No row of noise twice in torch, Opacus and JAX: no copies, no second generator, no step taken again."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from handmade import handmade
from jax import numpy as jnp
from private_cases import EPOCHS, SECRET, SIZE, N, factors
from structure_cases import strategies
from test_joint_adam import FACTORS, MOMENTS
from test_private import data, network

from factorize.adapters.adaptive.joint_adam import JointAdam
from factorize.adapters.jax import correlated_noise
from factorize.adapters.private import make_private
from factorize.adapters.torch import NoiseGenerator
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate

pytestmark = pytest.mark.single_use
COPIES: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    pickle.dumps,
    lambda made: torch.save({"made": made}, io.BytesIO()),
]


def optimizer(**options: Any) -> Any:
    model = network()
    settings: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "epochs": EPOCHS, "seed": SECRET, "batch_size": SIZE}
    return make_private(model, torch.optim.SGD(model.parameters(), 0.1), data(), factors(), **{**settings, **options})[
        1
    ]


def joint() -> JointAdam:
    from opacus import GradSampleModule

    model = GradSampleModule(network(), loss_reduction="mean")
    return JointAdam(torch.optim.Adam(model.parameters()), *FACTORS, MOMENTS, seed=SECRET)


def generator() -> NoiseGenerator:
    made = factors()
    scale = calibrate(made.sensitivity, PrivacyTarget(mu=1.0))
    return NoiseGenerator(made, scale, [torch.zeros(5), torch.zeros(2, 3)], seed=SECRET)


def transformation(name: str = "buffered", **options: Any) -> Any:
    made = handmade(strategies(N)[name])
    return correlated_noise(made, calibrate(made.sensitivity, PrivacyTarget(mu=1.0)), **{"seed": SECRET, **options})


@pytest.mark.parametrize("make_copy", COPIES)
@pytest.mark.parametrize("make", [optimizer, joint, generator, transformation])
def test_no_copies_and_no_second_one(make: Callable[[], Any], make_copy: Callable[[Any], Any]) -> None:
    made = make()
    with pytest.raises(InvalidParameter, match="would show its key"):
        make_copy(made)
    with pytest.raises(InvalidParameter, match="open in this process"):
        make()
    made.close()
    again = make()
    del again
    gc.collect()
    make()


GRADIENT = {"w": np.ones((3, 2), np.float32), "b": np.ones(4, np.float32)}


@pytest.mark.parametrize("name", ["buffered", "dense"])
class TestJax:
    @pytest.mark.parametrize("jit", [False, True])
    def test_a_state_is_used_once(self, name: str, jit: bool) -> None:
        noise = transformation(name)
        update: Any = jax.jit(noise.update) if jit else noise.update
        start = noise.init(GRADIENT)
        _, state = update(GRADIENT, start)
        first, after = update(GRADIENT, state)
        error = jax.errors.JaxRuntimeError if jit else InvalidParameter
        for again in (start, state):
            with pytest.raises(error, match="steps up to 1 was used before"):
                jax.block_until_ready(update(GRADIENT, again))
        update(GRADIENT, after)
        noise.close()  # nobody has seen it
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, update(GRADIENT, state)[0], first)))

    @pytest.mark.parametrize(
        "batch",
        [
            lambda noise, state, many: jax.vmap(lambda each: noise.update(each, state)[0])(many),
            lambda noise, state, many: jax.jit(jax.vmap(lambda each: noise.update(each, state)[0]))(many),
            lambda noise, state, many: jax.vmap(jax.jit(lambda each: noise.update(each, state)[0]))(many),
            lambda noise, state, many: jax.vmap(lambda each: noise.update(each, noise.init(each))[0])(many),
            lambda noise, state, many: jax.jit(lambda g: jax.lax.map(lambda each: noise.update(each, state)[0], g))(
                many
            ),
        ],
    )
    def test_members_of_a_batch_do_not_share_a_row(self, name: str, batch: Any) -> None:
        noise = transformation(name)
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), GRADIENT)
        with pytest.raises((InvalidParameter, jax.errors.JaxRuntimeError), match="under vmap|was used before"):
            jax.block_until_ready(batch(noise, noise.init(GRADIENT), many))

    def test_a_part_of_the_parameters_is_refused(self, name: str) -> None:
        noise = transformation(name)
        for wrapped in (
            optax.masked(noise, {"w": True, "b": False}),
            optax.multi_transform({"w": noise, "b": noise}, {"w": "w", "b": "b"}),
            optax.multi_transform({"w": noise, "b": optax.identity()}, {"w": "w", "b": "b"}),
        ):
            with pytest.raises(InvalidParameter, match="optax has masked the parameter .* released without noise"):
                wrapped.init(GRADIENT)
        state = noise.init(GRADIENT)
        for wrong in ({"w": GRADIENT["w"], "b": None}, {"w": GRADIENT["w"]}, {**GRADIENT, "b": np.ones(5, np.float32)}):
            with pytest.raises(InvalidParameter, match="of other parameters"):
                noise.update(wrong, state)

    @pytest.mark.parametrize(
        "leaf",
        [
            *(np.ones(4, kind) for kind in (np.complex64, np.int32, bool, jnp.bfloat16, np.float16)),
            np.zeros(4, jax.dtypes.float0),
            1,
            2j,
        ],
    )
    def test_gradients_that_are_not_real_are_refused(self, name: str, leaf: Any) -> None:
        noise = transformation(name)
        state = noise.init(GRADIENT)
        for update in (noise.update, jax.jit(noise.update)):
            with pytest.raises((InvalidParameter, TypeError), match="noise is real|float32|float0"):
                update({**GRADIENT, "b": leaf}, state)
        assert state.step == 0

    def test_states_of_other_runs_are_refused(self, name: str) -> None:
        """All by one compiled update."""
        others: list[tuple[dict[str, Any], Any]] = [
            ({"seed": SECRET + 1}, GRADIENT),
            ({"name": "blt"}, GRADIENT),
            ({"name": "redrawn"}, GRADIENT),
            ({}, {"w": np.ones((3, 2)), "c": np.ones(4)}),
        ]
        every = [  # as checkpoints have them
            jax.tree.map(np.asarray, transformation(**{"name": name, **other}).init(layout)) for other, layout in others
        ]
        own = transformation(name)
        compiled = jax.jit(own.update)
        for kept in every:
            state = own.init(GRADIENT)._replace(step=kept.step, commitment=kept.commitment)
            with pytest.raises(InvalidParameter, match="of another seed, factorization"):
                own.update(GRADIENT, state)
            with pytest.raises(jax.errors.JaxRuntimeError, match="of another seed, factorization"):
                jax.block_until_ready(compiled(GRADIENT, state))
        assert own.update(GRADIENT, own.init(GRADIENT))[1].step == 1
