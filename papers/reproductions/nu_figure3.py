"""C24, Figure 3: proven bounds for smooth and strongly convex losses against the condition number.

The paper's figure has L = G = 1 and no gradient noise; its learning rate and unit are not stated, so shape and order
are compared and no values. All numbers are upper bounds per d G^2 / (2 rho), verified between grid points.
"""

from __future__ import annotations

from collections.abc import Sequence

from factorize.solvers.frequency.cone import Plant
from factorize.solvers.frequency.strongly_convex import design, nu_bound, white_bound
from papers.reproductions.comparison import Comparison

TITLE = "Choquette-Choo et al. 2024, Figure 3: bounds for strongly convex losses, L = G = 1, no gradient noise"


CONDITIONS = (2, 4, 8, 16, 32, 64, 128)
LEARNING_RATE = 1.0
MULTIPLES = (0.1, 0.3, 1.0, 3.0)
COLUMNS = ("DP-SGD", "nu = eta mu", "best nu tried", "optimised")


def bounds(condition: float) -> tuple[float, ...]:
    """Return the four bounds at one condition number."""
    plant = Plant(LEARNING_RATE, 1 / condition, 1.0)
    nus = {
        multiple: nu_bound(plant, multiple * plant.width).upper for multiple in MULTIPLES if multiple * plant.width < 1
    }
    best = design(plant, tolerance=1e-6, report=lambda _round, _gain: None)
    return white_bound(plant).upper, nus[1.0], min(nus.values()), best.bound.upper


def draw(comparison: Comparison, rows: list[tuple[float, ...]], conditions: Sequence[int]) -> None:
    """Write the picture: the bounds, and their ratio to DP-SGD's."""
    with comparison.picture((9, 3.6), 2) as figure:
        left, right = figure.axes
        for column, (name, style) in enumerate(zip(COLUMNS, ("-", "--", ":", "-."), strict=True)):
            values = [row[column] for row in rows]
            left.plot(conditions, values, style, marker=".", label=name)
            right.plot(conditions, [value / row[0] for value, row in zip(values, rows, strict=True)], style, marker=".")
        left.set(xlabel="condition number L / mu", ylabel="bound on the stationary loss\n[d G^2 / (2 rho)]")
        left.legend(frameon=False)
        right.set(xlabel="condition number L / mu", ylabel="bound / bound of DP-SGD", xscale="log", ylim=(0, 1.05))
        right.set_xticks(conditions, [str(condition) for condition in conditions])
        right.minorticks_off()


def run(comparison: Comparison) -> None:
    """Print the bounds by condition number and draw them."""
    conditions = CONDITIONS[:2] if comparison.quick else CONDITIONS
    comparison.remark("learning rate 1; proven upper bounds per d G^2 / (2 rho)")
    rows = []
    for condition in conditions:
        comparison.heading(f"condition number {condition}")
        rows.append(bounds(condition))
        for name, value in zip(COLUMNS, rows[-1], strict=True):
            comparison.row(name, None, value)
    comparison.claim("nu-DP-FTRL is below DP-SGD", all(row[1] < row[0] for row in rows))
    comparison.claim("optimised DP-FTRL is below nu-DP-FTRL", all(row[3] < row[2] for row in rows))
    pairs = list(zip(rows, rows[1:], strict=False))
    comparison.claim(
        "the absolute gap between DP-SGD and nu-DP-FTRL grows with the condition number",
        all(later[0] - later[1] > first[0] - first[1] for first, later in pairs),
    )
    comparison.claim(
        "optimised DP-FTRL grows more slowly than nu-DP-FTRL (nu = eta mu), and that more slowly than DP-SGD",
        all(later[3] / first[3] < later[1] / first[1] < later[0] / first[0] for first, later in pairs),
    )
    draw(comparison, rows, conditions)
