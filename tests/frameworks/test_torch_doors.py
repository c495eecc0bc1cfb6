"""The contract of doors on torch's generator, Opacus's optimizer and `make_private`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from door_contract import (
    CLIP,
    EPOCHS,
    EXAMPLES,
    REORDERED,
    REORDERED_WITHIN,
    RESTARTED,
    RULES,
    SEED,
    SIZE,
    Door,
    Mistake,
    calibrated,
    check,
    check_drawn_users,
    check_more,
    ended_on_the_way,
    factors,
    of_going_back,
    of_looks,
    of_sums,
    of_unseen_batches,
    take_a_step,
)
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPPerLayerOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from factorize.adapters.gradients.clipping import use_up
from factorize.adapters.opacus import CorrelatedOptimizer, refuse_sampling
from factorize.adapters.private import Private, make_private
from factorize.adapters.ranks import agreement
from factorize.adapters.torch import NoiseGenerator
from factorize.errors import FactorizeError
from factorize.training.auditor import ParticipationAuditor
from factorize.training.orders import fixed_order
from factorize.training.receipt import Receipt

pytestmark = [pytest.mark.filterwarnings("ignore:Full backward hook"), pytest.mark.single_use]
X = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(EXAMPLES) % 2
WEIGHTS = torch.tensor([1.0, 9.0])


def network() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def larger() -> Any:
    """Return a factorization of another sensitivity."""
    held = factors("another")
    return replace(held, sensitivity=replace(held.sensitivity, value=3.0))


def bits(tensors: Any) -> bytes:
    return b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)


class Torch(Door):
    """`factorize.adapters.torch.NoiseGenerator` in a loop of the caller's own."""

    name = "torch"
    not_here = {
        "mixing_loss": "sums of clipped gradients come from outside; there is no loss to look at",
        "partial_optimizer": "there is no optimizer: the caller hands over the sums of the parameters that it named",
        "early": "it sees sums and no examples; a ParticipationAuditor beside it does",
    }
    shapes = [(3, 2), (4,)]

    def begin(
        self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None
    ) -> NoiseGenerator:
        held = factors(name)
        run = NoiseGenerator(
            held, calibrated(held, clip=clip), [torch.zeros(shape) for shape in self.shapes], seed=seed
        )
        if state is not None:
            run.load_state_dict(state)
        return run

    def step(self, run: NoiseGenerator) -> bytes:
        return bits(run.add_to_sum([torch.ones(shape) for shape in self.shapes]))

    def taken(self, run: NoiseGenerator) -> int:
        return run.step

    def saved(self, run: NoiseGenerator) -> Any:
        return run.state_dict()

    def secrets(self, run: NoiseGenerator) -> list[Any]:
        return [run]

    def end(self, run: NoiseGenerator) -> None:
        run.close()

    def not_real(self, run: NoiseGenerator) -> None:
        run.add_to_sum([torch.ones(shape, dtype=torch.complex64) for shape in self.shapes])

    def narrow(self, run: NoiseGenerator) -> None:
        run.add_to_sum([torch.ones(shape, dtype=torch.float16) for shape in self.shapes])

    def more(self) -> dict[str, Mistake]:
        parameters, bare = [torch.zeros(3)], cast(Any, 1.0)
        return {
            "a bare number for the scale of the noise": Mistake(
                "refused",
                lambda folder: NoiseGenerator(factors(), bare, parameters, seed=SEED),
                "bare float|Calibration",
            ),
            "a calibration of another factorization": Mistake(
                "refused",
                lambda folder: NoiseGenerator(factors(), calibrated(larger()), parameters, seed=SEED),
                "this factorization has",
            ),
            **of_unseen_batches(partial(NoiseGenerator, factors(), parameters=parameters, seed=SEED)),
            **of_going_back(self, lambda run, state: run.load_state_dict(state)),
            **of_sums(release),
        }

    def wrong_rows(self, run: NoiseGenerator) -> None:
        run.add_to_sum([torch.ones((2, *shape)) for shape in self.shapes])


