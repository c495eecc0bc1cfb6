"""The page's files: what they may load, and that nothing in them leads elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from servers import LiveService

CONSOLE = Path(__file__).parents[3] / "api/http/console"
STATIC = sorted((CONSOLE / "static").iterdir())


def test_the_page_is_a_shell_that_loads_files_of_its_own(live_service: LiveService) -> None:
    page = live_service.get("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    loaded = re.findall(r'(?:src|href)="(page/[^"]+)"', page.body.decode())
    assert {path.rsplit(".", 1)[1] for path in loaded} == {"svg", "css", "js"}
    for path in loaded:
        assert live_service.get(f"/{path}").status == 200


def test_the_policy_lets_no_inline_script_and_no_other_site_in(live_service: LiveService) -> None:
    page = live_service.get("/")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'", "'script'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert (
        live_service.get("/page/main.js").headers["content-security-policy"] == page.headers["content-security-policy"]
    )
    text = page.body.decode()
    assert not re.search(r"<script[^>]*>[^<]|<style| style=| on\w+=", text)


@pytest.mark.parametrize("path", STATIC, ids=lambda path: path.name)
def test_a_file_names_no_other_site_and_makes_no_markup(path: Path, live_service: LiveService) -> None:
    answer = live_service.get(f"/page/{path.name}")
    assert (answer.status, answer.body) == (200, path.read_bytes())
    assert live_service.get(f"/page/{path.name}", {"If-None-Match": answer.headers["etag"]}).status == 304
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(
        r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
    )
    assert len(text.splitlines()) <= 210
    for module in re.findall(r'^(?:import|export) .*from "\./([^"]+)"', text, re.MULTILINE):
        assert (CONSOLE / "static" / module).exists(), module


def test_what_is_no_file_of_the_page_is_not_found(live_service: LiveService) -> None:
    for name in ("nothing.js", "page.html", "..%2fpage.html", "__init__.py"):
        live_service.get(f"/page/{name}").problem(404, "not-found")


def test_a_key_is_kept_for_a_tab_and_sent_in_a_header_only() -> None:
    """Whoever names the key is one file, and it makes a header of it."""
    named = [
        path.name for path in STATIC if "sessionStorage" in path.read_text() or "Authorization" in path.read_text()
    ]
    assert named == ["key.js"]
    assert not [path.name for path in STATIC if re.search("localStorage|document.cookie", path.read_text())]
