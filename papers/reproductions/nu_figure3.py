"""C24, Figure 3: proven bounds for smooth and strongly convex losses against the condition number.

The paper states neither learning rate nor unit: shape and order are compared.
"""

from __future__ import annotations

from papers.reproductions.comparison import Comparison
from papers.reproductions.convexity_bounds import COLUMNS, CONDITIONS, bounds, draw

TITLE = "Choquette-Choo et al. 2024, Figure 3: bounds for strongly convex losses, L = G = 1, no gradient noise"


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
    draw(rows, comparison.path(".png"), conditions)
    comparison.remark(f"picture: {comparison.path('.png')}")
