"""The console's frame: every page is there, for everybody; who signs in; the service goes and comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.console.browsing import IN_A_BROWSER, assert_accessible

pytestmark = IN_A_BROWSER

Show = Callable[..., Page]

PAGES = {
    "overview": "Overview",
    "topics": "Topics",
    "messages": "Messages",
    "producers": "Producers",
    "subscriptions": "Subscriptions",
    "transactions": "Transactions",
    "atomic": "Atomic commits",
    "cluster": "Cluster",
    "tokens": "Tokens",
}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_shown_to_everybody(name: str, show: Show) -> None:
    page = show(name)
    expect(page.get_by_role("heading", level=1)).to_have_text(PAGES[name])
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name=PAGES[name])).to_have_attribute(
        "aria-current", "page"
    )
    assert_accessible(page)
