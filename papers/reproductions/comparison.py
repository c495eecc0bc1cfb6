"""Comparisons that reproductions print: published beside reproduced, with standard error and verdict, and a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path("build") / "papers"


@dataclass(frozen=True)
class Row:
    """One number of a paper beside ours.

    Attributes:
        name: what it is.
        published: as printed; None where the paper prints none.
        reproduced: ours.
        error: standard error of ours, 0 for what is exact.
        tolerance: how far apart they may lie for rounding or unstated seeds, beside the confidence band.
        check: the same number by another route of ours, where nothing is published; shown in brackets.
    """

    name: str
    published: float | None
    reproduced: float
    error: float = 0.0
    tolerance: float = 0.0
    check: float | None = None

    @property
    def agrees(self) -> bool | None:
        """Return whether the published number is within tolerance and three standard errors; None without one."""
        return None if self.published is None else self._near(self.published)

    @property
    def checked(self) -> bool | None:
        """Return whether the other route leads to the same number; None where there is none."""
        return None if self.check is None else self._near(self.check)

    def _near(self, other: float) -> bool:
        return abs(other - self.reproduced) <= self.tolerance + 3 * self.error

    @property
    def text(self) -> str:
        """Return one line."""
        published = "-" if self.published is None else f"{self.published:.6g}"
        published = published if self.check is None else f"({self.check:.6g})"
        ours = f"{self.reproduced:.6g}" + (f" +- {self.error:.2g}" if self.error else "")
        verdict = {None: "", True: "agrees", False: "DIFFERS"}[self.agrees]
        verdict = {None: verdict, True: "checked", False: "CHECK FAILS"}[self.checked]
        return f"  {self.name:<52}{published:>12}{ours:>24}  {verdict}"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper about shape or order, and whether our run bears it out.

    Attributes:
        text: what is stated.
        holds: whether it does.
        tied: whether it neither holds nor fails: what is compared is too close to tell.
    """

    text: str
    holds: bool
    tied: bool = False

    @property
    def verdict(self) -> str:
        """Return the verdict in words."""
        return "holds" if self.holds else "TIE" if self.tied else "DOES NOT HOLD"


@dataclass
class Comparison:
    """The rows and claims of one reproduction, printed as they come.

    Attributes:
        name: name of the reproduction.
        title: paper and figure or table.
        quick: small sizes: whether all runs, not whether numbers agree.
        folder: folder for the JSON file and the pictures.
    """

    name: str
    title: str
    quick: bool = False
    folder: Path = FOLDER
    rows: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Print what is reproduced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        print(f"\n{self.title}{' (small sizes: numbers are not comparable)' if self.quick else ''}", flush=True)

    def heading(self, text: str) -> None:
        """Print what the next rows are."""
        print(f"\n{text}\n  {'':<52}{'published':>12}{'here':>24}", flush=True)

    def row(
        self,
        name: str,
        published: float | None,
        reproduced: float,
        *,
        error: float = 0.0,
        tolerance: float = 0.0,
        check: float | None = None,
    ) -> None:
        """Add and print one number. At small sizes there is nothing to compare it with.

        `published` is what is printed in the paper, or a formula printed there; what we derived ourselves is a `check`.
        """
        published, check = (None, None) if self.quick else (published, check)
        self.rows.append(Row(name, published, float(reproduced), error, tolerance, check))
        print(self.rows[-1].text, flush=True)

    def claim(self, text: str, holds: bool, *, tied: bool = False) -> None:
        """Add and print one statement about shape or order; one that is `tied` does not hold, and is not refuted."""
        self.claims.append(Claim(text, bool(holds) and not tied, bool(tied)))
        print(f"  {self.claims[-1].verdict}: {text}", flush=True)

    def remark(self, text: str) -> None:
        """Add and print a setting, such as a noise multiplier, or what is not run."""
        self.remarks.append(text)
        print(f"  {text}", flush=True)

    def path(self, suffix: str) -> Path:
        """Return the path of a file of this reproduction."""
        return self.folder / f"{self.name}{suffix}"

    @contextmanager
    def picture(
        self, size: tuple[float, float], panels: int = 1, *, suffix: str = ".png", **options: Any
    ) -> Iterator[Any]:
        """Yield a figure whose panels stand in a row, and write it as a picture of this reproduction."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, _ = plt.subplots(1, panels, figsize=size, layout="constrained", **options)
        yield figure
        figure.savefig(self.path(suffix), dpi=150)
        plt.close(figure)
        self.remark(f"picture: {self.path(suffix)}")

    def write(self) -> Path:
        """Write the JSON file and return its path."""
        path = self.path(".json")
        path.write_text(json.dumps(self.document(), indent=1))
        return path

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "title": self.title,
            "quick": self.quick,
            "rows": [{**vars(row), "agrees": row.agrees, "checked": row.checked} for row in self.rows],
            "claims": [vars(claim) for claim in self.claims],
            "remarks": self.remarks,
        }

    @property
    def differences(self) -> list[str]:
        """Return what neither agrees nor holds."""
        refuted = [claim.text for claim in self.claims if not (claim.holds or claim.tied)]
        return [row.name for row in self.rows if False in (row.agrees, row.checked)] + refuted


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return mean, 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)
