"""Code of a training job that uses a recommendation: about ten lines each for torch, JAX and numpy, or for a server.

The names that the code does not define are the job's own: `model`, `data`, `loss`, `x`, `y`, `weights`, `params`,
`gradients`, and `rate` where nothing is known of it. Every line runs as it is printed (the tests run them).
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from factorize.api.questions.optimizer import Moments
from factorize.api.questions.training_job import FleetRequest, Job, RecommendRequest
from factorize.samplings import SAMPLINGS
from factorize.samplings.base import CodeNumbers

TITLES = {"torch": "torch", "jax": "JAX", "numpy": "numpy", "federated": "the server of federated training"}
FRAMEWORKS = tuple(TITLES)
LONGEST_SPEC = 1200
"""Characters of a spec inside code; a longer one, with a list of rates of the user's own, is read from a file."""
SPEC_FILE = "spec.json"
_TORCH = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
_SGD, _OPTAX = ("sgd",), ("sgd", "adam", "adamw")
"""Optimizers that the code has as they are."""
_CHECK = "from factorize.training.rate_check import ArrayRateCheck"
_UNCHECKED = " and leave out the check"
_SECRET = "secrets.randbits(128)"
_SPEC_IN_FILE = (
    f'spec = json.loads(Path("{SPEC_FILE}").read_text())     # written by `factorize recommend --to {SPEC_FILE}`'
)
_SCHEDULE = 'rates = schedule_rates(spec["workload"]["learning_rates"], spec["workload"]["n"])     # of the peak'


RateOf = Callable[[str], float | None]
"""The rate for an optimizer, or None where it is the job's own to find."""


def codes(
    job: Job, spec: Mapping[str, object], sampling: str, rate_of: RateOf = lambda _optimizer: None
) -> dict[str, str]:
    """Return the code, by the names of `FRAMEWORKS` that fit the job.

    Args:
        job: the training job.
        spec: of the mechanism, as plain data.
        sampling: name of the scheme that it counts on; `fixed` for none.
        rate_of: the rate for the optimizer that the code has, by its name.
    """
    if isinstance(job, FleetRequest):
        return {"federated": _federated(job, spec)}
    assert isinstance(job, RecommendRequest)
    makers = {"torch": (_torch, _TORCH), "jax": (_jax, _OPTAX), "numpy": (_numpy, _SGD)}
    found = {}
    for name, (make, known) in makers.items():
        own = job.optimizer.kind if job.optimizer is not None and job.optimizer.kind in known else "sgd"
        imports, _, lines = make(job, spec, sampling).partition("\n\n")
        rate = rate_of(own)
        known_rate = "" if rate is None else f"rate = {rate!r}     # the largest, by our study: see docs/choose.md\n"
        found[name] = f"{imports}\n\n{known_rate}{lines}"
    return found


def _program(spec: Mapping[str, object], imports: Sequence[str], *lines: str) -> str:
    """Return a program: imports, the spec, the schedule's relative rates if it has one, and its lines."""
    long, secret = len(json.dumps(spec)) > LONGEST_SPEC, any("secrets." in line for line in lines)
    standard = ["import json"] * long + ["import secrets"] * secret + ["from pathlib import Path"] * long
    shown = _SPEC_IN_FILE if long else f"spec = {spec!r}"
    if _rates(spec):
        imports, lines = [*imports, "from factorize.training import schedule_rates"], (_SCHEDULE, *lines)
    return "\n".join([*standard, *imports, "", shown, *lines])


def _rates(spec: Mapping[str, Any]) -> bool:
    """Whether the rate is no constant."""
    return bool(spec["workload"].get("learning_rates"))


def _federated(job: FleetRequest, spec: Mapping[str, Any]) -> str:
    """Return the rounds of a server; the job's own names are `model`, `connected`, `update_of` and `seed`."""
    momentum = spec["workload"].get("momentum")
    return _program(
        spec,
        [
            "import factorize",
            "from factorize.adapters.federated import FederatedRounds",
            "from factorize.privacy import PrivacyTarget",
            "from factorize.training.receipt import Receipt",
        ],
        "rounds = FederatedRounds(",
        f'    "state", factorize.solve(spec), PrivacyTarget(epsilon={job.epsilon!r}, delta={job.delta!r}), model,',
        f"    clients={job.clients}, clients_a_round={job.clients_a_round}, clip_norm=1.0, seed=seed,",
        '    receipt=Receipt("receipt.json"))     # model: a list of arrays; seed: secret, the same after a restart',
        *(["velocity = [0.0 * old for old in model]"] if momentum else []),
        "while rounds.step < rounds.steps:",
        *(["    rate = rates[rounds.step]"] if _rates(spec) else []),
        "    for client in rounds.choose(connected()):",
        "        rounds.add(client, update_of(client, model))",
        "    change = rounds.close(model)",
        *[f"    {line}" for line in _nearest(job, _SGD)],
        *_server_update(spec),
    )


