"""One call that makes a torch training job private: factorization, model, order, auditor, clipping, noise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

from factorize.adapters.adaptive.joint_adam import JointAdam, ReplicatedJointAdam, check_adam
from factorize.adapters.checks.rehearsal import Loss, Rehearsal
from factorize.adapters.data.data_mark import DataMark
from factorize.adapters.data.given_data import GivenData
from factorize.adapters.data.held_examples import refuse_held_examples
from factorize.adapters.data.repeated_data import refuse_repeats
from factorize.adapters.disjoint_optimizers import as_one, parts_of
from factorize.adapters.given import check_model, check_optimizer
from factorize.adapters.gradients.example_gradients import GRAD_SAMPLE_MODES, ExampleGradients, find_modules
from factorize.adapters.jobs import FactorSource, Planned, adam_workload, plan, samplings_of
from factorize.adapters.loader import PrivateLoader
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.adapters.opacus_ranks import ReplicatedOptimizer
from factorize.adapters.ranks.agreement import agree, own_rank, refuse_other_ranks, world_size
from factorize.adapters.torch import TorchNoiseOptions, default_generator
from factorize.numbers.scalars import check_choice, check_type
from factorize.privacy import Calibration
from factorize.privacy.adjacency import Adjacency
from factorize.training.job import JobBatching, JobData, JobNoise, JobPrivacy, TrainingJob
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement

_SAMPLINGS = samplings_of(padded=False)


class Private(NamedTuple):
    """A job made private; it unpacks to model, optimizer, loader, statement."""

    model: GradSampleModule
    optimizer: CorrelatedOptimizer
    loader: PrivateLoader
    statement: PrivacyStatement


def make_private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    data: object,
    spec: object = "auto",
    *,
    epsilon: float,
    delta: float,
    epochs: int,
    clip_norm: float = 1.0,
    batch_size: int | None = None,
    physical_batch_size: int | None = None,
    sampling: Literal["fixed", "cyclic_poisson", "b_min_sep", "balls_in_bins", "random_allocation"] = "fixed",
    bands: int | None = None,
    memory: int | None = None,
    remainder: Literal["drop", "pad"] = "drop",
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    loss: Loss | Literal["rehearsed", "not_looked_at"] = "rehearsed",
    loss_reduction: Literal["mean", "sum"] = "mean",
    grad_sample_mode: Literal["hooks", "functorch", "streamed"] = "hooks",
    whole: Sequence[str] = (),
    batch_first: bool = True,
    users: Sequence[object] | np.ndarray | None = None,
    order_seed: int = 0,
    seed: int | None = None,
    overflow: Literal["abort", "unlimited"] = "abort",
    calibration: Calibration | None = None,
    adaptive: Literal["plain", "joint"] = "plain",
    second: object = "auto",
    url: str | None = None,
    store: str | Path | None = None,
    solve: Callable[..., object] | None = None,
    receipt: Receipt | None = None,
    **options: Unpack[TorchNoiseOptions],
) -> Private:
    """Return model, optimizer, loader and the statement of their joint guarantee.

    Train as usual: for each epoch, for each batch of the loader: forward, backward, `optimizer.step()`,
    `optimizer.zero_grad()`. Checkpoint model and optimizer together; the loader continues from the optimizer's step.

    The loader hands out more batches before the first, and before the first of some later passes: a rehearsal, of
    which nothing is released (`factorize.adapters.checks.rehearsal`). It refuses a model or a loss in which one example
    changes the gradients of others.

    Args:
        model: a model without layers that mix examples (batch norm); Opacus names them. In Opacus's
            `DifferentiallyPrivateDistributedDataParallel`, on every rank of a job, each rank gets its share of every
            batch.
        optimizer: an optimizer over all parameters that the model trains; or a list of optimizers that have each of
            them once, such as Muon for matrices and AdamW for the rest, which then step together.
        data: a `DataLoader` over all examples, whose data set, batch size, collation and workers are kept and whose
            `shuffle=True` is replaced, as the statement notes; or a data set, with `batch_size`.
        spec: `auto`; or a spec, digest, path or URL for `factorize.client.load`; or a factorization.
        epsilon: the epsilon of (epsilon, delta)-DP.
        delta: the delta of (epsilon, delta)-DP.
        epochs: passes over the data; n = epochs x batches.
        clip_norm: bound on an example's gradient.
        batch_size: examples per step and divisor of the means; the loader's by default.
        physical_batch_size: examples per forward pass, if a batch is too large for the memory; the loader then yields
            the batch in parts, and `step()` acts after the last.
        sampling: `fixed`: the same batches in every epoch; `cyclic_poisson` or `b_min_sep`, which amplify a banded C;
            `balls_in_bins`, which amplifies every C: each example draws its step of an epoch once, in secret;
            or `random_allocation`, for C = I: it draws in every epoch anew.
        bands: number of bands of the C that `auto` asks for with `cyclic_poisson` or `b_min_sep`, under which it is the
            best; 1 is DP-SGD.
        memory: the most vectors of noise state, each as large as the model, for `auto`; None for any number, with a
            warning if the noise needs all earlier rows (`DenseNoise`).
        remainder: for a fixed order: `drop` leaves out examples that fill no batch, or `pad`.
        adjacency: `zero_out` or `replace_one`.
        loss: the check of the loss. `rehearsed`: the first step through the caller's loop. Or a function of the model
            and a batch of the loader that returns one loss for each example: it is rehearsed before the first batch,
            and the loop must compute the same. Or `not_looked_at`: there is no check, and the statement begins with
            that.
        loss_reduction: reduction of the caller's loss over a batch.
        grad_sample_mode: mode of Opacus's `GradSampleModule`: `functorch` for all layers, or `hooks` where there are
            some; or `streamed`, hooks that keep no gradient of each example of a large layer.
        whole: names of modules that run again as a whole for the gradient of each example, as `encoder` for a table of
            relative positions in it.
        batch_first: option of Opacus's `GradSampleModule`: whether examples are the first axis of the model's inputs.
        users: user of each example. Each gives one example to a step, in turn. The order, or the law of secret batches,
            is then that of users, an epoch is one turn of each, and epsilon is per user.
        order_seed: public seed of the fixed order.
        seed: secret seed of noise and sampling; drawn here if None. A job that restarts must keep it, and all ranks of
            one must have the same.
        overflow: treatment of bins above the capacity. `abort`: every step computes equally many padded parts (one,
            without `physical_batch_size`), and delta is charged for keys whose bins do not fit. `unlimited`: batches of
            any size, which shapes and times then show.
        calibration: a calibration for this very sampling in place of a new one, for (epsilon, delta) or less; with
            balls in bins, random allocation or b-min-sep.
        adaptive: `plain`: the optimizer gets the noisy gradients; or `joint`, for Adam and AdamW: squares of clipped
            gradients are released, too (`JointAdam`).
        second: with `joint`, the factorization for the squares, in the same form as `spec`; `auto` asks for the optimum
            of Adam's second moments.
        url: address of a service that solves and serves.
        store: the store of factorizations.
        solve: `solvers.solve`, to solve a spec in this process.
        receipt: a receipt to write while the run goes on, on rank 0; close it after the last step.
        **options: options of the noise, see `factorize.adapters.torch.NoiseGenerator`.

    Raises:
        InvalidParticipation: the factorization's participation is not that of the order.
        InvalidParameter: settings that contradict each other or lie out of range.
        ConditionNotMet: sampling with a C that is not banded.
    """
    check_choice("grad_sample_mode", grad_sample_mode, GRAD_SAMPLE_MODES)
    check_choice("loss_reduction", loss_reduction, ("mean", "sum"))
    check_type("batch_first", batch_first, bool, remedy="give True or False")
    optimizer = as_one(optimizer)
    ranks = world_size() if isinstance(model, DifferentiallyPrivateDistributedDataParallel) else 1
    refuse_other_ranks(ranks)
    joint = adaptive == "joint"

    def plan_here() -> tuple[tuple[Planned, GivenData, DataMark], dict[str, Any]]:
        inner = getattr(optimizer, "original_optimizer", optimizer)
        check_model(model)
        find_modules(model, whole)
        check_optimizer(inner, model)
        if joint:
            check_adam(inner)
        betas = inner.param_groups[0]["betas"] if joint else (0.0, 0.0)
        workload = partial(adam_workload, "iterate", betas[0]) if betas[0] else partial(workload_of, inner)
        source = FactorSource(spec, workload, memory, bands, url, store, solve)
        given = GivenData.read(data, batch_size, sampling=sampling, remainder=remainder)
        given.refuse_layouts()
        refuse_held_examples(model, given.dataset)
        if users is None:
            refuse_repeats(given.dataset)
        job = TrainingJob(
            JobData(examples=len(given.dataset), users=users),
            JobBatching(
                size=given.batch_size,
                epochs=epochs,
                sampling=sampling,
                order_seed=order_seed,
                remainder=remainder,
                physical=physical_batch_size,
                overflow=overflow,
                ranks=ranks,
            ),
            JobPrivacy(epsilon=epsilon, delta=delta, clip_norm=clip_norm, adjacency=adjacency),
            JobNoise(
                source=source,
                seed=seed,
                calibration=calibration,
                adaptive=adaptive,
                second=second,
                beta=betas[1],
                generator=options.get("generator")
                or default_generator(next(model.parameters(), torch.empty(0)).device),
            ),
        )
        planned = plan(job, _SAMPLINGS)
        mark = DataMark(given.dataset, job.noise.secret)
        return (planned, given, mark), {**planned.shared, "data": mark.keyed}

    planned, given, mark = agree("the plan of the job", plan_here)
    private = _private(planned, optimizer, ranks, seed=planned.job.noise.secret, auditor=planned.auditor, **options)
    noises = [private.noise] if planned.moments is None else [private.noise, private.second_noise]
    try:
        private.overflow_delta, private.data_mark = planned.overflow_delta, mark.keyed
        wrapped = ExampleGradients(
            model,
            mode=grad_sample_mode,
            whole=find_modules(model, whole),
            rehearsed=loss != "not_looked_at",
            batch_first=batch_first,
            loss_reduction=loss_reduction,
        )
        private.rehearsal = Rehearsal(wrapped, private.params, loss, loss_reduction, ranks)
        loader = PrivateLoader(given, planned, private, private.rehearsal, mark, axis=0 if batch_first else 1)
        notes = (
            *given.replaced,
            *_notes_on_start(optimizer),
            *([] if joint else _rate_notes(optimizer, private, planned)),
        )
        statement = replace(planned.statement("per_example" if callable(loss) else loss), replaced=notes)
        if receipt is not None:
            about = {"generator": private.noise.generator, "dtype": "float32"}
            commitments = [noise.commitment for noise in noises]
            planned.begin(receipt, statement, process=own_rank(), commitments=commitments, **about)
    except BaseException:  # a notebook keeps these frames, and the generators in them would refuse the next ones
        noises.clear()
        for name in ("noise", "second_noise"):
            private.__dict__.pop(name, None)
        raise
    return Private(wrapped, private, loader, statement)


def _notes_on_start(optimizer: torch.optim.Optimizer) -> list[str]:
    """Return a remark if the optimizer was trained with before; some begin with a state of step 0."""
    inner = getattr(optimizer, "original_optimizer", optimizer)
    states = [each for part in parts_of(inner) for each in part.state.values() if each]
    if not any(float(each.get("step", 1)) > 0 for each in states):
        return []
    return [
        "The optimizer took steps before this job: unless its state and the weights come from public data or from "
        "releases, no noise covers what they hold."
    ]


def _rate_notes(optimizer: torch.optim.Optimizer, private: CorrelatedOptimizer, planned: Planned) -> list[str]:
    """Return remarks on the optimizer's learning rate; none without the extra [solve]."""
    try:
        from factorize.training.learning_rate import note_on_decay, note_on_rate, rate_for
    except ImportError:
        return []
    inner = getattr(optimizer, "original_optimizer", optimizer)
    group, name = inner.param_groups[0], type(inner).__name__.lower()
    if "lr" not in group:  # as where the losses, or a schedule of its own, would set the rate
        return []
    size = sum(one.numel() for one in private.params)
    rate = float(group.get("initial_lr", group["lr"]))  # the schedule's largest rate, if there is one
    best = rate_for(name, group.get("momentum", 0.0), size, planned.factors, planned.calibration)
    relative = planned.factors.manifest.spec["workload"].get("learning_rates", [1.0] * (planned.factors.steps or 1))
    decay = group["weight_decay"] if name == "adamw" else 0.0
    return [*note_on_rate(rate, best), *note_on_decay(rate, decay, sum(relative) / max(relative))]


