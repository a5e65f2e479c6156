"""What was trimmed is gone for every reader and for good; what was erased is gone, and its place stays. Both forget nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncelog import Consumer, MessageId, Outbox, Producer, Reader
from oncelog.errors import (
    CodecError,
    InvalidMessageId,
    InvalidRequest,
    MessagesExpired,
    OffsetOutOfRange,
    StaleMessageId,
)
from oncelog.wire.media import AVRO
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import PublishRequest
from oncelog_service.storage.port import Table
from oncelog_service.storage.runs import decode_run
from tests.rest.talk import Topic, assert_problem, avro_poll, done, hex_id
from tests.world.disk import Gate
from tests.world.house import SECOND, House


def trim(topic: Topic, **asked: int) -> int:
    found: int = topic.good("POST", "/trim", json=asked)["earliestOffset"]
    return found


def erase(topic: Topic, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = topic.good("POST", "/erase", json=asked)
    return found


def erased_by(message: dict[str, Any]) -> str | None:
    """The mark of a message as JSON has it."""
    properties = message["properties"]
    return None if properties is None else properties["map"].get("oncelog.erased")


# --- trim


@pytest.mark.parametrize("deleted", [False, True], ids=["hidden", "deleted"])
def test_a_reader_that_was_overtaken_is_told_and_one_that_has_read_so_far_is_not(house: House, deleted: bool) -> None:
    topic, client = house.topic, house.client
    topic.publish(*"abcd")
    topic.publish(*"efgh")
    url = house.service.url
    with (
        Reader("t", url=url, timeout=0, page_size=2) as behind,
        Reader("t", url=url, timeout=0) as there,
        Consumer("t", subscription="s", url=url) as consumer,
    ):
        assert [each.payload for each in behind.read(2)] == [b"a", b"b"]
        assert [each.payload for each in there.read(4)] == [b"a", b"b", b"c", b"d"]
        consumer.ack(consumer.read(1, timeout=10)[0])
        places = [each.position for each in (behind, there)]
        trim(topic, beforeOffset=4)
        if deleted:
            assert house.retain() == 1
        shown = client.subscription("t", "s")
        assert (shown.cursor, shown.lost, shown.lag) == (1, 3, 4)
        assert [each.payload for each in there.read(10)] == [b"e", b"f", b"g", b"h"]
        with pytest.raises(MessagesExpired):
            behind.read(10)
        assert [each.offset for each in consumer.read(10, timeout=10)][-1] == 7
    for place, told in zip(places, (True, False), strict=True):
        assert isinstance(place, MessageId)
        answer = topic.poll(startFrom={"bytes": bytes(place).decode("latin-1")}, inclusive=False, refuseExpired=True)
        if told:
            problem = assert_problem(answer, 410, "messages_expired")
            assert (problem.get("first"), problem["earliest"], problem["upcoming"]) == (None if deleted else 2, 4, 8)
        else:
            assert [each["payload"] for each in done(answer).json()] == list("efgh")
    found = client.offsets({"t": TopicAsked(timestamp=0)})["t"]
    assert (found.earliest, found.at_timestamp, found.stable) == (4, 4, 8)
    if deleted:
        with pytest.raises(OffsetOutOfRange):
            client.read_columns("t", 0, 8)
    else:
        assert client.read_columns("t", 0, 8).messages == client.read_columns("t", 4, 8).messages == 4
        with pytest.raises(MessagesExpired) as raised:
            client.read_columns("t", 1, 8, refuse_expired=True)
        assert (raised.value.first, raised.value.earliest) == (1, 4)
    client.read_columns("t", 4, 8, refuse_expired=True)


def test_what_was_trimmed_goes_from_disk_however_many_producers_the_snapshots_hold(house: House) -> None:
    """The rows of an expired message wait for snapshots that cost too much; an operator's do not."""
    topic = house.topic
    for number in range(50):
        topic.send(f"p{number}", 0)
    trim(topic, beforeOffset=1)
    assert house.retain() == 1
    assert topic.stats()["snapshotOffset"] == 50


