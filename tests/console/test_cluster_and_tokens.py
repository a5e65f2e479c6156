"""Who serves what, and who may do what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.access.carrying import Carrying
from tests.cluster.instances import LEASE_SECONDS, Instances, instances
from tests.console.browsing import IN_A_BROWSER, assert_accessible, sign_in
from tests.patience import PATIENCE
from tests.postgres import postgres_server
from tests.rest.talk import Calls
from tests.world.service import running_service

pytestmark = IN_A_BROWSER

Show = Callable[..., Page]


def row(page: Page, table: str, has: Any) -> Locator:
    return page.get_by_role("table", name=table).get_by_role("row").filter(has_text=str(has))


# --- the cluster


def test_a_service_alone_with_its_store_says_so(show: Show, calls: Calls) -> None:
    page = show("cluster")
    one = page.get_by_role("region", name="One instance")
    expect(one).to_contain_text("has its store for itself")
    expect(one).to_contain_text("Statusok")
    expect(one).to_contain_text(f"Address{calls.base}")
    assert_accessible(page)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    folder = tmp_path_factory.mktemp("shown")
    with instances(postgres_server().fresh_schema(), folder, 2, lease_seconds=LEASE_SECONDS) as found:
        yield found


def test_who_serves_what_is_shown_and_a_topic_handed_over_from_any_instance(two: Instances, show: Show) -> None:
    first, second = two.all
    with two.client(retry=PATIENCE) as client:
        names = [two.topic_at(each, client) for each in (first, second)]
        client.open_subscription(names[1], "elsewhere")
        page = show("cluster", url=first.url)
        shown = page.get_by_role("table", name="Instances")
        expect(shown.get_by_role("rowheader")).to_have_count(2)
        expect(row(page, "Instances", first.url)).to_contain_text("answers here")
        table = "Who serves what"
        for name, instance in zip(names, two.all, strict=True):
            expect(row(page, table, f"default/{name}")).to_contain_text(instance.url)
        assert_accessible(page)
        page.get_by_label("Part of a topic or a URL").fill(names[1])
        expect(page.get_by_role("table", name=table).get_by_role("rowheader")).to_have_text([f"default/{names[1]}"])
        page.get_by_role("button", name=f"Hand default/{names[1]} over").click()
        dialog = page.get_by_role("dialog", name=f"Hand default/{names[1]} over?")
        expect(dialog.get_by_role("option")).to_have_text([re.compile(f"^{re.escape(first.url)} ")])
        assert_accessible(page)
        dialog.get_by_role("button", name="Cancel").click()
        assert two.holder(names[1]) is second
        page.get_by_role("button", name=f"Hand default/{names[1]} over").click()
        dialog.get_by_role("button", name="Hand over").click()
        expect(row(page, table, names[1])).to_contain_text(first.url)
        page.goto(f"{first.url}/console#/subscriptions")
        expect(row(page, "Subscriptions of all topics", names[1])).to_contain_text("elsewhere")


# --- tokens


@pytest.fixture
def fresh(context: BrowserContext) -> Iterator[Carrying]:
    """A service without any token."""
    with running_service() as running:
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=running.url)
        yield Carrying(running.url)


def make(page: Page, name: str, grants: str, days: str = "") -> Locator:
    """Fill in the dialog, which is left open where that is refused."""
    page.get_by_role("button", name="Make a token").click()
    dialog = page.get_by_role("dialog", name="Make a token")
    for label, value in (("Name", name), ("Grants", grants), ("Days until it expires", days)):
        dialog.get_by_label(label).fill(value)
    dialog.get_by_role("button", name="Make").click()
    return dialog


def test_the_first_token_locks_the_service_and_is_signed_in_with(fresh: Carrying, show: Show) -> None:
    page = show("tokens", url=fresh.base)
    expect(page.get_by_text("There is no token: whoever reaches the service may do everything.")).to_be_visible()
    page.get_by_role("button", name="Make a token").click()
    expect(page.get_by_role("dialog").get_by_label("Grants")).to_have_value("admin")
    page.keyboard.press("Escape")
    dialog = make(page, "ada", "operate")
    expect(dialog.get_by_role("alert")).to_contain_text("the first token must have the grant admin")
    dialog.get_by_label("Grants").fill("admin")
    dialog.get_by_role("button", name="Make").click()
    region = page.get_by_role("region", name="The secret of ada")
    secret = region.get_by_label("Secret").inner_text()
    assert fresh.carrying(secret).is_let_in
    assert not fresh.is_let_in
    assert_accessible(page)
    region.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("The secret is copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    region.get_by_role("button", name="Sign in with it").click()
    expect(row(page, "Tokens", "ada").get_by_role("cell")).to_have_text(
        ["admin", re.compile("ago$"), "never", re.compile("^[0-9a-f]{12}$"), "Revoke"]
    )
    expect(page.get_by_text(secret)).to_have_count(0)


def test_tokens_are_made_and_revoked_and_the_secret_is_shown_once(fresh: Carrying, show: Show) -> None:
    ada = fresh.holding("ada", "admin")
    secret = ada.make("boss", "admin")["secret"]
    page = show("tokens", url=fresh.base)
    sign_in(page, secret)
    for name, grants, days, said in (
        ("a b", "operate", "", "a principal's name has letters"),
        ("loader", "sudo", "", "not a grant: 'sudo'"),
        ("loader", "operate", "soon", "soon is no number of days"),
    ):
        dialog = make(page, name, grants, days)
        expect(dialog.get_by_role("alert")).to_contain_text(said)
        dialog.get_by_role("button", name="Cancel").click()
    assert_accessible(page)
    make(page, "loader", "write:default/load-*:loader-*  read:orders/*, operate", "30")
    region = page.get_by_role("region", name="The secret of loader")
    made = region.get_by_label("Secret").inner_text()
    (token,) = [each for each in ada.good("GET", "/v1/tokens") if each["name"] == "loader"]
    assert token["grants"] == ["write:default/load-*:loader-*", "read:orders/*", "operate"]
    assert token["expiresMs"] - token["createdMs"] == 30 * 86_400_000
    expect(row(page, "Tokens", "loader")).to_contain_text("in 30 days")
    assert made not in page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, location.href, document.title])")
    region.get_by_role("button", name="I have it").click()
    expect(page.get_by_text(made)).to_have_count(0)
    make(page, "cert:spark.example.org", "read:default/*")
    expect(page.get_by_role("region", name="Token cert:spark.example.org is made")).to_contain_text("no secret of its own")
    expect(row(page, "Tokens", "cert:spark")).to_contain_text("certificate")
    assert fresh.carrying(made).is_let_in
    row(page, "Tokens", token["id"]).get_by_role("button", name="Revoke").click()
    dialog = page.get_by_role("dialog", name=f"Revoke token {token['id']} of loader?")
    dialog.get_by_role("button", name="Revoke").click()
    expect(row(page, "Tokens", token["id"])).to_have_count(0)
    assert not fresh.carrying(made).is_let_in
    row(page, "Tokens", "boss").get_by_role("button", name="Revoke").click()  # one's own
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Sign in").wait_for()


def test_who_may_not_is_told_which_grant_is_missing(fresh: Carrying, show: Show) -> None:
    secret = fresh.holding("ada", "admin").make("reader", "read:*/*")["secret"]
    page = show("tokens", url=fresh.base)
    sign_in(page, secret)
    expect(page.get_by_role("region", name="Tokens")).to_contain_text("reader lacks the grant admin")
    expect(page.get_by_role("button", name="Make a token")).to_have_count(0)
    assert_accessible(page)
    page.goto(f"{fresh.base}/console#/cluster")
    expect(page.get_by_role("region", name="Instances")).to_contain_text("reader lacks the grant observe")
