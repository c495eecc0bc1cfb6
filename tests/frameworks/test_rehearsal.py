"""Rehearsals of the first step: layers and losses that mix examples are refused, and nothing else is or changes."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from handmade import handmade
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from factorize.adapters.data import altered_batches, data_reads
from factorize.adapters.gradients.clipping import clipped_sums, example_rows, use_up
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.adapters.private import Private, make_private
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.privacy import PrivacyTarget, calibrate
from factorize.structures.toeplitz import ToeplitzMatrix

pytestmark = pytest.mark.filterwarnings("ignore")  # of numpy and torch, about models that are wrong on purpose
EXAMPLES, SIZE, WORDS, LENGTH = 32, 8, 11, 8
WEIGHTS = torch.tensor([1.0, 5.0, 0.1])
Loop = Callable[[Any, Any], torch.Tensor]
cross_entropy = functional.cross_entropy


def vectors(labels: torch.Tensor | None = None) -> TensorDataset:
    luck = torch.Generator().manual_seed(0)
    x, y = torch.randn(EXAMPLES, 6, generator=luck), torch.randint(0, 3, (EXAMPLES,), generator=luck)
    return TensorDataset(x, y if labels is None else labels)


def texts() -> TensorDataset:
    words = torch.randint(0, WORDS, (EXAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return TensorDataset(words[:, :-1], words[:, 1:])


def network(*between: torch.nn.Module) -> torch.nn.Sequential:
    torch.manual_seed(4)
    middle = between or (torch.nn.Tanh(),)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), *middle, torch.nn.Linear(8, 3))


def private(model: torch.nn.Module, data: Any = None, size: int = SIZE, **options: Any) -> Private:
    n = EXAMPLES // size
    factors = handmade(ToeplitzMatrix(np.eye(1, n)[0], n))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    settings = {"epsilon": 8.0, "delta": 1e-2, "epochs": 1, "seed": 2**70, "batch_size": size}
    return make_private(model, optimizer, vectors() if data is None else data, factors, **{**settings, **options})


def train(made: Private, loop: Loop) -> int:
    """Train for an epoch, and return how many batches came."""
    batches = 0
    for batch in made.loader:
        loop(made.model, batch).backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
        batches += 1
    return batches


def mean(model: Any, batch: Any, **options: Any) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1], **options)


def weighted(model: Any, batch: Any) -> torch.Tensor:
    return mean(model, batch, weight=WEIGHTS)


def contrastive(model: Any, batch: Any) -> torch.Tensor:
    directions = functional.normalize(model(batch[0]), dim=1)
    return cross_entropy(directions @ directions.T / 0.1, torch.arange(len(directions)))


def halves(model: Any, batch: Any) -> torch.Tensor:
    """Every example is mixed with the one half a batch away, so that every second one meets every second one."""
    return cross_entropy(model(batch[0] + batch[0].roll(SIZE // 2, 0)), batch[1])


def slightly(model: Any, batch: Any) -> torch.Tensor:
    """The mean output counts for little, and moves no gradient by a thousandth until an outlier comes."""
    found = model(batch[0])
    return cross_entropy(found, batch[1]) + 1e-4 * found.mean(0).square().sum()


def half_twice(model: Any, batch: Any) -> torch.Tensor:
    return mean(model, [torch.cat([part[: SIZE // 2]] * 2) for part in batch])


def mixed_up(model: Any, batch: Any) -> torch.Tensor:
    share, other = float(np.random.beta(1, 1)), torch.randperm(len(batch[0]))
    return cross_entropy(model(share * batch[0] + (1 - share) * batch[0][other]), batch[1])


def standardized(model: Any, batch: Any) -> torch.Tensor:
    return mean(model, ((batch[0] - batch[0].mean(0)) / batch[0].std(0), batch[1]))


def of_words(model: Any, batch: Any, **options: Any) -> torch.Tensor:
    return cross_entropy(model(batch[0]).transpose(1, 2), batch[1], **options)


class Layer(torch.nn.Module):
    """A layer without parameters."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = function  # type: ignore[method-assign]


def rare_labels() -> torch.Tensor:
    """No label of the first batch but one is another's."""
    labels = torch.zeros(EXAMPLES, dtype=torch.long)
    labels[17] = 1
    return labels


