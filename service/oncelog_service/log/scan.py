"""Reading a log's rows from the store: checked, dense, in order. Nothing is skipped that should be there.

Every row is a run of messages (storage/runs.py). Its checksum is verified and its first offset must follow on the row before it;
the first row of a page is held against the row before *it*. A hole is an error, never a shorter answer.

This is the one reader of the format: polls, columns, look-ups, recovery and verification all get their runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import islice
from typing import NamedTuple, ParamSpec, TypeVar

from oncelog.errors import TopicDamaged
from oncelog_service.storage.keys import AFTER_ANY, FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, pointer_key, split_row_id
from oncelog_service.storage.payload_rows import Payload, decode_payloads
from oncelog_service.storage.port import RowDamaged, Rows, Store, Table
from oncelog_service.storage.records import TrimRow, decode_record
from oncelog_service.storage.rows import Row, decode_row, own_ttl, payloads_under, summary_of
from oncelog_service.storage.runs import GROUP, TTL, StoredRun, decode_run

P = ParamSpec("P")
R = TypeVar("R")

SLICE_BYTES = 8 * 2**20
"""Of rows that are deleted in one write. SQLite as it is often built overwrites what is deleted, through its log: that takes as
much room as they did, and room is what deleting is for."""

Runs = Generator[StoredRun]
"""To be closed: a scan that is left open would hold up the closing of the store."""


def read_back(decode: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What ``decode`` makes of a row or a record. Raises TopicDamaged for one that cannot be read."""
    try:
        return decode(*args, **kwargs)
    except RowDamaged as damage:
        raise TopicDamaged(str(damage)) from damage


def after(row_id: bytes) -> bytes:
    """The key that begins a scan of rows after ``row_id``; of messages, one after the message id ``row_id``."""
    return row_id + b"\x00"


def following(row_id: bytes) -> bytes:
    """The least key behind all messages of the row."""
    return (int.from_bytes(row_id, "big") + 1).to_bytes(ROW_ID_SIZE, "big")


def checked(rows: Iterable[tuple[bytes, bytes]], prefix: bytes, first: int, last: bytes = b"") -> Iterator[StoredRun]:
    """Consecutive rows of the store, each held against its checksum, against the numbers ``first``, +1, +2, … of its messages and
    against the id that was before it: at first ``last``.

    Raises:
        TopicDamaged: a row is damaged or missing.
    """
    cut = len(prefix)
    for key, data in rows:
        run = read_back(decode_run, prefix, key[cut:], data)
        if run.first != first:
            raise TopicDamaged(f"offset {first} is missing: offset {run.first} follows on the one before it")
        if run.first_id <= last:
            raise TopicDamaged(f"the row at {run.id.hex()} reaches over the one before it")
        yield run
        first, last = run.end, run.id


def runs_from(store: Store, prefix: bytes, start: bytes) -> Runs:
    """The log's runs from the key ``start`` (a row id, or :func:`after` one) to its end, all checked. The first may begin before.

    Raises:
        TopicDamaged: a row is damaged or missing, the one before the first included.
    """
    first, last, found = _from(store, prefix, start)
    with closing(found):
        yield from checked(found, prefix, first, last)


def _from(store: Store, prefix: bytes, start: bytes) -> tuple[int, bytes, Rows]:
    """The offset that the first row must begin with, the id before that row, and the rows from ``start`` on, unchecked."""
    while True:
        before = None if start == FIRST_ROW_ID else last_id(store, prefix, start)
        begin, earliest = (start, earliest_offset(store, prefix)) if before is None else (before, 0)
        with ExitStack() as scan:
            found = scan.enter_context(closing(store.scan(Table.MESSAGE, prefix + begin, prefix + AFTER_ANY)))
            first = next(found, None)
            if before is not None:
                # One row more than asked for: it says which offset the first one of the page must have.
                if first is None or first[0][len(prefix) :] != begin:
                    continue  # retention removed it between the two reads: look again
                end = read_back(decode_run, prefix, begin, first[1]).end
                scan.pop_all()
                return end, begin, found
            if first is None:
                return earliest, b"", found
            run = read_back(decode_run, prefix, first[0][len(prefix) :], first[1])
            if run.first != earliest and earliest_offset(store, prefix) != earliest:
                continue
            scan.pop_all()
            return earliest, b"", _all_of(first, found)


def _all_of(first: tuple[bytes, bytes], rest: Rows) -> Rows:
    with closing(rest):
        yield first
        yield from rest


