"""CONTRACT §6: a conditional publish is stored only if what it expects holds, and every refusal is final."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from oncelog_service.storage.port import Table
from tests.behaviours.conftest import Machine
from tests.behaviours.test_durability import Gate, in_background, no_space, wait_until_healthy
from tests.behaviours.test_stored_groups import retention
from tests.behaviours.test_transactions import ENDS, House
from tests.rest.talk import TIMEOUT, Topic, assert_problem, hex_id, receipts, without_status
from tests.support import RunningService

SECOND = 1_000
NO_MESSAGE = "\0" * 20
CHECKED = {"check.expected.offsets": "true"}


class Conditional(Topic):
    """A topic that checks expectations, or one that is there already."""

    def __init__(self, url: str, name: str = "t", create: bool = True, **properties: str) -> None:
        super().__init__(url, name, create=create, **{**CHECKED, **properties})

    def put(self, key: str, payload: str = "x", **fields: Any) -> requests.Response:
        """One message with a key."""
        return self.publish(payload, keys=[key], **fields)

    def offset(self, answer: requests.Response) -> int:
        """Of the one message that was stored."""
        (receipt,) = receipts(answer)
        assert receipt["status"] == "stored"
        found: int = receipt["offset"]
        return found

    def last_id(self) -> str:
        found: str = self.read()[-1]["id"]
        return found


def refused(answer: requests.Response, condition: str, expected: Any, actual: Any, key: str | None = None) -> None:
    """It was refused for good, by this condition."""
    problem = assert_problem(answer, 412, "offset_mismatch", definite=True)
    found = [problem.get(name) for name in ("condition", "expected", "actual", "key", "topic")]
    assert found == [condition, expected, actual, key, "default/t"]


@pytest.fixture
def house(machine: Machine) -> Iterator[House]:
    with machine.run() as service:
        house = House(service, machine)
        house.topic = Conditional(service.url, create=False)
        house.topic.request("PUT", "/properties", json=CHECKED)
        yield house
        assert house.topic.verify()["ok"], house.topic.verify()


@pytest.fixture
def topic(house: House) -> Conditional:
    assert isinstance(house.topic, Conditional)
    return house.topic


# --- each condition -----------------------------------------------------------------------------------------------------


def test_an_expected_offset_is_that_of_the_first_message_and_the_others_follow_on(topic: Conditional) -> None:
    assert [each["offset"] for each in receipts(topic.publish("a", "b", "c", expectedOffset=0))] == [0, 1, 2]
    for expected in (0, 2, 4):
        refused(topic.publish("no", "no", expectedOffset=expected), "offset", expected, 3)
    assert [each["offset"] for each in receipts(topic.publish("d", "e", expectedOffset=3))] == [3, 4]
    assert topic.payloads() == ["a", "b", "c", "d", "e"]


def test_an_expected_last_message_is_the_newest_one_or_none_at_all(topic: Conditional) -> None:
    assert topic.publish("a", expectedLastMessageId=NO_MESSAGE).status_code == 200
    first = topic.last_id()
    refused(topic.publish("no", expectedLastMessageId=NO_MESSAGE), "last_message_id", None, hex_id(first))
    assert topic.publish("b", "c", expectedLastMessageId=first).status_code == 200
    refused(topic.publish("no", expectedLastMessageId=first), "last_message_id", hex_id(first), hex_id(topic.last_id()))
    assert topic.payloads() == ["a", "b", "c"]


def test_a_message_is_expected_where_there_is_none_yet(topic: Conditional) -> None:
    some = "\1" * 20
    refused(topic.publish("no", expectedLastMessageId=some), "last_message_id", hex_id(some), None)
    assert topic.payloads() == []


def test_an_expected_offset_of_a_key_is_that_of_its_newest_message(topic: Conditional) -> None:
    first = topic.offset(topic.put("k", "1", expectedKeyOffsets={"k": None}))
    topic.put("other")
    refused(topic.put("k", "no", expectedKeyOffsets={"k": None}), "key_offset", None, first, "k")
    second = topic.offset(topic.put("k", "2", expectedKeyOffsets={"k": first}))
    refused(topic.put("k", "no", expectedKeyOffsets={"k": first}), "key_offset", first, second, "k")
    refused(topic.put("new", "no", expectedKeyOffsets={"new": 0}), "key_offset", 0, None, "new")
    assert topic.payloads() == ["1", "x", "2"]


def test_a_key_is_bytes_and_any_key_will_do(topic: Conditional) -> None:
    for key in ("", "\0", "\xff\x80", "k" * 10_000):
        offset = topic.offset(topic.put(key, expectedKeyOffsets={key: None}))
        refused(topic.put(key, expectedKeyOffsets={key: None}), "key_offset", None, offset, key)
        assert topic.put(key, expectedKeyOffsets={key: offset}).status_code == 200


def test_keys_are_expected_whatever_the_keys_of_the_messages_are(topic: Conditional) -> None:
    at = topic.offset(topic.put("lock"))
    assert topic.publish("a", "b", keys=["c", None], expectedKeyOffsets={"lock": at}).status_code == 200
    refused(topic.publish("no", expectedKeyOffsets={"lock": at + 1}), "key_offset", at + 1, at, "lock")


def test_all_conditions_must_hold_and_the_first_that_does_not_is_told(topic: Conditional) -> None:
    topic.put("k")
    last, other = topic.last_id(), "\1" * 20
    refused(topic.publish("no", expectedOffset=0, expectedLastMessageId=other, expectedKeyOffsets={"k": None}), "offset", 0, 1)
    refused(
        topic.publish("no", expectedOffset=1, expectedLastMessageId=other, expectedKeyOffsets={"k": None}),
        "last_message_id",
        hex_id(other),
        hex_id(last),
    )
    refused(
        topic.publish("no", expectedOffset=1, expectedLastMessageId=last, expectedKeyOffsets={"k": None}),
        "key_offset",
        None,
        0,
        "k",
    )
    everything = {"expectedOffset": 1, "expectedLastMessageId": last, "expectedKeyOffsets": {"k": 0, "new": None}}
    assert topic.publish("yes", **everything).status_code == 200
    assert topic.payloads() == ["x", "yes"]


def test_a_refused_publish_burns_no_offset_no_sequence_id_and_no_key(topic: Conditional) -> None:
    refused(topic.put("k", expectedOffset=9, producer="p", sequenceIds=[5]), "offset", 9, 0)
    assert topic.request("GET", "/producers/p").status_code == 404
    assert topic.send("p", 0)[0] | {"id": None} == {"status": "stored", "id": None, "sequence_id": 0, "offset": 0}
    assert topic.put("k", expectedKeyOffsets={"k": None}).status_code == 200


# --- switched on and off ------------------------------------------------------------------------------------------------


def test_where_expectations_are_not_checked_a_publish_that_carries_one_is_refused(house: House) -> None:
    plain = Topic(house.service.url, "plain")
    for fields in ({"expectedOffset": 0}, {"expectedLastMessageId": NO_MESSAGE}, {"expectedKeyOffsets": {}}):
        assert_problem(plain.publish("no", **fields), 409, "expectations_not_checked")
    assert plain.payloads() == []
    assert plain.publish("yes").status_code == 200


def test_the_setting_holds_where_a_topic_does_not_say(machine: Machine) -> None:
    with machine.run(check_expected_offsets=True) as service:
        assert Topic(service.url, "inherits").publish("a", expectedOffset=0).status_code == 200
        off = Topic(service.url, "off", **{"check.expected.offsets": "false"})
        assert_problem(off.publish("a", expectedOffset=0), 409, "expectations_not_checked")
        off.request("PUT", "/properties", json={})
        assert off.publish("a", expectedOffset=0).status_code == 200


@pytest.mark.parametrize("how", ["as it runs", "over a restart"])
def test_switched_on_later_it_knows_the_history_of_the_topic(machine: Machine, how: str) -> None:
    with machine.run() as service:
        house = House(service, machine)
        house.topic.publish("a", "b", keys=["k", "l"])
        for pointer, end in ((house.start(), "commit"), (house.start(), "abort")):
            house.topic.store_under(pointer, "c", "d", keys=["k", "m"])
            house.topic.publish_under(pointer)
            house.end(pointer, end)
        house.topic.request("PUT", "/properties", json=CHECKED if how == "as it runs" else {})
        if how == "as it runs":
            check_history(house.topic)
    if how == "over a restart":
        with machine.run(check_expected_offsets=True) as service:
            check_history(Topic(service.url, create=False))


def check_history(topic: Topic) -> None:
    for key, offset in {"k": 2, "l": 1, "m": 3}.items():
        refused(topic.publish("no", expectedKeyOffsets={key: 99}), "key_offset", 99, offset, key)
    assert topic.publish("yes", expectedOffset=6, expectedKeyOffsets={"k": 2, "l": 1, "m": 3, "n": None}).status_code == 200
    assert topic.verify()["ok"]


def test_switching_while_others_publish_loses_and_doubles_nothing(machine: Machine) -> None:
    with machine.run() as service, ThreadPoolExecutor(4) as pool:
        topic = Topic(service.url)
        stop = threading.Event()

        def produce(number: int) -> int:
            mine, at = Topic(service.url, create=False), 0
            while not stop.is_set() or not at:
                answer = mine.publish(f"{number}:{at}", producer=f"p{number}", sequenceIds=[at], keys=[f"k{number}"])
                at += answer.status_code == 200
                assert answer.status_code == 200 or answer.json()["definite"], answer.text
            return at

        producing = [pool.submit(produce, number) for number in range(4)]
        for switch in range(10):
            assert topic.request("PUT", "/properties", json=CHECKED if switch % 2 else {}).status_code == 200
        stop.set()
        counts = [each.result(TIMEOUT) for each in producing]
        found = topic.payloads()
        for number, count in enumerate(counts):
            assert [each for each in found if each.startswith(f"{number}:")] == [f"{number}:{at}" for at in range(count)]
        assert [message["offset"] for message in topic.read()] == list(range(len(found)))
        newest = {f"k{number}": found.index(f"{number}:{count - 1}") for number, count in enumerate(counts)}
        assert topic.publish("last", expectedOffset=len(found), expectedKeyOffsets=newest).status_code == 200
        assert topic.verify()["ok"]


def test_off_and_on_again_with_deletions_between_it_knows_what_is_left(house: House, topic: Conditional) -> None:
    topic.put("a")
    topic.put("b")
    topic.request("PUT", "/properties", json={"ttl": "100"})
    topic.put("a")
    house.machine.clock.advance(50 * SECOND)
    topic.put("c")
    house.machine.clock.advance(50 * SECOND)
    house.service.on_loop(retention)
    assert len(house.machine.disk.tables[Table.MESSAGE]) == 1
    topic.request("PUT", "/properties", json=CHECKED)
    assert topic.put("a", expectedKeyOffsets={"a": None, "c": 3}, expectedOffset=4).status_code == 200
    assert topic.verify()["ok"]


# --- what outlives what -------------------------------------------------------------------------------------------------


def played(topic: Conditional) -> None:
    for number in range(7):
        assert topic.put(f"k{number % 3}", expectedOffset=number).status_code == 200


def check_played(topic: Conditional) -> None:
    refused(topic.put("k0", expectedOffset=6), "offset", 6, 7)
    for key, offset in {"k0": 6, "k1": 4, "k2": 5}.items():
        refused(topic.put(key, expectedKeyOffsets={key: 0}), "key_offset", 0, offset, key)
    everything = {"expectedOffset": 7, "expectedKeyOffsets": {"k0": 6, "k1": 4, "k2": 5, "k3": None}}
    assert topic.publish("yes", **everything).status_code == 200
    assert topic.verify()["ok"]


@pytest.mark.parametrize("how", ["stopped", "crashed"])
def test_conditions_hold_over_a_restart(machine: Machine, how: str) -> None:
    with machine.run() as service:
        topic = Conditional(service.url)
        played(topic)
        last = topic.last_id()
        after = machine.crash() if how == "crashed" else machine
    with after.run() as service:
        topic = Conditional(service.url, create=False)
        refused(topic.publish("no", expectedLastMessageId=NO_MESSAGE), "last_message_id", None, hex_id(last))
        check_played(topic)


@pytest.mark.parametrize("how", ["stopped", "crashed"])
def test_ttl_and_deletion_make_no_key_forgotten(machine: Machine, how: str) -> None:
    with machine.run() as service:
        topic = Conditional(service.url, ttl="10")
        played(topic)
        last = topic.last_id()
        machine.clock.advance(10 * SECOND)
        service.on_loop(retention)
        assert not machine.disk.tables[Table.MESSAGE]
        refused(topic.put("k0", expectedKeyOffsets={"k0": None}), "key_offset", None, 6, "k0")
        after = machine.crash() if how == "crashed" else machine
    with after.run() as service:
        topic = Conditional(service.url, create=False)
        refused(topic.publish("no", expectedLastMessageId=NO_MESSAGE), "last_message_id", None, hex_id(last))
        check_played(topic)


def test_a_topic_created_anew_knows_nothing_of_the_keys_before(house: House, topic: Conditional) -> None:
    played(topic)
    house.service.on_loop(lambda service: service.topics.opened["default", "t"].snapshots.take())  # type: ignore[attr-defined]
    topic.request("DELETE", "")
    topic.request("PUT", "", json=CHECKED)
    assert topic.put("k0", expectedOffset=0, expectedLastMessageId=NO_MESSAGE, expectedKeyOffsets={"k0": None}).status_code == 200
    house.service.on_loop(retention)
    assert not house.machine.disk.tables[Table.KEY_SNAPSHOT], "the older generation's are gone"


# --- named producers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashed", [False, True])
def test_a_repeated_publish_is_a_duplicate_whatever_the_offset_is_now(machine: Machine, crashed: bool) -> None:
    with machine.run() as service:
        topic = Conditional(service.url)
        sent = {"producer": "p", "sequenceIds": [0, 1], "keys": ["k", "l"]}
        sent |= {"expectedOffset": 0, "expectedLastMessageId": NO_MESSAGE, "expectedKeyOffsets": {"k": None}}
        first = receipts(topic.publish("a", "b", **sent))
        topic.put("k", expectedOffset=2)
        after = machine.crash() if crashed else machine
        if not crashed:
            check_repeated(topic, sent, first)
    if crashed:
        with after.run() as service:
            check_repeated(Conditional(service.url, create=False), sent, first)


def check_repeated(topic: Conditional, sent: dict[str, Any], first: list[dict[str, Any]]) -> None:
    for _ in range(2):
        again = receipts(topic.publish("a", "b", **sent))
        assert [each["status"] for each in again] == ["duplicate", "duplicate"]
        assert without_status(again) == without_status(first)
    refused(topic.publish("c", **{**sent, "sequenceIds": [2], "keys": ["k"]}), "offset", 0, 3)
    assert topic.payloads() == ["a", "b", "x"]


def test_what_is_left_of_a_partly_stored_publish_must_follow_on_the_rest_of_it(topic: Conditional) -> None:
    def publish(first: int, *keys: str, **expectations: Any) -> requests.Response:
        ids = list(range(first, first + len(keys)))
        return topic.publish(*map(str, ids), producer="p", sequenceIds=ids, keys=list(keys), **expectations)

    publish(0, "k", "l", expectedOffset=0)
    answer = publish(
        0, "k", "l", "m", expectedOffset=0, expectedLastMessageId=NO_MESSAGE, expectedKeyOffsets={"k": None, "m": None}
    )
    assert [(each["status"], each["offset"]) for each in receipts(answer)] == [("duplicate", 0), ("duplicate", 1), ("stored", 2)]
    topic.put("l")
    last = hex_id(topic.last_id())
    refused(publish(0, "k", "l", "m", "n", expectedOffset=0), "offset", 3, 4)
    third = hex_id(topic.read()[2]["id"])
    refused(publish(0, "k", "l", "m", "n", expectedLastMessageId=NO_MESSAGE), "last_message_id", third, last)
    refused(publish(0, "k", "l", "m", "n", expectedKeyOffsets={"l": None}), "key_offset", 1, 3, "l")
    answer = publish(0, "k", "l", "m", "n", expectedKeyOffsets={"k": None, "m": 7, "n": None})
    assert receipts(answer)[3] | {"id": None} == {"status": "stored", "id": None, "sequence_id": 3, "offset": 4}
    assert topic.payloads() == ["0", "1", "2", "x", "3"]


def test_without_deduplication_a_repeat_is_judged_as_it_comes(house: House, topic: Conditional) -> None:
    topic.request("PUT", "/properties", json={**CHECKED, "deduplication": "false"})
    sent = {"producer": "p", "sequenceIds": [0], "expectedOffset": 0}
    assert topic.publish("a", **sent).status_code == 200
    refused(topic.publish("a", **sent), "offset", 0, 1)


# --- transactions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True], ids=["published", "stored first"])
def test_conditions_hold_within_transactions_too(house: House, topic: Conditional, stored: bool) -> None:
    def publish(pointer: int, **fields: Any) -> requests.Response:
        if stored:
            topic.store_under(pointer, "a", "b", keys=["k", "l"])
            return topic.publish(transactionWritePointer=pointer, **fields)
        return topic.publish("a", "b", transactionWritePointer=pointer, keys=["k", "l"], **fields)

    pointer = house.start()
    everything = {"expectedOffset": 0, "expectedLastMessageId": NO_MESSAGE, "expectedKeyOffsets": {"k": None}}
    first = receipts(publish(pointer, **everything))
    assert [each["offset"] for each in first] == [0, 1]
    house.end(pointer, "commit")
    house.settled()
    last = topic.last_id()
    other = house.start()
    refused(publish(other, expectedOffset=1), "offset", 1, 2)
    refused(publish(other, expectedKeyOffsets={"l": None}), "key_offset", None, 1, "l")
    good = {"expectedOffset": 2, "expectedLastMessageId": last, "expectedKeyOffsets": {"k": 0, "l": 1}}
    assert publish(other, **good).status_code == 200
    house.end(other, "commit")


@pytest.mark.parametrize("stored", [False, True], ids=["published", "stored first"])
@pytest.mark.parametrize("how", ENDS)
def test_a_key_steps_back_when_its_newest_message_is_undone(house: House, topic: Conditional, how: str, stored: bool) -> None:
    topic.put("k")
    pointer = house.start()
    if stored:
        topic.store_under(pointer, "a", "b", keys=["k", "new"])
        topic.publish_under(pointer)
    else:
        topic.publish_under(pointer, "a", "b", keys=["k", "new"])
    house.end(pointer, how)
    house.settled()
    refused(topic.put("k", expectedOffset=1), "offset", 1, 3)
    assert topic.put("k", expectedKeyOffsets={"k": 0, "new": None}, expectedOffset=3).status_code == 200


def test_the_clients_own_roll_back_steps_a_key_back_too(house: House, topic: Conditional) -> None:
    topic.put("k")
    pointer = house.start()
    published = topic.publish_under(pointer, "a", keys=["k"])
    assert topic.roll_back(published).status_code == 200
    assert topic.put("k", expectedKeyOffsets={"k": 0}).status_code == 200
    house.end(pointer, "commit")


def test_a_key_in_somebody_elses_undecided_transaction_is_no_mismatch_but_not_yet_known(house: House, topic: Conditional) -> None:
    topic.put("k")
    pointer, other = house.start(), house.start()
    topic.publish_under(pointer, "a", keys=["k"])
    for fields in ({}, {"transactionWritePointer": other}):
        for expected in (0, 1, None):
            answer = topic.put("k", expectedKeyOffsets={"k": expected}, **fields)
            problem = assert_problem(answer, 409, "key_in_transaction", definite=True)
            assert (problem["key"], problem["write_pointer"]) == ("k", pointer)
    assert topic.put("k", transactionWritePointer=pointer, expectedKeyOffsets={"k": 1}).status_code == 200, "its own"
    house.end(pointer, "commit")
    assert topic.put("k", expectedKeyOffsets={"k": 2}).status_code == 200, "as soon as it is decided"
    assert topic.put("k", transactionWritePointer=other, expectedKeyOffsets={"k": 3}).status_code == 200


def test_what_a_transaction_published_before_its_checkpoint_is_its_own(house: House, topic: Conditional) -> None:
    begun = house.client.start_transaction()
    topic.publish_under(begun.write_pointer, "a", keys=["k"])
    later = house.client.checkpoint_transaction(begun.write_pointer).write_pointer
    assert later != begun.write_pointer
    for offset in (0, 1):
        assert topic.put("k", transactionWritePointer=later, expectedKeyOffsets={"k": offset}).status_code == 200
    refused(topic.put("k", transactionWritePointer=later, expectedKeyOffsets={"k": 0}), "key_offset", 0, 2, "k")
    assert_problem(topic.put("k", expectedKeyOffsets={"k": 2}), 409, "key_in_transaction")
    house.end(begun.write_pointer, "abort")
    house.settled()
    assert topic.put("k", expectedKeyOffsets={"k": None}).status_code == 200


def test_a_newer_plain_message_of_the_key_is_nobodys(house: House, topic: Conditional) -> None:
    pointer = house.start()
    topic.publish_under(pointer, "a", keys=["k"])
    at = topic.offset(topic.put("k"))
    assert topic.put("k", expectedKeyOffsets={"k": at}).status_code == 200


def test_undecided_over_a_crash_a_key_stays_so_and_then_steps_back(machine: Machine) -> None:
    with machine.run() as service:
        house = House(service, machine)
        house.topic.request("PUT", "/properties", json=CHECKED)
        topic = Conditional(service.url, create=False)
        topic.put("k")
        pointer, stored = house.start(), house.start()
        topic.publish_under(pointer, "a", keys=["k"])
        topic.store_under(stored, "b", "c", keys=["l", "m"])
        after = machine.crash()
    with after.run() as service:
        house = House(service, after)
        topic = Conditional(service.url, create=False)
        assert_problem(topic.put("k", expectedKeyOffsets={"k": 0}), 409, "key_in_transaction")
        topic.publish_under(stored)
        assert_problem(topic.put("m", expectedKeyOffsets={"m": 3}), 409, "key_in_transaction")
        house.end(stored, "commit")
        house.end(pointer, "abort")
        house.settled()
        assert topic.put("k", expectedKeyOffsets={"k": 0, "l": 2, "m": 3}).status_code == 200
        assert topic.verify()["ok"]


# --- certainty ----------------------------------------------------------------------------------------------------------


def test_a_condition_that_lost_is_answered_after_what_it_lost_to_is_synced(machine: Machine) -> None:
    with machine.run() as service, ThreadPoolExecutor(4) as pool:
        topic = Conditional(service.url)
        machine.disk.before_sync = gate = Gate()
        winner = in_background(pool, service, lambda each: each.publish("a", keys=["k"], expectedOffset=0))
        assert gate.entered.wait(TIMEOUT)
        losers = [
            in_background(pool, service, lambda each, expected=expected: each.publish("no", **expected))
            for expected in ({"expectedOffset": 0}, {"expectedLastMessageId": NO_MESSAGE}, {"expectedKeyOffsets": {"k": None}})
        ]
        service.arrived(4)
        assert not any(each.done() for each in losers)
        gate.opened.set()
        assert topic.offset(winner.result(TIMEOUT)) == 0
        for each in losers:
            assert_problem(each.result(TIMEOUT), 412, "offset_mismatch")
        assert topic.payloads() == ["a"]


@pytest.mark.parametrize("on_disk", [False, True], ids=["not written", "written all the same"])
def test_a_condition_judged_against_a_row_whose_sync_then_fails_is_not_answered_as_lost(machine: Machine, on_disk: bool) -> None:
    with machine.run() as service, ThreadPoolExecutor(4) as pool:
        topic = Conditional(service.url)
        machine.disk.before_sync = gate = Gate(no_space())
        machine.disk.fail_after_apply = on_disk
        first = in_background(pool, service, lambda each: each.publish("a", keys=["k"], expectedOffset=0))
        assert gate.entered.wait(TIMEOUT)
        losers = [
            in_background(pool, service, lambda each, expected=expected: each.publish("no", **expected))
            for expected in ({"expectedOffset": 0}, {"expectedLastMessageId": NO_MESSAGE}, {"expectedKeyOffsets": {"k": None}})
        ]
        service.arrived(4)
        gate.opened.set()
        assert_problem(first.result(TIMEOUT), 503, "storage_failed", definite=False)
        for each in losers:
            assert_problem(each.result(TIMEOUT), 503, "storage_unavailable", definite=True)
        machine.disk.before_sync = None
        wait_until_healthy(topic)
        assert topic.payloads() == (["a"] if on_disk else [])
        answer = topic.publish("b", keys=["k"], expectedOffset=0, expectedKeyOffsets={"k": None})
        if on_disk:
            refused(answer, "offset", 0, 1)
        else:
            assert topic.offset(answer) == 0


def test_of_two_conditional_writers_exactly_one_wins_each_offset_and_knows_it(running: RunningService) -> None:
    """Two kinds on 16 threads: one goes on from the offset that it was refused with, the other from the key's."""
    topic = Conditional(running.url)
    won: list[tuple[int, str]] = []
    upto = 50

    def write(number: int) -> int:
        mine, expected, lost = Conditional(running.url, create=False), 0, 0
        while expected < upto:
            payload = f"{number}:{expected}"
            answer = mine.put("k", payload, expectedOffset=expected)
            if answer.status_code == 200:
                assert mine.offset(answer) == expected
                won.append((expected, payload))
                expected += 1
            else:
                problem = assert_problem(answer, 412, "offset_mismatch", definite=True)
                assert problem["actual"] > expected
                expected, lost = problem["actual"], lost + 1
        return lost

    with ThreadPoolExecutor(16) as pool:
        lost = sum(pool.map(write, range(16)))
    assert lost > 0, "they never met"
    assert sorted(won) == list(enumerate(topic.payloads(limit=10_000)))
    assert len(won) == upto
    refused(topic.put("k", expectedKeyOffsets={"k": None}), "key_offset", None, upto - 1, "k")
