"""A bad day: one transaction holds a topic, the disk is nearly full, one consumer lags, one producer is fenced.

Each of the four is named where an operator looks first, with its figures and the way out; and the way out, when it is followed to
the letter, makes the alarm go.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog_service.bounds.room import look
from oncelog_service.service import Service
from tests.behaviours.cli.support import run
from tests.patience import until
from tests.rest.talk import assert_problem, done
from tests.world.clock import ManualClock
from tests.world.house import House

FLOOR = 8 * 2**20
MINUTE = 60_000
HOUR = 60 * MINUTE
FOUR = {"topic_held", "disk_low", "subscription_lags", "producer_fenced"}


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with House(ManualClock(), min_free_bytes=FLOOR) as house:
        yield house


async def looked(service: Service) -> None:
    await look(service.room, service.opening.store.free_bytes, service.opening.writer.drained)


class Day:
    """The service on which all four are so."""

    def __init__(self, house: House) -> None:
        self.house = house
        house.disk.free = lambda: FLOOR * 3 // 2 if self.is_there("archive") else 10 * FLOOR
        house.make("archive").publish("old")
        orders = house.make("orders")
        self.pointer = house.start("long")
        orders.publish_under(self.pointer, "begun", producer="loader", sequenceIds=[0])
        done(orders.publish("behind it"))
        self.events = house.make("events")
        done(self.events.request("POST", "/subscriptions", json={"name": "billing", "nonce": "n"}))
        for _ in range(2):
            done(self.events.publish(*["x"] * 90 * 10))
        house.clock.advance(6 * MINUTE)
        self.old = self.events.open_producer("pos", "n1")
        self.new = self.events.open_producer("pos", "n2")
        self.old_sends()
        house.service.on_loop(looked)

    def is_there(self, topic: str) -> bool:
        return ("default", topic) in self.house.service.service.opening.topics.logs.opened

    def old_sends(self) -> None:
        answer = self.events.publish("m", producer="pos", sequenceIds=[7], epoch=self.old["epoch"])
        assert_problem(answer, 403, "producer_fenced")

    def alarms(self) -> dict[str, dict[str, Any]]:
        """By code; of each there is one."""
        self.house.clock.advance(1_001)
        found = self.events.session.get(self.house.service.url + "/v1/alarms", timeout=60).json()["alarms"]
        assert len({each["code"] for each in found}) == len(found)
        return {each["code"]: each for each in found}

    def follow(self, command: str, **names: str) -> None:
        """Run a command as an alarm says it; what it leaves to choose is chosen by ``names``."""
        words = [names.get(word, word) for word in shlex.split(command)]
        assert words[0] == "oncelog"
        result = run(*words[1:], "--yes", url=self.house.service.url)
        assert result.exit_code == 0, result.output

    def over(self, code: str) -> None:
        until(lambda: code not in self.alarms(), f"{code} is over")


@pytest.fixture
def day(house: House) -> Day:
    return Day(house)


def test_all_four_are_named_with_their_figures(day: Day) -> None:
    found = day.alarms()
    assert found.keys() == FOUR
    assert (
        f"transaction {day.pointer} of producer loader has held default/orders back for 6 min: 2 messages"
        in found["topic_held"]["what"]
    )
    assert "12 MiB are free" in found["disk_low"]["what"]
    assert (
        "1,800 messages are before subscription billing of default/events, the oldest 6 min old"
        in found["subscription_lags"]["what"]
    )
    assert (
        "producer pos of default/events was refused once under epoch 1, and the newest is 2" in found["producer_fenced"]["what"]
    )
    overview = day.events.session.get(day.house.service.url + "/v1/overview", timeout=60).json()
    assert {each["code"] for each in overview["alarms"]} == FOUR
    day.old_sends()
    assert "2 times" in day.alarms()["producer_fenced"]["what"]


def test_the_way_out_of_each_makes_it_go(day: Day) -> None:
    found = day.alarms()
    day.follow(found["topic_held"]["commands"][1])
    day.over("topic_held")
    assert day.alarms().keys() == FOUR - {"topic_held"}
    day.follow(found["subscription_lags"]["commands"][1])
    day.over("subscription_lags")
    day.follow(found["disk_low"]["commands"][-1], TOPIC="archive")
    day.house.service.on_loop(looked)
    day.over("disk_low")
    # One of the two has stopped: nothing is refused any more.
    assert day.alarms().keys() == {"producer_fenced"}
    day.house.clock.advance(5 * MINUTE)
    day.over("producer_fenced")
    assert day.alarms() == {}


def test_a_transaction_that_is_prepared_is_left_to_its_database(house: House) -> None:
    house.topic.publish_under(pointer := house.start("long"), "x")
    house.client.can_commit(pointer, [], resource="db1")
    house.clock.advance(MINUTE)
    [alarm] = house.client.alarms().alarms
    assert "db1 decides it" in alarm.what
    assert not any("abort" in each for each in alarm.commands)


def test_what_is_advised_does_not_abort_a_transaction_that_could_not_be_asked_in_time_whether_it_is_prepared(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.topic.publish_under(pointer := house.start("long"), "x")
    house.client.can_commit(pointer, [], resource="db1")
    house.clock.advance(MINUTE)

    async def stalls(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(house.service.service.opening.transactions, "show", stalls)
    [alarm] = house.client.alarms().alarms
    monkeypatch.undo()
    assert run(*alarm.commands[-1].split()[1:], "--yes", url=house.service.url).exit_code == 6
    assert house.client.transaction_status(pointer).resource == "db1"


def test_what_is_held_back_is_not_the_consumers_fault(house: House) -> None:
    done(house.topic.request("POST", "/subscriptions", json={"name": "s", "nonce": "n"}))
    house.topic.publish_under(house.start("long"), "x")
    for _ in range(2):
        done(house.topic.publish(*["x"] * 900))
    house.clock.advance(HOUR)
    assert [each.code for each in house.client.alarms().alarms] == ["topic_held"]


def test_an_alarm_says_since_when_it_was_seen_and_begins_anew_when_it_comes_again(house: House) -> None:
    def disk_since(free: int) -> int | None:
        house.disk.free = lambda: free
        house.service.on_loop(looked)
        house.clock.advance(2_000)
        return {each.code: each.since_ms for each in house.client.alarms().alarms}.get("disk_low")

    first = disk_since(FLOOR + 1)
    assert first == house.clock.now_ms()
    assert disk_since(FLOOR + 1) == first
    assert disk_since(10 * FLOOR) is None
    assert disk_since(FLOOR + 1) == house.clock.now_ms()
