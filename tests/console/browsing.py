"""How a browser is begun, watched and asked whether everybody can use what it shows."""

from __future__ import annotations

import shutil
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page, Request, expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IN_A_BROWSER = [
    pytest.mark.real,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH; .ci/run installs it"),
]
"""Marks of every module that shows a page."""
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

PATIENT = 60_000
"""Milliseconds for what takes a moment where nothing else runs."""
expect.set_options(timeout=PATIENT)

_OF_A_STATUS = "Failed to load resource"
"""A browser says so of each answer that is no success; what a page makes of that is what is tested."""


class Watched:
    """A page, and what it did that it must not."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        """Errors and warnings on its console, broken policies (which a browser says there) and exceptions that nothing caught."""
        self.asked: set[str] = set()
        """Origins."""
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", self._ask)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_OF_A_STATUS):
            self.said.append(message.text)

    def _ask(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob", "about"):
            self.asked.add(f"{url.scheme}://{url.netloc}")

    def check(self) -> None:
        """Raises AssertionError if it did."""
        assert self.said == []
        assert len(self.asked) <= 1, self.asked


AXE = Axe()
EVERYTHING = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
COLOURS = {"type": "rule", "values": ["color-contrast"]}
"""What another scheme of colours can change."""
PLACES = {"type": "rule", "values": ["color-contrast", "target-size", "scrollable-region-focusable", "region"]}
"""What a narrower screen can change."""


def violations(page: Page, rules: dict[str, Any]) -> list[str]:
    """What axe finds wrong with what is shown: rule, element, and why."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.axe_script)
    options = {"resultTypes": ["violations"], "runOnly": rules}
    found: dict[str, Any] = page.evaluate("options => axe.run(options)", options)
    return [
        f"{each['id']}: {node['target']} {node.get('failureSummary', '')}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def assert_accessible(page: Page) -> None:
    """For everybody, in light, in dark, and on a narrow screen, where nothing is wider than that."""
    size = page.viewport_size
    for scheme, rules in (("light", EVERYTHING), ("dark", COLOURS)):
        page.emulate_media(color_scheme=scheme)
        found = violations(page, rules)
        assert found == [], (scheme, found)
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "the page is wider than a narrow screen"
    found = violations(page, PLACES)
    assert found == [], ("narrow", found)
    page.emulate_media(color_scheme="light")
    assert size is not None
    page.set_viewport_size(size)


def sign_in(page: Page, token: str) -> None:
    """Signs in where the console asks for a token."""
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation", name="Pages").wait_for()