def test_a_repeat_of_a_request_that_is_gone_is_told_where_its_newest_message_was(house: House) -> None:
    topic = house.topic
    topic.send("a", 0, 1, 2)
    stored = topic.send("b", 0, 1, 2)
    topic.publish("last")
    trim(topic, beforeOffset=6)
    assert house.retain() > 0
    for _ in range(2):
        assert topic.send("a", 0, 1, 2)[2]["offset"] == 2
        repeated = topic.send("b", 0, 1, 2, payload="another {}")  # what they said is gone, too
        assert [each["status"] for each in repeated] == ["duplicate"] * 3
        assert [(each["id"], each["offset"]) for each in repeated] == [(None, None), (None, None), (stored[2]["id"], 5)]
        house.restart()
    assert topic.payloads() == ["last"]


def test_a_trim_is_on_disk_when_it_is_answered(house: House, pool: ThreadPoolExecutor) -> None:
    topic = house.topic
    topic.publish(*"abc")
    house.disk.before_sync = gate = Gate()
    trimming = pool.submit(trim, house.aside(), beforeOffset=2)
    assert gate.entered.wait(60)
    house.service.arrived(1)
    assert house.service.server.under_way == 1, "it is not answered yet"
    gate.opened.set()
    assert trimming.result() == 2
    assert topic.payloads() == ["c"]


def test_one_place_is_named_of_the_topics_present_generation(house: House) -> None:
    topic, client = house.topic, house.client
    topic.publish("a")
    old = MessageId.parse(hex_id(topic.read()[0]["id"]))
    house.again()
    topic.publish("b")
    for body in ({}, {"beforeOffset": 1, "beforeTime": 1}, {"beforeOffset": -1}, {"beforeOffset": True}, {"before": 1}):
        assert_problem(topic.request("POST", "/trim", json=body), 400, "invalid_request")
    for body in ({}, {"offset": 1, "messageId": "00" * 20}, {"offset": -1}, {"messageId": "zz"}):
        assert topic.request("POST", "/erase", json=body).status_code == 400
    for path, where in (("/trim", "beforeOffset"), ("/erase", "offset")):
        assert_problem(topic.request("POST", path, json={where: 0, "generation": 1}), 400, "stale_message_id")
    with pytest.raises(StaleMessageId):
        client.erase_message("t", old)
    with pytest.raises(OffsetOutOfRange):
        client.erase_message("t", 1)
    with pytest.raises(OffsetOutOfRange):
        client.trim_topic("t", 2)
    assert topic.payloads() == ["b"]


# --- erase


def test_an_erased_message_keeps_its_place_and_says_nothing(house: House) -> None:
    topic = house.topic
    sent = {"keys": ["k", "l", None], "properties": [{"who": "she"}, None, {"a": "b"}], "ttls": [None, 500, None]}
    topic.send("p", 5, 6, 7, payload="secret-{}", **sent)
    before = topic.read()
    ms = house.clock.now_ms()
    for number, message in enumerate(before):
        asked = {"offset": number} if number else {"messageId": hex_id(message["id"])}
        found = erase(topic, **asked)
        house.clock.advance(1)
        assert (found["offset"], found["messageId"]) == (number, hex_id(message["id"]))
        assert erase(topic, **asked) == found, "erased twice is erased once"
    for life in house.lives():
        after = topic.read()
        assert [each["payload"] for each in after] == [""] * 3, life
        assert [erased_by(each) for each in after] == [str(ms + number) for number in range(3)]
        for one, other in zip(before, after, strict=True):
            kept = {"id", "offset", "producer", "sequenceId", "key", "ttl"}
            assert {name: one[name] for name in kept} == {name: other[name] for name in kept}
        answer = topic.post("/poll", avro_poll(), AVRO)
        assert b"secret" not in answer.content
        assert house.client.read_columns("t", 0, 3, properties=True).messages == 3
    assert all(b"secret" not in row for table in house.disk.tables.values() for row in table.values())
    with Reader("t", url=house.service.url, timeout=0, codec="json") as reader:
        messages = list(reader)
        assert all(each.erased and each.payload == b"" for each in messages)
        with pytest.raises(CodecError, match="erased"):
            _ = messages[0].value


def test_of_an_atomic_commit_each_message_can_be_erased(house: House) -> None:
    client, topic = house.client, house.topic
    house.make("u")
    with client.atomic(id="a1") as batch:
        for each in (b"one", b"secret-a", b"two"):
            batch.send("t", each)
            batch.send("u", each)
    with client.atomic(id="a2", buffer_bytes=1) as batch:
        for each in (b"three", b"secret-b", b"four"):
            batch.send("t", each)
    for offset in (1, 4):
        erase(topic, offset=offset)
    for _ in house.lives():
        assert topic.payloads() == ["one", "", "two", "three", "", "four"]
    assert house.make("u").payloads() == ["one", "secret-a", "two"]


