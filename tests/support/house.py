"""The house as its tests see it: our files, and the code of pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("factorize", "solvers", "api")


def files(package: str) -> list[Path]:
    """Files of one folder; `factorize/solvers` and `factorize/api` are links to the other two, and no part of it."""
    links = [ROOT / "factorize" / name for name in ("solvers", "api")] if package == "factorize" else []
    return sorted(p for p in (ROOT / package).rglob("*.py") if not any(link in p.parents for link in links))


def blocks(page: str) -> str:
    """The Python of a page, each line where it stands there, so that errors show the line of the page."""
    text, code = (ROOT / page).read_text(), ""
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        code += "\n" * (text.count("\n", 0, found.start(1)) - code.count("\n")) + found[1]
    return code
