"""Adam and its kind on noisy gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_private import EPOCHS, SIZE, N, data, factors, network, train

from factorize.adapters.private import Private, make_private
from factorize.adapters.torch import NoiseGenerator
from factorize.errors import InvalidParameter

pytestmark = [pytest.mark.filterwarnings(f"ignore:{said}") for said in ("Full backward hook is firing", "Secure RNG")]
CLIP = 0.7
ADAPTIVE = [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop]


def private(kind: Any = torch.optim.Adam, **options: Any) -> Private:
    model = network()
    settings = {"epsilon": 4.0, "delta": 1e-5, "epochs": EPOCHS, "batch_size": SIZE, "seed": 11, "clip_norm": CLIP}
    return make_private(model, kind(model.parameters(), lr=0.01), data(), factors(), **{**settings, **options})


def gradients(model: torch.nn.Module, indices: np.ndarray) -> torch.Tensor:
    """One row for each example, without Opacus, shape (examples, entries)."""
    x, y = data().tensors
    rows = []
    for i in indices:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
    return torch.stack(rows)


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_what_is_released_and_how_the_optimizer_steps(kind: Any) -> None:
    """By hand: torch's own optimizer on (sum of clipped gradients + row of noise) / divisor."""
    made = private(kind)
    released = train(made)
    model = network()
    optimizer = kind(model.parameters(), lr=0.01)
    noise = NoiseGenerator(factors(), made.statement.calibration, list(model.parameters()), seed=11)
    for step in range(N):
        rows = gradients(model, made.loader.order[step])
        clipped = rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)
        wanted = (clipped.sum(0) + flat(noise.next())) / SIZE
        assert torch.allclose(released[step].double(), wanted, rtol=1e-4, atol=1e-5)
        torch.nn.utils.vector_to_parameters(released[step], [p.grad for p in model.parameters()])
        optimizer.step()
    for trained, own in zip(made.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(trained, own, atol=1e-6)


def test_what_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="adaptive='scaled' is not known; use plain or joint"):
        private(adaptive="scaled")