def test_a_message_that_is_gone_is_not_erased_and_an_id_that_is_none_neither(house: House) -> None:
    topic, client = house.topic, house.client
    topic.publish("a")
    topic.publish("b", "c")
    ids = [MessageId.parse(hex_id(each["id"])) for each in topic.read()]
    trim(topic, beforeOffset=2)
    erase(topic, offset=1)  # hidden, and still on disk
    assert house.retain() == 1
    for at in (0, ids[0]):
        with pytest.raises(MessagesExpired) as raised:
            client.erase_message("t", at)
        assert raised.value.earliest == 1
    nowhere = MessageId.from_bytes(bytes(ids[2])[:-1] + b"\x01")
    with pytest.raises((InvalidMessageId, OffsetOutOfRange)):
        client.erase_message("t", nowhere)
    assert topic.payloads() == ["c"]


def test_the_property_that_says_so_is_the_services_own(house: House) -> None:
    topic = house.topic
    forged = [{"oncelog.erased": "1"}]
    assert_problem(topic.publish("x", properties=forged), 400, "invalid_request")
    with pytest.raises(InvalidRequest):
        house.client.publish("t", PublishRequest([b"x"], properties=forged))
    with pytest.raises(InvalidRequest), house.client.atomic() as batch:
        batch.send("t", b"x", properties=forged[0])
    with Producer("t", client=house.client) as producer:
        for payload, mark in ((b"x", "1"), (b"", ""), (b"", "01"), (b"", "-1"), (b"", "1.5"), (b"", "x"), (b"", str(2**62 + 1))):
            (mine,) = [{"oncelog.erased": mark}]
            with pytest.raises(InvalidRequest, match=r"oncelog\.erased"):
                producer.send(payload, properties=mine)  # before it is sent, or those beside it would be refused too
            with pytest.raises(InvalidRequest, match=r"oncelog\.erased"):
                Outbox("o").row("t", payload, properties=mine)
            assert_problem(topic.publish(payload.decode(), properties=[mine]), 400, "invalid_request")
    pointer = house.client.start_transaction().write_pointer
    with pytest.raises(InvalidRequest):
        house.client.store("t", PublishRequest([b"x"], properties=forged, write_pointer=pointer))
    assert topic.payloads() == []


@pytest.mark.parametrize("stored", [False, True], ids=["published", "stored apart"])
def test_a_copy_of_an_erased_message_is_erased_and_what_was_given_beside_the_mark_is_erased_with_it(
    house: House, stored: bool
) -> None:
    topic, client = house.topic, house.client
    copied = PublishRequest(
        [b"", b"b"], properties=[{"oncelog.erased": "17", "copied-from": "somebody"}, None], keys=[b"k", None]
    )
    if stored:
        copied.write_pointer = client.start_transaction().write_pointer
        client.store("t", copied)
        copied = PublishRequest([], write_pointer=copied.write_pointer)
        client.publish_transactional("t", copied)
        client.commit_transaction(copied.write_pointer)
    else:
        client.publish("t", copied)
    for _ in house.lives():
        assert [each["properties"] for each in topic.read()] == [
            {"map": {"oncelog.erased": "17", "copied-from": "somebody"}},
            None,
        ]
    assert erase(topic, offset=0)["erasedMs"] == 17, "when it was erased first"
    for _ in house.lives():
        assert [each["properties"] for each in topic.read()] == [{"map": {"oncelog.erased": "17"}}, None]
        assert topic.payloads() == ["", "b"]
        assert topic.verify()["ok"]


def test_the_row_is_scrubbed_before_and_after_it_is_written(house: House) -> None:
    topic = house.topic
    topic.publish(*"abc")
    (key,) = house.disk.tables[Table.MESSAGE]
    for _ in range(2):
        erase(topic, offset=1)
        assert house.disk.scrubbed == [(Table.MESSAGE, key, False), (Table.MESSAGE, key, True)], "also when it is repeated"
        house.disk.scrubbed.clear()
        house.clock.advance(SECOND)
    run = decode_run(key[:-10], key[-10:], house.disk.tables[Table.MESSAGE][key])
    assert (run.first, len(run)) == (0, 3)
