"""A page shows a transaction what Tephra would, in order, up to the first undecided message, within its limits."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog.wire.transaction import Transaction, VisibilityLevel
from oncelog_service.log.read.pages import AS_ONCELOG, AS_TMS, Bounds, Page, Sight, collect, read_page, sight
from oncelog_service.log.scan import after
from oncelog_service.storage.keys import FIRST_ROW_ID, split_row_id
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import Columns
from tests.service.house import PREFIX, flip
from tests.service.test_rows import ONCELOG_MESSAGE, TMS_MESSAGE
from tests.service.written import Message, WrittenLog

ALL = Bounds(10**6, 10**9, 0)
LAST_PAYLOAD_ID = b"\xff" * 10
few = st.integers(1, 12)
lists = st.lists(few, max_size=6)

transactions = st.builds(
    Transaction,
    transaction_id=few,
    read_pointer=st.integers(0, 12),
    invalids=lists,
    in_progress=lists,
    write_pointer=few,
    checkpoint_write_pointers=lists,
    visibility_level=st.sampled_from(VisibilityLevel),
)
"""Also ones that no transaction service hands out: lists unsorted, doubled, overlapping."""


# --- what a transaction sees


def is_visible(transaction: Transaction, version: int) -> bool:
    """Tephra's ``Transaction.isVisible``, with the level that leaves out the current write pointer; lists, not sets."""
    excluded = version in list(transaction.invalids) or version in list(transaction.in_progress)
    current = version in (transaction.transaction_id, transaction.write_pointer, *transaction.checkpoint_write_pointers)
    if transaction.visibility_level is VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT and version == transaction.write_pointer:
        return False
    return current or (version <= transaction.read_pointer and not excluded)


def never_visible(transaction: Transaction, pointer: int) -> bool:
    """Whether whatever happens it will not be this transaction's to see; a reader may go on behind it."""
    hidden = transaction.visibility_level is VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT and pointer == transaction.write_pointer
    return pointer < 0 or pointer in list(transaction.invalids) or hidden


def seen(transaction: Transaction, pointer: int) -> Sight:
    if pointer > 0 and is_visible(transaction, pointer):
        return Sight.SEEN
    return Sight.PASSED if never_visible(transaction, pointer) else Sight.UNDECIDED


@given(transactions)
def test_a_transaction_sees_what_tephra_shows_and_stops_at_what_is_undecided(transaction: Transaction) -> None:
    for pointer in range(-14, 15):
        if pointer:
            assert sight(transaction, pointer) is seen(transaction, pointer), pointer