def last_id(store: Store, prefix: bytes, stop: bytes = AFTER_ANY) -> bytes | None:
    """The row id of the last message of the last run before the key ``stop``, unchecked; None if the log has none."""
    with closing(store.scan(Table.MESSAGE, prefix, prefix + stop, reverse=True)) as rows:
        for key, _ in rows:
            return key[len(prefix) :]
    return None


def run_before(store: Store, prefix: bytes, stop: bytes = AFTER_ANY) -> StoredRun | None:
    """The last run all of which is before the key ``stop``; None if the log has none. Raises TopicDamaged."""
    return _last_run(store, Table.MESSAGE, prefix, stop)


def run_from(store: Store, prefix: bytes, start: bytes) -> StoredRun | None:
    """The first run with a message at or behind the key ``start``, held against the one before it. Raises TopicDamaged."""
    with closing(runs_from(store, prefix, start)) as runs:
        return next(runs, None)


def row_at(store: Store, prefix: bytes, row_id: bytes) -> Row | None:
    """The message with this id, or the group, decoded; None if there is none (any more). Raises TopicDamaged."""
    run = _first_run(store, Table.MESSAGE, prefix, row_id)
    return None if run is None or run.first_id > row_id else read_back(decode_row, run, run.index_from(row_id))


def earliest_offset(store: Store, prefix: bytes) -> int:
    """Offset at which the log begins: 0, or what retention left. Raises TopicDamaged."""
    return trim_of(store, prefix).earliest_offset


def trim_of(store: Store, prefix: bytes) -> TrimRow:
    """What retention has deleted. Raises TopicDamaged."""
    data = store.get(Table.TRIM, prefix)
    return TrimRow(0) if data is None else read_back(decode_record, TrimRow, data)


# --- stored groups ------------------------------------------------------------------------------------------------------


def stored_in(store: Store, prefix: bytes, run: StoredRun, within: bytes = b"") -> Runs:
    """The rows of the Payload Table with the messages of the group that ``run`` stands for, from the payload id ``within`` on,
    all checked; none any more where retention has deleted the group since the run was read.

    Raises:
        TopicDamaged: one is damaged or missing.
    """
    return _stored(store, prefix, run.id, payloads_under(run), run.count, within)


def stored_payloads(store: Store, prefix: bytes, row: Row) -> Generator[Payload]:
    """The messages of the group that a decoded row stands for, decoded. Raises as :func:`stored_in`."""
    with closing(_stored(store, prefix, row.row_id, row.payloads_under, row.messages, b"")) as stored:
        for each in stored:
            yield from decode_payloads(each)


def _stored(store: Store, prefix: bytes, row_id: bytes, under: int, total: int, within: bytes) -> Runs:
    try:
        yield from _whole(store, prefix, under, total, within)
    except TopicDamaged:
        if not is_trimmed(store, prefix, row_id):
            raise


def is_trimmed(store: Store, prefix: bytes, row_id: bytes) -> bool:
    """Whether a group that was read is not there any more: then its payloads, which go after it, may be missing."""
    return store.get(Table.MESSAGE, prefix + row_id) is None


def _whole(store: Store, prefix: bytes, under: int, total: int, within: bytes) -> Runs:
    before = _run_before(store, pointer_key(prefix, under), within)
    index = 0 if before is None else before.end
    with closing(_payload_runs(store, prefix, under, within, before)) as stored:
        for each in stored:
            yield each
            index = each.end
    if index != total:
        raise TopicDamaged(f"{total} payloads were stored under {_named(under)}, {index} are there")


def payload_runs(store: Store, prefix: bytes, under: int) -> Runs:
    """What is stored under a write pointer or a branch key, in store order, all checked. Raises TopicDamaged."""
    return _payload_runs(store, prefix, under, b"", None)


def _payload_runs(store: Store, prefix: bytes, under: int, within: bytes, before: StoredRun | None) -> Runs:
    base = pointer_key(prefix, under)
    index, last = (0, b"") if before is None else (before.end, before.id)
    with closing(store.scan(Table.PAYLOAD, base + within, base + AFTER_ANY)) as rows:
        try:
            for run in checked(rows, base, index, last):
                yield run
                index = run.end
        except TopicDamaged as damage:
            raise TopicDamaged(f"the payload {index} stored under {_named(under)} is damaged or missing") from damage


def _run_before(store: Store, base: bytes, within: bytes) -> StoredRun | None:
    """The row before the first one at or behind a payload id; None if there is none. Raises TopicDamaged: it is damaged."""
    return _last_run(store, Table.PAYLOAD, base, within) if within.strip(b"\x00") else None


