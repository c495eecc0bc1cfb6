"""Optimizers of several ranks beside one process on the whole batch: DDP by Opacus, audits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from handmade import Handmade, handmade
from opacus import GradSampleModule, PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from rank_jobs import assert_refused, on_ranks, refused, whole
from structure_cases import strategies
from torch.utils.data import DataLoader, Subset, TensorDataset

from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.adapters.opacus_ranks import correlated_optimizer
from factorize.adapters.private import make_private
from factorize.adapters.ranks import agreement
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate
from factorize.training.auditor import ParticipationAuditor

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all ranks, on whatever machine
N, ROWS, CLIP = 4, 12, 0.5
MADE = handmade(strategies(N)["buffered"], {"kind": "fixed_epochs", "epochs": N})
CALIBRATION = calibrate(MADE.sensitivity, PrivacyTarget(mu=50.0), clip_norm=CLIP, divisor=ROWS)


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, 5, generator=made), torch.randint(3, (ROWS,), generator=made)


def loss_of(net: torch.nn.Module, rows: np.ndarray, weight: float) -> torch.Tensor:
    x, y = data()
    return torch.nn.functional.cross_entropy(net(x[rows]), y[rows]) * weight


def alone(weight: float) -> np.ndarray:
    net = GradSampleModule(model())
    optimizer = CorrelatedOptimizer(
        torch.optim.SGD(net.parameters(), lr=1.0), MADE, CALIBRATION, seed=5 << 64, generator="sfc64"
    )
    made = []
    for _ in range(N):
        loss_of(net, np.arange(ROWS), weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        made.append(whole(net.parameters()))
    return np.array(made)


def engine(net: torch.nn.Module, world: int, **options: Any) -> tuple[Any, ...]:
    """What Opacus's examples of distributed training do."""
    loader = DataLoader(TensorDataset(*data()), batch_size=ROWS // world)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    asked = {"noise_multiplier": 1.0, "max_grad_norm": CLIP, "poisson_sampling": False, **options}
    return PrivacyEngine().make_private(module=net, optimizer=optimizer, data_loader=loader, **asked)


def replicas(rank: int, world: int, weight: float) -> dict[str, Any]:
    net, optimizer, _ = engine(DifferentiallyPrivateDistributedDataParallel(model()), world)
    auditor = ParticipationAuditor.of(CALIBRATION, N)
    optimizer = correlated_optimizer(optimizer, MADE, CALIBRATION, seed=5 << 64, generator="sfc64", auditor=auditor)
    mine, made = np.arange(ROWS)[rank::world], []
    for _ in range(N):
        optimizer.expect(mine)
        loss_of(net, mine, weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        made.append(whole(net.parameters()))
    return {"rows": np.array(made), "audited": auditor.most, "type": type(optimizer).__name__}


JOINT = {"adaptive": "joint", "second": MADE}


def one_call(rank: int, ranks: int, **options: Any) -> dict[str, Any]:
    net = model() if ranks == 1 else DifferentiallyPrivateDistributedDataParallel(model())
    optimizer = (torch.optim.Adam if options else torch.optim.SGD)(net.parameters(), lr=0.1 if options else 1.0)
    asked = {"epsilon": 50.0, "delta": 1e-6, "epochs": N, "clip_norm": CLIP, "seed": 1 << 100, **options}
    net, optimizer, loader, statement = make_private(
        net, optimizer, TensorDataset(*data()), MADE, batch_size=ROWS, generator="sfc64", **asked
    )
    made = []
    for _ in range(N):
        for x, y in loader:
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        made.append(whole(net.parameters()))
    return {"rows": np.array(made), "said": str(statement), "ranks": statement.ranks}


def audited() -> tuple[Any, Any, Any]:
    net, theirs, _ = engine(DifferentiallyPrivateDistributedDataParallel(model()), 2)
    auditor = ParticipationAuditor.of(CALIBRATION, N)
    return net, theirs, correlated_optimizer(theirs, MADE, CALIBRATION, seed=5 << 64, auditor=auditor)


def chosen(loss: Callable[[torch.Tensor], torch.Tensor], *between: torch.nn.Module, size: int = 12) -> str:
    """Train for an epoch with a loss of the losses of examples, which gives some of them no gradient."""
    made = torch.Generator().manual_seed(3)
    x, y = torch.randn(4 * size, 5, generator=made), torch.randint(3, (4 * size,), generator=made)
    first, act, last = model()
    net = DifferentiallyPrivateDistributedDataParallel(torch.nn.Sequential(first, act, *between, last))
    sgd, asked = torch.optim.SGD(net.parameters(), lr=1.0), {"epsilon": 50.0, "delta": 1e-6, "epochs": 1}
    asked |= {"clip_norm": CLIP, "seed": 1 << 90, "order_seed": 1}
    net, optimizer, loader, _ = make_private(net, sgd, TensorDataset(x, y), MADE, batch_size=size, **asked)

    def train() -> None:
        for own, labels in loader:
            loss(torch.nn.functional.cross_entropy(net(own), labels, reduction="none")).backward()
            optimizer.step()
            optimizer.zero_grad()

    said = refused(train)
    optimizer.close()
    return said


def reordered_on(rank: int) -> str:
    """Train for two epochs, between which this rank alone reverses its data."""
    net = DifferentiallyPrivateDistributedDataParallel(model())
    sgd, given = torch.optim.SGD(net.parameters(), lr=1.0), TensorDataset(*data())
    asked = {"epsilon": 50.0, "delta": 1e-6, "epochs": N, "clip_norm": CLIP, "seed": 1 << 91}
    net, optimizer, loader, _ = make_private(net, sgd, given, MADE, batch_size=ROWS, **asked)

    def train() -> None:
        for own, labels in loader:
            torch.nn.functional.cross_entropy(net(own), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    train()
    if rank == 1:
        given.tensors = tuple(part.flip(0) for part in given.tensors)
    said = refused(train)
    optimizer.close()
    return said


class Kept(torch.nn.Module):
    """A layer that subtracts a mean of the batches so far, which follows them slowly."""

    mean: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, now = self.mean, x.detach().mean(0)
        self.mean = now if before is None else 0.9999 * before + 1e-4 * now
        return x if before is None else x - before


def refusals(rank: int) -> dict[str, str]:
    net, theirs, ours = audited()
    found = {"one process's": refused(lambda: CorrelatedOptimizer(theirs, MADE, CALIBRATION, seed=5 << 64))}
    found["a loss that chooses three of six examples"] = chosen(lambda losses: losses.topk(3).values.mean())
    found["a mean that the model keeps"] = chosen(torch.mean, Kept())
    found["a rank with one example of each batch"] = chosen(torch.mean, size=3)
    found["data in another order on one rank, from the second pass on"] = reordered_on(rank)
    found["a hinge"] = chosen(lambda losses: torch.relu(losses - 1).mean())
    plain = model()
    found["a job of one process"] = refused(
        lambda: make_private(
            plain,
            torch.optim.SGD(plain.parameters(), lr=1.0),
            TensorDataset(*data()),
            MADE,
            batch_size=ROWS,
            epsilon=50.0,
            delta=1e-6,
            epochs=N,
        )
    )
    own = CorrelatedOptimizer(torch.optim.SGD(plain.parameters(), lr=1.0), MADE, CALIBRATION, seed=5 << 64)
    for p in plain.parameters():
        p.grad_sample = torch.zeros(ROWS, *p.shape)
        p.grad = torch.zeros_like(p)
    found["a step of one process"] = refused(own.step) if own.noise.step == 0 else "noise was spent"
    found["an example on two ranks"] = refused(lambda: ours.expect(np.array([3, 4 + rank, 7])))
    ours.expect(np.array([rank]))
    loss_of(net, np.array([rank, 5] if rank else [0]), 1.0).backward()
    found["another batch on one rank"] = refused(ours.step)
    net, _, ours = audited()
    ours.expect(np.array([rank]))
    loss_of(net, np.array([rank]), 1.0).backward()
    ours.step()
    ours.zero_grad()
    loss_of(net, np.array([rank]), 1.0).backward()
    found["a step taken twice"] = refused(ours.step)
    net, _, ours = audited()
    found["a checkpoint on one rank, a step on the other"] = refused(
        (lambda: ours.expect(np.array([0]))) if rank else ours.noise.state_dict
    )
    wrapped = DifferentiallyPrivateDistributedDataParallel(model())
    call = partial(make_private, wrapped, torch.optim.SGD(wrapped.parameters(), lr=1.0), TensorDataset(*data()), MADE)
    asked = {"epsilon": 50.0, "delta": 1e-6, "epochs": N}
    found["no seed"] = refused(lambda: call(batch_size=ROWS, **asked))
    found["secret order"] = refused(lambda: call(batch_size=ROWS, seed=1 << 100, sampling="balls_in_bins", **asked))
    plain = Handmade(MADE.strategy, MADE.sensitivity, "another")
    constant = TensorDataset(torch.ones(ROWS + 1, 5), torch.zeros(ROWS + 1, dtype=torch.long))
    for name, common, own in (
        ("a seed on one rank", {}, {"seed": 1 << 100}),
        ("another seed", {"seed": (1 << 100) + rank}, {}),
        ("another order", {"seed": 1 << 100}, {"order_seed": 9}),
        ("other epochs", {"seed": 1 << 100}, {"epochs": 2}),
        ("another factorization", {"seed": 1 << 100}, {"spec": plain}),
        ("other data", {"seed": 1 << 100}, {"data": TensorDataset(*(part[:6] for part in data())), "batch_size": 6}),
        ("data in another order", {"seed": 1 << 100}, {"data": TensorDataset(*(part.flip(0) for part in data()))}),
        (
            "another split",
            {"seed": 1 << 100, "data": Subset(constant, range(ROWS))},
            {"data": Subset(constant, [*range(1, ROWS), 0])},
        ),
    ):
        net = DifferentiallyPrivateDistributedDataParallel(model())
        usual = {"data": TensorDataset(*data()), "spec": MADE, "batch_size": ROWS, "generator": "sfc64"}
        given = {**usual, **asked, **common, **(own if rank == 0 else {})}
        sgd = torch.optim.SGD(net.parameters(), lr=1.0)
        found[name] = refused(lambda net=net, sgd=sgd, given=given: make_private(net, sgd, **given))
    agreement.PATIENCE = 1.0
    if rank == 0:
        found["a rank that left"] = refused(lambda: ours.expect(np.array([0])))
    return found


def everything(rank: int, world: int) -> dict[str, Any]:
    found = {f"ddp {weight:g}": replicas(rank, world, weight) for weight in (1.0, 0.0)}
    found["one call"] = one_call(rank, world)
    found["joint"] = one_call(rank, world, **JOINT)
    return {**found, "refused": refusals(rank) if world == 2 else {}}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> dict[int, list[dict[str, Any]]]:
    return {w: on_ranks(w, tmp_path_factory.mktemp("ranks"), everything, w) for w in (2, 3)}


@pytest.mark.parametrize("world", [2, 3])
class TestTraining:
    def test_replicas_train_as_one_process_on_the_whole_batch(self, jobs, world):
        for each in jobs[world]:
            assert each["ddp 1"]["type"] == "ReplicatedOptimizer"
            assert np.allclose(each["ddp 1"]["rows"], alone(1.0), rtol=0, atol=1e-6)
            assert each["ddp 1"]["audited"] == N

    def test_replicas_add_the_noise_of_one_process_bit_for_bit(self, jobs, world):
        for each in jobs[world]:
            assert np.array_equal(each["ddp 0"]["rows"], alone(0.0))

    def test_one_call_makes_a_job_of_all_ranks(self, jobs, world):
        expected = one_call(0, 1)
        for each in jobs[world]:
            assert np.allclose(each["one call"]["rows"], expected["rows"], rtol=0, atol=1e-6)
            assert (
                each["one call"]["ranks"] == world
                and f"4 steps on {world} ranks on 12 of 12" in each["one call"]["said"]
            )
        assert expected["ranks"] == 1 and "ranks" not in expected["said"]

    def test_joint_moments_of_all_ranks_are_those_of_one_process(self, jobs, world):
        expected = one_call(0, 1, **JOINT)
        for each in jobs[world]:
            assert np.allclose(each["joint"]["rows"], expected["rows"], rtol=0, atol=1e-5)
            assert f"on {world} ranks" in each["joint"]["said"] and "quares of clipped" in each["joint"]["said"]


EXPECTED = {
    "one process's": "correlated_optimizer",
    "a loss that chooses three of six examples": "replacing 3 of 6 examples",
    "a mean that the model keeps": "keeps module.2.mean from one batch|rank 0 failed",
    "a rank with one example of each batch": "^not refused$",
    "a hinge": "^not refused$",
    "data in another order on one rank, from the second pass on": "order of the data set has changed",
    "a job of one process": "2 ranks, and each would make this job alone.*DifferentiallyPrivateDistributedDataParallel",
    "a step of one process": "2 ranks, and each would make this job alone",
    "an example on two ranks": "example 3 2 times",
    "another batch on one rank": "gradients of 2 examples, but its batch has 1",
    "a step taken twice": "auditor has not seen",
    "a checkpoint on one rank, a step on the other": "different places in the program",
    "no seed": "broadcast_object_list",
    "secret order": "sampling='fixed'",
    "a seed on one rank": "every rank needs the same seed",
    "another seed": "seed is another .* on rank 1",
    "another order": "order_seed is 0 on rank 1, 9 on rank 0",
    "other epochs": "epochs is 4 on rank 1, 2 on rank 0",
    "another factorization": "factorization is .* on rank 1, another on rank 0: load the same digest",
    "other data": "examples is 12 on rank 1, 6 on rank 0",
    "data in another order": "data is another .* split and shuffled by the same seed",
    "another split": "data is another .* split and shuffled by the same seed",
    "a rank that left": "rank 1 did not answer within 1 s",
}


def test_refusals_reach_every_rank(jobs):
    assert_refused([each["refused"] for each in jobs[2]], EXPECTED)


def test_opacus_optimizers_that_clip_otherwise_are_refused():
    net = torch.nn.Linear(2, 2)
    theirs = DPOptimizerFastGradientClipping(
        torch.optim.SGD(net.parameters(), lr=1.0), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1
    )
    with pytest.raises(InvalidParameter, match="DPOptimizerFastGradientClipping"):
        correlated_optimizer(theirs, MADE, CALIBRATION, seed=1 << 64)
    plain = DPOptimizer(
        torch.optim.SGD(net.parameters(), lr=1.0), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1
    )
    assert type(correlated_optimizer(plain, MADE, CALIBRATION, seed=1 << 64)) is CorrelatedOptimizer
