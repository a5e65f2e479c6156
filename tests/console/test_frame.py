"""The console's frame: every page is there, for everybody; who signs in; what who may see; the service goes and comes back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from oncelog import Client
from tests.access.carrying import Carrying
from tests.console.browsing import IN_A_BROWSER, Watched, assert_accessible
from tests.patience import until
from tests.rest.talk import Calls, Topic
from tests.world.certificates import Authority
from tests.world.service import RunningService, free_port, running_service

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


def test_every_page_is_shown_to_everybody_and_an_address_that_is_none_says_so(show: Show) -> None:
    for name, head in PAGES.items():
        page = show(name)
        expect(page.get_by_role("heading", level=1)).to_have_text(head)
        link = page.get_by_role("navigation", name="Pages").get_by_role("link", name=head)
        expect(link).to_have_attribute("aria-current", "page")
        expect(page).to_have_title(f"{head} · oncelog")
        expect(page.get_by_text("The console is loading")).to_have_count(0)
        assert_accessible(page)
    for name in ("nowhere", "constructor", "__proto__"):  # each object of a script has the last two
        expect(show(name).get_by_role("heading", level=1)).to_have_text("Not found")


# --- who signs in


class Locked:
    """A service that wants a token, and somebody who may everything."""

    def __init__(self, service: RunningService) -> None:
        self.url = service.url
        self.made = Calls(service.url, "").good("POST", "/v1/tokens", json={"name": "ada", "grants": ["admin"]})
        self.admin = Carrying(service.url, self.made["secret"])
        for name in ("mine", "theirs"):
            self.admin.good("PUT", f"/v1/namespaces/default/topics/{name}", json={})
        body = {"messages": ["hello"], "keys": ["k"]}
        self.admin.good("POST", "/v1/namespaces/default/topics/mine/publish", json=body)

    def token(self, name: str, *grants: str) -> str:
        return str(self.admin.make(name, *grants)["secret"])


@pytest.fixture(scope="module")
def locked() -> Iterator[Locked]:
    with running_service(max_wait_ms=1_000) as running:
        yield Locked(running)


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def kept(page: Page) -> list[Any]:
    """What the browser keeps of it: in this tab, and beyond."""
    found: list[Any] = page.evaluate(
        "[Object.values(sessionStorage), Object.values(localStorage), document.cookie, location.href]"
    )
    return found


def test_who_signs_in_stays_in_this_tab_until_he_signs_out(locked: Locked, show: Show) -> None:
    sent: list[Request] = []
    page = show(url=locked.url)
    page.on("request", lambda request: sent.append(request))
    expect(page.get_by_label("Token")).to_be_focused()
    assert_accessible(page)
    sign_in(page, locked.made["secret"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert kept(page) == [[locked.made["secret"]], [], "", f"{locked.url}/console#/overview"]
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    asked = [each for each in sent if "/v1/" in each.url]
    assert asked
    assert not [each.url for each in sent if locked.made["secret"] in each.url]
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token").wait_for()
    assert kept(page)[:3] == [[], [], ""]
    sent.clear()
    page.reload()
    page.get_by_label("Token").wait_for()
    assert [each.url for each in sent if "authorization" in each.headers] == []


def test_a_wrong_token_is_refused_and_not_kept(locked: Locked, show: Show) -> None:
    for token in ("wrong", "two words", "ünïcode"):
        page = show(url=locked.url)
        page.reload()  # the address alone leaves the page as it is
        sign_in(page, token)
        expect(page.get_by_role("alert").filter(has_text=re.compile("token", re.IGNORECASE))).to_be_visible()
        assert kept(page)[:2] == [[], []]
    assert_accessible(page)


def test_who_signs_in_sees_what_the_grants_allow_and_which_ones_are_missing(locked: Locked, show: Show) -> None:
    page = show(url=locked.url)
    sign_in(page, locked.token("reader", "read:default/mine"))
    alarms = page.get_by_role("region", name="Alarms")
    expect(alarms).to_contain_text("reader lacks the grant observe")
    page.get_by_role("region", name="Your topics").get_by_role("link", name="default/mine").click()
    expect(page.get_by_role("region", name="Log")).to_contain_text("Offsets1")
    expect(page.get_by_role("region", name="What holds it")).to_contain_text("lacks the grant operate")
    expect(page.get_by_text("theirs")).to_have_count(0)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("Type mine to go on").fill("mine")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("reader lacks the grant manage:default/mine")
    assert_accessible(page)
    page.keyboard.press("Escape")
    page.get_by_role("navigation", name="Pages of default/mine").get_by_role("link", name="Messages").click()
    expect(page.get_by_role("region", name="Messages", exact=True)).to_contain_text("hello")


def test_a_topic_that_who_signs_in_may_not_see_is_refused_in_its_panels(locked: Locked, show: Show) -> None:
    page = show("topics/default/theirs", url=locked.url)
    sign_in(page, locked.token("reader", "read:default/mine"))
    expect(page.get_by_role("region", name="Log")).to_contain_text("lacks the grant read:default/theirs")
    expect(page.get_by_role("region", name="Stable")).to_contain_text("lacks the grant read:default/theirs")


def test_a_token_that_ends_meanwhile_leads_back_to_the_sign_in(locked: Locked, show: Show) -> None:
    page = show(url=locked.url)
    made = locked.admin.make("short", "operate")
    sign_in(page, made["secret"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    locked.admin.revoke(made["id"])
    page.get_by_label("Token").wait_for()
    assert kept(page)[0] == []


def test_who_shows_a_certificate_signs_in_with_that(browser: Browser, tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    ada = ca.issue("ada", common_names=["ada"])
    with running_service(**ca.service().tls, tls_client_ca=ca.file, token="s3cret") as service:
        with Client(service.url, token="s3cret", verify=ca.file) as client:
            client.create_token("cert:ada", ["operate"])
        context = browser.new_context(
            ignore_https_errors=True,
            client_certificates=[{"origin": service.url, "certPath": ada.certificate, "keyPath": ada.key}],
        )
        watched = Watched(context.new_page())
        watched.page.goto(f"{service.url}/console")
        expect(watched.page.get_by_role("region", name="Alarms")).to_contain_text("the certificate")
        expect(watched.page.get_by_role("button", name="Sign out")).to_have_count(0)
        watched.check()
        context.close()


# --- there, gone, and seen


def test_a_service_that_goes_is_said_to_be_gone_and_comes_back_by_itself(show: Show, tmp_path: Path) -> None:
    port, store = free_port(), f"leveldb://{tmp_path / 'data'}"
    with running_service(store, port=port) as first:
        topic = Topic(first.url, "t")
        topic.publish("one")
        page = show("topics/default/t", url=first.url)
        expect(page.get_by_role("region", name="Log")).to_contain_text("Up to1")
    expect(page.get_by_text("The service does not answer")).to_be_visible()
    expect(page.get_by_role("region", name="Log")).to_contain_text("Up to1")
    assert_accessible(page)
    page.get_by_role("navigation", name="Pages of default/t").get_by_role("link", name="Messages").click()
    expect(page.get_by_role("alert").filter(has_text="unreachable")).to_be_visible()
    with running_service(store, port=port) as second:
        expect(page.get_by_role("region", name="Messages", exact=True)).to_contain_text("one")
        page.get_by_role("navigation", name="Pages of default/t").get_by_role("link", name="Topic", exact=True).click()
        Topic(second.url, "t", create=False).publish("two", "three")
        expect(page.get_by_role("region", name="Log")).to_contain_text("Up to3")
        expect(page.get_by_text("The service does not answer")).to_have_count(0)


HIDDEN = """
Object.defineProperty(Document.prototype, "hidden", { get: () => window.isHidden ?? false, configurable: true });
window.hide = (yes) => { window.isHidden = yes; document.dispatchEvent(new Event("visibilitychange")); };
"""


def test_a_tab_that_nobody_sees_asks_for_nothing(show: Show, page: Page, service: RunningService) -> None:
    Topic(service.url, "seen")
    page.add_init_script(HIDDEN)
    page.clock.install()
    show("topics/default/seen")
    expect(page.get_by_role("region", name="Log")).to_contain_text("Up to0")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def asks_again() -> None:
        until(lambda: page.title() and asked, "it asks again, while it is seen")  # what has happened is told with an answer

    page.clock.run_for(10_000)
    asks_again()
    page.evaluate("hide(true)")
    page.clock.run_for(10_000)  # what was under way is answered
    asked.clear()
    page.clock.run_for(600_000)
    assert asked == []
    page.evaluate("hide(false)")
    asks_again()


def test_how_long_ago_something_was_is_told_by_the_services_clock(show: Show, page: Page, service: RunningService) -> None:
    calls = Calls(service.url, "")
    pointer = calls.good("POST", "/v1/transactions", json={"type": "long"})["writePointer"]
    page.clock.set_fixed_time(time.time() - 3 * 86_400)
    row = show("transactions").get_by_role("row", name=str(pointer)).first
    expect(row).to_contain_text("in 25 h")  # that such a transaction may last
    assert "days" not in row.inner_text()


# --- keys, and how it looks


_LATE_EFFECTS = """
const own = window.setTimeout;
window.requestAnimationFrame = () => 0;
window.setTimeout = (run, ms, ...more) => own(run, ms === 100 ? 1500 : ms, ...more);
"""
"""Effects come after a frame, or after 100 ms where there is none (Preact): here the service has answered before."""


def test_what_is_answered_before_anybody_listens_is_shown(page: Page, show: Show) -> None:
    page.add_init_script(_LATE_EFFECTS)
    show()
    page.get_by_role("navigation", name="Pages").wait_for()


def test_all_is_reached_by_keys(show: Show) -> None:
    page = show("topics")
    page.get_by_label("Part of the name").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Part of the name")).to_be_focused()
    page.keyboard.type("a/b")
    expect(page.get_by_label("Part of the name")).to_have_value("a/b")
    opener = page.get_by_role("button", name="Create a topic")
    opener.focus()
    assert opener.evaluate("each => getComputedStyle(each).outlineStyle") == "solid", "what has the focus is seen"
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Create a topic")).to_be_visible()
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()
    page.get_by_role("link", name="Cluster").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()


def test_light_or_dark_is_as_the_system_has_it_or_as_it_is_chosen(show: Show) -> None:
    page = show()
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    switch = page.get_by_role("button", name="Theme")
    switch.click()
    assert page.evaluate(ground) == light
    page.reload()
    expect(switch).to_have_text("Theme: light")
    assert page.evaluate(ground) == light
    switch.click()
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == dark