def release(held: Any, calibration: Any, **options: Any) -> Any:
    run = NoiseGenerator(held, calibration, [torch.zeros(2, 2), torch.zeros(1)], seed=SEED, **options)

    def add(number: float, mean: bool = False) -> Any:
        sums = [torch.full((2, 2), number), torch.full((1,), number)]
        return run.add_to_mean(sums) if mean else run.add_to_sum(sums)

    return add


@dataclass
class Job:
    """Model, optimizer, and where its batches come from."""

    model: torch.nn.Module
    optimizer: CorrelatedOptimizer
    batches: Any

    def backward(self, x: torch.Tensor, y: torch.Tensor, **loss: Any) -> None:
        """Have a batch's gradients by example."""
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(x), y, **loss).backward()

    def released(self) -> bytes:
        """Take the step, and return what it released."""
        self.optimizer.step()
        return bits(p.grad for p in self.optimizer.params)


class Opacus(Door):
    """`CorrelatedOptimizer` over a model in Opacus's `GradSampleModule`, with an auditor."""

    name = "Opacus"
    goes_on = False
    not_here = {
        "mixing_loss": "the optimizer sees gradients alone, and neither model nor loss; make_private looks at both",
        "narrow": "right: gradients may be in half precision, since they are clipped and summed in float64",
    }

    def begin(self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None) -> Job:
        held = factors(name)
        calibration = calibrated(held, SIZE, clip)
        model = GradSampleModule(network())
        plain = torch.optim.SGD(model.parameters(), lr=0.0)
        auditor = ParticipationAuditor.of(calibration, held.steps)
        optimizer = CorrelatedOptimizer(plain, held, calibration, seed=seed, auditor=auditor)
        if state is not None:
            optimizer.load_state_dict(state)
        return Job(model, optimizer, fixed_order(EXAMPLES, SIZE, epochs=EPOCHS, seed=0))

    def step(self, run: Job) -> bytes:
        chosen = run.batches[min(run.optimizer.noise.step, len(run.batches) - 1)]
        run.optimizer.expect(chosen)
        run.backward(X[chosen], Y[chosen])
        return run.released()

    def taken(self, run: Job) -> int:
        return run.optimizer.noise.step

    def saved(self, run: Job) -> Any:
        return run.optimizer.state_dict()

    def secrets(self, run: Job) -> list[Any]:
        return [run.optimizer, run.optimizer.noise]

    def end(self, run: Job) -> None:
        run.optimizer.noise.close()

    def early(self, run: Job) -> None:
        run.optimizer.expect(run.batches[0])

    def not_real(self, run: Job) -> None:
        phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self._over([phase])

    def partial_optimizer(self, run: Job) -> None:
        model = GradSampleModule(network())
        self._over(list(model.parameters())[:2], model=model)

    def _over(self, parameters: list[Any], calibration: Any = None, held: Any = None, **options: Any) -> Any:
        held = factors() if held is None else held
        made = torch.optim.SGD(parameters, lr=0.0) if isinstance(parameters, list) else parameters
        calibration = calibrated(held, SIZE) if calibration is None else calibration
        return CorrelatedOptimizer(made, held, calibration, seed=SEED + 1, **options)

    def more(self) -> dict[str, Mistake]:
        parameters = [torch.nn.Parameter(torch.zeros(3))]
        return {
            "a bare number for the scale of the noise": Mistake(
                "refused", lambda folder: self._over(parameters, 1.0), "bare float|Calibration"
            ),
            "a calibration of another factorization": Mistake(
                "refused", lambda folder: self._over(parameters, calibrated(larger(), SIZE)), "this factorization has"
            ),
            "an auditor of another participation": Mistake(
                "refused", lambda folder: self._over(parameters, auditor=self._other()), "batches that the calibration"
            ),
            **of_unseen_batches(partial(self._over, parameters)),
            "a loader that draws Poisson samples": Mistake(
                "refused", lambda folder: refuse_sampling(DPDataLoader.from_data_loader(loader())), "Poisson"
            ),
            "a loader with `shuffle=True`": Mistake(
                "refused", lambda folder: refuse_sampling(loader(shuffle=True)), "shuffle|order"
            ),
            "a data set that names examples more than once": Mistake(
                "refused", lambda folder: refuse_sampling(DataLoader(Subset(loader().dataset, [0, 1, 1]))), "users="
            ),
            "LBFGS, or another optimizer that asks for losses": Mistake(
                "refused", lambda folder: self._over(torch.optim.LBFGS(parameters)), "LBFGS"
            ),
            "a clip norm, divisor or noise multiplier that is changed on the way": Mistake(
                "refused", lambda folder: changed(self, folder), "changed"
            ),
            "gradients of the step before that nobody has cleared": Mistake(
                "refused", lambda folder: uncleared(self, folder), "zero_grad|gradients"
            ),
            "`step()` of the optimizer that was made private, in place of the private one's": Mistake(
                "refused", lambda folder: own_step(self, folder), "no noise of this job"
            ),
            "`step()` of another optimizer, by gradients that have no noise yet": Mistake(
                "refused", lambda folder: other_step(self, folder), "gradients that have no noise"
            ),
            **of_looks(self),
            "a job of one process in a process group of several ranks": Mistake(
                "refused", lambda folder: alone(self, folder), "2 ranks, and each would make this job alone"
            ),
            "an optimizer that steps in the backward pass": Mistake("refused", self._in_backward, "backward pass"),
            "Opacus's clipping by layers, adaptive or ghost": Mistake(
                "refused", self._by_layers, "no sensitivity here"
            ),
            "weights of another checkpoint than the optimizer's": Mistake(
                "refused", lambda folder: other_weights(self, folder), "same checkpoint"
            ),
            **of_going_back(self, lambda run, state: run.optimizer.load_state_dict(state)),
            "a part of a batch": Mistake("refused", self._part, "examples|rows"),
            "two batches before one step": Mistake("refused", self._two, "step"),
            "an example whose gradient is not finite": Mistake("right", lambda folder: infinite(self, folder)),
        }

    def _other(self) -> ParticipationAuditor:
        return ParticipationAuditor.of(
            calibrated(factors(kind="min_sep"), SIZE), len(fixed_order(EXAMPLES, SIZE, epochs=EPOCHS, seed=0))
        )

    def _by_layers(self, folder: Path) -> None:
        parameters = [torch.nn.Parameter(torch.zeros(3))]
        for kind, norm in ((DPOptimizerFastGradientClipping, CLIP), (DPPerLayerOptimizer, [CLIP])):
            plain = torch.optim.SGD(parameters, lr=0.0)
            made = kind(plain, noise_multiplier=1.0, max_grad_norm=norm, expected_batch_size=SIZE)
            with pytest.raises(FactorizeError, match="no sensitivity here"):
                self._over(made)
        self._over(made)

    def _part(self, folder: Path) -> None:
        run = self.begin(folder)
        run.optimizer.expect(run.batches[0])
        run.backward(X[run.batches[0][:1]], Y[run.batches[0][:1]])
        run.optimizer.step()

    def _two(self, folder: Path) -> None:
        run = self.begin(folder)
        run.optimizer.expect(run.batches[0])
        run.optimizer.expect(run.batches[1])

    def _in_backward(self, _folder: Path) -> None:
        plain = torch.optim.SGD(stepping_in_backward().parameters(), lr=1.0)
        CorrelatedOptimizer(plain, factors("one"), calibrated(factors("one"), SIZE), seed=SEED)

    def wrong_rows(self, run: Job) -> None:
        """Of one parameter a single row, as of one that is looked up without a batch axis."""
        self._spoilt(run, lambda rows: rows.sum(0, keepdim=True))

    def _spoilt(self, run: Job, change: Any) -> None:
        chosen = run.batches[0]
        run.optimizer.expect(chosen)
        run.backward(X[chosen], Y[chosen])
        last = run.optimizer.params[-1]
        last.grad_sample = change(last.grad_sample)
        run.optimizer.step()


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=SIZE, **options)


