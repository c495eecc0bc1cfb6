"""`factorize plot`: pictures of results."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from factorize.api.terminal.options import Output, ServiceUrl, StoreUrl, ToFile, argument
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_target, parse_matrices, service_url, written_whole
from factorize.encoding import is_digest
from factorize.errors import InvalidParameter

if TYPE_CHECKING:
    from factorize.factorization import Factorization

Targets = Annotated[list[str], argument(metavar="FILE|DIGEST...", help="Factor files or stored results.")]
View = Annotated[str, typer.Option("--view", help="overview, matrices, coefficients or memory.")]
Shown = Annotated[str, typer.Option("--matrices", metavar="C,C_inv,B", help="Matrices that --view matrices shows.")]


def plot(
    targets: Targets,
    to: ToFile,
    view: View = "overview",
    matrices: Shown = "C,B",
    service: ServiceUrl = None,
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
    if service is not None:
        factorizations = [_from_service(service_url(service, store), target) for target in targets]
    else:
        factorizations = [open_target(target, store) for target in targets]
    figure = picture(view, factorizations, shown)
    with written_whole(to) as part:
        figure.savefig(part, dpi=130)
    digests = [factorization.digest for factorization in factorizations]
    document = {"file": str(to), "digest": digests[0], "digests": digests, "view": view}
    emit(output, document, f"{to}: picture of {', '.join(digests)}")


def _from_service(url: str, digest: str) -> Factorization:
    """Download a result and open it; the file goes at once, its matrices are read."""
    from factorize.client import fetch
    from factorize.factor_file import load

    if not is_digest(digest):
        raise InvalidParameter(f"{digest!r} is no digest, by which a service knows results", field="service")
    with TemporaryDirectory(prefix="factorize.plot.") as folder:
        path = Path(folder) / "factors.safetensors"
        fetch(digest, url=url, to=path)
        return load(path)
