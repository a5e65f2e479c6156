"""What CDAP's clients may bring in one request where they are served, and that one such request is under way at a time."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from oncelog.wire.avro_parts import encode_bytes, encode_long
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog_service.bounds.cdap import BODY_BYTES, MESSAGES, announced, weight
from oncelog_service.bounds.turns import AHEAD_BYTES
from tests.rest.talk import Topic, assert_problem, avro_poll, avro_publish, done
from tests.rest.test_everything import numbers
from tests.rest.test_fair import held, waits
from tests.world.house import House

MANY = 10_001
"""More than others may bring."""


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with House(cdap_clients=True, max_inflight_bytes=64 * 2**20) as found:
        yield found


def post(topic: Topic, body: bytes, media: str = AVRO, path: str = "/publish") -> requests.Response:
    return topic.post(path, body, media)


def large(size: int) -> bytes:
    """A body of so many bytes, 8 MiB or more."""
    payloads = [bytes(1_000_000)] * (size // 2**20)
    rest = size - len(avro_publish(*payloads)) - 3
    found = avro_publish(*payloads, bytes(rest))
    assert len(found) == size
    return found


def in_blocks(*payloads: bytes) -> bytes:
    """A PublishRequest, each of whose messages is a block of its own."""
    return b"\x02" + b"".join(encode_long(1) + encode_bytes(each) for each in payloads) + b"\x00"


def test_a_transaction_s_messages_of_a_topic_go_in_one_request_and_are_read_rolled_back_and_committed_as_any(
    house: House,
) -> None:
    topic = house.make("transactional")
    kept, undone = house.start("long"), house.start("long")
    payloads = [b"%d" % number for number in range(MESSAGES)]
    done(post(topic, avro_publish(*payloads, transactionWritePointer=kept)))
    answer = done(post(topic, avro_publish(*payloads[:MANY], transactionWritePointer=undone)))
    done(topic.post("/rollback", answer.content, AVRO))
    house.end(undone, "abort")
    house.end(kept, "commit")
    house.settle()
    assert numbers(done(post(topic, avro_poll(), path="/poll?isolation=committed")).content) == [*range(MESSAGES)]
    assert len(numbers(done(post(topic, avro_poll(), path="/poll")).content)) == MESSAGES + MANY
    (start,) = topic.read(startOffset=MESSAGES - 1, limit=1)
    behind = avro_poll(startFrom=start["id"].encode("latin-1"), limit=2)
    assert numbers(done(post(topic, behind, path="/poll")).content) == [MESSAGES - 1, 0]


def test_what_is_stored_may_be_as_many(house: House) -> None:
    topic, pointer = house.make("stored"), house.start("long")
    done(post(topic, avro_publish(*[b"x"] * MANY, transactionWritePointer=pointer), path="/store"))
    done(post(topic, avro_publish(transactionWritePointer=pointer)))
    assert topic.stats()["upcomingOffset"] == MANY


def test_bodies_are_as_large_also_packed_and_no_larger(house: House) -> None:
    topic = house.make("large")
    body = large(BODY_BYTES)
    done(post(topic, body))
    headers = {"content-type": AVRO, "content-encoding": "gzip"}
    done(topic.request("POST", "/publish", data=gzip.compress(body, 1), headers=headers))
    assert topic.stats()["upcomingOffset"] == 2 * 17
    assert assert_problem(post(topic, large(BODY_BYTES + 1)), 413, "request_too_large")["limit"] == BODY_BYTES
    assert assert_problem(post(topic, avro_publish(*[b""] * (MESSAGES + 1))), 413, "request_too_large")["limit"] == MESSAGES


@pytest.mark.parametrize(
    ("path", "media", "body", "limit"),
    [
        ("/publish", ONCELOG_AVRO, avro_publish(*[b""] * MANY, media=ONCELOG_AVRO), MANY - 1),
        ("/publish", JSON, b'{"messages": [%s""]}' % (b'"",' * (MANY - 1)), MANY - 1),
        ("/publish", ONCELOG_AVRO, bytes(8 * 2**20 + 1), 8 * 2**20),
        ("/poll", AVRO, bytes(8 * 2**20 + 1), 8 * 2**20),
        ("/publish", AVRO, in_blocks(*[b""] * MANY), MANY - 1),
    ],
    ids=["messages", "messages in JSON", "bytes", "bytes of a poll", "more than the first block announces"],
)
def test_nothing_else_may_be_so_large(house: House, path: str, media: str, body: bytes, limit: int) -> None:
    assert assert_problem(post(house.topic, body, media, path), 413, "request_too_large")["limit"] == limit


def test_without_the_setting_nobody_may() -> None:
    with House() as house:
        assert assert_problem(post(house.topic, avro_publish(*[b""] * MANY)), 413, "request_too_large")["limit"] == MANY - 1
        assert assert_problem(post(house.topic, large(8 * 2**20 + 1)), 413, "request_too_large")["limit"] == 8 * 2**20


def test_one_of_many_messages_waits_its_turn_however_few_bytes_they_have_and_small_ones_go_on(house: House) -> None:
    first, second = house.make("first"), house.make("second")
    with ThreadPoolExecutor(1) as threads:
        with held(house.service):
            waiting = threads.submit(post, first, avro_publish(*[b""] * MANY))
            waits(house.service)
            done(post(second, avro_publish(*[b""] * (MANY - 1))))
            assert not waiting.done()
            assert first.stats()["upcomingOffset"] == 0
        done(waiting.result())
    assert first.stats()["upcomingOffset"] == MANY


@pytest.mark.parametrize("pointer", [None, 1, 2**63 - 1])
@pytest.mark.parametrize("messages", [0, 1, MESSAGES, 2**40])
def test_the_first_block_says_how_many_there_are(pointer: int | None, messages: int) -> None:
    branch = b"\x02" if pointer is None else b"\x00" + encode_long(pointer)
    assert announced(branch + encode_long(messages)) == messages
    assert announced(branch + encode_long(-messages) + b"\x02") == messages, "with its size"
    body = branch + encode_long(messages) + bytes(100)
    assert weight(body, MESSAGES - 1) == (AHEAD_BYTES + 1 if messages >= MESSAGES else len(body))


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x02", b"\x00\x80", b"\xff" * 100, b"\x00" + b"\xff" * 100])
def test_where_nothing_can_be_read_nothing_is_announced(body: bytes) -> None:
    assert announced(body) == 0
