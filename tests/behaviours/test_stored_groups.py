"""CONTRACT §4.1: what is stored under a write pointer appears as one group, once, and lives and dies as a whole."""

from __future__ import annotations

import pytest

from oncelog_service.storage.port import Table
from tests.rest.talk import assert_problem, receipts
from tests.world.house import HOUR, SECOND, House, told

# --- storing and publishing


def test_an_empty_group_holds_nothing_and_holds_up_no_transaction_from_the_cache_or_from_the_store(house: House) -> None:
    topic, pointer = house.topic, house.start("long")
    published = topic.publish_under(pointer)
    assert receipts(published) == []
    topic.publish("behind")
    for life in house.lives():
        assert house.now() == ["behind"], life
    assert topic.roll_back(published).status_code == 200
    house.end(pointer, "commit")
    assert topic.payloads() == house.now() == ["behind"]
    assert topic.read()[0]["offset"] == 0


@pytest.mark.parametrize("trimmed", [0, 1])
def test_an_empty_group_where_the_log_begins_is_kept_as_other_rows_are(house: House, trimmed: int) -> None:
    topic, pointer = house.topic, house.start()
    topic.publish(*["trimmed"] * trimmed)
    topic.publish_under(pointer)
    topic.publish("plain")
    house.end(pointer, "commit")
    topic.good("POST", "/trim", json={"beforeOffset": trimmed})
    assert house.retain() == trimmed
    assert house.rows(Table.MESSAGE) == (2,)


# --- retries of a named producer


def test_a_repeated_store_and_publish_of_a_named_producer_are_done_once(house: House) -> None:
    topic, pointer = house.topic, house.start("long")
    topic.store_under(pointer, "m0", "m1", producer="p", sequenceIds=[0, 1])
    house.crash()
    again = topic.store_under(pointer, "m0", "m1", "m2", producer="p", sequenceIds=[0, 1, 2])
    assert told(receipts(again)) == "dds"
    reused = topic.store(pointer, "other", producer="p", sequenceIds=[2])
    assert assert_problem(reused, 422, "sequence_reused")["sequence_id"] == 2
    assert_problem(topic.store(pointer, "other", "m3", producer="p", sequenceIds=[1, 3]), 422, "sequence_reused")
    first = topic.publish_under(pointer, producer="p")
    assert told(receipts(first)) == "sss"
    for _ in house.lives():
        repeated = topic.publish_under(pointer, producer="p")
        assert repeated.json() | {"receipts": None} == first.json() | {"receipts": None}, "what rolls it back is the same"
        assert told(receipts(repeated)) == "ddd"
        assert [each["id"] for each in receipts(repeated)] == [each["id"] for each in receipts(first)]
        assert topic.payloads() == ["m0", "m1", "m2"]
    assert topic.roll_back(repeated).status_code == 200
    house.end(pointer, "commit")
    assert house.now() == []


def test_a_group_whose_first_sequence_id_stands_in_the_log_already_is_not_published(house: House) -> None:
    """Its transaction has published that one beside it: all of the group would be there, that message twice."""
    topic, pointer = house.topic, house.start()
    topic.store_under(pointer, "m5", "m6", producer="p", sequenceIds=[5, 6])
    topic.publish_under(pointer, "m5", producer="p", sequenceIds=[5])
    house.crash()
    refused = topic.publish(transactionWritePointer=pointer, producer="p")
    assert assert_problem(refused, 422, "sequence_reused")["sequence_id"] == 5
    assert topic.payloads() == ["m5"]


def test_a_fenced_producer_publishes_no_group(house: House) -> None:
    """Nor one that holds nothing of its own."""
    topic, pointer = house.topic, house.start()
    old, new = (topic.open_producer("p", nonce)["epoch"] for nonce in ("one", "another"))
    topic.store_under(pointer, "a", "b")
    assert_problem(topic.publish(transactionWritePointer=pointer, producer="p", epoch=old), 403, "producer_fenced")
    assert topic.payloads() == []
    topic.publish_under(pointer, producer="p", epoch=new)


def test_gaps_are_refused_in_a_store_as_well(house: House) -> None:
    topic, pointer = house.topic, house.start()
    topic.open_producer("p", "nonce", gaps="refuse")
    topic.send("p", 0)
    topic.store_under(pointer, "m1", "m2", producer="p", sequenceIds=[1, 2])
    house.crash()
    problem = assert_problem(topic.store(pointer, "m4", producer="p", sequenceIds=[4]), 409, "sequence_gap")
    assert (problem["expected"], problem["received"]) == (3, 4)
    topic.store_under(pointer, "m3", producer="p", sequenceIds=[3])
    topic.publish_under(pointer)
    house.end(pointer, "commit")
    assert house.now() == ["m0", "m1", "m2", "m3"]
    assert topic.producer("p")["lastPersisted"] == 3
    assert told(topic.send("p", 3, 4)) == "ds"


