"""Producers and subscriptions: how far each has come and is behind, why a message was dropped, and what may be done with them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from oncelog.wire.requests import PublishRequest
from oncelog_service.service import Service
from tests.console.browsing import IN_A_BROWSER, assert_accessible
from tests.rest.talk import Calls, Topic, assert_problem
from tests.world.service import RunningService, running_service

pytestmark = IN_A_BROWSER

Show = Callable[..., Page]

LARGEST = 2**63 - 1
MANY = 1_450


def row(page: Page, table: str, head: str) -> Locator:
    """The row of a table whose head begins so."""
    return page.get_by_role("table", name=table).get_by_role("row").filter(has=page.get_by_role("rowheader", name=head))


def subscription(topic: Topic, name: str, **fields: Any) -> Any:
    return topic.good("POST", "/subscriptions", json={"name": name, "nonce": f"open {name}", **fields})


# --- producers


def test_producers_are_shown_with_how_far_each_has_come(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "flights")
    topic.publish("m")
    topic.send("loader:1@host=a", 3, LARGEST)
    topic.open_producer("strict", "n", gaps="refuse")
    given = topic.open_producer(None, "n")["name"]
    page = show("producers")
    page.get_by_role("link", name="default/flights").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Producers default/flights")
    cells = row(page, "Producers", "loader:1@host=a").get_by_role("cell")
    expect(cells).to_have_text([f"{LARGEST:,}", f"{LARGEST:,}", "2", re.compile("ago"), "–", "allowed", "WhyForget"])
    expect(row(page, "Producers", "strict").get_by_role("cell")).to_have_text(["–", "–", "–", "–", "1", "refused", "WhyForget"])
    expect(row(page, "Producers", given).get_by_role("rowheader")).to_contain_text("assigned")
    topic.send("late", 7)
    expect(row(page, "Producers", "late")).to_contain_text("7")  # by itself
    page.keyboard.press("/")
    page.keyboard.type("stri")
    expect(page.get_by_role("table", name="Producers").get_by_role("rowheader")).to_have_text(["strict"])
    assert_accessible(page)


def test_it_is_said_why_a_sequence_id_is_dropped_by_keys_alone(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "dropped")
    topic.send("p", 5, 9, LARGEST - 1)
    page = show("producers/default/dropped")
    row(page, "Producers", "p").get_by_role("button", name="Why").press("Enter")
    why = page.get_by_role("region", name="Why was a message dropped?")
    expect(why.get_by_label("Producer")).to_have_value("p")
    number = why.get_by_label("Sequence id")
    expect(number).to_be_focused()
    expect(number).to_have_value(str(LARGEST - 1))
    number.press("Enter")
    expect(why).to_contain_text(f"duplicate A message of p with sequence id {LARGEST - 1:,}")
    for typed, said in (("9", "is stored at offset 1"), ("7", "duplicate"), (str(LARGEST), "new A message")):
        number.fill(typed)
        number.press("Enter")
        expect(why).to_contain_text(said)
    number.fill("9")
    number.press("Enter")
    expect(why.get_by_role("link", name="1", exact=True)).to_have_attribute(
        "href", "#/messages/default/dropped?from=offset&value=1"
    )
    assert_accessible(page)
    number.fill(str(LARGEST + 1))
    number.press("Enter")
    expect(why.get_by_role("alert")).to_contain_text("invalid_request")


def test_a_producer_is_forgotten_by_who_types_its_name(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "forgetful")
    topic.send("p@1", 5)
    topic.send("q", 1)
    page = show("producers/default/forgetful")
    forget = row(page, "Producers", "p@1").get_by_role("button", name="Forget")
    forget.click()
    dialog = page.get_by_role("dialog", name="Forget producer p@1 of default/forgetful?")
    expect(dialog).to_contain_text("up to sequence id 5")
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert topic.producer("p@1")["lastPersisted"] == 5
    forget.click()
    go = dialog.get_by_role("button", name="Forget")
    expect(go).to_be_disabled()
    dialog.get_by_label("Type p@1 to go on").fill("p@1")
    go.click()
    expect(row(page, "Producers", "p@1")).to_have_count(0)
    expect(row(page, "Producers", "q")).to_have_count(1)
    assert_problem(topic.request("GET", "/producers/p@1"), 404, "producer_not_found")


def test_of_many_producers_the_first_are_shown_and_more_on_demand(show: Show, service: RunningService) -> None:
    Topic(service.url, "crowd")

    async def fill(service: Service) -> None:
        log = await service.opening.topics.logs.open("default", "crowd")
        names = (f"p{each:04}" for each in range(MANY))
        await asyncio.gather(*(log.publish(PublishRequest([b"m"], name, sequence_ids=[1])) for name in names))

    service.on_loop(fill)
    page = show("producers/default/crowd")
    expect(page.get_by_role("heading", name="Producers (200 and more)")).to_be_visible()
    page.get_by_label("Part of the name").fill("p1449")
    expect(page.get_by_text("None of the first 200 has this in its name; there are more.")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_role("heading", name="Producers (1,200 and more)")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_role("heading", name=f"Producers ({MANY:,})")).to_be_visible()
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)
    expect(page.get_by_role("table", name="Producers").get_by_role("rowheader")).to_have_text(["p1449"])
    page.get_by_label("Part of the name").fill("nobody")
    expect(page.get_by_text("No name has this in it.")).to_be_visible()
    show("overview")
    page = show("producers/default/crowd?name=p1449")  # as an alarm leads there
    expect(page.get_by_role("heading", name="Producers (200 and more)")).to_be_visible()
    expect(page.get_by_role("table", name="Producers").get_by_role("rowheader")).to_have_text(["p1449"])


def test_a_subscription_far_behind_the_first_is_shown_to_who_comes_for_it(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "queue")
    for each in range(201):
        topic.good("POST", "/subscriptions", json={"name": f"s{each:04}", "nonce": "n"})
    page = show("subscriptions/default/queue?name=s0200")
    expect(page.get_by_role("table", name="Subscriptions").get_by_role("rowheader")).to_have_text(["s0200"])
    show("overview")
    page = show("subscriptions/default/queue?name=nobody")
    expect(page.get_by_text("None of the first 200 has this in its name; there are more.")).to_be_visible()


# --- subscriptions


@pytest.fixture(scope="module")
def lagging() -> Iterator[RunningService]:
    """Subscriptions of several topics: one is far behind, one is held up, one has lost messages, one is done."""
    with running_service(max_wait_ms=1_000) as running:
        far, held, done = (Topic(running.url, name) for name in ("far", "held", "done"))
        for topic in (far, held, done):
            topic.publish(*map(str, range(40)))
        subscription(far, "reports")
        subscription(held, "mails", start={"offset": 38})
        held.publish_under(Calls(running.url, "").good("POST", "/v1/transactions", json={"type": "long"})["writePointer"], "x")
        subscription(done, "index", start={"at": "latest"})
        subscription(done, "old")
        done.request("POST", "/trim", json={"beforeOffset": 30})
        done.good("POST", "/subscriptions/old/seek", json={"to": {"offset": 3}, "nonce": "n"})
        yield running


def test_subscriptions_of_all_topics_are_shown_who_lags_most_first(show: Show, lagging: RunningService) -> None:
    page = show("subscriptions", url=lagging.url)
    table = page.get_by_role("table", name="Subscriptions of all topics")
    expect(table.get_by_role("rowheader")).to_have_text(["reports", "old", "mails", "index"])
    cells = {
        each: row(page, "Subscriptions of all topics", each).get_by_role("cell") for each in ("reports", "old", "index", "mails")
    }
    ago = re.compile(" ago$")
    spent = re.compile(r"^[\d.]+ (µs|ms|s|min)$")
    pointer = re.compile(r"^\d{19}$")
    ends = "MoveDelete"
    expect(cells["reports"]).to_have_text(["default/far", "40", spent, ago, "0", "40", "0", "1", "–", ends])
    expect(cells["old"]).to_have_text(["default/done", "10", spent, "not yet", "3", "40", "27", "2", "–", ends])
    expect(cells["mails"]).to_have_text(["default/held", "3", spent, ago, "38", "41", "0", "1", pointer, ends])
    expect(cells["index"]).to_have_text(["default/done", "0", "–", ago, "40", "40", "0", "1", "–", ends])
    expect(page.get_by_text("3 with a lag")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("Part of the name").fill("held/")
    expect(table.get_by_role("rowheader")).to_have_text(["mails"])
    table.get_by_role("link", name=pointer).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"^Transactions \d{19}$"))
    expect(page.get_by_role("region", name="What topics hold back of it")).to_contain_text("default/held")


def test_a_subscription_is_moved_anywhere_and_its_consumer_fenced(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "moving")
    topic.publish("a", "b", "c", "d")
    subscription(topic, "s-1.x", start={"offset": 1})
    page = show("subscriptions/default/moving")
    move = row(page, "Subscriptions", "s-1.x").get_by_role("button", name="Move")
    dialog = page.get_by_role("dialog", name="Move subscription s-1.x of default/moving?")

    def moved(to: str, value: str = "") -> None:
        dialog.get_by_role("combobox").select_option(to)
        dialog.get_by_label("Offset, or time").fill(value)
        dialog.get_by_role("button", name="Move").click()

    def cursor() -> Any:
        return topic.good("GET", "/subscriptions/s-1.x")["cursor"]

    move.click()
    expect(dialog).to_contain_text("It stands at offset 1.")
    assert_accessible(page)
    for wrong, said in (("", "is no whole number"), ("soon", "is no whole number"), ("99", "offset_out_of_range")):
        moved("an offset", wrong)
        expect(dialog.get_by_role("alert")).to_contain_text(said)
    moved("a time", "never")
    expect(dialog.get_by_role("alert")).to_contain_text("is no time")
    assert cursor() == 1
    moved("an offset", "3")
    expect(dialog).to_have_count(0)
    assert cursor() == 3
    assert_problem(topic.request("POST", "/subscriptions/s-1.x/receive", json={"epoch": 1}), 403, "consumer_fenced")
    expect(row(page, "Subscriptions", "s-1.x")).to_contain_text("not yet")
    for to, value, at in (
        ("the oldest message", "", 0),
        ("the end", "", 4),
        ("a time", "2001-01-01 00:00", 0),
        ("a time", "2999-01-01", 4),
    ):
        move.click()
        moved(to, value)
        expect(dialog).to_have_count(0)
        assert cursor() == at


def test_a_subscription_is_deleted_by_who_types_its_name(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "ending")
    for name in ("keep", "drop"):
        subscription(topic, name)
    page = show("subscriptions")
    table = "Subscriptions of all topics"
    row(page, table, "drop").get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete subscription drop of default/ending?")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_label("Type drop to go on").fill("drop")
    dialog.get_by_role("button", name="Delete").click()
    expect(row(page, table, "drop")).to_have_count(0)
    assert [each["name"] for each in topic.good("GET", "/subscriptions")] == ["keep"]


def test_an_alarm_leads_to_the_one_subscription_or_producer_that_it_is_about(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "alarmed")
    for name in ("slow", "quick"):
        subscription(topic, name)
        topic.send(f"by:{name}", 1)
    page = show()
    for about, table in (({"subscription": "slow"}, "Subscriptions"), ({"producer": "by:slow"}, "Producers")):
        where = {"namespace": "default", "topic": "alarmed", **about}
        address = page.evaluate("about => import('/console/pages/overview.js').then((page) => page.pageOf(about))", where)
        page.goto(f"{service.url}/console{address}")
        expect(page.get_by_role("table", name=table).get_by_role("rowheader")).to_have_text([*about.values()])
