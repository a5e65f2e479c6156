"""A topic takes no more bytes than it may: it refuses more, or its oldest messages go, as its properties say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import requests

from oncelog import Producer, errors
from oncelog.wire.models import NamespacePolicies
from oncelog_service.storage.port import Table
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, done
from tests.world.disk import Gate
from tests.world.house import House, told

LIMIT, POLICY = "max.bytes", "max.bytes.policy"
PAYLOAD = "x" * 100


def size_of_one(house: House) -> int:
    """What a message takes whose payload is PAYLOAD, and whose offset is small."""
    measured = house.make("measured")
    if not measured.stats()["bytes"]:
        done(measured.publish(PAYLOAD))
    found: int = measured.stats()["bytes"]
    assert found > len(PAYLOAD)
    return found


def limited(house: House, messages: int, name: str = "t", **properties: str) -> Topic:
    """A topic with room for so many messages, each of PAYLOAD, with a named producer or without, and half a one more."""
    one = size_of_one(house)
    return house.make(name, **{LIMIT: str(messages * (one + 4) + one // 2), **properties})


def assert_full(answer: requests.Response) -> None:
    problem = assert_problem(answer, 429, "quota_exceeded")
    assert (problem["quota"], problem.get("retry_after_ms")) == (LIMIT, None)
    assert "retry-after" not in answer.headers
    assert "ratelimit" not in answer.headers


def trim(topic: Topic, before: int) -> None:
    done(topic.request("POST", "/trim", json={"beforeOffset": before}))


def idle(house: House) -> None:
    """Return when no topic trims itself any more."""

    async def stop(service: Any) -> None:
        for log in list(service.opening.topics.logs.opened.values()):
            await log.trimming.stop()

    house.service.on_loop(stop)


# --- refuse


def test_what_a_full_topic_has_no_room_for_is_refused_and_leaves_nothing(house: House) -> None:
    topic = limited(house, 3)
    for each in range(3):
        topic.send("p", each, payload=PAYLOAD)
    before = topic.stats()
    for _ in house.lives():
        assert_full(topic.publish(PAYLOAD, producer="p", sequenceIds=[3]))
        assert_full(topic.publish(PAYLOAD))
        assert told(topic.send("p", 0, 1, 2, payload=PAYLOAD)) == "ddd", "what is there is answered, full or not"
        after = topic.stats()
        assert [after[each] for each in ("bytes", "maxBytes", "upcomingOffset")] == [
            *(before["bytes"], before["maxBytes"], before["upcomingOffset"])
        ]
        assert topic.producer("p")["lastPushed"] == 2
    trim(topic, 1)
    assert told(topic.send("p", 3, payload=PAYLOAD)) == "s", "a trim makes room at once"
    house.crash()
    assert_full(topic.publish(PAYLOAD))
    assert topic.stats()["bytes"] <= topic.stats()["maxBytes"]


def test_what_expires_and_what_is_erased_makes_room(house: House) -> None:
    topic = limited(house, 2, ttl="10")
    for _ in range(2):
        done(topic.publish(PAYLOAD))
    done(topic.request("POST", "/erase", json={"offset": 0}))
    taken = topic.stats()["bytes"]
    done(topic.request("POST", "/erase", json={"offset": 0}))
    assert topic.stats()["bytes"] == taken, "erased twice is erased once"
    done(topic.publish("y" * 40))
    assert_full(topic.publish(PAYLOAD))
    house.clock.advance(11_000)
    house.clock.advance(24 * 3_600_000)  # idle: what is expired goes whatever the snapshots cost
    house.retain()
    assert topic.stats()["bytes"] == 0
    house.crash()
    assert topic.stats()["bytes"] == 0
    done(topic.publish(PAYLOAD))
    house.again()
    assert (topic.stats()["bytes"], topic.stats()["maxBytes"]) == (0, None), "made anew, it is another topic"


def test_requests_that_come_at_once_do_not_pass_it_together(house: House, pool: ThreadPoolExecutor) -> None:
    topic = limited(house, 3)
    house.disk.before_sync = gate = Gate()
    answers = [house.at_once(pool, "publish", PAYLOAD) for _ in range(8)]
    gate.entered.wait(PATIENCE)
    until(lambda: sum(each.done() for each in answers) == 5, "five are refused while three are being written")
    gate.opened.set()
    assert sorted(each.result(PATIENCE).status_code for each in answers) == [200] * 3 + [429] * 5
    assert len(topic.read()) == 3


def test_a_transaction_is_refused_when_it_writes_and_what_is_rolled_back_counts_until_it_goes(house: House) -> None:
    topic = limited(house, 2)
    pointer = house.start()
    topic.publish_under(pointer, PAYLOAD)
    assert_full(topic.publish(PAYLOAD, PAYLOAD, transactionWritePointer=pointer))
    topic.publish_under(pointer, PAYLOAD)
    house.end(pointer, "abort")
    house.settle()
    assert_full(topic.publish(PAYLOAD))
    trim(topic, 2)
    done(topic.publish(PAYLOAD))


def test_what_is_stored_counts_when_it_appears_and_what_never_could_is_not_stored(house: House) -> None:
    topic = limited(house, 3)
    pointer = house.start()
    topic.store_under(pointer, PAYLOAD, PAYLOAD)
    assert topic.stats()["bytes"] == 0
    assert_full(topic.store(pointer, *[PAYLOAD] * 3))
    done(topic.publish(PAYLOAD, PAYLOAD))
    assert_full(topic.publish(transactionWritePointer=pointer))
    house.crash()
    assert_full(topic.publish(transactionWritePointer=pointer))
    trim(topic, 2)
    done(topic.publish(transactionWritePointer=pointer))
    house.end(pointer, "commit")
    house.settle()
    assert_full(topic.publish(PAYLOAD, PAYLOAD))
    for _ in house.lives():
        assert topic.payloads() == [PAYLOAD] * 2
        taken = topic.stats()["bytes"]
        assert 2 * len(PAYLOAD) < taken < topic.stats()["maxBytes"]
    done(topic.request("POST", "/erase", json={"offset": 2}))
    assert topic.stats()["bytes"] < taken - 50
    taken = topic.stats()["bytes"]
    house.crash()
    assert topic.stats()["bytes"] == taken


def commit(house: House, id_: str, **parts: int) -> requests.Response:
    carried = [
        {"namespace": "default", "topic": name, "request": {"messages": [PAYLOAD] * count}}
        for name, count in parts.items()
        if count
    ]
    url = f"{house.service.url}/v1/atomic/{id_}/commit"
    return requests.post(url, json={"group": "g", "parts": carried}, timeout=TIMEOUT)


def test_an_atomic_commit_finds_room_on_all_of_its_topics_or_changes_none(house: House) -> None:
    wide, narrow = limited(house, 9, "wide"), limited(house, 2, "narrow")
    assert_full(commit(house, "a", wide=3, narrow=3))
    assert (wide.stats()["bytes"], narrow.stats()["bytes"], wide.read()) == (0, 0, [])
    done(commit(house, "b0", wide=2, narrow=1))
    done(commit(house, "b1", wide=1, narrow=1))
    assert_full(commit(house, "c", wide=1, narrow=1))
    trim(narrow, 1)
    done(commit(house, "c", wide=1, narrow=1))
    assert (len(wide.read()), len(narrow.read())) == (4, 2)


def test_how_much_an_atomic_commit_of_many_messages_takes_is_known_before_they_have_ids(house: House) -> None:
    topic = limited(house, 100)
    done(commit(house, "many", t=60))
    assert_full(commit(house, "more", t=60))
    assert len(topic.read()) == 60


def test_what_is_staged_is_refused_where_it_never_had_room_and_else_when_it_is_committed(house: House) -> None:
    topic = limited(house, 3)
    done(requests.post(f"{house.service.url}/v1/atomic", json={"id": "a", "group": "g"}, timeout=TIMEOUT))
    stage = f"{topic.url}/stage/a/"
    done(requests.put(stage + "0", json={"messages": [PAYLOAD] * 2}, timeout=TIMEOUT))
    assert_full(requests.put(stage + "1", json={"messages": [PAYLOAD] * 3}, timeout=TIMEOUT))
    for _ in range(2):
        done(topic.publish(PAYLOAD))
    assert_full(commit(house, "a"))
    assert_full(commit(house, "a", t=1))
    trim(topic, 1)
    assert_full(commit(house, "a", t=1))
    done(commit(house, "a"))
    assert topic.payloads() == [PAYLOAD] * 3
    house.crash()
    assert_full(topic.publish(PAYLOAD))


def test_a_producer_of_the_sdk_is_told_at_once(house: House) -> None:
    topic = limited(house, 1)
    done(topic.publish(PAYLOAD))
    with Producer("t", name="p", url=house.service.url, delivery_timeout=PATIENCE) as producer:
        with pytest.raises(errors.QuotaExceeded) as refused:
            producer.send(PAYLOAD.encode())
        assert (refused.value.quota, refused.value.limit, refused.value.definite) == (LIMIT, topic.stats()["maxBytes"], True)


# --- trim


def test_the_oldest_messages_go_soon_and_their_sequence_ids_are_known_for_good(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    topic = limited(house, 10, **{POLICY: "trim"})
    with caplog.at_level(logging.INFO, "oncelog_service.log.keep.trimming"):
        for each in range(25):
            topic.send("p", each, payload=PAYLOAD)
            idle(house)
            stats = topic.stats()
            assert stats["bytes"] <= stats["maxBytes"]
            assert min(each + 1, 9) <= len(topic.read()) <= 10, "the newest stay"
    assert 5 < len(caplog.records) < 20
    earliest = topic.stats()["earliestOffset"]
    problem = assert_problem(topic.poll(startOffset=0, refuseExpired=True), 410, "messages_expired")
    assert problem["earliest"] == earliest
    assert house.rows(Table.MESSAGE) == (25 - earliest + 1,), "rows are deleted, those of the other topic apart"
    for _ in house.lives():
        assert told(topic.send("p", *range(25), payload=PAYLOAD)) == "d" * 25
        assert (topic.stats()["earliestOffset"], topic.stats()["upcomingOffset"]) == (earliest, 25)


def test_what_transactions_write_at_once_cannot_pass_it_together(house: House, pool: ThreadPoolExecutor) -> None:
    topic = limited(house, 3, **{POLICY: "trim"})
    pointers = [house.start() for _ in range(6)]
    house.disk.before_sync = gate = Gate()
    answers = [house.at_once(pool, "publish", PAYLOAD, transactionWritePointer=each) for each in pointers]
    gate.entered.wait(PATIENCE)
    gate.opened.set()
    assert sorted(each.result(PATIENCE).status_code for each in answers) == [200] * 3 + [429] * 3
    idle(house)
    assert topic.stats()["heldMessages"] == 3


def test_a_topic_that_may_have_less_from_now_on_is_trimmed_open_or_not(house: House) -> None:
    topic = house.make()
    for each in range(10):
        done(topic.publish(PAYLOAD, producer="p", sequenceIds=[each]))
    one = topic.stats()["bytes"] // 10
    done(topic.request("PUT", "/properties", json={LIMIT: 5 * one, POLICY: "trim"}))
    idle(house)
    assert topic.stats()["earliestOffset"] == 6
    done(topic.request("PUT", "/properties", json={LIMIT: 9 * one}))
    house.restart()
    done(topic.request("PUT", "/properties", json={LIMIT: 2 * one, POLICY: "trim"}))
    house.retain()
    idle(house)
    assert topic.stats()["earliestOffset"] == 9


# --- properties and policies


def test_the_namespace_says_what_holds_where_a_topic_does_not(house: House) -> None:
    one = size_of_one(house) + 4
    free, own = house.make("free"), house.make("own", **{POLICY: "refuse", LIMIT: str(one)})
    with policies(house, max_bytes=2 * one, max_bytes_policy="trim"):
        for _ in range(6):
            done(free.publish(PAYLOAD))
            idle(house)
        assert [each["offset"] for each in free.read()] == [5] or len(free.read()) == 2
        done(own.publish(PAYLOAD))
        assert_full(own.publish(PAYLOAD))
        assert (free.stats()["maxBytes"], own.stats()["maxBytes"]) == (2 * one, one)
        house.restart()
        done(free.publish(PAYLOAD))
    with policies(house, max_bytes=2 * one):
        assert_full(free.publish(PAYLOAD, PAYLOAD))
    done(free.publish(*[PAYLOAD] * 9))
    assert free.stats()["maxBytes"] is None


@contextmanager
def policies(house: House, **said: Any) -> Iterator[None]:
    house.client.set_policies(NamespacePolicies(**said))
    assert house.client.policies() == NamespacePolicies(**said)
    yield
    house.client.set_policies(NamespacePolicies())


def test_what_is_no_policy_is_refused(house: House) -> None:
    for value in ("", "drop", 1):
        assert_problem(house.topic.request("PUT", "/properties", json={POLICY: value}), 400, "invalid_request")


def test_of_a_request_of_many_runs_nothing_goes_to_make_room_for_itself(house: House) -> None:
    topic = house.make(**{LIMIT: "210000", POLICY: "trim"})
    done(topic.publish("x" * 10_000))
    done(topic.publish(*["x" * 10_000] * 20))
    idle(house)
    assert [each["offset"] for each in topic.read(limit=100)] == list(range(1, 21))
    assert topic.stats()["bytes"] > 210_000 * 15 // 16
