"""CONTRACT §4.1: what is stored under a write pointer appears as one group, once, and lives and dies as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog_service.service import Service
from oncelog_service.storage.port import Table
from tests.behaviours.conftest import Machine
from tests.behaviours.test_transactions import ENDS, House, range_of
from tests.rest.talk import Topic, assert_problem, receipts

SECOND = 1_000
HOUR = 3_600 * SECOND


async def retention(service: Service) -> int:
    return await service.retention.once()


@pytest.fixture
def house(machine: Machine) -> Iterator[House]:
    with machine.run(foreign_write_pointers=True) as service:
        house = House(service, machine)
        yield house
        assert house.topic.verify()["ok"], house.topic.verify()


# --- storing and publishing ---------------------------------------------------------------------------------------------


def test_a_stored_group_appears_in_store_order_as_one_contiguous_group(house: House) -> None:
    first, second = house.start(), house.start()
    for number in range(4):
        house.topic.store_under(first, f"a{number}")
        house.topic.store_under(second, f"b{number}", f"b{number}'")
        house.topic.publish(f"plain{number}")
        house.machine.clock.advance(3)
    assert house.topic.payloads() == [f"plain{number}" for number in range(4)]
    house.topic.publish_under(second)
    house.topic.publish_under(first)
    group = [f"b{number}{mark}" for number in range(4) for mark in ("", "'")] + [f"a{number}" for number in range(4)]
    assert house.topic.payloads()[4:] == group
    assert [message["offset"] for message in house.topic.read()] == list(range(16))
    ids = [message["id"] for message in house.topic.read()]
    assert ids == sorted(set(ids))
    house.end(first, "commit")
    house.end(second, "commit")
    assert house.now() == house.topic.payloads()


def test_the_receipt_of_a_group_names_its_messages(house: House) -> None:
    pointer = house.start()
    house.topic.publish("plain")
    house.topic.store_under(pointer, "a", "b")
    found = receipts(house.topic.publish_under(pointer))
    assert [(each["status"], each["offset"]) for each in found] == [("stored", 1), ("stored", 2)]
    assert bytes.fromhex(found[0]["id"]).decode("latin-1") == house.topic.read()[1]["id"]


def test_an_empty_group_is_published_and_holds_nothing(house: House) -> None:
    pointer = house.start()
    published = house.topic.publish_under(pointer)
    assert receipts(published) == []
    assert house.topic.roll_back(published).status_code == 200
    house.topic.publish("plain")
    house.end(pointer, "commit")
    assert house.topic.payloads() == house.now() == ["plain"]
    assert house.topic.read()[0]["offset"] == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_is_published_once_and_nothing_is_stored_behind_it(machine: Machine, restarted: bool) -> None:
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        house.topic.store_under(pointer, "a", "b")
        house.topic.publish_under(pointer)
        machine = machine.crash() if restarted else machine
        if not restarted:
            check_published(house, pointer)
    if restarted:
        with machine.run() as service:
            check_published(House(service, machine), pointer)


def check_published(house: House, pointer: int) -> None:
    row_id = house.topic.read()[0]["id"].encode("latin-1")[:10].hex()
    for refused in (
        house.topic.publish(transactionWritePointer=pointer),
        house.topic.store(pointer, "late"),
        house.topic.publish(transactionWritePointer=pointer, producer="p"),
    ):
        problem = assert_problem(refused, 409, "stored_group_published")
        assert problem["write_pointer"] == pointer
        assert problem["message_id"][:20] == row_id
    house.topic.publish_under(pointer, "besides")
    assert house.topic.payloads() == ["a", "b", "besides"]
    house.end(pointer, "commit")
    assert house.now() == ["a", "b", "besides"]


def test_a_group_that_was_rolled_back_is_not_published_again(house: House) -> None:
    pointer = house.start()
    house.topic.store_under(pointer, "a")
    house.topic.roll_back(house.topic.publish_under(pointer))
    assert_problem(house.topic.publish(transactionWritePointer=pointer), 409, "stored_group_published")
    assert_problem(house.topic.store(pointer, "b"), 409, "stored_group_published")
    house.end(pointer, "commit")
    assert house.now() == []


# --- retries of a named producer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeated_store_and_publish_of_a_named_producer_are_done_once(machine: Machine, restarted: bool) -> None:
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        house.topic.store_under(pointer, "m0", "m1", producer="p", sequenceIds=[0, 1])
        if restarted:
            machine = machine.crash()
        else:
            check_retries(house, pointer)
    if restarted:
        with machine.run() as service:
            check_retries(House(service, machine), pointer)


def check_retries(house: House, pointer: int) -> None:
    again = house.topic.store_under(pointer, "m0", "m1", "m2", producer="p", sequenceIds=[0, 1, 2])
    assert [each["status"] for each in receipts(again)] == ["duplicate", "duplicate", "stored"]
    reused = house.topic.store(pointer, "other", producer="p", sequenceIds=[2])
    assert assert_problem(reused, 422, "sequence_reused")["sequence_id"] == 2
    mixed = house.topic.store(pointer, "other", "m3", producer="p", sequenceIds=[1, 3])
    assert_problem(mixed, 422, "sequence_reused")
    first = house.topic.publish_under(pointer, producer="p")
    repeated = house.topic.publish_under(pointer, producer="p")
    assert range_of(repeated) == range_of(first)
    assert [each["status"] for each in receipts(first)] == ["stored"] * 3
    assert [each["status"] for each in receipts(repeated)] == ["duplicate"] * 3
    assert [each["id"] for each in receipts(repeated)] == [each["id"] for each in receipts(first)]
    assert house.topic.payloads() == ["m0", "m1", "m2"]
    assert house.topic.verify()["ok"]


def test_a_repeated_publish_of_a_group_answers_duplicate_after_a_restart(machine: Machine) -> None:
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        house.topic.store_under(pointer, "a", "b", producer="p", sequenceIds=[0, 1])
        first = house.topic.publish_under(pointer, producer="p")
        machine = machine.crash()
    with machine.run() as service:
        house = House(service, machine)
        repeated = house.topic.publish_under(pointer, producer="p")
        assert range_of(repeated) == range_of(first)
        assert {each["status"] for each in receipts(repeated)} == {"duplicate"}
        assert house.topic.roll_back(repeated).status_code == 200
        house.end(pointer, "commit")
        assert house.now() == []
        assert house.topic.verify()["ok"]


def test_a_group_whose_first_sequence_id_stands_in_the_log_already_is_not_published(house: House) -> None:
    """Its transaction has published that one beside it: all of the group would be there, that message twice."""
    pointer = house.start()
    house.topic.store_under(pointer, "m5", "m6", producer="p", sequenceIds=[5, 6])
    house.topic.publish_under(pointer, "m5", producer="p", sequenceIds=[5])
    refused = house.topic.publish(transactionWritePointer=pointer, producer="p")
    assert assert_problem(refused, 422, "sequence_reused")["sequence_id"] == 5
    assert house.topic.payloads() == ["m5"]


def test_who_was_fenced_publishes_no_group(house: House) -> None:
    """Nor one that holds nothing of its own."""
    old = house.topic.open_producer("p", "one")["epoch"]
    new = house.topic.open_producer("p", "another")["epoch"]
    pointer = house.start()
    house.topic.store_under(pointer, "a", "b")
    assert_problem(house.topic.publish(transactionWritePointer=pointer, producer="p", epoch=old), 403, "producer_fenced")
    assert house.topic.payloads() == []
    house.topic.publish_under(pointer, producer="p", epoch=new)


@pytest.mark.parametrize("restarted", [False, True])
def test_gaps_are_refused_in_a_store_as_well(machine: Machine, restarted: bool) -> None:
    with machine.run() as service:
        house = House(service, machine)
        house.topic.open_producer("p", "nonce", gaps="refuse")
        house.topic.send("p", 0)
        pointer = house.start()
        house.topic.store_under(pointer, "m1", "m2", producer="p", sequenceIds=[1, 2])
        if restarted:
            machine = machine.crash()
        else:
            check_gaps(house, pointer)
    if restarted:
        with machine.run() as service:
            check_gaps(House(service, machine), pointer)


def check_gaps(house: House, pointer: int) -> None:
    problem = assert_problem(house.topic.store(pointer, "m4", producer="p", sequenceIds=[4]), 409, "sequence_gap")
    assert (problem["expected"], problem["received"]) == (3, 4)
    house.topic.store_under(pointer, "m3", producer="p", sequenceIds=[3])
    house.topic.publish_under(pointer)
    house.end(pointer, "commit")
    assert house.now() == ["m0", "m1", "m2", "m3"]
    assert house.last_sequence_id() == 3
    assert house.topic.send("p", 3, 4)[0]["status"] == "duplicate"
    assert house.topic.verify()["ok"]


def test_a_store_of_what_was_published_already_stores_nothing(house: House) -> None:
    house.topic.send("p", 0, 1)
    pointer = house.start()
    stored = house.topic.store_under(pointer, "m1", "m2", producer="p", sequenceIds=[1, 2])
    assert [each["status"] for each in receipts(stored)] == ["duplicate", "stored"]
    house.topic.publish_under(pointer)
    assert house.topic.payloads() == ["m0", "m1", "m2"]


def test_what_is_only_stored_does_not_count_as_published(house: House) -> None:
    pointer = house.start()
    house.topic.store_under(pointer, "m0", "m1", producer="p", sequenceIds=[0, 1])
    assert_problem(house.topic.request("GET", "/producers/p"), 404, "producer_not_found")
    house.end(pointer, "abort")
    house.settled()
    assert house.topic.send("p", 0)[0]["status"] == "stored"
    assert house.topic.payloads() == ["m0"]


def test_opening_a_producer_ends_the_transaction_in_which_it_has_stored(house: House) -> None:
    pointer = house.start()
    house.topic.store_under(pointer, "m0", producer="p", sequenceIds=[0])
    assert house.topic.open_producer("p", "nonce")["lastSequenceId"] is None
    assert house.client.transaction_status(pointer).state == "aborted"
    assert_problem(house.topic.publish(transactionWritePointer=pointer), 409, "transaction_not_in_progress")


@pytest.mark.parametrize("how", ENDS)
def test_what_is_stored_in_a_transaction_that_was_undone_never_appears(house: House, how: str) -> None:
    pointer = house.start()
    house.topic.store_under(pointer, "a")
    house.end(pointer, how)
    assert_problem(house.topic.publish(transactionWritePointer=pointer), 409, "transaction_not_in_progress")
    assert house.topic.payloads() == house.now() == []


# --- time to live -------------------------------------------------------------------------------------------------------


def left(house: House) -> tuple[int, int, int]:
    """Rows of the Message Table, the Payload Table, the table of groups."""
    messages, payloads, groups = (len(house.machine.disk.tables[table]) for table in (Table.MESSAGE, Table.PAYLOAD, Table.GROUP))
    return messages, payloads, groups


def short_lived(house: House, seconds: int) -> None:
    house.topic.request("PUT", "/properties", json={"ttl": str(seconds)})


@pytest.mark.parametrize("how", ["commit", *ENDS])
def test_what_is_stored_and_never_published_disappears_with_its_ttl(house: House, how: str) -> None:
    short_lived(house, 100)
    pointer = house.start()
    house.topic.store_under(pointer, "a", "b")
    house.end(pointer, how)
    house.settled()
    house.service.on_loop(retention)
    assert left(house)[1] == 2
    house.machine.clock.advance(100 * SECOND)
    house.service.on_loop(retention)
    assert left(house)[:2] == (0, 0)
    assert house.topic.payloads() == []
    house.machine.clock.advance(26 * HOUR)
    house.service.on_loop(retention)
    assert left(house) == (0, 0, 0), "older pointers are refused anyway"


def test_what_a_transaction_in_progress_has_stored_stays_beyond_its_ttl(house: House) -> None:
    short_lived(house, 1)
    pointer = house.client.start_transaction("long").write_pointer
    house.topic.store_under(pointer, "a")
    house.machine.clock.advance(10 * SECOND)
    house.service.on_loop(retention)
    house.topic.store_under(pointer, "b")
    house.topic.publish_under(pointer)
    house.end(pointer, "commit")
    assert house.topic.payloads() == house.now() == ["a", "b"]


def test_what_a_foreign_pointer_stored_cannot_be_published_once_it_has_expired(house: House) -> None:
    """Not even a part of it: some of its payloads may be gone."""
    short_lived(house, 1)
    pointer = (house.machine.clock.ms - SECOND) * 1_000_000
    house.topic.store_under(pointer, "a")
    house.machine.clock.advance(10 * SECOND)
    house.service.on_loop(retention)
    for refused in (house.topic.publish(transactionWritePointer=pointer), house.topic.store(pointer, "b")):
        problem = assert_problem(refused, 409, "stored_group_published")
        assert "expired" in problem["detail"]
    assert house.topic.payloads() == []


def test_a_stored_group_lives_and_dies_by_its_publish_time(house: House) -> None:
    """Cleaning up by each payload's own write time beheaded living groups elsewhere."""
    short_lived(house, 100)
    pointer = house.client.start_transaction("long").write_pointer
    house.topic.store_under(pointer, "a")
    house.machine.clock.advance(90 * SECOND)
    house.topic.store_under(pointer, "b")
    house.machine.clock.advance(5 * SECOND)
    house.topic.publish_under(pointer)
    house.end(pointer, "commit")
    house.settled()
    for seconds in (50, 49):
        house.machine.clock.advance(seconds * SECOND)
        house.service.on_loop(retention)
        assert house.topic.payloads() == house.now() == ["a", "b"]
    house.machine.clock.advance(SECOND - 1)
    assert house.topic.payloads() == ["a", "b"]
    house.machine.clock.advance(1)
    assert house.topic.payloads() == house.now() == [], "from the first millisecond"
    house.service.on_loop(retention)
    assert left(house)[:2] == (0, 0)