def _named(under: int) -> str:
    return f"write pointer {under}" if under > 0 else f"branch {-under}"


def last_payloads(store: Store, prefix: bytes, pointer: int) -> StoredRun | None:
    """The last row stored under a write pointer, checked; None if there is none. Raises TopicDamaged."""
    return _last_run(store, Table.PAYLOAD, pointer_key(prefix, pointer), AFTER_ANY)


def _last_run(store: Store, table: Table, prefix: bytes, stop: bytes) -> StoredRun | None:
    with closing(store.scan(table, prefix, prefix + stop, reverse=True)) as rows:
        for key, data in rows:
            return read_back(decode_run, prefix, key[len(prefix) :], data)
    return None


def _first_run(store: Store, table: Table, prefix: bytes, start: bytes) -> StoredRun | None:
    with closing(store.scan(table, prefix + start, prefix + AFTER_ANY)) as rows:
        for key, data in rows:
            return read_back(decode_run, prefix, key[len(prefix) :], data)
    return None


# --- how large they are -------------------------------------------------------------------------------------------------


def bytes_in(store: Store, prefix: bytes, run: StoredRun) -> int | None:
    """The bytes of a run's bodies, or of those of the group that it stands for. None: retention has deleted that meanwhile.

    Raises TopicDamaged.
    """
    if not run.flags & GROUP:
        return run.size
    with closing(stored_in(store, prefix, run)) as stored:
        found = sum(each.size for each in stored)
    return None if is_trimmed(store, prefix, run.id) else found


def bytes_of(store: Store, prefix: bytes) -> int:
    """What a log takes that is not open (bounds/size.py). Raises TopicDamaged."""
    trim, last = trim_of(store, prefix), run_before(store, prefix)
    return 0 if last is None else last.upto_bytes - trim.bytes_below - sum(size for _, size in trim.missing)


def bytes_before(store: Store, prefix: bytes, place: bytes) -> tuple[int, int] | None:
    """What the last run says that lies before this place as a whole: the offset behind it, and its ``upto_bytes``. None: none
    does. Raises TopicDamaged."""
    run = run_before(store, prefix, place[:ROW_ID_SIZE])
    return None if run is None else (run.end, run.upto_bytes)


# --- by offset ----------------------------------------------------------------------------------------------------------


def last_before(store: Store, prefix: bytes, stable: int, is_enough: Callable[[StoredRun], bool]) -> StoredRun | None:
    """The first run from the beginning of the log with which it is enough, and for all behind it; never the last run of the log,
    nor one that does not end at or below the offset ``stable``, but the one before. None: there is none.

    By bisection, as :func:`find_offset`. Raises TopicDamaged.
    """
    last = run_before(store, prefix)
    if last is None:
        return None
    newest = last.id
    found = _first_where(store, Table.MESSAGE, prefix, lambda run: run.id >= newest or run.end > stable or is_enough(run))
    if found is not None and (found.id >= newest or found.end > stable):
        return run_before(store, prefix, found.first_id)
    return found


def find_offset(store: Store, prefix: bytes, offset: int) -> bytes | None:
    """The key of the first message at or above ``offset``: a row id, or in a stored group a message id. None if there is none.

    By bisection over the ids, which rise as the offsets do: about 30 seeks and no index that could be wrong.
    """
    run = _first_behind(store, Table.MESSAGE, prefix, offset)
    if run is None:
        return None
    index = max(0, offset - run.first)
    if not run.flags & GROUP:
        return run.id_at(index)
    if not index:
        return run.id
    stored = _first_behind(store, Table.PAYLOAD, pointer_key(prefix, payloads_under(run)), index)
    if stored is None and is_trimmed(store, prefix, run.id):
        return find_offset(store, prefix, offset)
    if stored is None:
        raise TopicDamaged(f"payload {index} of the group at {run.id.hex()} is missing")
    return run.id + stored.id_at(max(0, index - stored.first))


def offset_behind(store: Store, prefix: bytes, message_id: bytes) -> tuple[int, bool]:
    """The offset behind all messages up to this id, and whether there is a message with it. Raises TopicDamaged.

    Of an id that sorts before all that is there: the offset at which the log begins.
    """
    row_id, within = message_id[:ROW_ID_SIZE], message_id[ROW_ID_SIZE:]
    run = run_from(store, prefix, row_id)
    if run is None:
        before = run_before(store, prefix)
        return earliest_offset(store, prefix) if before is None else before.end, False
    if run.first_id > row_id:
        return run.first, False
    if not run.flags & GROUP:
        return run.first + run.index_from(row_id) + 1, within == FIRST_PAYLOAD_ID
    with closing(stored_in(store, prefix, run, within)) as stored:
        for each in stored:
            is_there = each.first_id <= within
            return run.first + each.first + (each.index_from(within) + 1 if is_there else 0), is_there
    return run.end, False