def _torch(job: RecommendRequest, spec: Mapping[str, object], sampling: str) -> str:
    named = SAMPLINGS[sampling].trained_as
    scheduled = ["schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [*rates, 0.0].__getitem__)"]
    adapters = ["from factorize.adapters.private import make_private"]
    adapters += ["from factorize.adapters.rate_check import RateCheck"]
    return _program(
        spec,
        ["import factorize", "import torch", *adapters],
        *_nearest(job, _TORCH, _UNCHECKED),
        f"optimizer = torch.optim.{_torch_optimizer(job, spec)}",
        *(scheduled if _rates(spec) else []),
        "model, optimizer, loader, statement = make_private(",
        f"    model, optimizer, data, spec, solve=factorize.solve, "
        f"epsilon={job.epsilon!r}, delta={job.delta!r}, epochs={job.epochs},",
        f'    batch_size={job.batch_size}, sampling="{named}", seed={_SECRET})',
        f"check = RateCheck(optimizer{', schedule' if _rates(spec) else ''})     # of the rate: docs/choose.md",
        f"for epoch in range({job.epochs}):",
        "    for inputs, targets in loader:",
        "        loss(model(inputs), targets).backward()",
        "        optimizer.step()",
        "        check.step()",
        *(["        schedule.step()"] if _rates(spec) else []),
        "        optimizer.zero_grad()",
        "print(statement)",
    )


def _nearest(job: Job, known: Collection[str], without: str = "") -> list[str]:
    """Return a line that says that the optimizer below is not the job's, where it is none of those that are known."""
    other = job.optimizer is not None and job.optimizer.kind not in known
    told = f"# the nearest optimizer that is solved for: put yours in its place{without}, the privacy is the same"
    return [told] if other else []


def _moments(job: Job, known: Collection[str]) -> Moments | None:
    """Return the job's optimizer, if it is one with moments that are known."""
    named = job.optimizer
    return named if isinstance(named, Moments) and named.kind in known else None


def _torch_optimizer(job: Job, spec: Mapping[str, object]) -> str:
    named = _moments(job, _TORCH)
    if named is None:
        return f"SGD(model.parameters(), lr=rate{_momentum(spec)})"
    betas = f"betas=({named.averaging[0]!r}, {named.beta2!r})"
    decay = f", weight_decay={named.weight_decay!r}" if named.weight_decay or named.kind == "adamw" else ""
    return f"{_TORCH[named.kind]}(model.parameters(), lr=rate, {betas}{decay})"


def _optax_optimizer(job: Job, spec: Mapping[str, object]) -> str:
    named = _moments(job, _OPTAX)
    if named is None:
        return f"optax.sgd(1.0{_momentum(spec)})"
    decay = f", weight_decay={named.weight_decay!r}" if named.kind == "adamw" else ""
    return f"optax.{named.kind}(1.0, b1={named.averaging[0]!r}, b2={named.beta2!r}{decay})"


def _momentum(spec: Mapping[str, Any]) -> str:
    momentum = spec["workload"].get("momentum")
    nesterov = ", nesterov=True" if spec["workload"].get("nesterov") else ""
    return f", momentum={momentum!r}{nesterov}" if momentum else ""


