"""The measured part of papers/pages/leaderboard.md and its picture, made from the kept results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from papers.leaderboard.systems import NO_PRIVACY, SYSTEMS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "papers" / "leaderboard" / "results"
PAGE = ROOT / "papers" / "pages" / "leaderboard.md"
PICTURE = ROOT / "papers" / "pages" / "pictures" / "leaderboard.png"
BEGIN = "<!-- Made by `python -m papers.leaderboard --page` from papers/leaderboard/results; edit neither by hand. -->"
TITLES = {
    "digits": "scikit-learn's digits",
    "mnist": "MNIST",
    "network": "digits, convolutional network",
    "table": "A made table",
    "fashion": "Fashion-MNIST",
    "own": "your own data",
}
"""The titles, in the order of the page."""

Row = dict[str, Any]


def documents(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the results of a folder, in the order of TITLES, and then those of `--secret`.

    Raises:
        ValueError: there is none.
    """
    places, found = list(TITLES), []
    for name in ("*.json", "secret/*.json"):
        read = [json.loads(path.read_text()) | {"secret": "/" in name} for path in folder.glob(name)]
        found += sorted(read, key=lambda document: places.index(document["data"]))
    if not found:
        raise ValueError(f"{folder} holds no results; run python -m papers.leaderboard --out {folder}")
    return found


def best(rows: Iterable[Row]) -> Row:
    """Return the row with the best training accuracy, by which rates are chosen, too."""
    return max(rows, key=lambda row: float(row["training"]))


def names(document: dict[str, Any]) -> list[str]:
    """Return the systems of a data set in the order of the list, that without privacy last."""
    found = dict.fromkeys(row["system"] for row in document["rows"])
    places = [system.name for system in SYSTEMS if system.name in found]
    return [*places, *(name for name in found if name not in (*places, NO_PRIVACY)), NO_PRIVACY]


def over_epochs(document: dict[str, Any], name: str, epsilon: float) -> Row | None:
    """Return a system's row at one epsilon, with the number of epochs that the rule chooses."""
    rows = [row for row in document["rows"] if row["system"] == name and row["epsilon"] in (epsilon, None)]
    return best(rows) if rows else None


def at_epochs(document: dict[str, Any], name: str, epsilon: float, epochs: int) -> Row | None:
    """Return a system's row at one epsilon and number of epochs."""
    return over_epochs({"rows": [row for row in document["rows"] if row["epochs"] == epochs]}, name, epsilon)


def measured(found: Sequence[dict[str, Any]]) -> str:
    """Return the generated part: for each data set one table over all epochs, and one for each number of epochs."""
    lines = [BEGIN, ""]
    for document in found:
        grid = document["grid"]
        title = TITLES[document["data"]] + (", sampled batches" if document.get("secret") else "")
        lines += [f"## {title}", "", _sentence(document), *([versus(document)] if document.get("secret") else []), ""]
        lines += ["Each cell has the number of epochs in brackets.", ""]
        chosen = [[over_epochs(document, name, one) for one in grid["epsilons"]] for name in names(document)]
        lines += _table(names(document), grid["epsilons"], chosen, epochs=True)
        for epochs in sorted({row["epochs"] for row in document["rows"]}):
            rows = [[at_epochs(document, name, one, epochs) for one in grid["epsilons"]] for name in names(document)]
            lines += [f"**{epochs} epoch{'s' if epochs > 1 else ''}**", ""]
            lines += _table(names(document), grid["epsilons"], rows, epochs=False) + _absent(document, epochs)
    return "\n".join(lines).rstrip() + "\n"


def versus(document: dict[str, Any]) -> str:
    """Return in how many cells b-min-sep is ahead of each other row of its objective, and of how many by two errors."""
    rows = {(row["system"], row["epochs"], row["epsilon"]): row for row in document["rows"]}
    said = []
    for mine in ("banded, lambda_T, b-min-sep", "banded, b-min-sep"):
        for other in (mine.replace("b-min-sep", "cyclic Poisson"), "DP-SGD, Poisson batches"):
            pairs = [(row, rows.get((other, *at))) for (name, *at), row in rows.items() if name == mine]
            gaps = [(a["mean"] - b["mean"], math.hypot(a["error"], b["error"])) for a, b in pairs if b]
            ahead, clear, behind = (sum(map(test, gaps)) for test in TESTS)
            if gaps:
                said.append(
                    f"`{mine}` is ahead of `{other}` in {ahead} of {len(gaps)} cells, by two errors of the difference "
                    f"in {clear}, and as far behind in {behind}."
                )
    return "\n".join(said)


TESTS: tuple[Callable[[tuple[float, float]], bool], ...] = (
    lambda gap: gap[0] > 0,
    lambda gap: gap[0] > 2 * gap[1],
    lambda gap: gap[0] < -2 * gap[1],
)
"""The tests of a difference and its error: ahead, clearly ahead, clearly behind."""


def _absent(document: dict[str, Any], epochs: int) -> list[str]:
    """Return a sentence on what was not run at a number of epochs."""
    run = {row["system"] for row in document["rows"] if row["epochs"] == epochs}
    missing = [name for name in document["grid"]["systems"] if name not in run]
    return [f"Not run with {epochs} epoch{'s' if epochs > 1 else ''}: {'; '.join(missing)}.", ""] if missing else []