def offset_from(store: Store, prefix: bytes, place: bytes) -> int | None:
    """The offset of the first message at or behind a place: a row id, what begins one, or a message id. None: there is none.

    Raises TopicDamaged.
    """
    row_id, within = place[:ROW_ID_SIZE], place[ROW_ID_SIZE:]
    run = run_from(store, prefix, row_id)
    if run is None or not within or run.id != row_id or not run.flags & GROUP:
        return None if run is None else run.first + run.index_from(row_id)
    with closing(stored_in(store, prefix, run, within)) as stored:
        for each in stored:
            if (index := each.index_from(within)) < len(each):
                return run.first + each.first + index
    return run.end


def _first_behind(store: Store, table: Table, prefix: bytes, number: int) -> StoredRun | None:
    """The first run that ends behind this offset or index; None if there is none."""
    return _first_where(store, table, prefix, lambda run: run.end > number)


def _first_where(store: Store, table: Table, prefix: bytes, holds: Callable[[StoredRun], bool]) -> StoredRun | None:
    """The first run for which something holds that then holds for all behind it as well; None if there is none."""
    last, first = _last_run(store, table, prefix, AFTER_ANY), _first_run(store, table, prefix, b"")
    if last is None or first is None or not holds(last):
        return None
    low, high = int.from_bytes(first.id, "big"), int.from_bytes(last.id, "big")
    while low < high:  # the run wanted is the first one at or after some key in [low, high]
        middle = (low + high) // 2
        found = _first_run(store, table, prefix, middle.to_bytes(ROW_ID_SIZE, "big"))
        if found is None or holds(found):
            high = middle
        else:
            low = int.from_bytes(found.id, "big") + 1
    return _first_run(store, table, prefix, low.to_bytes(ROW_ID_SIZE, "big"))


# --- what has expired ---------------------------------------------------------------------------------------------------


class Expired(NamedTuple):
    """A row that retention may delete."""

    row_id: bytes
    """How its key ends."""
    end: int
    """The offset behind it."""
    last_id: bytes
    """Id of the last message in it."""
    upto_bytes: int
    """As the row says it."""


def next_keys(rows: Iterable[tuple[bytes, bytes]], limit: int) -> Iterator[bytes]:
    """Yields the keys of the first rows, which are to be deleted in one write: at most ``limit``, and about SLICE_BYTES."""
    size = 0
    for key, value in islice(rows, limit):
        yield key
        size += len(value)
        if size >= SLICE_BYTES:
            return


def expired_rows(store: Store, prefix: bytes, live_from: int, now_ms: int, limit: int) -> list[Expired]:
    """The oldest rows, in order, as long as all of their messages are expired or trimmed: ``limit`` at most, about SLICE_BYTES.

    Messages behind one that still lives stay: offsets are dense, so only the beginning of a log can go. Raises TopicDamaged.
    """
    found: list[Expired] = []
    hidden_below: int | None = None  # asked for where something lives: 10,000 idle topics are not asked
    size = 0
    with closing(runs_from(store, prefix, FIRST_ROW_ID)) as runs:
        for run in runs:
            if len(found) == limit or size >= SLICE_BYTES:
                break
            if not _expired(run, live_from, now_ms):
                hidden_below = trim_of(store, prefix).hidden_below if hidden_below is None else hidden_below
                if run.end > hidden_below or run.first == hidden_below:  # an empty group ends where it begins
                    break
            size += len(run.data)
            within = summary_of(run).last_payload_id if run.flags & GROUP else FIRST_PAYLOAD_ID
            found.append(Expired(run.id, run.end, run.id + within, run.upto_bytes))
    return found


def _expired(run: StoredRun, live_from: int, now_ms: int) -> bool:
    """Whether no message of a run may be delivered any more: they are older than their topic allows, or than each does itself.

    A stored group has no time of its own: it lives and dies as a whole.
    """
    timestamp, _ = split_row_id(run.id)
    if timestamp < live_from or not run.flags & TTL:
        return timestamp < live_from
    ttls = (own_ttl(run, index) for index in range(len(run)))
    return all(ttl is not None and timestamp + ttl * 1000 <= now_ms for ttl in ttls)
