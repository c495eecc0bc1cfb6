"""The measured part of docs/benchmarks.md, made from the JSON files of one dated run on one machine.

`python -m benchmarks --to benchmarks/results` measures, then `python -m benchmarks.page` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import duration

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- Made by `python -m benchmarks.page` from benchmarks/results; edit neither by hand. -->"


def documents(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the runs of a folder, by name.

    Raises:
        ValueError: there is none, one is a quick run, or they come from several machines.
    """
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not found or any(document["quick"] for document in found):
        raise ValueError(f"{folder} must hold runs that are not quick; use python -m benchmarks --to {folder}")
    models = {(document["machine"]["model"], document["machine"]["cores"]) for document in found}
    if len(models) > 1:
        raise ValueError(f"{folder} holds runs of several machines, {sorted(models)}; keep those of one")
    return found


def measured(found: Sequence[dict[str, Any]]) -> str:
    """Return the generated part: the machine, and one table for each question."""
    lines = [BEGIN, "", "## Measured", "", _machine(found), ""]
    for document in found:
        lines += [f"### `{document['benchmark']}`", "", _load(document), ""]
        for heading, rows in _tables(document["rows"]):
            lines += [f"**{heading}**", ""] if heading else []
            lines += _table(rows)
    return "\n".join(lines)


def _machine(found: Sequence[dict[str, Any]]) -> str:
    machine = found[0]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    dgemm = sorted(document["machine"]["dgemm_seconds"] for document in found)
    span = f"{dgemm[0]:.3f}" if dgemm[0] == dgemm[-1] else f"{dgemm[0]:.3f} to {dgemm[-1]:.3f}"
    dates = sorted({document["date"] for document in found})
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return (
        f"{days}. {machine['cores']} cores, {machine['model']}; {versions}. "
        f"DGEMM({machine['dgemm_side']}) takes {span} s."
    )


def _load(document: dict[str, Any]) -> str:
    before, after = document["machine"]["load"][0], document["load_after"][0]
    return f"Load {before:.1f} before its run, {after:.1f} after."


def _tables(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    heading: str = ""
    kept: list[dict[str, Any]] = []
    for row in rows:
        if "heading" not in row:
            kept.append(row)
            continue
        if kept:
            yield heading, kept
        heading, kept = row["heading"], []
    if kept:
        yield heading, kept


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return tables in Markdown; problems that differ in their first words alone share a row."""
    cells = {row["problem"]: _cell(row) for row in rows if "problem" in row}
    starts: dict[str, tuple[str, ...]] = {}
    for problem in cells:
        start, _, rest = problem.partition(", ")
        starts[rest] = (*starts.get(rest, ()), start)
    layouts = list(starts.values())
    shared = {rest: names for rest, names in starts.items() if len(names) > 1 and layouts.count(names) > 1}
    lines: list[str] = []
    for names in dict.fromkeys(shared.values()):
        rests = [rest for rest, layout in shared.items() if layout == names]
        lines += _markdown(
            [("problem", *names), *((rest, *(cells[f"{name}, {rest}"] for name in names)) for rest in rests)]
        )
    others = [(problem, cell) for problem, cell in cells.items() if problem.partition(", ")[2] not in shared]
    return lines + (_markdown([("problem", "seconds"), *others]) if others else [])


def _cell(row: dict[str, Any]) -> str:
    """Return the time of a row and its ratio, unless that is to DGEMM, whose time the page states once."""
    ratio = "" if row["ratio_of"].startswith("DGEMM") else f" ({row['ratio']:.3g} {row['ratio_of']})"
    return duration(row["seconds"]) + ratio


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:], ""]


def page(text: str, found: Sequence[dict[str, Any]]) -> str:
    """Return the page with its measured part made anew."""
    return text.partition(BEGIN)[0] + measured(found)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(), documents()))


if __name__ == "__main__":
    main()