@given(transactions, st.randoms(use_true_random=False))
def test_the_order_of_the_lists_does_not_matter(transaction: Transaction, random: Any) -> None:
    def shuffled(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(random.sample(list(values), len(values)))

    other = Transaction(
        transaction.transaction_id,
        transaction.read_pointer,
        shuffled(transaction.invalids),
        shuffled(transaction.in_progress),
        write_pointer=transaction.write_pointer,
        checkpoint_write_pointers=shuffled(transaction.checkpoint_write_pointers),
        visibility_level=transaction.visibility_level,
    )
    for pointer in range(1, 15):
        assert sight(other, pointer) is sight(transaction, pointer)


def test_an_unsorted_list_of_invalids_leaks_nothing() -> None:
    transaction = Transaction(100, 99, invalids=(70, 20, 50, 10), in_progress=(90, 30, 60), write_pointer=100)
    assert [sight(transaction, each) for each in (70, 20, 50, 10)] == [Sight.PASSED] * 4
    assert [sight(transaction, each) for each in (90, 30, 60, 101)] == [Sight.UNDECIDED] * 4
    assert [sight(transaction, each) for each in (1, 40, 99, 100)] == [Sight.SEEN] * 4


def test_what_was_rolled_back_is_passed_even_by_the_transaction_itself() -> None:
    transaction = Transaction(100, 99, write_pointer=102, checkpoint_write_pointers=(102,))
    for pointer in (100, 102, 50):
        assert sight(transaction, pointer) is Sight.SEEN
        assert sight(transaction, -pointer) is Sight.PASSED


def test_its_own_writes_are_seen_by_the_level_that_it_asks_for() -> None:
    def seen_at(level: VisibilityLevel) -> list[bool]:
        transaction = Transaction(
            100, 99, in_progress=(100, 101, 102), write_pointer=102, checkpoint_write_pointers=(101, 102), visibility_level=level
        )
        return [sight(transaction, pointer) is Sight.SEEN for pointer in (100, 101, 102)]

    assert seen_at(VisibilityLevel.SNAPSHOT) == [True, True, True]
    assert seen_at(VisibilityLevel.SNAPSHOT_ALL) == [True, True, True]
    assert seen_at(VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT) == [True, True, False]


# --- pages against a naive reader

ttls = st.none() | st.integers(1, 3)
plain = st.tuples(st.just("plain"), st.none(), st.just(False), st.lists(ttls, min_size=1, max_size=3))
direct = st.tuples(st.just("direct"), few, st.booleans(), st.lists(ttls, min_size=1, max_size=3))
group = st.tuples(st.just("group"), few, st.booleans(), st.lists(ttls, max_size=4))
histories = st.lists(plain | direct | group, max_size=10)


def written(history: list[tuple[str, int | None, bool, list[int | None]]]) -> WrittenLog:
    """Each pointer has one stored group at most; a second one becomes a direct publish."""
    log = WrittenLog()
    stored: set[int | None] = set()
    number = 0
    for kind, pointer, rolled, lifetimes in history:
        bodies = [b"%d" % (number + each) for each in range(len(lifetimes))]
        number += len(lifetimes)
        columns = Columns(bodies, ttls=lifetimes, write_pointer=pointer)
        if kind == "group" and pointer is not None and pointer not in stored:
            stored.add(pointer)
            if bodies:
                columns.write_pointer = None
                log.put(pointer, columns, now_ms=log.now_ms - 10)
            log.publish_stored(pointer, rolled=rolled, step_ms=700)
        elif bodies:
            log.publish(columns, rolled=rolled, step_ms=700)
    return log


def naive(log: WrittenLog, transaction: Transaction | None, start: bytes, now_ms: int) -> tuple[list[Message], bool]:
    """What a reader is to get from ``start`` on, and whether something undecided ends it."""
    found: list[Message] = []
    for row_id, pointer in zip(log.row_ids, log.pointers, strict=True):
        messages = [each for each in log.messages if each.row_id == row_id]
        is_group = not messages or any(messages[0].message_id[10:])
        if row_id < start[:10] or (not is_group and messages[0].message_id < start):
            continue  # an undecided group stops a reader also right behind its last message
        state = Sight.SEEN if transaction is None or pointer is None else seen(transaction, pointer)
        if state is Sight.UNDECIDED:
            return found, True
        if state is Sight.SEEN:
            found += [each for each in messages if each.message_id >= start and not is_expired(each, now_ms)]
    return found, False


def is_expired(message: Message, now_ms: int) -> bool:
    return message.ttl is not None and split_row_id(message.message_id)[0] + message.ttl * 1000 <= now_ms


def paged(log: WrittenLog, transaction: Transaction | None, start: bytes, bounds: Bounds) -> tuple[list[Page], bool]:
    """Every page up to the end or to something undecided."""
    pages = []
    while True:
        page = read_page(log.store, PREFIX, start, bounds, AS_ONCELOG, transaction)
        pages.append(page)
        if page.undecided or page.last_id is None:
            return pages, page.undecided
        if after(page.last_id) == start:  # behind the group that ends the log
            assert not page.messages
            return pages, False
        assert after(page.last_id) > start, "a reader that goes on from there comes forward"
        start = after(page.last_id)


def decoded(messages: list[bytes], schema: Any = ONCELOG_MESSAGE) -> list[dict[str, Any]]:
    return [fastavro.schemaless_reader(BytesIO(each), schema, None) for each in messages]


@given(
    histories,
    st.none() | transactions,
    st.integers(1, 5) | st.just(10**6),
    st.integers(1, 150) | st.just(10**9),
    st.integers(2, 6) | st.just(10**6),
    st.integers(0, 6_000),
    st.data(),
)
def test_paging_delivers_each_visible_message_once_whatever_the_limits(
    history: list[Any], transaction: Transaction | None, limit: int, max_bytes: int, rows: int, age_ms: int, data: st.DataObject
) -> None:
    log = written(history)
    places = [FIRST_ROW_ID, *log.row_ids, *(each.message_id for each in log.messages)]
    start = data.draw(st.sampled_from(places))
    if len(start) == 20 and data.draw(st.booleans()):
        start = after(start)
    bounds = Bounds(limit, max_bytes, log.now_ms - 3_000 + age_ms, rows)
    expected, stops = naive(log, transaction, start, bounds.now_ms)
    pages, undecided = paged(log, transaction, start, bounds)
    found = decoded([each for page in pages for each in page.messages])
    assert [(each["id"], each["offset"], each["payload"], each["ttl"]) for each in found] == [
        (each.message_id, each.offset, each.payload, each.ttl) for each in expected
    ]
    assert undecided == stops
    for page in pages:
        assert len(page.messages) <= limit
        assert max_bytes > 1 or len(page.messages) <= 1
        assert page.last_id is None or len(page.last_id) == 20


@given(histories, st.none() | transactions, st.integers(1, 5))
def test_both_encodings_and_both_ways_to_the_rows_show_the_same(
    history: list[Any], transaction: Transaction | None, limit: int
) -> None:
    log = written([each for each in history if each[0] != "group"])
    bounds = Bounds(limit, 10**9, log.now_ms)
    rows = [(each, log.disk.tables[Table.MESSAGE][PREFIX + each]) for each in log.row_ids]
    for start in (FIRST_ROW_ID, *log.row_ids, *(after(each.message_id) for each in log.messages)):
        fast = collect(rows[sum(each < start[:10] for each in log.row_ids) :], start, bounds, AS_TMS, transaction)
        slow = read_page(log.store, PREFIX, start, bounds, AS_ONCELOG, transaction)
        assert fast[1:] == slow[1:]
        assert decoded(fast.messages, TMS_MESSAGE) == [
            {"id": each["id"], "payload": each["payload"]} for each in decoded(slow.messages)
        ]


# --- one by one


def three_and_a_group() -> WrittenLog:
    """Offsets 0 to 2 plain, 3 to 7 a group under pointer 5, 8 plain."""
    log = WrittenLog()
    log.publish(Columns([b"a", b"b", b"c"]))
    log.put(5, Columns([b"0", b"1"]))
    log.put(5, Columns([b"2", b"3", b"4"]))
    log.publish_stored(5)
    log.publish(Columns([b"z"]))
    return log


def bodies(page: Page) -> bytes:
    return b"".join(each["payload"] for each in decoded(page.messages))


def test_a_group_appears_as_its_messages_in_store_order_with_dense_offsets() -> None:
    log = three_and_a_group()
    page = read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, None)
    assert bodies(page) == b"abc01234z"
    assert [each["offset"] for each in decoded(page.messages)] == list(range(9))
    assert [each["id"] for each in decoded(page.messages)] == sorted(each.message_id for each in log.messages)


