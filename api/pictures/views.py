"""Further pictures, each of one or more factorizations: matrices side by side, noise coefficients, loss against memory.

`matrices` is Figure 6 of Koloskova et al. 2023 (B of DP-MF beside B of DP-MF+), `coefficients` the time and frequency
panels of Figure 1 of Choquette-Choo et al. 2024, and `memory` what few buffers cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from factorize.api.pictures.cell_grid import whole_matrix
from factorize.api.pictures.factorization_plot import draw, draw_heatmap
from factorize.api.questions.comparison import name_of
from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter
from factorize.format.labels import describe_part
from factorize.noise.source import source_of
from factorize.numbers.scalars import check_choice
from factorize.samplings import SAMPLINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from factorize.factors.factorization import Factorization
    from factorize.format.tensors import MatrixName


VIEWS = ("overview", "matrices", "coefficients", "memory")
MAX_FACTORIZATIONS = 24
"""The most factorizations in one picture."""

_NAMES = {"C": "strategy matrix C", "C_inv": "noising matrix $C^{-1}$", "B": "decoder B"}
_STYLES = ("-", "--", "-.", ":")
_FREQUENCIES = 1 << 15
_VECTORS = "vectors of noise state, each as long as the model"


def picture(view: str, factorizations: Sequence[Factorization], matrices: Sequence[MatrixName]) -> Figure:
    """Return the figure of a view.

    Args:
        view: one of `VIEWS`.
        factorizations: one for `overview`, up to `MAX_FACTORIZATIONS` for the others.
        matrices: which ones `matrices` shows.

    Raises:
        InvalidParameter: an unknown view, or too many factorizations for it.
    """
    check_choice("view", view, VIEWS)
    most = 1 if view == "overview" else MAX_FACTORIZATIONS
    if not 1 <= len(factorizations) <= most:
        message = f"view {view!r} shows 1 to {most} factorizations, not {len(factorizations)}; draw several pictures"
        raise InvalidParameter(message, field="view")
    if view == "overview":
        return draw(factorizations[0])
    if view == "matrices":
        return _matrices(factorizations, matrices)
    return _coefficients(factorizations) if view == "coefficients" else _memory(factorizations)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _matrices(factorizations: Sequence[Factorization], matrices: Sequence[MatrixName]) -> Figure:
    """Return a figure with one row of heatmaps per factorization, each cell the entry of largest magnitude."""
    figure = _figure(6.0 * len(matrices), 5.6 * len(factorizations))
    grid = figure.subplots(len(factorizations), len(matrices), squeeze=False)
    for factorization, row in zip(factorizations, grid, strict=True):
        for name, axes in zip(matrices, row, strict=True):
            draw_heatmap(axes, whole_matrix(factorization, name), _NAMES[name])
        row[0].set_title(f"{_short(factorization)}\n{row[0].get_title()}", fontsize=10)
    return figure


def _coefficients(factorizations: Sequence[Factorization]) -> Figure:
    """Return a figure: how much of the noise drawn t steps ago is taken back now, and the same as a filter."""
    figure = _figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    for number, factorization in enumerate(factorizations):
        taps = last_step(factorization)
        style, label = _STYLES[number % len(_STYLES)], _short(factorization)
        lags = np.flatnonzero(taps[1:]) + 1
        left.plot(lags, np.abs(taps[lags]), style, marker="." if len(lags) < 40 else "", lw=1.4, label=label)
        frequencies, power = spectrum(taps)
        right.plot(frequencies, power, style, lw=1.4, label=label)
    signs = "their negative" if all((last_step(f)[1:] <= 0).all() for f in factorizations) else "absolute values"
    _logarithmic(left, "lag in steps", f"coefficient of earlier noise ({signs})", "noise coefficients over time")
    _logarithmic(right, "frequency [radians per step]", r"$|\hat B(\omega)|^2$ of the noise", "and over frequency")
    right.legend(fontsize=8, loc="best")
    return figure


def last_step(factorization: Factorization) -> np.ndarray:
    """Return the last row of C^-1 backwards: the coefficients of the noise drawn 0, 1, ... steps before, shape (n,)."""
    n = factorization.shape("C_inv")[0]
    return factorization.rows("C_inv", n - 1, n)[0, ::-1]


def spectrum(taps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return frequencies in (0, pi] and the squared modulus of the filter with these coefficients."""
    count = max(_FREQUENCIES, 1 << (len(taps) - 1).bit_length() + 1)
    power = np.abs(np.fft.rfft(taps, count)) ** 2
    frequencies = np.linspace(0, np.pi, len(power))
    kept = np.unique(np.geomspace(1, len(power) - 1, 2000).astype(int))  # even on a logarithmic axis
    return frequencies[kept], power[kept]


