"""One service and one browser for each module; each test has a fresh context of the browser, which is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.rest.talk import Calls
from tests.world.service import RunningService, running_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SETTINGS = {"max_wait_ms": 1_000, "check_expected_offsets": True}


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """A service on loopback, which answers without a token."""
    with running_service(**SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def calls(service: RunningService) -> Calls:
    """What a test sets up, and looks at, over HTTP."""
    return Calls(service.url, "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """No longer than a module's: as long as it is there, an event loop runs in this thread, and no other test can begin one."""
    from playwright.sync_api import sync_playwright

    from tests.console.browsing import CHROMIUM, FLAGS

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    from tests.console.browsing import PATIENT

    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENT)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that says nothing on its console, asks no other origin and breaks no policy; a test that means to says so."""
    from tests.console.browsing import Watched

    watched = Watched(context.new_page())
    yield watched.page
    watched.check()


@pytest.fixture
def show(page: Page, service: RunningService) -> Callable[..., Page]:
    """Shows the page of the console at this address (behind the #), of this service or another one."""

    def shows(address: str = "overview", url: str = "") -> Page:
        page.goto(f"{url or service.url}/console#/{address}")
        page.locator("h1").wait_for()
        return page

    return shows
