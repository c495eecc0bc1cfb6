"""A torch module's gradients, one per example: those of numpy, and a network trains on them."""

from __future__ import annotations

import numpy as np
import pytest

from factorize.errors import InvalidParameter
from papers.algorithms import LinearRegression
from papers.training.torch_gradients import ModuleGradients

torch = pytest.importorskip("torch")  # `make test-frameworks` runs it

EXAMPLES = 64


def regression() -> tuple[ModuleGradients, LinearRegression]:
    """The same least squares for torch and for numpy."""
    luck = np.random.default_rng(0)
    x = luck.standard_normal((EXAMPLES, 3))
    y = x @ np.array([1.0, -2.0, 0.5])
    module = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    own = ModuleGradients(
        module, lambda z, t: ((z[:, 0] - t) ** 2).sum() / 2, torch.tensor(x), torch.tensor(y), chunk=10
    )
    return own, LinearRegression(x, y)


def network() -> ModuleGradients:
    """A convolutional network with a frozen layer and a buffer, on images whose class is their brighter half."""
    luck = torch.Generator().manual_seed(1)
    images = torch.randn(EXAMPLES, 1, 6, 6, generator=luck)
    labels = (images[:, 0, :3].sum(dim=(1, 2)) > images[:, 0, 3:].sum(dim=(1, 2))).long()
    torch.manual_seed(2)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 2)
    )
    module[1].weight.requires_grad_(False)
    module.register_buffer("unused", torch.zeros(1))
    return ModuleGradients(module, torch.nn.functional.cross_entropy, images, labels)


def test_gradients_are_those_of_numpy() -> None:
    own, plain = regression()
    weights, batch = np.array([0.3, 0.2, -0.1]), np.array([5, 0, 63, 17, 2, 3, 4, 9, 11, 30, 31])
    np.testing.assert_allclose(own(weights, batch), plain(weights, batch), rtol=1e-12)


def test_gradients_of_a_network_are_those_of_single_backward_passes() -> None:
    model = network()
    weights, batch = model.weights(), np.array([3, 40])
    found = model(weights, batch)
    for row, example in zip(found, batch, strict=True):
        model._module.zero_grad()
        model._loss(model._module(model._inputs[example][None]), model._targets[example][None]).backward()
        flat = [one.grad.double().numpy().ravel() for one in model._module.parameters() if one.requires_grad]
        np.testing.assert_allclose(row, np.concatenate(flat), atol=1e-6)


def test_weights_go_in_and_out() -> None:
    model = network()
    changed = model.weights() + 1.0
    model.load(changed)
    np.testing.assert_allclose(model.weights(), changed, atol=1e-6)
    assert float(model._module[1].weight.sum()) == 4  # frozen


def test_what_has_no_gradient_per_example_is_refused() -> None:
    x, y = torch.zeros(4, 3), torch.zeros(4)
    mixing = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    with pytest.raises(InvalidParameter, match="BatchNorm1d mixes the examples"):
        ModuleGradients(mixing, torch.nn.functional.mse_loss, x, y)
    with pytest.raises(InvalidParameter, match="0 trainable parameters"):
        ModuleGradients(torch.nn.ReLU(), torch.nn.functional.mse_loss, x, y)
    model, _ = regression()
    with pytest.raises(InvalidParameter, match="flat ones"):
        model(np.zeros((3, 1)), np.arange(2))
