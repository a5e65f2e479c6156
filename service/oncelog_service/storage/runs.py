"""Runs: the messages of one request lie side by side in one row of the store below, and are read as rows of their own.

LevelDB, SQLite and PostgreSQL all cost per row they keep: to write it, to merge it, to step to it. So what is written with
:meth:`~oncelog_service.storage.port.Batch.put_run` to MESSAGE and PAYLOAD is laid together, here and nowhere else: above this
store there is a row for each message, below it a row for each run.

What holds of every run:

* its rows are of one log – one topic's messages, or the payloads under one pointer –, their ids have one millisecond and rise by
  one: so nothing can lie among them, and no two runs overlap;
* it lies under the key of its **last** row: a seek to any of its rows finds it, and where a log ends is where its last row ends;
* it has at most RUN_BYTES of rows, or one row: whoever wants one message does not read a whole request;
* its rows are as they would be by themselves, checksums and all. Its head has a checksum of its own, of the key too. A run whose
  head is damaged is read as one row, under the run's key, that matches no checksum;
* a row within it can be changed, or deleted: the run is written anew by itself, what is left of it in as many runs as it takes.
  What retention deletes is gone from the rows at once, and a run is gone when all its rows are. A change that leaves its rows as
  large as they were, and its last row there, leaves it under its key: so a scan that reads twice (:meth:`RunStore._falling`)
  finds each row, whatever roll-back or retention does in between.

A run, big-endian::

    0       4     magic "OLRN"
    4       4     count u32 of rows, at least 1
    8       4 n   end u32 of each row, counted from the beginning of the first
    ..      4     checksum of the key and all that
    ..      ...   the rows

A row by itself lies there as it is; one that begins as a run does is a run of one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.keys import AFTER_ANY, PAYLOAD_ID_SIZE, ROW_ID_SIZE, SEQ_BYTES, generation_of
from oncelog_service.storage.port import Batch, InFiles, LeaseTable, Rows, StoreClosed, StoreError, Table

RUN_BYTES = 32 * 2**10
"""Of rows, in a run of more than one. Twice as much was not faster to write, and is slower to seek into."""
IN_RUNS: Mapping[Table, int] = {Table.MESSAGE: 0, Table.PAYLOAD: 8}
"""The tables with runs, and how many bytes stand between generation and id in a key."""
assert ROW_ID_SIZE == PAYLOAD_ID_SIZE
_ID_SIZE = ROW_ID_SIZE
_MAGIC = b"OLRN"
_HEAD = struct.Struct(">4sI")
_SKIPPED = 16
"""Rows that a look-up steps over before it seeks anew."""


class Run(NamedTuple):
    """A run as it was read."""

    key: bytes
    """Of its last row."""
    data: bytes
    ends: tuple[int, ...]
    """Of its rows."""

    def __len__(self) -> int:
        return len(self.ends)

    def key_at(self, index: int) -> bytes:
        """Returns the key of one of its rows."""
        behind = len(self.ends) - 1 - index
        return self.key if not behind else self.key[:-2] + SEQ_BYTES[int.from_bytes(self.key[-2:], "big") - behind]

    def get(self, key: bytes) -> bytes | None:
        """Returns the row with this key; None: it has none."""
        found = dict(islice(self.between(key, key + b"\x00"), 1))
        return found.get(key)

    def between(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """(key, row) of its rows with ``start <= key < stop``, rising or falling."""
        count, at = len(self.ends), len(self.data) - self.ends[-1]
        first = 0 if start <= self.key_at(0) else bisect_left(range(count), start, key=self.key_at)
        behind = count if self.key < stop else bisect_left(range(count), stop, key=self.key_at)
        places = range(first, behind)
        ends = [at + end for end in self.ends[:behind]]
        rows = map(self.data.__getitem__, map(slice, [at, *ends][first:-1], ends[first:]))
        if reverse:
            return zip(map(self.key_at, reversed(places)), reversed(list(rows)), strict=True)
        if not places or count == 1:
            return zip([self.key] * len(places), rows, strict=False)
        seq = int.from_bytes(self.key_at(first)[-2:], "big")
        return zip(map(self.key[:-2].__add__, SEQ_BYTES[seq : seq + len(places)]), rows, strict=True)


def run_of(key: bytes, value: bytes) -> Run | None:
    """Reads what lies under a key as a run; None: it is none, or its head is damaged."""
    if not value.startswith(_MAGIC) or len(value) < _HEAD.size:
        return None
    _, count = _HEAD.unpack_from(value)
    at = _HEAD.size + 4 * count + SIZE
    if not count or len(value) < at or not matches(value[:at], key):
        return None
    ends = struct.unpack_from(f">{count}I", value, _HEAD.size)
    return Run(key, value, ends) if len(value) == at + ends[-1] else None


def rows_of(key: bytes, value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, row) of all that lies under a key: the rows of a run, or what is no run, or a damaged one, by itself."""
    run = run_of(key, value)
    return iter(((key, value),)) if run is None else run.between(b"", key + b"\x00")


