"""The built site: it asks no other site for anything, and five answers are two clicks away.

`make docs` builds the site and runs this. A link that leads nowhere ends the build, as `validation` in mkdocs.yml has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from website.__main__ import keep

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
LOADS = {("script", "src"), ("img", "src"), ("img", "srcset"), ("source", "src"), ("iframe", "src"), ("object", "data")}
LOADING = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
"""Relations of a `link` for which a browser asks at once."""

QUESTIONS = {
    "Which mechanism should I use?": ["buffered_linear", "momentum", "banded", "dense"],
    "My loader shuffles every epoch: which noise do I need?": ["fixed_epochs", "min_sep", "balls_in_bins"],
    "How do I report epsilon?": ["delta", "zero_out", "digest", "statement"],
    "How do I resume after a crash?": ["state_dict", "seed", "load_state_dict"],
    "How do I train on many GPUs?": ["rank", "seed", "fully_shard"],
}
"""The questions of the first page, and words that an answer has."""


class Page(HTMLParser):
    """What a page loads, where each text of a link leads, and what stands under each anchor."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words: dict[str, str] = {}
        self.linked: dict[str, str] = {}
        self._level: dict[str, int] = {}
        self._open: list[str] = []
        self._link = self._skipped = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.loads += [value for name, value in own.items() if (tag, name) in LOADS]
        if tag == "link" and LOADING & set(own.get("rel", "").split()):
            self.loads.append(own["href"])
        if tag == "a" and "href" in own:
            self._link = own["href"]
        if "id" in own:
            level = int(tag[1]) if re.fullmatch("h[1-6]", tag) else 9
            self._open = [name for name in self._open if self._level[name] < level] if level < 9 else self._open
            self.words.setdefault(own["id"], "")
            if level < 9:
                self._level[own["id"]] = level
                self._open.append(own["id"])
        self._skipped = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._link = "" if tag == "a" else self._link
        self._skipped = ""

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        for name in self._open:
            self.words[name] += data
        if self._link:
            self.linked[" ".join(data.split())] = self._link


@cache
def parsed(path: Path) -> Page:
    return Page(path)


def outside(address: str) -> bool:
    return bool(urlsplit(address).scheme or urlsplit(address).netloc) and not address.startswith("data:")


def test_no_page_asks_another_site_for_anything() -> None:
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 20, "make docs builds the site"
    for path in pages:
        assert not [address for address in parsed(path).loads if outside(address)], path
    for path in SITE.rglob("*.css"):
        asked = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", path.read_text())
        assert not [address for address in asked if outside(address)], path


def test_what_loads_from_elsewhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<link rel="stylesheet" href="https://a.example/x.css"><img src="//b.example/y"><a href="https://c.example">c</a>'
    )
    assert [address for address in Page(page).loads if outside(address)] == ["https://a.example/x.css", "//b.example/y"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_five_questions_are_answered_within_two_clicks(question: str) -> None:
    start = parsed(SITE / "index.html")
    address = start.linked[question]
    assert not outside(address)
    file, _, anchor = address.partition("#")
    answer = parsed(SITE / file).words[anchor]
    assert not [word for word in QUESTIONS[question] if word not in answer], answer


def test_what_is_made_from_code_is_there() -> None:
    names, routes = (parsed(SITE / "reference" / f"{name}.html") for name in ("names", "routes"))
    assert {"factorize.api.calls.solve", "factorize.client.held_factors.load"} <= set(names.words)
    assert {"post-v1factorizations", "spec", "problems"} <= set(routes.words)
    assert {"certified", "factorization", "service=None,"} <= set(names.words["factorize.api.calls.solve"].split())


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_second_build_is_the_same_bytes(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = re.search(r"^BUILD_SITE = (.*?[^\\])\n", makefile, re.MULTILINE | re.DOTALL)
    assert told is not None
    command = told[1].replace("\\\n", "").replace("$$", "$").replace("$(SITE)", ".venv-docs")
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run(f"{command} --site-dir {tmp_path}/site", shell=True, cwd=ROOT, env=environment, check=True)
    assert digests(tmp_path / "site") == digests(SITE)


def test_sites_of_all_versions_stand_side_by_side(tmp_path: Path) -> None:
    site, sites = tmp_path / "site", tmp_path / "sites"
    for version in ("0.9.1", "0.10.0", "0.10.2"):
        site.mkdir(exist_ok=True)
        (site / "index.html").write_text(version)
        keep(site, sites, version)
    assert [one["version"] for one in json.loads((sites / "versions.json").read_text())] == ["0.10", "0.9"]
    assert [(sites / name / "index.html").read_text() for name in ("0.9", "0.10")] == ["0.9.1", "0.10.2"]
    assert "0.10/index.html" in (sites / "index.html").read_text()
    assert '"provider": "mike"' in (SITE / "index.html").read_text()
