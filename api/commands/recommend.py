"""`factorize compare` and `recommend`: every mechanism that fits a spec, and the one for a training job."""

import sys
from pathlib import Path
from typing import Annotated

from factorize.api import local
from factorize.api.calls import remember
from factorize.api.pictures.views import draw_comparison
from factorize.api.questions.advice import advice_text, advise, headline
from factorize.api.questions.comparison import CompareRequest, comparison, request_for, text
from factorize.api.questions.dialogue import answers, read
from factorize.api.questions.job_code import FRAMEWORKS
from factorize.api.questions.training_job import FleetRequest, Job, RecommendRequest, about, kind_of, read_job
from factorize.api.terminal.output import Shown, SpecText, argument, option, remark
from factorize.api.terminal.progress import display, prompt_interrupt
from factorize.api.terminal.sources import (
    check_picture,
    existing_results,
    read_spec,
    read_spec_text,
    results_to_fill,
    save_picture,
)
from factorize.api.terminal.spec_command import options_of
from factorize.api.terminal.targets import check_target, write_whole
from factorize.client.held_factors import look_first
from factorize.encoding import MAX_STRING, canonical_json, read_json
from factorize.errors import InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.numbers.scalars import check_choice


@options_of(CompareRequest, but=["spec", "buffers", "budgets"], flags={"samplings": "--sampling"})
def compare(
    spec: SpecText,
    buffers: Annotated[
        str | None,
        option(
            "--buffers",
            "--memory",
            metavar="VECTORS",
            help="Vectors of noise state that may be kept; several with commas, in one run.",
        ),
    ] = None,
    plot: Annotated[Path | None, option(metavar="FILE.png", help="Also draw the table.")] = None,
    service: str | None = None,
    store: str | None = None,
    *,
    fields: dict[str, object],
) -> Shown:
    """Solve a spec with every mechanism that fits it, and show losses, memory, time and what to take.

    With a privacy target and sampling each row states its error and noise at that privacy, for each sampling scheme;
    what loaders have to do follows. The spec's own mechanism is one row among the others. Nothing is stored.
    """
    check_picture(plot)
    budgets = None if buffers is None else read("memory", buffers)
    request = request_for(read_spec(spec), budgets=budgets, **fields)
    with prompt_interrupt(), display("comparing") as shown:
        # The store has a user's own matrices; a comparison does without one.
        results = None if service else existing_results(store)
        table = comparison(request, results, shown.count, service, look=look_first())
    if plot is not None:
        save_picture(draw_comparison(table), plot)
    return table, text(table) + (f"\n{plot}: picture of the table" if plot else "")


@options_of(RecommendRequest, FleetRequest, but=["workload", "objective"], flags={"samplings": "--sampling"}, kind=str)
def recommend(
    workload: Annotated[
        str | None,
        argument(
            metavar="WORKLOAD",
            help="The optimizer, with its learning rates: adamw --learning-rates cosine. Or what it sums, with its "
            "fields as options and without --n: momentum --momentum 0.9; or JSON. Default: running sums.",
        ),
    ] = None,
    code: Annotated[
        list[str] | None,
        option(metavar="torch|jax|numpy|federated|none", help="Whose lines are printed; default: all."),
    ] = None,
    to: Annotated[Path | None, option(metavar="FILE.json", help="Also write the spec.")] = None,
    service: str | None = None,
    store: str | None = None,
    *,
    fields: dict[str, object],
) -> Shown:
    """Answer which mechanism, which sampling and how much noise a training job takes, with the code that uses it.

    Asks for what no option says: examples, batch, epochs, (epsilon, delta), memory; of a federated job, with --clients,
    for clients and rounds. Its factorization is kept in the store, so that solving the spec takes no time.
    """
    shown_code = _frameworks(code)
    check_target(to)
    job = _question(fields, workload)
    remark("\n".join([headline(job), *(f"note: {note}" for note in job.notes())]))
    results = None if service is not None else results_to_fill(store)
    with prompt_interrupt(), display("comparing") as shown:

        def keep(recommended: Factorization) -> None:
            assert results is not None
            shown.note("proving and storing the one that is recommended")
            local.keep(recommended, results)
            remember(recommended)  # its code calls `factorize.solve`, which then finds it

        advice = advise(job, shown.count, service, None if results is None else keep)
    if to is not None:
        with write_whole(to) as part:
            part.write_bytes(canonical_json(advice["spec"]) + b"\n")
    kept = "" if results is None else f"\nstore       {results.url} (`factorize solve` of this spec answers from there)"
    return advice, advice_text(advice, shown_code, kept)


def _question(typed: dict[str, object], workload: str | None) -> Job:
    """Return the question whose answers are options, or typed when they are asked for."""
    kind = kind_of(typed)
    known = {name: read(name, text, kind) if isinstance(text, str) else text for name, text in typed.items()}
    parts = _about(workload)
    return read_job({**answers(kind, known, _ask, _refuse), **parts}, kind)


def _ask(shown: str) -> str | None:
    """Show a question on stderr and return the line that is typed, or None where stdin has ended."""
    sys.stderr.write(shown)
    sys.stderr.flush()
    line = sys.stdin.readline(MAX_STRING)
    if not line:
        sys.stderr.write("\n")
    return line or None


def _refuse(reason: str) -> None:
    """Show why an answer is none, if a terminal is asked again: the next line of a pipe answers the next question."""
    if not sys.stdin.isatty():
        raise InvalidParameter(reason)
    remark(reason)


def _about(workload: str | None) -> dict[str, object]:
    """Return workload and objective as plain data; see `training_job.about`."""
    if workload is None:
        return {}
    document = read_json(read_spec_text(workload if "{" in workload else f'{{"workload": {{"kind": "{workload}"}}}}'))
    if not isinstance(document, dict):
        raise InvalidParameter("the workload is JSON but not an object; write {...}", field="workload")
    return about(document if "kind" not in document else {"workload": document})


def _frameworks(code: list[str] | None) -> tuple[str, ...]:
    """Return whose code is shown.

    Raises:
        InvalidParameter: there is none of such a name.
    """
    for name in code or ():
        check_choice("code", name, (*FRAMEWORKS, "none"))
    return tuple(name for name in FRAMEWORKS if not code or name in code)
