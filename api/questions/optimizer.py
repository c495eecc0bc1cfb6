"""Optimizers by the names that training loops have for them, and the workload that stands for each.

A workload is what an optimizer sums, linear in the gradients. Adam and its kin divide by what they see of the noise, so
that no workload is exactly theirs: a recommendation answers for the nearest one that is solved, and says so.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from factorize.plain_data import Fraction, Frozen, NonNegative, read_union
from factorize.spec import Spec
from factorize.workloads import KINDS
from factorize.workloads.schedule import LearningRates


class Optimizer(Frozen):
    """An optimizer of a training loop.

    Attributes:
        learning_rates: rates of the steps, relative to the largest; constant by default.
        weight_decay: weight decay that the loop uses; the answer is for none.
    """

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The contract's name."""

    learning_rates: LearningRates | None = None
    weight_decay: NonNegative = 0.0

    @property
    @abstractmethod
    def averaging(self) -> tuple[float, bool]:
        """The momentum by which gradients are averaged, and whether it is Nesterov's."""

    def approximation(self, workload: str) -> str | None:
        """Return one sentence on what the answer means for this optimizer, or None where it is exact."""
        return (
            f"{self.kind} is approximated by the nearest workload that can be solved, {workload}, as if what it "
            f"divides by stayed the same{' and weights did not decay' if self.weight_decay else ''}. The privacy is "
            "proved whatever an optimizer does with the noisy gradients; the error is an estimate"
        )


class SgdOptimizer(Optimizer):
    """SGD, with or without momentum."""

    kind: Literal["sgd"]
    momentum: Fraction = 0.0
    nesterov: bool = False

    @property
    def averaging(self) -> tuple[float, bool]:
        """The momentum of its own."""
        return self.momentum, self.nesterov and self.momentum > 0

    def approximation(self, workload: str) -> str | None:
        """Return a note where weight decay is left out."""
        if not self.weight_decay:
            return None
        return (
            f"sgd with weight decay is approximated by the nearest workload that can be solved, {workload}, without "
            "the decay, which would shrink the noise of early steps. The privacy is proved; the error is an estimate"
        )


class Moments(Optimizer):
    """An optimizer that steps by averages of gradients, divided by what follows from their size.

    Attributes:
        beta1: decay of the averages of gradients.
        beta2: decay of the averages of squares, where there are any.
        beta: the same as `beta1`, as the workload `adam` has it.
    """

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    beta: Fraction | None = None

    @property
    def averaging(self) -> tuple[float, bool]:
        """The decay of first moments, as a momentum."""
        return self.beta1 if self.beta is None else self.beta, False


class Scaled(Optimizer):
    """An optimizer that divides each gradient, and may average the steps.

    Attributes:
        momentum: momentum by which steps are averaged, if at all.
    """

    momentum: Fraction = 0.0

    @property
    def averaging(self) -> tuple[float, bool]:
        """The momentum of its own, if it averages."""
        return self.momentum, False


_KINDS: dict[str, tuple[str, type[Optimizer], str]] = {
    "adam": ("Adam", Moments, "Adam."),
    "adamw": ("AdamW", Moments, "Adam with decoupled weight decay."),
    "nadam": ("Nadam", Moments, "Adam with Nesterov's momentum, answered as Adam."),
    "lamb": ("Lamb", Moments, "Adam with steps scaled by layer."),
    "lion": ("Lion", Moments, "The sign of averages."),
    "adagrad": ("Adagrad", Scaled, "Adagrad."),
    "rmsprop": ("RmsProp", Scaled, "RMSprop."),
    "adafactor": ("Adafactor", Scaled, "Adafactor."),
    "other": ("Other", Scaled, "Any other optimizer, by its momentum and its learning rates."),
}


def _named(kind: str, name: str, base: type[Optimizer], told: str) -> type[Optimizer]:
    literal: Any = Literal[kind]
    return create_model(f"{name}Optimizer", __base__=base, __doc__=told, kind=(literal, ...))


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SgdOptimizer,
    **{kind: _named(kind, *about) for kind, about in _KINDS.items()},
}
"""The optimizers by name; `adam` with an `output` is the workload of that name."""

if TYPE_CHECKING:
    AnyOptimizer = Optimizer
    Summed = Any
else:
    AnyOptimizer = Annotated[reduce(or_, OPTIMIZERS.values()), Field(discriminator="kind")]
    _others = [owner for kind, owner in KINDS.items() if kind not in OPTIMIZERS]
    Summed = Annotated[reduce(or_, [*_others, *OPTIMIZERS.values()]), Field(discriminator="kind")]


class JobInWords(Spec):
    """A spec whose workload may be an optimizer: which words a recommendation takes."""

    workload: Summed


class _Named(Frozen):
    workload: AnyOptimizer


def is_optimizer(workload: Mapping[str, object]) -> bool:
    """Return whether a workload as plain data is meant as an optimizer."""
    return workload.get("kind") in OPTIMIZERS and "output" not in workload


def read_optimizer(workload: Mapping[str, object]) -> Optimizer:
    """Read an optimizer.

    Raises:
        InvalidSpec: it is none; pointers to the fields of `/workload`.
    """
    named: _Named = read_union({"workload": dict(workload)}, _Named)
    return named.workload


def nearest_workload(optimizer: Optimizer) -> dict[str, object]:
    """Return the workload that stands for an optimizer, as plain data without `n`."""
    momentum, nesterov = optimizer.averaging
    document = optimizer.model_dump(exclude_unset=True, exclude_none=True)
    rates = {"learning_rates": document["learning_rates"]} if "learning_rates" in document else {}
    if momentum:
        return {"kind": "momentum", "momentum": momentum, **rates, **({"nesterov": True} if nesterov else {})}
    return {"kind": "schedule", **rates} if rates else {"kind": "prefix"}


def with_warmup(workload: Mapping[str, object], steps: int) -> tuple[dict[str, object], str | None]:
    """Return a workload with the warm-up that it leaves open, a twentieth of the steps, and a note that says so."""
    rates = workload.get("learning_rates")
    if not isinstance(rates, Mapping) or rates.get("kind") != "warmup_cosine" or "warmup" in rates:
        return dict(workload), None
    warmup = max(1, steps // 20)
    note = f"no warm-up was given, so this assumes {warmup} of {steps} steps; give yours: --warmup STEPS"
    return {**workload, "learning_rates": {**rates, "warmup": warmup}}, note