def log_of_key(table: Table, key: bytes) -> bytes | None:
    """Finds what begins every key of the log that a key, or a place between keys, lies in; None: in none."""
    try:
        size = len(generation_of(key)) + IN_RUNS[table]
    except ValueError:
        return None
    return key[:size] if len(key) > size else None


def laid_together(prefix: bytes, ids: Sequence[bytes], rows: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Lays rows together in runs: the id under which each run lies, and the run. Rows whose ids do not rise by one are apart."""
    under: list[bytes] = []
    runs: list[bytes] = []
    for begin, end in _rising_by_one(ids):
        sizes = [*accumulate(map(len, rows[begin:end]), initial=0)]
        at, last = 0, end - begin
        while at < last:
            upto = max(at + 1, bisect_right(sizes, sizes[at] + RUN_BYTES) - 1)
            under.append(ids[begin + upto - 1])
            runs.append(_encoded(prefix + under[-1], rows[begin + at : begin + upto], sizes[at : upto + 1]))
            at = upto
    return under, runs


def _encoded(key: bytes, rows: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    """``sizes``: of all rows before each of them, and one more."""
    if len(rows) == 1 and not rows[0].startswith(_MAGIC):
        return rows[0]
    before = sizes[0]
    ends = [size - before for size in sizes[1:]] if before else sizes[1:]
    head = _HEAD.pack(_MAGIC, len(rows)) + struct.pack(f">{len(rows)}I", *ends)
    return with_checksum(head, key) + b"".join(rows)


def _rising_by_one(ids: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where pieces begin and end whose ids have one millisecond and rise by one; mostly that is all of them."""
    head, seq = ids[0][:-2], int.from_bytes(ids[0][-2:], "big")
    begin, count = 0, len(ids)
    if count > 1 and list(ids) != [head + each for each in SEQ_BYTES[seq : seq + count]]:
        numbers = [int.from_bytes(each, "big") for each in ids]
        for at, (number, following) in enumerate(pairwise(numbers), 1):
            if following != number + 1 or not following % len(SEQ_BYTES):
                yield begin, at
                begin = at
    yield begin, count


_GONE = object()


class RunStore:
    """Lays the runs of a store together. See :class:`~oncelog_service.storage.port.Store`.

    A scan that begins or ends within a run sees that run, and all others, each as of one moment.
    """

    def __init__(self, inner: InFiles) -> None:
        """``inner``: the rows as they lie on disk."""
        self.inner = inner
        self._failed = False

    @property
    def number(self) -> int:
        """The number of the newest write; still known when the store is closed."""
        return self.inner.number

    # --- read

    def get(self, table: Table, key: bytes) -> bytes | None:
        self._check()
        value = self.inner.get(table, key)
        if table not in IN_RUNS or (value is not None and not value.startswith(_MAGIC)):
            return value
        found = self._from(table, key) if value is None else (key, value)
        if found is None or not found[1].startswith(_MAGIC):
            return None
        run = run_of(*found)
        return found[1] if run is None else run.get(key)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        if table not in IN_RUNS:
            return self.inner.scan(table, start, stop, reverse=reverse)
        return self._falling(table, start, stop) if reverse else self._rising(table, start, stop)

    def _rising(self, table: Table, start: bytes, stop: bytes) -> Rows:
        self._check()
        with closing(self.inner.scan(table, start, stop)) as found:
            for key, value in found:
                run = run_of(key, value)
                if run is None:
                    yield key, value
                else:
                    yield from run.between(start, stop)
                start = key + b"\x00"
        within = self._reaching_over(table, stop)
        if within is not None and start < stop:
            yield from within.between(start, stop)

    def _falling(self, table: Table, start: bytes, stop: bytes) -> Rows:
        self._check()
        within = self._reaching_over(table, stop)
        if within is not None and start < stop:
            yield from within.between(start, stop, reverse=True)
            stop = min(stop, within.key_at(0))
        with closing(self.inner.scan(table, start, max(start, stop), reverse=True)) as found:
            for key, value in found:
                run = run_of(key, value)
                if run is None:
                    yield key, value
                else:
                    yield from run.between(start, stop, reverse=True)

    def _reaching_over(self, table: Table, stop: bytes) -> Run | None:
        """Finds the run that has rows below ``stop`` and lies at or behind it; or one that has none there, or None."""
        found = self._from(table, stop)
        return None if found is None else run_of(*found)

    def _from(self, table: Table, key: bytes) -> tuple[bytes, bytes] | None:
        """Reads the first row of the store below in the same log, at or behind a key."""
        log = log_of_key(table, key)
        if log is None or key >= log + AFTER_ANY:
            return None
        with closing(self.inner.scan(table, key, log + AFTER_ANY)) as found:
            return next(found, None)

    # --- write

    def write(self, batches: Sequence[Batch]) -> None:
        self._check()
        try:
            made = [_laid_together(batch) for batch in batches] if all(map(_adds_runs_only, batches)) else self._anew(batches)
        except StoreError:
            self._failed = True
            raise
        except Exception as error:
            self._failed = True
            raise StoreError(f"the write failed: {error}") from error
        self.inner.write(made)

    def _anew(self, batches: Sequence[Batch]) -> list[Batch]:
        """What the batches come to where some change or delete rows that are there."""
        made, last = [_without_runs(batch) for batch in batches], Batch()
        for table in IN_RUNS:
            changes = _changes(table, batches)
            for key, value in self._changed(table, sorted(changes)):
                last.delete(table, key)
                rows = ((each, changes.pop(each, row)) for each, row in rows_of(key, value))
                _put_all(last, table, {each: row for each, row in rows if row is not _GONE})
            _put_all(last, table, changes)
        written = {(table, key) for table, key, _ in last.puts}
        written.update((table, prefix + end) for table, prefix, ends, _ in last.runs for end in ends)
        last.deletes = [each for each in last.deletes if each not in written]
        return [*made, last]

    def _changed(self, table: Table, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of what lies in the store below and holds rows with some of these keys, which rise."""
        at = 0
        while at < len(keys):
            log = log_of_key(table, keys[at])
            if log is None:
                at += 1
                continue
            behind, skipped = bisect_left(keys, log + AFTER_ANY, lo=at + 1), 0
            with closing(self.inner.scan(table, keys[at], log + AFTER_ANY)) as found:
                for key, value in found:
                    run, upto = run_of(key, value), bisect_right(keys, key, lo=at)
                    if upto > at and keys[upto - 1] >= (key if run is None else run.key_at(0)):
                        yield key, value
                    skipped = 0 if upto > at else skipped + 1
                    at = upto
                    if at >= behind or skipped > _SKIPPED:
                        break
                else:
                    at = behind

    def lease_table(self) -> LeaseTable | None:
        return self.inner.lease_table()

    def close(self) -> None:
        self.inner.close()

    def _check(self) -> None:
        if self._failed:
            raise StoreClosed("the store is closed, since a write failed")


def _packable(table: Table, prefix: bytes, ids: Sequence[bytes]) -> bool:
    """Tells whether the ids are those of messages of one log."""
    return bool(ids) and set(map(len, ids)) == {_ID_SIZE} and log_of_key(table, prefix + ids[0]) == prefix


def _adds_runs_only(batch: Batch) -> bool:
    """Tells whether a batch changes no row that may be in a run already."""
    for table, _ in batch.deletes:
        if table in IN_RUNS:
            return False
    for table, _, _ in batch.puts:
        if table in IN_RUNS:
            return False
    return all(table not in IN_RUNS or _packable(table, prefix, ids) for table, prefix, ids, _ in batch.runs)


def _laid_together(batch: Batch) -> Batch:
    """Lays the runs of a batch together, in a new one: a batch may be handed in again."""
    made = Batch()
    made.fences, made.puts, made.deletes = batch.fences, batch.puts, batch.deletes
    for table, prefix, ids, rows in batch.runs:
        made.put_run(table, prefix, *((ids, rows) if table not in IN_RUNS else laid_together(prefix, ids, rows)))
    return made


def _without_runs(batch: Batch) -> Batch:
    """What a batch does to other tables."""
    made = Batch()
    made.fences = batch.fences
    made.runs = [each for each in batch.runs if each[0] not in IN_RUNS]
    made.puts = [each for each in batch.puts if each[0] not in IN_RUNS]
    made.deletes = [each for each in batch.deletes if each[0] not in IN_RUNS]
    return made


def _changes(table: Table, batches: Iterable[Batch]) -> dict[bytes, object]:
    """What the batches come to in one table, applied in their order: key → row, or _GONE."""
    changes: dict[bytes, object] = {}
    for batch in batches:
        for each, prefix, ids, rows in batch.runs:
            if each is table:
                changes.update(zip([prefix + end for end in ids], rows, strict=True))
        changes.update((key, row) for each, key, row in batch.puts if each is table)
        changes.update((key, _GONE) for each, key in batch.deletes if each is table)
    return changes


def _put_all(batch: Batch, table: Table, changes: Mapping[bytes, object]) -> None:
    """Adds rows to a batch, those of a run that it deletes or new ones: laid together where they can be."""
    logs: dict[bytes, dict[bytes, bytes]] = {}
    for key in sorted(changes):
        row, log = changes[key], log_of_key(table, key)
        if row is _GONE:
            batch.delete(table, key)
        elif isinstance(row, bytes) and log is not None and len(key) == len(log) + _ID_SIZE:
            logs.setdefault(log, {})[key[len(log) :]] = row
        elif isinstance(row, bytes):
            batch.put(table, key, _encoded(key, [row], (0, len(row))))
        else:
            batch.put(table, key, row)  # type: ignore[arg-type]  # for the store below to refuse
    for log, rows in logs.items():
        ids, runs = laid_together(log, [*rows], [*rows.values()])
        batch.put_run(table, log, ids, runs)
