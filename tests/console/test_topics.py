"""All topics, and one of them: what holds it, and what may be done with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from oncelog.errors import InvalidRequest
from oncelog_service.console.files import console_files
from oncelog_service.properties import TTL, check_properties
from oncelog_service.service import Service
from tests.console.browsing import IN_A_BROWSER, assert_accessible
from tests.patience import until
from tests.rest.talk import Calls, Topic
from tests.world.service import RunningService, running_service

pytestmark = IN_A_BROWSER

Show = Callable[..., Page]

MANY = 10_000


@pytest.fixture(scope="module")
def crowded() -> Iterator[RunningService]:
    async def fill(service: Service) -> None:
        for at in range(0, MANY, 500):
            await asyncio.gather(
                *(service.opening.topics.changes.create("crowd", f"t{each:05}", {}) for each in range(at, at + 500))
            )

    with running_service() as running:
        running.on_loop(fill)
        yield running


def test_ten_thousand_topics_are_paged_filtered_and_sorted(crowded: RunningService, show: Show) -> None:
    asked: list[str] = []
    page = show("overview", url=crowded.url)
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("link", name="Topics", exact=True).click()
    region = page.get_by_role("region", name=f"Topics ({MANY:,})")
    rows = region.get_by_role("rowheader")
    expect(rows).to_have_count(50)
    expect(rows.first).to_have_text("crowd/t00000")
    region.get_by_role("button", name="Next").click()
    expect(rows.first).to_have_text("crowd/t00050")
    region.get_by_role("button", name="Topic", exact=True).click()
    region.get_by_role("button", name="Topic", exact=True).click()
    expect(region.get_by_role("columnheader", name="Topic")).to_have_attribute("aria-sort", "descending")
    expect(rows.first).to_have_text(f"crowd/t{MANY - 1:05}")
    page.keyboard.press("/")
    page.keyboard.type("t0412")
    found = page.get_by_role("region", name=f"Topics (10 of {MANY:,})").get_by_role("rowheader")
    expect(found).to_have_count(10)
    expect(found.first).to_have_text("crowd/t04120")
    assert not [each for each in asked if "/topics/" in each], "none is opened to be shown"
    assert_accessible(page)


def test_the_page_knows_every_property_that_can_be_set() -> None:
    page = console_files()["pages/topics.js"].body.decode()
    with pytest.raises(InvalidRequest, match="is not a property of a topic") as refused:
        check_properties({"no.such": "1"})
    named = refused.value.detail.split("(")[1].split(")")[0].split(", ")
    assert TTL in named
    assert [each for each in named if f'["{each}", ' not in page] == []


def test_what_is_known_of_topics_is_listed(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "listed")
    topic.send("p", *range(12))
    topic.good("POST", "/subscriptions", json={"name": "s", "nonce": "n"})
    page = show("topics")
    cells = page.get_by_role("row", name="default/listed").get_by_role("cell")
    size = topic.stats()["bytes"]
    expect(cells.nth(1)).to_have_text(f"{size} B")
    assert cells.all_inner_texts()[:7] == ["12", f"{size} B", "0", "12", "1", "1", "12"]


def test_a_topic_is_created_with_properties_and_refused_where_they_are_wrong(calls: Calls, show: Show) -> None:
    page = show("topics")
    page.get_by_role("button", name="Create a topic").click()
    dialog = page.get_by_role("dialog", name="Create a topic")
    expect(dialog.get_by_role("button", name="Create")).to_be_disabled()
    dialog.get_by_label("Name", exact=True).fill("made")
    dialog.get_by_label("ttl").fill("soon")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("ttl")
    dialog.get_by_label("ttl").fill("3600")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics default/made")
    assert calls.good("GET", "/v1/namespaces/default/topics/made")["properties"]["ttl"] == "3600"
    expect(page.get_by_text("The topic is there.")).to_be_visible()


def test_a_topic_is_deleted_by_who_types_its_name(calls: Calls, show: Show, service: RunningService) -> None:
    Topic(service.url, "doomed").publish("one")
    page = show("topics/default/doomed")
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete default/doomed?")
    assert_accessible(page)
    dialog.get_by_label("Type doomed to go on").fill("doome")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    assert "doomed" in calls.good("GET", "/v1/namespaces/default/topics")
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_label("Type doomed to go on").fill("doomed")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    assert "doomed" not in calls.good("GET", "/v1/namespaces/default/topics")


@pytest.mark.parametrize("action", ["Delete", "Trim"])
def test_a_topic_that_is_made_anew_while_the_question_stands_stays_as_it_is(
    calls: Calls, show: Show, service: RunningService, action: str
) -> None:
    name = f"anew-{action}"
    Topic(service.url, name).publish("old")
    page = show(f"topics/default/{name}")
    page.get_by_role("button", name=action).click()
    dialog = page.get_by_role("dialog")
    calls.good("DELETE", f"/v1/namespaces/default/topics/{name}")
    topic = Topic(service.url, name)
    topic.publish("new")
    if action == "Trim":
        dialog.get_by_label("Offset, or time").fill("1")
    dialog.get_by_label(f"Type {name} to go on").fill(name)
    dialog.get_by_role("button", name=action).click()
    expect(dialog.get_by_role("alert")).to_contain_text("stale_message_id")
    assert topic.payloads() == ["new"]


def test_a_question_that_the_browser_closes_while_it_is_under_way_says_how_it_ended(show: Show, service: RunningService) -> None:
    """Chromium closes a dialog at the second Escape, whatever is said to that."""
    topic = Topic(service.url, "slow")
    page = show("topics/default/slow")
    asked: list[Route] = []
    page.route("**/topics/slow?*", lambda route: asked.append(route))
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete default/slow?")
    dialog.get_by_label("Type slow to go on").fill("slow")
    dialog.get_by_role("button", name="Delete").dblclick()
    expect(dialog.get_by_role("button", name="Cancel")).to_be_disabled()
    for _ in range(3):
        page.keyboard.press("Escape")
    expect(dialog).to_be_visible()
    until(lambda: page.title() and asked, "it is asked")  # what has happened is told with an answer
    assert len(asked) == 1, "asked twice by a double click"
    asked[0].fulfill(
        status=503, content_type="application/problem+json", body='{"code": "storage_unavailable", "detail": "not now"}'
    )
    expect(dialog.get_by_role("alert")).to_contain_text("not now")
    page.unroute("**/topics/slow?*")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog).to_have_count(0)
    assert topic.request("GET").status_code == 404


def test_a_topic_is_trimmed_to_an_offset_or_a_time(show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "long")
    topic.send("p", *range(9))
    page = show("topics/default/long")
    expect(page.get_by_role("region", name="Log")).to_contain_text("Offsets9")
    page.get_by_role("button", name="Trim").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type long to go on").fill("long")
    dialog.get_by_label("Offset, or time").fill("soon")
    dialog.get_by_role("button", name="Trim").click()
    expect(dialog.get_by_role("alert")).to_contain_text("soon is no whole number")
    dialog.get_by_label("Offset, or time").fill("4")
    dialog.get_by_role("button", name="Trim").click()
    expect(page.get_by_role("region", name="Log")).to_contain_text("From4")
    assert topic.stats()["earliestOffset"] == 4
    page.get_by_role("button", name="Trim").click()
    dialog.get_by_label("Everything before").select_option("a time")
    dialog.get_by_label("Offset, or time").fill("2999-12-31 23:59")
    dialog.get_by_label("Type long to go on").fill("long")
    dialog.get_by_role("button", name="Trim").click()
    expect(page.get_by_role("region", name="Log")).to_contain_text("From9")


def test_properties_are_replaced(calls: Calls, show: Show, service: RunningService) -> None:
    Topic(service.url, "changing", ttl="60")
    page = show("topics/default/changing")
    expect(page.get_by_role("region", name="Properties")).to_contain_text("ttl60")
    page.get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("ttl")).to_have_value("60")
    calls.good("PUT", "/v1/namespaces/default/topics/changing/properties", json={"ttl": "90"})
    dialog.get_by_label("ttl").fill("7200")
    dialog.get_by_role("button", name="Replace").click()
    expect(dialog).to_contain_text("were changed since you looked")
    page.keyboard.press("Escape")
    expect(page.get_by_role("region", name="Properties")).to_contain_text("ttl90")
    page.get_by_role("button", name="Change").click()
    expect(dialog.get_by_label("ttl")).to_have_value("90")
    dialog.get_by_label("ttl").fill("7200")
    dialog.get_by_label("transactional").fill("only")
    dialog.get_by_role("button", name="Replace").click()
    expect(page.get_by_role("region", name="Properties")).to_contain_text("transactionalonly")
    found = calls.good("GET", "/v1/namespaces/default/topics/changing")["properties"]
    assert (found["ttl"], found["transactional"]) == ("7200", "only")


def test_properties_that_nobody_touches_stay_as_they_are(show: Show) -> None:
    with running_service(cdap_clients=True) as service:
        unknown = {"empty": "", "lines": "a\nb"}
        topic = Topic(service.url, "unknown", **unknown, ttl="60", team="fleet")
        page = show("topics/default/unknown", url=service.url)
        page.get_by_role("button", name="Change").click()
        page.get_by_role("dialog").get_by_label("ttl").fill("7200")
        page.get_by_role("dialog").get_by_label("team").fill("")
        page.get_by_role("dialog").get_by_role("button", name="Replace").click()
        expect(page.get_by_role("region", name="Properties")).to_contain_text("ttl7200")
        assert topic.good("GET") == {**unknown, "ttl": "7200", "generation": "1"}


def test_what_holds_a_topic_is_said(calls: Calls, show: Show, service: RunningService) -> None:
    topic = Topic(service.url, "standing")
    topic.send("p", 0, 1)
    pointer = calls.good("POST", "/v1/transactions", json={"type": "long"})["writePointer"]
    topic.publish_under(pointer, "undecided")
    page = show("topics/default/standing")
    held = page.get_by_role("region", name="What holds it")
    expect(held).to_contain_text(f"Nothing is consumed from offset 2 on until write pointer {pointer} is ended")
    expect(held.get_by_role("cell", name="in progress")).to_be_visible()
    expect(page.get_by_role("region", name="Stable")).to_contain_text("Stable up to2")
    assert_accessible(page)
    calls.good("POST", f"/v1/transactions/{pointer}/abort", json={})
    expect(held).to_contain_text("every message is decided")


def test_a_write_pointer_of_another_service_is_ended_here_by_its_whole_number(show: Show) -> None:
    with running_service(foreign_write_pointers=True) as service:
        topic = Topic(service.url, "foreign")
        pointer = (
            time.time_ns() // 1_000_000 - 5_000
        ) * 1_000_000 + 1  # handed out elsewhere just now; a double does not hold it
        topic.publish_under(pointer, "theirs")
        page = show("topics/default/foreign", url=service.url)
        held = page.get_by_role("region", name="What holds it")
        expect(held).to_contain_text("not known here")
        held.get_by_role("button", name="Commit").click()
        dialog = page.get_by_role("dialog", name=f"Commit {pointer} on this topic?")
        dialog.get_by_role("button", name="Commit").click()
        expect(held).to_contain_text("every message is decided")
        assert topic.good("GET", "/held") == []
        assert topic.good("GET", "/rows")[0]["state"] == "committed"
