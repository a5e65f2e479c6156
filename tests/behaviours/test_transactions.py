"""CONTRACT §3.10 and §4: what readers in transactions see, what can be rolled back, and what becomes of sequence ids."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from oncelog import Client
from oncelog.wire.transaction import POINTERS_PER_MS, Transaction, VisibilityLevel
from oncelog_service.service import Service
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import T, write_pointer_of
from tests.behaviours.conftest import Machine
from tests.patience import until
from tests.rest.talk import Topic, assert_problem, receipts
from tests.support import RunningService

HOUR = 3_600_000
ENDS = ["abort", "time out", "invalidate"]


class House:
    """A service, a topic on it and a client of its transaction service."""

    def __init__(self, service: RunningService, machine: Machine) -> None:
        self.service = service
        self.machine = machine
        self.topic = Topic(service.url)
        self.client = Client(service.url, retry=0)

    def start(self) -> int:
        return self.client.start_transaction().write_pointer

    def end(self, pointer: int, how: str) -> None:
        """``how``: also "time out"."""
        if how == "time out":
            self.machine.clock.advance(30_000)
            self.service.on_loop(expire)
            assert self.client.transaction_status(pointer).state == "invalid"
        else:
            getattr(self.client, how if how == "can_commit" else f"{how}_transaction")(pointer)

    def now(self) -> list[str]:
        """What somebody who begins now is delivered."""
        return self.topic.seen(self.client.start_transaction())

    def pointers(self) -> list[int]:
        """The T field of every row that has one, as on disk."""
        rows = sorted(self.machine.disk.tables[Table.MESSAGE].items())
        return [write_pointer_of(row) for _, row in rows if row[1] & T]

    def settled(self) -> None:
        """Return when the service has told its topics of all that has ended."""
        until(lambda: not self.service.on_loop(unsettled))

    def last_sequence_id(self, producer: str = "p") -> int | None:
        found: int | None = self.topic.producer(producer)["lastPersisted"]
        return found


async def expire(service: Service) -> int:
    assert hasattr(service.transactions, "expire_due")
    expired: int = await service.transactions.expire_due()
    return expired


async def unsettled(service: Service) -> int:
    return len(await service.transactions.unsettled(0))


@pytest.fixture
def house(machine: Machine) -> Iterator[House]:
    with machine.run(foreign_write_pointers=True) as service:
        house = House(service, machine)
        yield house
        assert house.topic.verify()["ok"], house.topic.verify()


# --- what a reader sees -------------------------------------------------------------------------------------------------


def test_a_reader_in_a_transaction_never_sees_what_is_uncommitted_and_stops_there(house: House) -> None:
    writer = house.start()
    house.topic.publish("before")
    house.topic.publish_under(writer, "undecided")
    house.topic.publish("behind")
    assert house.now() == ["before"]
    assert house.topic.payloads() == ["before", "undecided", "behind"], "without a transaction it waits for nobody"


def test_once_committed_it_is_seen_at_its_place_in_the_order_of_everyone_else(house: House) -> None:
    first, second = house.start(), house.start()
    house.topic.publish("a")
    house.topic.publish_under(second, "b")
    house.topic.publish_under(first, "c")
    house.topic.publish("d")
    early = house.client.start_transaction()
    house.end(first, "commit")
    assert house.now() == ["a"], "the other one lies before it"
    house.end(second, "commit")
    assert house.now() == house.topic.payloads() == ["a", "b", "c", "d"]
    assert house.topic.seen(early) == ["a"], "what was undecided at its start stays so"


def test_a_reader_sees_its_own_writes_before_they_are_committed(house: House) -> None:
    own = house.client.start_transaction()
    other = house.client.start_transaction()
    house.topic.publish_under(own.write_pointer, "own")
    house.topic.publish_under(other.write_pointer, "other's")
    assert house.topic.seen(own) == ["own"]
    assert house.topic.seen(other) == []


@pytest.mark.parametrize("how", ENDS)
def test_what_was_undone_is_passed_over_at_once_and_for_ever(house: House, how: str) -> None:
    pointer = house.start()
    house.topic.publish_under(pointer, "undone")
    house.topic.publish("behind")
    house.end(pointer, how)
    assert house.now() == ["behind"], "also before its rows are marked"
    house.settled()
    assert house.now() == ["behind"]
    assert house.topic.payloads() == ["undone", "behind"], "without a transaction everything is there"


def test_checkpoints_and_visibility_levels(house: House) -> None:
    first = house.client.start_transaction()
    house.topic.publish_under(first.write_pointer, "before")
    second = house.client.checkpoint_transaction(first.write_pointer)
    house.topic.publish_under(second.write_pointer, "current")
    assert house.topic.seen(second) == ["before", "current"]
    for level, seen in (
        (VisibilityLevel.SNAPSHOT_ALL, ["before", "current"]),
        (VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT, ["before"]),
    ):
        assert house.topic.seen(with_level(second, level)) == seen
    assert house.now() == []
    house.end(first.write_pointer, "commit")
    assert house.now() == ["before", "current"], "all of its pointers together"


def with_level(transaction: Transaction, level: VisibilityLevel) -> Transaction:
    fields = {name: getattr(transaction, name) for name in transaction.__dataclass_fields__}
    return Transaction(**{**fields, "visibility_level": level})


def test_all_pointers_of_a_transaction_are_undone_together(house: House) -> None:
    first = house.start()
    house.topic.publish_under(first, "one")
    second = house.client.checkpoint_transaction(first).write_pointer
    house.topic.publish_under(second, "two")
    house.end(first, "abort")
    assert house.now() == []
    house.settled()
    assert house.pointers() == [-first, -second]


def test_a_reader_that_waits_is_answered_at_once_where_waiting_would_not_help(house: House) -> None:
    house.topic.publish_under(house.start(), "undecided")
    begun = time.monotonic()
    assert house.topic.seen(house.client.start_transaction(), wait=60_000) == []
    assert time.monotonic() - begun < 30


# --- the service marks the rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDS)
def test_rows_are_marked_by_the_service_with_the_client_gone(house: House, how: str) -> None:
    undone, open_ = house.start(), house.client.start_transaction("long").write_pointer
    house.topic.publish_under(undone, "a", "b")
    house.topic.publish_under(open_, "c")
    house.topic.store_under(undone, "d")
    house.topic.publish_under(undone)
    house.end(undone, how)
    house.settled()
    assert house.pointers() == [-undone, -undone, open_, -undone]


def test_a_transaction_is_given_its_whole_time_anew_when_the_service_is_back(machine: Machine) -> None:
    """Nobody knows how long it was away: the clock may have been set meanwhile."""
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        house.topic.publish_under(pointer, "a")
        machine = machine.crash()
    machine.clock.advance(30 * HOUR)
    with machine.run() as service:
        house = House(service, machine)
        assert service.on_loop(expire) == 0
        assert house.client.transaction_status(pointer).state == "in_progress"
        machine.clock.advance(30_000)
        until(lambda: house.client.transaction_status(pointer).state == "invalid")
        house.settled()
        assert house.pointers() == [-pointer]
        assert house.topic.payloads() == ["a"]
        assert house.now() == []


def test_a_prepared_transaction_does_not_time_out(house: House) -> None:
    pointer = house.start()
    house.topic.publish_under(pointer, "a")
    house.client.can_commit(pointer, [], resource="database")
    house.machine.clock.advance(HOUR)
    house.service.on_loop(expire)
    assert house.client.transaction_status(pointer).state == "in_progress"
    house.end(pointer, "commit")
    assert house.now() == ["a"]


# --- rollback -----------------------------------------------------------------------------------------------------------


def test_a_rollback_marks_exactly_its_rows(house: House) -> None:
    mine, others = house.start(), house.start()
    first = house.topic.publish_under(mine, "a", "b")
    house.topic.publish_under(others, "c")
    house.topic.publish("d")
    house.topic.publish_under(mine, "e")
    assert house.topic.roll_back(first).status_code == 200
    assert house.pointers() == [-mine, -mine, others, mine]
    house.end(mine, "commit")
    house.end(others, "commit")
    assert house.now() == ["c", "d", "e"]
    assert house.topic.payloads() == list("abcde")


def test_a_rollback_twice_is_as_once_also_after_a_restart(machine: Machine) -> None:
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        published = house.topic.publish_under(pointer, "a", "b")
        kept = house.topic.publish_under(pointer, "c")
        for _ in range(2):
            assert house.topic.roll_back(published).status_code == 200
        before = dict(machine.disk.tables[Table.MESSAGE])
        machine = machine.crash()
    with machine.run() as service:
        house = House(service, machine)
        assert house.topic.roll_back(published).status_code == 200
        assert machine.disk.tables[Table.MESSAGE] == before
        assert house.topic.roll_back(kept).status_code == 200
        assert house.pointers() == [-pointer] * 3
        assert house.topic.verify()["ok"]


def test_a_rollback_of_a_group_hides_all_of_it(house: House) -> None:
    pointer = house.start()
    house.topic.store_under(pointer, "a", "b")
    published = house.topic.publish_under(pointer)
    own = house.client.start_transaction()
    assert house.topic.roll_back(published).status_code == 200
    house.end(pointer, "commit")
    assert house.now() == house.topic.seen(own) == []
    assert house.topic.payloads() == ["a", "b"]


def test_a_rollback_of_nothing_does_nothing(house: House) -> None:
    """What a publish answers that stored nothing new."""
    pointer = house.start()
    house.topic.send("p", 0)
    again = house.topic.publish_under(pointer, "m0", producer="p", sequenceIds=[0])
    assert again.json()["startTimestamp"] == 0
    assert house.topic.roll_back(again).status_code == 200
    assert house.now() == ["m0"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeated_publish_answers_the_same_rollback_information(machine: Machine, restarted: bool) -> None:
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        first = house.topic.publish_under(pointer, "a", "b", producer="p", sequenceIds=[0, 1])
        if restarted:
            machine = machine.crash()
        else:
            check_repeat(house, pointer, first)
    if restarted:
        with machine.run() as service:
            check_repeat(House(service, machine), pointer, first)


def check_repeat(house: House, pointer: int, first: requests.Response) -> None:
    again = house.topic.publish_under(pointer, "a", "b", producer="p", sequenceIds=[0, 1])
    assert range_of(again) == range_of(first)
    assert house.topic.roll_back(again).status_code == 200
    assert house.pointers() == [-pointer] * 2


def range_of(published: requests.Response) -> dict[str, Any]:
    record: dict[str, Any] = published.json()
    return {
        **{name: value for name, value in record.items() if name != "receipts"},
        "transactionWritePointer": pointer_in(record),
    }


def pointer_in(record: dict[str, Any]) -> int:
    found: int = record["transactionWritePointer"]["long"]
    return found


def test_the_answer_of_a_publish_that_was_partly_there_rolls_back_all_that_it_names(house: House) -> None:
    """A client that got no answer to the first one, and sends it again with more."""
    pointer = house.start()
    house.topic.publish_under(pointer, "a", "b", producer="p", sequenceIds=[0, 1])
    house.topic.publish("between")
    more = house.topic.publish_under(pointer, "a", "b", "c", producer="p", sequenceIds=[0, 1, 2])
    assert [each["status"] for each in receipts(more)] == ["duplicate", "duplicate", "stored"]
    assert house.topic.roll_back(more).status_code == 200
    assert house.pointers() == [-pointer] * 3
    assert house.now() == ["between"]
    assert_problem(house.topic.request("GET", "/producers/p"), 404, "producer_not_found")


class Forgery:
    """Two transactions of two requests each, and a plain message in the middle; and everything that must not work."""

    def __init__(self, house: House) -> None:
        topic = house.topic
        self.mine, self.other = house.start(), house.start()
        self.first = range_of(topic.publish_under(self.mine, "a", "b", "c"))
        house.machine.clock.advance(5)
        self.others = range_of(topic.publish_under(self.other, "x"))
        topic.publish("plain")
        self.second = range_of(topic.publish_under(self.mine, "d"))

    def ranges(self) -> dict[str, dict[str, Any]]:
        """Name → what to send."""
        ends = {name: self.second[name] for name in ("endTimestamp", "endSequenceId")}
        return {
            "another's rows": {**self.others, "transactionWritePointer": self.mine},
            "under another's pointer": {**self.first, "transactionWritePointer": self.other},
            "an earlier start": {**self.second, "startTimestamp": self.second["startTimestamp"] - 1},
            "a start in another's row": {**self.second, "startSequenceId": 0},
            "a later end": {**self.first, "endSequenceId": 60_000},
            "an end in another's row": {**self.first, "endTimestamp": self.others["endTimestamp"], "endSequenceId": 0},
            "everything": {**self.first, "startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 2**62},
            "narrowed at its start": {**self.first, "startSequenceId": 1},
            "narrowed at its end": {**self.first, "endSequenceId": 1},
            "into the middle of a request": {**self.first, **ends, "startSequenceId": 2},
            "a pointer of nobody": {**self.first, "transactionWritePointer": self.other + 1},
            "pointer 0": {**self.first, "transactionWritePointer": 0},
            "a negative pointer": {**self.first, "transactionWritePointer": -self.mine},
            "no pointer": {**self.first, "transactionWritePointer": None},
        }


def everything(house: House) -> tuple[Any, ...]:
    """All that a forgery could change."""
    transaction = house.client.start_transaction()
    seen = house.topic.seen(transaction)
    return house.topic.read(), seen, dict(house.machine.disk.tables[Table.MESSAGE])


def test_a_forged_or_widened_rollback_changes_nothing(house: House) -> None:
    forgery = Forgery(house)
    before = everything(house)
    for name, body in forgery.ranges().items():
        answer = house.topic.roll_back_range(**body)
        assert 400 <= answer.status_code < 500, (name, answer.text)
        assert answer.json()["definite"] is True
        assert everything(house) == before, name
    for pointer in (forgery.mine, forgery.other):
        house.end(pointer, "commit")
    assert house.now() == ["a", "b", "c", "x", "plain", "d"]
    house.settled()  # rows say what became of their transaction, which the topic is told a moment later
    before = everything(house)
    for name, body in {**forgery.ranges(), "after the commit": forgery.first}.items():
        assert 400 <= house.topic.roll_back_range(**body).status_code < 500, name
        assert everything(house) == before, name


def test_a_range_between_what_was_rolled_back_already_hides_nothing_else(house: House) -> None:
    pointer = house.start()
    answers = [house.topic.publish_under(pointer, each) for each in "abc"]
    for each in (answers[0], answers[2]):
        assert house.topic.roll_back(each).status_code == 200
    first, last = range_of(answers[0]), range_of(answers[2])
    over_all = {**first, **{name: last[name] for name in ("endTimestamp", "endSequenceId")}}
    assert_problem(house.topic.roll_back_range(**over_all), 409, "rollback_refused")
    assert house.pointers() == [-pointer, pointer, -pointer]


def test_a_rollback_after_the_commit_is_refused(house: House) -> None:
    pointer = house.start()
    published = house.topic.publish_under(pointer, "a")
    house.end(pointer, "commit")
    problem = assert_problem(house.topic.roll_back(published), 409, "transaction_not_in_progress")
    assert (problem["write_pointer"], problem["state"]) == (pointer, "committed")
    assert house.now() == ["a"]


def test_rollback_information_of_an_older_generation_is_refused(house: House) -> None:
    pointer = house.start()
    published = house.topic.publish_under(pointer, "old")
    assert house.topic.request("DELETE", "").status_code == 200
    house.machine.clock.advance(1)
    house.topic = Topic(house.service.url)
    house.topic.publish_under(pointer, "new")
    before = everything(house)
    assert_problem(house.topic.roll_back(published), 400, "stale_message_id")
    assert everything(house) == before
    house.end(pointer, "commit")
    assert house.now() == ["new"]


@pytest.mark.parametrize("how", ENDS)
def test_a_rollback_behind_the_end_of_the_transaction_does_no_harm(house: House, how: str) -> None:
    pointer = house.start()
    published = house.topic.publish_under(pointer, "a")
    house.end(pointer, how)
    house.settled()
    assert house.topic.roll_back(published).status_code == 200
    assert house.pointers() == [-pointer]


# --- write pointers -----------------------------------------------------------------------------------------------------


def test_pointers_that_are_too_old_or_too_far_ahead_are_refused(house: House) -> None:
    now = house.machine.clock.ms
    for age, refused in ((25 * HOUR, False), (25 * HOUR + 1, True), (-25 * HOUR, False), (-25 * HOUR - 1, True)):
        for path in ("/publish", "/store"):
            body = {"transactionWritePointer": (now - age) * POINTERS_PER_MS, "messages": [f"{age}"]}
            answer = house.topic.request("POST", path, json=body)
            if refused:
                assert_problem(answer, 409, "transaction_not_in_progress")
            else:
                assert answer.status_code == 200, answer.text
    assert house.topic.payloads() == [f"{25 * HOUR}", f"{-25 * HOUR}"]


def test_a_pointer_that_was_never_handed_out_here_is_taken(house: House) -> None:
    """Another transaction service may be in use; it says what its readers see."""
    pointer = (house.machine.clock.ms - HOUR) * POINTERS_PER_MS + 77
    published = house.topic.publish_under(pointer, "a", "b")
    house.topic.publish_under(pointer, "c")
    undecided = Transaction(pointer + 1, pointer, in_progress=(pointer,), write_pointer=pointer + 1)
    assert house.topic.seen(undecided) == []
    assert house.topic.seen(Transaction(pointer + 1, pointer, write_pointer=pointer + 1)) == ["a", "b", "c"]
    assert house.topic.roll_back(published).status_code == 200
    assert house.topic.seen(Transaction(pointer + 1, pointer, write_pointer=pointer + 1)) == ["c"]


@pytest.mark.parametrize("how", ["commit", *ENDS])
def test_nothing_is_written_under_a_transaction_that_has_ended(house: House, how: str) -> None:
    pointer = house.start()
    house.topic.publish_under(pointer, "a")
    other = house.start()
    house.end(pointer, how)
    before = [row["payload"] for row in house.topic.read()]
    for _ in range(2):
        for refused in (
            house.topic.publish("late", transactionWritePointer=pointer),
            house.topic.store(pointer, "late"),
            house.topic.publish(transactionWritePointer=pointer),
        ):
            assert_problem(refused, 409, "transaction_not_in_progress")
        house.settled()
    assert [row["payload"] for row in house.topic.read()] == before
    if how != "time out":
        house.topic.publish_under(other, "still open")


def test_a_topic_takes_what_its_property_says(running: RunningService) -> None:
    pointer = Client(running.url).start_transaction().write_pointer
    for mode, plain, transactional in (("both", 200, 200), ("only", 409, 200), ("none", 200, 409)):
        topic = Topic(running.url, mode, transactional=mode)
        answers = [
            (topic.publish("a"), plain),
            (topic.publish("b", transactionWritePointer=pointer), transactional),
            (topic.store(pointer, "c"), transactional),
            (topic.publish(transactionWritePointer=pointer), transactional),
        ]
        for answer, status in answers:
            if status == 200:
                assert answer.status_code == 200, answer.text
            else:
                assert assert_problem(answer, 409, "transactional_mismatch")["transactional"] == mode
        assert topic.payloads() == {"both": ["a", "b", "c"], "only": ["b", "c"], "none": ["a"]}[mode]


# --- sequence ids -------------------------------------------------------------------------------------------------------


def undo(house: House, pointer: int, published: requests.Response, how: str) -> None:
    if how == "roll back":
        assert house.topic.roll_back(published).status_code == 200
    else:
        house.end(pointer, how)
        house.settled()


@pytest.mark.parametrize("how", ["roll back", *ENDS])
def test_the_sequence_ids_of_what_was_undone_may_be_used_again(machine: Machine, how: str) -> None:
    with machine.run() as service:
        house = House(service, machine)
        house.topic.send("p", 0, 1)
        pointer = house.start()
        house.topic.store_under(pointer, "s5", producer="q", sequenceIds=[5])
        group = house.topic.publish_under(pointer)
        published = house.topic.publish_under(pointer, "t2", "t3", producer="p", sequenceIds=[2, 3])
        assert (house.last_sequence_id(), house.last_sequence_id("q")) == (3, 5)
        undo(house, pointer, published, how)
        if how == "roll back":
            undo(house, pointer, group, how)
        assert house.last_sequence_id() == 1
        assert house.topic.verify()["ok"]
        machine = machine.crash()
    with machine.run() as service:
        house = House(service, machine)
        assert house.last_sequence_id() == 1
        if how == "roll back":
            house.end(pointer, "abort")
        assert [each["status"] for each in house.topic.send("p", 1, 2, 3)] == ["duplicate", "stored", "stored"]
        assert house.topic.send("q", 5)[0]["status"] == "stored"
        assert house.now() == ["m0", "m1", "m2", "m3", "m5"]
        assert house.topic.verify()["ok"]


@pytest.mark.parametrize("restarted", [False, True])
def test_the_sequence_ids_of_what_was_committed_are_duplicates(machine: Machine, restarted: bool) -> None:
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        first = house.topic.publish_under(pointer, "m0", "m1", producer="p", sequenceIds=[0, 1])
        house.topic.store_under(pointer, "m2", producer="p", sequenceIds=[2])
        house.topic.publish_under(pointer)
        house.end(pointer, "commit")
        machine = machine.crash() if restarted else machine
        if not restarted:
            check_duplicates(house, first)
    if restarted:
        with machine.run() as service:
            check_duplicates(House(service, machine), first)


def check_duplicates(house: House, first: requests.Response) -> None:
    again = house.topic.send("p", 0, 1, 2, 3)
    assert [each["status"] for each in again] == ["duplicate"] * 3 + ["stored"]
    assert [each["offset"] for each in again] == [0, 1, 2, 3]
    assert [each["id"] for each in again[:2]] == [each["id"] for each in receipts(first)]
    assert house.topic.verify()["ok"]
    assert house.now() == ["m0", "m1", "m2", "m3"]


def test_a_producer_is_in_one_transaction_at_a_time(house: House) -> None:
    pointer, other = house.start(), house.start()
    house.topic.publish_under(pointer, "m0", producer="p", sequenceIds=[0])
    for refused in (
        house.topic.publish("m1", producer="p", sequenceIds=[1]),
        house.topic.publish("m1", producer="p", sequenceIds=[1], transactionWritePointer=other),
        house.topic.store(other, "m1", producer="p", sequenceIds=[1]),
    ):
        problem = assert_problem(refused, 409, "producer_in_transaction")
        assert (problem["producer"], problem["write_pointer"]) == ("p", pointer)
    house.end(pointer, "commit")
    assert house.topic.send("p", 0, 1)[1]["status"] == "stored"


def test_opening_a_producer_aborts_its_open_transaction_but_not_a_prepared_one(house: House) -> None:
    open_, prepared, others = house.start(), house.start(), house.start()
    house.topic.send("p", 0)
    house.topic.send("r", 0)
    house.topic.publish_under(open_, "p1", producer="p", sequenceIds=[1])
    house.topic.publish_under(prepared, "r1", producer="r", sequenceIds=[1])
    house.topic.publish_under(others, "q0", producer="q", sequenceIds=[0])
    house.client.can_commit(prepared, [], resource="database")
    assert house.topic.open_producer("p", "nonce")["lastSequenceId"] == 0
    refused = house.topic.request("POST", "/producers", json={"name": "r", "nonce": "nonce"})
    problem = assert_problem(refused, 409, "producer_in_transaction")
    assert problem["write_pointer"] == prepared, "its database decides; nobody may go on from before it"
    states = house.client.transaction_states([open_, prepared, others])
    assert list(states.values()) == ["aborted", "in_progress", "in_progress"]
    assert house.last_sequence_id("p") == 0
    house.end(prepared, "commit")
    house.end(others, "commit")
    assert house.now() == ["m0", "m0", "r1", "q0"]
    assert house.topic.open_producer("r", "nonce")["lastSequenceId"] == 1


def test_a_repeated_publish_in_a_transaction_is_stored_once(house: House) -> None:
    pointer = house.start()
    house.topic.open_producer("p", "nonce", gaps="refuse")
    for _ in range(2):
        house.topic.publish_under(pointer, "m0", "m1", producer="p", sequenceIds=[0, 1])
    reused = house.topic.publish("other", producer="p", sequenceIds=[1], transactionWritePointer=pointer)
    assert_problem(reused, 422, "sequence_reused")
    gap = house.topic.publish("m5", producer="p", sequenceIds=[5], transactionWritePointer=pointer)
    problem = assert_problem(gap, 409, "sequence_gap")
    assert (problem["expected"], problem["received"]) == (2, 5)
    house.end(pointer, "commit")
    assert house.now() == ["m0", "m1"]


def test_why_says_what_became_of_an_id_that_was_rolled_back(house: House) -> None:
    pointer = house.start()
    published = house.topic.publish_under(pointer, "m0", producer="p", sequenceIds=[0])
    assert why(house)["verdict"] == "duplicate"
    house.topic.roll_back(published)
    assert why(house)["verdict"] == "new"


def why(house: House) -> dict[str, Any]:
    answer = house.topic.request("GET", "/producers/p/why?sequenceId=0")
    found: dict[str, Any] = json.loads(answer.content)
    return found
