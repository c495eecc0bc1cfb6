"""Gradients of each example, against plain autograd on one example at a time.

Of layers that see no axis of examples, that see it joined with another one, or that run again as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.layers import DPGRU, DPLSTM, DPRNN
from private_cases import factors
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from factorize.adapters.gradients.example_axes import ExampleAxes, RowLayout
from factorize.adapters.gradients.example_gradients import GRAD_SAMPLE_MODES, MIN_POSITIONS, ExampleGradients
from factorize.adapters.gradients.layer_rows import LayerRows
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate

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


class Bags(torch.nn.Module):
    """Bags of words, in which words come twice: their mean, and the largest of each entry."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean = torch.nn.EmbeddingBag(WORDS, 4, mode="mean", padding_idx=1)
        self.largest, self.last = torch.nn.EmbeddingBag(WORDS, 4, mode="max"), torch.nn.Linear(4, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.mean(x) + self.largest(x))[:, None].expand(-1, x.shape[1], -1)


class Places(torch.nn.Module):
    """Buffers in a dict of their own, which it reads as such, as peft's adapters that share theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("all", torch.linspace(-1, 1, 4))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._buffers[name]


class Listed(torch.nn.Module):
    """Crossed features, as tutorials have them: weights in a list and in a dict, which nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = torch.nn.Embedding(WORDS, 4), Places()
        self.weights = torch.nn.ParameterList(torch.randn(4, 4) for _ in range(2))
        self.last = torch.nn.ParameterDict({"out": torch.nn.Parameter(torch.randn(4, WORDS))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = made = self.words(x) + self.places["all"]
        for each in self.weights:
            made = first * (made @ each) + made
        return made @ self.last["out"]


class Gate(torch.nn.Module):
    """A layer with a parameter of its own, which takes a mask of positions by name, and a number; it returns two."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.strength = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.randn(4))
        self.register_buffer("unit", torch.full((4,), 2.0))

    def forward(
        self, x: torch.Tensor, scale: float, other: torch.Tensor | None, *, mask: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        mixed = torch.einsum("st,...td->...sd", mask, self.inside(x)) * self.strength * self.unit
        return scale * mixed + (0 if other is None else other * self.strength), None


class Frames(torch.nn.Module):
    """Frames of videos that go through layers as a batch of their own, and a gate between the frames."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.images, self.groups = torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4)
        self.norm, self.frames, self.gate = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), Gate()
        self.bare, self.last = torch.nn.LayerNorm(4, bias=False), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = self.groups(self.images(x.flatten(0, 1))).tanh().mean((2, 3))
        frames = self.bare(self.frames(self.norm(frames))).view(*x.shape[:2], 4)
        mask = torch.ones(x.shape[1], x.shape[1]).tril()
        gated, _ = self.gate(frames, 0.5, frames.detach().square(), mask=mask)
        return self.last(self.gate(gated, 2.0, None, mask=mask)[0].sum(1))


class Random(torch.nn.Module):
    """A layer with a parameter of its own that drops entries, and whole examples by numbers that it draws itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.shift = torch.nn.Embedding(WORDS, 6), torch.nn.Parameter(torch.randn(6))
        self.inside = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(6, 6), torch.nn.Dropout(0.2, True))
        self.positions = torch.nn.Parameter(torch.randn(1, 8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.words(x) + self.shift + torch.nn.functional.dropout(self.positions, 0.3)
        return found + self.inside(found) * (torch.rand(len(x), 1, 1) < 0.5)


class Encoder(torch.nn.Module):
    """A transformer of torch's own layers, with a token of its own, with time first, or with a mask of padding."""

    def __init__(self, *, token: bool = False, first: bool = True, padded: bool = False, dropped: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(4, 2, 6, dropped, batch_first=first)
        self.words, self.layers = torch.nn.Embedding(WORDS, 4), torch.nn.TransformerEncoder(layer, 2)
        self.token = torch.nn.Parameter(torch.randn(1, 1, 4)) if token else 0
        self.last, self.axis, self.padded = torch.nn.Linear(4, WORDS), 0 if first else 1, padded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = self.words(x.transpose(0, self.axis)) + self.token
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        padding = -2.0 * (x != x[:, -1:]) if self.padded else None
        return self.last(self.layers(words, mask, padding)).transpose(0, self.axis)


ENCODERS: dict[str, Callable[..., torch.nn.Module]] = {
    "batch first": Encoder,
    "with a token": partial(Encoder, token=True),
    "time first": partial(Encoder, first=False),
    "time first, with a token": partial(Encoder, first=False, token=True),
    "time first, padded": partial(Encoder, first=False, padded=True),
}


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x).transpose(1, 2), x)