def test_a_message_of_a_group_that_says_so_expires_alone_counted_from_the_publish(house: House) -> None:
    pointer = house.start()
    house.topic.store_under(pointer, "a", "short", "b", ttls=[None, 2, None])
    house.machine.clock.advance(3 * SECOND)
    house.topic.publish_under(pointer)
    house.machine.clock.advance(2 * SECOND - 1)
    assert house.topic.payloads() == ["a", "short", "b"]
    house.machine.clock.advance(1)
    assert house.topic.payloads() == ["a", "b"]
    house.service.on_loop(retention)
    assert [(message["offset"], message["payload"]) for message in house.topic.read()] == [(0, "a"), (2, "b")]


def test_what_was_rolled_back_stays_until_its_ttl(house: House) -> None:
    short_lived(house, 100)
    pointer = house.start()
    house.topic.store_under(pointer, "a")
    house.topic.publish_under(pointer)
    house.topic.publish_under(pointer, "b")
    house.end(pointer, "abort")
    house.settled()
    house.machine.clock.advance(100 * SECOND - 1)
    house.service.on_loop(retention)
    assert house.topic.payloads() == ["a", "b"]
    house.machine.clock.advance(1)
    house.service.on_loop(retention)
    assert house.topic.payloads() == []
    assert left(house)[:2] == (0, 0)


