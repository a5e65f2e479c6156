"""Where readers and consumers go next: each message once and in order, over pages, ends, expiry, forks and seeks. No thread, no
socket, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Message, MessageId
from oncelog.errors import MessagesExpired
from oncelog.reading.position import ConsumerPosition, Found, HeldUp, PageSize, ReaderPosition, Record, Upto, delivered_by_now
from oncelog.wire.codec import decode_polled, encode
from oncelog.wire.isolation import Held
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import ConsumeRequest, Polled

MS = 1_700_000_000_000
"""When the first message of a log was published; each one behind it a millisecond later."""
NOTHING = Polled([], None, 1, 0)
"""What a topic answers that has no message."""


def id_of(offset: int) -> MessageId:
    return MessageId(MS + offset, 0)


def record(offset: int, ttl: int | None = None) -> Record:
    return {"id": bytes(id_of(offset)), "offset": offset, "payload": b"%d" % offset, "ttl": ttl}


def page(*offsets: int, now_ms: int | None = None, ttl_ms: int | None = None, ttl: int | None = None) -> Polled:
    return Polled([record(each, ttl) for each in offsets], bytes(id_of(offsets[-1])), 1, None, now_ms, ttl_ms)


def offsets(records: Sequence[Record]) -> list[int]:
    return [each["offset"] for each in records]


def reader(start: Any = "earliest", *, skips: bool = False, **options: Any) -> ReaderPosition:
    at = ReaderPosition(skips)
    at.begin(start, **options)
    return at


def answer(at: ReaderPosition, polled: Polled, transaction: bytes | None = None, now: float = 0.0) -> Found:
    return at.answered(at.asks(5, 0, transaction), polled, now)


def of_topic(at: ReaderPosition, topic: str) -> ReaderPosition:
    at.source = at.source._replace(namespace="default", topic=topic)
    return at


def test_it_is_known_what_the_readings_of_a_topic_have_delivered() -> None:
    one, silent, other = of_topic(reader(), "one"), of_topic(reader(), "one"), of_topic(reader(), "other")
    for each in (one, other):
        answer(each, page(0, 1, 2))
        each.take(2)
    answer(silent, page(0))
    begun = one.source.reading
    assert delivered_by_now("default", "one") == {begun: bytes(id_of(1))}
    one.begin(id_of(0))
    assert (delivered_by_now("default", "one"), one.source.reading == begun) == ({}, False), "a seek begins another reading"


# --- where it begins


def test_what_a_start_asks_for() -> None:
    raw = bytes(id_of(7))
    table: list[tuple[Any, bool, ConsumeRequest, bytes | None]] = [
        ("earliest", False, ConsumeRequest(), None),
        (id_of(7), False, ConsumeRequest(raw, inclusive=False, refuse_expired=True), raw),
        (id_of(7), True, ConsumeRequest(raw, inclusive=True, refuse_expired=True), None),
        (3, False, ConsumeRequest(start_offset=3, refuse_expired=True), None),
        (datetime(1970, 1, 1, 0, 0, 0, 1500, UTC), False, ConsumeRequest(2), None),
        (datetime(1960, 1, 1, tzinfo=UTC), False, ConsumeRequest(0), None),
    ]
    for start, inclusive, request, delivered in table:
        at = reader(start, inclusive=inclusive)
        request.limit, request.wait = 5, 250
        assert (at.asks(5, 250), at.delivered) == (request, delivered), start


@pytest.mark.parametrize("start", [datetime(2026, 1, 1), "newest", "", -1, True, 1.5, None, b"x" * 20])  # noqa: DTZ001
def test_what_is_no_start_is_refused_and_moves_nothing(start: Any) -> None:
    at = reader(3, generation=4)
    before = at.asks(5)
    with pytest.raises(ValueError, match="start"):
        at.begin(start)
    assert at.asks(5) == before
    assert before.generation == 4, "what the offset belongs to is not forgotten either"


# --- answers


def test_what_an_empty_answer_means() -> None:
    passed_over, undecided = Polled([], bytes(id_of(9)), 1), Polled([], None, 1)
    table = [(passed_over, None, Found.MORE), (NOTHING, None, Found.END), (NOTHING, b"tx", Found.END)]
    table += [(undecided, None, Found.END), (undecided, b"tx", Found.UNDECIDED)]
    for polled, transaction, found in table:
        assert answer(reader(), polled, transaction) is found


def test_the_generation_that_answered_is_asked_for_from_then_on_and_a_seek_says_another() -> None:
    at = reader(3)
    assert at.asks(5).generation is None
    assert answer(at, page(3)) is Found.MORE
    assert at.asks(5) == ConsumeRequest(bytes(id_of(3)), inclusive=False, limit=5, wait=0, generation=1, refuse_expired=True)
    at.begin(0)
    assert (at.asks(5).generation, at.delivered, list(at.records)) == (None, None, [])


@pytest.mark.parametrize(("start", "offset"), [("earliest", 4), (2, 2), (datetime(2026, 1, 1, tzinfo=UTC), None)])
def test_a_reader_from_the_oldest_that_finds_none_misses_nothing_from_then_on(start: Any, offset: int | None) -> None:
    at = reader(start)
    answer(at, NOTHING._replace(upcoming=4))
    assert (at.asks(5).start_offset, at.asks(5).refuse_expired) == (offset, offset is not None)
    at.rewind()
    assert at.asks(5).start_offset == offset


# --- what expires


def test_a_message_whose_own_ttl_is_shorter_expires_before_older_ones_and_a_consumer_keeps_those() -> None:
    fields = {"producer": None, "sequenceId": None, "key": None, "properties": None}
    messages = [{**fields, **record(offset), "ttl": 2 if offset == 1 else None} for offset in range(3)]
    body = encode("ConsumeResponse", ONCELOG_AVRO, {"messages": messages, "position": bytes(id_of(2)), "now": MS, "ttl": 90_000})
    consumer = ConsumerPosition()
    consumer.answered(decode_polled(body), 0.0)
    assert consumer.fresh_until == pytest.approx(2.001)
    consumer.drop_expired(3.0)
    assert (offsets(consumer.records), consumer.fresh_until) == ([0, 2], 90.0)


@pytest.mark.parametrize(
    ("read", "first", "earliest", "lost"),
    [(0, 2, 7, 5), (0, None, 7, 7), (3, None, 7, 4), (3, 4, 7, 3)],
)
def test_what_retention_took_is_told_or_skipped_and_counted(read: int, first: int | None, earliest: int, lost: int) -> None:
    def overtaken(at: ReaderPosition) -> MessagesExpired:
        if read:
            answer(at, page(*range(read)))
            at.take(read)
        return MessagesExpired(first=first, earliest=earliest, upcoming=9)

    told = reader()
    with pytest.raises(MessagesExpired) as caught:
        told.expired(overtaken(told))
    assert caught.value.first == (first if first is not None else read or None)
    at = reader(skips=True)
    assert at.expired(overtaken(at)) == at.lost == lost
    assert (at.asks(5).start_offset, at.asks(5).refuse_expired) == (earliest, True)
    at.rewind()
    assert at.asks(5).start_offset == earliest
    assert at.expired(MessagesExpired(first=None, earliest=earliest + 2, upcoming=20)) == 2, "from where it was put"


def test_messages_polled_ahead_are_not_delivered_after_they_expired() -> None:
    """Published at 0 ms, polled at 50 s of the local clock when the service's said 10 ms."""
    cases = [(None, 3_000, 52.99), (1, 3_000, 50.99), (9, 3_000, 52.99), (None, 1 << 60, inf)]
    for ttl, ttl_ms, ends in cases:
        for at in (reader(), ConsumerPosition()):
            polled = page(0, now_ms=MS + 10, ttl_ms=ttl_ms, ttl=ttl)
            answer(at, polled, now=50.0) if isinstance(at, ReaderPosition) else at.answered(polled, 50.0)
            assert at.fresh_until == pytest.approx(ends) or at.fresh_until > 1e12
            at.drop_expired(min(ends, 1e9) - 0.001)
            assert len(at.records) == 1
            if ends < inf:
                at.drop_expired(ends + 0.001)
                assert (len(at.records), at.fresh_until) == (0, inf)


