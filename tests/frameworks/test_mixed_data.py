"""Data sets whose items come from one example each, however they keep it, and those that mix several."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from factorize.adapters.data.mixed_data import _alter, digest_of, refuse_mixed_data
from factorize.errors import InvalidParameter

EXAMPLES = 9
X = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(EXAMPLES) % 2
ORDER = [4, 0, 7, 2, 8, 1, 3, 6, 5]
Item = Callable[[Any, int], Any]


class Items(Dataset[Any]):
    """Items that a function makes of attributes."""

    def __init__(self, item: Item, **kept: Any) -> None:
        self.__dict__.update(kept)
        self._item = item

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, i: int) -> Any:
        return self._item(self, i)


class OfClass(Items):
    """Examples that are an attribute of the class."""

    x = X


class Beside(Items):
    """Examples that stand beside the class, as in a notebook."""

    def __getitem__(self, i: int) -> Any:
        return self._item(X, i)


def around(item: Item) -> Items:
    """Examples that a function keeps, which makes the class, too."""
    x = X.clone()

    class Inner(Items):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> Any:
            return super().__getitem__(i), self._item(x, i)

    return Inner(item)


class Frame:
    """A table as pandas has them, by places and by names."""

    def __init__(self, rows: np.ndarray, index: list[int] | None = None) -> None:
        self._rows, self.index = rows, list(range(len(rows))) if index is None else index

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, column: str) -> Any:
        raise KeyError(column)

    @property
    def loc(self) -> dict[int, np.ndarray]:
        return dict(zip(self.index, self._rows, strict=True))

    @property
    def iloc(self) -> Any:
        table = self

        class Places:
            def __getitem__(self, i: Any) -> Any:
                return Frame(table._rows[i], np.array(table.index)[i].tolist()) if np.ndim(i) else table._rows[i]

        return Places()

    def set_axis(self, index: list[int]) -> Frame:
        return Frame(self._rows, index)


def near(own: Any, i: int) -> Any:
    """The mean of an example and the nearest other one."""
    return own.x[torch.cdist(own.x[i][None], own.x)[0].topk(2, largest=False).indices].mean(0)


def window(own: Any, i: int) -> Any:
    own.read[:] = [*own.read, own.x[i]][-4:]
    return torch.stack(own.read).mean(0)


def luck() -> np.random.Generator:
    return np.random.default_rng(5)


MIXED: dict[str, Callable[[], Any]] = {
    "a dict": lambda: Items(lambda own, i: own.kept["x"][i] + own.kept["x"][i - 1], kept={"x": X, "y": Y}),
    "a mapping": lambda: Items(lambda own, i: own.kept["x"][i] + own.kept["x"][i - 1], kept=UserDict(x=X)),
    "numbers of examples": lambda: Items(lambda own, i: own.kept[i] + own.kept[(i + 1) % 9], kept=dict(enumerate(X))),
    "an object": lambda: Items(lambda own, i: own.kept.x[i] + own.kept.x[i - 1], kept=SimpleNamespace(x=X)),
    "the class": lambda: OfClass(lambda own, i: own.x[i] + own.x[i - 1]),
    "a notebook": lambda: Beside(lambda x, i: x[i] + x[i - 1]),
    "a notebook's mean": lambda: Beside(lambda x, i: x[i] - x.T.mean(1)),
    "a function around": lambda: around(lambda x, i: x[i] + x[i - 1] if torch.is_tensor(x) else i),
    "places of a table": lambda: Items(lambda own, i: own.t.iloc[i] + own.t.iloc[i - 1], t=Frame(X.numpy())),
    "names of a table": lambda: Items(lambda own, i: own.t.loc[i] + own.t.loc[(i + 1) % 9], t=Frame(X.numpy())),
    "a method": lambda: Items(lambda own, i: own.x.index_select(0, torch.tensor([i, i - 1]) % 9).sum(0), x=X),
    "a function": lambda: Items(lambda own, i: np.take(own.x, [i, i - 1], 0).sum(0), x=X.numpy()),
    "a roll": lambda: Items(lambda own, i: own.x[i] + torch.roll(own.x, 1, 0)[i], x=X),
    "a neighbour": lambda: Items(near, x=X),
    "names of files": lambda: Items(lambda own, i: own.f[i] + random.choice(own.f), f=[f"{i}.png" for i in range(9)]),
    "labels": lambda: Items(lambda own, i: torch.roll(own.y, 1)[i] + own.y[i], y=torch.arange(EXAMPLES)),
    "a partner of a permutation": lambda: Items(lambda own, i: own.x[i] + own.x[own.order[i]], x=X, order=ORDER),
    "a partner's label": lambda: Items(lambda own, i: (own.x[i], own.y[own.order[i]]), x=X, y=Y * 1.0, order=ORDER),
    "a mean beside a permutation": lambda: Items(
        lambda own, i: own.x[own.order[i]] - own.x.T.mean(1), x=X, order=torch.tensor(ORDER)
    ),
    "the last four": lambda: Items(window, x=X, read=[]),
    "a data set within": lambda: Items(lambda own, i: own.inner[i], inner=MIXED["a dict"]()),
    "a part of several": lambda: ConcatDataset([Subset(MIXED["a dict"](), [1, 2, 3]), MIXED["a roll"]()]),
}
SOUND: dict[str, Callable[[], Any]] = {
    "a dict": lambda: Items(lambda own, i: {name: each[i] for name, each in own.kept.items()}, kept={"x": X, "y": Y}),
    "numbers of examples": lambda: Items(lambda own, i: own.kept[i], kept=dict(enumerate(X))),
    "an object": lambda: Items(lambda own, i: own.kept.x[i], kept=SimpleNamespace(x=X, itself=[])),
    "the class": lambda: OfClass(lambda own, i: own.x[i]),
    "a notebook": lambda: Beside(lambda x, i: x[i]),
    "a function around": lambda: around(lambda x, i: x[i] if torch.is_tensor(x) else i),
    "a table": lambda: Items(lambda own, i: own.t.iloc[i] + own.t.loc[i], t=Frame(X.numpy())),
    "names of files": lambda: Items(lambda own, i: own.f[i], f=[f"{i}.png" for i in range(9)]),
    "a list of places": lambda: Items(lambda own, i: (own.x[own.order[i]], own.y[own.order[i]]), x=X, y=Y, order=ORDER),
    "a tensor of places": lambda: Items(lambda own, i: own.x[own.order[i]], x=X.numpy(), order=torch.tensor(ORDER)),
    "places in a data set": lambda: Items(
        lambda own, i: own.inner[own.order[i]], inner=SOUND["a dict"](), order=np.array(ORDER)
    ),
    "labels that are counted": lambda: Items(lambda own, i: (X[i], torch.bincount(own.y), own.y[i]), y=Y),
    "coins": lambda: Items(lambda own, i: own.x[i] + torch.randn(3), x=X),
    "coins of its own": lambda: Items(lambda own, i: own.x[i] * own.luck.choice([-1.0, 1.0]), x=X.numpy(), luck=luck()),
    "rare coins of its own": lambda: Items(
        lambda own, i: own.x[i] * (-1 if own.luck.random() < 0.1 else 1), x=X.numpy(), luck=luck()
    ),
    "bfloat16, and nothing": lambda: Items(lambda own, i: (own.x[i], own.no[i] or 0), x=X.bfloat16(), no=[None] * 9),
    "a data set within": lambda: Items(lambda own, i: own.inner[i], inner=SOUND["a dict"]()),
}


@pytest.mark.parametrize("name", MIXED)
def test_items_of_several_examples_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match="make each item from one example alone"):
        refuse_mixed_data(MIXED[name](), default_collate)


@pytest.mark.parametrize("name", SOUND)
def test_items_of_one_example_are_not(name: str) -> None:
    refuse_mixed_data(SOUND[name](), default_collate)


def test_a_collation_that_copies_examples_for_none_is_refused() -> None:
    """`None` stands for a file that cannot be read; zeros in its place, or nothing, take no other example twice."""

    def collate(fill: Callable[[list[Any]], list[Any]], items: list[Any]) -> Any:
        found = [each for each in items if each is not None]
        return default_collate(found + fill(found)[: len(items) - len(found)])

    items = Items(lambda own, i: own.x[i], x=X)
    with pytest.raises(InvalidParameter, match="puts another example in the place of one that is None"):
        refuse_mixed_data(items, partial(collate, lambda found: found))
    for fill in (lambda _: [torch.zeros(X.shape[1])], lambda _: []):
        refuse_mixed_data(items, partial(collate, fill))


def test_a_collation_that_keeps_examples_for_later_batches_is_refused() -> None:
    """One may count its batches."""
    kept = [torch.zeros(X.shape[1])]

    def with_last(items: list[Any]) -> Any:
        kept.append(items[0])
        return torch.stack([items[0] + kept[-2], *items[1:]])

    def counted(items: list[Any]) -> Any:
        kept.append(items[0])
        return torch.stack(items) * len(kept)

    items = Items(lambda own, i: own.x[i], x=X)
    with pytest.raises(InvalidParameter, match="depends on those collated before it"):
        refuse_mixed_data(items, with_last)
    refuse_mixed_data(items, counted)


def test_other_entries_are_altered_and_labels_stay_as_many() -> None:
    moved = _alter(np.arange(5), 2)
    assert moved[2] == 2 and sorted(moved) == list(range(5)) and (moved != np.arange(5)).sum() == 4
    for kind in (torch.Tensor.numpy, torch.clone):
        assert (np.asarray(_alter(kind(X), 4)) == X[4].numpy()).all()
    assert _alter(["a", "b", "c"], 0) == ["a", "c", "b"] and _alter("abc", 0) == "abc"


def test_an_object_that_holds_itself_is_looked_into_once() -> None:
    kept = SimpleNamespace(x=X)
    kept.itself = {"again": kept}
    refuse_mixed_data(Items(lambda own, i: own.kept.x[i], kept=kept), default_collate)


class Graph:
    """Fields by name, as graphs of other libraries have them: a sequence whose parts have several shapes."""

    def __init__(self, x: torch.Tensor) -> None:
        self._fields = [("x", x), ("edges", torch.arange(4))]

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, place: int) -> Any:
        return self._fields[place]


def test_items_are_told_apart_whose_fields_have_several_shapes() -> None:
    assert digest_of(Graph(X)) == digest_of(Graph(X.clone())) != digest_of(Graph(-X))
