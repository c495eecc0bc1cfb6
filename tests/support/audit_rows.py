"""The rows of an audit log, as an auditor's own script reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sqlalchemy as sa


def rows_of(url: str | Path) -> list[dict[str, Any]]:
    """The rows of a ledger, by its URL or by its file."""
    engine = sa.create_engine(f"sqlite:///{url}" if isinstance(url, Path) else url)
    try:
        with engine.connect() as connection:
            found = connection.execute(sa.text("SELECT * FROM audit ORDER BY seq"))
            return [{**row._mapping, "detail": json.loads(row.detail)} for row in found]
    finally:
        engine.dispose()


def forbid_rows(file: Path) -> None:
    """Have a ledger on SQLite refuse every further row of the audit log."""
    engine = sa.create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(
            sa.text("CREATE TRIGGER no_rows BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no more rows'); END")
        )
    engine.dispose()