def test_a_reader_asks_again_for_those_that_live() -> None:
    at = reader()
    answer(at, Polled([record(0), record(1, ttl=60), record(2)], bytes(id_of(2)), 1, None, MS, 90_000))
    at.take(1)
    at.drop_expired(60.5)
    assert (list(at.records), at.asks(5).start_from, at.asks(5).refuse_expired) == ([], bytes(id_of(0)), True)


# --- any history


class Log:
    """What a service answers of a log of which some rows are passed over."""

    def __init__(self, kept: list[bool]) -> None:
        self.kept = kept

    def poll(self, asked: ConsumeRequest) -> Polled:
        start = asked.start_offset or 0
        if isinstance(asked.start_from, bytes):
            start = MessageId.from_bytes(asked.start_from).publish_timestamp - MS + (not asked.inclusive)
        upto = min(start + (asked.limit or 1), len(self.kept))
        records = [record(each) for each in range(start, upto) if self.kept[each]]
        if start >= len(self.kept):
            return Polled([], None, 1, len(self.kept))
        return Polled(records, bytes(id_of(upto - 1)), 1)


@given(
    st.lists(st.booleans(), max_size=25),
    st.integers(1, 4),
    st.lists(st.sampled_from(["ask", "take one", "take all", "rewind", "resume", "grow"]), max_size=60),
)
def test_after_any_history_each_message_was_delivered_once_and_in_order(kept: list[bool], size: int, steps: list[str]) -> None:
    log, at, delivered = Log(list(kept)), ReaderPosition(), list[int]()
    for step in [*steps, *["ask", "take all"] * (len(kept) + len(steps) + 2)]:
        if step == "ask":
            asked = at.asks(size)
            at.answered(asked, log.poll(asked), 0.0)
        elif step == "take one" and at.records:
            delivered += offsets(at.take(1))
        elif step == "take all" and at.records:
            delivered += offsets(at.take(100))
        elif step == "rewind":  # as in a forked child, or where what is held has expired
            at.rewind()
        elif step == "resume" and at.delivered is not None:  # as another process does with the position that was noted
            position, at = at.delivered, ReaderPosition()
            at.begin(MessageId.from_bytes(position))
        elif step == "grow":
            log.kept.append(True)
    assert delivered == [offset for offset, each in enumerate(log.kept) if each]


