"""`factorize profile`: delta as a function of epsilon for a noise that is given, as data and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from factorize.api.commands.calibrate import (
    Adjacency,
    BatchSize,
    Bins,
    ClipNorm,
    DatasetSize,
    Sampling,
    check_sensitivity,
)
from factorize.api.terminal.options import Output, StoreUrl, Target, option
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_target, written_whole
from factorize.errors import InvalidParameter

_POINTS = 40
Sigma = Annotated[float, option("--sigma", help="Of each entry of Z, for sums.")]
Epsilons = Annotated[
    str | None, option("--epsilons", metavar="E1,E2,...", help="Default: 0.25 to 10 in steps of 0.25.")
]
Plot = Annotated[Path | None, option("--plot", help="Draw both curves: .png, .pdf or .svg.")]


def profile(
    target: Target,
    sigma: Sigma,
    sampling: Sampling = "fixed",
    epsilons: Epsilons = None,
    clip_norm: ClipNorm = 1.0,
    adjacency: Adjacency = "zero_out",
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    bins: Bins = None,
    plot: Plot = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Compute delta at many epsilons for a given noise, under a sampling and without; all hold at once.

    The sensitivity is recomputed from C first; a file that claims less exits with 4.
    """
    from factorize.accounting.privacy_profile import privacy_profile
    from factorize.accounting.sampling_scheme import SamplingOptions

    if plot is not None:
        from factorize.api.pictures.factorization_plot import check_format

        check_format(plot)
    levels = _numbers(epsilons)
    factorization = open_target(target, store)
    check_sensitivity(factorization)
    given: dict[str, Any] = {"clip_norm": clip_norm, "adjacency": adjacency}
    sizes: dict[str, Any] = {"dataset_size": dataset_size, "batch_size": batch_size, "bins": bins}
    asked = SamplingOptions(**given, **sizes, method="deterministic")
    curve = privacy_profile(factorization, sigma=sigma, epsilons=levels, sampling=sampling, asked=asked)
    document = {"sampling": sampling, "sigma_of_sums": sigma, **given, "profile": curve}
    if plot is not None:
        from factorize.api.pictures.profile_plot import draw_profile

        with written_whole(plot) as part:
            draw_profile(document).savefig(part, dpi=130)
        document["file"] = str(plot)
    emit(output, document, _text(document))


def _numbers(text: str | None) -> list[float]:
    """Read numbers between commas.

    Raises:
        InvalidParameter: one is none.
    """
    if text is None:
        return [step / 4 for step in range(1, _POINTS + 1)]
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InvalidParameter(
            f"epsilons {text[:40]!r} are no numbers between commas; give 0.5,1,2", field="epsilons"
        ) from None


def _text(document: dict[str, Any]) -> str:
    """One line per epsilon."""
    name = document["sampling"]
    shown = [f"{'epsilon':>10}  {f'delta, {name}':>22}  {'without secrecy':>18}"]
    shown += [
        f"{point['epsilon']:>10.6g}  {point['delta']:>22.6g}  {point['delta_without_secrecy']:>18.6g}"
        for point in document["profile"]
    ]
    return "\n".join(shown + ([f"{document['file']}: picture of both curves"] if "file" in document else []))
