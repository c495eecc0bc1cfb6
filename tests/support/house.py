"""The house as its tests see it: our files, and the code of pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("factorize", "solvers", "api")


def files(package: str) -> list[Path]:
    """Return the files of one folder; what links lead to is no part of it."""
    return sorted((ROOT / package).rglob("*.py"))


def blocks(page: str) -> str:
    """Return the Python of a page, each line where it stands there, so that errors show the line of the page."""
    text, code = (ROOT / page).read_text(), ""
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        code += "\n" * (text.count("\n", 0, found.start(1)) - code.count("\n")) + found[1]
    return code
