"""Adam and its kind on noisy gradients: as they are, and scaled by the second moments before they are clipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_private import EPOCHS, SIZE, N, data, factors, network, train

from factorize.adapters.adaptive.second_moments import SecondMoments
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


@pytest.mark.parametrize("adaptive", ["plain", "scaled"])
@pytest.mark.parametrize("kind", ADAPTIVE)
def test_what_is_released_and_how_the_optimizer_steps(kind: Any, adaptive: str) -> None:
    """By hand: torch's own optimizer on (sum of clipped scaled gradients / divisor + row of noise) / scale."""
    made = private(kind, adaptive=adaptive)
    released = train(made)
    model = network()
    optimizer = kind(model.parameters(), lr=0.01)
    noise = NoiseGenerator(factors(), made.statement.calibration, list(model.parameters()), seed=11)
    name = {torch.optim.Adagrad: "sum", torch.optim.RMSprop: "square_avg"}.get(kind, "exp_avg_sq")
    for step in range(N):
        scale = torch.ones(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
        if adaptive == "scaled" and step:
            roots = flat(optimizer.state[p][name] for p in model.parameters()).sqrt()
            scale = 1 / (roots + 0.01 * roots.square().mean().sqrt())
            scale /= scale.square().mean().sqrt()
        rows = gradients(model, made.loader.order[step]) * scale
        clipped = rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)
        wanted = (clipped.sum(0) / SIZE + flat(noise.next())) / scale
        assert torch.allclose(released[step].double(), wanted, rtol=1e-4, atol=1e-5)
        torch.nn.utils.vector_to_parameters(released[step], [p.grad for p in model.parameters()])
        optimizer.step()
    for trained, own in zip(made.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(trained, own, atol=1e-6)


def test_parts_of_a_batch_have_one_scale() -> None:
    whole, parts = (train(private(adaptive="scaled", physical_batch_size=part)) for part in (None, 3))
    for one, other in zip(whole, parts, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_restart_goes_on_with_the_same_scale() -> None:
    whole = train(private(adaptive="scaled"))
    first = private(adaptive="scaled")
    train(first, epochs=1)
    kept, weights = first.optimizer.state_dict(), first.model.state_dict()
    second = private(adaptive="scaled")
    second.model.load_state_dict(weights)
    second.optimizer.load_state_dict(kept)
    rest = train(second, epochs=EPOCHS - 1)
    assert all(torch.equal(a, b) for a, b in zip(whole[-len(rest) :], rest, strict=True))


def test_scales_have_root_mean_square_one_and_a_bounded_spread() -> None:
    p = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.Adam([p])
    p.grad = torch.cat([torch.zeros(500), torch.full((500,), 3.0)])
    optimizer.step()
    (scale,) = SecondMoments(optimizer).scales([p])
    assert float(scale.square().mean()) == pytest.approx(1.0)
    assert 1 < float(scale.max() / scale.min()) < 150 and float(scale.min()) > 0
    assert torch.equal(SecondMoments(torch.optim.Adam([p])).scales([p])[0], torch.ones(1000, dtype=torch.float64))


def test_what_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="SGD keeps no second moments"):
        private(torch.optim.SGD, adaptive="scaled")
    with pytest.raises(InvalidParameter, match="adaptive='unbiased' is not known"):
        private(adaptive="unbiased")
