"""A page shows a transaction what Tephra would, in order, up to the first undecided message, within its limits."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog.wire.columns import unpack
from oncelog.wire.requests import ConsumeRequest
from oncelog.wire.transaction import SETTLED, Transaction, VisibilityLevel
from oncelog_dedup import Position, SequenceMap
from oncelog_service.log.read.columns import Range, read_columns
from oncelog_service.log.read.pages import (
    AS_ONCELOG,
    AS_TMS,
    Bounds,
    Page,
    Sight,
    collect,
    noting_pointers,
    read_page,
    sight,
)
from oncelog_service.log.scan import after, find_offset
from oncelog_service.log.verify import Live, LiveSize, verify
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_ROW_ID, split_row_id, timestamp_prefix
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Rows, Table
from oncelog_service.storage.runs import GROUP, RUN_BYTES
from tests.service.house import PREFIX, flip, opened
from tests.service.written import Message, WrittenLog, bounds
from tests.storage.test_runs import ONCELOG_MESSAGE, TMS_MESSAGE
from tests.world.clock import ManualClock

ALL = Bounds(10**6, 10**9, 0)
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
    """Tephra's ``Transaction.isVisible``; lists, not sets."""
    excluded = version in list(transaction.invalids) or version in list(transaction.in_progress)
    current = version in (transaction.transaction_id, transaction.write_pointer, *transaction.checkpoint_write_pointers)
    excludes = transaction.visibility_level is VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT
    return (version <= transaction.read_pointer and not excluded) or (
        current and (not excludes or transaction.write_pointer != version)
    )


def never_visible(transaction: Transaction, pointer: int) -> bool:
    """Whether a reader goes on behind it, as CDAP's ``TransactionMessageFilter`` has it."""
    return pointer < 0 or pointer in list(transaction.invalids)


def seen(transaction: Transaction, pointer: int) -> Sight:
    if pointer > 0 and is_visible(transaction, pointer):
        return Sight.SEEN
    return Sight.PASSED if never_visible(transaction, pointer) else Sight.UNDECIDED


@given(transactions)
def test_a_transaction_sees_what_tephra_shows_and_stops_at_what_is_undecided(transaction: Transaction) -> None:
    for pointer in range(-14, 15):
        if pointer:
            assert sight(transaction, pointer) is seen(transaction, pointer), pointer


# --- pages against a naive reader

ttls = st.none() | st.integers(1, 3)
plain = st.tuples(st.sampled_from(["plain", "waits"]), st.none(), st.just(False), st.lists(ttls, min_size=1, max_size=3))
direct = st.tuples(st.just("direct"), few, st.booleans(), st.lists(ttls, min_size=1, max_size=3))
group = st.tuples(st.just("group"), few, st.booleans(), st.lists(ttls, max_size=4))
histories = st.lists(plain | direct | group, max_size=10)


def written(history: list[tuple[str, int | None, bool, list[int | None]]], run_bytes: int = RUN_BYTES) -> WrittenLog:
    """Each pointer has one stored group at most; a second one becomes a direct publish. What waits lies in one run with what is
    plain before it, if there is."""
    log = WrittenLog(run_bytes=run_bytes)
    stored: set[int | None] = set()
    waiting: list[Columns] = []

    def write() -> None:
        if waiting:
            log.publish(*waiting, step_ms=700)
            waiting.clear()

    number = 0
    for kind, pointer, rolled, lifetimes in history:
        bodies = [b"%d" % (number + each) for each in range(len(lifetimes))]
        number += len(lifetimes)
        ttls = lifetimes if any(lifetimes) else None
        columns = Columns(bodies, ttls=ttls, write_pointer=pointer)
        if kind != "waits":
            write()
        if kind == "group" and pointer is not None and pointer not in stored:
            stored.add(pointer)
            if bodies:
                columns.write_pointer = None
                log.put(pointer, columns, now_ms=log.now_ms - 10)
            log.publish_stored(pointer, rolled=rolled, step_ms=700)
        elif kind == "direct" or pointer is not None:
            if bodies:
                log.publish(columns, rolled=rolled, step_ms=700)
        else:
            waiting.append(columns)
    write()
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
        if state is Sight.UNDECIDED and messages:
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
            assert not page.delivered
            return pages, False
        assert after(page.last_id) > start, "a reader that goes on from there comes forward"
        start = after(page.last_id)


def decoded(page: Page, schema: Any = ONCELOG_MESSAGE) -> list[dict[str, Any]]:
    """Its messages, several of which may lie in one piece."""
    text = BytesIO(b"".join(page.messages))
    found: list[Any] = []
    while text.tell() < len(text.getvalue()):
        found.append(fastavro.schemaless_reader(text, schema, None))
    return found