def test_what_is_published_already_is_not_stored_and_what_is_only_stored_is_not_published(house: House) -> None:
    topic, pointer, other = house.topic, house.start(), house.start()
    topic.store_under(other, "m0", producer="q", sequenceIds=[0])
    assert_problem(topic.request("GET", "/producers/q"), 404, "producer_not_found")
    house.end(other, "abort")
    house.settle()
    assert told(topic.send("q", 0)) == "s"
    topic.send("p", 0, 1)
    assert told(receipts(topic.store_under(pointer, "m1", "m2", producer="p", sequenceIds=[1, 2]))) == "ds"
    topic.publish_under(pointer)
    assert topic.payloads() == ["m0", "m0", "m1", "m2"]


def test_opening_a_producer_ends_the_transaction_in_which_it_has_stored(house: House) -> None:
    topic, pointer = house.topic, house.start()
    topic.store_under(pointer, "m0", producer="p", sequenceIds=[0])
    assert topic.open_producer("p", "nonce")["lastSequenceId"] is None
    assert house.client.transaction_status(pointer).state == "aborted"
    assert_problem(topic.publish(transactionWritePointer=pointer), 409, "transaction_not_in_progress")


# --- time to live


@pytest.mark.parametrize("how", ["commit", "time out"])
def test_what_is_stored_and_never_published_is_never_seen_and_disappears_with_its_ttl(house: House, how: str) -> None:
    topic, pointer = house.make(ttl="100"), house.start()
    topic.store_under(pointer, "a", "b")
    house.end(pointer, how)
    assert_problem(topic.publish(transactionWritePointer=pointer), 409, "transaction_not_in_progress")
    house.settle()
    house.retain()
    assert house.rows()[1] == 1
    house.clock.advance(100 * SECOND)
    house.retain()
    assert house.rows()[:2] == (0, 0)
    assert topic.payloads() == house.now() == []
    house.clock.advance(26 * HOUR)
    house.retain()
    assert house.rows() == (0, 0, 0), "older pointers are refused anyway"


def test_what_a_transaction_in_progress_has_stored_stays_and_what_a_foreign_pointer_has_expires_as_a_whole(house: House) -> None:
    house.restart(foreign_write_pointers=True)
    topic, pointer = house.make(ttl="1"), house.start("long")
    foreign = (house.clock.ms - SECOND) * 1_000_000
    for each in (pointer, foreign):
        topic.store_under(each, "a")
    house.clock.advance(10 * SECOND)
    house.retain()
    for refused in (topic.publish(transactionWritePointer=foreign), topic.store(foreign, "b")):
        assert "expired" in assert_problem(refused, 409, "stored_group_published")["detail"]
    topic.store_under(pointer, "b")
    topic.publish_under(pointer)
    house.end(pointer, "commit")
    assert topic.payloads() == house.now() == ["a", "b"]


def test_a_stored_group_lives_and_dies_by_its_publish_time(house: House) -> None:
    """Cleaning up by each payload's own write time beheaded living groups elsewhere."""
    topic, pointer = house.make(ttl="100"), house.start("long")
    topic.store_under(pointer, "a")
    house.clock.advance(90 * SECOND)
    topic.store_under(pointer, "b", "short", ttls=[None, 2])
    house.clock.advance(5 * SECOND)
    topic.publish_under(pointer)
    house.end(pointer, "commit")
    house.settle()
    for ms, left in ((0, "ab+"), (2 * SECOND - 1, "ab+"), (1, "ab"), (97 * SECOND, "ab"), (SECOND - 1, "ab"), (1, "")):
        house.clock.advance(ms)
        expected = [*left.replace("+", ""), *(["short"] if "+" in left else [])]
        assert topic.payloads() == house.now() == expected, "from the first millisecond"
        house.retain()
        assert topic.payloads() == expected
    assert house.rows()[:2] == (0, 0)


def test_a_log_is_trimmed_only_up_to_what_is_unsettled(house: House) -> None:
    """Its producers' maps may yet step back behind it."""
    topic = house.make(ttl="100")
    topic.send("p", 0, 1)
    pointer, stored = house.start("long"), house.start()
    topic.publish_under(pointer, "m2", producer="p", sequenceIds=[2])
    topic.store_under(stored, "a")
    topic.publish_under(stored)
    house.end(stored, "abort")
    house.settle()
    house.clock.advance(100 * SECOND - 1)
    house.retain()
    assert topic.payloads() == ["m0", "m1", "m2", "a"], "what was rolled back stays until its ttl"
    house.clock.advance(1)
    house.retain()
    assert topic.payloads() == house.now() == []
    assert (topic.stats()["earliestOffset"], house.rows()[0]) == (2, 2)
    house.end(pointer, "abort")
    house.settle()
    house.retain()
    assert (topic.stats()["earliestOffset"], house.rows()[:2]) == (4, (0, 0))
    assert topic.producer("p")["lastPersisted"] == 1, "TTL makes nobody forget, and the abort counts"
    assert told(topic.send("p", 1, 2)) == "ds"


def test_an_older_generation_takes_its_stored_groups_with_it(house: House) -> None:
    topic, pointer = house.topic, house.start()
    topic.store_under(pointer, "old")
    house.again()
    topic.store_under(pointer, "new")
    house.retain()
    assert house.rows(Table.PAYLOAD) == (1,)
    topic.publish_under(pointer)
    house.end(pointer, "commit")
    assert house.now() == ["new"]