def test_a_log_is_trimmed_only_up_to_what_is_unsettled(house: House) -> None:
    """Its producers' maps may yet step back behind it."""
    short_lived(house, 100)
    house.topic.send("p", 0, 1)
    pointer = house.client.start_transaction("long").write_pointer
    house.topic.publish_under(pointer, "m2", producer="p", sequenceIds=[2])
    house.topic.publish("behind")
    house.machine.clock.advance(100 * SECOND)
    house.service.on_loop(retention)
    assert house.topic.payloads() == house.now() == []
    assert house.topic.stats()["earliestOffset"] == 2
    assert left(house)[0] == 2
    house.end(pointer, "abort")
    house.settled()
    house.service.on_loop(retention)
    assert house.topic.stats()["earliestOffset"] == 4
    assert left(house)[0] == 0
    assert house.last_sequence_id() == 1, "TTL makes nobody forget, and the abort counts"
    assert house.topic.send("p", 1, 2)[1]["status"] == "stored"


def test_the_maps_outlive_retention_and_a_restart_however_the_transaction_ended(machine: Machine) -> None:
    with machine.run() as service:
        house = House(service, machine)
        short_lived(house, 10)
        kept, undone = house.start(), house.start()
        house.topic.store_under(kept, "m0", "m1", producer="k", sequenceIds=[0, 1])
        house.topic.publish_under(kept)
        house.topic.publish_under(undone, "m0", producer="u", sequenceIds=[0])
        house.end(kept, "commit")
        house.end(undone, "abort")
        house.settled()
        machine.clock.advance(10 * SECOND)
        service.on_loop(retention)
        assert left(house)[:2] == (0, 0)
        machine = machine.crash()
    with machine.run() as service:
        house = House(service, machine)
        assert [each["status"] for each in house.topic.send("k", 1, 2)] == ["duplicate", "stored"]
        assert house.topic.send("u", 0)[0]["status"] == "stored"
        assert house.topic.verify()["ok"]


def test_an_older_generation_takes_its_stored_groups_with_it(house: House) -> None:
    pointer = house.start()
    house.topic.store_under(pointer, "old")
    house.topic.request("DELETE", "")
    house.topic = Topic(house.service.url)
    house.topic.store_under(pointer, "new")
    house.service.on_loop(retention)
    assert left(house)[1] == 1
    house.topic.publish_under(pointer)
    house.end(pointer, "commit")
    assert house.now() == ["new"]
