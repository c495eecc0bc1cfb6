"""`python -m website`: the folder `build/pages`, which `mkdocs build` makes the site of (`make docs` does both).

`python -m website --keep FOLDER` puts the built site beside those of earlier versions.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from factorize import __version__
from website.http_reference import reference
from website.pages import page, root_page
from website.python_reference import names

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"


def main(arguments: list[str] | None = None) -> int:
    """Write all pages anew, or keep the site that was built of them."""
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of the sites of all versions")
    given = parser.parse_args(arguments)
    if given.keep is not None:
        keep(SITE, given.keep, __version__)
        return 0
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


def keep(site: Path, folder: Path, version: str) -> None:
    """Put a site into the folder of all versions, in place of an older one of the same minor version.

    The folder's own page leads to the newest. `versions.json` is what mike writes and the theme's menu reads.
    """
    own = ".".join(version.split(".")[:2])
    shutil.rmtree(folder / own, ignore_errors=True)
    shutil.copytree(site, folder / own)
    kept = [tuple(map(int, path.name.split("."))) for path in folder.iterdir() if re.fullmatch(r"\d+\.\d+", path.name)]
    names = [f"{major}.{minor}" for major, minor in sorted(kept, reverse=True)]
    listed = [{"version": name, "title": name, "aliases": []} for name in names]
    (folder / "versions.json").write_text(json.dumps(listed) + "\n")
    lead = f'<!doctype html><meta http-equiv="refresh" content="0; url={names[0]}/index.html">'
    (folder / "index.html").write_text(f'{lead}<a href="{names[0]}/index.html">factorize {names[0]}</a>\n')


if __name__ == "__main__":
    sys.exit(main())
