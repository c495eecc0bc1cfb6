"""Opacus's own clipping with our noise: what is released is (sum of clipped gradients + row t of C^-1 Z) / divisor."""

from __future__ import annotations

import copy
import math
import pickle
import re
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from bin_cases import bin_of_each
from handmade import handmade
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer
from private_cases import BINS, CLIP, EPOCHS, EXAMPLES, SECRET, SIZE, N, bins_noise, factors
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from factorize.accounting import BinsCalibration
from factorize.adapters.opacus import CorrelatedOptimizer, refuse_sampling
from factorize.adapters.private import Private, make_private, workload_of
from factorize.adapters.torch import NoiseGenerator
from factorize.checker.receipt import check_receipt
from factorize.errors import ConditionNotMet, InvalidParameter, InvalidParticipation, UnsupportedAdjacency
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.spec.objective import LambdaTau
from factorize.structures.toeplitz import ToeplitzMatrix
from factorize.training.auditor import ParticipationAuditor
from factorize.training.bins_audit import BinsAuditor
from factorize.training.bins_order import RandomAllocation
from factorize.training.receipt import Receipt

PASSES = {"kind": "fixed_epochs", "epochs": EPOCHS}
IDENTITY = {"kind": "identity"}


def data() -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(EXAMPLES, 6, generator=rng), torch.randint(0, 3, (EXAMPLES,), generator=rng))


def network() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def private(
    spec: Any = None,
    kind: Any = torch.optim.SGD,
    rate: float = 0.1,
    model: Any = None,
    loader: Any = None,
    **options: Any,
) -> Private:
    """A job on the data, or on those of a loader with its batches."""
    model = network() if model is None else model
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=rate)
    settings = {"epsilon": 4.0, "delta": 1e-5, "epochs": EPOCHS, "seed": SECRET, "clip_norm": CLIP}
    settings |= {"batch_size": SIZE} if loader is None else {}
    given = data() if loader is None else loader
    return make_private(model, optimizer, given, factors() if spec is None else spec, **{**settings, **options})


def steps(made: Private) -> Iterator[torch.Tensor]:
    """Train for an epoch; the inputs of each part of a batch, after its step."""
    for x, y in made.loader:
        rehearsing = made.optimizer.rehearsal.rehearsing
        torch.nn.functional.cross_entropy(made.model(x), y).backward()
        made.optimizer.step()
        if not rehearsing:
            yield x
        made.optimizer.zero_grad()


def train(made: Private, epochs: int = EPOCHS) -> list[torch.Tensor]:
    """Train as a job does; return the released gradient of each step."""
    released = []
    made.optimizer.attach_step_hook(lambda o: released.append(flat(p.grad for p in o.params).float()))
    for _ in range(epochs):
        list(steps(made))
    return released


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def gradients(model: torch.nn.Module, indices: np.ndarray) -> torch.Tensor:
    """One row for each example, without Opacus, shape (examples, entries)."""
    x, y = data().tensors
    rows = []
    for i in indices:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(flat(p.grad for p in model.parameters()))
    return torch.stack(rows) if rows else torch.zeros(0, sum(p.numel() for p in model.parameters()))


