"""Dialogue about a training job: the questions that no option answered, and what counts as an answer."""

from collections.abc import Callable, Mapping
from typing import Any

from factorize.api.questions.training_job import DEFAULT_MEMORY, FleetRequest, Job, RecommendRequest, check_batch
from factorize.errors import InvalidParameter, InvalidSpec
from factorize.plain_data import read_union

Ask = Callable[[str], str | None]
"""A function that shows a question and returns what was typed, or None where nobody types any more."""


_COMMON_QUESTIONS = {
    "epsilon": "Which privacy, epsilon (like 2)?",
    "delta": "And which delta (like 1e-5)?",
    "memory": "How many vectors of noise state may be kept, each as large as the model (several with commas)?",
}
QUESTIONS: dict[type[Job], dict[str, str]] = {
    RecommendRequest: {
        "examples": "How many examples are in the data set?",
        "batch_size": "How many examples are in a batch?",
        "epochs": "How many epochs are trained?",
        **_COMMON_QUESTIONS,
    },
    FleetRequest: {
        "clients": "How many clients are in the fleet?",
        "clients_a_round": "How many clients are asked in a round?",
        "rounds": "How many rounds are trained?",
        **_COMMON_QUESTIONS,
    },
}
DEFAULTS = {"epochs": "1", "memory": ",".join(map(str, DEFAULT_MEMORY))}
"""The answers that are shown, and taken where nothing is typed."""


def answers(kind: type[Job], known: Mapping[str, Any], ask: Ask, tell: Callable[[str], None]) -> dict[str, object]:
    """Return the answers to all questions that were not answered by options.

    Args:
        kind: kind of the job.
        known: answers by name; those that are None are asked for.
        ask: see `Ask`.
        tell: shows why an answer is none.

    Raises:
        InvalidParameter: nobody types the answer to a question that has no default.
    """
    replies = {name: value for name, value in known.items() if value is not None}
    questions = QUESTIONS[kind]
    for name, text in questions.items():
        default = DEFAULTS.get(name, "")
        while name not in replies:
            typed = ask(f"{text} [{default}] " if default else f"{text} ")  # what it raises ends the dialogue
            if typed is None and not default:
                raise InvalidParameter(_untyped([one for one in questions if one not in replies]), field=name)
            try:
                answer = read(name, (typed or "").strip() or default, kind)
                if name == "batch_size":
                    check_batch(replies["examples"], answer)
            except InvalidParameter as error:
                tell(str(error))
            else:
                replies[name] = answer
    return replies


def _untyped(left: list[str]) -> str:
    options = [f"--{name.replace('_', '-')}" for name in left if name not in DEFAULTS]
    fleet = " (or --clients, --clients-a-round and --rounds of a federated job)" if "examples" in left else ""
    return f"an answer is missing, and no terminal can ask for it; give {', '.join(options)} as options{fleet}"


def read(name: str, text: str, kind: type[Job] = RecommendRequest) -> Any:
    """Return an answer that was typed about a kind of job; `60_000` and `6e4` are whole numbers, too.

    Raises:
        InvalidParameter: it is outside the limits of its field.
    """
    several = [_number(part) for part in text.split(",") if part.strip()]
    answer = several if name == "memory" else _number(text)
    try:
        read_union({name: answer}, kind)
    except InvalidSpec as error:  # it may name other fields, too
        wrong = [one.message for one in error.violations if one.pointer.split("/")[1:2] == [name]]
        if wrong:
            raise InvalidParameter(f"{name}: {wrong[0]}", field=name) from None
    return answer


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return int(value) if abs(value) < 2**53 and value == int(value) else value
    return text.strip()
