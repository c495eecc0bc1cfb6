"""One call that makes a JAX training job private: factorization, noise, order, auditor, and parts of fixed shapes."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax

from factorize.adapters.adaptive.jax_joint import JointState, scale_by_joint_adam
from factorize.adapters.jax import NoiseState, NoiseTransformation, Precision, correlated_noise, noise_commitment
from factorize.adapters.jax_arrays.jax_batches import GuardedBatches
from factorize.adapters.jax_arrays.jax_gradients import ClippedGradients
from factorize.adapters.jax_arrays.jax_guard import checked_state, refuse_data
from factorize.adapters.jobs import FactorSource, adam_workload, plan, samplings_of, second_seed
from factorize.errors import InvalidParameter
from factorize.numbers.scalars import check_type
from factorize.privacy import NOT_LOOKED_AT, Calibration
from factorize.privacy.adjacency import Adjacency
from factorize.training.job import JobBatching, JobData, JobNoise, JobPrivacy, TrainingJob
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement


class PrivateJax(NamedTuple):
    """A job made private; it unpacks to noise, batches, statement, gradients.

    Attributes:
        noise: the transformation that comes first in `optax.chain`: from sums of clipped gradients to noisy means.
        batches: yields (indices, mask) for each step, both of the same shape in all steps.
        statement: the guarantee of all of them together.
        gradients: a function from (params, data, indices, mask) to the sum of clipped gradients of the batch, with
            which nothing but the noise computes.
    """

    noise: NoiseTransformation
    batches: GuardedBatches
    statement: PrivacyStatement
    gradients: ClippedGradients


def make_private(
    spec: object = "auto",
    *,
    loss: Callable[..., jax.Array],
    examples: int,
    epsilon: float,
    delta: float,
    epochs: int,
    batch_size: int,
    clip_norm: float = 1.0,
    physical_batch_size: int | None = None,
    sampling: Literal["fixed", "balls_in_bins", "random_allocation"] = "fixed",
    workload: Callable[[int], dict[str, object]] | None = None,
    memory: int | None = None,
    remainder: Literal["drop", "pad"] = "drop",
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    users: Sequence[object] | np.ndarray | None = None,
    order_seed: int = 0,
    seed: int | None = None,
    calibration: Calibration | None = None,
    dtype: Precision = "float32",
    adaptive: Literal["plain", "joint"] = "plain",
    second: object = "auto",
    betas: tuple[float, float] | None = None,
    url: str | None = None,
    store: str | Path | None = None,
    solve: Callable[..., object] | None = None,
    receipt: Receipt | None = None,
) -> PrivateJax:
    """Return noise, batches, the statement of their joint guarantee, and clipped gradients of the loss.

    For each (indices, mask) of the batches: `gradients(params, data, indices, mask)` sums the clipped gradients of all
    parts. Update with `optax.chain(noise, ...)`, which adds noise to the sums and divides by `batch_size`. Checkpoint
    the optimizer's state, `batches.state_dict()` and the weights together, after a step.

    Args:
        spec: `auto`; or a spec, digest, path or URL for `factorize.client.load`; or a factorization.
        loss: a function of params and a batch of each array of the data that returns one number. It is computed for one
            example at a time, as a batch of one; see `ClippedGradients`, which checks it first.
        examples: number of examples in the data.
        epsilon: the epsilon of (epsilon, delta)-DP.
        delta: the delta of (epsilon, delta)-DP.
        epochs: passes over the data; n = epochs x batches.
        batch_size: examples per step, expected where it is random, and divisor of the means.
        clip_norm: bound on an example's gradient.
        physical_batch_size: examples per part, None for one part.
        sampling: `fixed`: the same batches in every epoch; or `balls_in_bins`, where each example draws its step of an
            epoch once, in secret, and every step computes equally many padded parts; or `random_allocation`, for
            C = I, where it draws in every epoch anew.
        workload: workload for n steps whose optimum `auto` asks for; running sums by default.
        memory: the most vectors of noise state for `auto`; None for any number, with a warning if the noise needs all
            earlier rows (`DenseNoise`).
        remainder: for a fixed order: `drop` leaves out examples that fill no batch, or `pad`.
        adjacency: `zero_out`, or `replace_one` with a fixed order.
        users: user of each example. Each gives one example to a step, in turn. The order, or the law of secret batches,
            is then that of users, an epoch is one turn of each, and epsilon is per user.
        order_seed: public seed of the fixed order.
        seed: secret seed of noise and bins; drawn here if None. A job that restarts must keep it.
        calibration: a calibration for these balls in bins in place of a new one, for (epsilon, delta) or less.
        dtype: type of the noise.
        adaptive: `plain`: noise for gradients, whatever the optimizer makes of them; or `joint`: squares of clipped
            gradients are released beside them, `noise` is `scale_by_joint_adam`, and `gradients` gives both sums.
        second: with `joint`, the factorization for the squares, in the same form as `spec`; `auto` asks for the optimum
            of Adam's second moments, as `auto` for `spec` does for its iterate.
        betas: with `joint`, Adam's decays, (0.9, 0.999) by default.
        url: address of a service that solves and serves.
        store: the store of factorizations.
        solve: `solvers.solve`, to solve a spec in this process.
        receipt: a receipt to write while the run goes on; close it after the last step.

    Raises:
        InvalidParticipation: the factorization's participation is not that of the order.
        InvalidParameter: settings that contradict each other or lie out of range.
        UnsupportedAdjacency: balls in bins with another adjacency than zero-out.
    """
    if adaptive != "joint" and betas is not None:
        message = f"betas={betas} is only for adaptive='joint'; with {adaptive!r} give them to your optimizer"
        raise InvalidParameter(message, field="betas")
    b1, b2 = betas or (0.9, 0.999)
    sums = partial(adam_workload, "iterate", b1) if adaptive == "joint" else _running_sums
    check_type("loss", loss, Callable, remedy="give a function of params and a batch of each array of the data")
    source = FactorSource(spec, workload or sums, memory, None, url, store, solve)
    source.refuse_unused(workload=workload)
    job = TrainingJob(
        JobData(examples=examples, users=users),
        JobBatching(
            size=batch_size,
            epochs=epochs,
            sampling=sampling,
            order_seed=order_seed,
            remainder=remainder,
            physical=physical_batch_size,
        ),
        JobPrivacy(epsilon=epsilon, delta=delta, clip_norm=clip_norm, adjacency=adjacency),
        JobNoise(
            source=source,
            seed=seed,
            calibration=calibration,
            adaptive=adaptive,
            second=second,
            beta=b2,
            generator="threefry2x32",
        ),
    )
    planned, secret = plan(job, samplings_of(padded=True)), job.noise.secret
    if planned.moments is not None:
        both = planned.factors, planned.second, planned.moments
        noise = scale_by_joint_adam(*both, seed=secret, b1=b1, b2=b2, dtype=dtype)
    else:
        noise = correlated_noise(  # its batches are checked below, which may be drawn ahead
            planned.factors, planned.calibration, seed=secret, dtype=dtype, auditor=NOT_LOOKED_AT
        )
    try:
        batches = GuardedBatches(
            planned.order, planned.auditor, physical=physical_batch_size, examples=examples, secret=secret
        )
        statement = planned.statement("per_example")
        if receipt is not None:
            seeds = [secret, second_seed(secret)]
            commitments = [noise_commitment(*pair) for pair in zip(planned.strategies, seeds, strict=False)]
            about = {"generator": "threefry2x32", "dtype": dtype}
            planned.begin(receipt, statement, process=jax.process_index(), commitments=commitments, **about)
        gradients = ClippedGradients(loss, clip_norm, squares=planned.moments is not None, batches=batches)
    except BaseException:  # a notebook keeps this frame, and the noise in it would refuse the next one
        del noise
        raise

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **others: object
    ) -> tuple[Any, Any]:
        """Add the noise of the state's step to the sums of the next batch, and to no others."""
        refuse_data(others)
        first = checked_state(state, JointState).first if planned.moments is not None else state
        sums = batches.take(updates, checked_state(first, NoiseState).step)
        return noise.update(sums, state, params)

    return PrivateJax(NoiseTransformation(noise.init, update), batches, statement, gradients)


def _running_sums(steps: int) -> dict[str, object]:
    return {"kind": "prefix", "n": steps}