def clipped_mean(model: torch.nn.Module, indices: np.ndarray, clip: float, divisor: int) -> torch.Tensor:
    rows = gradients(model, indices)
    return ((rows * (clip / (rows.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1)).sum(0) / divisor).float()


def releases_what_it_should(made: Private, n: int, seed: int, kind: Any = torch.optim.SGD, rate: float = 0.1) -> None:
    """Every step: the clipped gradients of its examples over the divisor, which is no batch's size, and its noise.

    By that alone the optimizer steps, as torch's own does.
    """
    rows = NoiseGenerator(
        factors(n), made.statement.calibration, list(network().parameters()), seed=seed, auditor="not_looked_at"
    )
    model = network()
    optimizer = kind(model.parameters(), lr=rate)
    for step, released in enumerate(train(made)):
        wanted = clipped_mean(model, made.loader.order[step], CLIP, SIZE) + flat(rows.next()).float() / SIZE
        assert torch.allclose(released, wanted, atol=1e-5)
        for p, part in zip(model.parameters(), released.split([p.numel() for p in model.parameters()]), strict=True):
            p.grad = part.view_as(p).clone()
        optimizer.step()
    for mine, own in zip(made.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(mine, own, atol=1e-6)


class TestWhatIsReleased:
    @pytest.mark.parametrize("physical", [None, 3])
    @pytest.mark.parametrize("remainder", ["drop", "pad"])
    def test_clipped_gradients_and_the_rows_of_noise(self, physical, remainder):
        n = EPOCHS * (EXAMPLES // SIZE + (remainder == "pad"))
        made = private(factors(n), physical_batch_size=physical, remainder=remainder)
        releases_what_it_should(made, n, SECRET)
        assert made.optimizer.noise.step == n

    @pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
    def test_adaptive_optimizers_step_by_what_is_released(self, kind):
        releases_what_it_should(private(kind=kind, rate=0.01), N, SECRET, kind, 0.01)

    def test_the_noise_is_calibrated_for_sums_and_the_divisor(self):
        made = private()
        c = made.statement.calibration
        assert c.sigma_of_sums == pytest.approx(c.noise_multiplier * 0.7 * 2.5)
        assert c.sigma_of_means == pytest.approx(c.sigma_of_sums / SIZE, rel=1e-15)
        assert c == calibrate(
            factors().sensitivity, PrivacyTarget(epsilon=4.0, delta=1e-5), clip_norm=0.7, divisor=SIZE
        )

    def test_torch_does_not_warn_of_the_hooks(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(train(private())) == N


class TestWithThePrivacyEngine:
    @pytest.mark.parametrize("wrapped", [True, False])
    def test_replaces_the_noise_of_its_optimizer(self, wrapped):
        """`wrap_model=False` puts the hooks on the model's layers; either way one line makes its optimizer ours."""
        model = network()
        hooked, theirs, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0,
            data_loader=DataLoader(data(), batch_size=SIZE), max_grad_norm=9.0, poisson_sampling=False,
            wrap_model=wrapped,
        )  # fmt: skip
        refuse_sampling(loader)
        c = calibrate(factors().sensitivity, PrivacyTarget(mu=0.5), clip_norm=0.7, divisor=SIZE)
        optimizer = CorrelatedOptimizer(theirs, factors(), c, seed=3 << 64)
        x, y = next(iter(loader))
        torch.nn.functional.cross_entropy((hooked if wrapped else model)(x), y).backward()
        optimizer.step()
        noise = flat(NoiseGenerator(factors(), c, optimizer.params, seed=3 << 64).next()).float() / SIZE
        expected = clipped_mean(network(), np.arange(SIZE), 0.7, SIZE) + noise
        assert torch.allclose(torch.cat([p.grad.flatten() for p in optimizer.params]), expected, atol=1e-5)

    @pytest.mark.parametrize("audited", [True, False])
    def test_losses_with_a_backward_pass_each_need_an_auditor(self, audited):
        """Opacus keeps a gradient of each pass, as of other examples, so each would be clipped alone."""
        c = calibrate(factors().sensitivity, PrivacyTarget(mu=0.5), clip_norm=CLIP, divisor=SIZE)
        auditor = ParticipationAuditor(PASSES, N) if audited else None
        model = GradSampleModule(network())
        optimizer = CorrelatedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), factors(), c, seed=3 << 64, auditor=auditor, model=model
        )
        x, y = (each[:SIZE] for each in data().tensors)
        rows = gradients(network(), range(SIZE)) * 2
        wanted = (rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
        sums: list[torch.Tensor] = []
        release = optimizer.release
        optimizer.release = lambda *given: sums.extend(each.clone() for each in given[1]) or release(*given)
        if audited:
            optimizer.expect(np.arange(SIZE))
        for _ in range(2):
            torch.nn.functional.cross_entropy(model(x), y).backward()
        if audited:
            optimizer.step()
            assert torch.allclose(flat(sums), wanted, atol=1e-4)
        else:
            with pytest.raises(InvalidParticipation, match="16 gradients, but a mean is over 8.*auditor="):
                optimizer.step()
            assert optimizer.noise.step == 0
        optimizer.close()

    def test_two_views_of_each_example_in_one_pass_are_refused(self):
        """Each view would be clipped alone, so an example adds up to two clip norms; passes of their own are right."""
        c = calibrate(factors().sensitivity, PrivacyTarget(mu=0.5), clip_norm=CLIP, divisor=SIZE)
        model = GradSampleModule(network())
        optimizer = CorrelatedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), factors(), c, seed=3 << 64)
        x = data().tensors[0][:SIZE]
        model(torch.cat([x, -x])).square().mean().backward()
        with pytest.raises(
            InvalidParticipation, match="16 gradients, but a mean is over 8.*once for each of two views"
        ):
            optimizer.step()
        assert optimizer.noise.step == 0
        optimizer.zero_grad()
        optimizer.close()
        again = CorrelatedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), factors(), c, seed=4 << 64)
        (model(x) + model(-x)).square().mean().backward()
        again.step()
        assert again.noise.step == 1
        again.close()

    def test_parts_with_a_backward_pass_each_are_one_batch(self):
        c = calibrate(factors().sensitivity, PrivacyTarget(mu=0.5), clip_norm=CLIP, divisor=SIZE)
        model = GradSampleModule(network())
        optimizer = CorrelatedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), factors(), c, seed=3 << 64)
        for part in zip(*(each[:SIZE].split(3) for each in data().tensors), strict=True):
            torch.nn.functional.cross_entropy(model(part[0]), part[1]).backward()
        optimizer.step()
        assert optimizer.noise.step == 1
        optimizer.close()

    def test_refuses_its_poisson_loader(self):
        model = network()
        _, _, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data(), batch_size=SIZE),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        with pytest.raises(InvalidParticipation, match="cyclic_poisson"):
            refuse_sampling(loader)
        with pytest.raises(InvalidParticipation, match="Poisson"):
            private(loader=loader)


