"""The leaderboard's convolutional networks, all at once, are those that `dp_ftrl` trains one by one."""

from __future__ import annotations

import numpy as np
import pytest

from factorize.training import fixed_order
from papers.training import PlainSums, Sgd, dp_ftrl


class Replayed:
    """Rows that were drawn before, scaled."""

    def __init__(self, rows: np.ndarray, sigma: float) -> None:
        self._rows, self._sigma = iter(rows), sigma

    def next(self) -> np.ndarray:
        """Return the next row."""
        return self._sigma * next(self._rows)


def test_all_networks_at_once_are_dp_ftrl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped where there is no torch; `make test-frameworks` runs it."""
    torch = pytest.importorskip("torch")
    from papers.leaderboard import convolutional as network
    from papers.leaderboard import many_models as many
    from papers.reproductions.images import Images
    from papers.training.torch_gradients import ModuleGradients

    monkeypatch.setattr(many, "PIECE_EXAMPLES", 10)  # batches then come in pieces
    monkeypatch.setattr(network, "MAX_EXAMPLES_AT_ONCE", 4)
    luck = np.random.default_rng(0)
    pixels, labels = luck.random((40, 64), dtype=np.float32), luck.integers(0, 10, 40)
    images = Images(pixels[:32], labels[:32], pixels[32:], labels[32:])
    kind = network.ConvolutionalNetwork()
    size = kind.size(images)
    assert size == 8 * 9 + 8 + 16 * 72 + 16 + 64 * 10 + 10
    orders = [fixed_order(32, 16, epochs=1, seed=seed) for seed in (1, 2)]
    uneven = [list(orders[0]), [batch[: 16 - 3 * step] for step, batch in enumerate(orders[1])]]
    noise = [np.random.default_rng(seed).standard_normal((2, size)).astype(np.float32) for seed in (3, 4)]
    models = many.Models(np.array([0.0, 0.02]), np.array([0.5, 0.2]), 0.9, 0.7, 16)
    found = many.trained(images, uneven, noise, models, kind)
    first = kind.start(images, 1, 1)[0, 0]
    for seed, batches in enumerate(uneven):
        for model in range(2):
            module = network.network(8, 10)
            gradient = ModuleGradients(
                module,
                torch.nn.functional.cross_entropy,
                torch.as_tensor(images.train),
                torch.as_tensor(images.train_labels),
            )
            sums = PlainSums(divisor=16, clip_norm=0.7, noise=Replayed(noise[seed], models.sigmas[model]))
            one = dp_ftrl(
                gradient, first, batches, sums, optimizer=Sgd(learning_rate=models.rates[model], momentum=0.9)
            )
            np.testing.assert_allclose(found[seed, model], one.weights, atol=2e-5)
    _, test = many.judged(images, found, kind)
    gradient.load(found[1, 1])
    with torch.no_grad():
        right = module(torch.as_tensor(images.test)).argmax(dim=1).numpy() == images.test_labels
    assert test.shape == (2, 2) and test[1, 1] == 100 * right.mean()
