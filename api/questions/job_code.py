"""Code of a training job that uses a recommendation: about ten lines each for torch, JAX and numpy, or for a server.

The lines stand in `templates`, a file each, with what a job fills in; a line that nothing fills is left out. Names that
the code does not define are the job's own: `model`, `data`, `loss`, `x`, `y`, `weights`, `params`, `gradients`, and
`rate` where nothing is known of it; a server's are `model`, `connected`, `update_of` and `seed`. Every line runs as it
is printed (the tests run them).
"""

import json
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from typing import Any

from factorize.api.questions.optimizer import Moments
from factorize.api.questions.training_job import FleetRequest, Job, RecommendRequest
from factorize.samplings import SAMPLINGS
from factorize.samplings.base import CodeNumbers

TITLES = {"torch": "torch", "jax": "JAX", "numpy": "numpy", "federated": "the server of federated training"}
FRAMEWORKS = tuple(TITLES)
MAX_SPEC_CHARACTERS = 1200
"""The most characters of a spec inside code; a longer one, with a list of the user's rates, is read from a file."""
SPEC_FILE = "spec.json"
_TORCH = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
_SGD, _OPTAX = ("sgd",), ("sgd", "adam", "adamw")
"""The optimizers that the code has as they are."""
_UNCHECKED_NOTE = " and leave out the check"
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
        spec: what it was recommended, as plain data.
        sampling: the name of the sampling that it counts on.
        rate_of: the rate for an optimizer.
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


def _program(template: str, spec: Mapping[str, Any], **filled: Any) -> str:
    """Return a program: imports, the spec, the schedule's relative rates if it has one, and the lines of a template."""
    text = (files(__package__) / "templates" / f"{template}.txt").read_text(encoding="utf-8")
    imports, lines = (
        [shown for line in part.splitlines() if (shown := line.format(secret=_SECRET, **filled)).strip()]
        for part in text.split("\n\n")
    )
    long, secret = len(json.dumps(spec)) > MAX_SPEC_CHARACTERS, any(_SECRET in line for line in lines)
    standard = ["import json"] * long + ["import secrets"] * secret + ["from pathlib import Path"] * long
    shown = _SPEC_IN_FILE if long else f"spec = {spec!r}"
    if _rates(spec):
        imports, lines = [*imports, "from factorize.training import schedule_rates"], [_SCHEDULE, *lines]
    return "\n".join([*standard, *imports, "", shown, *lines])


def _rates(spec: Mapping[str, Any]) -> bool:
    """Return whether the rate is no constant."""
    return bool(spec["workload"].get("learning_rates"))


def _federated(job: FleetRequest, spec: Mapping[str, Any]) -> str:
    """Return the rounds of a server."""
    momentum, rate = spec["workload"].get("momentum"), "rate * " if _rates(spec) else ""
    way = f"step + {momentum!r} * kept" if spec["workload"].get("nesterov") else "kept"
    moved = f"[old + {rate}({way}) for old, step, kept in zip(model, change, velocity)]"
    return _program(
        "federated",
        spec,
        job=job,
        velocity="velocity = [0.0 * old for old in model]" if momentum else "",
        rate_of_round="rate = rates[rounds.step]" if _rates(spec) else "",
        nearest=_nearest(job, _SGD),
        velocity_update=f"velocity = [{momentum!r} * kept + step for kept, step in zip(velocity, change)]"
        if momentum
        else "",
        updated=moved if momentum else f"[old + {rate}step for old, step in zip(model, change)]",
    )


def _torch(job: RecommendRequest, spec: Mapping[str, Any], sampling: str) -> str:
    schedule = "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [*rates, 0.0].__getitem__)"
    return _program(
        "torch",
        spec,
        job=job,
        law=SAMPLINGS[sampling],
        nearest=_nearest(job, _TORCH, _UNCHECKED_NOTE),
        optimizer=_torch_optimizer(job, spec),
        schedule=schedule if _rates(spec) else "",
        checked_schedule=", schedule" if _rates(spec) else "",
        schedule_step="schedule.step()" if _rates(spec) else "",
    )


def _nearest(job: Job, known: Collection[str], without: str = "") -> str:
    """Return a line that says that the optimizer below is not the job's, where it is none of those that are known."""
    other = job.optimizer is not None and job.optimizer.kind not in known
    told = f"# the nearest optimizer that is solved for: put yours in its place{without}, the privacy is the same"
    return told if other else ""


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
    order = law.code(_numbers(job), "len(x)", f", divisor={job.batch_size}")
    return _program(
        "jax" if law.padded else "jax_random_sizes",
        spec,
        job=job,
        law=law,
        order="" if law.padded else "\n".join(order),
        nearest=_nearest(job, _OPTAX, _UNCHECKED_NOTE),
        optimizer=_optax_optimizer(job, spec),
        **_checked(job, spec, _OPTAX),
    )


def _numbers(job: RecommendRequest) -> CodeNumbers:
    return CodeNumbers(job.epsilon, job.delta, job.batch_size, job.epochs, job.run.steps)


def _numpy(job: RecommendRequest, spec: Mapping[str, Any], sampling: str) -> str:
    law, momentum = SAMPLINGS[sampling], spec["workload"].get("momentum")
    way = f"(released + {momentum!r} * velocity)" if spec["workload"].get("nesterov") else "velocity"
    return _program(
        "numpy",
        spec,
        job=job,
        law=law,
        order="\n".join(law.code(_numbers(job), "len(data)")),
        velocity="velocity = np.zeros_like(weights)" if momentum else "",
        nearest=_nearest(job, _SGD, _UNCHECKED_NOTE),
        velocity_update=f"velocity = {momentum!r} * velocity + released" if momentum else "",
        step=way if momentum else "released",
        **_checked(job, spec, _SGD),
    )


def _checked(job: Job, spec: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Return what fills in a check of the rate and the loop, where the rate of a step is `now`."""
    scheduled, named = _rates(spec), _moments(job, known)
    moments = repr(spec["workload"].get("momentum", 0.0))
    if named is not None:
        moments = ", ".join(map(repr, (named.averaging[0], named.beta2, named.weight_decay)))
    return {
        "moments": moments,
        "number": "number, " if scheduled else "",
        "steps": "enumerate(order)" if scheduled else "order",
        "relative_rate": " * rates[number]" if scheduled else "",
    }
