"""`factorize predict` and `factorize plan`: the papers' promises about a run, and its full parameter set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from factorize.api.terminal.interrupt import prompt_interrupt
from factorize.api.terminal.options import Output, StoreUrl
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_target, read_spec_text
from factorize.errors import ConditionNotMet, InvalidParameter, InvalidSpec, Violation

QuestionText = Annotated[
    str, typer.Argument(metavar="QUESTION", help="A path, '-' for stdin, or inline JSON.", show_default=False)
]
RequestText = Annotated[
    str, typer.Argument(metavar="REQUEST", help="A path, '-' for stdin, or inline JSON.", show_default=False)
]
Compared = Annotated[
    bool, typer.Option("--compare", help="Also find the mechanism and sampling with the smallest error.")
]
Memory = Annotated[
    int | None,
    typer.Option("--memory", help="With --compare: vectors of noise state that may be kept.", show_default=False),
]
About = Annotated[
    str | None,
    typer.Option(
        "--factorization",
        metavar="FILE|DIGEST",
        help="A factor file or a stored result, for questions about one.",
        show_default=False,
    ),
]


def predict(
    question: QuestionText, factorization: About = None, store: StoreUrl = None, output: Output = OutputForm.TEXT
) -> None:
    """Answer a question about a training run: the papers' bounds, and exact losses on quadratics.

    Kinds of questions and their fields are in docs/predict.md.
    """
    from factorize.predict import ask

    document = _read(question)
    found = ask(document, None if factorization is None else open_target(factorization, store)).document()
    emit(output, found, _prediction_text(found))


def plan(
    request: RequestText,
    compare: Compared = False,
    memory: Memory = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Turn a data set, a privacy target and a training system into steps, noise, step sizes and a spec.

    Systems: dp_ftrl, dp_srg, accelerated_srgd, dp_skgd, mu2; their fields are in docs/predict.md.
    """
    from factorize.plan import plan as make

    _ = store  # taken as by every command; a plan reads and writes nothing
    found = make(_read(request)).document()
    if compare:
        found["recommended"] = _recommended(found, memory)
    emit(output, found, _plan_text(found))


def _recommended(found: dict[str, Any], memory: int | None) -> dict[str, Any]:
    """Return the row of the comparison to take, with its reason and what the loader has to do.

    Raises:
        InvalidParameter: the plan has nothing to compare.
        ConditionNotMet: no mechanism fits the memory.
    """
    from factorize.api.comparing.child_comparison import comparison
    from factorize.api.comparing.compare_request import read_request

    if found["comparison"] is None:
        raise InvalidParameter(
            f"the plan of {found['system']} has no comparison: that takes a spec, batches and adjacency zero_out; "
            "leave --compare out",
            field="compare",
        )
    kept = {} if memory is None else {"buffers": memory}
    with prompt_interrupt():
        table = comparison(read_request(found["comparison"] | kept), None, lambda *_: None)
    chosen = table["recommendation"]
    if chosen is None:
        raise ConditionNotMet(f"no mechanism keeps {memory} vectors or fewer; allow more memory", field="memory")
    row = table["rows"][chosen["row"]]
    loader = next(one["loader"] for one in table["samplings"] if one["sampling"] == (row["sampling"] or "fixed"))
    return {**row, "reason": chosen["reason"], "loader": loader}


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


def _plan_text(found: dict[str, Any]) -> str:
    """Parameters, noise, spec, predictions, notes."""
    from factorize.encoding import canonical_json

    lines = [f"system {found['system']}"]
    for part in ("parameters", "noise"):
        lines += ["", part] + [f"  {name:<24}{_short(value)}" for name, value in found[part].items()]
    if found["spec"] is not None:
        lines += ["", "spec, for `factorize solve`", f"  {canonical_json(found['spec']).decode()}"]
    if "recommended" in found:
        best = found["recommended"]
        lines += ["", f"recommended: {best['reason']}", f"  loader: {best['loader']}", f"  {best['next_command']}"]
    elif found["comparison"] is not None:
        lines += ["", "--compare finds the mechanism and the sampling with the smallest error at this privacy"]
    for name, prediction in found["predictions"].items():
        lines += ["", f"{name}: {prediction['quantity']} {prediction['relation']} {prediction['value']:.6g}"]
        lines += [f"  ({prediction['basis']}; {prediction['source']})"]
    return "\n".join([*lines, *(f"note: {text}" for text in found["notes"])])


def _short(value: Any) -> str:
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
