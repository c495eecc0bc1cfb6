"""A service that a proxy shows below a path: addresses, problems, the document and the page, behind nginx too."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import watched
from nginx_server import nginx
from servers import Client, LiveService, serving

from factorize.api.http.request_guard import HSTS_SECONDS
from factorize.client import fetch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SPEC = {"workload": {"kind": "prefix", "n": 6}, "mechanism": {"kind": "square_root"}}
PREFIX = "/tools/factorize"


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(tmp_path_factory.mktemp("below") / "store", root_path=PREFIX) as live:
        yield live


@pytest.mark.parametrize("passed_on", [PREFIX, ""])
def test_addresses_and_problems_have_the_path(below: LiveService, passed_on: str) -> None:
    problem = json.loads(below.raw(_get(f"{passed_on}/v1/factorizations/{'0' * 64}")).partition(b"\r\n\r\n")[2])
    assert problem["type"] == f"{PREFIX}/problems/not-found"
    document = json.loads(below.raw(_get(f"{passed_on}/openapi.json")).partition(b"\r\n\r\n")[2])
    assert document["servers"] == [{"url": PREFIX}]
    assert re.fullmatch(document["components"]["schemas"]["Problem"]["properties"]["type"]["pattern"], problem["type"])
    posted = below.send("POST", f"{passed_on}/v1/factorizations", {**SPEC, "workload": {"kind": "prefix", "n": 5}})
    assert posted.status == 200 or posted.headers["location"].startswith(f"{PREFIX}/v1/factorizations/")


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("said", "trusted", "expected"),
    [
        ("/a/b/", True, "/a/b"),
        ("/a", False, ""),
        ('/"><script>', True, ""),
        ("//evil.example", True, ""),
        ("/" + 300 * "a", True, ""),
    ],
)
def test_the_path_of_a_trusted_proxy_alone_is_taken(tmp_path: Path, said: str, trusted: bool, expected: str) -> None:
    with serving(tmp_path / "store", trusted_proxies=["127.0.0.1" if trusted else "192.0.2.1"]) as live:
        answer = live.get("/problems/none", {"X-Forwarded-Prefix": said})
        assert answer.json()["type"] == f"{expected}/problems/not-found"


def test_nginx_shows_the_service_below_a_path(below: LiveService, tmp_path: Path, browser: Browser) -> None:
    if shutil.which("nginx") is None and not os.environ.get("REQUIRE_NGINX"):
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    with nginx(below.url, tmp_path, PREFIX) as url:
        answer = Client(url).send("GET", f"{PREFIX}/healthz")
        assert answer.status == 200 and answer.headers["strict-transport-security"] == f"max-age={HSTS_SECONDS}"
        fetched = fetch(SPEC, url=f"{url}{PREFIX}", to=tmp_path / "f.safetensors")
        assert fetched.stat().st_size > 0
        with watched(browser, f"{url}{PREFIX}") as view:
            view.go("results")
            view.page.get_by_role("link", name=re.compile("prefix.*n=6|n=6.*prefix")).first.click()
            view.page.get_by_role("heading", name="Certificate").wait_for()
            assert not view.faults
            assert all(address.startswith(f"{url}{PREFIX}/") for address, _ in view.requests)
