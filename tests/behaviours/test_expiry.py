"""CONTRACT §7.2 and §9: expiry is a one-way street, and a reader that it overtook is told."""

from __future__ import annotations

import pytest

from oncelog import Reader
from oncelog.errors import MessagesExpired, OffsetOutOfRange
from oncelog.wire.models import TopicAsked
from oncelog_service.log.judgements import Judgement, judged, judged_at
from oncelog_service.log.keep import expiry
from tests.rest.talk import Topic
from tests.world.house import HOUR, SECOND, House

YEAR = str(365 * 24 * 3_600)


# --- a one-way street


@pytest.mark.parametrize(("how", "own"), [("crashed", True), ("stopped", False)], ids=["its own ttl", "the topic's ttl"])
def test_what_was_passed_over_as_expired_is_never_delivered_again(house: House, how: str, own: bool) -> None:
    """Whatever is done to the clock and to the ttl: over a restart with the clock set back an hour, and the ttl raised."""
    topic = house.make(ttl=YEAR if own else "60")
    topic.publish("old", **({"ttls": [60]} if own else {}))
    house.clock.advance(61 * SECOND)
    assert topic.payloads() == []
    house.clock.advance(-HOUR)
    house.comes_back(how)
    assert topic.payloads() == []
    house.comes_back(how)  # now nobody has the topic open when its ttl is raised
    assert topic.request("PUT", "/properties", json={"ttl": YEAR}).status_code == 200
    assert topic.payloads() == []
    topic.publish("new")
    for _ in house.lives():
        assert topic.payloads() == ["new"], "what is published now is judged now, however far ahead the clock was"


def test_what_had_expired_when_a_later_message_came_or_the_ttl_was_raised_stays_so_although_nobody_looked(house: House) -> None:
    """That message says which time it was, whatever the clock says now."""
    topic = house.make(ttl="60")
    topic.publish("old")
    house.clock.advance(61 * SECOND)
    topic.publish("new")
    house.clock.advance(-HOUR)
    house.crash()
    assert topic.payloads() == ["new"]
    house.clock.advance(HOUR + 61 * SECOND)
    topic.publish("newest")
    assert topic.request("PUT", "/properties", json={"ttl": YEAR}).status_code == 200
    assert topic.payloads() == topic.payloads(startOffset=0) == ["newest"]
    assert house.retain() == 2
    topic.request("PUT", "/properties", json={"ttl": "5000000"})
    assert topic.payloads() == ["newest"]


