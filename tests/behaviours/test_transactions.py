"""CONTRACT §3.10 and §4: what readers in transactions see, and what can be rolled back.

Whose pointers may be written under is tested in tests/service/test_pointers.py, what a page shows in test_pages.py, what becomes
of sequence ids in test_judge.py and in the simulation.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import requests

from oncelog_service.storage.port import Table
from oncelog_service.storage.runs import StoredRun
from tests.rest.talk import Topic, assert_problem, receipts
from tests.world.house import House, told


def pointers(house: House) -> list[int]:
    """The write pointer of every row that has one, as on disk."""
    runs = (StoredRun(key[-10:], row) for key, row in sorted(house.disk.tables[Table.MESSAGE].items()))
    return [run.write_pointer for run in runs if run.write_pointer is not None]


# --- what a reader sees; what pages show is a property of tests/service/test_pages.py


def test_a_reader_that_waits_is_answered_at_once_where_waiting_would_not_help(house: House) -> None:
    house.topic.publish_under(house.start(), "undecided")
    begun = time.monotonic()
    assert house.topic.seen(house.client.start_transaction(), wait=60_000) == []
    assert time.monotonic() - begun < 30


# --- rollback


@pytest.mark.parametrize("how", ["goes on", "crashed"])
def test_a_repeated_publish_answers_rollback_information_of_all_that_it_names(house: House, how: str) -> None:
    pointer = house.start()
    first = house.topic.publish_under(pointer, "a", "b", producer="p", sequenceIds=[0, 1])
    house.comes_back(how)
    again = house.topic.publish_under(pointer, "a", "b", producer="p", sequenceIds=[0, 1])
    assert range_of(again) == range_of(first)
    house.topic.send("q", 0)
    nothing = house.topic.publish_under(pointer, "m0", producer="q", sequenceIds=[0])
    assert house.topic.roll_back(nothing).status_code == 200, "all of it was there before: there is nothing to roll back"
    house.topic.publish("between")
    more = house.topic.publish_under(pointer, "a", "b", "c", producer="p", sequenceIds=[0, 1, 2])
    assert told(receipts(more)) == "dds"
    assert _why(house.topic) == "duplicate"
    assert house.topic.roll_back(more).status_code == 200
    assert _why(house.topic) == "new"
    assert pointers(house) == [-pointer] * 2
    assert house.now() == ["m0", "between"]


def range_of(published: requests.Response) -> dict[str, Any]:
    """The answer of a publish as a rollback of the test's own making."""
    record: dict[str, Any] = published.json()
    return {**record, "receipts": [], "transactionWritePointer": record["transactionWritePointer"]["long"]}


def forged(house: House) -> tuple[int, int, dict[str, dict[str, Any]]]:
    """Two transactions, the first of two requests, a plain message in the middle; and rollbacks that must not work, by name."""
    topic, mine, other = house.topic, house.start(), house.start()
    first = range_of(topic.publish_under(mine, "a", "b", "c"))
    house.clock.advance(5)
    others = range_of(topic.publish_under(other, "x"))
    topic.publish("plain")
    second = range_of(topic.publish_under(mine, "d"))
    second_end = {name: second[name] for name in ("endTimestamp", "endSequenceId")}
    of = "transactionWritePointer"
    return mine, other, {
        "another's rows": {**others, of: mine},
        "under another's pointer": {**first, of: other},
        "an earlier start": {**second, "startTimestamp": second["startTimestamp"] - 1},
        "a start in another's row": {**second, "startSequenceId": 0},
        "a later end": {**first, "endSequenceId": 60_000},
        "an end in another's row": {**first, "endTimestamp": others["endTimestamp"], "endSequenceId": 0},
        "everything": {**first, "startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 2**62},
        "narrowed at its start": {**first, "startSequenceId": 1},
        "narrowed at its end": {**first, "endSequenceId": 1},
        "into the middle of a request": {**first, **second_end, "startSequenceId": 2},
        "a pointer of nobody": {**first, of: other + 1},
        "after the commit": first,
    }  # fmt: skip


def everything(house: House) -> tuple[Any, ...]:
    """All that a forgery could change."""
    return house.topic.read(), house.now(), dict(house.disk.tables[Table.MESSAGE])


def test_a_forged_or_widened_rollback_changes_nothing_and_none_does_behind_the_commit(house: House) -> None:
    mine, other, ranges = forged(house)
    for committed in (False, True):
        before = everything(house)
        for name, body in ranges.items():
            if committed or name != "after the commit":
                answer = house.topic.roll_back_range(**body)
                assert 400 <= answer.status_code < 500, (name, answer.text)
                assert everything(house) == before, name
        for pointer in (mine, other):
            house.end(pointer, "commit")
        house.settle()  # rows say what became of their transaction, of which the topic is notified a moment later
    problem = assert_problem(house.topic.roll_back_range(**ranges["after the commit"]), 409, "transaction_not_in_progress")
    assert (problem["write_pointer"], problem["state"]) == (mine, "committed")
    assert house.now() == ["a", "b", "c", "x", "plain", "d"]


def test_a_range_between_what_was_rolled_back_already_hides_nothing_else(house: House) -> None:
    pointer, other = house.start(), house.start()
    answers = [house.topic.publish_under(pointer, each) for each in "abc"]
    for each in (answers[0], answers[2]):
        assert house.topic.roll_back(each).status_code == 200
    first, last = range_of(answers[0]), range_of(answers[2])
    over_all = {**first, **{name: last[name] for name in ("endTimestamp", "endSequenceId")}}
    assert_problem(house.topic.roll_back_range(**over_all), 409, "rollback_refused")
    another = range_of(house.topic.publish_under(other, "x"))
    half = {**last, **{name: another[name] for name in ("endTimestamp", "endSequenceId")}}
    assert_problem(house.topic.roll_back_range(**half), 409, "rollback_refused")
    assert pointers(house) == [-pointer, pointer, -pointer, other]


def test_rollback_information_of_an_older_generation_is_refused(house: House) -> None:
    pointer = house.start()
    published = house.topic.publish_under(pointer, "old")
    house.clock.advance(1)
    house.again()
    house.topic.publish_under(pointer, "new")
    before = everything(house)
    assert_problem(house.topic.roll_back(published), 400, "stale_message_id")
    assert everything(house) == before


@pytest.mark.parametrize(
    ("mode", "plain", "transactional", "there"), [("both", 1, 1, "abc"), ("only", 0, 1, "bc"), ("none", 1, 0, "a")]
)
def test_a_topic_takes_what_its_property_says(house: House, mode: str, plain: bool, transactional: bool, there: str) -> None:
    pointer, topic = house.start(), house.make(mode, transactional=mode)
    for answer, taken in (
        (topic.publish("a"), plain),
        (topic.publish("b", transactionWritePointer=pointer), transactional),
        (topic.store(pointer, "c"), transactional),
        (topic.publish(transactionWritePointer=pointer), transactional),
    ):
        if taken:
            assert answer.status_code == 200, answer.text
        else:
            assert assert_problem(answer, 409, "transactional_mismatch")["transactional"] == mode
    assert topic.payloads() == list(there)


def _why(topic: Topic) -> str:
    return str(topic.request("GET", "/producers/p/why?sequenceId=0").json()["verdict"])
