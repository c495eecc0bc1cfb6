"""The picture of a comparison: each mechanism's loss, and what it costs in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factorize.api.comparing.comparison_text import name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OURS, _TAKEN, _SAMPLED = "#1f5fa8", "#c1440e", "#2a7f4f"
_LEAST_GAP = 1e-4  # smaller ones are drawn as this: an optimum would stretch the axis by many decades


def draw(table: dict[str, Any]) -> Figure:
    """Return a figure: bars of the loss above the bound (or at the privacy asked for), and loss against memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = table["rows"]
    figure = Figure(figsize=(14, 1.6 + 0.3 * max(10, len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    values, label, logarithmic = _values(table)
    taken = table["recommendation"]["row"] if table["recommendation"] else None
    colours = [_TAKEN if number == taken else _SAMPLED if row["sampling"] else _OURS for number, row in enumerate(rows)]
    left.barh(range(len(rows)), values, color=colours, height=0.7)
    left.set_yticks(range(len(rows)), [name_of(row) for row in rows], fontsize=8)
    left.invert_yaxis()
    _finish(left, label, logarithmic, on="x")
    right.scatter([row["noise_vectors"] for row in rows], values, c=colours, s=30, zorder=3)
    names = [row["mechanism"] + (" with redraws" if row["redraws"] else "") for row in rows]
    _annotate(right, [(row["noise_vectors"], *point) for row, *point in zip(rows, values, names, strict=True)])
    right.set_xscale("symlog", linthresh=1)
    right.set_xlim(-0.2, 2 * max([1, *(row["noise_vectors"] for row in rows)]))
    right.set_xlabel("vectors of noise state, each as long as the model")
    if table["budget"] is not None:
        right.axvline(table["budget"], color="black", lw=1, ls=":", label=f"budget, {table['budget']}")
        right.legend(fontsize=8)
    _finish(right, label, logarithmic, on="y")
    spec = table["spec"]
    workload = spec["workload"]
    reason = f"\n{table['recommendation']['reason']}" if table["recommendation"] else ""
    size = workload.get("n") or workload["shape"][1]
    figure.suptitle(
        f"{workload['kind']}, n = {size}, {spec['participation']['kind']}, objective {table['objective']}{reason}",
        fontsize=11,
    )
    return figure


def _values(table: dict[str, Any]) -> tuple[list[float], str, bool]:
    """Return what is drawn, its name, and whether the axis is logarithmic."""
    rows = table["rows"]
    if any(row["sampling"] for row in rows):
        return [row["rmse_at_privacy"] for row in rows], "root mean squared error at the privacy asked for", True
    if all(row["relative_gap"] is not None for row in rows):
        gaps = [100 * max(row["relative_gap"], _LEAST_GAP) for row in rows]
        return gaps, "loss above the certified lower bound [%], at least 0.01", True
    return [row["loss"]["objective"] for row in rows], f"objective {table['objective']}", True


def _annotate(axes: Axes, points: list[tuple[int, float, str]]) -> None:
    """Name the points that nothing with as little memory beats."""
    for x, y, text in points:
        beaten = any(other <= x and loss <= y and (other, loss) != (x, y) for other, loss, _ in points)
        if not beaten:
            axes.annotate(text, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=8)


def _finish(axes: Axes, label: str, logarithmic: bool, *, on: str) -> None:
    setter = axes.set_xlabel if on == "x" else axes.set_ylabel
    setter(label)
    if logarithmic:
        (axes.set_xscale if on == "x" else axes.set_yscale)("log")
    axes.grid(True, which="major", axis="x" if on == "x" else "both", alpha=0.3)
