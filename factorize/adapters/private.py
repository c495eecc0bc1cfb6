"""One call that makes a torch training job private: factorization, model, order, auditor, clipping, noise."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.validators import ModuleValidator
from torch.utils.data import DataLoader

from factorize.adapters.adaptive.joint_adam import JointAdam, ReplicatedJointAdam, check_adam
from factorize.adapters.adaptive.joint_plan import (
    PlannedMoments,
    iterate_workload,
    joint_plan,
    refuse_joint,
    second_workload,
)
from factorize.adapters.jobs import BINNED, AnyAuditor, Planned, TrainingJob, amplified_by, find_factors
from factorize.adapters.loader import PrivateLoader
from factorize.adapters.opacus import CorrelatedOptimizer, refuse_sampling
from factorize.adapters.ranks.agreement import agreed, own_rank, world_size
from factorize.adapters.ranks.opacus_ranks import ReplicatedOptimizer
from factorize.adapters.statement import PrivacyStatement
from factorize.adapters.torch import TorchNoiseOptions
from factorize.errors import InvalidParameter
from factorize.privacy import Adjacency, Calibration, PrivacyTarget


class Private(NamedTuple):
    """A job made private; it unpacks to model, optimizer, loader, statement."""

    model: GradSampleModule
    optimizer: CorrelatedOptimizer
    loader: PrivateLoader
    statement: PrivacyStatement


class _Plan(NamedTuple):
    """What every rank has to have before any goes on."""

    planned: Planned
    auditor: AnyAuditor
    dataset: Any
    loading: dict[str, Any]


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
    sampling: Literal["fixed", "cyclic_poisson", "balls_in_bins", "random_allocation"] = "fixed",
    bands: int | None = None,
    memory: int | None = None,
    remainder: Literal["drop", "pad"] = "drop",
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    loss_reduction: Literal["mean", "sum"] = "mean",
    users: Sequence[Any] | np.ndarray | None = None,
    order_seed: int = 0,
    seed: int | None = None,
    overflow: Literal["abort", "unlimited"] = "abort",
    calibration: Calibration | None = None,
    adaptive: Literal["plain", "joint"] = "plain",
    second: Any = "auto",
    url: str | None = None,
    store: str | Path | None = None,
    solve: Callable[..., Any] | None = None,
    **options: Unpack[TorchNoiseOptions],
) -> Private:
    """Return model, optimizer, loader and the statement of what they guarantee together.

    Train as ever: for each epoch, for each batch of the loader: forward, backward, `optimizer.step()`,
    `optimizer.zero_grad()`. Checkpoint model and optimizer together; the loader goes on from the optimizer's step.

    Args:
        model: without layers that mix examples (batch norm); Opacus says which. In Opacus's
            `DifferentiallyPrivateDistributedDataParallel`, on every rank of a job, each rank gets its share of every
            batch.
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
        sampling: `fixed`: the same batches in every epoch; `cyclic_poisson`, which amplifies a banded C;
            `balls_in_bins`, which amplifies every C: each example draws its step of an epoch once, in secret;
            or `random_allocation`, for C = I: it draws in every epoch anew.
        bands: of the C that `auto` asks for with `cyclic_poisson`; 1 is DP-SGD.
        memory: vectors of noise state, each as large as the model, that `auto` may ask for; None for any number, which
            warns where the noise takes all earlier rows (`DenseNoise`).
        remainder: of a fixed order: `drop` what fills no batch, or `pad`.
        adjacency: `zero_out` or `replace_one`.
        loss_reduction: of the caller's loss over a batch.
        users: user of each example; a user with two examples in a step is then refused, and epsilon is per user.
        order_seed: public, of the fixed order.
        seed: secret, of noise and sampling; drawn here if None. A job that restarts must keep it, and all ranks of one
            must have the same.
        overflow: of balls in bins. `abort`: every step computes equally many padded parts (one, without
            `physical_batch_size`), and delta is charged for keys whose bins do not fit. `unlimited`: batches of any
            size, which shapes and times then show.
        calibration: that counts on this very sampling in place of a new one, for (epsilon, delta) or less.
        adaptive: `plain`: the optimizer gets the noisy gradients; or `joint`, of Adam and AdamW: squares of clipped
            gradients are released beside them (`JointAdam`).
        second: with `joint`, the factorization for the squares, said as `spec` is; `auto` asks for the optimum of
            Adam's second moments.
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
        message = (
            f"a {type(model).__name__} would add noise in every process; give the model inside it, on one device, or "
            "in Opacus's DifferentiallyPrivateDistributedDataParallel for all ranks"
        )
        raise InvalidParameter(message, field="model")
    secret = secrets.randbits(128) if seed is None else seed
    ranks = world_size() if isinstance(model, DifferentiallyPrivateDistributedDataParallel) else 1

    def plan() -> tuple[_Plan, dict[str, Any]]:
        joint = _joint(optimizer, adaptive, second, sampling)  # what is refused is refused before anything is solved
        _check_ranks(ranks, sampling, seed)
        errors = ModuleValidator.validate(model, strict=False)
        if errors:
            raise InvalidParameter(f"Opacus refuses the model: {errors[0]}; see ModuleValidator.fix", field="model")
        dataset, size, loading = _data(data, batch_size, sampling)
        if users is not None and len(users) != len(dataset):
            raise InvalidParameter(f"{len(users)} users for {len(dataset)} examples; name one for each", field="users")
        if calibration is not None and sampling not in BINNED:
            message = (
                f"calibration= is for sampling in {' or '.join(BINNED)}; with {sampling!r} the job's own is computed"
            )
            raise InvalidParameter(message, field="calibration")
        job = TrainingJob(len(dataset), size, epochs, PrivacyTarget(epsilon=epsilon, delta=delta), clip_norm, adjacency)
        workload = partial(_first_workload if joint else workload_of, optimizer)
        budget: dict[str, Any] = {"memory": memory, "amplified": amplified_by(sampling, epsilon, delta)}
        diagonals = memory + 1 if sampling == "cyclic_poisson" and bands is None and memory is not None else bands
        find = partial(find_factors, spec, workload, bands=diagonals, **budget, url=url, store=store, solve=solve)
        planned: Planned
        if joint:
            squares = partial(second_workload, optimizer.param_groups[0]["betas"][1])
            of_second = budget if isinstance(second, str) and second == "auto" else {}
            find_second = partial(find_factors, second, squares, **of_second, url=url, store=store, solve=solve)
            planned = joint_plan(job, find, find_second, remainder, order_seed)
        elif sampling == "fixed":
            planned = job.fixed(find, remainder, order_seed)
        elif sampling == "cyclic_poisson":
            planned = job.cyclic_poisson(find, _banded_participation(diagonals, spec), secret)
        elif sampling in BINNED:
            public = None if seed is None else order_seed
            planned = job.secret_bins(
                find,
                sampling=sampling,
                seed=secret,
                public_seed=public,
                physical=physical_batch_size,
                overflow=overflow,
                calibration=calibration,
            )
        else:
            known = f"fixed, cyclic_poisson or {' or '.join(BINNED)}"
            raise InvalidParameter(f"sampling={str(sampling)[:20]!r} is not {known}", field="sampling")
        shared = {"examples": len(dataset), "epochs": epochs, "order_seed": order_seed, "remainder": remainder}
        made = _Plan(planned, planned.auditor(users), dataset, loading)
        return made, {**shared, "adaptive": adaptive, "factorization": planned.factors.digest, **_noise_of(planned)}

    planned, auditor, dataset, loading = plan()[0] if ranks == 1 else agreed("the plan of the job", plan)
    private = _private(planned, optimizer, ranks, seed=secret, auditor=auditor, **options)
    wrapped = GradSampleModule(model, loss_reduction=loss_reduction)
    loader = PrivateLoader(
        dataset,
        planned.order,
        private,
        passes=epochs,
        physical=physical_batch_size,
        loading=loading,
        share=(own_rank(), ranks) if ranks > 1 else (0, 1),
    )
    statement = planned.statement(len(dataset), sampling, "example" if users is None else "user", ranks)
    return Private(wrapped, private, loader, statement)


