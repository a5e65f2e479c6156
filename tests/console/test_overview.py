"""The first page: alarms with where they lead, numbers, and their recent past."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.console.browsing import IN_A_BROWSER, assert_accessible
from tests.patience import PATIENCE
from tests.rest.talk import Topic
from tests.watch.test_scene import FLOOR, Day
from tests.world.clock import ManualClock
from tests.world.disk import arm
from tests.world.house import House
from tests.world.service import RunningService

pytestmark = IN_A_BROWSER

Show = Callable[..., Page]


def test_a_service_with_which_nothing_is_wrong_says_so_and_how_it_does(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "busy")
    topic.send("p", 0, 1, 2)
    page = show()
    expect(page.get_by_role("region", name="Alarms")).to_contain_text("Nothing is wrong.")
    numbers = page.get_by_role("region", name="Numbers")
    for name in ("Status", "Messages in", "Messages out", "Duplicates", "Sync p99", "Free disk", "Memory", "Connections"):
        expect(numbers.get_by_role("term").filter(has_text=re.compile(f"^{name}$"))).to_be_visible()
    expect(numbers).to_contain_text("Statusok")
    expect(page.get_by_role("region", name="Busiest topics")).to_contain_text("default/busy")
    assert_accessible(page)


def test_what_is_seen_follows_the_service_and_charts_say_it_in_words_too(service: RunningService, show: Show) -> None:
    page = show()
    memory = page.get_by_role("group", name="Memory")
    expect(memory.locator("canvas")).to_be_visible()
    expect(memory).to_contain_text(re.compile(r"resident [\d.]+ MiB, at most [\d.]+ MiB in the last \d+ samples"))
    Topic(service.url, "counted").send("p", *range(50))
    messages = page.get_by_role("group", name="Messages", exact=True)
    expect(messages).to_contain_text(re.compile(r"in [\d.]+/s, at most [1-9][\d.]*/s"))  # of the next sample


def test_an_alarm_says_what_to_do_and_leads_to_what_it_is_about(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "fenced")
    old = topic.open_producer("loader", "first")
    topic.open_producer("loader", "second")
    answer = topic.publish("late", producer="loader", sequenceIds=[0], epoch=old["epoch"])
    assert answer.status_code == 403
    page = show()
    alarm = page.get_by_role("region", name="Alarms").get_by_role("listitem").filter(has_text="loader")
    expect(alarm).to_contain_text("warning")
    assert_accessible(page)
    alarm.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Producers default/fenced")


def test_on_a_bad_day_the_first_page_names_all_four_and_the_way_out(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog_service.watch.gather._PATIENCE_SECONDS", PATIENCE)
    with House(ManualClock(), min_free_bytes=FLOOR) as house:
        day = Day(house)
        page = show(url=house.service.url)
        alarms = page.get_by_role("region", name="Alarms").get_by_role("listitem")
        expect(alarms).to_have_count(4)
        for what, mend, leads in (
            (
                f"transaction {day.pointer} of producer loader has held default/orders back for 6 min",
                "abort",
                "Topics default/orders",
            ),
            ("are free on the disk, less than twice the floor", "Delete topics that are not needed", None),
            ("1,800 messages are before subscription billing", "", "Subscriptions default/events"),
            ("producer pos of default/events was refused", "", "Producers default/events"),
        ):
            alarm = alarms.filter(has_text=what)
            expect(alarm.locator(".mend")).to_contain_text(mend)
            alarm.get_by_text("Commands").click()
            expect(alarm.get_by_label("Commands")).to_contain_text("oncelog ")
            if leads is not None:
                alarm.get_by_role("link").click()
                expect(page.get_by_role("heading", level=1)).to_have_text(leads)
                page.get_by_role("link", name="Overview").click()
        assert_accessible(page)
        day.follow(day.alarms()["topic_held"]["commands"][1])
        day.over("topic_held")
        expect(alarms).to_have_count(3)


def test_whose_store_is_closed_says_so_on_its_first_page(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog_service.service._REOPEN_SECONDS", (36_000.0,))
    with House() as house:
        house.damaged = True
        topic = house.topic
        arm(house.disk, "fails", 0)
        assert topic.publish("x").status_code == 503
        page = show(url=house.service.url)
        expect(page.get_by_role("region", name="Alarms")).to_contain_text("this write fails")
        expect(page.get_by_role("region", name="Numbers")).to_contain_text("Statusclosed")