@pytest.mark.parametrize("limit", range(1, 10))
def test_a_limit_may_fall_anywhere_into_a_group(limit: int) -> None:
    log = three_and_a_group()
    page = read_page(log.store, PREFIX, FIRST_ROW_ID, ALL._replace(limit=limit), AS_ONCELOG, None)
    assert bodies(page) == b"abc01234z"[:limit]
    assert page.last_id == log.messages[limit - 1].message_id
    rest = read_page(log.store, PREFIX, after(page.last_id), ALL, AS_ONCELOG, None)
    assert bodies(rest) == b"abc01234z"[limit:]


def test_a_page_ends_inside_a_group_behind_the_message_that_fills_it() -> None:
    log = three_and_a_group()
    size = len(next(iter(log.disk.tables[Table.PAYLOAD].values())))
    inside = after(log.messages[3].message_id)
    for max_bytes, expected in ((1, b"1"), (size, b"1"), (size + 1, b"12"), (3 * size, b"123")):
        page = read_page(log.store, PREFIX, inside, ALL._replace(max_bytes=max_bytes), AS_ONCELOG, None)
        assert bodies(page) == expected


def test_a_page_that_stops_at_something_undecided_says_so_and_where_it_came_to() -> None:
    log = three_and_a_group()
    reader = Transaction(10, 9, in_progress=(5,), write_pointer=10)
    page = read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, reader)
    assert (bodies(page), page.undecided, page.last_id) == (b"abc", True, log.messages[2].message_id)
    again = read_page(log.store, PREFIX, after(log.messages[2].message_id), ALL, AS_ONCELOG, reader)
    assert again == Page([], None, undecided=True)


