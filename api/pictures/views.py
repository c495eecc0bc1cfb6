"""Further pictures, each of one or more factorizations: matrices side by side, noise coefficients, loss against memory.

`matrices` is Figure 6 of Koloskova et al. 2023 (B of DP-MF beside B of DP-MF+), `coefficients` the time and frequency
panels of Figure 1 of Choquette-Choo et al. 2024, and `memory` what few buffers cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from factorize.api.pictures.cell_grid import whole_matrix
from factorize.api.pictures.factorization_plot import draw, draw_heatmap, summary
from factorize.client.noise_source import source_of
from factorize.errors import InvalidParameter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from factorize.factorization import Factorization
    from factorize.format.names import MatrixName

VIEWS = ("overview", "matrices", "coefficients", "memory")
MOST = 24
"""Factorizations in one picture."""

_NAMES = {"C": "strategy matrix C", "C_inv": "noising matrix $C^{-1}$", "B": "decoder B"}
_STYLES = ("-", "--", "-.", ":")
_FREQUENCIES = 1 << 15


def picture(view: str, factorizations: Sequence[Factorization], matrices: Sequence[MatrixName]) -> Figure:
    """Return the figure of a view.

    Args:
        view: one of `VIEWS`.
        factorizations: one for `overview`, up to `MOST` for the others.
        matrices: which ones `matrices` shows.

    Raises:
        InvalidParameter: an unknown view, or too many factorizations for it.
    """
    if view not in VIEWS:
        raise InvalidParameter(f"view {view[:20]!r} is not one of {', '.join(VIEWS)}", field="view")
    most = 1 if view == "overview" else MOST
    if not 1 <= len(factorizations) <= most:
        message = f"{len(factorizations)} factorizations where {view} shows 1 to {most}; draw several"
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
    """One row of heatmaps per factorization, each cell the entry of largest magnitude."""
    figure = _figure(6.0 * len(matrices), 5.6 * len(factorizations))
    grid = figure.subplots(len(factorizations), len(matrices), squeeze=False)
    for factorization, row in zip(factorizations, grid, strict=True):
        for name, axes in zip(matrices, row, strict=True):
            draw_heatmap(axes, whole_matrix(factorization, name), _NAMES[name])
        row[0].set_title(f"{_short(factorization)}\n{row[0].get_title()}", fontsize=10)
    return figure


def _coefficients(factorizations: Sequence[Factorization]) -> Figure:
    """Left: how much of the noise drawn t steps ago is taken back now. Right: the same as a filter."""
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
    """Gap to the certified bound against vectors of noise state, one line per mechanism."""
    figure = _figure(7.6, 5)
    axes = figure.subplots()
    families: dict[str, list[tuple[int, float]]] = {}
    for factorization in factorizations:
        gap = factorization.certificate.relative_gap
        if gap is None:
            raise InvalidParameter(
                f"{factorization.digest[:12]} has no certified lower bound to compare its loss with",
                field="view",
            )
        mechanism = factorization.spec.mechanism
        family = mechanism.kind + (" with redraws" if getattr(mechanism, "redraws", None) else "")
        families.setdefault(family, []).append((state_vectors(factorization), 100 * gap))
    for family, points in families.items():
        at, gaps = zip(*sorted(points), strict=True)
        axes.plot(at, gaps, "-o", markersize=4, label=family)
    axes.set(xlabel="vectors of noise state, each as long as the model", ylabel="loss above the certified bound [%]")
    axes.set_yscale("log")
    vectors = [at for points in families.values() for at, _ in points]
    if max(vectors) > 50:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(-0.1 if min(vectors) == 0 else 0.8, 1.5 * max(vectors))
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=9)
    part = factorizations[0].spec
    axes.set_title(f"{part.workload.kind}, n = {part.workload.n}, {part.participation.kind}", fontsize=11)
    return figure


def state_vectors(factorization: Factorization) -> int:
    """Return how many vectors the client keeps to make the noise: n where it needs all earlier ones."""
    return source_of(factorization).cost.vectors


def _logarithmic(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y, xscale="log", yscale="log")
    axes.set_title(title, fontsize=11)
    axes.grid(True, which="major", alpha=0.3)


def _short(factorization: Factorization) -> str:
    """Return mechanism, and objective where it is not the mean, for legends."""
    parts = summary(factorization).split("  ·  ")
    return parts[3] if parts[2] == "mean" else f"{parts[3]}, {parts[2]}"