class TestRefusals:
    def step(self, made: Private, x: torch.Tensor, y: torch.Tensor) -> None:
        torch.nn.functional.cross_entropy(made.model(x), y).backward()
        made.optimizer.step()
        made.optimizer.zero_grad()

    def test_a_batch_of_ones_own(self):
        made = private()
        with pytest.raises(InvalidParticipation, match="has not seen"):
            self.step(made, *data()[:SIZE])

    def test_more_examples_than_the_batch_holds(self):
        made = private()
        next(iter(made.loader))
        with pytest.raises(InvalidParticipation, match="gradients of 9 examples, but its batch has 8"):
            self.step(made, *data()[: SIZE + 1])

    def test_a_batch_left_out(self):
        made = private()
        batches = iter(made.loader)
        next(batches)
        with pytest.raises(InvalidParticipation, match="the wrong examples"):
            next(batches)

    def test_another_epoch(self):
        made = private()
        train(made)
        with pytest.raises(InvalidParticipation, match="no sensitivity covers more"):
            next(iter(made.loader))

    def test_an_order_that_the_factorization_does_not_cover(self):
        for spec in (factors(N - 1, 1), factors(N, 1), factors(N, 5)):
            with pytest.raises(InvalidParticipation):
                private(spec)

    def test_users(self):
        with pytest.raises(InvalidParameter, match=f"one example per user, and 1 users cannot fill {SIZE}"):
            private(users=["one"] * EXAMPLES)
        made = private(users=list(range(EXAMPLES)))
        train(made)
        assert made.statement.unit == "user"
        twice = private(loader=DataLoader(ConcatDataset([data()] * 2), SIZE), users=[*range(EXAMPLES)] * 2)
        assert len(train(twice)) == N and twice.optimizer.auditor.most == EPOCHS  # an epoch is one turn of each user
        said = twice.statement
        assert (said.unit, said.users, said.examples) == ("user", EXAMPLES, 2 * EXAMPLES)
        assert said.used == len(np.unique(np.concatenate(list(twice.loader.order)))) > EXAMPLES
        with pytest.raises(InvalidParameter, match="users for"):
            private(users=[1, 2])

    @pytest.mark.parametrize(
        "wrong",
        [
            {"sampling": "shuffled"},
            {"batch_size": None},
            {"physical_batch_size": 0},
            {"epsilon": -1.0},
            {"adaptive": "scaled"},
        ],
    )
    def test_settings_that_cannot_work(self, wrong):
        with pytest.raises(InvalidParameter):
            private(**wrong)

    @pytest.mark.parametrize("wrong", ["running statistics", "DataParallel"])
    def test_models_that_cannot_be_private_here(self, wrong):
        mixing = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
        model = torch.nn.DataParallel(network()) if wrong == "DataParallel" else mixing
        with pytest.raises(InvalidParameter, match=wrong):
            private(model=model)

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"loss_reduction": "Mean"}, "loss_reduction='Mean' is not one of mean, sum"),
            ({"batch_first": "no"}, "batch_first is of type str; give True or False"),
            ({"overflow": "unlimted"}, "overflow='unlimted' is not one of abort, unlimited"),
            ({"remainder": "keep"}, "remainder='keep' is not one of drop, pad"),
            ({"generator": ""}, "generator='' is not one of torch, sfc64, shake128"),
            ({"memory_bytes": "1 GB"}, "memory_bytes='1 GB' is not an integer"),
            ({"users": 3}, "a list with one string, number or tuple for each example"),
            ({"whole": 3}, "whole is of type int; give a list"),
            ({"bands": 3}, f"bands=3, but C of the given factorization has {N}; leave bands out"),
            ({"spec": "auto", "bands": 4, "memory": 2}, "bands=4 keep 3 vectors of noise state, and memory=2"),
            ({"sampling": "balls_in_bins", "remainder": "pad"}, "remainder='pad' is for a fixed order"),
            ({"spec": "auto", "sampling": "random_allocation", "bands": 3}, "random_allocation needs a C of 1"),
        ],
    )
    def test_settings_that_would_mean_something_else(self, settings, said):
        with pytest.raises(InvalidParameter, match=re.escape(said)):
            private(**settings)

    def test_a_calibration_that_counts_on_sampling_without_an_auditor(self):
        made = private(handmade(ToeplitzMatrix(np.array([1.0, 0.4]), N)), sampling="cyclic_poisson", bands=2)
        plain = made.optimizer.original_optimizer
        with pytest.raises(InvalidParameter, match="already private"):
            CorrelatedOptimizer(made.optimizer, factors(), made.statement.calibration, seed=1 << 64)
        theirs = DPOptimizer(plain, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=SIZE)
        with pytest.raises(InvalidParameter, match="assumes cyclic"):
            CorrelatedOptimizer(theirs, factors(), made.statement.calibration, seed=1 << 64)
        own, scale = ParticipationAuditor.of(made.statement.calibration, N), made.statement.calibration
        for auditor, said in (
            (ParticipationAuditor({"kind": "single"}, N), "batches that the calibration does not cover"),
            (own, "calibrate this one"),
        ):
            other = handmade(ToeplitzMatrix(np.array([1.0, 0.5]), N))
            with pytest.raises(InvalidParameter, match=said):
                CorrelatedOptimizer(theirs, other, scale, seed=1 << 64, auditor=auditor)


