"""Pages of the repository as pages of the site: links to what is no page lose their address and keep their words."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<!!)\[([^][]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
MOVED_PAGES = {ROOT / "CHANGELOG.md": "changelog.md", ROOT / "SECURITY.md": "reporting.md"}
"""The pages outside of `docs` that the site has, and their places in it."""


def page(source: Path) -> str:
    """Return the text of a page in `docs`."""
    up = "../" * (len(source.relative_to(DOCS).parts) - 1)

    def kept(found: re.Match[str]) -> str:
        words, target, _ = found.groups()
        there = (source.parent / target).resolve()
        if not target or ":" in target or there.is_relative_to(DOCS):
            return found[0]
        return f"[{words}]({up}{MOVED_PAGES[there]})" if there in MOVED_PAGES else words

    return _outside_of_code(kept, source.read_text())


def root_page(source: Path) -> str:
    """Return the text of a page that stands beside `docs`."""

    def moved(found: re.Match[str]) -> str:
        words, target, anchor = found.groups()
        if ":" in target:
            return found[0]
        return f"[{words}]({target.removeprefix('docs/')}{anchor or ''})" if target.startswith("docs/") else words

    return _outside_of_code(moved, source.read_text())


def _outside_of_code(change: object, text: str) -> str:
    """Change links, those in fenced code excepted."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else _LINK.sub(change, part) for i, part in enumerate(parts))  # type: ignore[call-overload]