def test_what_is_passed_moves_the_position_behind_all_of_it() -> None:
    log = WrittenLog()
    log.put(5, Columns([b"0", b"1"]))
    at = log.publish_stored(5)
    reader = Transaction(10, 9, invalids=(5,), write_pointer=10)
    page = read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, reader)
    assert page == Page([], at + LAST_PAYLOAD_ID)
    log.publish(Columns([b"behind"]))
    assert bodies(read_page(log.store, PREFIX, after(page.last_id or b""), ALL, AS_ONCELOG, None)) == b"behind"


def test_without_a_transaction_everything_is_shown_also_what_was_rolled_back() -> None:
    log = WrittenLog()
    log.publish(Columns([b"a"], write_pointer=7), rolled=True)
    log.publish(Columns([b"b"], write_pointer=8))
    log.put(9, Columns([b"c"]))
    log.publish_stored(9, rolled=True)
    assert bodies(read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, None)) == b"abc"


def test_an_empty_group_shows_nothing_and_ends_no_page() -> None:
    log = WrittenLog()
    log.publish(Columns([b"a"]))
    log.publish_stored(5)
    log.publish(Columns([b"b"]))
    page = read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, None)
    assert [(each["payload"], each["offset"]) for each in decoded(page.messages)] == [(b"a", 0), (b"b", 1)]


def test_a_message_of_a_group_expires_by_its_own_ttl_from_when_it_was_published() -> None:
    log = WrittenLog()
    log.put(5, Columns([b"0", b"1", b"2"], ttls=[None, 2, None]), now_ms=log.now_ms - 60_000)
    log.publish_stored(5)
    for now_ms, expected in ((log.now_ms + 1_999, b"012"), (log.now_ms + 2_000, b"02")):
        page = read_page(log.store, PREFIX, FIRST_ROW_ID, ALL._replace(now_ms=now_ms), AS_ONCELOG, None)
        assert (bodies(page), page.last_id) == (expected, log.row_ids[0] + LAST_PAYLOAD_ID)


def test_a_damaged_payload_is_refused_and_never_passed_over() -> None:
    log = three_and_a_group()
    flip(log.disk, Table.PAYLOAD, sorted(log.disk.tables[Table.PAYLOAD])[2])
    for start in (FIRST_ROW_ID, log.row_ids[3], log.messages[5].message_id, after(log.messages[5].message_id)):
        with pytest.raises(TopicDamaged):
            read_page(log.store, PREFIX, start, ALL, AS_ONCELOG, None)
    hidden = Transaction(10, 9, invalids=(5,), write_pointer=10)
    assert bodies(read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, hidden)) == b"abcz"