MIXING: dict[str, tuple[Any, Any, Loop]] = {
    "class weights": (network, vectors, weighted),
    "class weights, of which a batch has one": (network, lambda: vectors(rare_labels()), weighted),
    "ignored labels": (network, lambda: vectors(rare_labels() * -100), mean),
    "contrastive": (network, vectors, contrastive),
    "mixup": (network, vectors, mixed_up),
    "halves of a batch": (network, vectors, halves),
    "halves of a batch, of one label": (network, lambda: vectors(torch.zeros(EXAMPLES, dtype=torch.long)), halves),
    "one half twice": (network, vectors, half_twice),
    "pairs of neighbours": (lambda: network(Layer(lambda x: x + x.view(-1, 2, 8).flip(1).view(-1, 8))), vectors, mean),
    "inputs less their mean": (network, vectors, standardized),
    "the largest losses": (network, vectors, lambda m, b: mean(m, b, reduction="none").topk(SIZE // 2)[0].mean()),
    "the largest loss": (network, vectors, lambda m, b: mean(m, b, reduction="none").max()),
    "the root of the mean": (network, vectors, lambda m, b: mean(m, b).sqrt()),
    "a term of small weight": (network, vectors, slightly),
    "a layer less its mean": (lambda: network(Layer(lambda x: x - x.mean(0))), vectors, mean),
    "a layer less its first": (lambda: network(Layer(lambda x: x - x[:1])), vectors, mean),
    "neighbours": (lambda: network(Layer(lambda x: x + x.roll(1, 0))), vectors, mean),
    "batch norm as a function": (
        lambda: network(Layer(lambda x: functional.batch_norm(x, None, None, training=True))),
        vectors,
        mean,
    ),
    "dropout and weights": (lambda: network(torch.nn.Dropout(0.5)), vectors, weighted),
    "bfloat16": (lambda: network().bfloat16(), vectors, lambda m, b: weighted(lambda x: m(x.bfloat16()).float(), b)),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_examples_is_refused_before_anything_is_released(name: str) -> None:
    model, data, loop = MIXING[name]
    made = private(model(), data())
    before = [p.clone() for p in made.model.parameters()]
    with pytest.raises(
        InvalidParameter, match="of 8 examples moved the clipped gradients .* mixes the examples of a batch"
    ):
        train(made, loop)
    assert made.optimizer.noise.step == 0
    assert all(map(torch.equal, before, made.model.parameters()))


def test_a_loss_that_mixes_is_refused_where_rows_are_not_in_memory() -> None:
    made = private(network(torch.nn.Linear(8, 40), torch.nn.Linear(40, 8)), grad_sample_mode="streamed")
    with pytest.raises(InvalidParameter, match="mixes the examples of a batch"):
        train(made, weighted)


def test_a_loss_of_one_example_is_refused_wherever_it_stands() -> None:
    """The largest loss stays the largest if others are replaced, and then no gradient moves."""
    for place in range(4):
        data = vectors()
        data.tensors[0][place] *= 100
        made = private(network(torch.nn.Linear(8, 8)), DataLoader(data, batch_size=SIZE), order_seed=0)
        with pytest.raises(InvalidParameter, match="mixes the examples"):
            train(made, lambda m, b: mean(m, b, reduction="none").max())
        made.optimizer.close()


@pytest.mark.parametrize(("chosen", "order_seed"), [(2, 3), (5, 0), (5, 1)])
def test_losses_that_choose_are_refused_whichever_examples_replace_others(chosen: int, order_seed: int) -> None:
    made = private(network(), order_seed=order_seed)
    with pytest.raises(InvalidParameter, match="mixes the examples"):
        train(made, lambda m, b: mean(m, b, reduction="none").topk(chosen)[0].mean())


def far_above(threshold: float) -> Loop:
    """Every example counts alone, and most have no gradient: none in some batches."""
    return lambda m, b: functional.relu(mean(m, b, reduction="none") - threshold).mean()


@pytest.mark.parametrize("most", [1.2, 1.6, 1.79])
def test_examples_without_a_gradient_are_no_mixture(most: float) -> None:
    found, batches = [], []
    for loss in ("rehearsed", "not_looked_at"):
        made = private(network(), loss=loss)
        batches.append(train(made, far_above(most)))
        made.optimizer.close()
        found.append(list(made.model.parameters()))
    assert all(map(torch.equal, *found)) and batches[1] == 4 < batches[0] <= 4 + 4 * 6


@pytest.mark.parametrize("fall", [1e-5, 8e-4])
def test_a_loss_that_falls_from_pass_to_pass_is_no_mixture(fall: float) -> None:
    """The same batch, taken again, shows that no other example moves the gradients."""
    made, passes = private(network()), 0

    def loop(model: Any, batch: Any) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return (1 - fall) ** passes * mean(model, batch)

    assert train(made, loop) == 4 + 6 and made.optimizer.noise.step == 4


def scaled(model: Any, batch: Any) -> torch.Tensor:
    return mean(model, (batch[0] / batch[0].abs().max(), batch[1]))


def relative(model: Any, batch: Any) -> torch.Tensor:
    losses = mean(model, batch, reduction="none")
    return (losses / losses.detach().max()).mean()


@pytest.mark.parametrize("loop", [scaled, relative])
def test_what_one_example_decides_for_all_is_refused_whichever_it_is(loop: Loop) -> None:
    for order_seed in range(6):
        made = private(network(), order_seed=order_seed)
        with pytest.raises(InvalidParameter, match="mixes the examples"):
            train(made, loop)
        made.optimizer.close()


GATES: dict[str, tuple[Loop, Loop]] = {
    "finite": (
        lambda m, b: mean(m, b).nan_to_num(),
        lambda m, b: torch.where(torch.isnan(own := mean(m, b, reduction="none")), 0.0, own).mean(),
    ),
    "small": (
        lambda m, b: m(b[0]).square().mean().clamp(max=50),
        lambda m, b: m(b[0]).square().mean(1).clamp(max=50).mean(),
    ),
}
"""Losses that are cut off for a batch, and for each example."""


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("name", GATES)
def test_a_batch_that_is_dropped_for_one_example_is_refused(name: str, place: int, monkeypatch: Any) -> None:
    # The example is not found before.
    monkeypatch.setattr("factorize.adapters.data.altered_batches.MAX_SCANNED_EXAMPLES", 1)
    data, step = vectors(), 2
    data.tensors[0][private(network(), data).loader.order[step][place]] = {"finite": math.nan, "small": 1e5}[name]
    for loop, refused in zip(GATES[name], (True, False), strict=True):
        made = private(network(torch.nn.ReLU()), data)
        if refused:
            with pytest.raises(InvalidParameter, match="mixes the examples"):
                train(made, loop)
        else:
            train(made, loop)
        assert made.optimizer.noise.step == (step if refused else 4)
        made.optimizer.close()


SOUND: dict[str, tuple[Any, Loop, dict[str, Any]]] = {
    "dropout": (lambda: network(torch.nn.Dropout(0.5), torch.nn.Tanh()), mean, {}),
    "layer norm": (lambda: network(torch.nn.LayerNorm(8)), mean, {}),
    "noise on the inputs": (network, lambda m, b: mean(m, (b[0] + torch.randn_like(b[0]), b[1])), {}),
    "smooth labels": (network, lambda m, b: mean(m, b, label_smoothing=0.1), {}),
    "weights of one mean": (network, lambda m, b: mean(m, b, weight=WEIGHTS, reduction="none").mean(), {}),
    "sums": (network, lambda m, b: mean(m, b, reduction="sum"), {"loss_reduction": "sum"}),
    "a size that is written down": (network, lambda m, b: cross_entropy(m(b[0]).view(SIZE, 3), b[1]), {}),
    "parts": (network, mean, {"physical_batch_size": 3}),
    "rows that are not in memory": (
        lambda: network(torch.nn.Linear(8, 40), torch.nn.Linear(40, 8)),
        mean,
        {"grad_sample_mode": "streamed", "physical_batch_size": 3},
    ),
    "parts of one": (network, mean, {"physical_batch_size": 1}),
    "batches of one": (network, mean, {"size": 1}),
    "two processes that load": (network, mean, {"data": DataLoader(vectors(), batch_size=SIZE, num_workers=1)}),
    "a loss for each": (network, mean, {"loss": lambda m, b: mean(m, b, reduction="none")}),
    "bfloat16": (lambda: network().bfloat16(), lambda m, b: mean(lambda x: m(x.bfloat16()).float(), b), {}),
    "Adam of both moments": (network, mean, {"adaptive": "joint"}),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_trains_after_two_batches_more(name: str) -> None:
    model, loop, options = SOUND[name]
    if options.get("adaptive"):
        n, net = EXAMPLES // SIZE, model()
        factors = handmade(ToeplitzMatrix(np.eye(1, n)[0], n))
        settings = {"epsilon": 8.0, "delta": 1e-2, "epochs": 1, "seed": 2**70, "batch_size": SIZE, "second": factors}
        made = make_private(net, torch.optim.Adam(net.parameters()), vectors(), factors, **settings, **options)
    else:
        made = private(model(), **options)
    parts = sum(len(made.loader._parts(t)[0]) for t in range(len(made.loader.order)))
    rehearsed = options.get("physical_batch_size") != 1 and options.get("size") != 1 and "loss" not in options
    assert train(made, loop) == parts + 2 * rehearsed
    assert made.optimizer.noise.step == len(made.loader.order)


class Positions(torch.nn.Module):
    """Words and positions, looked up by ids of shape (tokens,), (1, tokens), (batch, tokens) or (tokens, tokens)."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.words, self.places = torch.nn.Embedding(WORDS, 6), torch.nn.Embedding(LENGTH, 6)
        self.out, self._shape = torch.nn.Linear(6, WORDS), shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(x.shape[1])
        apart = (ids - ids[:, None]).abs()
        ids = {"T": ids, "1T": ids[None], "BT": ids.expand(len(x), -1), "TT": apart}[self._shape]
        found = self.places(ids)
        return self.out(self.words(x) + (found.mean(1) if self._shape == "TT" else found))


class TestRows:
    @pytest.mark.parametrize("parts", [None, 7])
    def test_that_are_no_examples_are_refused_by_name(self, parts):
        made = private(Positions("TT"), texts(), 16, physical_batch_size=parts)
        with pytest.raises(
            InvalidParameter, match=r"places.weight has 8 per-example gradients.*expand them.*batch_first=False if"
        ):
            train(made, of_words)
        assert made.optimizer.noise.step == 0

    def test_of_a_module_that_runs_again_as_a_whole(self):
        made = private(torch.nn.Sequential(Positions("TT")), texts(), 16, whole=["0"])
        train(made, of_words)
        assert made.optimizer.noise.step == EXAMPLES // 16
        for names in (["0.place", "1"], "0"):
            with pytest.raises(InvalidParameter, match="the model has no modules .*give a list of names"):
                private(torch.nn.Sequential(Positions("TT")), texts(), 16, whole=names)

    def test_are_those_of_examples_where_nobody_compares_gradients(self):
        made = private(Positions("TT"), texts(), LENGTH // 2, loss="not_looked_at")
        with pytest.raises(InvalidParameter, match="places.weight has 8 per-example gradients"):
            train(made, of_words)

    @pytest.mark.parametrize("size", [LENGTH, LENGTH // 2])
    def test_that_are_as_many_as_there_are_tokens(self, size):
        with pytest.raises(InvalidParameter, match="mixes the examples.*a table of relative positions"):
            train(private(Positions("TT"), texts(), size), of_words)

    @pytest.mark.parametrize(("size", "parts"), [(LENGTH, None), (4, None), (4, 2), (4, 1)])
    def test_that_are_those_of_examples_however_positions_are_looked_up(self, size, parts):
        found = []
        for shape in ("BT", "1T", "T"):
            made = private(Positions(shape), texts(), size, physical_batch_size=parts)
            train(made, of_words)
            made.optimizer.close()
            assert made.optimizer.noise.step == EXAMPLES // size
            found.append(torch.cat([p.flatten() for p in made.model.parameters()]))
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])

    def test_time_first(self):
        class Recurrent(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words, self.cell = torch.nn.Embedding(WORDS, 6), DPLSTM(6, 6, batch_first=False)
                self.out = torch.nn.Linear(6, WORDS)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.out(self.cell(self.words(x.T))[0]).transpose(0, 1)

        with pytest.raises(InvalidParticipation, match="begin with time, give make_private batch_first=False"):
            train(private(Recurrent(), texts(), 4), lambda m, b: of_words(lambda x: m(x.T).transpose(0, 1), b))
        for size in (4, 16):
            made = private(Recurrent(), texts(), size)
            train(made, of_words)
            assert made.optimizer.noise.step == EXAMPLES // size
        with pytest.raises(InvalidParameter, match="mixes the examples of .* begin with time"):
            train(private(Recurrent(), texts(), LENGTH), of_words)

    def test_of_sums_that_anybody_makes(self):
        with pytest.raises(InvalidParameter, match=r"gradients of \[1, 4\] examples"):
            clipped_sums([torch.ones(4, 2), torch.ones(1, 2)], 1.0)

    @pytest.mark.parametrize("options", [{}, {"physical_batch_size": 3}, {"grad_sample_mode": "streamed"}])
    def test_of_losses_with_a_backward_pass_each(self, options):
        """Both passes of an example count in its norm, and layers may be in one of them only."""
        found = []
        for apart in (True, False):
            torch.manual_seed(4)
            model = network(torch.nn.Linear(8, 40), torch.nn.Linear(40, 8))
            made, again = private(model, **options), model[:3]
            for batch in made.loader:
                first = mean(made.model, batch)
                if apart:
                    first.backward()
                other = again(batch[0]).square().sum(1).mean()
                (other if apart else first + other).backward()
                made.optimizer.step()
                made.optimizer.zero_grad()
            made.optimizer.close()
            found.append(list(model.parameters()))
        assert made.optimizer.noise.step == EXAMPLES // SIZE and all(map(torch.equal, *found))

    def test_of_losses_whose_backward_passes_come_in_the_order_of_the_forward_passes(self):
        found = []
        for apart in (True, False):
            made = private(network())
            for batch in made.loader:
                losses = [mean(made.model, (factor * batch[0], batch[1])) for factor in (1.0, 5.0)]
                for each in losses if apart else [sum(losses)]:
                    each.backward()
                made.optimizer.step()
                made.optimizer.zero_grad()
            made.optimizer.close()
            found.append(torch.cat([p.flatten() for p in made.model.parameters()]))
        assert made.optimizer.noise.step == EXAMPLES // SIZE and torch.allclose(*found, atol=1e-6)

    def test_of_a_gradient_penalty(self):
        """Differences of outputs bound the slope, too, with one backward pass."""

        def slope(model: Any, x: torch.Tensor) -> torch.Tensor:
            x = x.clone().requires_grad_()
            return torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].norm(dim=1)

        def difference(model: Any, x: torch.Tensor) -> torch.Tensor:
            return (model(x + 0.1) - model(x)).norm(dim=1)

        with pytest.raises(InvalidParameter, match="gradient penalty needs two: use differences of outputs"):
            train(private(network()), lambda m, b: mean(m, b) + slope(m, b[0]).square().mean())
        train(private(network()), lambda m, b: mean(m, b) + difference(m, b[0]).square().mean())

    def test_of_two_views_in_one_batch(self):
        def joined(model: Any, batch: Any) -> torch.Tensor:
            one, other = model(torch.cat([batch[0]] * 2)).split(SIZE)
            return cross_entropy(one, batch[1]) + (one - other).square().mean()

        def apart(model: Any, batch: Any) -> torch.Tensor:
            return mean(model, batch) + (model(batch[0]) - model(0.9 * batch[0])).square().mean()

        with pytest.raises(InvalidParticipation, match="of 16 examples, but its batch has 8; .*once for each view"):
            train(private(network()), joined)
        train(private(network()), apart)

    def test_a_parameter_that_no_step_uses(self):
        model = network()
        model.unused = torch.nn.Linear(2, 2)
        with pytest.raises(InvalidParameter, match="unused.weight has no per-example gradient"):
            train(private(model), lambda m, b: mean(m._module[:3], b))


class Attending(torch.nn.MultiheadAttention):
    """Attention that returns a view, as torch's linear layers do where they have a bias and words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(*x.movedim(1, 0)[None].expand(3, -1, -1, -1), need_weights=False)[0].movedim(0, 1)


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drop = torch.nn.Parameter(torch.ones(8)), torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x * self.weight)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "streamed"])
@pytest.mark.parametrize(
    "name", ["words", "circles", "channels last", "one pixel", "in place", "views", "no bias", "table"]
)
def test_settings_of_layers_are_those_of_plain_autograd(name: str, mode: Any) -> None:
    torch.manual_seed(4)
    words = torch.nn.Sequential(torch.nn.Embedding(WORDS, 6, padding_idx=0), torch.nn.Linear(6, WORDS))
    circles = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 6)),
        torch.nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"),
        torch.nn.Flatten(),
        torch.nn.Linear(12, 3),
    )
    last = torch.nn.Sequential(
        torch.nn.Unflatten(1, (3, 2, 1)),
        Layer(lambda x: x.contiguous(memory_format=torch.channels_last)),
        torch.nn.Conv2d(3, 2, 2, padding=1).to(memory_format=torch.channels_last),
        torch.nn.Flatten(),
        torch.nn.Linear(12, 3),
    )
    pixel = torch.nn.Sequential(
        Layer(lambda x: x[:, None, None].permute(0, 3, 1, 2)),
        torch.nn.Conv2d(6, 6, 3, padding=1, groups=6),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 3),
    )
    adding = Layer(lambda x: x.add_(1.0))
    in_place = network(torch.nn.ReLU(inplace=True), torch.nn.GroupNorm(2, 8), adding, torch.nn.Dropout(0.5, True))
    words_of = torch.nn.Unflatten(1, (2, 4)), torch.nn.Linear(4, 4), adding, Attending(4, 2), adding, torch.nn.Flatten()
    views = network(*words_of, Gate(), adding)
    others = {
        "circles": (circles, mean, vectors()),
        "channels last": (last, mean, vectors()),
        "one pixel": (pixel, mean, vectors()),
        "in place": (in_place, mean, vectors()),
        "views": (views, mean, vectors()),
        "no bias": (network(torch.nn.LayerNorm(8, bias=False)), mean, vectors()),
        "table": (network(torch.nn.Unflatten(1, (2, 4)), Windows(), torch.nn.Flatten()), mean, vectors()),
    }
    model, loop, data = {"words": (words, of_words, texts()), **others}[name]
    names = [*model.state_dict()], [name for name, _ in model.named_buffers()]
    made = private(model, data, grad_sample_mode=mode)
    assert names == ([*model.state_dict()], [name for name, _ in model.named_buffers()])
    batch, plain = next(iter(made.loader)), dict[Any, torch.Tensor]()
    loss = loop(made.model, batch)
    hooks = [p.register_hook(lambda gradient, p=p: plain.update({p: gradient.clone()})) for p in model.parameters()]
    loss.backward()
    for p, hook in zip(model.parameters(), hooks, strict=True):
        hook.remove()  # a job refuses what sees gradients without noise
        rows = example_rows([("", p)], SIZE)[0]
        total = next(use_up([rows], math.inf)).float()
        assert torch.allclose(total / SIZE, plain[p], atol=1e-6) and not p.grad.any()
    made.optimizer.step()
    made.optimizer.zero_grad()
    train(made, loop)