def _sentence(document: dict[str, Any]) -> str:
    grid = document["grid"]
    model = grid.get("model", "logistic regression")
    rates = ", ".join(f"{rate:g}" for rate in grid["rates"])
    private = [row for row in document["rows"] if row["epsilon"]]
    low, high = (sum(row["rate"] == row["tried"][end] for row in private) for end in (0, 1))
    least, most = (pick(row["tried"][end] for row in private) for end, pick in ((0, min), (1, max)))
    further = f"; where the best was at an end, {least:g} to {most:g}"
    wider = least < grid["rates"][0] or most > grid["rates"][-1]
    return (
        f"{document['date']}.\n{model[0].upper()}{model[1:]}, {document['examples']} training examples, batches of "
        f"{grid['batch']}, delta {grid['delta']:g}, clip norm {grid['clip_norm']:g}, {grid['seeds']} seeds.\nRates "
        f"{rates}{further if wider else ''}.\nOf {len(private)} chosen rates {high} are the largest that was tried, "
        f"and {low} the smallest."
    )


def _table(names: Sequence[str], epsilons: Sequence[float], rows: list[list[Row | None]], *, epochs: bool) -> list[str]:
    tops = [
        max((row["mean"] for row in column if row and row["epsilon"]), default=None)
        for column in zip(*rows, strict=True)
    ]
    lines = ["| test accuracy, % | " + " | ".join(f"epsilon {one:g}" for one in epsilons) + " |"]
    lines.append("| --- " * (len(epsilons) + 1) + "|")
    for name, cells in zip(names, rows, strict=True):
        shown = [_cell(cell, top, epochs=epochs) for cell, top in zip(cells, tops, strict=True)]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return [*lines, ""]


def _cell(row: Row | None, top: float | None, *, epochs: bool) -> str:
    """Return mean and standard error, the best of a column in bold."""
    if row is None:
        return ""
    text = f"{row['mean']:.2f} +- {row['error']:.2f}" + (f" ({row['epochs']})" if epochs else "")
    return f"**{text}**" if row["mean"] == top else text


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw test accuracy at each epsilon with standard errors, a panel for each data set, epochs chosen by the rule."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    size = (6.8 * columns, 4.8 * rows + 0.8)
    figure, panels = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for panel in panels.flat[len(found) :]:
        panel.remove()
    for panel, document in zip(panels.flat, found, strict=False):
        _panel(panel, document)
    for first in panels[:, 0]:
        first.set_ylabel("test accuracy, %")
    lines = {name: line for panel in panels.flat for line, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines.keys(), fontsize=8, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(panel: Any, document: dict[str, Any]) -> None:
    """Draw the points of one data set, side by side at each epsilon so that none hides another."""
    epsilons, shown = document["grid"]["epsilons"], [name for name in names(document) if name != NO_PRIVACY]
    free = over_epochs(document, NO_PRIVACY, epsilons[0])
    if free:
        panel.axhline(free["mean"], color="0.6", linewidth=1, label=NO_PRIVACY)
    for name in shown:
        rows = [over_epochs(document, name, epsilon) for epsilon in epsilons]
        beside = (shown.index(name) - (len(shown) - 1) / 2) * POINTS_WIDTH / len(shown)
        points = [(place + beside, row["mean"], row["error"]) for place, row in enumerate(rows) if row]
        where, means, errors = zip(*points, strict=True)
        panel.errorbar(where, means, errors, label=name, linestyle="none", markersize=6, capsize=2, **look(name))
    for place in range(1, len(epsilons)):
        panel.axvline(place - 0.5, color="0.85", linewidth=1)
    panel.set(xlabel="epsilon", title=TITLES[document["data"]], xlim=(-0.5, len(epsilons) - 0.5))
    panel.set_xticks(range(len(epsilons)), [f"{one:g}" for one in epsilons])
    panel.grid(alpha=0.3, axis="y")


LOOKS = {
    "DP-SGD, fixed order": ("#000000", "o"),
    "DP-SGD, Poisson batches": ("#f58231", "s"),
    "DP-SGD, random allocation": ("#e0b000", "D"),
    "DP-GD, full batch": ("#8c8c8c", "^"),
    "tree, full Honaker": ("#9a6324", "v"),
    "banded inverse square root": ("#00a9c7", "P"),
    "BLT, 4 buffers": ("#4363d8", "*"),
    "buffered, 4 vectors": ("#3cb44b", "X"),
    "optimum": ("#000075", "<"),
    "optimum, momentum, lambda_T": ("#e6194b", ">"),
    "banded, cyclic Poisson": ("#f032e6", "d"),
    "banded, b-min-sep": ("#800000", "p"),
    "banded, lambda_T, cyclic Poisson": ("#b38cff", "H"),
    "banded, lambda_T, b-min-sep": ("#ff9999", "8"),
    "BLT, 2 buffers, balls in bins": ("#006400", "h"),
}
"""The colour and marker of every system, each its own."""
POINTS_WIDTH = 0.84
"""The width that the points of one epsilon take, where epsilons are 1 apart."""


def look(name: str) -> dict[str, str]:
    """Return colour and marker of a system; a hollow marker counts on secret batches."""
    colour, marker = LOOKS[name]
    secret = next(one for one in SYSTEMS if one.name == name).sampling != "fixed"
    return {"color": colour, "marker": marker, "markerfacecolor": "white" if secret else colour}


def page(text: str, found: Sequence[dict[str, Any]]) -> str:
    """Return the page with its measured part made anew."""
    return text.partition(BEGIN)[0] + measured(found)


def write_page(folder: Path = RESULTS, to: Path = PAGE, picture: Path = PICTURE) -> tuple[Path, Path]:
    """Write the page and its picture."""
    found = documents(folder)
    to.write_text(page(to.read_text(), found))
    draw([document for document in found if not document["secret"]], picture)
    return to, picture