class Items(Dataset[Any]):
    """Examples that are changed when they are read."""

    def __init__(self, how: str) -> None:
        self.x, self.labels, self.how, self.last, self.parts = X, Y, how, X[0], (X, Y)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, i: int) -> Any:
        own, self.last = (self.x[i], self.last), self.x[i]
        if self.how in ("any", "any row"):
            place = int(torch.randint(EXAMPLES, ()))
            return (self.x[place], Y[place]) if self.how == "any" else tuple(part[place] for part in self.parts)
        if self.how == "standard":
            return own[0] - self.x.mean(0), Y[i]
        if self.how == "counted":
            return own[0], torch.eye(int(self.labels.max()) + 1)[self.labels[i]]
        if self.how == "pair":
            return own[0] + self.x[int(torch.randint(EXAMPLES, ()))], Y[i]
        return (own[0] + own[1] if self.how == "last" else own[0] + torch.randn(own[0].shape)), Y[i]


class Batches(TensorDataset):
    """Examples that are read a batch at a time, centred by the batch, or each with as many draws as it asks for."""

    centred = True

    def __getitems__(self, indices: list[int]) -> Any:
        if self.centred:
            return [(x, Y[i]) for x, i in zip(X[indices] - X[indices].mean(0), indices, strict=True)]
        return [(X[i] * torch.rand(1 + i % 3)[0], Y[i]) for i in indices]


