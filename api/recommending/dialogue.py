"""The dialogue of five questions: each is asked until its answer is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from factorize.api.recommending.training_question import QUESTIONS, DialogueQuestion, check_batch, read_all
from factorize.errors import InvalidParameter

Ask = Callable[[str], str]
"""Shows a question and returns what was typed; raises `InvalidParameter` where nobody types any more."""


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
            found |= _asked(question if missing == question.names else _alone(missing), found, ask, tell)
    return found


def _alone(names: tuple[str, ...]) -> DialogueQuestion:
    return DialogueQuestion(f"Which {names[0]}?", names)


def _asked(
    question: DialogueQuestion, before: Mapping[str, Any], ask: Ask, tell: Callable[[str], None]
) -> dict[str, Any]:
    shown = f"{question.text} [{question.default}] " if question.default else f"{question.text} "
    while True:
        typed = ask(shown)  # outside: what it raises where nobody types ends the dialogue
        try:
            found = read_all(question, typed)
            if isinstance(batch := found.get("batch_size"), int):
                check_batch(before["examples"], batch)
            return dict(found)
        except InvalidParameter as error:
            tell(str(error))
