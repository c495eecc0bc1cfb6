"""`python -m website`: the folder `build/pages`, which `mkdocs build` makes the site of (`make docs` does both)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from website.http_reference import reference
from website.pages import page, root_page
from website.python_reference import names

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"


def main() -> int:
    """Write all pages anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.md", "*.json"))
    for source in sorted((ROOT / "docs").rglob("*.md")):
        target = PAGES / source.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(source))
    (PAGES / "changelog.md").write_text(root_page(ROOT / "CHANGELOG.md"))
    (PAGES / "reporting.md").write_text(root_page(ROOT / "SECURITY.md"))
    shutil.copy(ROOT / "website" / "site.css", PAGES)
    made = PAGES / "reference"
    made.mkdir()
    described = json.loads((ROOT / "tests" / "contract" / "openapi.json").read_text())
    (made / "routes.md").write_text(reference(described))
    (made / "names.md").write_text(names())
    return 0


if __name__ == "__main__":
    sys.exit(main())