def alone(door: Any, folder: Path) -> None:
    """A process group that begins after the job was made, as Lightning's does."""
    run = door.begin(folder)
    with mock.patch.object(agreement, "world_size", lambda: 2):
        door.step(run)


def own_step(door: Any, folder: Path) -> None:
    """A loop that goes on with the optimizer it had."""
    run = door.begin(folder)
    before = [p.clone() for p in run.optimizer.params]
    with pytest.raises(FactorizeError, match="no noise of this job"):
        run.optimizer.original_optimizer.step()
    assert all(map(torch.equal, before, run.optimizer.params))
    run.optimizer.original_optimizer.step()


def other_step(door: Any, folder: Path) -> None:
    """A second optimizer of the model, which steps by gradients before they have noise, or that its closure makes."""
    run = door.begin(folder)
    door.step(run)
    other, before = torch.optim.SGD(run.model.parameters(), lr=1.0), [p.clone() for p in run.optimizer.params]
    with pytest.raises(FactorizeError, match="gradients that have no noise"):
        other.step(lambda: run.backward(X[:SIZE] + 1, Y[:SIZE]))
    assert all(map(torch.equal, before, run.optimizer.params))
    other.step()


def stepping_in_backward() -> torch.nn.Module:
    """Return a model with an optimizer of each parameter, called where its gradient is ready, as to save memory."""
    model = network()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: torch.optim.SGD([p], lr=1.0).step())
    return model


def other_weights(door: Any, folder: Path) -> None:
    """The optimizer of a checkpoint, and weights of another one."""
    run = door.begin(folder / "one")
    door.step(run)
    state = door.saved(run)
    door.end(run)
    run = door.begin(folder / "two", state=state)
    with torch.no_grad():
        run.optimizer.params[0].add_(1)
    door.step(run)


def changed(door: Any, folder: Path) -> None:
    run = door.begin(folder)
    run.optimizer.max_grad_norm = 2 * CLIP
    door.step(run)


def uncleared(door: Any, folder: Path) -> None:
    """Steps without zero_grad between them."""
    run = door.begin(folder)
    door.step(run)
    run.optimizer.zero_grad = lambda *_: None
    door.step(run)


def infinite(door: Any, folder: Path) -> None:
    """An example that is not finite counts as zero, as one whose gradient is zero does."""
    found = []
    for value in (float("inf"), 0.0):
        run = door.begin(folder)
        kept = X.clone()
        X[:1] = value
        try:
            found.append(door.step(run) if value else b"")
        finally:
            X.copy_(kept)
        door.end(run)
    assert b"".join(found) and not np.isnan(np.frombuffer(found[0], np.float32)).any()