def _memory(factorizations: Sequence[Factorization]) -> Figure:
    """Return a figure of the gap to the certified bound against vectors of noise state, one line per mechanism."""
    figure = _figure(7.6, 5)
    axes = figure.subplots()
    families: dict[str, list[tuple[int, float]]] = {}
    for factorization in factorizations:
        gap = factorization.certificate.relative_gap
        if gap is None:
            message = f"{factorization.digest[:12]} has no certified lower bound to compare its loss with"
            raise InvalidParameter(message, field="view")
        cost = source_of(factorization).cost  # its vectors are n where the client needs all earlier ones
        family = factorization.spec.mechanism.kind + (" with redraws" if cost.redraws else "")
        families.setdefault(family, []).append((cost.vectors, 100 * gap))
    for family, points in families.items():
        at, gaps = zip(*sorted(points), strict=True)
        axes.plot(at, gaps, "-o", markersize=4, label=family)
    axes.set(xlabel=_VECTORS, ylabel="loss above the certified bound [%]", yscale="log")
    most, least = (pick(at for points in families.values() for at, _ in points) for pick in (max, min))
    if most > 50:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(-0.1 if least == 0 else 0.8, 1.5 * most)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=9)
    part = factorizations[0].spec
    axes.set_title(f"{part.workload.kind}, n = {part.workload.n}, {part.participation.kind}", fontsize=11)
    return figure


def _logarithmic(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y, xscale="log", yscale="log")
    axes.set_title(title, fontsize=11)
    axes.grid(True, which="major", alpha=0.3)


def _short(factorization: Factorization) -> str:
    """Return mechanism, and objective where it is not the mean, for legends."""
    mechanism, objective = factorization.spec.mechanism, factorization.spec.objective
    label = describe_part(mechanism.document())
    return label if objective.uniform else f"{label}, {describe_part(objective.document())}"


COLOURS = dict(zip(SAMPLINGS, cycle(("#1f5fa8", "#8a6d1d", "#2a7f4f", "#6b4c9a", "#8c564b", "#b5467a"))))
"""The colours of the samplings, each its own."""
_CHOSEN_COLOUR = "#c1440e"
_MIN_GAP = 1e-4  # smaller ones are drawn as this: an optimum would stretch the axis by many decades
_MAX_BARS = 40


def draw_comparison(table: JsonObject) -> Figure:
    """Return a figure: bars of the loss above the bound (or at the privacy asked for), and loss against memory."""
    rows = table["rows"]
    bars = range(min(len(rows), _MAX_BARS))
    figure = _figure(15, 1.6 + 0.3 * max(12, len(bars)))
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6 if table["samplings"] else 0.8))
    values, label = _values(table)
    taken = table["recommendation"]["row"] if table["recommendation"] else None
    colours = [_CHOSEN_COLOUR if number == taken else COLOURS[_sampling(row)] for number, row in enumerate(rows)]
    left.barh(bars, [values[i] for i in bars], color=[colours[i] for i in bars], height=0.7)
    left.set_yticks(bars, [_bar_name(table, rows[i]) for i in bars], fontsize=8)
    left.invert_yaxis()
    left.set(xlabel=label, **({} if table["samplings"] else {"xscale": "log"}))
    left.grid(True, which="major", axis="x", alpha=0.3)
    if len(rows) > len(bars):
        left.set_title(f"the {len(bars)} smallest of {len(rows)}", fontsize=9)
    _against_memory(right, table, values, colours)
    right.set(ylabel=label, yscale="log")
    right.grid(True, which="major", alpha=0.3)
    figure.suptitle(_title(table), fontsize=11)
    return figure


