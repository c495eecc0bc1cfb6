"""`factorize compare`: every mechanism that fits a spec, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from factorize.api.comparing.comparison_text import text
from factorize.api.terminal.interrupt import prompt_interrupt
from factorize.api.terminal.options import (
    ModelSize,
    MostSeconds,
    Output,
    ServiceUrl,
    SpecText,
    StoreUrl,
    TimeLimit,
    option,
)
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.progress import display
from factorize.api.terminal.sources import check_target, open_results, read_spec, service_url, written_whole
from factorize.errors import NotFound

if TYPE_CHECKING:
    pass

Buffers = Annotated[
    str | None,
    option(
        "--buffers",
        "--memory",
        metavar="VECTORS",
        help="Vectors of noise state that may be kept; several with commas, in one run.",
    ),
]
Bytes = Annotated[float | None, option("--bytes-per-parameter", help="The same budget in bytes (4 per number).")]
Epsilon = Annotated[float | None, option("--epsilon", help="Also the noise at this privacy.")]
Delta = Annotated[float | None, option("--delta", help="With --epsilon.")]
Dataset = Annotated[int | None, option("--dataset-size", help="With --batch-size: rows under sampling too.")]
Batch = Annotated[int | None, option("--batch-size", help="Expected examples per step.")]
Samplings = Annotated[
    list[str] | None,
    option(
        "--sampling",
        metavar="cyclic_poisson|balls_in_bins|random_allocation|poisson",
        help="What rows may count on, once for each; default: all, where sizes are given.",
    ),
]
Picture = Annotated[Path | None, option("--plot", metavar="FILE.png", help="Also draw the table.")]


def compare(
    spec: SpecText,
    buffers: Buffers = None,
    bytes_per_parameter: Bytes = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    dataset_size: Dataset = None,
    batch_size: Batch = None,
    sampling: Samplings = None,
    max_seconds: MostSeconds = None,
    seconds: TimeLimit = None,
    parameters: ModelSize = None,
    plot: Picture = None,
    service: ServiceUrl = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Solve a spec with every mechanism that fits it, and show losses, memory, time and what to take.

    With a privacy target and sampling each row states its error and noise at that privacy, for each sampling scheme;
    what loaders have to do follows. The spec's own mechanism is one row among the others. Nothing is stored.
    """
    from factorize.api.comparing.compare_request import read_request
    from factorize.api.comparing.comparison import comparison

    if plot is not None:
        from factorize.api.pictures.factorization_plot import check_format

        check_format(plot)
        check_target(plot)
    options = {
        **_memory(buffers),
        "bytes_per_parameter": bytes_per_parameter,
        "epsilon": epsilon,
        "delta": delta,
        "dataset_size": dataset_size,
        "batch_size": batch_size,
        "samplings": sampling or None,
        "max_seconds": max_seconds,
        "seconds": seconds,
        "parameters": parameters,
    }
    asked = read_spec(spec)
    given = {name: value for name, value in options.items() if value is not None}
    request = read_request({"spec": asked.document(), **given}).model_copy(update={"spec": asked})
    with prompt_interrupt(), display() as shown:
        shown.start("comparing")
        table = comparison(
            request,
            None if service else opened_store(store),
            lambda done, total, name, _: shown.count(done, total, name),
            service and service_url(service, store),
        )
        shown.finish("")
    if plot is not None:
        from factorize.api.pictures.comparison_plot import draw

        with written_whole(plot) as part:
            draw(table).savefig(part, dpi=130)
    emit(output, table, text(table) + (f"\n{plot}: picture of the table" if plot else ""))


def _memory(text: str | None) -> dict[str, Any]:
    """Return one budget as `buffers`, several as `budgets`."""
    from factorize.api.recommending.dialogue import read

    if text is None:
        return {}
    found = read("memory", text)
    return {"budgets": found} if len(found) > 1 else {"buffers": found[0]}


def opened_store(url: str | None) -> Any:
    """Return the store, for a user's own matrices; a comparison does without one."""
    try:
        return open_results(url, create=False)
    except NotFound:
        return None
