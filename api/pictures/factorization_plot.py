"""The picture of a factorization: C, C^-1, and the error of each query against the certified bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorize.api.pictures.cell_grid import CellGrid, whole_matrix
from factorize.errors import InvalidParameter
from factorize.factors.certificate import Certificate
from factorize.factors.sensitivity import sensitivity_of
from factorize.format.labels import describe_spec
from factorize.format.quantities import at_least, at_most
from factorize.structures.toeplitz import ToeplitzMatrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from factorize.factors.factorization import Factorization

FORMATS = (".png", ".pdf", ".svg")
MAX_QUERIES = 2048
_BLOCK_BYTES = 1 << 26
_LEAST_SHOWN = 1e-4
_EMPTY_COLOUR = "#eeeeee"
_OUR_COLOUR, _BASELINE_COLOUR, _BOUND_COLOUR = "#1f5fa8", "#9a9a9a", "#c1440e"


def check_format(path: Path) -> None:
    """Refuse a file name whose suffix is no picture format.

    Raises:
        InvalidParameter: see above.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidParameter(f"the picture's name {path.name!r} must end in one of {', '.join(FORMATS)}")


def draw(factorization: Factorization) -> Figure:
    """Return a figure with heatmaps of C and C^-1, the error of each query, and the certificate's numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9.4), layout="constrained")
    (left, right), (below_left, below_right) = figure.subplots(2, 2, height_ratios=(1.3, 1))
    draw_heatmap(left, whole_matrix(factorization, "C"), "strategy matrix C")
    draw_heatmap(right, whole_matrix(factorization, "C_inv"), "noising matrix $C^{-1}$")
    curve = error_curve(factorization)
    _beside_independent_noise(below_left, curve)
    _beside_bound(below_right, curve, factorization)
    figure.suptitle(title(factorization), fontsize=12)
    return figure


def title(factorization: Factorization) -> str:
    """Return the question, and below it the certified numbers."""
    certificate = factorization.certificate
    loss, sensitivity = certificate.loss, certificate.sensitivity
    kind = "exact" if sensitivity.exact else "upper bound"
    gap = "no bound known" if certificate.relative_gap is None else f"gap to the bound {certificate.relative_gap:.1e}"
    numbers = (
        f"sensitivity {at_most(sensitivity.value)} ({kind})",
        f"RMSE {loss.rmse:.6g}",
        f"max error {loss.max_error:.6g}",
        gap,
        factorization.digest[:12],
    )
    return f"{describe_spec(factorization.spec.document())}\n{'  ·  '.join(numbers)}"


def draw_heatmap(axes: Axes, grid: CellGrid, name: str) -> None:
    """Draw a reduced matrix with its colour bar."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    cells, (rows, columns) = grid.values(), grid.rows.shape
    norm, colours, extend = _scale(cells)
    shown = axes.imshow(
        np.ma.masked_invalid(cells),
        norm=norm,
        cmap=colormaps[colours].with_extremes(bad=_EMPTY_COLOUR),
        interpolation="nearest",
        extent=(0.5, columns + 0.5, rows + 0.5, 0.5),
    )
    axes.set_title(f"{name}{grid.note}", fontsize=11)
    axes.set(xlabel="column (step)", ylabel="row (step)")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    bar = axes.figure.colorbar(shown, ax=axes, shrink=0.92, pad=0.02, extend=extend)
    if colours == "viridis":
        _plain_ticks(bar.ax)
    else:
        bar.set_ticks(_symmetric_ticks(norm.linthresh, norm.vmax))


def _symmetric_ticks(least: float, top: float) -> list[float]:
    """Return zero and the powers of ten on both sides, less those that would stand on top of the zero."""
    powers = range(math.ceil(math.log10(2 * least)), math.floor(math.log10(top)) + 1)
    sizes = [10.0**power for power in powers] or [top]
    return [-size for size in reversed(sizes)] + [0.0, *sizes]