def rows_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    held = parameter.grad_sample
    return held.rows(0, len(held)) if isinstance(held, LayerRows) else held


def assert_gradients_of_each_example(make: Callable[[], torch.nn.Module], mode: str, shape: tuple[int, int]) -> None:
    x = torch.randint(WORDS, shape, generator=torch.Generator().manual_seed(1))
    model = ExampleGradients(make(), mode=mode, rehearsed=True)
    loss_of(model, x).backward()
    for i in range(len(x)):
        plain = make()
        loss_of(plain, x[i : i + 1]).backward()
        for mine, own in zip(map(rows_of, model.parameters()), plain.parameters(), strict=True):
            assert len(mine) == len(x) and torch.allclose(mine[i], own.grad, rtol=1e-4, atol=1e-6)
    assert torch.allclose(model(x), make()(x))


@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("shape", [(5, 8), (1, 8), (MIN_POSITIONS, MIN_POSITIONS)])
def test_positions_that_are_looked_up_once_have_a_gradient_of_each_example(
    places: str, mode: str, shape: tuple[int, int]
) -> None:
    assert_gradients_of_each_example(lambda: Writer(PLACES[places]), mode, shape)


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Opacus takes ids for numbers of low precision
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch runs bags one after another
@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize("make", [Derived, Begun, Bags, Listed])
def test_embeddings_that_are_derived_or_within_a_layer_have_their_gradients(
    make: type[torch.nn.Module], mode: str
) -> None:
    assert_gradients_of_each_example(make, mode, (5, 8))


def test_bags_that_begin_at_offsets_of_one_long_list_are_refused() -> None:
    bags = ExampleGradients(torch.nn.EmbeddingBag(WORDS, 4))
    with pytest.raises(
        InvalidParameter, match="no gradient of each example for a EmbeddingBag: give it ids .* no offsets"
    ):
        bags(torch.zeros(6, dtype=torch.long), torch.tensor([0, 2, 3])).sum().backward()