def test_topics_younger_than_their_ttl_are_not_looked_at_for_what_has_expired_and_are_closed_in_a_few_writes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes hundreds of them over waits for the stop of the one who had them."""
    topics = [house.make(f"t{number}", ttl="60") for number in range(12)]
    for topic in topics:
        topic.publish("one")
    behind, looks = expiry._behind, list[bytes]()
    monkeypatch.setattr(expiry, "_behind", lambda store, prefix, *rest: (looks.append(prefix), behind(store, prefix, *rest))[1])
    house.clock.advance(59 * SECOND + 999)
    assert all(topic.payloads() == ["one"] for topic in topics)
    before = house.disk.writes
    house.restart()
    assert house.disk.writes - before < 10
    assert all(topic.payloads() == ["one"] for topic in topics)
    assert looks == []
    house.clock.advance(1)
    assert topics[0].payloads() == []
    house.clock.advance(-HOUR)
    house.crash()
    assert topics[0].payloads() == []


def test_what_is_published_behind_a_change_of_the_ttl_lives_although_the_clock_is_set_back(house: House) -> None:
    """It would be stamped with the millisecond of the last message, which the change has expired for good."""
    topic = house.make(ttl="60")
    topic.publish("old")
    house.clock.advance(61 * SECOND)
    assert topic.payloads() == []
    house.clock.advance(-HOUR)
    assert topic.request("PUT", "/properties", json={"ttl": YEAR}).status_code == 200
    topic.publish("new")
    for _ in house.lives():
        assert topic.payloads() == ["new"]


def test_judgements_are_those_that_still_say_something() -> None:
    one = judged((), 100, b"b")
    assert judged(one, 100, b"b") == one
    assert judged(one, 50, b"b") == one, "these rows were judged later already"
    two = judged(one, 50, b"d")
    assert two == (Judgement(100, b"b"), Judgement(50, b"d"))
    assert judged(two, 70, b"e") == (Judgement(100, b"b"), Judgement(70, b"e"))
    assert judged(two, 100, b"e") == (Judgement(100, b"e"),)
    assert [judged_at(two, row, 10) for row in (b"a", b"b", b"c", b"d")] == [100, 50, 50, 10]
    assert judged_at(two, b"a", 200) == 200


# --- a reader is told


@pytest.fixture(params=[True, False], ids=["deleted", "still on disk"])
def deleted(request: pytest.FixtureRequest) -> bool:
    chosen: bool = request.param
    return chosen


@pytest.fixture
def topic(house: House) -> Topic:
    """With ten messages that live for a minute."""
    topic = house.make(ttl="60")
    publish(topic, *range(10))
    return topic


def publish(topic: Topic, *offsets: int) -> None:
    assert topic.publish(*(str(each) for each in offsets)).status_code == 200


def expire(house: House, deleted: bool) -> None:
    house.clock.advance(61 * SECOND)
    if deleted:
        house.retain()


def offsets(reader: Reader[bytes]) -> list[int]:
    return [each.offset for each in reader.read(timeout=0)]


def test_a_reader_that_retention_overtook_is_told_what_is_gone(house: House, topic: Topic, deleted: bool) -> None:
    reader = Reader("t", client=house.client, page_size=5)
    assert offsets(reader) == [0, 1, 2, 3, 4]
    skipping = Reader("t", client=house.client, start=reader.position or 0, on_expired="skip")
    expire(house, deleted)
    publish(topic, 10, 11)
    for _ in range(2):  # told until it says where to go on
        with pytest.raises(MessagesExpired) as told:
            reader.read(timeout=0)
        assert (told.value.first, told.value.earliest, told.value.upcoming) == (5, 10, 12)
    reader.seek("earliest")
    assert offsets(reader) == offsets(skipping) == [10, 11]
    skipping.seek(4, generation=1)
    assert offsets(skipping) == [10, 11]
    assert skipping.lost >= 6


def test_a_reader_that_has_read_all_that_expired_is_told_nothing(house: House, topic: Topic, deleted: bool) -> None:
    client = house.client
    reader, latest = Reader("t", client=client), Reader("t", client=client, start="latest")
    assert len(reader.read()) == 10
    position = reader.position or 0
    expire(house, deleted)
    assert offsets(reader) == offsets(latest) == []
    publish(topic, 10)
    for each in (reader, latest, Reader("t", client=client, start=position), Reader("t", client=client, start=10)):
        assert offsets(each) == [10]
    house.restart()  # nor when all that is known is on disk
    assert offsets(Reader("t", client=house.client, start=position)) == [10]


def test_what_was_rolled_back_or_ended_by_its_own_ttl_is_no_loss(house: House) -> None:
    topic, client, pointer = house.make(ttl="60"), house.client, house.start()
    topic.publish("0")
    with client.transaction() as tx:
        reader = Reader("t", client=client, transaction=tx)
        assert offsets(reader) == [0]
        position = reader.position or 0
    topic.publish_under(pointer, "never")
    house.end(pointer, "abort")
    house.settle()
    house.clock.advance(61 * SECOND)
    topic.publish("2", "short", ttls=[None, 1])
    with client.transaction() as tx:
        reader = Reader("t", client=client, start=position, transaction=tx)
        assert [each.offset for each in reader.read(1, timeout=0)] == [2]
        position = reader.position or 0
    assert client.read_columns("t", 1, 2, refuse_expired=True).offsets == []
    house.clock.advance(1_001)
    assert client.read_columns("t", 3, 4, refuse_expired=True).offsets == []
    topic.publish("4")
    assert offsets(Reader("t", client=client, start=position)) == [4]


def test_a_reader_of_columns_is_told_what_is_gone(house: House, topic: Topic, deleted: bool) -> None:
    client = house.client
    assert client.read_columns("t", 4, 10, refuse_expired=True).next == 10
    expire(house, deleted)
    publish(topic, 10, 11)
    assert client.offsets({"t": TopicAsked(after=4)})["t"].earliest == 10
    with pytest.raises(OffsetOutOfRange if deleted else MessagesExpired) as told:
        client.read_columns("t", 4, 12, refuse_expired=True)
    assert told.value.earliest == 10  # type: ignore[attr-defined]
    if isinstance(told.value, MessagesExpired):
        assert (told.value.first, told.value.upcoming) == (4, 12)
        assert client.read_columns("t", 4, 12).offsets[0].first == 10
    assert client.read_columns("t", 10, 12, refuse_expired=True).next == 12