def _plain_ticks(axes: Axes) -> None:
    """Label a logarithmic y axis with 0.1, 0.2, 0.5 in place of powers, also where it spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    steps = (1.0,) if high > 300 * low else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _scale(pixels: np.ndarray) -> tuple[Any, str, str]:
    """Return norm, colours and which end of the colour bar is open.

    They are logarithmic for a matrix without negative entries, else logarithmic on both sides of a linear part around
    zero; entries below 1e-4 of the largest look alike.
    """
    from matplotlib.colors import LogNorm, SymLogNorm

    values = pixels[np.isfinite(pixels)]
    sizes = np.abs(values[values != 0])
    top, least = float(sizes.max()), float(sizes.min())
    floor = min(max(least, top * _LEAST_SHOWN), top / 10)
    if values.min() >= 0:
        return LogNorm(floor, top, clip=True), "viridis", "min" if values.min() < floor else "neither"
    return SymLogNorm(floor, vmin=-top, vmax=top), "RdBu_r", "neither"


@dataclass(frozen=True)
class ErrorCurve:
    """Errors of the queries that were looked at.

    Attributes:
        queries: their numbers from 1, shape (q,).
        ours: standard deviations for noise of standard deviation 1 times the sensitivity, shape (q,).
        independent: the same for C = I, scaled to its own sensitivity, shape (q,).
    """

    queries: np.ndarray
    ours: np.ndarray
    independent: np.ndarray


def error_curve(factorization: Factorization, *, queries: int = MAX_QUERIES) -> ErrorCurve:
    """Compute the error of each query, or of evenly spaced ones where there are more than `queries`."""
    spec, m = factorization.spec, factorization.spec.workload.m
    chosen = np.unique(np.linspace(0, m - 1, min(m, queries)).round().astype(int))
    identity = ToeplitzMatrix(np.ones(1), spec.workload.n)
    ours = _row_norms(lambda a, b: factorization.rows("B", a, b), chosen, spec.workload.n)
    workload = _row_norms(spec.workload.row_block, chosen, spec.workload.n)
    return ErrorCurve(
        queries=chosen + 1,
        ours=Certificate.of(factorization.manifest).sensitivity.value * ours,
        independent=sensitivity_of(identity, spec.participation).value * workload,
    )


def _row_norms(rows: Callable[[int, int], np.ndarray], chosen: np.ndarray, n: int) -> np.ndarray:
    """Return the 2-norms of the chosen rows, reading neighbours together."""
    step = max(1, _BLOCK_BYTES // (8 * n))
    norms = np.empty(len(chosen))
    runs = np.split(np.arange(len(chosen)), np.flatnonzero(np.diff(chosen) > 1) + 1)
    for run in runs:
        for first in range(0, len(run), step):
            part = run[first : first + step]
            norms[part] = np.linalg.norm(rows(int(chosen[part[0]]), int(chosen[part[-1]]) + 1), axis=1)
    return norms


def bound_per_query(factorization: Factorization) -> float | None:
    """Return the certified lower bound as a root mean square over the queries; None where it is not one.

    Only the mean objective bounds the plain average of the errors; `weighted` bounds it under its weights.
    """
    bound, objective = Certificate.of(factorization.manifest).lower_bound, factorization.spec.objective
    if bound is None or not (objective.uniform or objective.listed):
        return None
    m = factorization.spec.workload.m
    weights = objective.row_weights(m)
    return None if weights is None else math.sqrt(bound.objective / (objective.scale(m) * float(weights.sum())))


def _beside_independent_noise(axes: Axes, curve: ErrorCurve) -> None:
    axes.plot(curve.queries, curve.independent, color=_BASELINE_COLOUR, lw=1.6, label="independent noise, C = I")
    axes.plot(curve.queries, curve.ours, color=_OUR_COLOUR, lw=2.0, label="this factorization")
    axes.set_yscale("log")
    _plain_ticks(axes)
    _finish(axes, curve, "error of each query, at noise multiplier 1")


def _beside_bound(axes: Axes, curve: ErrorCurve, factorization: Factorization) -> None:
    rmse, bound = factorization.certificate.loss.rmse, bound_per_query(factorization)
    axes.plot(curve.queries, curve.ours, color=_OUR_COLOUR, lw=2.0, label="this factorization")
    axes.axhline(rmse, color=_OUR_COLOUR, lw=1.2, ls="--", label=f"its root mean square, {rmse:.5g}")
    if bound is not None:
        label = f"lower bound on the root mean square, {bound:.5g}"
        axes.axhline(bound, color=_BOUND_COLOUR, lw=2.4, ls=(0, (1, 2)), label=label)
    lowest, highest = min(float(curve.ours.min()), bound or rmse), float(curve.ours.max())
    room = 0.08 * highest + 0.25 * (highest - lowest)
    axes.set_ylim(max(0.0, lowest - 0.3 * room), highest + room)  # the legend goes above the curve
    note, stated = "", factorization.certificate.lower_bound
    if stated is None:
        note = " (none known)"
    elif bound is None:  # it is no line in the picture
        kind, objective = factorization.spec.objective.kind, factorization.certificate.loss.objective
        note = f"\n{kind} objective {objective:.6g}, its lower bound {at_least(stated.objective)}"
    _finish(axes, curve, f"the same against the certified bound{note}")


def _finish(axes: Axes, curve: ErrorCurve, name: str) -> None:
    axes.set(xlim=(1, max(2, curve.queries[-1])), xlabel="query", ylabel="standard deviation")
    axes.set_title(name, fontsize=11)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=9, loc="best")