def test_spectral_norm_trains_with_the_iteration_that_a_refusal_names() -> None:
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 3))
    model, x = ExampleGradients(torch.nn.Sequential(layer)), torch.randn(5, 4)
    with pytest.raises(InvalidParameter, match=r"call eval\(\) on parametrizations.weight\[0\] after train"):
        model(x)
    layer.parametrizations.weight[0].eval()
    model(x).square().sum().div(5).backward()
    rows = layer.parametrizations.weight.original.grad_sample
    for one, own in zip(x, rows, strict=True):
        (plain,) = torch.autograd.grad(layer(one[None]).square().sum(), layer.parametrizations.weight.original)
        assert torch.allclose(own, plain, rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize("examples", [1, 3, 4])
def test_frames_of_videos_have_the_gradients_of_their_examples(mode: str, examples: int) -> None:
    x = torch.randn(examples, 3, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    model = ExampleGradients(Frames(), mode=mode, rehearsed=True)
    model(x).square().mean(1).mean().backward()
    for i in range(examples):
        plain = Frames()
        plain(x[i : i + 1]).square().mean().backward()
        for mine, own in zip(map(rows_of, model.parameters()), plain.parameters(), strict=True):
            assert len(mine) == examples and torch.allclose(mine[i], own.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformers_of_torch_have_gradients_of_each_example(name: str, mode: str) -> None:
    for examples in (5, 1):
        assert_gradients_of_each_example(ENCODERS[name], mode, (examples, 8))
    if name not in ("time first", "time first, padded"):  # with a mask as long as the batch
        assert_gradients_of_each_example(ENCODERS[name], mode, (8, 8))


def test_inputs_that_begin_with_time_are_told_the_setting_for_them() -> None:
    for first in (True, False):
        torch.manual_seed(0)
        model = ExampleGradients(torch.nn.TransformerEncoderLayer(4, 2, 6), rehearsed=True, batch_first=first)
        loss = model(torch.randn(8, 5, 4)).square().mean((0, 2)).mean()
        if first:
            with pytest.raises(InvalidParameter, match="begins with time .give make_private batch_first=False"):
                loss.backward()
        else:
            loss.backward()
            assert all(len(rows_of(p)) == 5 for p in model.parameters())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_time_may_be_as_long_as_a_later_batch() -> None:
    """The first batch tells a mask of padding from one of time."""
    model, plain = ExampleGradients(ENCODERS["time first, padded"](), rehearsed=True), ENCODERS["time first, padded"]()
    for length in (5, 8):
        x = torch.randint(WORDS, (8, length), generator=torch.Generator().manual_seed(1))
        model.zero_grad()
        loss_of(model, x).backward()
        plain.zero_grad()
        loss_of(plain, x[2:3]).backward()
        for mine, own in zip(map(rows_of, model.parameters()), plain.parameters(), strict=True):
            assert torch.allclose(mine[2], own.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize("make", [Random, *(partial(each, dropped=0.5) for each in ENCODERS.values())])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_layer_that_runs_again_draws_the_same_numbers(make: Callable[[], torch.nn.Module], mode: str) -> None:
    x = torch.randint(WORDS, (5, 8), generator=torch.Generator().manual_seed(1))
    model, found = ExampleGradients(make(), mode=mode, rehearsed=True), []
    for again in (False, True):
        torch.manual_seed(3)
        with torch.set_grad_enabled(again):
            made = model(x)
        if again:
            made.square().sum().div(5).backward()
        found.append(torch.rand(1))
    assert torch.equal(*found)
    for p in model.parameters():
        assert torch.allclose(rows_of(p).mean(0), p.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("make", [Random, Begun, *[*ENCODERS.values()][:-1]])  # torch takes no empty mask of padding
def test_a_batch_of_no_example_has_no_gradients(make: Callable[[], torch.nn.Module]) -> None:
    model = ExampleGradients(make(), rehearsed=True)
    model(torch.zeros(0, 8, dtype=torch.long)).sum().backward()
    assert all(rows_of(p).shape == (0, *p.shape) for p in model.parameters())


def test_a_token_beside_dropout_costs_no_other_masks_than_torch_draws() -> None:
    """Its masks are those of torch where the tensors lie in memory as their rows do."""
    x, found = torch.randint(WORDS, (5, 8), generator=torch.Generator().manual_seed(1)), []
    for model in (Random(), ExampleGradients(Random())):
        torch.manual_seed(3)
        found.append(model(x))
    assert torch.equal(*found)


def test_a_layer_that_runs_again_does_so_in_the_precision_of_its_first_run() -> None:
    x = torch.randn(4, 2, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    plain, model = Frames(), ExampleGradients(Frames(), rehearsed=True)
    for each in (plain, model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(x).square().mean()
        loss.backward()
    assert torch.allclose(model._module.gate.strength.grad_sample.mean(0), plain.gate.strength.grad, rtol=0.05)


def test_a_layer_that_takes_time_first_runs_again_for_each_example() -> None:
    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return x * scale * self.shift

    x, scale = torch.randn(5, 3, 4), torch.randn(5, 3, 1)
    model = ExampleGradients(Shifted(), batch_first=False, loss_reduction="sum")
    model(x, scale=scale).sum().backward()
    assert torch.allclose(model._module.shift.grad_sample, (x * scale).sum(0), atol=1e-5)


class Packed(torch.nn.Module):
    """A recurrent layer over packed sequences, which begin with their lengths."""

    def __init__(self, kind: Callable[..., torch.nn.Module], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.cell = torch.nn.Embedding(WORDS, 4), kind(4, 3, batch_first=True, **options)
        self.last = torch.nn.Linear(6 if options else 3, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = pack_padded_sequence(self.words(x), x[:, 0].cpu(), batch_first=True, enforce_sorted=False)
        return self.last(pad_packed_sequence(self.cell(words)[0], batch_first=True, total_length=x.shape[1])[0].sum(1))


def loss_of_packed(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x), x[:, -1])


@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
@pytest.mark.parametrize(
    "make",
    [
        *(partial(Packed, kind) for kind in (DPLSTM, DPGRU, DPRNN)),
        partial(Packed, DPLSTM, num_layers=2, bidirectional=True),
    ],
)
def test_gradients_of_packed_sequences_are_in_the_order_of_the_examples(make: Any, mode: str) -> None:
    """Opacus leaves them in that of the lengths, so one norm clips parts of two examples."""
    x = torch.randint(WORDS, (4, 6), generator=torch.Generator().manual_seed(1))
    x[:, 0] = torch.tensor([2, 5, 3, 4])
    model = ExampleGradients(make(), mode=mode, rehearsed=True)
    loss_of_packed(model, x).backward()
    for i in range(len(x)):
        plain = make()
        loss_of_packed(plain, x[i : i + 1]).backward()
        for mine, own in zip(map(rows_of, model.parameters()), plain.parameters(), strict=True):
            assert len(mine) == len(x) and torch.allclose(mine[i], own.grad, rtol=1e-4, atol=1e-6)


def test_packed_sequences_are_refused_where_opacus_makes_their_gradients() -> None:
    x = torch.full((4, 6), 3)
    calibration = calibrate(factors().sensitivity, PrivacyTarget(mu=1.0), clip_norm=1.0, divisor=4)
    for wrap in (GradSampleModule, ExampleGradients):
        model = wrap(Packed(DPLSTM))
        optimizer = CorrelatedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), factors(), calibration, seed=2**70, model=model
        )
        if wrap is GradSampleModule:
            with pytest.raises(InvalidParameter, match=r"enforce_sorted=False.*norms of others; use make_private"):
                model(x)
            model.remove_hooks()
        model(x)
        optimizer.close()


def test_recurrent_cells_that_cannot_run_again_are_told_what_replaces_them() -> None:
    for kind in (torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell):
        model = ExampleGradients(kind(4, 3))
        with pytest.raises(
            InvalidParameter, match=f"use opacus.layers.dp_rnn.DP{kind.__name__}, which has its arguments"
        ):
            found = model(torch.ones(5, 4))
            (found[0] if isinstance(found, tuple) else found).sum().backward()


class TestAccess:
    def test_layers_are_found_by_place_and_name(self):
        layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
        assert ExampleGradients(layers)[1] is layers[1]
        named = torch.nn.ModuleDict({"last": torch.nn.Linear(2, 2)})
        assert ExampleGradients(named)["last"] is named["last"]

    def test_methods_beside_forward_are_those_of_the_model(self):
        model = Packed(DPLSTM)
        model.scaled = lambda x: 2 * x
        private = ExampleGradients(model)
        assert private.scaled(3) == 6
        with pytest.raises(AttributeError, match="'Packed' object has no attribute 'absent'"):
            private.absent()


class TestGradientsOfInputs:
    """A backward pass to the inputs alone, as for adversarial examples, adds nothing to the parameters' gradients."""

    @pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
    @pytest.mark.parametrize("after", [False, True])
    def test_they_leave_gradients_of_examples_as_they_are(self, mode: str, after: bool) -> None:
        torch.manual_seed(0)
        x, found = torch.randn(5, 4), []
        for inner in (False, True):
            torch.manual_seed(1)
            model = ExampleGradients(
                torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2)), mode=mode
            )
            other = x.clone().requires_grad_()
            if inner and not after:
                torch.autograd.grad(model(other).square().sum(), other)
            loss, second = model(x).square().mean(), model(other) if inner and after else None
            loss.backward()
            if second is not None:
                torch.autograd.grad(second.square().sum(), other)
            found.append([rows_of(p) for p in model.parameters()])
        for one, two in zip(*found, strict=True):
            assert torch.equal(one, two)


class TestExampleAxes:
    """Eight rows for four examples are two for each, if the same shapes or the same axes have told so before."""

    layer, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def find(
        self, axes: ExampleAxes, output: tuple[int, ...], *shapes: tuple[int, ...], layer: Any = layer
    ) -> RowLayout:
        axes.begin([torch.empty(shape) for shape in shapes])
        found = axes.find(layer, torch.Size(output), second=True)
        axes.end()
        return found

    def test_parts_follow_the_axes_of_the_inputs(self):
        axes = ExampleAxes()
        assert self.find(axes, (0, 5), (0, 2, 5)) == RowLayout()  # shows nothing of other batches
        assert self.find(axes, (8, 5), (4, 2, 5)) == RowLayout(0, 2)
        assert self.find(axes, (12, 5), (4, 3, 6)) == RowLayout(0, 3)
        assert self.find(axes, (35, 5), (5, 7, 6)) == RowLayout(0, 7)
        assert self.find(axes, (10, 5), (5, 7, 6)) == self.find(axes, (5, 5), (5, 7, 6)) == RowLayout()
        assert self.find(axes, (42, 5), (1, 7, 6)) == RowLayout()  # the product of two axes, where it was the first one

    def test_parts_are_as_many_for_the_same_shapes(self):
        axes = ExampleAxes()
        assert self.find(axes, (16, 5), (4, 3, 28, 28)) == self.find(axes, (20, 5), (5, 3, 28, 28)) == RowLayout(0, 4)
        assert self.find(axes, (10, 5), (5, 3, 28, 28)) == self.find(axes, (20, 5), (5, 3, 30, 30)) == RowLayout()

    def test_examples_that_were_rows_are_rows(self):
        axes = ExampleAxes()
        assert self.find(axes, (4, 5), (4, 2, 5)) == self.find(axes, (8, 5), (4, 2, 5)) == RowLayout()
        assert self.find(axes, (2, 4, 5), (4, 2, 5)) == RowLayout()

    def test_the_second_axis_may_be_that_of_examples(self):
        axes = ExampleAxes()
        assert self.find(axes, (7, 4, 5), (4, 7)) == self.find(axes, (8, 4, 5), (4, 8)) == RowLayout(1)
        assert self.find(axes, (4, 4, 5), (4, 4)) == RowLayout(1) and self.find(axes, (7, 1, 5), (1, 7)) == RowLayout(1)
        assert self.find(axes, (7, 4, 5), (5, 7)) == self.find(ExampleAxes(), (7, 4), (4, 7)) == RowLayout()
        assert self.find(ExampleAxes(), (4, 4, 5), (4, 4)) == RowLayout()
        assert self.find(ExampleAxes(), (8, 4, 5), (4, 8)) == RowLayout(1)
        assert self.find(ExampleAxes(), (8, 4, 5), (4, 3, 9)) == RowLayout(0, 2)  # windows of four pixels

    def test_nothing_is_told_without_a_number_of_examples(self):
        axes = ExampleAxes()
        assert self.find(axes, (8, 5)) == self.find(axes, (8, 5), (4, 2), (1, 2)) == RowLayout()
        assert self.find(axes, (9, 5), (4, 2)) == RowLayout()
        axes.begin([torch.empty(4, 2)])
        axes.end()
        assert axes.find(self.layer, torch.Size((8, 5)), second=True) == RowLayout()

    def test_layers_and_calls_of_the_first_pass_may_differ(self):
        axes = ExampleAxes()
        axes.begin([torch.empty(4, 2, 5)])
        for layer in (self.layer, self.other):
            assert [axes.find(layer, torch.Size((n, 5)), second=True).parts for n in (8, 40)] == [2, 10]
        assert self.find(axes, (40, 5), (4, 2, 5)) == RowLayout(0, 10)
