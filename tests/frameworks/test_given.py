"""What the callers of a torch job give: used as it is, or refused by name before a step, and never replaced in silence."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from handmade import handmade
from opacus import GradSampleModule
from private_cases import EPOCHS, EXAMPLES, SECRET, SIZE, N, factors
from test_private import data, network, private, train
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from factorize.adapters.data.empty_batches import empty_like
from factorize.adapters.data.held_examples import refuse_held_examples
from factorize.adapters.given import check_model
from factorize.adapters.opacus import CorrelatedOptimizer, refuse_sampling
from factorize.adapters.opacus_ranks import correlated_optimizer
from factorize.errors import FactorizeError, InvalidParameter, InvalidParticipation
from factorize.privacy import PrivacyTarget, calibrate
from factorize.structures.toeplitz import ToeplitzMatrix

SGD = torch.optim.SGD


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(EXAMPLES))


class Own(SequentialSampler):
    """A sampler of the caller's own class, whatever it does."""


class Mixed(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


LOADERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a part": (lambda d: DataLoader(d, SIZE, sampler=SubsetRandomSampler(range(9))), "SubsetRandomSampler.*Subset"),
    "the first ones": (lambda d: DataLoader(d, SIZE, sampler=SequentialSampler(range(9))), "SequentialSampler"),
    "by weight": (lambda d: DataLoader(d, SIZE, sampler=WeightedRandomSampler([1.0] * EXAMPLES, EXAMPLES)), "Weighted"),
    "replacement": (lambda d: DataLoader(d, SIZE, sampler=RandomSampler(d, replacement=True)), "RandomSampler"),
    "fewer": (lambda d: DataLoader(d, SIZE, sampler=RandomSampler(d, num_samples=SIZE)), "RandomSampler"),
    "ranks": (lambda d: DataLoader(d, SIZE, sampler=DistributedSampler(d, 2, 0)), "DistributedSampler.*its share"),
    "own sampler": (lambda d: DataLoader(d, SIZE, sampler=Own(d)), "Own decides"),
    "own batches": (lambda d: DataLoader(d, batch_sampler=[[0, 1], [0, 2]]), "list decides"),
    "own loader": (lambda d: Mixed(d, SIZE), "Mixed decides"),
    "no batches": (lambda d: DataLoader(d, batch_size=None), "batch_size=None"),
    "a stream": (lambda _d: DataLoader(Stream(), SIZE), "Stream has no length"),
    "an iterator": (iter, "has no length"),
    "another library's": (lambda d: SimpleNamespace(dataset=d), r"has no length.*give its .dataset with batch_size="),
    "columns": (lambda d: dict(zip("xy", d.tensors, strict=True)), "the dict has x, y in place of examples 0, 1, 2"),
    "no example": (lambda _d: DataLoader([], SIZE), "the list has no example; look at the path or the filter"),
    "sparse items": (lambda d: DataLoader([(x.to_sparse(), y) for x, y in d], SIZE), r"sparse or nested.*to_dense\(\)"),
    "sparse batches": (
        lambda d: DataLoader(d, SIZE, collate_fn=lambda items: torch.stack([x for x, _ in items]).to_sparse()),
        "sparse or nested tensors, in an item or in what the collation makes",
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_that_choose_for_themselves_are_refused(name: str) -> None:
    make, said = LOADERS[name]
    for options in ({}, {"sampling": "cyclic_poisson", "bands": 2}):
        with pytest.raises(FactorizeError, match=said):
            private(loader=make(data()), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loader": DataLoader(data(), SIZE), "batch_size": SIZE + 1}, "batch_size=9 differs from the loader's 8"),
        ({"loader": DataLoader(data(), SIZE, drop_last=True), "remainder": "pad"}, "drop_last=True"),
        ({"grad_sample_mode": "ew"}, "is not one of hooks, functorch, streamed"),
        ({"grad_sample_mode": "ghost"}, "is not one of hooks, functorch, streamed"),
        ({"seed": 42}, "seed=42"),
        ({"seed": SECRET, "order_seed": SECRET}, "public seed"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        private(**options)


def test_a_shuffle_gives_way_to_the_public_order_and_the_statement_says_so() -> None:
    plain, shuffled = private(loader=DataLoader(data(), SIZE)), private(loader=DataLoader(data(), SIZE, shuffle=True))
    batches = private(loader=DataLoader(data(), batch_sampler=BatchSampler(SequentialSampler(data()), SIZE, False)))
    assert plain.statement.notes == batches.statement.notes == []
    (note,) = shuffled.statement.notes
    assert "shuffle=True was replaced by one public permutation" in note and note in str(shuffled.statement)
    assert all(np.array_equal(a, b) for a, b in zip(plain.loader.order, shuffled.loader.order, strict=True))
    with pytest.raises(InvalidParticipation, match="shuffle=True"):
        refuse_sampling(DataLoader(data(), SIZE, shuffle=True))
    refuse_sampling(DataLoader(data(), SIZE))


def test_numbers_that_guarantee_little_are_warned_of() -> None:
    said = str(private(epsilon=21.0, delta=0.03).statement)
    assert f"delta 0.03 is above 1/{EXAMPLES}" in said and "epsilon 21 is above 20" in said


def lazy() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.LazyLinear(5), torch.nn.Linear(5, 3))


def checkpointed() -> torch.nn.Module:
    model = network()
    model.gradient_checkpointing = True
    return model


def in_place() -> torch.nn.Module:
    model = network()
    model[1].compile()
    return model


def imaginary() -> torch.nn.Module:
    model = network()
    model.register_parameter("phase", torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    return model


def normed(norm: Callable[[torch.nn.Module], torch.nn.Module]) -> torch.nn.Module:
    model = network()
    norm(model[0])
    return model


def loose() -> torch.nn.Module:
    model = network()
    model.scale = torch.ones(3, requires_grad=True)
    return model


def of_parameter() -> torch.nn.Module:
    """LoRA as peft makes it for the experts and gates of a mixture, whose weights no layer uses by itself."""
    return torch.nn.Sequential(type("ParamWrapper", (torch.nn.Linear,), {})(6, 5), torch.nn.Linear(5, 3))


def hooked() -> torch.nn.Module:
    model = network()
    GradSampleModule(model)
    return model


class Normed(torch.nn.BatchNorm1d):
    """A norm that Opacus does not know by its type, as timm's BatchNormAct2d."""


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "eval": (lambda: network().eval(), r"0 is in eval mode.*model.train\(\)"),
    "a layer in eval": (lambda: torch.nn.Sequential(network(), network().eval()), "1.0 is in eval mode"),
    "lazy": (lazy, "0 has lazy parameters"),
    "compiled": (lambda: torch.compile(network()), "compiled"),
    "scripted": (lambda: torch.jit.script(network()), "compiled.*before .*torch.jit.script"),
    "compiled in place": (in_place, "1 is compiled"),
    "checkpointing": (checkpointed, "gradient checkpointing"),
    "wrapped": (lambda: GradSampleModule(network()), "wrapped by Opacus"),
    "wrapped before": (hooked, r"hooks of an earlier job.*remove_hooks\(\)"),
    "a copy of a wrapped one": (lambda: copy.deepcopy(hooked()), "create the model anew and load its weights"),
    "LoRA of a parameter": (of_parameter, "is LoRA of a parameter.*take it out of target_modules"),
    "parallel": (lambda: torch.nn.Sequential(torch.nn.DataParallel(network())), "0 is a DataParallel"),
    "frozen": (lambda: network().requires_grad_(False), "no parameter"),
    "complex": (imaginary, "phase: complex"),
    "sparse gradients": (
        lambda: torch.nn.Sequential(torch.nn.Embedding(9, 3, sparse=True)),
        "module 0 has sparse=True, but noise is dense",
    ),
    "words that are made shorter": (
        lambda: torch.nn.Sequential(torch.nn.Embedding(9, 2, max_norm=1.0), network()),
        "module 0 has max_norm",
    ),
    "a simple recurrence": (
        lambda: torch.nn.Sequential(torch.nn.RNN(6, 3), network()),
        r"module 0 is an RNN, .* use opacus\.layers\.DPRNN",
    ),
    "statistics of batches": (lambda: torch.nn.Sequential(Normed(6), network()), "0 keeps running .* as GroupNorm"),
    "weight_norm": (lambda: normed(torch.nn.utils.weight_norm), "module 0 has the tensor weight, .*parametrizations"),
    "a tensor to be trained": (loose, "the model has the tensor scale, which has a gradient but is not a parameter"),
    "keras": (
        lambda: torch.nn.Sequential(type("Dense", (torch.nn.Linear,), {"__module__": "keras.src.layers"})(6, 3)),
        "module 0 is a layer of Keras.*use layers of torch",
    ),
    "old spectral_norm": (lambda: normed(torch.nn.utils.spectral_norm), "module 0 has the tensor weight, .*parametriz"),
    "pruned": (
        lambda: normed(lambda each: prune.random_unstructured(each, "weight", 0.5)),
        "module 0 has the tensor weight, .*a mask in a parametrization",
    ),
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 3.0}, "epochs=3.0 is not an integer >= 1"),
        ({"batch_size": "8"}, "batch_size='8' is not an integer >= 1"),
        ({"order_seed": -1}, "order_seed=-1 is not an integer >= 0"),
        ({"receipt": "receipt.json"}, r"receipt is of type str; give .*Receipt\(path\)"),
    ],
)
def test_settings_of_other_types_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        private(**options)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of torch, about its future
def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="the model is a list; give a torch.nn.Module"):
        check_model([network()])  # type: ignore[arg-type]  # as a caller without types may
    frozen = torch.jit.script(network().requires_grad_(False))
    check_model(torch.nn.Sequential(frozen, torch.nn.Linear(3, 3)))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch's compiler, about itself
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_models_without_gradients_of_examples_are_refused(name: str) -> None:
    make, said = MODELS[name]
    model = make()
    with pytest.raises(InvalidParameter, match=said):
        private(model=model, kind=lambda parameters, lr: SGD(network().parameters(), lr=lr))


