"""Rounds of a server whose model and updates are tensors of torch, or arrays of JAX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jax import numpy as jnp

from factorize import Spec, solvers
from factorize.adapters.federated import FederatedRounds
from factorize.privacy import PrivacyTarget

SPEC = {"workload": {"kind": "prefix", "n": 2}, "participation": {"kind": "single"}, "mechanism": {"kind": "identity"}}


def test_tensors_with_gradients_or_of_bfloat16_count_as_their_numbers(tmp_path: Path) -> None:
    released, factors = [], solvers.solve(Spec.model_validate(SPEC))
    layer = torch.nn.Linear(3, 2)
    plain = [parameter.detach().numpy() for parameter in layer.parameters()]
    narrow = [parameter.detach().bfloat16() for parameter in layer.parameters()]
    of_jax = [jnp.asarray(array, jnp.bfloat16) for array in plain]
    for i, (model, update) in enumerate(
        (
            (layer.parameters(), [*layer.parameters()]),
            (plain, plain),
            (narrow, narrow),
            (plain, [*map(rounded, plain)]),
            (of_jax, of_jax),
        )
    ):
        rounds = FederatedRounds(
            tmp_path / str(i),
            factors,
            PrivacyTarget(epsilon=4.0, delta=1e-5),
            [*model],
            clients=4,
            clients_a_round=2,
            clip_norm=100.0,
            seed=1 << 99,
        )
        rounds.admit([7])
        assert rounds.add(7, update)
        released.append(np.concatenate([part.ravel() for part in rounds.close(update)]).tobytes())
        rounds._noise.close()  # the same noise once more, for this test alone
        rounds.stop()
    assert released[0] == released[1] != released[2] == released[3] == released[4]


def rounded(array: np.ndarray) -> np.ndarray:
    return torch.tensor(array).bfloat16().float().numpy()