class TestRestart:
    @pytest.mark.parametrize("kind", ["fixed", "bins", "parts of bins", "allocation"])
    def test_goes_on_to_the_same_weights(self, tmp_path, kind):
        whole, part, resumed = (JOBS[kind]() for _ in range(3))
        train(whole)
        for _ in steps(part):
            if part.optimizer.noise.step == 3:
                break
        torch.save({"model": part.model.state_dict(), "optimizer": part.optimizer.state_dict()}, tmp_path / "job.pt")
        saved = torch.load(tmp_path / "job.pt", weights_only=True)
        resumed.model.load_state_dict(saved["model"])
        resumed.optimizer.load_state_dict(saved["optimizer"])
        train(resumed)
        for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(mine, theirs)

    def test_a_checkpoint_of_another_optimizer(self):
        made = private()
        with pytest.raises(InvalidParameter, match="no noise"):
            made.optimizer.load_state_dict(torch.optim.SGD(network().parameters()).state_dict())

    def test_a_checkpoint_between_batch_and_step(self):
        made = private(loss="not_looked_at")
        next(iter(made.loader))
        with pytest.raises(InvalidParameter, match="after step"):
            made.optimizer.state_dict()


class TestCyclicPoisson:
    def test_samples_noises_and_states_it(self):
        n = EPOCHS * (EXAMPLES // 3)
        made = private(handmade(ToeplitzMatrix(np.array([1.0, 0.4]), n)), sampling="cyclic_poisson", batch_size=3)
        assert len(train(made)) == n
        c = made.statement.calibration
        assert made.statement.document()["sampling_probability"] == pytest.approx(3 / 22)
        assert c.groups == 2 and made.statement.sampling == "cyclic_poisson"

    def test_empty_batches_are_steps_of_noise_alone(self):
        bands = handmade(ToeplitzMatrix(np.array([1.0, 0.4]), 3 * EXAMPLES))
        made = private(bands, sampling="cyclic_poisson", batch_size=1)
        assert any(len(batch) == 0 for batch in made.loader.order)
        before = copy.deepcopy(list(made.model.parameters()))
        assert len(train(made)) == 3 * EXAMPLES
        assert all(
            torch.isfinite(p).all() and not torch.equal(p, q)
            for p, q in zip(made.model.parameters(), before, strict=True)
        )

    def test_a_model_that_fails_without_examples_is_left_out(self):
        """As one that packs sequences; the step is one of noise alone, as if the model had run."""
        bands, found = handmade(ToeplitzMatrix(np.array([1.0, 0.4]), 3 * EXAMPLES)), []
        for left_out in (False, True):
            made = private(bands, sampling="cyclic_poisson", batch_size=1)
            for _ in range(EPOCHS):
                for x, y in made.loader:
                    if len(x) or not left_out:
                        torch.nn.functional.cross_entropy(made.model(x), y).backward()
                    made.optimizer.step()
                    made.optimizer.zero_grad()
            found.append(flat(made.model.parameters()))
            made.optimizer.close()
        assert torch.equal(*found)

    def test_a_failure_without_examples_says_the_way_out(self):
        class Packed(torch.nn.Linear):
            def forward(self, x):
                return super().forward(torch.stack([*x]))

        made = private(
            handmade(ToeplitzMatrix(np.array([1.0, 0.4]), 3 * EXAMPLES)),
            model=Packed(6, 3), sampling="cyclic_poisson", batch_size=1,
        )  # fmt: skip
        with pytest.raises(RuntimeError) as caught:
            train(made)
        assert "leave out its forward and backward pass, and call step() alone" in caught.value.__notes__[0]
        made.optimizer.close()

    @pytest.mark.parametrize("owned", [1, 2])
    def test_b_min_sep_trains_and_its_receipt_is_proved(self, tmp_path, owned):
        """Of examples, and of users who each have two and give one to a step that draws them."""
        n, receipt = EPOCHS * (EXAMPLES // 3), Receipt(tmp_path / "receipt.json")
        users = {} if owned == 1 else {"users": [*range(EXAMPLES)] * owned}
        own = DataLoader(ConcatDataset([data()] * owned), 3)
        spec = {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "banded", "bands": 2}}
        source = solve(parse_spec(spec | {"participation": {"kind": "min_sep", "min_sep": 2}}))
        made = private(source, loader=own, sampling="b_min_sep", receipt=receipt, **users)
        assert len(train(made)) == n
        assert (made.statement.unit, made.statement.examples) == ("user" if users else "example", owned * EXAMPLES)
        receipt.close()
        noise = made.statement.calibration
        assert (noise.bins, noise.sampling_probability) == (2, 3 / (EXAMPLES - 3))
        source.save(tmp_path / "c.safetensors")
        report = check_receipt((tmp_path / "receipt.json").read_bytes(), [(tmp_path / "c.safetensors").read_bytes()])
        assert report.supported, report.failed

    def test_b_min_sep_takes_the_calibration_of_an_earlier_start(self):
        """Its samples, and so its sigma, may differ on another machine."""
        spec = {"workload": {"kind": "prefix", "n": N}, "mechanism": {"kind": "banded", "bands": 2}}
        source = solve(parse_spec(spec | {"participation": {"kind": "min_sep", "min_sep": 2}}))
        first = private(source, sampling="b_min_sep")
        kept = pickle.loads(pickle.dumps(first.statement.calibration))
        first.optimizer.close()
        again = private(source, sampling="b_min_sep", calibration=kept)
        assert again.statement.calibration is kept
        again.optimizer.close()
        for options, said in (
            ({"epsilon": 3.9}, "the calibration is for .* but the target, .* calibrate for that"),
            ({"clip_norm": 1.0}, "for clip_norm=0.7, but the job has 1.0"),
            ({"batch_size": SIZE - 1}, "for (divisor|batch_size)=8, but the job has 7"),
            ({"calibration": 1.0}, "a bare float"),
            ({"sampling": "fixed"}, "only for sampling balls_in_bins, random_allocation, b_min_sep"),
        ):
            with pytest.raises(InvalidParameter, match=said):
                private(source, **{"sampling": "b_min_sep", "calibration": kept, **options})
        with pytest.raises(UnsupportedAdjacency):
            private(source, sampling="b_min_sep", calibration=kept, adjacency="replace_one")

    @pytest.mark.parametrize("sampling", ["cyclic_poisson", "b_min_sep"])
    def test_refuses_what_is_not_banded(self, sampling):
        with pytest.raises(ConditionNotMet, match="banded"):
            private(sampling=sampling)


class TestAuto:
    def test_solves_the_jobs_own_workload(self):
        made = private("auto", solve=solve)
        assert made.statement.steps == N and made.statement.used == EXAMPLES - EXAMPLES % SIZE
        assert made.statement.calibration.sensitivity.participation == {"kind": "fixed_epochs", "epochs": EPOCHS}
        assert made.statement.calibration.sensitivity.kind == "exact"
        assert "4, 1e-05)-differential privacy per example" in str(made.statement)
        assert len(train(made)) == N

    def test_banded_with_sampling(self):
        asked = []
        made = private("auto", solve=lambda spec: asked.append(spec) or solve(spec), sampling="cyclic_poisson", bands=3)
        assert parse_spec(asked[0]).participation.single  # whose columns are even, since the largest counts for all
        assert made.statement.calibration.groups == 3
        dp_sgd = private("auto", solve=solve, sampling="cyclic_poisson", bands=1)
        assert dp_sgd.statement.calibration.groups == 1 and len(train(dp_sgd)) == N
        for sampling in ("cyclic_poisson", "b_min_sep"):
            with pytest.raises(InvalidParameter, match=f"{sampling} needs the number of bands .* give bands="):
                private("auto", solve=solve, sampling=sampling)

    def test_bands_that_are_best_under_b_min_sep(self):
        asked = []
        made = private("auto", solve=lambda spec: asked.append(spec) or solve(spec), sampling="b_min_sep", bands=2)
        spec = parse_spec(asked[0])
        assert (spec.sampling.kind, spec.sampling.epsilon, spec.sampling.delta) == ("b_min_sep", 4.0, 1e-5)
        assert made.statement.calibration.bins == spec.mechanism.bands == 2 and spec.participation.passes == EPOCHS
        assert spec.objective == LambdaTau(kind="lambda_tau", tau=N)  # whose late steps are as quiet as the early ones

    def test_needs_somebody_who_solves(self):
        with pytest.raises(InvalidParameter, match="url=.*; or give solve=factorize.solve to solve it here"):
            private("auto")
        with pytest.raises(InvalidParameter, match="solve is of type bool; give solve=factorize.solve"):
            private("auto", solve=True)

    def test_a_file(self, tmp_path):
        spec = {"workload": {"kind": "prefix", "n": N}, "participation": {"kind": "fixed_epochs", "epochs": EPOCHS}}
        from factorize import Spec

        path = tmp_path / "factors.safetensors"
        solve(Spec(**spec)).save(path)
        assert len(train(private(path))) == N

    def test_workloads_of_optimizers(self):
        parameters = list(network().parameters())
        sgd = torch.optim.SGD(parameters, lr=1.0, momentum=0.9, nesterov=True)
        assert workload_of(sgd, 8) == {"kind": "momentum", "n": 8, "momentum": 0.9, "nesterov": True}
        for other in (
            torch.optim.SGD(parameters),
            torch.optim.Adagrad(parameters),
            torch.optim.Adam(parameters),
            torch.optim.AdamW(parameters),
            torch.optim.SGD(parameters, momentum=0.9, weight_decay=0.1),
        ):
            assert workload_of(other, 8) == {"kind": "prefix", "n": 8}

    def test_a_loader_keeps_its_collation(self):
        loader = DataLoader(data(), batch_size=SIZE, collate_fn=lambda rows: (torch.stack([x for x, _ in rows]) * 2,))
        made = private(loader=loader, loss="not_looked_at")
        (x,) = next(iter(made.loader))
        assert torch.equal(x, data().tensors[0][made.loader.order[0]] * 2)


def binned(calibration: Calibration | None = None, **options: Any) -> Private:
    settings = {"sampling": "balls_in_bins", "seed": SECRET, "calibration": calibration or bins_noise()}
    return private(**{**settings, **options})


def allocated(**options: Any) -> Private:
    """A job on steps that every epoch draws anew, with noise that it computes for itself."""
    return private("auto", solve=solve, sampling="random_allocation", seed=SECRET, **options)


JOBS = {
    "fixed": private,
    "bins": binned,
    "parts of bins": lambda: binned(physical_batch_size=3),
    "allocation": allocated,
}


class TestBallsInBins:
    @pytest.mark.parametrize("options", [{}, {"physical_batch_size": 3}, {"overflow": "unlimited"}])
    def test_clipped_gradients_of_the_bins_and_the_rows_of_noise(self, options):
        made = binned(**options)
        assert len({len(batch) for batch in made.loader.order}) > 1
        releases_what_it_should(made, N, SECRET)
        assert made.optimizer.auditor.step == N

    @pytest.mark.parametrize("physical", [None, 4])
    def test_shapes_show_no_size(self, physical):
        made = binned(physical_batch_size=physical)
        shapes = [tuple(x.shape) for x in steps(made)]
        assert len(set(shapes)) == 1 and len(shapes) == BINS * made.loader.order.capacity // shapes[0][0]
        assert physical is None or shapes[0][0] == physical

    def test_states_what_the_capacity_costs(self):
        made = binned()
        extra = made.statement.overflow_delta
        assert 0 < extra <= 1e-5 / 1024 and made.statement.delta == 0.9e-5 + extra
        assert made.statement.document()["delta"] == 0.9e-5 + extra
        assert binned(overflow="unlimited").statement.overflow_delta == 0
        assert binned(users=list(range(EXAMPLES))).statement.unit == "user"

    def test_a_checkpoint_shows_no_bin_and_wants_its_key(self):
        made = binned()
        auditor = made.optimizer.state_dict()["auditor"]
        assert not any(torch.is_tensor(value) for value in auditor.values())
        assert auditor["commitment"] == made.loader.order.commitment
        other = binned(seed=SECRET + 1)
        with pytest.raises(InvalidParameter, match="another secret key"):
            other.optimizer.auditor.load_state_dict(auditor)
        with pytest.raises(InvalidParameter):
            other.optimizer.load_state_dict(made.optimizer.state_dict())

    def test_the_batch_of_another_bin_is_refused(self):
        made = binned()
        with pytest.raises(InvalidParticipation, match="not balls in bins"):
            made.optimizer.expect(made.loader.order[1])

    def test_a_part_cut_short(self):
        made = binned(physical_batch_size=4, loss="not_looked_at")
        x, y = next(iter(made.loader))
        torch.nn.functional.cross_entropy(made.model(x[:3]), y[:3]).backward()
        with pytest.raises(InvalidParticipation, match="gradients of 3 rows, not 4"):
            made.optimizer.step()

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"calibration": bins_noise(bins=BINS + 1)}, InvalidParameter),
            ({"calibration": bins_noise(sampling="cyclic_poisson")}, InvalidParameter),
            ({"calibration": bins_noise(delta=1e-5)}, InvalidParameter),  # the capacity is not charged
            ({"calibration": bins_noise(epsilon=4.5)}, InvalidParameter),
            ({"calibration": bins_noise(divisor=SIZE + 1)}, InvalidParameter),
            ({"calibration": bins_noise(divisor=None)}, InvalidParameter),
            ({"calibration": bins_noise(clip_norm=1.0)}, InvalidParameter),
            ({"calibration": bins_noise(adjacency=Adjacency.REPLACE_ONE)}, UnsupportedAdjacency),
            ({"adjacency": "replace_one"}, UnsupportedAdjacency),
            ({"adjacency": "add_remove"}, UnsupportedAdjacency),
            ({"epochs": EPOCHS + 1}, InvalidParticipation),
            ({"seed": 11}, InvalidParameter),
            ({"order_seed": SECRET}, InvalidParameter),
            ({"overflow": "truncate"}, InvalidParameter),
            ({"users": ["one"] * EXAMPLES}, InvalidParameter),
            ({"sampling": "fixed"}, InvalidParameter),
        ],
    )
    def test_refusals(self, wrong, error):
        with pytest.raises(error):
            binned(**wrong)

    def test_computes_its_own_calibration(self):
        made = private("auto", solve=solve, sampling="balls_in_bins", seed=SECRET)
        c = made.statement.calibration
        assert isinstance(c, BinsCalibration) and (c.bins, c.epochs, c.divisor, c.clip_norm) == (
            BINS,
            EPOCHS,
            SIZE,
            0.7,
        )
        assert c.epsilon == 4.0 and c.delta + made.statement.overflow_delta <= 1e-5 and c.method == "verified"
        assert c.epsilon_without_secrecy > 4.0
        assert f"become known, epsilon is {c.epsilon_without_secrecy:.4g}" in str(made.statement)
        unamplified = private("auto", solve=solve).statement.calibration
        assert c.sigma_of_sums < unamplified.sigma_of_sums
        assert len(train(made)) == N
        kept = pickle.loads(pickle.dumps(c))  # a restart takes the calibration of the checkpoint
        again = private("auto", solve=solve, sampling="balls_in_bins", seed=SECRET, calibration=kept)
        again.optimizer.load_state_dict(made.optimizer.state_dict())
        assert again.statement == made.statement

    def test_bins_that_every_epoch_draws_anew(self):
        made = allocated()
        c, order = made.statement.calibration, made.loader.order
        assert isinstance(c, BinsCalibration) and c.sampling == "random_allocation"
        assert (c.bins, c.epochs, c.divisor) == (BINS, EPOCHS, SIZE)
        assert c.delta + made.statement.overflow_delta <= 1e-5 and "(random_allocation order" in str(made.statement)
        assert isinstance(order, RandomAllocation) and (bin_of_each(order, 0) != bin_of_each(order, 1)).any()
        users = allocated(users=list(range(EXAMPLES)))
        assert users.statement.unit == "user" and made.optimizer.auditor.sampling == "random_allocation"
        with pytest.raises(ConditionNotMet, match="C = I"):
            private(sampling="random_allocation", seed=SECRET)
        for wrong in (bins_noise(), c):  # each law's calibration is refused by the other
            other = "random_allocation" if wrong is not c else "balls_in_bins"
            with pytest.raises(InvalidParameter, match=f"sampling='{other}'"):
                private("auto", solve=solve, sampling=other, seed=SECRET, calibration=wrong)
        epochs = {"kind": "fixed_epochs", "epochs": EPOCHS}
        document = {"workload": {"kind": "prefix", "n": N}, "participation": epochs, "mechanism": {"kind": "identity"}}
        plain = solve(parse_spec(document))
        with pytest.raises(InvalidParameter, match="batches that the calibration does not cover"):
            CorrelatedOptimizer(
                torch.optim.SGD(network().parameters()),
                plain,
                c,
                seed=SECRET,
                auditor=BinsAuditor(EXAMPLES, BINS, EPOCHS),
            )

    def test_the_optimizer_wants_the_auditor_of_bins(self):
        for auditor in (None, ParticipationAuditor({"kind": "fixed_epochs", "epochs": EPOCHS}, N)):
            with pytest.raises(
                InvalidParameter, match="assumes balls_in_bins|batches that the calibration does not cover"
            ):
                optimizer = torch.optim.SGD(network().parameters())
                CorrelatedOptimizer(optimizer, factors(), bins_noise(), seed=SECRET, auditor=auditor)