def holding(rows: torch.Tensor, where: str) -> torch.nn.Module:
    model = network()
    if where == "an attribute":
        model.points = rows
    elif where == "a buffer":
        model.register_buffer("points", rows)
    else:
        model.points = torch.nn.Embedding.from_pretrained(rows, freeze=False)
    return model


@pytest.mark.parametrize("where", ["an attribute", "a buffer", "a parameter"])
def test_a_model_that_holds_examples_is_refused(where: str) -> None:
    x = data().tensors[0]
    with pytest.raises(InvalidParameter, match="points.* of the model holds examples of the data"):
        private(model=holding(x[3:5].clone(), where))
    refuse_held_examples(holding(-x[3:5], where), data())
    units = torch.eye(x.shape[1])
    refuse_held_examples(holding(units, where), torch.utils.data.TensorDataset(units))


def test_rows_as_long_as_a_text_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a large language model would hash most of its rows."""
    monkeypatch.setattr(hashlib, "blake2b", mock.Mock(side_effect=AssertionError("a row was hashed")))
    words = torch.arange(64).reshape(8, 8)
    rows = torch.nn.Embedding.from_pretrained(words.float())
    refuse_held_examples(rows, torch.utils.data.TensorDataset(words))
    with pytest.raises(AssertionError, match="a row was hashed"):
        refuse_held_examples(rows, torch.utils.data.TensorDataset(words.float()))


def stale(model: torch.nn.Module) -> Any:
    model(torch.zeros(1, 6)).sum().backward()
    model[0].requires_grad_(False)
    return SGD(model.parameters(), lr=0.1)


class Sharp(SGD):
    """SAM as its packages write it: the closure is asked for when the step is taken."""

    def second_step(self) -> None:
        raise NotImplementedError


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a part": (lambda m: SGD(m[0].parameters(), lr=0.1), "leaves out 2.weight, 2.bias"),
    "another": (lambda _m: SGD(network().parameters(), lr=0.1), r"of another model .one of shape \(5, 6\)"),
    "stale": (stale, "0.weight, 0.bias: frozen, but with an old gradient"),
    "LBFGS": (lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS computes several gradients"),
    "SAM": (lambda m: Sharp(m.parameters(), lr=0.1), "Sharp computes several gradients per step"),
    "another library's": (
        lambda m: SimpleNamespace(param_groups=SGD(m.parameters()).param_groups, step=None),
        "the optimizer is a SimpleNamespace; give an optimizer of torch",
    ),
    "sparse": (lambda m: torch.optim.SparseAdam(m.parameters()), "SparseAdam needs sparse"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_are_not_of_the_whole_model_are_refused(name: str) -> None:
    make, said = OPTIMIZERS[name]
    noise = calibrate(factors().sensitivity, PrivacyTarget(mu=0.5), clip_norm=0.7, divisor=SIZE)
    for door in (
        lambda model, optimizer: private(model=model, kind=lambda parameters, lr: optimizer),
        lambda model, optimizer: CorrelatedOptimizer(optimizer, factors(), noise, seed=SECRET, model=model),
        lambda model, optimizer: correlated_optimizer(optimizer, factors(), noise, seed=SECRET, model=model),
    ):
        model = network()
        with pytest.raises(InvalidParameter, match=said):
            door(model, make(model))


def test_a_loop_of_opacus_that_stays_in_eval_mode_is_told_how_to_go_on() -> None:
    """As after an evaluation: Opacus's own error would be of an empty list."""
    noise = calibrate(factors().sensitivity, PrivacyTarget(mu=0.5), clip_norm=0.7, divisor=SIZE)
    model, x = GradSampleModule(network()), torch.randn(SIZE, 6)
    optimizer = CorrelatedOptimizer(SGD(model.parameters(), lr=0.1), factors(), noise, seed=SECRET, model=model)
    with pytest.raises(InvalidParameter, match=r"in eval mode.*call model.train\(\) before the forward"):
        model.eval()(x).sum().backward()
    optimizer.zero_grad()
    model.train()(x).sum().backward()
    optimizer.step()
    model.remove_hooks()
    model.eval()(x).sum().backward()
    assert optimizer.noise.step == 1


