"""One call that makes a torch training job private: factorization, model, order, auditor, clipping, noise."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch.utils.data import DataLoader

from factorize.adapters.factors import Held
from factorize.adapters.loader import PrivateLoader
from factorize.adapters.opacus import CorrelatedOptimizer, refuse_sampling
from factorize.adapters.torch import TorchNoiseOptions
from factorize.amplification import calibrate_amplified
from factorize.auditor import ParticipationAuditor
from factorize.errors import InvalidParameter
from factorize.privacy import Adjacency, Calibration, PrivacyTarget
from factorize.training.orders import Order, fixed_order
from factorize.training.sampling import CyclicPoisson


@dataclass(frozen=True)
class PrivacyStatement:
    """What is guaranteed, and what the guarantee rests on.

    Attributes:
        calibration: the noise, with epsilon, delta, mu, rho, adjacency and the sensitivity's kind, rule, participation.
        digest: of the factorization.
        steps: n; stopping earlier keeps the guarantee.
        examples: in the data.
        used: examples that the order uses.
        sampling: `fixed` or `cyclic_poisson`.
        unit: whose data are protected: `example`, or `user`.
    """

    calibration: Calibration
    digest: str
    steps: int
    examples: int
    used: int
    sampling: str
    unit: str

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        own = {key: value for key, value in vars(self).items() if key != "calibration"}
        return {**self.calibration.document(), **own}

    def __str__(self) -> str:
        """One paragraph for a log or a model card."""
        c = self.calibration
        return (
            f"({c.epsilon:g}, {c.delta:g})-differential privacy per {self.unit}, adjacency {c.adjacency.value}, over "
            f"{self.steps} steps on {self.used} of {self.examples} examples ({self.sampling} order, participation "
            f"{dict(c.sensitivity.participation)}); clip norm {c.clip_norm:g}, divisor {c.batch_size}, noise "
            f"multiplier {c.noise_multiplier:.6g} on sensitivity {c.sensitivity.value:.6g} ({c.sensitivity.kind}: "
            f"{c.sensitivity.rule}); factorization {self.digest}. The choice of hyperparameters is not covered."
        )


class Private(NamedTuple):
    """A job made private; it unpacks to model, optimizer, loader, statement."""

    model: GradSampleModule
    optimizer: CorrelatedOptimizer
    loader: PrivateLoader
    statement: PrivacyStatement


def make_private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    spec: Any = "auto",
    *,
    epsilon: float,
    delta: float,
    epochs: int,
    clip_norm: float = 1.0,
    batch_size: int | None = None,
    physical_batch_size: int | None = None,
    sampling: Literal["fixed", "cyclic_poisson"] = "fixed",
    bands: int | None = None,
    remainder: Literal["drop", "pad"] = "drop",
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    loss_reduction: Literal["mean", "sum"] = "mean",
    users: Sequence[Any] | np.ndarray | None = None,
    order_seed: int = 0,
    seed: int | None = None,
    url: str | None = None,
    store: str | Path | None = None,
    solve: Callable[..., Any] | None = None,
    **options: Unpack[TorchNoiseOptions],
) -> Private:
    """Return model, optimizer, loader and the statement of what they guarantee together.

    Train as ever: for each epoch, for each batch of the loader: forward, backward, `optimizer.step()`,
    `optimizer.zero_grad()`. Checkpoint model and optimizer together; the loader goes on from the optimizer's step.

    Args:
        model: without layers that mix examples (batch norm); Opacus says which.
        optimizer: over the model's parameters.
        data: a `DataLoader`, whose data set, batch size, collation and workers are kept and whose order is replaced; or
            a data set, with `batch_size`.
        spec: `auto`; or a spec, digest, path or URL for `factorize.client.load`; or a factorization.
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        epochs: passes over the data; n = epochs x batches.
        clip_norm: bound on an example's gradient.
        batch_size: examples per step and divisor of the means; the loader's by default.
        physical_batch_size: examples per forward pass, where a batch is too large for the memory; the loader then
            yields the batch in parts, and `step()` acts after the last.
        sampling: `fixed`: the same batches in every epoch; or `cyclic_poisson`, which amplifies a banded C.
        bands: of the C that `auto` asks for with `cyclic_poisson`; 1 is DP-SGD.
        remainder: of a fixed order: `drop` what fills no batch, or `pad`.
        adjacency: `zero_out` or `replace_one`.
        loss_reduction: of the caller's loss over a batch.
        users: user of each example; a user with two examples in a step is then refused, and epsilon is per user.
        order_seed: public, of the fixed order.
        seed: secret, of noise and sampling; drawn here if None. A job that restarts must keep it.
        url: of a service that solves and serves.
        store: of factorizations.
        solve: `solvers.solve`, to solve in this process what is given as a spec.
        **options: of the noise, see `factorize.adapters.torch.NoiseGenerator`.

    Raises:
        InvalidParticipation: the factorization's participation is not that of the order.
        InvalidParameter: settings that contradict each other or lie out of range.
        ConditionNotMet: sampling with a C that is not banded.
    """
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        message = f"a {type(model).__name__} would add noise in every process; give the model inside it, on one device"
        raise InvalidParameter(message, field="model")
    errors = ModuleValidator.validate(model, strict=False)
    if errors:
        raise InvalidParameter(f"Opacus refuses the model: {errors[0]}; see ModuleValidator.fix", field="model")
    dataset, size, loading = _data(data, batch_size, sampling)
    if users is not None and len(users) != len(dataset):
        raise InvalidParameter(f"{len(users)} users for {len(dataset)} examples; name one for each", field="users")
    secret = secrets.randbits(128) if seed is None else seed
    job = _Job(len(dataset), size, epochs, PrivacyTarget(epsilon=epsilon, delta=delta), clip_norm, adjacency)
    find = partial(_factors, spec, optimizer, bands=bands, url=url, store=store, solve=solve)
    order: Order | CyclicPoisson
    if sampling == "fixed":
        held, calibration, order = job.fixed(find, remainder, order_seed)
    elif sampling == "cyclic_poisson":
        held, calibration, order = job.sampled(find, _banded_participation(bands, spec), secret ^ _SAMPLING)
    else:
        raise InvalidParameter(f"sampling={str(sampling)[:20]!r} is not fixed or cyclic_poisson", field="sampling")
    order.check(calibration.sensitivity.participation, held.steps)
    auditor = ParticipationAuditor.of(calibration, held.steps, users=users)
    private = CorrelatedOptimizer(optimizer, held.factors, calibration, seed=secret, auditor=auditor, **options)
    wrapped = GradSampleModule(model, loss_reduction=loss_reduction)
    loader = PrivateLoader(dataset, order, private, passes=epochs, physical=physical_batch_size, loading=loading)
    used = len(dataset) if isinstance(order, CyclicPoisson) else len(np.unique(np.concatenate(list(order))))
    unit = "example" if users is None else "user"
    statement = PrivacyStatement(calibration, held.digest, held.steps, len(dataset), used, sampling, unit)
    return Private(wrapped, private, loader, statement)


@dataclass(frozen=True)
class _Job:
    """What order and calibration follow from."""

    examples: int
    size: int
    epochs: int
    target: PrivacyTarget
    clip_norm: float
    adjacency: Adjacency | str

    def fixed(
        self, find: Callable[..., Any], remainder: Literal["drop", "pad"], order_seed: int
    ) -> tuple[Held, Calibration, Order]:
        order = fixed_order(self.examples, self.size, epochs=self.epochs, seed=order_seed, remainder=remainder)
        held = Held(find(len(order), order.participation))
        calibration = held.calibrate(
            self.target, clip_norm=self.clip_norm, batch_size=self.size, adjacency=self.adjacency
        )
        return held, calibration, order

    def sampled(
        self, find: Callable[..., Any], participation: dict[str, Any], seed: int
    ) -> tuple[Held, Calibration, CyclicPoisson]:
        steps = self.epochs * max(1, self.examples // self.size)
        held = Held(find(steps, participation))
        assert self.target.epsilon is not None and self.target.delta is not None  # make_private asks for both
        calibration = calibrate_amplified(
            held.banded(),
            epsilon=self.target.epsilon,
            delta=self.target.delta,
            dataset_size=self.examples,
            batch_size=self.size,
            clip_norm=self.clip_norm,
            adjacency=self.adjacency,
        )
        return held, calibration, CyclicPoisson(self.examples, calibration, steps=steps, seed=seed)


_SAMPLING = 0x5A4D504C << 128  # makes the seed of the sampling another than that of the noise


def _data(data: Any, batch_size: int | None, sampling: str) -> tuple[Any, int, dict[str, Any]]:
    """Return the data set, the batch size, and what else of a loader is kept."""
    if not isinstance(data, DataLoader):
        if batch_size is None:
            raise InvalidParameter(
                "a data set has no batch size; give batch_size=, or a DataLoader", field="batch_size"
            )
        return data, batch_size, {}
    if sampling == "fixed":
        refuse_sampling(data)
    size = batch_size if batch_size is not None else data.batch_size
    if size is None:
        raise InvalidParameter("the loader has a batch sampler of its own; give batch_size=", field="batch_size")
    kept = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    return data.dataset, size, {name: getattr(data, name) for name in kept}


def _banded_participation(bands: int | None, spec: Any) -> dict[str, Any]:
    if bands is None:
        if spec == "auto":
            message = "cyclic sampling needs to know how many bands C may have; give bands=, or a banded factorization"
            raise InvalidParameter(message, field="bands")
        return {"kind": "single"}
    return {"kind": "single"} if bands == 1 else {"kind": "min_sep", "min_sep": bands}


def _factors(
    spec: Any,
    optimizer: torch.optim.Optimizer,
    steps: int,
    participation: dict[str, Any],
    *,
    bands: int | None,
    url: str | None,
    store: str | Path | None,
    solve: Callable[..., Any] | None,
) -> Any:
    if hasattr(spec, "noise_source") or hasattr(spec, "strategy"):
        return spec
    if spec == "auto":
        banded = {"kind": "identity"} if bands == 1 else {"kind": "banded", "bands": bands}
        mechanism = {"kind": "auto"} if bands is None else banded
        spec = {"workload": workload_of(optimizer, steps), "participation": participation, "mechanism": mechanism}
    if solve is not None:
        from factorize.spec import parse_spec

        return solve(parse_spec(spec))
    from factorize.client import load

    return load(spec, url=url, store=store)


def workload_of(optimizer: Any, steps: int) -> dict[str, Any]:
    """Return the workload of a torch optimizer with a constant learning rate: momentum for SGD, else prefix sums.

    Args:
        optimizer: of torch, or wrapped by Opacus.
        steps: n.
    """
    optimizer = getattr(optimizer, "original_optimizer", optimizer)
    group = optimizer.param_groups[0]
    momentum = group.get("momentum", 0.0)
    plain = isinstance(optimizer, torch.optim.SGD) and not group["dampening"] and not group["weight_decay"]
    if not plain or not momentum:
        return {"kind": "prefix", "n": steps}
    return {"kind": "momentum", "n": steps, "momentum": momentum, "nesterov": bool(group["nesterov"])}
