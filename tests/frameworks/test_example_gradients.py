"""Gradients of each example of layers that see no axis of examples, against plain autograd on one example at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from factorize.adapters.example_gradients import GRAD_SAMPLE_MODES, MIN_POSITIONS, ExampleGradients
from factorize.adapters.layer_rows import LayerRows

Ids = Callable[[int], torch.Tensor]
WORDS, MOST = 11, 12
PLACES: dict[str, Ids] = {
    "(tokens,)": torch.arange,
    "(1, tokens)": lambda tokens: torch.arange(tokens)[None],
    "(1, tokens), and not in order": lambda tokens: torch.arange(tokens).flip(0)[None],
    "(tokens,) from 3 on": lambda tokens: torch.arange(tokens) + 3,
}


class Writer(torch.nn.Module):
    """Words and positions, as in GPT-2."""

    def __init__(self, places: Ids) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions = torch.nn.Embedding(WORDS, 4), torch.nn.Embedding(MOST, 4)
        self.norm, self.last, self.places = torch.nn.LayerNorm(4), torch.nn.Linear(4, WORDS), places

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = self.norm(self.positions(self.places(x.shape[1])))
        return self.last(self.words(x) + positions)


class Labelled(torch.nn.Module):
    """A row for the label of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = torch.nn.Embedding(MOST, 4)

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        return self.labels(labels)


class Scaled(torch.nn.Embedding):
    """Words whose rows are scaled by a constant, as in Gemma."""

    def __init__(self) -> None:
        super().__init__(WORDS, 4)
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class Later(torch.nn.Embedding):
    """Positions that a layer computes itself, from an input of words and a number, as in OPT and BART."""

    def forward(self, x: torch.Tensor, begin: int) -> torch.Tensor:
        return super().forward(torch.arange(begin, begin + x.shape[1]).expand(len(x), -1))


class Sliced(torch.nn.Embedding):
    """Positions that are a slice of the table, as in Whisper."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight[1 : 1 + x.shape[1]]


class Stable(torch.nn.Embedding):
    """Words with a layer of their own behind, as in bitsandbytes."""

    def __init__(self) -> None:
        super().__init__(WORDS, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.nn.functional.embedding(x, self.weight))


class Head(torch.nn.Module):
    """A layer with the parameters of another one, as the head of BERT's language model."""

    def __init__(self, words: torch.nn.Embedding) -> None:
        super().__init__()
        self.decoder = torch.nn.Linear(4, WORDS)
        self.decoder.weight, self.bias = words.weight, self.decoder.bias
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(x)


class Begun(torch.nn.Module):
    """An embedding within a layer that has a parameter of its own, of which Opacus makes one gradient as a whole."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.first = torch.nn.Embedding(WORDS, 4), torch.nn.Parameter(torch.randn(1, 1, 4))
        self.last = torch.nn.Linear(4, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.words(x) + self.first)


class Derived(torch.nn.Module):
    """Layers that are derived from an embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.stable, self.positions = Scaled(), Stable(), Later(MOST, 4)
        self.sliced, self.head = Sliced(MOST, 4), Head(self.words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x) + self.stable(x) + self.positions(x, 2) + self.sliced(x))


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x).transpose(1, 2), x)


def rows_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    held = parameter.grad_sample
    return held.rows(0, len(held)) if isinstance(held, LayerRows) else held


def assert_gradients_of_each_example(make: Callable[[], torch.nn.Module], mode: str, shape: tuple[int, int]) -> None:
    x = torch.randint(WORDS, shape, generator=torch.Generator().manual_seed(1))
    model = ExampleGradients(make(), mode=mode)
    loss_of(model, x).backward()
    for i in range(len(x)):
        plain = make()
        loss_of(plain, x[i : i + 1]).backward()
        for mine, own in zip(map(rows_of, model.parameters()), plain.parameters(), strict=True):
            assert len(mine) == len(x) and torch.allclose(mine[i], own.grad, atol=1e-6)
    assert torch.allclose(model(x), make()(x))


@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("shape", [(5, 8), (1, 8), (MIN_POSITIONS, MIN_POSITIONS)])
def test_positions_that_are_looked_up_once_have_a_gradient_of_each_example(
    places: str, mode: str, shape: tuple[int, int]
) -> None:
    assert_gradients_of_each_example(lambda: Writer(PLACES[places]), mode, shape)


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Opacus takes ids for numbers of low precision
@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize("make", [Derived, Begun])
def test_embeddings_that_are_derived_or_within_a_layer_have_their_gradients(
    make: type[torch.nn.Module], mode: str
) -> None:
    assert_gradients_of_each_example(make, mode, (5, 8))


def test_a_layer_that_fails_looks_no_longer() -> None:
    model = ExampleGradients(Derived())
    with pytest.raises(IndexError):
        model(torch.full((2, 3), WORDS))
    assert not torch.overrides._get_current_function_mode_stack()
    loss_of(model, torch.zeros(2, 3, dtype=torch.long)).backward()


def test_a_few_labels_that_count_by_chance_are_those_of_examples() -> None:
    labels = torch.arange(MIN_POSITIONS - 1)
    model = ExampleGradients(Labelled())
    made = model(labels)
    made.sum().backward()
    assert made.shape == (len(labels), 4)
    assert all(each.nonzero()[:, 0].unique().tolist() == [i] for i, each in enumerate(model.labels.weight.grad_sample))


def test_a_model_that_gives_positions_an_axis_itself_is_told_where() -> None:
    model = Writer(torch.arange)
    model.norm = torch.nn.Unflatten(0, (1, 6))
    with pytest.raises(RuntimeError) as failed:
        ExampleGradients(model)(torch.zeros(4, 6, dtype=torch.long))
    assert any("positions was looked up once for all examples" in note for note in failed.value.__notes__)