def test_a_scaler_is_refused_before_a_row_is_spent() -> None:
    made = private()
    scaler = torch.amp.GradScaler("cpu")
    x, y = next(iter(made.loader))
    scaler.scale(torch.nn.functional.cross_entropy(made.model(x), y)).backward()
    with pytest.raises(InvalidParameter, match="GradScaler"):
        scaler.step(made.optimizer)
    assert made.optimizer.noise.step == 0


class Again(torch.nn.Module):
    """Runs the forward pass of its layer again for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(lambda x: torch.tanh(self.layer(x)), x, use_reentrant=False)


@pytest.mark.parametrize(
    ("model", "passes", "said"),
    [
        (Again(), 1, "gradient checkpointing"),
        (network(), 2, "second backward"),
    ],
)
def test_passes_that_opacus_does_not_see_are_refused_before_a_row_is_spent(model: Any, passes: int, said: str) -> None:
    made = private(model=model, loss="not_looked_at")
    x, y = next(iter(made.loader))
    loss = torch.nn.functional.cross_entropy(made.model(x), y)
    with pytest.raises(InvalidParameter, match=said):
        for _ in range(passes):
            loss.backward(retain_graph=passes > 1)
        made.optimizer.step()
    assert made.optimizer.noise.step == 0


class Owner(torch.nn.Module):
    """A layer with a parameter of its own, and another layer inside of it."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside, self.shift = inside, torch.nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return scale * self.inside(x + self.shift)


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool(x.sum() > 0) else -x


