"""The table of a comparison in Python: its rows as plain data, as text, and as a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from factorize.api.comparing.comparison_text import name_of, text


class ComparisonTable:
    """Every mechanism that fits a spec side by side, best first; the document is that of the command line and of HTTP.

    Attributes:
        document: the whole as plain data (docs/cli.md has its fields).
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each mechanism, and for each sampling that it counts on, sorted by the loss."""
        return list(self.document["rows"])

    @property
    def recommended(self) -> dict[str, Any] | None:
        """The row to take for the memory that was given, or None where no row fits."""
        chosen = self.document["recommendation"]
        return None if not chosen else dict(self.document["rows"][chosen["row"]])

    @property
    def reason(self) -> str:
        """Why that row is recommended; empty where none is."""
        chosen = self.document["recommendation"]
        return str(chosen["reason"]) if chosen else ""

    def __len__(self) -> int:
        """How many rows."""
        return len(self.document["rows"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows, best first."""
        return iter(self.rows)

    def __repr__(self) -> str:
        """The table as the command line prints it."""
        return text(self.document)

    def _repr_html_(self) -> str:
        """The table, the row to take in bold."""
        head = ("mechanism", "sampling", "rmse", "rmse at privacy", "gap %", "vectors", "s")
        chosen = self.document["recommendation"]
        marked = chosen["row"] if chosen else None
        lines = [_line(row, bold=place == marked) for place, row in enumerate(self.document["rows"])]
        names = "".join(f"<th>{name}</th>" for name in head)
        return f"<table><tr>{names}</tr>{''.join(lines)}</table><p>{escape(self.reason)}</p>"


def _line(row: dict[str, Any], *, bold: bool) -> str:
    gap, private = row["relative_gap"], row["rmse_at_privacy"]
    cells = (
        name_of(row),
        row["sampling"] or "fixed",
        f"{row['loss']['rmse']:.5g}",
        "" if private is None else f"{private:.5g}",
        "" if gap is None else f"{100 * gap:.3g}",
        row["noise_vectors"],
        f"{row['seconds']:.2f}",
    )
    return f"<tr{' style=font-weight:bold' if bold else ''}>{''.join(f'<td>{escape(str(c))}</td>' for c in cells)}</tr>"