class Made(Door):
    """`make_private` of torch."""

    name = "make_private"
    goes_on = False
    not_here = {
        "narrow": "right: gradients may be in half precision, since they are clipped and summed in float64",
        "early": "right: the loader yields every batch in the order that the participation is for",
    }

    def begin(self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None) -> Job:
        made = self.made(network(), seed=seed, name=name, clip=clip)
        if state is not None:
            made.optimizer.load_state_dict(state)
        return Job(made.model, made.optimizer, self.batches(made))

    def made(
        self,
        model: torch.nn.Module | None = None,
        parameters: Any = None,
        data: Any = None,
        *,
        name: str = "one",
        clip: float = CLIP,
        kind: Any = torch.optim.SGD,
        spec: Any = None,
        **options: Any,
    ) -> Private:
        model = network() if model is None else model
        optimizer = kind(model.parameters() if parameters is None else parameters, lr=0.0)
        settings = {"epsilon": 2.0, "delta": 1e-5, "epochs": EPOCHS, "clip_norm": clip, "seed": SEED, **options}
        spec = factors(name) if spec is None else spec
        return make_private(model, optimizer, loader() if data is None else data, spec, **settings)

    def batches(self, made: Private) -> Iterator[Any]:
        while True:
            yield from made.loader

    def step(self, run: Job) -> bytes:
        before = self.taken(run)
        while True:
            x, y = next(run.batches)
            run.backward(x, y)
            found = run.released()
            if self.taken(run) > before:
                return found

    def taken(self, run: Job) -> int:
        return run.optimizer.noise.step

    def saved(self, run: Job) -> Any:
        return run.optimizer.state_dict()

    def secrets(self, run: Job) -> list[Any]:
        return [run.optimizer, run.optimizer.noise]

    def end(self, run: Job) -> None:
        run.optimizer.noise.close()

    def not_real(self, run: Job) -> None:
        class Complex(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.phase = network(), torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (self.inner(x) * self.phase).abs()

        self.made(Complex())

    def wrong_rows(self, run: Job) -> None:
        """A position that is looked up without a batch axis."""

        class Positions(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.places = network(), torch.nn.Embedding(1, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x + self.places(torch.arange(1)))

        made = self.made(Positions(), seed=SEED + 1)
        self._trained(Job(made.model, made.optimizer, self.batches(made)))

    def mixing_loss(self, run: Job) -> None:
        """Class weights under a mean: whose label is rare scales the gradients of all others."""
        self._trained(run, weight=WEIGHTS)

    def partial_optimizer(self, run: Job) -> None:
        model = network()
        self.made(model, model[0].parameters())

    def more(self) -> dict[str, Mistake]:
        def refused(words: str, *given: Any, **options: Any) -> Mistake:
            return Mistake("refused", lambda folder: self.made(*given, **options), words)

        half = loader(sampler=SubsetRandomSampler(range(3)))
        return {
            "a loader that draws Poisson samples": refused(
                "Poisson", None, None, DPDataLoader.from_data_loader(loader())
            ),
            "a loader with a sampler of its own, which holds examples out": refused(
                "SubsetRandomSampler", None, None, half
            ),
            "a loader with `shuffle=True`": Mistake("said", self._shuffled),
            "a factorization for another participation than the order's": refused("n=6", epochs=3),
            "users with several examples, in secret batches": Mistake("right", self._drawn_users),
            "batch norm": refused(
                "running statistics", torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
            ),
            "`DataParallel` or `DistributedDataParallel` of torch": refused(
                "DataParallel", torch.nn.DataParallel(network())
            ),
            "LBFGS, or another optimizer that asks for losses": Mistake("refused", self._losses, "LBFGS"),
            "a clip norm, divisor or noise multiplier that is changed on the way": Mistake(
                "refused", lambda folder: changed(self, folder), "changed"
            ),
            "gradients of the step before that nobody has cleared": Mistake(
                "refused", lambda folder: uncleared(self, folder), "zero_grad|gradients"
            ),
            "`step()` of the optimizer that was made private, in place of the private one's": Mistake(
                "refused", lambda folder: own_step(self, folder), "no noise of this job"
            ),
            "`step()` of another optimizer, by gradients that have no noise yet": Mistake(
                "refused", lambda folder: other_step(self, folder), "gradients that have no noise"
            ),
            **of_looks(self),
            "a job of one process in a process group of several ranks": Mistake(
                "refused", lambda folder: alone(self, folder), "2 ranks, and each would make this job alone"
            ),
            "an optimizer that steps in the backward pass": Mistake(
                "refused", lambda _: self.made(stepping_in_backward()), "backward pass"
            ),
            "weights of another checkpoint than the optimizer's": Mistake(
                "refused", lambda folder: other_weights(self, folder), "same checkpoint"
            ),
            "a loop that trains on a batch that it keeps": Mistake("refused", self._kept, "as it comes"),
            "a data set or a collation that makes an item of several examples": Mistake(
                "refused", self._mixed, "from one example alone"
            ),
            **of_going_back(self, lambda run, state: run.optimizer.load_state_dict(state)),
            "a part of a batch": Mistake("refused", self._part, "examples|rows"),
            "two batches before one step": Mistake("refused", self._two, "step"),
            "an example whose gradient is not finite": Mistake("right", lambda folder: infinite(self, folder)),
            "losses that are not one number for each example": Mistake(
                "refused", self._one_loss, "one loss per example"
            ),
            "a data set that names examples more than once": Mistake("refused", self._repeated, "users="),
            "a loss that closes over the data": Mistake("refused", self._closed_over, "beside those of the batch"),
            REORDERED: Mistake("refused", self._reordered, "order of the data set has changed"),
            REORDERED_WITHIN: Mistake("believed", self._reordered_within),
            "examples of earlier steps that the loop keeps, as in a replay buffer": Mistake(
                "refused", self._replayed, "examples of an earlier step"
            ),
            RESTARTED: Mistake("refused", self._restarted, "names another example"),
            "an epsilon above 20, or a delta above 1/examples": Mistake("said", self._weak),
            "a receipt of another run": Mistake("refused", self._receipt, "receipt of another run"),
        }

    def _kept(self, folder: Path) -> None:
        """Rows of the data from the first step on, to which the rehearsal is nothing; and a batch from the second on."""
        run = self.begin(folder)
        own = X[:SIZE].clone(), Y[:SIZE].clone()
        with pytest.raises(FactorizeError, match="changed no gradient"):
            for _ in range(3):
                next(run.batches)
                run.backward(*own)
                run.optimizer.step()
        assert self.taken(run) == 0
        self.end(run)
        run = self.begin(folder)
        self.step(run)
        x, y = next(run.batches)
        for _ in range(2):
            run.backward(x, y)
            run.optimizer.step()
            next(run.batches)

    def _mixed(self, folder: Path) -> None:
        """Each way of mixing, of which a batch may see nothing; and augmentation, which is none."""

        def half(items: Any) -> Any:
            x, y = default_collate(items)
            return (x + x.flip(0) if torch.rand(()) < 0.5 else x), y

        def halves(items: Any) -> Any:
            x, y = default_collate(items)
            return x + x.roll(len(x) // 2, 0), y

        def kept(items: Any) -> Any:
            x, y = default_collate(items)
            mixed = torch.cat([x[:1] + (earlier[-1] if earlier else 0), x[1:]])
            earlier.append(x[:1])
            return mixed, y

        earlier = list[torch.Tensor]()
        ways = "pair", "last", "any", "any row", "standard"
        batches, own = Batches(X, Y), Batches(X, Y)
        own.centred = False
        given: list[DataLoader[Any]] = [DataLoader(data, batch_size=SIZE) for data in (*map(Items, ways), batches)]
        for data in (*given, *(loader(collate_fn=collate) for collate in (half, halves, kept))):
            made = self.made(data=data)
            with pytest.raises(FactorizeError, match="from one example alone"):
                next(iter(made.loader))
            self.end(Job(made.model, made.optimizer, None))
        for right in (Items("noise"), Items("counted"), own):
            made = self.made(data=DataLoader(right, batch_size=SIZE))
            self.step(Job(made.model, made.optimizer, self.batches(made)))
            self.end(Job(made.model, made.optimizer, None))
        next(iter(self.made(data=DataLoader(Items("pair"), batch_size=SIZE)).loader))

    def _repeated(self, folder: Path) -> None:
        items = loader().dataset
        part = Subset(items, range(3))
        again = [Subset(items, [0, 1, 2, 3, 4, 4]), ConcatDataset([part] * 2)]
        again.append(ConcatDataset([part, Subset(Subset(items, [5, 0, 3]), range(3))]))  # two splits that overlap
        for data in again:
            with pytest.raises(FactorizeError, match="more than once"):
                self.made(data=DataLoader(data, batch_size=SIZE))
        made = self.made(data=DataLoader(ConcatDataset([part, Subset(items, [5, 4, 3])]), batch_size=SIZE))
        self.end(Job(made.model, made.optimizer, None))
        self.made(data=DataLoader(Subset(ConcatDataset(again[:1]), range(EXAMPLES)), batch_size=SIZE))

    def _reordered(self, folder: Path) -> None:
        """Rows that are read in another way after a pass, as at another size, are in no other order."""

        def after_a_pass(data: Any, change: Callable[[], object]) -> Job:
            made = self.made(data=DataLoader(data, batch_size=SIZE))
            run = Job(made.model, made.optimizer, self.batches(made))
            for _ in range(EXAMPLES // SIZE):
                self.step(run)
            change()
            return run

        rows, indices = [*TensorDataset(X, Y)], [*range(EXAMPLES)]
        run = after_a_pass(rows, lambda: rows.__setitem__(slice(None), [(2 * x, y) for x, y in rows]))
        self.step(run)
        self.end(run)
        run = after_a_pass(Subset(TensorDataset(X, Y), indices), indices.reverse)
        with pytest.raises(FactorizeError, match="order of the data set has changed"):
            self.step(run)
        self.end(run)
        self.step(after_a_pass(rows, rows.reverse))

    def _closed_over(self, folder: Path) -> None:
        run = self.begin(folder)
        for x, y in run.batches:
            run.backward(x + X[torch.randint(EXAMPLES, (len(x),))], y)
            run.released()

    def _reordered_within(self, folder: Path) -> None:
        run, kept = self.begin(folder), X.clone()
        self.step(run)
        X.copy_(kept.flip(0))
        self.step(run)
        X.copy_(kept)
        self.end(run)

    def _replayed(self, folder: Path) -> None:
        """One example of each of two earlier steps, which were in no batch together."""
        run, kept = self.begin(folder), list[Any]()
        while len(kept) < 2:
            x, y = next(run.batches)
            run.backward(x, y)
            kept += [] if run.optimizer.rehearsal.rehearsing else [(x, y)]
            run.optimizer.step()
            run.optimizer.zero_grad()
        next(run.batches)
        run.backward(*(torch.stack([part[0] for part in parts]) for parts in zip(*kept, strict=True)))

    def _restarted(self, folder: Path) -> None:
        """Read as before, as with augmentation, the data are the same; rows in another order, or chosen otherwise, not."""
        items = loader().dataset
        noisy, chosen = Items("noise"), Subset(items, range(EXAMPLES))
        for data, later, wrong in (
            (items, TensorDataset(X, Y), False),
            (noisy, Items("noise"), False),
            (chosen, Subset(items, [*range(1, EXAMPLES), 0]), True),
            (items, TensorDataset(X.flip(0), Y.flip(0)), True),
        ):
            made = self.made(data=DataLoader(data, batch_size=SIZE))
            run = Job(made.model, made.optimizer, self.batches(made))
            self.step(run)
            state = self.saved(run)
            self.end(run)
            made = self.made(data=DataLoader(later, batch_size=SIZE))
            if wrong:
                with pytest.raises(FactorizeError, match="names another example"):
                    made.optimizer.load_state_dict(state)
            else:
                made.optimizer.load_state_dict(state)
            self.end(Job(made.model, made.optimizer, None))
        made = self.made(data=DataLoader(TensorDataset(X.flip(0), Y.flip(0)), batch_size=SIZE))
        del state["data"]
        made.optimizer.load_state_dict(state)  # as one of before marks, or if rows are only read in another way
        self.end(Job(made.model, made.optimizer, None))
        self.begin(folder, state={**state, "data": "another"})

    def _drawn_users(self, folder: Path) -> None:
        def make(spec: Any, options: dict[str, Any]) -> tuple[Any, Any]:
            made = self.made(spec=spec, **options)
            return made.statement, made.loader.order

        check_drawn_users(make)

    def _shuffled(self, folder: Path) -> None:
        assert "shuffle" in str(self.made(data=loader(shuffle=True)).statement)

    def _losses(self, folder: Path) -> None:
        model = network()
        make_private(
            model,
            torch.optim.LBFGS(model.parameters()),
            loader(),
            factors(),
            epsilon=2.0,
            delta=1e-5,
            epochs=EPOCHS,
            seed=SEED,
        )

    def _part(self, folder: Path) -> None:
        run = self.begin(folder)
        for _ in range(2):
            x, y = next(run.batches)
            run.backward(x[:1], y[:1])
            run.optimizer.step()

    def _two(self, folder: Path) -> None:
        run = self.begin(folder)
        self.step(run)
        next(run.batches)
        next(run.batches)

    def _one_loss(self, folder: Path) -> None:
        made = self.made(loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]))
        next(iter(made.loader))

    def _weak(self, folder: Path) -> None:
        told = str(self.made(epsilon=30.0, delta=0.5).statement)
        assert "epsilon 30 is above 20" in told and "delta 0.5 is above" in told

    def _receipt(self, folder: Path) -> None:
        self.made(receipt=Receipt(folder / "receipt.json")).optimizer.noise.close()
        take_a_step(folder / "receipt.json")
        self.made(receipt=Receipt(folder / "receipt.json"), clip=2 * CLIP)

    def _trained(self, run: Job, **loss: Any) -> None:
        for _ in range(3):
            x, y = next(run.batches)
            run.backward(x, y, **loss)
            run.optimizer.step()
            assert run.optimizer.noise.step == 0, "a step was released"


DOORS = [Torch(), Opacus(), Made()]


@pytest.mark.parametrize("door", [Opacus(), Made()], ids=lambda door: door.name)
@pytest.mark.parametrize("cut", ["clipping", "noise", "release", "hook"])
def test_no_step_is_taken_by_what_one_that_was_ended_leaves(door: Any, cut: str, tmp_path: Path) -> None:
    """Not by this optimizer, nor its inner one, nor another, which may use what a hook sees: that has its noise."""
    run = door.begin(tmp_path)
    door.step(run)
    before = [p.clone() for p in run.optimizer.params]

    def first(samples: list[Any], *clip: Any) -> Iterator[torch.Tensor]:
        yield next(use_up(samples, *clip))
        raise KeyboardInterrupt

    with ExitStack() as stack:
        if cut == "noise":
            stack.enter_context(ended_on_the_way())
        else:
            stack.enter_context(pytest.raises(KeyboardInterrupt))
        if cut == "clipping":
            stack.enter_context(mock.patch("factorize.adapters.opacus.use_up", first))
        elif cut == "release":
            stack.enter_context(mock.patch.object(run.optimizer, "release", side_effect=KeyboardInterrupt))
        elif cut == "hook":
            run.optimizer.attach_step_hook(mock.Mock(side_effect=KeyboardInterrupt))
        door.step(run)
    others = [] if cut == "hook" else [torch.optim.SGD(run.model.parameters(), lr=1.0)]
    for optimizer in (run.optimizer, run.optimizer.original_optimizer, *others):
        with pytest.raises(FactorizeError):
            optimizer.step()
    assert all(map(torch.equal, before, run.optimizer.params))
    run.optimizer.zero_grad()
    if cut != "hook":
        with pytest.raises(FactorizeError):
            run.optimizer.state_dict()


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_the_table_is_true_of_torch(door: Door, tmp_path: Path) -> None:
    check_more(door, tmp_path)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
@pytest.mark.parametrize("rule", RULES)
def test_torch_keeps_the_contract(door: Door, rule: str, tmp_path: Path) -> None:
    check(door, rule, tmp_path)