class Table(torch.nn.Module):
    """A layer that takes nothing, so that no axis of examples is seen, such as a table of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, 6))

    def forward(self) -> torch.Tensor:
        return self.weight


class Beside(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table()


class Averaged(torch.nn.Module):
    """A model with a parameter of its own that returns its loss, as CLIP does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * x).mean()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Beside, "a Table: none of what it takes is a tensor with the batch axis"),
        (Averaged, "a Averaged: it returns one number for all examples first"),
        (
            lambda: normed(torch.nn.utils.parametrizations.spectral_norm)[0],
            "a Parametr.*changes a buffer.*spectral_norm",
        ),
        (lambda: Owner(Branches()), "a Owner: vmap: .*to use a Tensor in some data-depende"),
    ],
)
def test_a_layer_that_cannot_run_again_for_one_example_is_named(model: Any, said: str) -> None:
    made = private(model=torch.nn.Sequential(model(), network()))
    x, y = next(iter(made.loader))
    with pytest.raises(InvalidParameter, match=f"no gradient of each example for {said}.*Freeze"):
        torch.nn.functional.cross_entropy(made.model(x), y).backward()
    assert made.optimizer.noise.step == 0


class Named(Dataset[Any]):
    """Examples with tensors and a text, and as many other fields as are given."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": data()[i][0], "y": data()[i][1], "name": f"{i}.png", **self.fields}


def test_empty_batches_of_texts_are_steps_of_noise() -> None:
    bands = handmade(ToeplitzMatrix(np.array([1.0, 0.4]), 3 * EXAMPLES))
    made = private(bands, loader=DataLoader(Named(extra=("a", 1)), 1), sampling="cyclic_poisson")
    sizes = []
    for _ in range(EPOCHS):
        for batch in made.loader:
            sizes.append(len(batch["y"]))
            assert len(batch["name"]) == len(batch["x"]) == len(batch["y"])
            torch.nn.functional.cross_entropy(made.model(batch["x"]), batch["y"]).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
    assert 0 in sizes and made.optimizer.noise.step == 3 * EXAMPLES


def test_what_is_empty_without_examples() -> None:
    one = {"x": torch.ones(1, 3), "names": ["a"], "pair": (torch.ones(1), ["b"]), "no": None}
    empty = empty_like(one)
    assert empty["x"].shape == (0, 3) and empty["names"] == [] and empty["no"] is None
    assert empty["pair"][0].shape == (0,) and empty["pair"][1] == []
    assert empty_like(torch.ones(4, 1, 2), axis=1).shape == (4, 0, 2)
    for wrong in ({"count": 1}, torch.tensor(1.0), "text"):
        with pytest.raises(InvalidParameter, match="may be empty"):
            empty_like(wrong)
    counted = DataLoader(Named(), 1, collate_fn=lambda some: {"x": torch.stack([e["x"] for e in some]), "n": len(some)})
    bands = handmade(ToeplitzMatrix(np.array([1.0, 0.4]), 3 * EXAMPLES))
    with pytest.raises(InvalidParameter, match="field of type int"):
        private(bands, loader=counted, sampling="cyclic_poisson")


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, where another test of this process has imported it
def test_the_loader_is_one_of_torch() -> None:
    given = DataLoader(
        data(), SIZE, num_workers=2, collate_fn=lambda some: tuple(map(torch.stack, zip(*some, strict=True)))
    )
    loader = private(loader=given, physical_batch_size=3).loader
    assert isinstance(loader, DataLoader) and loader.dataset is given.dataset
    assert (loader.batch_size, loader.num_workers, loader.collate_fn) == (SIZE, 2, given.collate_fn)
    examples = np.concatenate([loader.order[t] for t in range(loader.steps_of_pass)])
    assert list(loader.sampler) == examples.tolist() and len(loader.sampler) == len(examples)
    assert loader.drop_last == (len(examples) < EXAMPLES)
    assert loader.steps_of_pass == N // EPOCHS and len(loader) == 3 * loader.steps_of_pass  # parts of 3, 3 and 2
    assert next(iter(loader))[0].shape == (3, 6)


def test_a_closure_says_its_loss() -> None:
    made, one = private(), private()
    for x, y in made.loader:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            made.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(made.model(x), y)
            loss.backward()
            return loss

        assert made.optimizer.step(closure) > 0
    made.optimizer.zero_grad()
    train(one, 1)
    assert made.optimizer.noise.step == N // EPOCHS and all(
        map(torch.equal, made.model.parameters(), one.model.parameters())
    )


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another type": (lambda made: made.model.double(), "0.weight is now torch.float64 on cpu.*model.to"),
    "other parameters": (
        lambda made: made.optimizer.param_groups[0].update(params=list(network().parameters())),
        "parameter 0 has no per-example gradient",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_parameters_that_are_changed_after_the_call_are_refused(name: str) -> None:
    made = private()
    change, said = CHANGES[name]
    change(made)
    with pytest.raises(InvalidParameter, match=said):
        for x, y in made.loader:
            torch.nn.functional.cross_entropy(made.model(x.to(made.model._module[0].weight.dtype)), y).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
    assert made.optimizer.noise.step == 0


def test_settings_of_opacus_are_passed_on() -> None:
    one, other = private(), private(grad_sample_mode="functorch")
    assert len(other.model._copies) == 2 and not one.model._copies
    for a, b in zip(train(one, 1), train(other, 1), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert private(batch_first=False).model.batch_first is False


def test_autocast_around_a_step_changes_no_bit() -> None:
    one, other = private(), private()
    for made, enabled in ((one, False), (other, True)):
        x, y = next(iter(made.loader))
        torch.nn.functional.cross_entropy(made.model(x), y).backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            made.optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_a_model_is_trained_again_once_its_hooks_are_removed() -> None:
    """As in the trials of a search that reuse one model; a copy of a model with hooks is named as one."""
    model, weights = network(), network().state_dict()
    for _ in range(2):
        model.load_state_dict(weights)
        made = private(model=model)
        train(made, 1)
        with pytest.raises(InvalidParameter, match="copy of a private model.*load_state_dict.*no_grad"):
            copy.deepcopy(model)(torch.zeros(SIZE, 6))
        with torch.no_grad():
            copy.deepcopy(model)(torch.zeros(SIZE, 6))
        made.model.remove_hooks()
        made.optimizer.close()
    assert not model._forward_pre_hooks and not model._forward_hooks
