"""The recent past of a service: what goes through it, in samples that follow on each other."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator

import pytest
import requests

from oncelog import Client, Producer, Reader
from oncelog.wire.overview import Alarm, Alarms, Overview, Sample
from oncelog_service.watch.samples import KEPT, Samples, Totals, busiest, part
from tests.docs.pages import ROOT
from tests.patience import until
from tests.rest.talk import TIMEOUT
from tests.world.clock import ManualClock
from tests.world.disk import arm
from tests.world.house import House


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """One that takes its first sample by itself, and no other."""
    monkeypatch.setattr("oncelog_service.watch.watch.EVERY_SECONDS", 36_000.0)
    with House(ManualClock()) as house:
        until(lambda: house.client.overview().sample, every=0.5)
        yield house


def sample(house: House, after_ms: int) -> Sample:
    """Taken when so much time has gone by."""
    house.clock.advance(after_ms)
    house.service.on_loop(lambda _: house.service.server._watch.sample())  # type: ignore[union-attr]
    found = house.client.overview().sample
    assert found is not None
    return found


def test_rates_are_a_seconds_on_the_average_since_the_sample_before(house: House) -> None:
    with Producer("flights", client=house.client) if house.make("flights") else None as producer:  # type: ignore[union-attr]
        producer.send_batch([b"x" * 10] * 50, sequence_ids=range(50))
        found = sample(house, 5_000)
        assert (found.messages_in, found.bytes_in, found.duplicates, found.messages_out) == (10, 100, 0, 0)
        assert found.writes is not None
        assert found.writes > 0
        assert found.sync_p50_ms is not None
        producer.send_batch([b"x" * 10] * 20, sequence_ids=range(30, 50))
    with Reader("flights", client=house.client, timeout=0) as reader:
        assert len(list(reader)) == 50
    found = sample(house, 10_000)
    assert (found.messages_in, found.duplicates, found.messages_out) == (0, 2, 5)
    assert found.bytes_out is not None
    assert found.bytes_out >= 50
    [topic] = house.client.overview().topics
    assert (topic.name, topic.messages_out, topic.duplicates) == ("flights", 5, 2)
    quiet = sample(house, 1_000)
    assert (quiet.messages_in, quiet.duplicates, quiet.messages_out, quiet.sync_p50_ms) == (0, 0, 0, None)


def test_the_busiest_topics_are_named_first_and_at_most_twenty(house: House) -> None:
    for number in range(22):
        house.make(f"t{number:02}").publish(*["x"] * (number + 1))
    sample(house, 1_000)
    found = house.client.overview().topics
    assert [each.name for each in found] == [f"t{number:02}" for number in range(21, 1, -1)]


def test_a_topic_that_is_opened_anew_counts_no_past_again(house: House) -> None:
    house.topic.publish(*["x"] * 100)
    assert sample(house, 1_000).messages_in == 100
    for _ in range(2):
        house.service.on_loop(lambda service: _dropped(service))
        sample(house, 1_000)
        assert house.client.overview().topics == []
        house.topic.publish("y")
        assert sample(house, 1_000).messages_in == 1
        [topic] = house.client.overview().topics
        assert topic.messages_in == 1


async def _dropped(service: object) -> None:
    service.opening.topics.logs.drop(("default", "t"))  # type: ignore[attr-defined]


def test_what_waits_for_a_sample_is_answered_when_there_is_one_and_at_a_stop_at_once(house: House) -> None:
    newest = house.client.overview().sample
    assert newest is not None
    answers: list[Overview] = []
    waiting = threading.Thread(target=lambda: answers.append(house.client.overview(after=newest.number, wait=25)))
    waiting.start()
    house.service.arrived(1)
    assert not answers
    taken = sample(house, 1_000)
    waiting.join(TIMEOUT)
    assert [each.number for each in answers[0].history] == [taken.number]
    assert house.client.overview(after=taken.number).history == []
    assert [each.number for each in house.client.overview(after=10**6).history] == list(range(1, taken.number + 1))
    waiting = threading.Thread(target=lambda: answers.append(house.client.overview(after=taken.number, wait=25)))
    waiting.start()
    house.service.arrived(1)
    house.restart()
    waiting.join(TIMEOUT)
    assert answers[1].history == []


def test_alarms_and_overview_are_answered_while_the_store_is_closed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog_service.failures._REOPEN_SECONDS", (36_000.0,))
    house.damaged = True
    topic = house.topic
    arm(house.disk, "fails", 0)
    assert topic.publish("x").status_code == 503
    house.clock.advance(1_001)
    [found] = house.client.alarms().alarms
    assert (found.code, found.severity) == ("store_closed", "critical")
    assert "this write fails" in found.what
    overview = house.client.overview()
    assert overview.status == "closed"
    assert [each.code for each in overview.alarms] == ["store_closed"]
    assert sample(house, 1_000).open_topics == 0


@pytest.mark.parametrize("query", ["after=-1", "wait=-1", "after=x", "wait=x"])
def test_what_is_no_number_is_refused(house: House, query: str) -> None:
    assert requests.get(f"{house.service.url}/v1/overview?{query}", timeout=TIMEOUT).status_code == 400


def test_half_an_hour_is_kept() -> None:
    kept = Samples()
    for number in range(1, KEPT + 11):
        assert kept.next_number == number
        kept.add(Sample(number=number, at_ms=number))
    assert [each.number for each in kept.behind(0)] == list(range(11, KEPT + 11))
    assert [each.number for each in kept.behind(KEPT + 8)] == [KEPT + 9, KEPT + 10]


def test_totals_that_began_anew_count_from_their_beginning() -> None:
    assert Totals(5, 5, 5, 5, 5).since(Totals(3, 5, 6, 0, 0)) == Totals(2, 0, 5, 5, 5)
    assert Totals(10, 0, 0, 0, 0).rates(4)["messages_in"] == 2.5
    assert Totals().rates(0)["messages_in"] is None


def test_busy_is_who_has_messages_in_or_out_or_again() -> None:
    found = {("n", "a"): Totals(1), ("n", "b"): Totals(messages_out=2), ("n", "c"): Totals(duplicates=3), ("n", "d"): Totals(1)}
    assert busiest(found, 3) == [("n", "c"), ("n", "b"), ("n", "a")]


@pytest.mark.parametrize(("of_them", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_part_is_the_nearest_rank(of_them: float, value: int) -> None:
    assert part(list(range(100, 0, -1)), of_them) == value
    assert part([7.0], of_them) == 7
    assert part([], of_them) is None


def test_the_answers_that_the_page_shows_are_such() -> None:
    text = (ROOT / "docs/http.md").read_text("utf-8").partition("## How it is doing")[2].partition("\n## ")[0]
    alarms, alarm, overview = (json.loads(each) for each in re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    for shown, kind in ((alarms, Alarms), (alarm, Alarm), (overview, Overview), (overview["sample"], Sample)):
        assert set(kind.model_validate(shown).to_wire()) == set(shown)


def test_the_calls_of_the_client_are_those_answers(house: House) -> None:
    with Client(house.service.url) as client:
        assert client.alarms().topics_seen == len(house.service.service.opening.topics.logs.opened)
        assert client.overview().every_ms == 36_000_000
