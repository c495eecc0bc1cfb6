"""A training job that wants a mechanism: the one statement of its questions for HTTP, the command line and Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from factorize.api.questions.comparison import ALL_SAMPLINGS, SamplingNames
from factorize.errors import InvalidParameter, InvalidSpec, Violation
from factorize.plain_data import Count, Frozen, Positive, read_union
from factorize.spec import Spec, parse_spec
from factorize.workloads import KINDS

DEFAULT_MEMORY = (4,)
"""Vectors of noise state, where nobody says how many: what most of the gain takes."""
DEFAULT_SECONDS = 10.0
"""Time for an answer, where nobody says how much."""
_Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
_Examples = Annotated[int, Field(ge=1, le=10**12)]
_Vectors = Annotated[int, Field(ge=0, le=10**6)]


class RecommendRequest(Frozen):
    """A training job that wants a mechanism.

    Attributes:
        examples: in the data set.
        batch_size: examples of a step; expected ones where batches are random.
        epochs: passes over the data.
        epsilon: of (epsilon, delta)-DP, zero-out.
        delta: see `epsilon`.
        memory: budgets in vectors of noise state; the answer is for the largest.
        parameters: of the model, for seconds per step.
        workload: what the optimizer sums, without `n`; running sums by default.
        objective: the mean by default.
        samplings: that the loader can do, beside a fixed order; all by default.
        seconds: for all; what promises most is tried first, and the answer says what was not.
    """

    examples: _Examples
    batch_size: _Examples
    epochs: Count = 1
    epsilon: Positive
    delta: _Delta
    memory: Annotated[
        list[_Vectors],
        Field(min_length=1, max_length=8, description="in vectors of the size of the model"),
    ] = list(DEFAULT_MEMORY)
    parameters: Annotated[int, Field(ge=1, le=10**13)] | None = None
    workload: dict[str, Any] | None = None
    objective: dict[str, Any] | None = None
    samplings: SamplingNames | None = Field(default=None, json_schema_extra=ALL_SAMPLINGS)
    seconds: Positive = DEFAULT_SECONDS

    @property
    def steps(self) -> int:
        """Steps of the run: full batches of an epoch, times epochs."""
        return self.epochs * (self.examples // self.batch_size)


def read_job(document: Mapping[str, Any]) -> RecommendRequest:
    """Read a training job from plain data, and check its workload and objective at its number of steps.

    Raises:
        InvalidSpec: it is none; pointers to the fields.
        InvalidParameter: a batch that is larger than the data set.
    """
    request: RecommendRequest = read_union(document, RecommendRequest)
    check_batch(request.examples, request.batch_size)
    workload = request.workload or {"kind": "prefix"}
    if "n" in workload:
        raise InvalidSpec([Violation("/workload/n", "n follows from the job: its full batches, times its epochs")])
    if workload.get("kind") == "matrix":
        told = "a matrix of one's own has no number of steps to choose; compare mechanisms for it at POST /v1/compare"
        raise InvalidSpec([Violation("/workload/kind", told)])
    objective = {"objective": request.objective} if request.objective else {}
    parse_spec({"workload": {**workload, "n": request.steps}, **objective})
    return request.model_copy(update={"memory": sorted(set(request.memory))})


def check_field(name: str, value: Any) -> None:
    """Refuse the value of one field of a training job, whatever the others are.

    Raises:
        InvalidParameter: it is outside its limits.
    """
    try:
        read_union({name: value}, RecommendRequest)
    except InvalidSpec as error:
        wrong = [one.message for one in error.violations if one.pointer.split("/")[1:2] == [name]]
        if wrong:
            raise InvalidParameter(f"{name}: {wrong[0]}", field=name) from None


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
        other = other or ["n"]
        raise InvalidParameter(
            f"{', '.join(other)} follows from the job, or is what is recommended; give a workload and an objective "
            "alone",
            field=other[0],
        )
    return dict(document)


def schemas(reference: str) -> dict[str, Any]:
    """Return the schema of a request and of the workloads that it may name, by name.

    Args:
        reference: template of references, with `{model}`.
    """
    found: dict[str, Any] = {}
    for kind in KINDS.values():
        schema = kind.model_json_schema(ref_template=reference)
        if "n" not in schema["properties"]:  # it lists its rows
            continue
        schema.pop("$defs", None)
        del schema["properties"]["n"]
        schema["required"] = [name for name in schema["required"] if name != "n"]
        found[f"{kind.__name__}OfJob"] = schema
    request = RecommendRequest.model_json_schema(ref_template=reference)
    kinds = [{"$ref": reference.format(model=name)} for name in found]
    request["properties"]["workload"] = {"anyOf": [*kinds, {"type": "null"}], "default": None}
    objective = Spec.model_json_schema(ref_template=reference)["properties"]["objective"]["oneOf"]
    request["properties"]["objective"] = {"anyOf": [*objective, {"type": "null"}], "default": None}
    return {**found, "RecommendRequest": request}


Ask = Callable[[str], str]
"""Shows a question and returns what was typed; raises `InvalidParameter` where nobody types any more."""


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


def answers(given: Mapping[str, Any], ask: Ask, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the answers to all questions that were not answered by options.

    Args:
        given: answers by name; those that are None are asked for.
        ask: see `Ask`.
        tell: shows why an answer is none.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for question in QUESTIONS:
        missing = tuple(name for name in question.names if name not in found)
        if missing:
            alone = DialogueQuestion(f"Which {missing[0]}?", missing)
            found |= _asked(question if missing == question.names else alone, found, ask, tell)
    return found


def read(name: str, text: str) -> Any:
    """Return an answer that was typed; `60_000` and `6e4` are whole numbers, too.

    Raises:
        InvalidParameter: it is outside the limits of its field.
    """
    several = [_number(part) for part in text.split(",") if part.strip()]
    answer = several if name == "memory" else _number(text)
    check_field(name, answer)
    return answer


def _asked(
    question: DialogueQuestion, before: Mapping[str, Any], ask: Ask, tell: Callable[[str], None]
) -> dict[str, Any]:
    shown = f"{question.text} [{question.default}] " if question.default else f"{question.text} "
    while True:
        typed = ask(shown)  # outside: what it raises where nobody types ends the dialogue
        try:
            found = _read_all(question, typed.strip() or question.default)
            if "batch_size" in found:
                check_batch(before["examples"], found["batch_size"])
            return found
        except InvalidParameter as error:
            tell(str(error))


def _read_all(question: DialogueQuestion, typed: str) -> dict[str, Any]:
    """Return the answers to a question, by name."""
    if len(question.names) == 1:
        return {question.names[0]: read(question.names[0], typed)}
    parts = typed.strip("()").replace(",", " ").split()
    if len(parts) != len(question.names):
        wanted = " and ".join(question.names)
        raise InvalidParameter(f"{typed!r} is not {wanted}; give {len(question.names)} numbers, like 2, 1e-5")
    return {name: read(name, part) for name, part in zip(question.names, parts, strict=True)}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return int(value) if abs(value) < 2**53 and value == int(value) else value
    return text.strip()
