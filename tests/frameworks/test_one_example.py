"""Jobs on two data sets that differ by one example of a step: the weights differ by what its clip norm allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from handmade import handmade
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch.nn import functional
from torch.utils.data import TensorDataset

from factorize.adapters.private import make_private
from factorize.structures.toeplitz import ToeplitzMatrix

SIZE, CLIP = 8, 1e-2
KINDS = ("other", "huge", "infinite", "relabelled")
"""What takes the place of an example, in a step of its own each."""


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = DPLSTM(6, 8, batch_first=True), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x[:, None].expand(-1, SIZE, -1))[0][:, -1])


class Attentive(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place, self.out = torch.nn.Parameter(torch.randn(1, 6, 8)), torch.nn.Linear(8, 3)
        self.block = torch.nn.ModuleList([torch.nn.Linear(1, 8), DPMultiheadAttention(8, 2, batch_first=True)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.block[0](x[:, :, None]) + self.place
        return self.out((h + self.block[1](h, h, h)[0]).mean(1))


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = torch.nn.Linear(6, 2), torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(
            share[:, None] * out(x) for share, out in zip(self.gate(x).softmax(1).unbind(1), self.out, strict=True)
        )


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = (
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.GroupNorm(2, 4),
            torch.nn.Linear(24, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.view(-1, 1, 2, 3)
        h = self.norm(self.conv(image))
        h += image
        return self.out(functional.relu(h, inplace=True).flatten(1))


def plain(*between: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), *between, torch.nn.Linear(8, 3))


def each(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y, reduction="none")


def mean(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y)


def two_views(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one, other = model(x), model(0.9 * x)
    return functional.cross_entropy(one, y) + functional.mse_loss(one, other)


JOBS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[..., torch.Tensor]]] = {
    "perceptron": (lambda: plain(torch.nn.ReLU(inplace=True)), mean),
    "norms": (lambda: plain(torch.nn.LayerNorm(8), torch.nn.PReLU(), torch.nn.Dropout(0.2)), mean),
    "residual": (Residual, mean),
    "recurrent": (Recurrent, mean),
    "attentive": (Attentive, mean),
    "experts": (Experts, mean),
    "two views": (lambda: plain(torch.nn.Tanh()), two_views),
    "hinge": (lambda: plain(torch.nn.Tanh()), lambda m, x, y: functional.relu(each(m, x, y) - 0.9).mean()),
    "focal": (
        lambda: plain(torch.nn.Tanh()),
        lambda m, x, y: ((1 - (-each(m, x, y)).exp()) ** 2 * each(m, x, y)).mean(),
    ),
    "finite losses": (lambda: plain(torch.nn.Tanh()), lambda m, x, y: each(m, x, y).nan_to_num(0, 0, 0).mean()),
}


def weights(job: str, x: torch.Tensor, y: torch.Tensor, mode: Any, before: list[list[torch.Tensor]]) -> Any:
    """Return the weights after each step, whose step begins at those of `before`, if there are any."""
    make, loss = JOBS[job]
    torch.manual_seed(3)
    model, n = make(), len(KINDS)
    private, optimizer, loader, _ = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        TensorDataset(x, y),
        handmade(ToeplitzMatrix(np.eye(1, n)[0], n)),
        epsilon=8.0,
        delta=1e-2,
        epochs=1,
        batch_size=SIZE,
        clip_norm=CLIP,
        grad_sample_mode=mode,
        seed=2**70,
    )
    found: list[list[torch.Tensor]] = []
    for own in loader:
        step = optimizer.noise.step
        loss(private, *own).backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.noise.step > step:
            found.append([p.detach().clone() for p in model.parameters()])
            for p, value in zip(model.parameters(), before[step] if before else found[-1], strict=True):
                p.data.copy_(value)
        torch.manual_seed(step)
    optimizer.close()
    return found, loader.order


@pytest.mark.parametrize(("job", "mode"), [*((job, "hooks") for job in JOBS), ("residual", "functorch")])
def test_one_example_moves_the_weights_by_no_more_than_its_clip_norm(job: str, mode: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("factorize.adapters.loader.refuse_mixed_data", lambda *_: None)  # takes most of the time
    luck = torch.Generator().manual_seed(0)
    x, y = torch.randn(SIZE * len(KINDS), 6, generator=luck), torch.randint(0, 3, (SIZE * len(KINDS),), generator=luck)
    found, order = weights(job, x, y, mode, [])
    places = dict(zip(KINDS, (int(order[t][3 * t % SIZE]) for t in range(len(KINDS))), strict=True))
    x[places["other"]] = torch.randn(6, generator=luck)
    x[places["huge"]] *= 1e4
    x[places["infinite"]] = torch.inf
    y[places["relabelled"]] = (y[places["relabelled"]] + 1) % 3
    others, _ = weights(job, x, y, mode, found)
    moved = [
        sum(float((a - b).square().sum()) for a, b in zip(*pair, strict=True)) ** 0.5
        for pair in zip(found, others, strict=True)
    ]
    assert all(each <= 2 * CLIP / SIZE + 1e-6 for each in moved) and max(moved) > 0.5 * CLIP / SIZE