def _private(planned: Planned, optimizer: Any, ranks: int, **options: Any) -> CorrelatedOptimizer:
    """Return the optimizer with the noise of a plan."""
    if isinstance(planned, PlannedMoments):
        joint = JointAdam if ranks == 1 else ReplicatedJointAdam
        return joint(optimizer, planned.factors, planned.second, planned.moments, **options)
    kind = CorrelatedOptimizer if ranks == 1 else ReplicatedOptimizer
    return kind(optimizer, planned.factors, planned.calibration, **options)


def _joint(optimizer: Any, adaptive: str, second: Any, sampling: str) -> bool:
    """Whether squares of gradients have noise of their own.

    Raises:
        InvalidParameter: they cannot with this optimizer or order; or there is no such way to take the noise.
    """
    if adaptive == "joint":
        refuse_joint(sampling)
        check_adam(getattr(optimizer, "original_optimizer", optimizer))
        return True
    if not (isinstance(second, str) and second == "auto"):
        message = f"second= is the factorization for squares of gradients; adaptive={adaptive!r} has none, leave it out"
        raise InvalidParameter(message, field="second")
    if adaptive != "plain":
        raise InvalidParameter(f"adaptive={str(adaptive)[:20]!r} is not known; use plain or joint", field="adaptive")
    return False


def _noise_of(planned: Planned) -> dict[str, Any]:
    """Return what ranks have to agree on before any of them makes noise."""
    c = planned.calibration
    return {"sigma_of_sums": c.sigma_of_sums, "clip_norm": c.clip_norm, "divisor": c.divisor}


def _check_ranks(ranks: int, sampling: str, seed: int | None) -> None:
    """Refuse several processes without a seed, or with a secret order.

    Raises:
        InvalidParameter: there are such.
    """
    if ranks > 1 and seed is None:
        message = "every rank has to have the same seed; draw one on rank 0 and send it by broadcast_object_list"
        raise InvalidParameter(message, field="seed")
    if ranks > 1 and sampling != "fixed":
        message = f"sampling={sampling!r} is secret, and ranks tell each other their batches; use sampling='fixed'"
        raise InvalidParameter(message, field="sampling")


def _data(data: Any, batch_size: int | None, sampling: str) -> tuple[Any, int, dict[str, Any]]:
    """Return the data set, the batch size, and what else of a loader is kept."""
    if not isinstance(data, DataLoader):
        if batch_size is None:
            raise InvalidParameter(
                "a data set has no batch size; give batch_size=, or a DataLoader", field="batch_size"
            )
        return data, batch_size, {}
    if sampling != "cyclic_poisson":
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


def _first_workload(optimizer: Any, steps: int) -> dict[str, Any]:
    """Return the workload of Adam's gradients where its second moments have noise of their own: that of the iterate."""
    beta = getattr(optimizer, "original_optimizer", optimizer).param_groups[0]["betas"][0]
    return iterate_workload(beta, steps) if beta else {"kind": "prefix", "n": steps}


def workload_of(optimizer: Any, steps: int) -> dict[str, Any]:
    """Return the workload of a torch optimizer with a constant learning rate: momentum for SGD, else running sums.

    Adam, AdamW and their kind make their second moments of the noisy gradients. So the noise of a single step counts,
    and the optimum of running sums trains better than that of Adam's iterate (papers/pages/reproductions.md).

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