class TestAdapters:
    """Noise on what is trained alone, as with LoRA; and a model whose layers have the hooks, called itself."""

    def test_frozen_parameters_get_no_noise(self):
        model = network()
        model[0].requires_grad_(False)
        made = private(model=model)
        before = model[0].weight.clone()
        train(made)
        assert torch.equal(before, model[0].weight)
        assert made.optimizer.noise.state_dict()["state"].numel() == 2 * (5 * 3 + 3)  # two buffers of what is trained

    def test_the_model_inside_may_be_called(self):
        whole, inside = private(), private()
        released = train(whole)
        hooked = inside._replace(model=inside.model._module)
        assert all(torch.equal(a, b) for a, b in zip(released, train(hooked), strict=True))


def test_the_statement_notes_a_rate_that_is_far_from_what_such_noise_asks_for():
    solved = solve(parse_spec({"workload": {"kind": "prefix", "n": N}, "participation": PASSES, "mechanism": IDENTITY}))
    (note,) = private(solved, torch.optim.AdamW, 1e-7).statement.notes
    stated = float(note.split(" times ")[1].split(",")[0])
    assert note.startswith("The learning rate 1e-07 is ") and "docs/choose.md" in note
    assert private(solved, partial(torch.optim.AdamW, weight_decay=0.0), stated).statement.notes == []
    (decay,) = private(solved, partial(torch.optim.AdamW, weight_decay=1.0 / stated), stated).statement.notes
    assert decay.startswith("weight_decay=") and f"leaves {math.exp(-N):.0%} of" in decay
    clipped_twice = private(solved, torch.optim.AdamW, 1e-7, clip_norm=2 * CLIP).statement.notes
    assert clipped_twice == [note], "Adam takes the same rate at every clip norm"


