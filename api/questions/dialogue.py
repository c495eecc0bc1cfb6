"""Dialogue about a training job: the questions that no option answered, and what counts as an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from factorize.api.questions.training_job import DEFAULT_MEMORY, FleetRequest, Job, RecommendRequest, check_batch
from factorize.errors import InvalidParameter, InvalidSpec
from factorize.plain_data import read_union

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


_PRIVACY_AND_MEMORY = (
    DialogueQuestion("Which privacy, epsilon and delta (like 2, 1e-5)?", ("epsilon", "delta")),
    DialogueQuestion(
        "How many vectors of noise state may be kept, each as large as the model (several with commas)?",
        ("memory",),
        ",".join(map(str, DEFAULT_MEMORY)),
    ),
)
QUESTIONS: dict[type[Job], tuple[DialogueQuestion, ...]] = {
    RecommendRequest: (
        DialogueQuestion("How many examples are in the data set?", ("examples",)),
        DialogueQuestion("How many examples are in a batch?", ("batch_size",)),
        DialogueQuestion("How many epochs are trained?", ("epochs",), "1"),
        *_PRIVACY_AND_MEMORY,
    ),
    FleetRequest: (
        DialogueQuestion("How many clients are in the fleet?", ("clients",)),
        DialogueQuestion("How many clients are asked in a round?", ("clients_a_round",)),
        DialogueQuestion("How many rounds are trained?", ("rounds",)),
        *_PRIVACY_AND_MEMORY,
    ),
}


def answers(kind: type[Job], given: Mapping[str, Any], ask: Ask, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the answers to all questions that were not answered by options.

    Args:
        kind: of the job.
        given: answers by name; those that are None are asked for.
        ask: see `Ask`.
        tell: shows why an answer is none.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for question in QUESTIONS[kind]:
        missing = tuple(name for name in question.names if name not in found)
        if missing:
            alone = DialogueQuestion(f"Which {missing[0]}?", missing)
            found |= _asked(kind, question if missing == question.names else alone, found, ask, tell)
    return found


def read(name: str, text: str, kind: type[Job] = RecommendRequest) -> Any:
    """Return an answer that was typed about a kind of job; `60_000` and `6e4` are whole numbers, too.

    Raises:
        InvalidParameter: it is outside the limits of its field.
    """
    several = [_number(part) for part in text.split(",") if part.strip()]
    answer = several if name == "memory" else _number(text)
    check_field(name, answer, kind)
    return answer


def _asked(
    kind: type[Job], question: DialogueQuestion, before: Mapping[str, Any], ask: Ask, tell: Callable[[str], None]
) -> dict[str, Any]:
    shown = f"{question.text} [{question.default}] " if question.default else f"{question.text} "
    while True:
        typed = ask(shown)  # outside: what it raises where nobody types ends the dialogue
        try:
            found = _read_all(kind, question, typed.strip() or question.default)
            if "batch_size" in found:
                check_batch(before["examples"], found["batch_size"])
            return found
        except InvalidParameter as error:
            tell(str(error))


def _read_all(kind: type[Job], question: DialogueQuestion, typed: str) -> dict[str, Any]:
    """Return the answers to a question, by name."""
    if len(question.names) == 1:
        return {question.names[0]: read(question.names[0], typed, kind)}
    parts = typed.strip("()").replace(",", " ").split()
    if len(parts) != len(question.names):
        wanted = " and ".join(question.names)
        raise InvalidParameter(f"{typed!r} is not {wanted}; give {len(question.names)} numbers, like 2, 1e-5")
    return {name: read(name, part, kind) for name, part in zip(question.names, parts, strict=True)}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return int(value) if abs(value) < 2**53 and value == int(value) else value
    return text.strip()


def check_field(name: str, value: Any, kind: type[Job]) -> None:
    """Refuse the value of one field of a training job, whatever the others are.

    Raises:
        InvalidParameter: it is outside its limits.
    """
    try:
        read_union({name: value}, kind)
    except InvalidSpec as error:
        wrong = [one.message for one in error.violations if one.pointer.split("/")[1:2] == [name]]
        if wrong:
            raise InvalidParameter(f"{name}: {wrong[0]}", field=name) from None
