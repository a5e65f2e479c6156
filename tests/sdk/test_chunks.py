"""How the messages of an atomic commit are cut into requests, held against judging each message by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.transactions import chunks as module
from oncelog.transactions.chunks import Row, TopicChunks
from oncelog.values.expectation import Expectation
from oncelog.wire.requests import PublishRequest

OFFSETS = st.none() | st.integers(0, 4)
KEYS = st.sampled_from([None, b"a", b"b"])


def row(
    key: bytes | None,
    offset: int | None,
    before: int | None,
    by_key: bool,
    key_offset: int | None,
    producer: str | None,
    number: int,
) -> Row:
    text = key.decode() if key is not None and by_key else None
    last = None if before is None else id_of(before)
    expected = None if offset is last is text is None else Expectation(offset, last, text, key_offset if text else None)
    return Row(b"%d" % number, key, None, None, producer, None, number if producer else None, expected)


ROWS = st.builds(
    row, KEYS, OFFSETS, st.none() | OFFSETS, st.booleans(), OFFSETS, st.sampled_from([None, None, "p", "q"]), st.integers(0, 9)
)


def id_of(offset: int) -> bytes:
    """The id of the message before this offset."""
    return offset.to_bytes(20, "big")


def cut(sent: list[Row]) -> list[PublishRequest]:
    topic = TopicChunks("default", "t")
    for row in sent:
        topic.add(row)
    return [request for _, request in topic.take()]


class Log:
    """What a topic has to know to judge expectations."""

    def __init__(self, messages: int) -> None:
        self.upcoming = messages
        self.keys: dict[str, int] = {"a": messages - 1} if messages else {}

    def takes(self, offset: int | None, last: bytes | None, keys: dict[str, int | None], new: list[bytes | None]) -> bool:
        held = offset in (None, self.upcoming) and last in (None, id_of(self.upcoming))
        held = held and all(self.keys.get(key) == expected for key, expected in keys.items())
        for key in new:
            if key is not None:
                self.keys[key.decode()] = self.upcoming
            self.upcoming += 1
        return held


@given(st.lists(ROWS, max_size=5), st.integers(0, 3))
def test_requests_are_judged_as_their_messages_would_be_one_after_the_other(sent: list[Row], messages: int) -> None:
    one_by_one, cut_up = Log(messages), Log(messages)
    alone = [
        one_by_one.takes(
            row.expected and row.expected.offset,
            row.expected and row.expected.last_message_id,
            (row.expected and row.expected.key_offsets) or {},
            [row.key],
        )
        for row in sent
    ]
    together = [
        cut_up.takes(
            request.expected_offset,
            request.expected_last_message_id,
            dict(request.expected_key_offsets or {}),
            list(request.keys or [None] * len(request.payloads)),
        )
        for request in cut(sent)
    ]
    assert all(alone) is all(together)


@given(st.lists(ROWS, max_size=8))
def test_every_message_travels_once_in_order_and_each_request_has_one_producer_and_rising_ids(sent: list[Row]) -> None:
    requests = cut(sent)
    assert [payload for request in requests for payload in request.payloads] == [row.payload for row in sent]
    named = [
        (request.producer, number) for request in requests for number in request.sequence_ids or [None] * len(request.payloads)
    ]
    assert named == [(row.producer, row.sequence_id) for row in sent]
    for request in requests:
        ids = list(request.sequence_ids or [])
        assert ids == sorted(set(ids))


def test_what_a_transfer_between_two_keys_expects_is_one_request() -> None:
    sent = [
        Row(b"1", b"a", expected=Expectation(None, None, "a", 3)),
        Row(b"2", b"b", expected=Expectation(None, None, "b", None)),
    ]
    (request,) = cut(sent)
    assert request.expected_key_offsets == {"a": 3, "b": None}


def test_what_expects_a_last_message_is_a_request_of_its_own_and_takes_others_behind_it() -> None:
    requests = cut([Row(b"1"), Row(b"2", expected=Expectation(None, id_of(1), None, None)), Row(b"3")])
    assert [(len(each.payloads), each.expected_last_message_id) for each in requests] == [(1, None), (2, id_of(1))]


def test_a_chunk_is_full_at_its_messages_and_at_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGES", 3)
    assert [len(request.payloads) for request in cut([Row(b"x")] * 7)] == [3, 3, 1]
    monkeypatch.setattr(module, "MAX_BYTES", 1_000)
    assert [len(request.payloads) for request in cut([Row(b"x" * 300), Row(b"y" * 300), Row(b"z" * 5_000), Row(b"")])] == [
        2,
        1,
        1,
    ]


def test_columns_are_carried_where_there_are_any() -> None:
    full, plain = cut([Row(b"x", b"k", {"a": "b"}, 5, "p", 2, 7), Row(b"y")])
    assert (full.keys, full.properties, full.ttls, full.producer, full.epoch) == ([b"k"], [{"a": "b"}], [5], "p", 2)
    assert full.sequence_ids == [7]
    assert (plain.keys, plain.properties, plain.ttls, plain.producer, plain.sequence_ids) == (None, None, None, None, None)


def test_chunks_are_numbered_on_and_leave_when_they_have_been_used() -> None:
    topic = TopicChunks("n", "t")
    for producer in ("a", "b", "c"):
        topic.add(Row(b"x" * 100, producer=producer, sequence_id=1))
    taken = topic.take(but_last=True)
    assert next(taken)[0] == 0
    assert topic.messages == 3
    assert next(taken)[0] == 1
    assert topic.messages == 2
    assert not list(taken)
    assert (topic.messages, topic.size) == (1, Row(b"x" * 100).size)
    rest = topic.rest()
    assert rest is not None
    assert (rest.namespace, rest.topic, rest.request.producer) == ("n", "t", "c")
    assert [number for number, _ in topic.take()] == [2]
    assert topic.rest() is None
