"""Questions about a training job, and what counts as an answer: on the command line, in a dialogue and in Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from factorize.errors import InvalidParameter

DEFAULT_MEMORY = (4,)
"""Vectors of noise state, where nobody says how many: what most of the gain takes."""
MOST_MEMORY = 10**6
MOST_BUDGETS = 8

Answer = int | float | tuple[int, ...]


class DialogueQuestion(NamedTuple):
    """A question of the dialogue.

    Attributes:
        text: what is asked.
        names: of the answers, in the order in which they are typed.
        default: shown, and taken where nothing is typed; empty where an answer has to be given.
    """

    text: str
    names: tuple[str, ...]
    default: str = ""


QUESTIONS = (
    DialogueQuestion("How many examples are in the data set?", ("examples",)),
    DialogueQuestion("How many examples are in a batch?", ("batch_size",)),
    DialogueQuestion("How many epochs are trained?", ("epochs",), "1"),
    DialogueQuestion("Which privacy, epsilon and delta (like 2, 1e-5)?", ("epsilon", "delta")),
    DialogueQuestion(
        "How many vectors of noise state may be kept, each as large as the model (several with commas)?",
        ("memory",),
        ",".join(map(str, DEFAULT_MEMORY)),
    ),
)


@dataclass(frozen=True, kw_only=True)
class TrainingQuestion:
    """A training job that wants a mechanism.

    Attributes:
        examples: in the data set.
        batch_size: examples of a step; expected ones where batches are random.
        epochs: passes over the data.
        epsilon: of (epsilon, delta)-DP, zero-out.
        delta: see `epsilon`.
        memory: budgets in vectors of noise state, ascending; the answer is for the largest.
        workload: in the contract's JSON form without `n`; running sums where it is empty.
        objective: in the contract's JSON form; the mean where it is empty.
        samplings: that the loader can do, beside a fixed order; None for all.
        parameters: of the model, for seconds per step.
        max_seconds: mechanisms that would take longer are left out.
    """

    examples: int
    batch_size: int
    epochs: int = 1
    epsilon: float
    delta: float
    memory: tuple[int, ...] = DEFAULT_MEMORY
    workload: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, Any] = field(default_factory=dict)
    samplings: tuple[str, ...] | None = None
    parameters: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        """Check every answer; see `checked`."""
        for name in ("examples", "batch_size", "epochs", "epsilon", "delta", "memory"):
            checked(name, getattr(self, name))
        check_batch(self.examples, self.batch_size)
        if self.parameters is not None:
            checked("parameters", self.parameters)

    @property
    def steps(self) -> int:
        """Steps of the run: full batches of an epoch, times epochs."""
        return self.epochs * (self.examples // self.batch_size)


def checked(name: str, value: Any) -> Answer:
    """Return an answer.

    Args:
        name: of the field.
        value: a number, or for `memory` one or several.

    Raises:
        InvalidParameter: it is outside its limits; the message has the value, the limit and the way out.
    """
    return _LIMITS[name](name, value)


def read(name: str, text: str) -> Answer:
    """Return an answer that was typed; `60_000` and `6e4` are whole numbers, too.

    Raises:
        InvalidParameter: see `checked`.
    """
    if name == "memory":
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return checked(name, [_number(part) for part in parts])
    return checked(name, _number(text.strip()))


def read_all(question: DialogueQuestion, text: str) -> dict[str, Answer]:
    """Return the answers to a question, by name.

    Raises:
        InvalidParameter: see `checked`; or fewer or more answers than names.
    """
    typed = text.strip() or question.default
    if len(question.names) == 1:
        return {question.names[0]: read(question.names[0], typed)}
    parts = [part for part in typed.strip("()").replace(",", " ").split() if part]
    if len(parts) != len(question.names):
        wanted = " and ".join(question.names)
        raise InvalidParameter(f"{typed!r} is not {wanted}; give {len(question.names)} numbers, like 2, 1e-5")
    return {name: read(name, part) for name, part in zip(question.names, parts, strict=True)}


def check_batch(examples: int, batch_size: int) -> None:
    """Refuse a batch that is larger than the data set.

    Raises:
        InvalidParameter: it is.
    """
    if batch_size > examples:
        raise InvalidParameter(
            f"batch_size={batch_size} makes no full batch of {examples} examples; give at most {examples}",
            field="batch_size",
        )


def about(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workload and the objective of a spec of which nothing else is given.

    Raises:
        InvalidParameter: something else is.
    """
    other = [name for name in document if name not in ("workload", "objective")]
    if other or "n" in document.get("workload", {}):
        named = ", ".join(other) or "n"
        raise InvalidParameter(
            f"{named} follows from the job, or is what is recommended; give a workload and an objective alone",
            field=named,
        )
    return dict(document)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _whole(name: str, value: Any, least: int = 1) -> int:
    whole = isinstance(value, float) and math.isfinite(value) and value == int(value)
    number = int(value) if whole else value
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        told = f"{name}={value!r} is not a whole number of {least} or more; {_EXAMPLES[name]}"
        raise InvalidParameter(told, field=name)
    return number


def _epsilon(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InvalidParameter(f"{name}={value!r} is not a number above 0; {_EXAMPLES[name]}", field=name)
    return float(value)


def _delta(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InvalidParameter(f"{name}={value!r} is not between 0 and 1; {_EXAMPLES[name]}", field=name)
    return float(value)


def _memory(name: str, value: Any) -> tuple[int, ...]:
    given: Sequence[Any] = [value] if isinstance(value, (int, float, str)) else list(value)
    if not 0 < len(given) <= MOST_BUDGETS:
        told = f"{name} has {len(given)} budgets; give 1 to {MOST_BUDGETS}, with commas, like 1,4,16"
        raise InvalidParameter(told, field=name)
    found = sorted({_whole(name, one, least=0) for one in given})
    if found[-1] > MOST_MEMORY:
        raise InvalidParameter(f"{name}={found[-1]} is above {MOST_MEMORY}; {_EXAMPLES[name]}", field=name)
    return tuple(found)


_EXAMPLES = {
    "examples": "give the number of examples, like 60000",
    "batch_size": "give the examples of a step, like 600",
    "epochs": "give the passes over the data, like 10",
    "epsilon": "give one like 2; smaller is more private",
    "delta": "give one below 1 / examples, like 1e-5",
    "memory": "give the vectors of noise state that may be kept, like 4",
    "parameters": "give the number of the model's parameters, like 1000000",
}
_LIMITS: dict[str, Callable[[str, Any], Answer]] = {
    "examples": _whole,
    "batch_size": _whole,
    "epochs": _whole,
    "parameters": _whole,
    "epsilon": _epsilon,
    "delta": _delta,
    "memory": _memory,
}