def _private(planned: Planned, optimizer: torch.optim.Optimizer, ranks: int, **options: Any) -> CorrelatedOptimizer:
    """Return the optimizer with the noise of a plan."""
    if planned.moments is not None:
        joint = JointAdam if ranks == 1 else ReplicatedJointAdam
        return joint(optimizer, planned.factors, planned.second, planned.moments, **options)
    kind = CorrelatedOptimizer if ranks == 1 else ReplicatedOptimizer
    return kind(optimizer, planned.factors, planned.calibration, **options)


def workload_of(optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
    """Return the workload of a torch optimizer with a constant learning rate: momentum for SGD, else running sums.

    Adam, AdamW and their kind make their second moments from the noisy gradients. So the noise of a single step
    matters, and the optimum of running sums trains better than that of Adam's iterate (papers/pages/reproductions.md).

    Args:
        optimizer: an optimizer of torch, or one that Opacus has wrapped.
        steps: n.
    """
    optimizer = getattr(optimizer, "original_optimizer", optimizer)
    group = optimizer.param_groups[0]
    momentum = group.get("momentum", 0.0)
    plain = isinstance(optimizer, torch.optim.SGD) and not group["dampening"] and not group["weight_decay"]
    if not plain or not momentum:
        return {"kind": "prefix", "n": steps}
    return {"kind": "momentum", "n": steps, "momentum": momentum, "nesterov": bool(group["nesterov"])}
