"""The picture of a privacy profile: delta over epsilon, with the sampling and if it becomes known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factorize.api.pictures.comparison_plot import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_profile(document: dict[str, Any]) -> Figure:
    """Return a figure with both curves, delta on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes, sampling = figure.subplots(), document["sampling"]
    epsilons = [point["epsilon"] for point in document["profile"]]
    mark = "o" if len(epsilons) < 12 else None
    known = [point["delta_without_secrecy"] for point in document["profile"]]
    axes.plot(epsilons, known, color=COLOURS["fixed"], ls="--", marker=mark, label="without amplification")
    if sampling != "fixed":
        deltas = [point["delta"] for point in document["profile"]]
        axes.plot(epsilons, deltas, color=COLOURS[sampling], marker=mark, label=sampling)
    axes.set_yscale("log")
    axes.set_xlabel("epsilon")
    axes.set_ylabel("delta, from above")
    axes.grid(True, alpha=0.3)
    axes.legend()
    axes.set_title(f"sigma of sums {document['sigma_of_sums']:.6g}, clip norm {document['clip_norm']:g}")
    return figure
