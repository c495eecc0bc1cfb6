"""A headless Chromium for the tests of the page, and a watch over what a page must not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 300_000
"""The patience in milliseconds: a loaded machine is slow, and a page that hangs is found by it all the same."""


def chromium() -> str | None:
    """Return the program, if it is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def running() -> Iterator[Browser]:
    """Run one browser."""
    from playwright.sync_api import sync_playwright

    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments, timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, what it has asked for, and what went wrong in it.

    Attributes:
        page: in a context of its own.
        url: of the service.
        requests: address and headers of each request.
        faults: violations of the policy, and errors that no script has caught.
    """

    page: Page
    url: str
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def go(self, view: str) -> None:
        """Open a view and wait for its heading."""
        self.page.goto(f"{self.url}/#/{view}")
        self.page.wait_for_selector("main h1")

    def pixels(self) -> list[list[list[int]]]:
        """Return rows of colours of the heatmap, once it is drawn."""
        self.page.wait_for_selector("canvas[data-state=done]")
        script = """() => {
            const { width, height } = document.querySelector("canvas[data-state]");
            const data = document.querySelector("canvas[data-state]").getContext("2d").getImageData(0, 0, width, height).data;
            return Array.from({ length: height }, (_, i) =>
                Array.from({ length: width }, (_, j) => Array.from(data.slice(4 * (i * width + j), 4 * (i * width + j) + 4))));
        }"""
        return self.page.evaluate(script)

    def barriers(self) -> list[Any]:
        """Return what axe finds of WCAG and good practice."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [(entry["id"], [node["target"] for node in entry["nodes"]]) for entry in found]


@contextmanager
def watched(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """Open a page in a context of its own; a violation of its policy or an uncaught error fails the test."""
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        found = Watched(page, url)
        page.on("request", lambda request: found.requests.append((request.url, request.headers)))
        page.on("pageerror", lambda error: found.faults.append(str(error)))
        page.on("console", lambda message: _note(found, message.type, message.text))
        yield found
        outside = [address for address, _ in found.requests if not address.startswith((url, "blob:", "data:"))]
        assert not found.faults and not outside, (found.faults, outside)
    finally:
        context.close()


def _note(found: Watched, kind: str, text: str) -> None:
    if kind in ("error", "warning") and not text.startswith("Failed to load resource"):  # a status that the page shows
        found.faults.append(text)
