"""Layered networks of which many copies are trained at once: every learning rate of every seed in one batch of models.

A network is a chain of linear layers with torch's own operations between them. The gradient of one example by a layer's
weights is a product of the layer's input and of the cost's gradient by its output, so that the norms of all examples
and the clipped sums follow from one backward pass, and no gradient of an example is kept. The models of one seed share
its batches. papers/tests/test_rate_study.py holds it to gradients that torch.func makes example by example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from factorize.training.rate_check import ArrayRateCheck

START = 0
"""The seed of the weights at the start, which are public."""
Norms = Literal["one", "pooled", "all"]


@dataclass
class Layer:
    """The view of one linear layer in a forward pass.

    Attributes:
        inputs: shape (seeds, 1 or models, examples, positions, inputs).
        outputs: shape (seeds, models, examples, positions, outputs).
        norms: how an example's norm follows: from its one position, from positions of which each output uses one at
            most, or from the sum over all positions.
    """

    inputs: torch.Tensor
    outputs: torch.Tensor
    norms: Norms

    def squares(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the squared norms of the examples' gradients, shape (seeds, models, examples)."""
        if self.norms != "all":
            return ((self.inputs**2).sum(-1) * (gradient**2).sum(-1)).sum(-1)
        return (self._each(gradient) ** 2).sum((-1, -2))

    def total(self, gradient: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return the sums of the examples' gradients, each times its share; shape (seeds, models, inputs, outputs)."""
        weighted = gradient * shares[..., None, None]
        seeds, models, examples, positions, outputs = weighted.shape
        rows = examples * positions
        if self.inputs.shape[1] == 1:
            x = self.inputs.reshape(seeds, rows, -1)
            flat = weighted.permute(0, 2, 3, 1, 4).reshape(seeds, rows, models * outputs)
            return torch.bmm(x.mT, flat).reshape(seeds, -1, models, outputs).permute(0, 2, 1, 3)
        x = self.inputs.reshape(seeds * models, rows, -1)
        return torch.bmm(x.mT, weighted.reshape(seeds * models, rows, outputs)).reshape(seeds, models, -1, outputs)

    def _each(self, gradient: torch.Tensor) -> torch.Tensor:
        seeds, models, examples, positions, outputs = gradient.shape
        x = self.inputs.expand(seeds, models, examples, positions, -1).reshape(seeds * models * examples, positions, -1)
        each = torch.bmm(x.mT, gradient.reshape(len(x), positions, outputs))
        return each.reshape(seeds, models, examples, -1, outputs)


@dataclass
class Pass:
    """One forward pass: the weights of every layer, and what the layers saw."""

    weights: Sequence[torch.Tensor]
    layers: list[Layer] = field(default_factory=list)

    def linear(self, inputs: torch.Tensor, norms: Norms = "one") -> torch.Tensor:
        """Apply the next layer to inputs with a constant in the last column; see `Layer` for the shapes."""
        weights = self.weights[len(self.layers)]
        seeds, models, width, outputs = weights.shape
        _, shared, examples, positions, _ = inputs.shape
        if shared == 1:
            joined = weights.permute(0, 2, 1, 3).reshape(seeds, width, models * outputs)
            found = torch.bmm(inputs.reshape(seeds, examples * positions, width), joined)
            found = found.reshape(seeds, examples, positions, models, outputs).permute(0, 3, 1, 2, 4)
        else:
            rows = inputs.reshape(seeds * models, examples * positions, width)
            found = torch.bmm(rows, weights.reshape(seeds * models, width, outputs))
            found = found.reshape(seeds, models, examples, positions, outputs)
        if torch.is_grad_enabled() and not found.requires_grad:
            found.requires_grad_()
        self.layers.append(Layer(inputs.detach(), found, norms))
        return found


def constant(x: torch.Tensor) -> torch.Tensor:
    """Append a constant, for a bias."""
    return functional.pad(x, (0, 1), value=1.0)


@dataclass(frozen=True)
class Network:
    """A network: the shapes of its layers' weights, and its scores.

    Attributes:
        shapes: inputs (with the constant) and outputs of each layer.
        scores: the scores of a pass for features of shape (seeds, 1, examples, positions, inputs).
        convex: begins from zero, as logistic regression does.
    """

    shapes: tuple[tuple[int, int], ...]
    scores: Callable[[Pass, torch.Tensor], torch.Tensor]
    convex: bool = False

    @property
    def size(self) -> int:
        """Return the number of weights."""
        return sum(a * b for a, b in self.shapes)

    def start(self) -> torch.Tensor:
        """Return the public weights at the start; biases are zero."""
        luck = torch.Generator().manual_seed(START)
        parts = []
        for inputs, outputs in self.shapes:
            drawn = torch.randn(inputs, outputs, generator=luck) * (0.0 if self.convex else inputs**-0.5)
            drawn[-1] = 0.0
            parts.append(drawn.flatten())
        return torch.cat(parts)

    def passed(self, flat: torch.Tensor, features: torch.Tensor) -> tuple[Pass, torch.Tensor]:
        """Return a pass of weights of shape (seeds, models, size), and its scores."""
        parts = torch.split(flat, [a * b for a, b in self.shapes], dim=2)
        one = Pass([part.unflatten(2, shape) for part, shape in zip(parts, self.shapes, strict=True)])
        return one, self.scores(one, features)

    def clipped_sum(
        self,
        flat: torch.Tensor,
        features: torch.Tensor,
        labels: torch.Tensor,
        present: torch.Tensor,
        clip_norm: float | None,
    ) -> torch.Tensor:
        """Return the sums of clipped gradients, shape (seeds, models, size).

        Args:
            flat: weights of shape (seeds, models, size).
            features: features of the batches, shape (seeds, examples, positions, inputs).
            labels: shape (seeds, examples).
            present: 1.0, or 0.0 for an example that fills up a batch; shape (seeds, examples).
            clip_norm: bound on an example's gradient; None clips nothing.
        """
        done, scores = self.passed(flat, features[:, None])
        seeds, models, examples, classes = scores.shape
        expected = labels[:, None].expand(seeds, models, examples).reshape(-1)
        cost = functional.cross_entropy(scores.reshape(-1, classes), expected, reduction="sum")
        gradients = torch.autograd.grad(cost, [one.outputs for one in done.layers])
        shares = present[:, None].expand(seeds, models, examples)
        if clip_norm is not None:
            pairs = list(zip(done.layers, gradients, strict=True))
            squares = sum((one.squares(gradient) for one, gradient in pairs), torch.zeros(()))
            shares = shares * (clip_norm / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)
        totals = [one.total(gradient, shares) for one, gradient in zip(done.layers, gradients, strict=True)]
        return torch.cat([one.flatten(2) for one in totals], dim=2)

    @torch.no_grad()
    def accuracies(self, flat: torch.Tensor, features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
        """Return the accuracy of all models in percent, shape (seeds, models); features without the axis of seeds."""
        right = torch.zeros(flat.shape[:2])
        for some, own in zip(features.split(1000), labels.split(1000), strict=True):
            shared = some[None, None].expand(len(flat), 1, *some.shape)
            right += (self.passed(flat, shared)[1].argmax(-1) == own).sum(-1)
        found: np.ndarray = (100 * right / len(labels)).numpy()
        return found


def logistic(inputs: int, classes: int) -> Network:
    """Return logistic regression on all positions together."""

    def scores(done: Pass, x: torch.Tensor) -> torch.Tensor:
        return done.linear(x.flatten(3)[..., None, :])[..., 0, :]

    return Network(((inputs, classes),), scores, convex=True)


def perceptron(inputs: int, classes: int, width: int) -> Network:
    """Return a network with one hidden layer of rectified units."""

    def scores(done: Pass, x: torch.Tensor) -> torch.Tensor:
        return done.linear(constant(done.linear(x).relu()))[..., 0, :]

    return Network(((inputs, width), (width + 1, classes)), scores)


def convolution(inputs: int, classes: int, channels: int) -> Network:
    """Return a convolution over windows of a sequence, its largest response, rectified, and a linear layer."""

    def scores(done: Pass, x: torch.Tensor) -> torch.Tensor:
        largest = done.linear(x, "pooled").max(dim=3).values  # there is one position for each channel, ties included
        return done.linear(constant(largest.relu())[..., None, :])[..., 0, :]

    return Network(((inputs, channels), (channels + 1, classes)), scores)


def transformer(inputs: int, classes: int, width: int, length: int) -> Network:
    """Return a transformer of one block with one head, normalised before each part, and a linear layer on the mean."""
    place = torch.arange(length)[:, None] / 10000 ** (torch.arange(width)[None] // 2 * 2 / width)
    where = torch.where(torch.arange(width) % 2 == 0, place.sin(), place.cos())

    def scores(done: Pass, x: torch.Tensor) -> torch.Tensor:
        def layer(y: torch.Tensor, normal: bool = True) -> torch.Tensor:
            return done.linear(constant(functional.layer_norm(y, y.shape[-1:]) if normal else y), "all")

        there = done.linear(x, "all") + where
        query, key, value = layer(there).chunk(3, dim=-1)
        there = there + layer((query @ key.mT * width**-0.5).softmax(-1) @ value, normal=False)
        there = there + layer(layer(there).relu(), normal=False)
        return done.linear(constant(there.mean(3, keepdim=True)))[..., 0, :]

    own = width + 1
    shapes = ((inputs, width), (own, 3 * width), (own, width), (own, 2 * width), (2 * width + 1, width), (own, classes))
    return Network(shapes, scores)


def trained(
    network: Network,
    data: tuple[torch.Tensor, torch.Tensor],
    batches: Sequence[Sequence[np.ndarray]],
    noise: Sequence[np.ndarray] | None,
    optimizer: Mapped,
    *,
    sigma: float,
    clip_norm: float | None,
    divisor: int,
    check: Callable[[torch.Tensor], ArrayRateCheck] | None = None,
) -> torch.Tensor:
    """Train all models and return their weights, shape (seeds, models, size).

    Args:
        network: network of all.
        data: features, shape (examples, positions, inputs), and labels.
        batches: indices of each seed and step.
        noise: C^-1 Z of each seed, shape (steps, size); None for none.
        optimizer: optimizer of all, with a learning rate for each model.
        sigma: standard deviation per entry of Z, for means.
        clip_norm: bound on an example's gradient.
        divisor: divisor of the means.
        check: what makes the check of a model's rate from its first weights.
    """
    features, labels = data
    weights = network.start().expand(len(batches), len(optimizer.rates), network.size).clone()
    state, places = optimizer.begun(weights), list(np.ndindex(*weights.shape[:2]))
    checks = [] if check is None else [check(weights[place]) for place in places]
    for step, here in enumerate(zip(*batches, strict=True)):
        longest = max(len(batch) for batch in here)
        indices = torch.as_tensor(np.stack([np.pad(batch, (0, longest - len(batch))) for batch in here]))
        present = torch.as_tensor([[1.0] * len(batch) + [0.0] * (longest - len(batch)) for batch in here])
        gradient = network.clipped_sum(weights, features[indices], labels[indices], present, clip_norm) / divisor
        if noise is not None:
            gradient += sigma * torch.as_tensor(np.stack([own[step] for own in noise]))[:, None]
        if checks:
            state.factors = torch.tensor([one.factor for one in checks]).reshape(*weights.shape[:2], 1)
        state.step(weights, gradient, step)
        for place, one in zip(places, checks, strict=bool(checks)):
            rate = optimizer.rates[place[1]] * optimizer.schedule[step] * one.factor
            (weights[place],) = one.step([weights[place]], float(rate))
    return weights


@dataclass(frozen=True)
class Mapped:
    """An optimizer with one learning rate for each model.

    Attributes:
        kind: `sgd` (with a momentum or none), `adam` or `adamw`, as torch.optim has them.
        rates: learning rates of the models.
        schedule: what each step multiplies the rates by.
        momentum: momentum of `sgd`.
        weight_decay: weight decay of `adamw`.
    """

    kind: str
    rates: np.ndarray
    schedule: np.ndarray
    momentum: float = 0.0
    weight_decay: float = 0.01

    def begun(self, weights: torch.Tensor) -> Any:
        """Return its state for these weights."""
        return _Steps(self, torch.zeros_like(weights), torch.zeros_like(weights))


@dataclass
class _Steps:
    optimizer: Mapped
    first: torch.Tensor
    second: torch.Tensor
    factors: torch.Tensor | float = 1.0

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, step: int) -> None:
        own = self.optimizer
        rate = torch.as_tensor(own.rates * own.schedule[step], dtype=torch.float32)[:, None] * self.factors
        if own.kind == "sgd":
            if own.momentum:
                gradient = self.first.mul_(own.momentum).add_(gradient)
            weights -= rate * gradient
            return
        if own.kind == "adamw":
            weights *= 1 - rate * own.weight_decay
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (self.second / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
        weights -= rate / (1 - 0.9 ** (step + 1)) * self.first / root