def _jax(job: RecommendRequest, spec: Mapping[str, Any], sampling: str) -> str:
    """Return the code for optax; where batches have random sizes, only what follows their gradients is jitted."""
    law = SAMPLINGS[sampling]
    if not law.padded:
        imports = ["from factorize.adapters.jax import correlated_noise", law.imports]
        imports.append("from jax_privacy import clipped_grad")
        noise = [*law.code(_numbers(job), "len(x)", f", divisor={job.batch_size}")]
        noise.append("gradient = clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2))     # loss(params, x, y)")
        noise.append(f"noise = correlated_noise(factors, scale, seed={_SECRET})")
        sigma, total, arguments, batch = "scale.sigma_of_means", "total", "total", "batch"
        steps = [
            "    empty = len(batch) == 0     # no example: the noise alone is released",
            "    total = jax.tree.map(lambda p: p * 0, params) if empty else gradient(params, x[batch], y[batch])",
        ]
    else:
        imports = ["from factorize.adapters.jax_private import make_private"]
        noise = [
            "noise, order, statement, gradients = make_private(     # loss(params, x, y): one number, a mean",
            f"    factors, loss=loss, examples=len(x), epsilon={job.epsilon!r}, "
            f"delta={job.delta!r}, epochs={job.epochs},",
            f'    batch_size={job.batch_size}, sampling="{sampling}", seed={_SECRET})',
        ]
        sigma, total = "statement.calibration.sigma_of_means", "gradients(params, (x, y), indices, mask)"
        arguments, batch, steps = "indices, mask", "(indices, mask)", []
    return _program(
        spec,
        ["import factorize, functools, jax, optax", *imports, _CHECK],
        "factors = factorize.solve(spec)",
        *noise,
        *_nearest(job, _OPTAX, _UNCHECKED),
        f"optimizer = optax.chain(noise, {_optax_optimizer(job, spec)})     # a step of rate 1",
        "@functools.partial(jax.jit, donate_argnums=1)     # so that the noise's buffers are not copied",
        f"def step(params, state, rate, {arguments}):",
        f"    updates, state = optimizer.update({total}, state, params)",
        "    return optax.apply_updates(params, jax.tree.map(lambda one: rate * one, updates)), state",
        "state = optimizer.init(params)",
        *_checked(job, spec, _OPTAX, sigma, "jax.tree.leaves(params)", batch),
        *steps,
        f"    params, state = step(params, state, now, {arguments})",
        "    params = jax.tree.unflatten(jax.tree.structure(params), check.step(jax.tree.leaves(params), now))",
        *(["print(statement)"] if law.padded else []),
    )


def _numbers(job: RecommendRequest) -> CodeNumbers:
    return CodeNumbers(job.epsilon, job.delta, job.batch_size, job.epochs, job.run.steps)


def _numpy(job: RecommendRequest, spec: Mapping[str, Any], sampling: str) -> str:
    law = SAMPLINGS[sampling]
    return _program(
        spec,
        ["import factorize", "import numpy as np", law.imports, law.audit[0], _CHECK],
        "factors = factorize.solve(spec)",
        *law.code(_numbers(job), "len(data)"),
        f"auditor = {law.audit[1]}",
        f"noise = factors.noise(scale, weights.shape, seed={_SECRET}, auditor=auditor)",
        *(["velocity = np.zeros_like(weights)"] if spec["workload"].get("momentum") else []),
        *_checked(job, spec, _SGD, f"scale.sigma_of_sums / {job.batch_size}", "[weights]"),
        "    auditor.record(batch)     # raises before a step that epsilon does not cover",
        "    each = gradients(weights, data[batch])     # one for each example: shape (examples, *weights.shape)",
        "    norms = np.sqrt(np.sum(each**2, axis=tuple(range(1, each.ndim)), keepdims=True))",
        "    total = (each / np.maximum(norms, 1.0)).sum(axis=0)     # clip norm 1",
        f"    released = noise.add_to_sum(total) / {job.batch_size}     # noise of sums, fixed divisor",
        *[f"    {line}" for line in _nearest(job, _SGD, _UNCHECKED)],
        *_numpy_update(spec),
        "    [weights] = check.step([weights], now)",
    )


def _checked(
    job: Job, spec: Mapping[str, Any], known: Collection[str], sigma: str, weights: str, batch: str = "batch"
) -> list[str]:
    """Return the lines that begin a check of the rate and the loop, where the rate of a step is `now`."""
    scheduled, named = _rates(spec), _moments(job, known)
    moments = repr(spec["workload"].get("momentum", 0.0))
    if named is not None:
        moments = ", ".join(map(repr, (named.averaging[0], named.beta2, named.weight_decay)))
    return [
        f"check = ArrayRateCheck(factors, {sigma}, {weights}, {moments})     # of the rate: docs/choose.md",
        f"for number, {batch} in enumerate(order):" if scheduled else f"for {batch} in order:",
        f"    now = rate * check.factor{' * rates[number]' if scheduled else ''}",
    ]


def _numpy_update(spec: Mapping[str, Any]) -> list[str]:
    momentum, nesterov = spec["workload"].get("momentum"), spec["workload"].get("nesterov")
    if not momentum:
        return ["    weights = weights - now * released"]
    way = f"(released + {momentum!r} * velocity)" if nesterov else "velocity"
    return [f"    velocity = {momentum!r} * velocity + released", f"    weights = weights - now * {way}"]


def _server_update(spec: Mapping[str, Any]) -> list[str]:
    momentum, rate = spec["workload"].get("momentum"), "rate * " if _rates(spec) else ""
    if not momentum:
        return [f"    model = [old + {rate}step for old, step in zip(model, change)]"]
    way = f"step + {momentum!r} * kept" if spec["workload"].get("nesterov") else "kept"
    return [
        f"    velocity = [{momentum!r} * kept + step for kept, step in zip(velocity, change)]",
        f"    model = [old + {rate}({way}) for old, step, kept in zip(model, change, velocity)]",
    ]