def _against_memory(axes: Axes, table: JsonObject, values: list[float], colours: list[str]) -> None:
    """Draw the points of all rows, the best of each sampling joined by a line, the budget and the bounds."""
    rows, taken = table["rows"], table["recommendation"] and table["recommendation"]["row"]
    vectors = [row["noise_vectors"] for row in rows]
    sizes = [90 if number == taken else 26 for number in range(len(rows))]
    axes.scatter(vectors, values, c=colours, s=sizes, zorder=3)
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlim=(-0.2, 2 * max([1, *vectors])), xlabel=_VECTORS)
    largest = 0.0
    for sampling in dict.fromkeys(_sampling(row) for row in rows):
        points = []
        for row, value in zip(rows, values, strict=True):
            if _sampling(row) == sampling:
                name = row["mechanism"] + (", tuned" if row["optimized_under"] else "")
                points.append((row["noise_vectors"], value, name + (" with redraws" if row["redraws"] else "")))
        label = sampling if table["samplings"] else None
        largest = max(largest, _staircase(axes, points, COLOURS[sampling], label))
    for sampling, bound in _bounds(table).items():
        text = f"lower bound, {sampling}: {bound:.4g}"
        axes.axhline(bound, color=COLOURS[sampling], lw=1.2, ls="--", label=text)
    if table["samplings"]:
        axes.set_ylim(top=1.2 * largest)  # rows that are worse with more memory need no room
    if table["budget"] is not None:
        axes.axvline(table["budget"], color="black", lw=1, ls=":", label=f"budget, {table['budget']}")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, loc="upper right")


def _staircase(axes: Axes, points: list[tuple[int, float, str]], colour: str, label: str | None) -> float:
    """Name the points that nothing with as little memory beats, and join them; return the largest loss of one."""
    best = sorted(
        (x, y, text)
        for x, y, text in points
        if not any(other <= x and loss <= y and (other, loss) != (x, y) for other, loss, _ in points)
    )
    for x, y, text in best:
        axes.annotate(text, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=8)
    if label is not None:
        axes.step([x for x, _, _ in best], [y for _, y, _ in best], where="post", color=colour, lw=1, label=label)
    return max(y for _, y, _ in best)


def _bounds(table: JsonObject) -> dict[str, float]:
    """Return the errors at the privacy that no matrix beats, by sampling, where rows are drawn at a privacy."""
    if not table["samplings"] or table["objective"] != "mean":
        return {}  # other objectives bound no root mean square
    errors = {sampling: bound["objective"] ** 0.5 for sampling, bound in table["sampled_bounds"].items()}
    fixed = next((row for row in table["rows"] if row["sampling"] is None and row["relative_gap"] is not None), None)
    if fixed is not None:
        errors["fixed"] = fixed["rmse_at_privacy"] / (1 + fixed["relative_gap"]) ** 0.5
    return errors


def _values(table: JsonObject) -> tuple[list[float], str]:
    """Return the values to draw, and their name."""
    rows = table["rows"]
    if table["samplings"]:
        return [row["rmse_at_privacy"] for row in rows], "root mean squared error at the privacy asked for"
    if all(row["relative_gap"] is not None for row in rows):
        gaps = [100 * max(row["relative_gap"], _MIN_GAP) for row in rows]
        return gaps, "loss above the certified lower bound [%], at least 0.01"
    return [row["loss"]["objective"] for row in rows], f"objective {table['objective']}"


def _sampling(row: JsonObject) -> str:
    return row["sampling"] or "fixed"


def _bar_name(table: dict[str, object], row: dict[str, object]) -> str:
    return f"{name_of(row)}, {_sampling(row)}" if table["samplings"] else name_of(row)


def _title(table: JsonObject) -> str:
    parts = ", ".join(describe_part(table["spec"][name]) for name in ("workload", "participation"))
    head = f"{parts}, objective {table['objective']}"
    if not table["recommendation"]:
        return head
    row = table["rows"][table["recommendation"]["row"]]
    if not table["samplings"]:
        return f"{head}\n{table['recommendation']['reason']}"
    numbers = f"rmse {row['rmse_at_privacy']:.4g} ({row['method']}), {row['rmse_without_secrecy']:.4g} without secrecy"
    return f"{head}\n{_bar_name(table, row)}: {numbers}, {row['noise_vectors']} vectors"


def draw_profile(document: JsonObject) -> Figure:
    """Return a figure with both curves, delta on a logarithmic axis."""
    figure = _figure(7, 5)
    axes, sampling = figure.subplots(), document["sampling"]
    epsilons = [point["epsilon"] for point in document["profile"]]
    mark = "o" if len(epsilons) < 12 else None
    known = [point["delta_without_secrecy"] for point in document["profile"]]
    axes.plot(epsilons, known, color=COLOURS["fixed"], ls="--", marker=mark, label="without amplification")
    if sampling != "fixed":
        deltas = [point["delta"] for point in document["profile"]]
        axes.plot(epsilons, deltas, color=COLOURS[sampling], marker=mark, label=sampling)
    title = f"sigma of sums {document['sigma_of_sums']:.6g}, clip norm {document['clip_norm']:g}"
    axes.set(yscale="log", xlabel="epsilon", ylabel="delta, from above", title=title)
    axes.grid(True, alpha=0.3)
    axes.legend()
    return figure
