"""Batches, taken numbers and the requests of an atomic commit, held against models too simple to be wrong."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest, OffsetMismatch, SequenceIdNotRising
from oncelog.producing.batching import Batch
from oncelog.producing.core import Core
from oncelog.producing.cutting import Bounds, Messages
from oncelog.producing.numbering import Numbers
from oncelog.reading.position import ConsumerPosition, ReaderPosition
from oncelog.transactions import chunks as module
from oncelog.transactions.chunks import NO_PRODUCER, Origin, TopicChunks
from oncelog.values.expectation import Expectation
from oncelog.values.numbers import MAX_LONG
from oncelog.values.outgoing import Outgoing, outgoing
from oncelog.wire.requests import PublishRequest

MESSAGES = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        st.none() | st.integers(1, 10**6),
    ),
    max_size=40,
)


def filled(messages: list[tuple[bytes, bytes | None, dict[str, str] | None, int | None]]) -> Batch:
    batch = Batch()
    if messages:
        payloads, keys, properties, ttls = zip(*messages, strict=True)
        batch.extend(payloads, range(0, 3 * len(messages), 3), keys, properties, ttls)
    return batch


def rows(batch: Messages) -> list[tuple[object, ...]]:
    columns = (batch.sequence_ids, batch.payloads, batch.keys, batch.properties, batch.ttls)
    return list(zip(*columns, strict=True))


def takes(numbers: Numbers, *ids: int) -> Numbers | None:
    """The numbering behind these ids; None where one of them is refused."""
    try:
        for each in ids:
            _, numbers = numbers.all([each])
    except SequenceIdNotRising:
        return None
    return numbers


@given(st.lists(st.integers(0, 12) | st.tuples(st.sets(st.integers(0, 12)), st.booleans()), max_size=60))
def test_an_id_that_was_given_back_may_be_taken_anew_only_where_nothing_is_above_it(
    steps: list[int | tuple[set[int], bool]],
) -> None:
    """A step takes an id, or gives some back, as the newest ones or with others behind them."""
    numbers, used, highest = Numbers(None), set[int](), -1
    numbers.by_caller = True
    for step in steps:
        if isinstance(step, int):
            after = takes(numbers, step)
            assert (after is not None) is (step > highest or step in used)
            if after is not None:
                numbers, highest = after, max(highest, step)
                used.add(step)
        else:
            ids, newest = step
            before = numbers.copy()
            numbers.give_back(sorted(ids), newest)
            assert takes(before, *ids & used) is not None
            used -= ids
            highest = max(used, default=-1) if newest else highest
        assert numbers.highest == (None if highest < 0 else highest)


@given(st.lists(st.integers(0, 30), max_size=60))
def test_beyond_its_room_it_forgets_the_oldest_and_never_refuses_what_was_taken(ids: list[int]) -> None:
    numbers, model = Numbers(None), set[int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Numbers, "MAX_RANGES", 3)
        for number in ids:
            new = not model or number > max(model)
            after = takes(numbers, number)
            if after is None:
                assert number not in model
                assert number < max(model)
                continue
            numbers = after
            assert new or number in model or number < numbers.ranges[0][0]
            model |= {number} if new else set()
            assert len(numbers.ranges) <= 3


def test_the_last_sequence_id_there_is_ends_a_batch() -> None:
    numbers = Numbers(None, MAX_LONG - 1)
    assert numbers.all([None] * 2)[0] == [MAX_LONG - 1, MAX_LONG]
    with pytest.raises(InvalidRequest):
        numbers.all([None] * 3)


@given(MESSAGES)
def test_a_request_carries_every_message_and_the_extras_only_where_there_are_any(
    messages: list[tuple[bytes, bytes | None, dict[str, str] | None, int | None]],
) -> None:
    batch = filled(messages)
    request = batch.request("p", 7)
    assert (request.producer, request.epoch) == ("p", 7)
    assert list(request.payloads) == [message[0] for message in messages]
    assert list(request.sequence_ids or []) == [number * 3 for number in range(len(messages))]
    for at, column in enumerate((request.keys, request.properties, request.ttls), 1):
        expected = [message[at] for message in messages]
        assert column == (expected if any(each is not None for each in expected) else None)


@given(MESSAGES, st.integers(1, 6), st.integers(1, 1_000))
def test_messages_are_cut_within_the_bounds_but_for_one_that_is_larger(
    messages: list[tuple[bytes, bytes | None, dict[str, str] | None, int | None]], most: int, size: int
) -> None:
    waiting, parts = filled(messages), list[Messages]()
    while count := waiting.fitting(Bounds(most, size)):
        parts.append(waiting.take(count))
    assert (waiting.size, len(waiting)) == (0, 0)
    assert [row for part in parts for row in rows(part)] == rows(filled(messages))
    assert all(len(part) == 1 or (len(part) <= most and part.size <= size) for part in parts)
    sizes = [part.part(0, 1).size for part in parts]
    assert not any(part.takes(behind, Bounds(most, size)) for part, behind in zip(parts, sizes[1:], strict=False)), (
        "as few as can be"
    )


def test_a_request_is_full_at_just_its_bytes() -> None:
    messages = Messages()
    size = messages.extend([b"x" * 100] * 7) // 7
    table = {3 * size: [3, 6, 7], 3 * size - 1: [2, 4, 6, 7], size - 1: [*range(1, 8)], 7 * size: [7], 7 * size - 1: [6, 7]}
    for most, ends in table.items():
        assert list(messages.ends(Bounds(99, most))) == ends
    assert list(messages.ends(Bounds(5, 7 * size))) == [5, 7]


def test_the_size_covers_what_travels() -> None:
    messages = Messages()
    assert messages.extend([b"x" * 100]) >= 100
    assert messages.extend([b"x" * 100], keys=[b"k" * 50], properties=[{"n" * 30: "v" * 40}]) >= 220


# --- expectations


def following_on(messages: int, offset: int, whole: bool = False) -> Batch:
    batch = Batch(whole=whole)
    batch.extend([b"%d" % at for at in range(messages)], range(0, 2 * messages, 2))
    batch.expected = Expectation(offset, None, None, None)
    return batch


def refusal(expected: int | str | None, actual: int | str | None, condition: str = "offset") -> OffsetMismatch:
    return OffsetMismatch(condition=condition, expected=expected, actual=actual)


@pytest.mark.parametrize(
    ("before", "after", "accepted"),
    [
        (Expectation(5, None, None, None), Expectation(6, None, None, None), True),
        (Expectation(5, None, None, None), Expectation(7, None, None, None), False),
        (Expectation(5, None, None, None), Expectation(5, None, None, None), False),
        (Expectation(5, None, None, None), None, False),
        (None, Expectation(6, None, None, None), False),
        (None, None, True),
        (Expectation(5, None, "k", None), Expectation(6, None, None, None), False),
        (Expectation(5, None, None, None), Expectation(6, None, "k", None), False),
        (Expectation(5, bytes(20), None, None), Expectation(6, None, None, None), False),
        (Expectation(None, None, "k", 3), Expectation(None, None, "k", 3), False),
    ],
)
def test_a_request_takes_what_follows_on_and_nothing_else_beside_an_expectation(
    before: Expectation | None, after: Expectation | None, accepted: bool
) -> None:
    batch = Batch()
    assert batch.accepts(1, before)
    batch.rows, batch.last, batch.expected = [outgoing(b"", sequence_id=1)], 1, before
    assert batch.accepts(2, after) is accepted
    assert not batch.accepts(1, after)


@pytest.mark.parametrize(
    "mismatch", [refusal(0, 2, "key_offset"), refusal("00", "ff", "last_message_id"), refusal(None, 3), refusal(3, None)]
)
def test_what_is_no_matter_of_offsets_refuses_the_whole_request(mismatch: OffsetMismatch) -> None:
    there, lost, rest = following_on(3, 0).parted(mismatch)
    assert [len(part.payloads) for part in (there, lost, rest)] == [0, 3, 0]


def one_step(function: Callable[..., object], begin: str, lines_long: int) -> list[str]:
    """The instructions of so many lines, from that which holds ``begin`` on, without those behind the last change."""
    lines, first = inspect.getsourcelines(function)
    start = first + next(at for at, line in enumerate(lines) if begin in line)
    code = list(dis.get_instructions(function))
    line, found = 0, []
    for instruction in code:
        line = (instruction.positions and instruction.positions.lineno) or line
        if start <= line < start + lines_long:
            found.append(instruction)
    last = max(at for at, each in enumerate(found) if each.opname.startswith(("STORE_", "BINARY_OP")) or each.argval == "append")
    return [each.opname for each in found[:last]]


@pytest.mark.parametrize(
    ("function", "begin", "lines_long"),
    [
        (Core.put, "if self.version != version:", 33),
        (Core.number, "if self.version == version:", 100),
        (Core.end_batch, "self.due = None", 6),
        (Core.put_batch, "if self.version != version:", 100),
        (ReaderPosition.answered, "self._next, self._begun = following", 2),
        (ConsumerPosition.answered, "self._after = after", 2),
    ],
)
def test_a_change_of_state_is_one_step_to_a_signal_handler(function: Callable[..., object], begin: str, lines_long: int) -> None:
    """CPython runs handlers behind calls, where functions begin and at the ends of loops: there is none of these in between.

    What begins anew before it has changed anything, which CPython 3.14 lays before the rest, has not begun.
    """
    names = one_step(function, begin, lines_long)
    assert len(names) > 2
    assert [name for name in names if name.startswith(("CALL", "FOR_ITER", "SEND", "YIELD"))] == []
    changing = next((at for at, name in enumerate(names) if name == "STORE_ATTR"), 0)
    assert "JUMP_BACKWARD" not in {name[:13] for name in names[changing:]}


# --- the requests of an atomic commit -----------------------------------------------------------------------------------


class Row(NamedTuple):
    message: Outgoing
    origin: Origin = NO_PRODUCER


def plain(payload: bytes, key: bytes | None = None, expected: Expectation | None = None) -> Row:
    return Row(outgoing(payload, key=key)._replace(expected=expected))


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
    message = outgoing(b"%d" % number, key=key, sequence_id=number if producer else None)
    return Row(message._replace(expected=expected), Origin(producer))


ROWS = st.builds(
    row, KEYS, OFFSETS, st.none() | OFFSETS, st.booleans(), OFFSETS, st.sampled_from([None, None, "p", "q"]), st.integers(0, 9)
)


def id_of(offset: int) -> bytes:
    """The id of the message before this offset."""
    return offset.to_bytes(20, "big")


def cut(sent: list[Row]) -> list[PublishRequest]:
    topic = TopicChunks("default", "t")
    for row in sent:
        topic.add(*row)
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
        for row, _ in sent
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
    assert [payload for request in requests for payload in request.payloads] == [row.message.payload for row in sent]
    named = [
        (request.producer, number) for request in requests for number in request.sequence_ids or [None] * len(request.payloads)
    ]
    assert named == [(row.origin.producer, row.message.sequence_id) for row in sent]
    for request in requests:
        ids = list(request.sequence_ids or [])
        assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    ("sent", "lengths"),
    [
        ([plain(b"1", b"a", Expectation(None, None, "a", 3)), plain(b"2", b"b", Expectation(None, None, "b", None))], [2]),
        ([plain(b"1"), plain(b"2", expected=Expectation(None, id_of(1), None, None)), plain(b"3")], [1, 2]),
        ([plain(b"1", b"a"), plain(b"2", b"a", Expectation(None, None, "a", 0))], [1, 1]),  # judged behind what it follows
        ([plain(b"1", expected=Expectation(offset, None, None, None)) for offset in (3, 4, 4, 5)], [2, 2]),
        ([Row(outgoing(b"1", sequence_id=number), Origin("p")) for number in (1, 2, 2, 1)], [2, 1, 1]),
        ([plain(b"x")] * 7, [3, 3, 1]),
        ([plain(b"x" * size) for size in (300, 300, 5_000, 0)], [2, 1, 1]),
    ],
    ids=["a transfer of keys", "a last message", "follows its own", "offsets", "ids", "full of messages", "full of bytes"],
)
def test_no_more_requests_are_made_than_are_needed(sent: list[Row], lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST", Bounds(3, 1_000))
    assert [len(request.payloads) for request in cut(sent)] == lengths


def test_chunks_are_numbered_on_and_leave_when_they_have_been_used() -> None:
    topic = TopicChunks("n", "t")
    for producer in ("a", "b", "c"):
        topic.add(outgoing(b"x" * 100, sequence_id=1), Origin(producer))
    taken = topic.take(but_last=True)
    assert next(taken)[0] == 0
    assert topic.messages == 3
    assert next(taken)[0] == 1
    assert topic.messages == 2
    assert not list(taken)
    assert (topic.messages, topic.size) == (1, outgoing(b"x" * 100).size)
    rest = topic.rest()
    assert rest is not None
    assert (rest.namespace, rest.topic, rest.request.producer) == ("n", "t", "c")
    assert [number for number, _ in topic.take()] == [2]
    assert topic.rest() is None