# --- consumers


def test_a_consumer_begins_at_the_cursor_and_goes_on_behind_each_answer() -> None:
    at = ConsumerPosition()
    assert (at.asks(3, 1, 5).after, at.asks(3, 1, 5, 250).wait) == (None, 250)
    for polled, found in ((page(0, 1), Found.MORE), (Polled([], None), Found.END)):
        assert (at.answered(polled, 0.0), at.asks(3, 1, 5).after) == (found, id_of(1))
    at.take(1)
    at.begin()
    assert (at.asks(3, 1, 5).after, at.delivered, list(at.records)) == (None, None, [])


def test_only_what_was_delivered_since_it_began_is_acknowledged_by_its_offset() -> None:
    at = ConsumerPosition()
    messages = [Message[bytes](record(each)) for each in range(4)]
    assert at.upto(messages[1]) == Upto(id_of(1), None)
    at.answered(page(1, 2, 3), 0.0)
    at.take(2)
    assert [at.upto(each).offset for each in messages] == [None, 1, 2, None]
    assert at.upto(id_of(1)) == Upto(id_of(1), None)
    by_offset, by_id = at.upto(messages[2]).asks(3, 7), at.upto(id_of(2)).asks(3, 7)
    assert (by_offset.offset, by_offset.message_id, by_offset.generation, by_offset.epoch) == (2, None, 7, 3)
    assert (by_id.offset, by_id.message_id) == (None, id_of(2))
    for wrong in (3, "3", None, b"x" * 20):
        with pytest.raises(TypeError):
            at.upto(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("upto", "left", "after"), [(1, [2, 3], 3), (3, [], 3), (9, [], 9)])
def test_what_is_acknowledged_before_it_is_delivered_is_passed_over(upto: int, left: list[int], after: int) -> None:
    at = ConsumerPosition()
    at.answered(page(0, 1, 2, 3), 0.0)
    at.take(1)
    assert not at.acknowledged(Upto(id_of(0), None))
    assert at.acknowledged(Upto(id_of(upto), None))
    for _ in range(2):
        at.pass_over()
        assert (offsets(at.records), at.asks(1, 1, 5).after) == (left, id_of(after))


def test_what_is_acknowledged_stays_so_when_less_is_acknowledged_behind_it() -> None:
    at = ConsumerPosition()
    at.answered(page(0, 1, 2, 3), 0.0)
    for upto in (2, 1):
        assert at.acknowledged(Upto(id_of(upto), None))
    at.pass_over()
    assert offsets(at.records) == [3]


class Interrupted(MessageId):
    """An id that something happens beside while it is compared, as when a signal handler interrupts that."""

    __slots__ = ()
    between: list[Callable[[], object]] = []  # noqa: RUF012  # the test's own, emptied by it

    def __lt__(self, other: MessageId) -> bool:
        while self.between:
            self.between.pop()()
        return super().__lt__(other)


def test_what_a_handler_acknowledges_in_the_middle_of_either_step_is_passed_over_too() -> None:
    at, upto = ConsumerPosition(), Interrupted.from_bytes(bytes(id_of(1)))
    at.answered(page(*range(6)), 0.0)
    assert at.acknowledged(Upto(id_of(0), None))
    Interrupted.between.append(lambda: at.acknowledged(Upto(id_of(2), None)))
    assert at.acknowledged(Upto(upto, None))
    at.pass_over()
    assert offsets(at.records) == [3, 4, 5]
    assert at.acknowledged(Upto(Interrupted.from_bytes(bytes(id_of(3))), None))
    Interrupted.between.append(lambda: at.acknowledged(Upto(id_of(4), None)))
    at.pass_over()
    at.pass_over()
    assert offsets(at.records) == [5]


def test_a_reader_is_told_once_of_each_message_that_holds_it_up_for_so_long() -> None:
    held_up = HeldUp()

    def told(offset: int | None, asked: float, now: float, since_ms: int = 0) -> bool:
        return held_up.is_told(None if offset is None else Held(offset, 7, since_ms, int(now * 1000)), asked, now)

    assert [told(3, 0.0, 4.9), told(3, 4.9, 5.0), told(3, 5.0, 9.0)] == [False, True, False]
    assert not told(None, 9.0, 10.0)
    assert [told(4, 10.0, 15.0, since_ms=14_000), told(4, 15.0, 19.0, since_ms=14_000)] == [False, True]


def test_what_is_asked_for_is_what_is_wanted_and_more_from_page_to_page() -> None:
    size, counts = PageSize(1_000), list[int]()
    for _ in range(5):
        size.want(10)
        counts.append(size.count)
        size.grow()
    assert counts == [10, 40, 160, 640, 1_000]
    size.begin()
    size.want(5_000)
    assert size.count == 1_000