class Windows(torch.nn.Module):
    """Attention as in a Swin transformer: with a trained bias for each distance, which a table of whole numbers tells."""

    def __init__(self, size: int = 2, width: int = 4) -> None:
        super().__init__()
        self.mix, self.bias = torch.nn.Linear(width, 3 * width), torch.nn.Parameter(torch.zeros(2 * size - 1))
        self.register_buffer("distances", torch.arange(size)[:, None] - torch.arange(size) + size - 1)
        self.register_buffer("later", torch.ones(size, size, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.nn.functional.linear(x, self.mix.weight, self.mix.bias).chunk(3, -1)
        scores = (q @ k.mT + self.bias[self.distances]).masked_fill(self.later, -1e9)
        return scores.softmax(-1) @ v


class Beside(torch.nn.Module):
    """Weights that are used beside their layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.words, self.between = torch.nn.Embedding(WORDS, 6), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.between(self.words(x)) @ self.words.weight.T


class TestPlainAutograd:
    def test_weights_that_are_used_beside_their_layer(self):
        with pytest.raises(InvalidParameter, match="words.weight do not add up to the batch gradient"):
            train(private(Beside(), texts()), of_words)

    @pytest.mark.parametrize("own", [False, True])
    def test_a_layer_that_subtracts_the_mean_of_its_batch_before_its_own_parameters(self, own: bool):
        """Opacus runs such a layer on one example at a time, of which nothing is left."""

        class Centred(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(6, 3))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x - x.mean(1 if own else 0, keepdim=True)) @ self.weight

        if own:
            train(private(Centred()), mean)
            return
        with pytest.raises(InvalidParameter, match="weight do not add up to the batch gradient"):
            train(private(Centred()), mean)

    def test_a_penalty_in_the_loss(self):
        model = network()
        with pytest.raises(InvalidParameter, match="weight_decay"):
            train(private(model), lambda m, b: mean(m, b) + sum(p.square().sum() for p in model.parameters()))

    @pytest.mark.parametrize("most", [1e-3, 1e3])
    def test_gradients_that_the_caller_clips_as_well(self, most: float):
        """They are not what is released."""
        found = []
        for norm in (most, math.inf):
            made = private(network())
            for batch in made.loader:
                mean(made.model, batch).backward()
                torch.nn.utils.clip_grad_norm_(made.model.parameters(), norm)
                made.optimizer.step()
                made.optimizer.zero_grad()
            made.optimizer.close()
            found.append(list(made.model.parameters()))
        assert made.optimizer.noise.step == EXAMPLES // SIZE and all(map(torch.equal, *found))

    def test_an_optimizer_by_hand_looks_as_far_as_it_can(self):
        factors = handmade(ToeplitzMatrix(np.eye(1, 4)[0], 4))
        calibration = calibrate(factors.sensitivity, PrivacyTarget(mu=1.0), clip_norm=1.0, divisor=SIZE)
        model = GradSampleModule(Beside())
        optimizer = CorrelatedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), factors, calibration, seed=2**70)
        of_words(model, [part[:SIZE] for part in texts().tensors]).backward()
        with pytest.raises(InvalidParameter, match="parameter 0 do not add up to"):
            optimizer.step()
        assert optimizer.noise.step == 0


class Stateful(torch.nn.Module):
    """A recurrent layer over windows of texts, and its state for the next window."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.words, self.cell, self.out = (
            torch.nn.Embedding(WORDS, 6),
            DPLSTM(6, 6, batch_first=True),
            torch.nn.Linear(6, WORDS),
        )

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        found, state = self.cell(self.words(x), state)
        return self.out(found), state


@pytest.mark.parametrize("kept", [True, False])
def test_a_state_that_is_kept_from_batch_to_batch_is_refused(kept: bool) -> None:
    """It may fade by so much that no rehearsal sees it, and would carry an example that is not finite on and on."""
    made, state = private(Stateful(), texts()), None

    def loop(model: Any, batch: Any) -> torch.Tensor:
        nonlocal state
        halves = zip(*(part.split(LENGTH // 2, 1) for part in batch), strict=True)
        total, own = torch.zeros(()), state if kept else None
        for x, y in halves:  # within a batch a state may go on
            found, own = model(x, own)
            own = tuple(each.detach() for each in own)
            total = total + cross_entropy(found.transpose(1, 2), y)
        state = own
        return total

    if kept:
        with pytest.raises(InvalidParticipation, match="returned for an earlier batch, such as a hidden state"):
            train(made, loop)
        assert made.optimizer.noise.step == 0
    else:
        train(made, loop)
        assert made.optimizer.noise.step == EXAMPLES // SIZE


PARTS: dict[str, Callable[[], torch.nn.Module]] = {
    "a dict of modules": lambda: torch.nn.ModuleDict({"body": network(), "head": torch.nn.Linear(3, 3)}),
    "a method beside forward": lambda: Halves(),
    "a wrapper in eval mode": lambda: Halves(),
}


class Halves(torch.nn.Module):
    """A body and a head, which loops may call by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = network(), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_a_loop_calls_by_themselves_are_watched_like_the_whole(name: str, kept: bool) -> None:
    inner = PARTS[name]()
    made, first = private(inner), None

    def loop(model: Any, batch: Any) -> torch.Tensor:
        nonlocal first
        if first is None and not made.optimizer.rehearsal.rehearsing:
            first = batch
        x, y = first if kept and first is not None else batch
        if name == "a wrapper in eval mode":
            model.eval()
            return cross_entropy(inner.train()(x), y)
        return cross_entropy(model.head((model.begin if hasattr(model, "begin") else model["body"])(x)), y)

    if kept:
        with pytest.raises(InvalidParticipation, match=r"examples of an earlier step.*torch.no_grad\(\)"):
            train(made, loop)
        assert made.optimizer.noise.step == 1
    else:
        train(made, loop)
        assert made.optimizer.noise.step == EXAMPLES // SIZE


def test_a_loss_that_mixes_is_refused_in_a_wrapper_in_eval_mode() -> None:
    """The rehearsal would come again and again if it believed the wrapper."""
    inner = network()
    made = private(inner, loss=lambda m, b: cross_entropy(m(b[0]) - m(b[0]).mean(0), b[1], reduction="none"))
    made.model.eval()
    inner.train()
    with pytest.raises(InvalidParameter, match="moved the clipped gradients of the others"):
        train(made, lambda _, b: cross_entropy(inner(b[0]), b[1]))
    assert made.optimizer.noise.step == 0


def adversarial(model: Any, batch: Any, *, hooked: bool = True) -> torch.Tensor:
    x = batch[0].clone().requires_grad_()
    if not hooked:
        model.disable_hooks()
    (found,) = torch.autograd.grad(mean(model, (x, batch[1])), x)
    model.enable_hooks()
    return mean(model, (batch[0] + 0.1 * found.sign(), batch[1]))


def penalized(model: Any, batch: Any) -> torch.Tensor:
    x = batch[0].clone().requires_grad_()
    loss = mean(model, (x, batch[1]))
    return loss + torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()


def test_gradients_of_inputs_are_not_those_of_examples() -> None:
    """Opacus would add the gradients of the first pass, by which plain autograd trains nothing."""
    found = []
    for hooked in (True, False):
        made = private(network())
        train(made, lambda model, batch, hooked=hooked: adversarial(model, batch, hooked=hooked))
        found.append([p.detach().clone() for p in made.model.parameters()])
        made.optimizer.close()
    assert all(map(torch.equal, *found))
    made = private(network())
    with pytest.raises(InvalidParameter, match="second backward pass for one forward pass"):
        train(made, penalized)
    assert made.optimizer.noise.step == 0


def test_each_of_several_passes_counts_beside_plain_autograd() -> None:
    """A weight that is penalized in a pass of its own."""
    made = private(network())

    def loop(model: Any, batch: Any) -> torch.Tensor:
        mean(model, batch).backward()
        return 0.1 * model(batch[0]).square().mean() + 1e-2 * model[0].weight.square().sum()

    with pytest.raises(InvalidParameter, match="gradients of 0.weight do not add up to"):
        train(made, loop)
    assert made.optimizer.noise.step == 0


def test_a_trained_model_in_eval_mode_shows_gradients_of_its_inputs() -> None:
    made = private(network())
    train(made, mean)
    made.model.eval()
    x = torch.randn(3, 6, requires_grad=True)
    assert torch.autograd.grad(made.model(x).sum(), x)[0].count_nonzero()
    with pytest.raises(InvalidParameter, match="eval mode.*or torch.autograd.grad for gradients of inputs"):
        made.model(x).sum().backward()


class Attribute(torch.nn.Module):
    """A layer that leaves a tensor of its batch in an attribute, and may use that of the batch before."""

    def __init__(self, use: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
        super().__init__()
        self.kept, self._use = None, use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self._use(x, self.kept)
        self.kept = x.detach().mean(0) if self.kept is None else 0.9999 * self.kept + 1e-4 * x.detach().mean(0)
        return out


class RunningNumber(torch.nn.Module):
    """A layer that subtracts, or only shows, a plain number that follows the examples."""

    def __init__(self, share: float, *, used: bool) -> None:
        super().__init__()
        self.kept, self._share, self._used = 0.0, share, used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x - self.kept if self._used else x
        self.kept = (1 - self._share) * self.kept + self._share * x.mean().item()
        return out


class Cache(torch.nn.Module):
    """A layer that makes a table in its first pass, and counts passes in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.warmth = None, torch.ones(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = torch.linspace(0, 1, x.shape[1]) if self.table is None else self.table
        self.warmth = 0.99 * self.warmth
        return x + self.table * self.warmth.clamp(min=0.99)


class Places(torch.nn.Module):
    """A layer that keeps a table of positions for texts as long as those of the last batch, as rotary ones do."""

    table: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None or len(self.table) != x.shape[1]:
            self.table = torch.arange(x.shape[1])[:, None] / 99
        return x + self.table


def test_what_the_model_keeps_of_a_batch_is_refused_if_the_next_reads_it() -> None:
    """A mean that follows the examples by a ten-thousandth moves no gradient enough to be seen."""
    for layer in (Attribute(lambda x, kept: x if kept is None else x - kept), RunningNumber(1e-6, used=True)):
        made = private(network(layer))
        with pytest.raises(InvalidParameter, match="keeps 1.kept from one batch to the next and computes with it"):
            train(made, mean)
        assert made.optimizer.noise.step == 0
        made.optimizer.close()
    train(private(network(Attribute(lambda x, _: x))), mean)
    train(private(network(RunningNumber(1e-6, used=False))), mean)
    train(private(network(Cache())), mean)


def test_texts_of_several_lengths() -> None:
    """A mean over all tokens is refused for their number alone; one over the tokens of each text is not."""
    lengths = np.random.default_rng(0).integers(3, LENGTH, EXAMPLES)
    lengths[private(network()).loader.order[0][2]] = LENGTH
    rows = [(x[:end], y[:end]) for x, y, end in zip(*texts().tensors, lengths, strict=True)]

    def collate(items: Any, fill: int = -100) -> tuple[torch.Tensor, torch.Tensor]:
        pad = torch.nn.utils.rnn.pad_sequence
        return pad([x for x, _ in items], True), pad([y for _, y in items], True, fill)

    def each(model: Any, batch: Any) -> torch.Tensor:
        losses, counts = of_words(model, batch, reduction="none"), (batch[1] != -100).sum(1)
        return (losses.sum(1) / counts).mean()

    def made(fill: int, dropped: float = 0.0) -> Private:
        torch.manual_seed(4)
        layers = torch.nn.Embedding(WORDS, 6), Places(), torch.nn.Dropout(dropped), torch.nn.Linear(6, WORDS)
        loader = DataLoader(rows, batch_size=SIZE, collate_fn=lambda items: collate(items, fill))  # type: ignore
        return private(torch.nn.Sequential(*layers), loader, batch_size=None)

    for fill, dropped, loop, wrong in (
        (-100, 0.0, of_words, True),
        (-100, 0.3, of_words, True),
        (0, 0.0, of_words, True),  # the longest text says over how many tokens all means go
        (-100, 0.0, each, False),
        (-100, 0.3, each, False),
    ):
        if wrong:
            with pytest.raises(InvalidParameter, match="mixes the examples"):
                train(made(fill, dropped), loop)
        else:
            train(made(fill, dropped), loop)


@pytest.mark.parametrize("dropped", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_long_texts_to_which_others_are_padded(several: bool, masked: bool, dropped: float) -> None:
    """It changes their gradients if padding is read as words: one in another batch, or nearly all of the first."""
    order = private(network()).loader.order
    lengths = np.full(EXAMPLES, 3)
    lengths[order[0][1:] if several else order[1][0]] = LENGTH
    labels = (lengths == LENGTH) | (np.arange(EXAMPLES) > 0)  # the first one is rarer than the long one
    rows = [(x[:end], int(y), int(y)) for x, end, y in zip(texts().tensors[0], lengths, labels, strict=True)]

    def collate(items: Any) -> tuple[torch.Tensor, torch.Tensor]:
        padded = torch.nn.utils.rnn.pad_sequence([x + 1 for x, *_ in items], True)
        return padded, torch.tensor([y for *_, y in items])

    def loss(model: Any, batch: Any) -> torch.Tensor:
        words, counts = model(batch[0]), (batch[0] != 0 if masked else torch.ones_like(batch[0]))[..., None]
        return torch.nn.functional.cross_entropy((words * counts).sum(1) / counts.sum(1), batch[1])

    torch.manual_seed(4)
    layers = torch.nn.Embedding(WORDS + 1, 6), Places(), torch.nn.Dropout(dropped), torch.nn.Linear(6, WORDS)
    loader = DataLoader(rows, batch_size=SIZE, collate_fn=collate)  # type: ignore
    made = private(torch.nn.Sequential(*layers), loader, batch_size=None)
    if masked:
        train(made, loss)
    else:
        with pytest.raises(InvalidParameter, match="mixes the examples"):
            train(made, loss)


def test_a_loop_may_change_the_batch_that_it_is_given() -> None:
    """Three examples have the longest of three texts, so one half of them alone can be padded as the batch is."""
    longest = private(network()).loader.order[0][:3]
    rows = [([x[: LENGTH if i == each else 3] for each in longest], y[0]) for i, (x, y) in enumerate(texts())]

    def collate(items: Any) -> dict[str, Any]:
        columns = zip(*(item[0] for item in items), strict=True)
        padded = [torch.nn.utils.rnn.pad_sequence([x + 1 for x in each], True) for each in columns]
        return {"texts": padded, "labels": torch.stack([y for _, y in items])}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        labels = batch.pop("labels")
        return cross_entropy(sum((model(x) * (x > 0)[..., None]).sum(1) for x in batch.pop("texts")), labels)

    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Embedding(WORDS + 1, 6), torch.nn.Linear(6, WORDS))
    train(private(model, DataLoader(rows, batch_size=SIZE, collate_fn=collate), batch_size=None), loss)  # type: ignore


@pytest.mark.parametrize("own", [False, True])
def test_a_collation_that_draws_for_texts_of_several_lengths(own: bool) -> None:
    """As for masked language models: where the padding is another, the draws fall on other words."""
    luck, lengths = torch.Generator().manual_seed(1) if own else None, np.arange(EXAMPLES) % LENGTH + 1
    rows = [x[:end].tolist() for x, end in zip(texts().tensors[0], lengths, strict=True)]

    def mask(items: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.nn.utils.rnn.pad_sequence([torch.tensor(item) for item in items], True)
        hidden = torch.rand(words.shape, generator=luck) < 0.5
        return words.masked_fill(hidden, 0), words.masked_fill(~hidden, -100)

    def each(model: Any, batch: Any) -> torch.Tensor:
        return (of_words(model, batch, reduction="none").sum(1) / LENGTH).mean()

    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Embedding(WORDS, 6), torch.nn.Linear(6, WORDS))
    made = private(model, DataLoader(rows, batch_size=SIZE, collate_fn=mask), batch_size=None)  # type: ignore
    if own:
        with pytest.raises(InvalidParameter, match="as with a generator of its own.*leave out its seed="):
            train(made, each)
    else:
        train(made, each)


class TestSampledSizes:
    def poisson(self, **options: Any) -> Private:
        n = EXAMPLES // 4
        factors = handmade(ToeplitzMatrix(np.eye(1, n)[0], n))
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"epsilon": 8.0, "delta": 1e-2, "epochs": 1, "seed": 2**70, "batch_size": 4}
        asked = {**settings, "sampling": "cyclic_poisson", **options}
        return make_private(model, optimizer, vectors(), factors, **asked)

    def test_a_sum_in_the_place_of_a_mean_scales_all_gradients_by_a_secret_size(self):
        with pytest.raises(InvalidParameter, match="leaving out"):
            train(self.poisson(), lambda m, b: mean(m, b, reduction="sum"))
        train(self.poisson(loss_reduction="sum"), lambda m, b: mean(m, b, reduction="sum"))
        train(self.poisson(), mean)


class TestNothingElseChanges:
    def weights(self, loss: Any, workers: int = 0) -> list[torch.Tensor]:
        class Noisy(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                x, y = super().__getitem__(index)
                return x + torch.randn(6) + np.random.normal(), y

        torch.manual_seed(0)
        np.random.seed(0)
        made = private(network(torch.nn.Dropout(0.5)), Noisy(*vectors().tensors), loss=loss)
        train(made, mean)
        return list(made.model.parameters())

    def test_random_numbers_and_weights(self):
        expected = self.weights("not_looked_at")
        for loss in ("rehearsed", lambda m, b: mean(m, b, reduction="none")):
            assert all(map(torch.equal, self.weights(loss), expected))

    def test_buffers_gradients_and_schedules(self):
        class Counting(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("seen", torch.zeros(()))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.seen += 1
                return x

        model = network(Counting())
        made, rates, n = private(model), [], EXAMPLES // SIZE
        schedule = torch.optim.lr_scheduler.SequentialLR(
            made.optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(made.optimizer, total_iters=2),
                torch.optim.lr_scheduler.OneCycleLR(made.optimizer, max_lr=1.0, total_steps=n, cycle_momentum=False),
            ],
            milestones=[2],
        )
        for batch in made.loader:
            mean(made.model, batch).backward()
            rates.append(made.optimizer.param_groups[0]["lr"])
            before, rehearsing = made.model.state_dict(), made.optimizer.rehearsal.rehearsing
            made.optimizer.step()
            if rehearsing:
                assert all(not p.grad.any() for p in model.parameters()) and not made.optimizer.state_dict()["state"]
                assert all(map(torch.equal, before.values(), made.model.state_dict().values()))
            schedule.step()
            made.optimizer.zero_grad()
        assert rates[0] == rates[1] and schedule.last_epoch == n == int(model[1].seen)

    @pytest.mark.parametrize("loss", ["rehearsed", lambda model, batch: mean(model, batch, reduction="none")])
    @pytest.mark.parametrize("anew", [False, True])
    def test_a_buffer_that_follows_the_examples_is_refused(self, anew: bool, loss: Any):
        class Centred(torch.nn.Module):
            """What it subtracts was seen in earlier steps, so that no step alone mixes its examples."""

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("steps", torch.zeros(()))
                self.register_buffer("mean", torch.zeros(8))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                centred, moved = x - self.mean, 0.9 * self.mean + 0.1 * x.detach().mean(0)
                self.steps = self.steps + 1
                self.mean = moved if anew else self.mean.copy_(moved)
                return centred

        made = private(network(Centred()), loss=loss)
        with pytest.raises(InvalidParameter, match="buffer 1.mean depends on the examples"):
            train(made, mean)
        assert made.optimizer.noise.step == 0

    def test_a_parameter_that_a_pass_changes_is_refused(self):
        class Code(torch.nn.Module):
            """A mean that is kept in a parameter, from the first batch on or always."""

            def __init__(self, how: str) -> None:
                super().__init__()
                self.how, self.code = how, torch.nn.Parameter(torch.zeros(8), requires_grad=False)
                self.teacher = torch.nn.Parameter(torch.linspace(1, 2, 8), requires_grad=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.how == "once":
                    self.code.data.copy_(x.mean(0))
                    self.how = ""
                elif self.how == "running":
                    self.code.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
                with torch.no_grad():
                    self.teacher.mul_(0.99).add_(torch.linspace(1, 2, 8), alpha=0.01)  # follows no example
                return x - (self.code if self.how == "" else 0)

        for how in ("once", "running"):
            made = private(network(Code(how), torch.nn.Tanh()))
            with pytest.raises(InvalidParameter, match="changes the parameter 1.code"):
                train(made, mean)
            assert made.optimizer.noise.step == 0
            made.optimizer.close()
        train(private(network(Code(""), torch.nn.Tanh())), mean)

    def test_copies_and_files_of_the_model_hold_nothing_of_it(self):
        made = private(network())
        for batch in made.loader:
            for model in (made.model, made.model._module):
                kept = io.BytesIO()
                torch.save(model, kept)
                assert b"ehearsal" not in kept.getvalue().replace(b"factorize.adapters.checks.rehearsal", b"")
                assert batch[0].numpy().tobytes()[:48] not in kept.getvalue()
                with torch.no_grad():
                    copy.deepcopy(model)(batch[0])
            mean(made.model, batch).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()

    def test_loops_that_ask_for_one_batch_at_a_time(self):
        made = private(network(torch.nn.Dropout(0.5)))
        next(iter(made.loader))  # a look
        for _ in range(EXAMPLES // SIZE + 2):
            mean(made.model, next(iter(made.loader))).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        assert made.optimizer.noise.step == EXAMPLES // SIZE

    def test_a_rehearsal_without_its_step(self):
        batches = iter(private(network()).loader)
        next(batches)
        with pytest.raises(InvalidParticipation, match="the wrong examples"):
            next(batches)


class TestChanges:
    """What is changed in the third batch that comes."""

    def train(self, change: Callable[[Any], Any], model: Any = None) -> tuple[Private, int]:
        made, came = private(network() if model is None else model), 0

        def loop(wrapped: Any, batch: Any) -> torch.Tensor:
            nonlocal came
            came += 1
            if came == 3:
                change(made.model._module)
            return mean(wrapped, batch)

        return made, train(made, loop)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda m: m[0].weight.requires_grad_(False), r"0.weight has noise but is no longer trained"),
            (lambda m: m.append(torch.nn.Linear(3, 3)), r"3.weight is trained but has no noise"),
            (lambda m: m.__setitem__(1, Layer(lambda x: x - x.mean(0))), "mixes the examples"),
            (lambda m: m.eval(), "in eval mode"),
            (lambda m: m[0].eval(), r"0 is in eval mode.*call model.train\(\)"),
        ],
    )
    def test_that_are_refused(self, change, said):
        with pytest.raises(InvalidParameter, match=said):
            self.train(change)

    def test_a_parameter_that_is_thawed(self):
        model = network()
        model[0].bias.requires_grad_(False)
        with pytest.raises(InvalidParameter, match=r"0.bias is trained but has no noise"):
            self.train(lambda m: m[0].bias.requires_grad_(True), model)

    def test_a_batch_norm_that_train_mode_thaws_is_named(self):
        """As of a pretrained model, in a loop that calls train() at the beginning of each epoch."""
        model = network(torch.nn.BatchNorm1d(8).eval().requires_grad_(False))
        assert self.train(lambda m: None, model)[0].optimizer.noise.step == EXAMPLES // SIZE
        model = network(torch.nn.BatchNorm1d(8).eval().requires_grad_(False))
        with pytest.raises(InvalidParameter, match=r"1 is a BatchNorm1d in train mode.* eval\(\) on it after each"):
            self.train(lambda m: m.train(), model)
        with pytest.raises(InvalidParameter, match="1 is a BatchNorm1d in train mode"):
            train(private(network(torch.nn.BatchNorm1d(8, affine=False, track_running_stats=False))), mean)

    def test_a_sound_layer_is_rehearsed_again(self):
        made, came = self.train(lambda m: m.__setitem__(1, torch.nn.ReLU()))
        assert came == EXAMPLES // SIZE + 5 and made.optimizer.noise.step == EXAMPLES // SIZE


def discriminator() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def generator() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Linear(2, 6)


def is_real(model: Any, x: torch.Tensor, answer: float) -> torch.Tensor:
    found = model(x)
    return functional.binary_cross_entropy_with_logits(found, torch.full_like(found, answer))


class TestWhatTheLoopTrainsBeside:
    """Rates are so small that no gradient of the private model shows what was learnt."""

    rate = 1e-6

    def beside(self, made: Private, other: Any, iteration: Callable[[Any, Any], None]) -> int:
        """Train for an epoch with another optimizer, and return how many batches came."""
        optimizer, came = torch.optim.Adam(other.parameters(), lr=self.rate), 0
        before = [p.clone() for p in other.parameters()]
        for batch in made.loader:
            iteration(batch, optimizer)
            came += 1
        assert not all(map(torch.equal, before, other.parameters()))
        return came

    @pytest.mark.parametrize("how", ["a head", "an encoder", "weights of losses", "its own backward pass"])
    def test_on_the_examples_is_refused(self, how: str):
        made, other = private(network()), torch.nn.Linear(*{"an encoder": (6, 6)}.get(how, (3, 3)))
        if how == "weights of losses":  # whose gradients have the same signs, whatever the examples are
            other = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2))])

        def iteration(batch: Any, optimizer: Any) -> None:
            x = other(batch[0]) if how == "an encoder" else batch[0]
            out = made.model(x)
            if how == "a head":
                out = other(out)
            loss = cross_entropy(out, batch[1])
            if how == "weights of losses":
                loss = (other[0].exp() * torch.stack([loss, out.square().mean()])).sum()
            loss.backward()
            made.optimizer.step()
            if how == "its own backward pass":
                cross_entropy(other(out.detach()), batch[1]).backward()
            optimizer.step()
            for each in (made.optimizer, optimizer):
                each.zero_grad()

        with pytest.raises(InvalidParameter, match="the loop changes the weights that Adam trains by the examples"):
            self.beside(made, other, iteration)
        assert made.optimizer.noise.step == 0

    @pytest.mark.parametrize("trained", [True, False])
    def test_a_loss_that_is_a_function_may_use_weights_beside_the_model_if_they_are_frozen(self, trained: bool):
        """Its loop gets no batch more, which would show what another optimizer has learned."""
        head = torch.nn.Linear(3, 3).requires_grad_(trained)

        def losses(model: Any, batch: Any) -> torch.Tensor:
            return cross_entropy(head(model(batch[0])), batch[1], reduction="none")

        made = private(network(), loss=losses)
        if not trained:
            losses(made.model, next(iter(made.loader))).mean().backward()
            made.optimizer.step()
        else:
            with pytest.raises(
                InvalidParameter, match=r"a parameter of shape \(3, 3\)|\(3,\) that is not in the model"
            ):
                next(iter(made.loader))
        assert made.optimizer.noise.step == (not trained)
        made.optimizer.close()

    def test_a_discriminator_without_noise_is_refused(self):
        made, other = private(generator()), discriminator()

        def iteration(batch: Any, optimizer: Any) -> None:
            with torch.no_grad():
                fake = made.model(torch.randn(SIZE, 2))
            (is_real(other, batch[0], 1) + is_real(other, fake, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            is_real(other, made.model(torch.randn(SIZE, 2)), 1).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()

        with pytest.raises(InvalidParameter, match="the weights that Adam trains"):
            self.beside(made, other, iteration)
        assert made.optimizer.noise.step == 0

    @pytest.mark.parametrize("ranks", [1, 2])
    @pytest.mark.parametrize("first", [True, False])
    @pytest.mark.parametrize("apart", [True, False])
    def test_a_generator_that_sees_no_example_is_not(self, first: bool, apart: bool, ranks: int):
        """However fast it learns; and each of the discriminator's losses may have a backward pass of its own.

        On several ranks, whose loops may wait for one another, as many batches come as if there were a difference.
        """
        made, other = private(discriminator()), generator()
        made.optimizer.rehearsal._ranks = ranks
        self.rate = 0.1

        def fool(optimizer: Any) -> None:
            is_real(made.model, other(torch.randn(SIZE, 2)), 1).backward()
            optimizer.step()
            for each in (made.optimizer, optimizer):
                each.zero_grad()

        def iteration(batch: Any, optimizer: Any) -> None:
            if first:
                fool(optimizer)
            loss = is_real(made.model, batch[0], 1)
            if apart:
                loss.backward()
            fake = is_real(made.model, other(torch.randn(SIZE, 2)).detach(), 0)
            (fake if apart else loss + fake).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            if not first:
                fool(optimizer)

        assert self.beside(made, other, iteration) == EXAMPLES // SIZE + 2 + ranks
        assert made.optimizer.noise.step == EXAMPLES // SIZE

    def test_is_put_back_with_the_state_of_its_optimizer(self):
        """The bits are those of a job without rehearsals, also after one in a later epoch."""
        found = []
        for loss in ("rehearsed", "not_looked_at"):
            torch.manual_seed(1)
            made, other = TestPasses().made(2, model=discriminator(), loss=loss), generator()
            optimizer = torch.optim.Adam(other.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            for x, _ in (batch for _ in range(2) for batch in made.loader):
                is_real(made.model, x, 1).backward()
                made.optimizer.step()
                is_real(made.model, other(torch.randn(SIZE, 2)), 1).backward()
                optimizer.step()
                schedule.step()
                for each in (made.optimizer, optimizer):
                    each.zero_grad()
            made.optimizer.close()
            found.append([*other.parameters(), *made.model.parameters()])
        assert all(map(torch.equal, *found)) and schedule.last_epoch == 2 * EXAMPLES // SIZE

    def test_on_public_data_is_not(self):
        """Their order shows nothing of the examples, though no two passes see the same."""
        made, other, public = private(network()), torch.nn.Linear(6, 3), iter(torch.randn(99, SIZE, 6))

        def iteration(batch: Any, optimizer: Any) -> None:
            other(next(public)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            mean(made.model, batch).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()

        assert self.beside(made, other, iteration) == EXAMPLES // SIZE + 4

    @pytest.mark.parametrize("every", [1, 2])
    @pytest.mark.parametrize("of", ["a teacher", "the model"])
    def test_means_of_released_weights_are_put_back(self, of: str, every: int):
        """The bits are those of a job without rehearsals, also where a pass of one takes no mean."""
        found = []
        for loss in ("rehearsed", "not_looked_at"):
            with torch.inference_mode(of == "the model"):  # whose tensors nothing may write to
                teacher = network()
            made = TestPasses().made(2, model=network(), loss=loss)
            slow = [p.detach() + 0.1 for p in made.model.parameters()]
            for x, y in (batch for _ in range(2) for batch in made.loader):
                out = made.model(x)
                with torch.no_grad():
                    aim = teacher(x)
                (cross_entropy(out, y) + (out - aim).square().mean()).backward()
                made.optimizer.step()
                made.optimizer.zero_grad()
                pair = (teacher, made.model.parameters()) if of == "a teacher" else (made.model, slow)
                for p, each in zip(pair[0].parameters(), pair[1], strict=True):
                    p.data.lerp_(each.data, 0.5 * (made.optimizer.noise.step % every == 0))
            made.optimizer.close()
            found.append([*teacher.parameters(), *made.model.parameters()])
        assert all(map(torch.equal, *found))

    def test_weights_of_another_job_are_its_own(self):
        """Two models learn from one another; a rehearsal of the one leaves the steps of the other as they are."""
        found = []
        for loss in ("rehearsed", "not_looked_at"):
            one = private(network(), loss=loss)
            other = private(network(), loss="not_looked_at", seed=2**71)
            handed = iter(other.loader)
            for x, y in one.loader:
                if other.optimizer.noise.step == EXAMPLES // SIZE:  # the rehearsal of the first came on top
                    break
                second = next(handed)
                outs = one.model(x), other.model(second[0])
                cross_entropy(outs[0], y).backward()
                cross_entropy(outs[1], second[1]).backward()
                for made in (one, other):
                    made.optimizer.step()
                    made.optimizer.zero_grad()
            one.optimizer.close()
            other.optimizer.close()
            found.append(list(other.model.parameters()))
        assert all(map(torch.equal, *found))

    @pytest.mark.parametrize("of", ["Linear.weight", "0.weight"])
    def test_weights_that_follow_the_examples_without_an_optimizer_are_refused(self, of: str):
        made, teacher = private(network()), network()
        with pytest.raises(InvalidParameter, match=f"the loop changes {of} by the examples"):
            for x, y in made.loader:
                teacher(x)
                cross_entropy(made.model(x), y).backward()
                made.optimizer.step()
                made.optimizer.zero_grad()
                with torch.no_grad():
                    next((teacher if of == "Linear.weight" else made.model).parameters()).add_(1e-5 * x.mean())
        assert made.optimizer.noise.step == 0

    @pytest.mark.parametrize("where", ["loss", "teacher", "scripted teacher", "after the step", "counted"])
    def test_buffers(self, where: str):
        class Centre(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("centre", torch.zeros(3))

            def move(self, out: torch.Tensor) -> None:
                self.centre += 1e-5 * (torch.ones(3) if where == "counted" else out.detach().mean(0))

            def forward(self, out: torch.Tensor) -> torch.Tensor:
                if where == "loss":
                    self.move(out)
                return out - self.centre

        made, centre = private(network()), Centre()
        teacher = torch.nn.BatchNorm1d(6, momentum=1e-5)
        if where == "scripted teacher":
            teacher = torch.jit.script(teacher)

        def train_once() -> int:
            came = 0
            for x, y in made.loader:
                if "teacher" in where:
                    teacher(x)
                out = made.model(x)
                cross_entropy(centre(out), y).backward()
                made.optimizer.step()
                made.optimizer.zero_grad()
                if where in ("after the step", "counted"):
                    centre.move(out)
                came += 1
            return came

        if where == "counted":
            assert train_once() == EXAMPLES // SIZE + 3 and float(centre.centre[0]) == pytest.approx(
                1e-5 * EXAMPLES / SIZE
            )
            return
        said = {"loss": "Centre.centre depends", "after the step": "Centre.centre by"}
        with pytest.raises(InvalidParameter, match=said.get(where, "running_mean depends")):
            train_once()
        assert made.optimizer.noise.step == 0


class TestPasses:
    def made(self, passes: int, model: Any = None, **options: Any) -> Private:
        n, model = passes * EXAMPLES // SIZE, network() if model is None else model
        factors = handmade(ToeplitzMatrix(np.eye(1, n)[0], n), {"kind": "fixed_epochs", "epochs": passes})
        settings = {"epsilon": 8.0, "delta": 1e-2, "epochs": passes, "seed": 2**70, "batch_size": SIZE, **options}
        return make_private(model, torch.optim.SGD(model.parameters(), lr=0.5), vectors(), factors, **settings)

    def test_begin_with_a_rehearsal_ever_more_steps_apart(self):
        made = self.made(9)
        more = [train(made, mean) - EXAMPLES // SIZE for _ in range(9)]
        assert more == [2, 2, 2, 2, 2, 0, 2, 0, 2] and made.optimizer.noise.step == 9 * EXAMPLES // SIZE

    @pytest.mark.parametrize("loss", ["rehearsed", lambda m, b: mean(m, b, reduction="none")])
    def test_begin_after_an_evaluation(self, loss: Any):
        made, came = self.made(3, loss=loss), 0
        for _ in range(3):
            for batch in made.loader:
                made.model.train()
                mean(made.model, batch).backward()
                made.optimizer.step()
                made.optimizer.zero_grad()
                came += 1
            made.model.eval()
        assert came == 3 * EXAMPLES // SIZE + (6 if loss == "rehearsed" else 0)

    def test_a_loss_that_mixes_from_a_later_pass_on_is_refused_there(self):
        made = self.made(3)
        train(made, mean)
        with pytest.raises(InvalidParameter, match="mixes the examples"):
            train(made, weighted)
        assert made.optimizer.noise.step == EXAMPLES // SIZE


class TestReadsOfTheData:
    """The loop has the tensors of the data set at hand, and may read examples that are not in the batch."""

    data = vectors()
    x, y = data.tensors

    def partners(self, model: Any, batch: Any, **options: Any) -> torch.Tensor:
        others = torch.randint(EXAMPLES, (len(batch[0]),))
        return mean(model, (0.7 * batch[0] + 0.3 * self.x[others], batch[1]), **options)

    def neighbours(self, model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            near = torch.cdist(batch[0], self.x).topk(3, largest=False)[1]
            wanted = functional.one_hot(self.y, 3)[near].float().mean(1)
        return cross_entropy(model(batch[0]), wanted)

    def centred(self, model: Any, batch: Any) -> torch.Tensor:
        return mean(model, (batch[0] - self.x.T.mean(1), batch[1]))

    @pytest.mark.parametrize("name", ["partners", "neighbours", "centred"])
    @pytest.mark.parametrize("subset", [False, True])
    def test_that_move_gradients_are_refused(self, name: str, subset: bool) -> None:
        data = torch.utils.data.Subset(self.data, range(EXAMPLES)) if subset else self.data
        made = private(network(torch.nn.Dropout(0.3)), data)
        with pytest.raises(InvalidParameter, match="reads examples of the data set beside those of the batch"):
            train(made, getattr(self, name))
        assert made.optimizer.noise.step == 0

    def test_of_arrays_beside_its_class_are_refused(self) -> None:
        x, y = self.data.tensors

        class Notebook(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return len(y)

            def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
                return x[i], y[i]

        with pytest.raises(InvalidParameter, match="reads examples of the data set beside those of the batch"):
            train(private(network(), Notebook()), self.partners)

    def test_by_a_loss_that_is_given_are_refused(self) -> None:
        made = private(network(), self.data, loss=lambda m, b: self.partners(m, b, reduction="none"))
        with pytest.raises(InvalidParameter, match="beside those of the batch"):
            train(made, self.partners)

    def test_of_the_batchs_own_rows_or_for_a_log_are_not(self) -> None:
        data, passes = TensorDataset(self.x, self.y, torch.arange(EXAMPLES)), 0
        made = private(network(), data)
        for _, _, places in made.loader:
            passes += 1
            with torch.no_grad():
                assert 0 <= float((made.model(self.x).argmax(1) == self.y).float().mean()) <= 1
            ((1 - 1e-4) ** passes * mean(made.model, (self.x[places], self.y[places]))).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        assert made.optimizer.noise.step == EXAMPLES // SIZE

    def test_of_tensors_too_large_to_copy_are_not_watched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data_reads, "MAX_SWAPPED_BYTES", self.y.nbytes)
        made = private(network(), self.data)
        train(made, self.partners)
        assert made.optimizer.noise.step == EXAMPLES // SIZE

    def test_are_no_longer_watched_after_loops_of_two_jobs(self) -> None:
        one, other = private(network(), self.data), private(network(), vectors(), seed=2**71)
        for batches in zip(one.loader, other.loader, strict=True):
            for made, batch in zip((one, other), batches, strict=True):
                mean(made.model, batch).backward()
                made.optimizer.step()
                made.optimizer.zero_grad()
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class TestWhatIsSaid:
    def test_in_the_statement(self):
        losses = {"rehearsed": "rehearsed", "per_example": lambda m, b: mean(m, b, reduction="none")}
        for said, loss in losses.items():
            statement = private(network(), loss=loss).statement
            assert statement.document()["loss"] == said and str(statement).startswith("(8, 0.01)-differential privacy")
        statement = private(network(), loss="not_looked_at").statement
        assert str(statement).splitlines()[0].startswith("The loss was not checked")
        with pytest.raises(InvalidParameter, match="is not one of per_example"):
            private(network(), loss="seen")

    def test_a_loss_that_is_no_loss_for_each(self):
        with pytest.raises(InvalidParameter, match="reduction='none'"):
            train(private(network(), loss=mean), mean)

    def test_a_loop_that_computes_another_loss_than_was_given(self):
        with pytest.raises(InvalidParameter, match="mixes the examples"):
            train(private(network(), loss=lambda m, b: mean(m, b, reduction="none")), weighted)

    def test_batches_of_ones_own(self):
        made = private(network())
        batch = made.loader.order[0]
        made.optimizer.expect(batch)
        mean(made.model, vectors()[batch]).backward()
        with pytest.raises(InvalidParticipation, match="nobody checked the loss"):
            made.optimizer.step()


def test_the_oldest_batches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that hands in one of the last batches is found; what is remembered has an end."""
    monkeypatch.setattr(altered_batches, "MAX_MARKS", 9)
    marks, batches = altered_batches.BatchMarks(), [torch.randn(4, 3) for _ in range(4)]
    for batch in batches:  # a mark of each, and of each of its four rows
        marks.hand_out(batch)
    assert [marks.are_earlier(batch) for batch in batches] == [False, True, True, False]
