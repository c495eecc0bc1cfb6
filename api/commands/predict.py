"""`factorize predict`: exact losses of a training run."""

from __future__ import annotations

from typing import Annotated, Any

from factorize.api.terminal.options import Output, StoreUrl, argument, option
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_target, read_spec_text
from factorize.errors import InvalidSpec, Violation

QuestionText = Annotated[str, argument(metavar="QUESTION", help="A path, '-' for stdin, or inline JSON.")]
About = Annotated[
    str | None,
    option("--factorization", metavar="FILE|DIGEST", help="A factor file or a stored result, for questions about one."),
]


def predict(
    question: QuestionText, factorization: About = None, store: StoreUrl = None, output: Output = OutputForm.TEXT
) -> None:
    """Answer a question about a training run: exact losses on quadratics and on regression.

    Kinds of questions and their fields are in docs/predict.md.
    """
    from factorize.predict import ask

    document = _read(question)
    found = ask(document, None if factorization is None else open_target(factorization, store)).document()
    emit(output, found, _prediction_text(found))


def _read(source: str) -> dict[str, Any]:
    from factorize.encoding import read_json

    document = read_json(read_spec_text(source))
    if not isinstance(document, dict):
        raise InvalidSpec([Violation("", "the text is JSON and no object; write {...}")])
    return document


def _prediction_text(found: dict[str, Any]) -> str:
    """The number first, then its parts and what it rests on."""
    lines = [f"{found['quantity']} {found['relation']}", f"{found['value']:.12g}", f"basis: {found['basis']}"]
    lines += [f"  {name:<34}{value:.9g}" for name, value in found["terms"].items()]
    lines += [f"assumes: {text}" for text in found["assumptions"]]
    lines += [f"note: {text}" for text in found["notes"]]
    return "\n".join([*lines, f"source: {found['source']}"])