@given(
    histories,
    bounds,
    st.none() | transactions,
    st.integers(1, 5) | st.just(10**6),
    st.integers(1, 150) | st.just(10**9),
    st.integers(2, 6) | st.just(10**6),
    st.integers(0, 6_000),
    st.data(),
)
def test_paging_delivers_each_visible_message_once_whatever_the_limits(
    history: list[Any],
    run_bytes: int,
    transaction: Transaction | None,
    limit: int,
    max_bytes: int,
    rows: int,
    age_ms: int,
    data: st.DataObject,
) -> None:
    log = written(history, run_bytes)
    places = [FIRST_ROW_ID, *log.row_ids, *(each.message_id for each in log.messages)]
    start = data.draw(st.sampled_from(places))
    if len(start) == 20 and data.draw(st.booleans()):
        start = after(start)
    most = Bounds(limit, max_bytes, log.now_ms - 3_000 + age_ms, rows)
    expected, stops = naive(log, transaction, start, most.now_ms)
    pages, undecided = paged(log, transaction, start, most)
    found = [each for page in pages for each in decoded(page)]
    assert [(each["id"], each["offset"], each["payload"], each["ttl"]) for each in found] == [
        (each.message_id, each.offset, each.payload, each.ttl) for each in expected
    ]
    assert undecided == stops
    for page in pages:
        assert page.delivered == len(decoded(page)) <= limit
        assert max_bytes > 1 or page.delivered <= 1
        assert page.last_id is None or len(page.last_id) == 20


@given(histories, bounds, st.none() | transactions, st.integers(1, 5))
def test_both_encodings_and_both_ways_to_the_rows_show_the_same(
    history: list[Any], run_bytes: int, transaction: Transaction | None, limit: int
) -> None:
    log = written([each for each in history if each[0] != "group"], run_bytes)
    most, runs = Bounds(limit, 10**9, log.now_ms), log.runs
    for start in (FIRST_ROW_ID, *log.row_ids, *(after(each.message_id) for each in log.messages)):
        fast = collect(runs[sum(run.id < start[:10] for run in runs) :], start, most, AS_TMS, transaction)
        slow = read_page(log.store, PREFIX, start, most, AS_ONCELOG, transaction)
        assert fast[1:] == slow[1:]
        assert decoded(fast, TMS_MESSAGE) == [{"id": each["id"], "payload": each["payload"]} for each in decoded(slow)]


@given(histories, bounds, st.none() | transactions, st.booleans(), st.integers(-3_000, 3_000))
def test_a_poll_begins_at_every_id_offset_and_time_in_both_modes(
    history: list[Any], run_bytes: int, transaction: Transaction | None, inclusive: bool, age_ms: int
) -> None:
    """Messages that are hidden or have expired are places to begin as well, and so is every place inside a stored group."""
    log = written(history, run_bytes)
    clock, messages = ManualClock(log.now_ms + age_ms), log.messages

    async def scenario() -> None:
        async with opened(log.disk, clock, clean=False) as house:

            async def check(begin: bytes, **start: Any) -> None:
                request = ConsumeRequest(
                    **start, inclusive=inclusive, limit=3, transaction=transaction and transaction.to_bytes()
                )
                found = decoded(await house.log.poll(request, AS_ONCELOG))
                # What was published at a time was there at that time: no clock says that it is earlier.
                expected, _ = naive(log, transaction, begin, max(clock.ms, log.now_ms))
                assert [each["id"] for each in found] == [each.message_id for each in expected[:3]], start

            for number, message in enumerate(messages):
                await check(message.message_id if inclusive else after(message.message_id), start_from=message.message_id)
                behind = messages[number + (not inclusive) :]
                at = behind[0].message_id if behind else after(message.message_id)
                await check(at if number + (not inclusive) else FIRST_ROW_ID, start_offset=message.offset)
                published, _ = split_row_id(message.message_id)
                for at_ms in (published - 1, published, published + 1):
                    await check(timestamp_prefix(at_ms + (not inclusive)), start_from=at_ms)

    asyncio.run(scenario())


# --- one by one


def three_and_a_group(run_bytes: int = RUN_BYTES) -> WrittenLog:
    """Offsets 0 to 2 plain, 3 to 7 a group under pointer 5, 8 plain."""
    log = WrittenLog(run_bytes=run_bytes)
    log.publish(Columns([b"a", b"b", b"c"]))
    log.put(5, Columns([b"0", b"1"]))
    log.put(5, Columns([b"2", b"3", b"4"]))
    log.publish_stored(5)
    log.publish(Columns([b"z"]))
    return log


def bodies(page: Page) -> bytes:
    return b"".join(each["payload"] for each in decoded(page))


