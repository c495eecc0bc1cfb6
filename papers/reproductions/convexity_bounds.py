"""Bounds of C24's Figure 3: proven ones on the stationary loss against the condition number, for three kinds of noise.

The paper's figure has L = G = 1 and no gradient noise; its learning rate and unit are not stated, so shape and order
are compared and no values. All numbers are upper bounds per d G^2 / (2 rho), verified between grid points.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from factorize.solvers.frequency.cone import Plant
from factorize.solvers.frequency.strongly_convex import design, nu_bound, white_bound

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


def draw(rows: list[tuple[float, ...]], path: Path, conditions: Sequence[int] = CONDITIONS) -> None:
    """Write the picture: the bounds, and their ratio to DP-SGD's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for column, (name, style) in enumerate(zip(COLUMNS, ("-", "--", ":", "-."), strict=True)):
        values = [row[column] for row in rows]
        left.plot(conditions, values, style, marker=".", label=name)
        right.plot(conditions, [value / row[0] for value, row in zip(values, rows, strict=True)], style, marker=".")
    left.set(xlabel="condition number L / mu", ylabel="bound on the stationary loss\n[d G^2 / (2 rho)]")
    left.legend(frameon=False)
    right.set(xlabel="condition number L / mu", ylabel="bound / bound of DP-SGD", xscale="log", ylim=(0, 1.05))
    right.set_xticks(conditions, [str(condition) for condition in conditions])
    right.minorticks_off()
    figure.savefig(path, dpi=150)
    plt.close(figure)
