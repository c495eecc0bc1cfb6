"""Compare private training at equal (epsilon, delta): `python -m papers.leaderboard [DATA ...] [--mnist FOLDER] ...`.

Trains logistic regression with every system on scikit-learn's digits and on a made table, and on MNIST, Fashion-MNIST
or arrays of your own where their files are given. `network` is a small convolutional network on the digits; it needs
torch, and is run where it is named. Writes FOLDER/DATA.json; trials are kept there, so that a run that was cut off
goes on.
`--secret` trains, at other epsilons, with the batches that have to stay secret alone.
`--page` writes the tables of papers/pages/leaderboard.md and its pictures from papers/leaderboard/results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

from papers.leaderboard.leaderboard import Grid, results, run
from papers.leaderboard.leaderboard_page import write_page
from papers.leaderboard.made_table import made_table
from papers.reproductions.images import Images, load_images
from papers.reproductions.kept_results import KeptResults
from papers.reproductions.user_data import load_npz

FOLDER = Path("build") / "leaderboard"
GRIDS = {
    "digits": Grid(batch=72, epsilons=(0.1, 0.5, 2.0, 8.0), epochs=(1, 4, 16)),
    "mnist": Grid(batch=1000, epsilons=(0.1, 1.0, 8.0), epochs=(1, 4, 16)),
    "table": Grid(batch=500, epsilons=(0.1, 0.5, 2.0, 8.0), epochs=(1, 4, 16)),
    "network": Grid(
        batch=72,
        epsilons=(0.5, 2.0, 8.0),
        epochs=(4, 16),
        rates=(0.3, 1.0, 3.0, 10.0),
        model="convolutional network",
    ),
}
SECRET_CHANGES = {
    "epsilons": (1.0, 4.0, 8.0),
    "epochs": (4, 16),
    "systems": (
        "DP-SGD, Poisson batches",
        "banded, cyclic Poisson",
        "banded, b-min-sep",
        "banded, lambda_T, cyclic Poisson",
        "banded, lambda_T, b-min-sep",
    ),
}
"""The fields of a grid that `--secret` changes."""
NAMED_DATA = ("network",)
"""The data that are run only where they are named."""


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.leaderboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="DATA", help="digits, table, network, mnist, fashion, own")
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="folder of MNIST's four IDX files, .gz or not")
    parser.add_argument("--fashion", type=Path, metavar="FOLDER", help="the same of Fashion-MNIST")
    parser.add_argument(
        "--npz", type=Path, metavar="FILE", help="x_train, y_train, x_test, y_test; ten classes at most"
    )
    parser.add_argument("--quick", action="store_true", help="one point of the grid, two seeds: whether all runs")
    parser.add_argument("--secret", action="store_true", help="the systems that sample, at epsilon 1, 4 and 8")
    parser.add_argument("--page", action="store_true", help="write the page and its pictures; nothing is trained")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help="for JSON files")
    asked = parser.parse_args()
    if asked.page:
        for path in write_page():
            print(f"written: {path}")
        return
    data: dict[str, Callable[[], Images]] = {
        "digits": lambda: load_images(None, constant=True),
        "table": made_table,
        "network": lambda: load_images(None),
    }
    for name in ("mnist", "fashion"):
        folder = getattr(asked, name)
        if folder is not None:
            data[name] = lambda folder=folder: load_images(folder, constant=True)
    if asked.npz is not None:
        data["own"] = lambda: load_npz(asked.npz)
    unknown = set(asked.names) - set(data)
    if unknown:
        parser.error(f"no data {', '.join(sorted(unknown))}; use {', '.join(data)}, and give the files of others")
    for name in asked.names or [name for name in data if name not in NAMED_DATA]:
        images = data[name]()
        print(f"\n{name}: {len(images.train)} examples", flush=True)
        grid, folder = grid_for(name, images, asked.quick), asked.out
        if asked.secret:
            grid, folder = replace(grid, **SECRET_CHANGES), folder / "secret"
        path = compare(name, images, grid, folder)
        print(f"  written to {path}")


def grid_for(name: str, images: Images, quick: bool) -> Grid:
    """Return the grid of a data set."""
    size = max(1, len(images.train) // 60)
    grid = GRIDS.get(name, replace(GRIDS["mnist"], batch=size))
    one = {"epsilons": grid.epsilons[2:3], "epochs": (2,), "rates": (0.3, 1.0), "limits": (0.3, 1.0), "seeds": 2}
    return replace(grid, **one) if quick else grid


def compare(name: str, images: Images, grid: Grid, folder: Path) -> Path:
    """Run one data set and write its results."""
    folder.mkdir(parents=True, exist_ok=True)
    points = ("epsilons", "epochs", "systems", "rates", "limits")  # one trial does not depend on these
    settings = {key: value for key, value in asdict(grid).items() if key not in points}
    kept = KeptResults(folder / f"{name}.trials.json", {"examples": len(images.train), **settings})
    run(images, grid, kept, FOLDER / "solved")
    document = {"data": name, "date": date.today().isoformat(), "examples": len(images.train), "grid": asdict(grid)}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**document, "rows": results(grid, kept)}, indent=1) + "\n")
    return path


if __name__ == "__main__":
    main()