@pytest.mark.parametrize("run_bytes", [1, RUN_BYTES])
def test_a_page_ends_inside_a_group_behind_the_message_that_fills_it(run_bytes: int) -> None:
    log = three_and_a_group(run_bytes)
    size = len(log.stored_runs(5)[0].bodies()[0])
    inside = after(log.messages[3].message_id)
    for max_bytes, expected in ((1, b"1"), (size, b"1"), (size + 1, b"12"), (3 * size, b"123")):
        page = read_page(log.store, PREFIX, inside, ALL._replace(max_bytes=max_bytes), AS_ONCELOG, None)
        assert bodies(page) == expected


def test_a_page_that_may_look_at_no_more_says_whether_there_is_more_and_no_full_one_does() -> None:
    log = WrittenLog()
    log.publish(Columns([b"a", b"b", b"c"], ttls=[1, 1, 1]))
    for limit, rows, now_ms, delivered, more in (
        (9, 2, log.now_ms, 2, True),
        (9, 2, log.now_ms + 1_000, 0, True),
        (9, 3, log.now_ms, 3, False),
        (2, 2, log.now_ms, 2, False),
    ):
        page = read_page(log.store, PREFIX, FIRST_ROW_ID, Bounds(limit, 10**9, now_ms, rows), AS_TMS, None)
        assert (page.delivered, page.more) == (delivered, more)


def test_messages_that_were_rolled_back_are_looked_at_one_by_one() -> None:
    log = WrittenLog()
    log.publish(Columns([b"a", b"b", b"c"], write_pointer=5), rolled=True)
    log.publish(Columns([b"d"]))
    for rows, delivered in ((3, 0), (4, 1)):
        page = read_page(log.store, PREFIX, FIRST_ROW_ID, Bounds(9, 10**9, 0, rows), AS_TMS, SETTLED)
        assert (page.delivered, page.more) == (delivered, not delivered)


def test_pointers_are_noted_of_the_messages_that_are_answered() -> None:
    log = WrittenLog()
    ids = log.publish(Columns([b"a", b"b", b"c"], write_pointer=5))
    pointers: list[tuple[int, int] | None] = []
    read_page(log.store, PREFIX, ids[1], Bounds(9, 10**9, 0), noting_pointers(AS_TMS, pointers), None)
    assert pointers == [(5, 1), (5, 2)]


def test_a_damaged_payload_is_refused_and_never_passed_over() -> None:
    log = three_and_a_group(1)
    flip(log.disk, Table.PAYLOAD, sorted(log.disk.tables[Table.PAYLOAD])[2])
    for start in (FIRST_ROW_ID, log.row_ids[3], log.messages[5].message_id, after(log.messages[5].message_id)):
        with pytest.raises(TopicDamaged):
            read_page(log.store, PREFIX, start, ALL, AS_ONCELOG, None)
    hidden = Transaction(10, 9, invalids=(5,), write_pointer=10)
    assert bodies(read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, hidden)) == b"abcz"


class Trimming(MemoryStore):
    """Retention comes between the row of a group and its payloads: that row is deleted, and the first payloads are."""

    def __init__(self, disk: Disk, gone: int = 2) -> None:
        super().__init__(disk)
        self._gone = gone

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        if table is Table.PAYLOAD:
            batch = Batch()
            for key, row in self.disk.tables[Table.MESSAGE].items():
                if row[1] & GROUP:
                    batch.delete(Table.MESSAGE, key)
            for key in sorted(self.disk.tables[Table.PAYLOAD])[: self._gone]:
                batch.delete(Table.PAYLOAD, key)
            self.write([batch])
        return super().scan(table, start, stop, reverse=reverse)


def test_a_group_that_retention_deletes_while_it_is_read_is_left_out_and_no_damage() -> None:
    page = read_page(Trimming(three_and_a_group(1).disk), PREFIX, FIRST_ROW_ID, ALL, AS_ONCELOG, None)
    assert bodies(page) == b"abcz"
    whole = Range(0, 9, FIRST_ROW_ID, 0, 10**6, 10**9)
    columns = read_columns(Trimming(three_and_a_group(1).disk), PREFIX, whole)
    assert (unpack(columns.values), columns.next) == ([b"a", b"b", b"c", b"z"], 9)
    assert find_offset(Trimming(three_and_a_group(1).disk, 5), PREFIX, 5) == three_and_a_group(1).row_ids[-1]
    log = three_and_a_group(1)
    live = Live(Position(9, None), SequenceMap(), LiveSize(log.runs[-1].upto_bytes, 0, {}, 0, 0, set()))
    *_, findings = verify(Trimming(log.disk), PREFIX, live, lambda _: 0, True)
    assert findings.problems == []
