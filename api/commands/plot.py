"""`factorize plot`: pictures of results."""

from __future__ import annotations

from typing import Annotated

import typer

from factorize.api.terminal.options import Output, StoreUrl, ToFile
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_target, parse_matrices, written_whole

Targets = Annotated[
    list[str],
    typer.Argument(metavar="FILE|DIGEST...", help="Factor files or stored results.", show_default=False),
]
View = Annotated[str, typer.Option("--view", help="overview, matrices, coefficients or memory.")]
Shown = Annotated[str, typer.Option("--matrices", metavar="C,C_inv,B", help="Matrices that --view matrices shows.")]


def plot(
    targets: Targets,
    to: ToFile,
    view: View = "overview",
    matrices: Shown = "C,B",
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Draw results (.png, .pdf or .svg): one overview, or several beside each other.

    The overview has C, C^-1 and the error of each query against the bound; `matrices` heatmaps, `coefficients` the
    noise over time and frequency, `memory` the loss against vectors of state.
    """
    from factorize.api.pictures.factorization_plot import check_format
    from factorize.api.pictures.views import picture

    check_format(to)
    shown = parse_matrices(matrices)
    factorizations = [open_target(target, store) for target in targets]
    figure = picture(view, factorizations, shown)
    with written_whole(to) as part:
        figure.savefig(part, dpi=130)
    digests = [factorization.digest for factorization in factorizations]
    document = {"file": str(to), "digest": digests[0], "digests": digests, "view": view}
    emit(output, document, f"{to}: picture of {', '.join(digests)}")
