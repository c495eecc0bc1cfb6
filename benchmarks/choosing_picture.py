"""Choosing in one picture: error at a privacy against memory, one line for each way to sample.

python -m benchmarks.choosing_picture        # solves two comparisons, about two minutes of one core
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

JOB: dict[str, Any] = {"n": 64, "epochs": 4, "delta": 1e-5, "dataset_size": 8000, "batch_size": 500}
EPSILONS = (2.0, 8.0)
BUDGETS = (0, 1, 4)
FILE = Path(__file__).parents[1] / "docs" / "pictures" / "choose.png"
LINES: tuple[tuple[str, tuple[str | None, ...], str, str], ...] = (
    ("public order", (None,), "#4c566a", "o"),
    ("Poisson: DP-SGD, or few bands", ("poisson", "cyclic_poisson"), "#d08770", "s"),
    ("random allocation", ("random_allocation",), "#5e81ac", "^"),
    ("balls in bins", ("balls_in_bins",), "#2e7d32", "D"),
)


def tables() -> list[dict[str, Any]]:
    """Return the comparisons, one for each epsilon."""
    import factorize

    job = {**JOB, "buffers": list(BUDGETS), "progress": False}
    return [factorize.compare("prefix", epsilon=epsilon, **job).document for epsilon in EPSILONS]


def best(rows: Sequence[Mapping[str, Any]], schemes: tuple[str | None, ...], memory: int) -> Mapping[str, Any] | None:
    """Return the row with the least error that counts on one of the schemes, within a memory."""
    fitting = [row for row in rows if row["sampling"] in schemes and row["noise_vectors"] <= memory]
    return min(fitting, key=lambda row: float(row["rmse_at_privacy"]), default=None)


def draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the tables side by side.

    Args:
        found: as plain data, one for each epsilon.
        path: file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    memories = (*BUDGETS, JOB["n"])
    figure, panels = pyplot.subplots(1, len(found), figsize=(11, 4.6))
    for panel, table, epsilon in zip(panels, found, EPSILONS, strict=True):
        for name, schemes, colour, marker in LINES:
            chosen = [best(table["rows"], schemes, memory) for memory in memories]
            points = [(place, float(row["rmse_at_privacy"])) for place, row in enumerate(chosen) if row is not None]
            panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=name)
        bound = table["lower_bound"]["objective"] ** 0.5 * _multiplier(table)
        panel.axhline(bound, color="#4c566a", linestyle=":", linewidth=1)
        told = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        panel.annotate("no matrix is below this in a public order", (2, bound), **told)
        panel.set_xticks(range(len(memories)), [str(one) for one in memories[:-1]] + [f"any\n(up to {JOB['n']})"])
        panel.set_xlabel("vectors of noise state that may be kept")
        panel.set_title(f"epsilon {epsilon:g}, delta 1e-5")
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
        panel.yaxis.set_minor_formatter(matplotlib.ticker.ScalarFormatter())
        panel.tick_params(which="both", labelsize=8)
        panel.grid(alpha=0.25, which="both")
    panels[0].set_ylabel("root mean squared error of running sums")
    panels[-1].legend(fontsize=8, loc="upper right")
    figure.suptitle("8000 examples, batches of 500, 4 epochs (64 steps): the least error within a memory", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _multiplier(table: Mapping[str, Any]) -> float:
    """Return sigma over the sensitivity in a public order, the same for all rows."""
    row = next(row for row in table["rows"] if row["sampling"] is None)
    return float(row["rmse_at_privacy"]) / float(row["loss"]["rmse"])


if __name__ == "__main__":
    draw(tables(), FILE)