class Rateless(torch.optim.Optimizer):
    """An optimizer that sets its rate itself, as A2Grad does."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data -= 0.1 * p.grad


def test_an_optimizer_without_a_rate_trains_without_a_note_on_it() -> None:
    made = private(kind=Rateless)
    assert made.statement.notes == [] and len(train(made)) == N


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_the_statement_notes_an_optimizer_that_took_steps_before_the_job(kind: Any) -> None:
    """Its moments, and the weights, may be those of the same data without noise."""
    optimizers: list[torch.optim.Optimizer] = []
    momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    for taken in (False, True):
        model = network()
        optimizers.append(kind(model.parameters(), lr=0.1, **momentum))
        if taken:
            model(data().tensors[0]).sum().backward()
            optimizers[-1].step()
            optimizers[-1].zero_grad()
        made = private(model=model, kind=lambda *_, **__: optimizers[-1])
        made.optimizer.close()
        assert any("took steps before this job" in note for note in made.statement.notes) == taken
        assert "such as initial weights" in str(made.statement)


def test_processes_without_a_process_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script that torchrun starts twice, and that does not begin a group: each would make the job."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidParameter, match="2 processes were launched .*init_process_group first"):
        private()
    monkeypatch.setenv("WORLD_SIZE", "1")
    private().optimizer.close()
