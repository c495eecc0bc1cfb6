"""Data sets whose items come again, each in a way in which people write them, and sound ones that resemble these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from factorize.adapters.data.repeated_data import refuse_repeats
from factorize.errors import InvalidParticipation

SIZE = 40
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(SIZE) % 5
DATA = TensorDataset(X, Y)
HALF = Subset(DATA, range(SIZE // 2))
PLACES = [*range(SIZE), *range(20)]


class Chosen(Dataset[Any]):
    """Items of another data set, by a rule or by a list of places, and with noise as of an augmentation."""

    def __init__(self, base: Any, size: int, places: Any, scale: Any = 1) -> None:
        self.base, self.size, self.places, self.scale = base, size, places, torch.tensor(float(scale))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Any:
        place = self.places(i) if callable(self.places) else int(self.places[i])
        x, y = self.base[place]
        return x + self.scale * torch.randn(3), y


class Turned(Dataset[Any]):
    """The items of another data set, turned around, with a number of views of each."""

    def __init__(self, base: Any, views: int = 1) -> None:
        self.base, self.views = base, views

    def __len__(self) -> int:
        return len(self.base) * self.views

    def __getitem__(self, i: int) -> Any:
        x, y = self.base[i // self.views]
        return x.roll(i % self.views) * -1, y


class Notebook(Dataset[Any]):
    """Items of arrays that stand beside the class, some turned around."""

    def __init__(self, size: int = SIZE, views: int = 1) -> None:
        self.size, self.views = size, views

    def __len__(self) -> int:
        return self.size * self.views

    def __getitem__(self, i: int) -> Any:
        return X[PLACES[i // self.views]].roll(i % self.views), 0


class Files(Dataset[Any]):
    """Names of files, whose contents may be turned around when they are read."""

    def __init__(self, sign: int = 1) -> None:
        self.samples, self.sign = [(f"{i}.png", int(Y[i])) for i in range(SIZE)], sign

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> Any:
        name, y = self.samples[i]
        return self.sign * X[int(name[:-4])], y


class Table:
    """As a table of pandas, whose rows keep their names where they are copied."""

    def __init__(self, names: list[int]) -> None:
        self.iloc, self.index = X[names].numpy(), np.array(names)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, column: str) -> Any:
        raise KeyError(column)


class Frame(Dataset[Any]):
    """The rows of a table."""

    def __init__(self, names: list[int]) -> None:
        self.frame = Table(names)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> Any:
        return self.frame.iloc[i]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Chosen(HALF, SIZE, lambda i: i % len(HALF)),
        lambda: Chosen(HALF, 32, lambda i: i % len(HALF)),
        lambda: Chosen(HALF, SIZE, lambda i: i // 2),
        lambda: Chosen(HALF, SIZE, (torch.arange(SIZE) * 7 % 20)),
        lambda: Chosen(DATA, SIZE, [*range(30), *range(10)]),
        lambda: Chosen(Chosen(HALF, SIZE, lambda i: i % len(HALF)), SIZE, lambda i: i),
        lambda: Subset(Chosen(HALF, SIZE, lambda i: i % len(HALF)), range(30)),
        lambda: ConcatDataset([Chosen(HALF, SIZE, lambda i: i % len(HALF)), Subset(DATA, range(20, 40))]),
        lambda: [HALF[i] for i in range(len(HALF))] * 3,
        lambda: TensorDataset(X[:20].repeat(2, 1), Y[:20].repeat(2)),
        lambda: Frame([*range(25), *range(15)]),
        lambda: ConcatDataset([DATA, Turned(DATA)]),
        lambda: ConcatDataset([DATA, Turned(Subset(DATA, [3, 11]))]),
        lambda: ConcatDataset([Files(), Files(-1)]),
        lambda: Turned(DATA, views=2),
        lambda: Notebook(len(PLACES)),
        lambda: Notebook(views=2),
    ],
)
def test_items_that_come_again_are_refused(make: Callable[[], Any]) -> None:
    state = torch.random.get_rng_state()
    with pytest.raises(InvalidParticipation, match="lists some examples more than once.*users="):
        refuse_repeats(make())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    "data",
    [
        DATA,
        X,
        X.numpy(),
        [DATA[i] for i in range(SIZE)],
        Chosen(DATA, SIZE, lambda i: i, 0.0),
        Chosen(DATA, SIZE, [*reversed(range(SIZE))]),
        TensorDataset(torch.ones(SIZE, 3), Y),
        TensorDataset((X > 0).float(), Y % 2),
        TensorDataset((X > 0).float().sort(0).values, torch.arange(SIZE) // 9),
        Chosen(DATA, SIZE, lambda i: {}[i]),
        Frame([*range(SIZE)]),
        ConcatDataset([Turned(HALF), Subset(DATA, range(20, 40))]),
        Notebook(),
        ConcatDataset([Subset(Files(), range(20)), Turned(Subset(Files(), range(20, 40)))]),
    ],
)
def test_rows_of_several_people_may_be_equal(data: Any) -> None:
    """A few equal rows, constants, labels, sorted features with few values, and items that cannot be read yet."""
    refuse_repeats(data)
