"""The first page: alarms with where they lead, numbers, and their recent past."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.console.browsing import IN_A_BROWSER, assert_accessible
from tests.rest.talk import Topic
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


def test_whose_store_is_closed_says_so_on_its_first_page(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog_service.failures._REOPEN_SECONDS", (36_000.0,))
    with House() as house:
        house.damaged = True
        topic = house.topic
        arm(house.disk, "fails", 0)
        assert topic.publish("x").status_code == 503
        page = show(url=house.service.url)
        expect(page.get_by_role("region", name="Alarms")).to_contain_text("this write fails")
        expect(page.get_by_role("region", name="Numbers")).to_contain_text("Statusclosed")
