"""A small convolutional network for square images of one channel, trained in many copies at once with torch.

Two convolutions of 3 x 3 with 8 and 16 channels, tanh, averages over 2 x 2, and a linear layer: 1898 numbers for the
8 x 8 pixels of scikit-learn's digits. An example's gradient is its own, by torch.func. All models begin with the same
public weights. papers/tests/test_convolutional.py holds it to `papers.training.dp_ftrl`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.leaderboard.many_models import classes_of, examples
from papers.reproductions.images import Images

if TYPE_CHECKING:
    import torch

CHANNELS = (8, 16)
START = 0
"""The seed of the weights at the start, which are public."""
MAX_EXAMPLES_AT_ONCE = 72
"""The examples of one seed whose gradients are in memory together, one for each model."""


def network(side: int, classes: int) -> torch.nn.Module:
    """Return the network with its public first weights, for images of side x side pixels."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(START)
        pooled = (side - 4) // 2
        return nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, CHANNELS[0], 3),
            nn.Tanh(),
            nn.Conv2d(CHANNELS[0], CHANNELS[1], 3),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(CHANNELS[1] * pooled * pooled, classes),
        )


class ConvolutionalNetwork:
    """A `Kind` of many_models.py; weights of shape (seeds, models, size)."""

    def size(self, images: Images) -> int:
        """Return the number of trainable numbers."""
        return len(_flat(_network_of(images)))

    def start(self, images: Images, seeds: int, count: int) -> np.ndarray:
        """Return the public first weights, the same for all."""
        return np.tile(_flat(_network_of(images)), (seeds, count, 1))

    def rows(self, images: Images, noise: np.ndarray) -> np.ndarray:
        """Return the noise, the same for every model."""
        return noise[:, None, :]

    def clipped_sum(
        self, images: Images, weights: np.ndarray, indices: np.ndarray, present: np.ndarray, clip_norm: float
    ) -> np.ndarray:
        """Return the sums of gradients that torch.func makes for each example and model."""
        import torch

        net = _network_of(images)

        def cost(one: Any, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(_applied(net, one, x[None]), y[None])

        each = torch.func.vmap(torch.func.grad(cost), in_dims=(None, 0, 0))
        every = torch.func.vmap(each, in_dims=(0, None, None))
        out = np.zeros_like(weights)
        for seed, (places, there) in enumerate(zip(indices, present, strict=True)):
            models = torch.as_tensor(weights[seed])
            for at in np.split(places[there > 0], range(MAX_EXAMPLES_AT_ONCE, int(there.sum()), MAX_EXAMPLES_AT_ONCE)):
                if len(at):
                    x, y = torch.as_tensor(images.train[at]), torch.as_tensor(images.train_labels[at])
                    found = every(models, x, y)
                    shrunk = (clip_norm / found.norm(dim=2).clamp(min=1e-30)).clamp(max=1.0)
                    out[seed] += torch.einsum("me,med->md", shrunk, found).numpy()
        return out

    def accuracies(self, images: Images, weights: np.ndarray, *, training: bool) -> np.ndarray:
        """Return the accuracy of all models in percent on `examples`, shape (seeds, models)."""
        import torch

        features, labels = examples(images, training=training)
        x, net = torch.as_tensor(features), _network_of(images)
        applied = torch.func.vmap(lambda one: _applied(net, one, x))
        with torch.no_grad():
            scores = [applied(torch.as_tensor(models)).argmax(dim=2).numpy() for models in weights]
        return np.stack([100 * (found == labels).mean(axis=1) for found in scores])


def _network_of(images: Images) -> torch.nn.Module:
    return network(math.isqrt(images.train.shape[1]), classes_of(images))


def _flat(net: torch.nn.Module) -> np.ndarray:
    return np.concatenate([one.detach().numpy().ravel() for one in net.parameters()])


def _applied(net: torch.nn.Module, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs of the network with these flat weights."""
    import torch

    parts, first = {}, 0
    for name, one in net.named_parameters():
        parts[name] = weights[first : first + one.numel()].reshape(one.shape)
        first += one.numel()
    outputs: torch.Tensor = torch.func.functional_call(net, parts, (x,))
    return outputs
