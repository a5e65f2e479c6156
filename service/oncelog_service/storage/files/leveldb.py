"""The store on LevelDB (plyvel): the embedded default.

What was measured decides the settings (docs/guarantees.md has the figures):

* one ``write_batch(transaction=True, sync=True)`` per group: several unsynced writes before a synced one left holes after a power
  cut, and plyvel's default batch commits its first part even when the block raises;
* ``paranoid_checks`` *and* ``verify_checksums`` on every read: with the former alone one flipped bit gave wrong or missing rows
  in 57 of 60 trials, with both it was caught in 60 of 60;
* after any failed write the store is closed for good; to go on it is opened anew and read back;
* a store that takes more than LevelDB merges is slowed down bit by bit: LevelDB itself stopped it for 0.5 to 0.9 s, each 200 MB;
* nothing is compressed: Snappy took more processor time than all else that LevelDB does with a message (docs/decisions/0003);
* the directory is fsynced after opening, and where it was made so is each above it: without it 79 of 342 crash states of a new
  database did not open;
* nothing is opened that was not looked at before (leveldb_look.py): LevelDB makes a new database over one whose CURRENT is gone.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import plyvel

from oncelog.process.clock import REAL
from oncelog_service.storage.files.directory import (
    check_same,
    free_bytes,
    locked_directory,
    look,
    make_directory,
    size_bytes,
    sync_with_name,
    unlock,
)
from oncelog_service.storage.files.end_file import (
    ROW_KEY,
    TOKEN_SIZE,
    EndFile,
    EndRow,
    Making,
    beside,
    check_may_be_new,
    check_there,
    is_new,
)
from oncelog_service.storage.files.leveldb_look import begin_making, check_directory, cut_off
from oncelog_service.storage.files.leveldb_staged import STAGING_PREFIX, staged_leveldb
from oncelog_service.storage.keys import PAYLOAD_ID_SIZE, POINTER_SIZE, ROW_ID_SIZE, prefix_end
from oncelog_service.storage.port import Batch, Rows, Staged, StoreClosed, StoreDamaged, StoreError, Table
from oncelog_service.storage.reads import RunningReads

_WRITE_BUFFER = 16 * 2**20
"""LevelDB's default is 4 MiB; a group of requests can be half of that. Two buffers at most are held in memory."""
_BLOCK_CACHE = 16 * 2**20
_MAX_OPEN_FILES = 74
"""The fewest that LevelDB takes. Open table files are mapped and count as resident memory: 64 of 2 MiB and 10 others."""
_MAX_FILE_SIZE = 2 * 2**20
_SCRUB_SECONDS = 30.0
"""How long scrubbing waits for scans: as long as one of a request takes at the most."""
_TABLE_NUMBER = re.compile(r"^ (\d+):\d+\[", re.MULTILINE)
"""In what LevelDB says of its tables: ` 12:2097152['first key' @ 1 : 1 .. 'last key' @ 9 : 1]`."""
_MERGED_AT_ONCE = 32 * 2**20
"""Bytes of tables in a range of keys that is merged to make room. The old tables stay until the new ones are there, and LevelDB
takes all that lies between two tables which it merges at once: a range of 256 MiB took 90 MB more of the disk for a moment. It
is also asked so often whether the store is to be closed."""
_LARGE = {Table.MESSAGE: ROW_ID_SIZE, Table.PAYLOAD: POINTER_SIZE + PAYLOAD_ID_SIZE}
"""Tables that take nearly all of the disk, and how much of a key stands behind what all keys of a log have in common."""
_NOWHERE = (b"\xff" * 8, b"\xff" * 8)
"""Keys that no row has."""
_MUCH = 64 * 2**20
"""Bytes of messages of a log that are deleted and not merged yet. Whoever reads up to them passes over all of them, also from the
log before: behind 2 GiB a look at the neighbour took 4 to 11 s, each time."""
_MANY_ROWS = 32
_AGAIN = 2
_CUT_AT = 64
"""Bytes of a key up to which ranges of keys are cut."""
_FEW_FILES = 3
"""So many files of level 0 LevelDB leaves as they are; more it merges, and at 12 it stops each write until it has."""
_DELAY = 1e-9
"""Seconds a byte, times the square of how many files are more than few: 9 ns at 6 of them, 64 at 11."""


class LevelDBStore:
    """Keeps its rows in a LevelDB directory. See :class:`~oncelog_service.storage.port.Store`."""

    def __init__(self, path: Path, reached: int = 0) -> None:
        """Opens ``path``, and makes a store where nothing is, unless this process has had one there that came to ``reached``.

        Raises StoreError (in use, unreadable, gone) or StoreDamaged: then nothing in it has been changed.
        """
        self._path = path
        self.number = 0
        self._failed = False
        self._behind = 0.0
        self._writing = Lock()
        """Held while a write is under way, and while none may be."""
        self._reads = RunningReads()  # plyvel's iterators die with the database
        self._noting = Lock()
        self._gone: dict[bytes, tuple[bytes, bytes]] = {}
        """Log → the first and the last of its keys that were deleted or rewritten since the disk was given back anything."""
        self._deleted: dict[bytes, tuple[bytes, bytes, int]] = {}
        """The same of messages that were deleted, and how many rows were since it was asked last how much that is. All in between
        are: only the beginning of a log is deleted."""
        self._again = 0
        """So many times more files that nobody reads any more are to be looked for."""
        self._swept = False
        """What was deleted before this opening was given back too."""
        self._db: Any = None
        self._end: Any = None
        self._lock: int | None = None
        try:
            check_there(path, reached)
            if not reached:
                make_directory(path)
            self._lock = locked_directory(path)
            for left in path.glob(STAGING_PREFIX + "*"):  # by a process that was killed, or a store that failed
                shutil.rmtree(left, ignore_errors=True)
            new = is_new(path)
            if new:
                check_may_be_new(path, reached)
                begin_making(path)
            with cut_off([] if new else check_directory(path, reached)):
                self._db = _opened(path, new)
            sync_with_name(path)
            self.number, self._token = self._read_end_row()
            if new:
                self._write([])
            self._end = EndFile(beside(path), self.number)
            Making(path).end()
        except plyvel.CorruptionError as error:
            self.close()
            raise StoreDamaged(f"{path}: {error}") from error
        except (plyvel.Error, OSError) as error:
            self.close()
            raise StoreError(f"{path} cannot be opened: {error}") from error
        except BaseException:
            self.close()
            raise

    def get(self, table: Table, key: bytes) -> bytes | None:
        with self._reading():
            value: bytes | None = self._db.get(table.value + key, verify_checksums=True)
            return value

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        prefix = table.value
        with self._reading():
            iterator = self._db.iterator(
                start=prefix + start, stop=prefix + stop, reverse=reverse, verify_checksums=True, fill_cache=False
            )
            last = None
            try:
                for last, value in iterator:
                    yield last[1:], value
                    if self._failed:  # else a scan that goes on would hold up the closing of the store, which waits for it
                        raise StoreClosed(f"{self._path} is closed")
            finally:
                iterator.close()
            self._check_end(prefix + start, prefix + stop, last, reverse)
            if reverse and last is None and start < stop:
                # plyvel takes a reverse scan whose only row is the one at `start` for an empty one.
                only = self._db.get(prefix + start, verify_checksums=True)
                if only is not None:
                    yield start, only

    def write(self, batches: Sequence[Batch]) -> None:
        with self._writing:
            self._write_next(batches)

    def write_at_once(self, batches: Sequence[Batch]) -> bool:
        # A store that is behind would be slowed down by LevelDB itself; a backup that is staged has the lock.
        if self._behind or not self._writing.acquire(blocking=False):
            return False
        try:
            self._write_next(batches)
        finally:
            self._writing.release()
        return True

    def _write_next(self, batches: Sequence[Batch]) -> None:
        if self._failed or self._db.closed:
            raise StoreClosed(f"{self._path} is closed")
        # Until it is known whether the write has failed: what a failed one has left in the log is no moment of the store.
        try:
            size = self._write(batches)
            # Behind the sync, never before: a file that knows of a write which a power cut took would have a whole store
            # refused.
            self._end.note(self.number)
            assert self._lock is not None
            check_same(self._path, os.fstat(self._lock))
            files = int(self._db.get_property(b"leveldb.num-files-at-level0"))
        except plyvel.CorruptionError as error:  # of a table, met while tables were merged: each write after it fails too
            self._failed = True
            raise StoreDamaged(f"{self._path}: the write failed, since a table is damaged: {error}") from error
        except Exception as error:
            self._failed = True
            raise StoreError(f"{self._path}: the write failed: {error}") from error
        self._behind = delay(files, size)

    def behind(self) -> float:
        return self._behind

    def _write(self, batches: Sequence[Batch]) -> int:
        """Writes them and returns how many bytes the values have."""
        number, size = self.number + 1, 0
        with self._db.write_batch(transaction=True, sync=True) as rows:
            put = rows.put
            put(ROW_KEY, EndRow(number, self._token).to_bytes())  # first: so it is found in the log without a look at the rest
            for batch in batches:
                for laid in batch.laid:
                    start = laid.table.value + laid.prefix
                    for end, value in laid.rows():
                        put(start + end, value)
                        size += len(value)
                for table, key, value in batch.puts:
                    put(table.value + key, value)
                    size += len(value)
                for table, key in batch.deletes:
                    rows.delete(table.value + key)
        # Behind the write: what is merged before it still holds what is gone, and nobody merges it again.
        for batch in batches:
            if batch.deletes or batch.rewritten:
                self._note_gone(batch.deletes, batch.rewritten)
        self.number = number
        return size

    def scrub(self, table: Table, key: bytes, *, written: bool) -> None:
        # LevelDB drops an earlier value where it merges two tables, and never rewrites a table for what is in it alone. So the
        # earlier values have to be in tables before the row is written: then the newest one is above them all, and is merged with
        # each. To merge once, after the write, left 13 of 180 earlier values in a table that held both. A merge begins with a new
        # log, and the old one is deleted.
        begin = table.value + key
        with self._reading():
            self._merge(begin, begin + b"\x00")
            if written:
                self._wait_for_old_tables(begin)

    def _wait_for_old_tables(self, key: bytes) -> None:
        """Waits until the tables that are there and count no more are deleted: scans that are under way hold on to them.

        LevelDB looks for such when it has merged. Raises StoreError: a scan took too long.
        """
        there, pause = set(self._tables()), 0.01
        end = REAL.monotonic() + _SCRUB_SECONDS
        while there.intersection(self._tables()) - self._counting_tables():
            if self._failed:
                raise StoreClosed(f"{self._path} is closed")
            if REAL.monotonic() > end:
                raise StoreError(f"{self._path}: a long scan holds on to tables with earlier values of a row; try again later")
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
            self._merge(key, key + b"\x00")

    def _merge(self, start: bytes, stop: bytes) -> None:
        """Merges the tables that hold keys between the two into one level.

        LevelDB looks how deep they lie before it lays down what is in memory, and before it ends what it merges by itself, so it
        may leave some deeper than it looked (2 of 40 times while others held the disk): it is asked twice, where the second time
        nearly always finds nothing to do.
        """
        for _ in range(2):
            self._db.compact_range(start=start, stop=stop)

    def _tables(self) -> Iterator[str]:
        return (each.name for each in self._path.iterdir() if each.suffix in (".ldb", ".sst"))

    def _counting_tables(self) -> set[str]:
        """Names the tables that the present state of the database is made of."""
        listed = self._db.get_property(b"leveldb.sstables").decode("ascii", "replace")
        return {f"{int(number):06}.ldb" for number in _TABLE_NUMBER.findall(listed)}

    def look(self) -> None:
        try:
            with self._reading():
                look(self._path / "CURRENT")
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error

    def free_bytes(self) -> int:
        try:
            with self._reading():
                assert self._lock is not None
                check_same(self._path, os.fstat(self._lock))
                return free_bytes(self._path)
        except OSError as error:
            raise StoreError(f"{self._path}: it cannot be seen how much room there is: {error}") from error

    def size_bytes(self) -> int:
        try:
            return size_bytes(self._path.iterdir())
        except OSError as error:
            raise StoreError(f"{self._path}: it cannot be seen how much it takes: {error}") from error

    def reclaim(self, thorough: bool, only_much: bool = False) -> None:
        # LevelDB drops what rows were before when it merges their tables, and merges as it is written to.
        ranges = self._take_much() if only_much else self._take_gone()
        if thorough and not self._swept:
            ranges, self._swept = [(table.value, prefix_end(table.value)) for table in _LARGE], True
        # The files of merged tables stay as long as somebody reads them, and from then on until LevelDB merges or lays down
        # something again: so it is asked to do so some more times, behind the last read that ran meanwhile.
        merged = ranges or ([_NOWHERE] if self._again else [])
        for first, last in merged:
            for start, stop in _parts(first, last + b"\0", self._size):
                with self._reading():
                    self._merge(start, stop)
        if merged:
            self._again = _AGAIN if ranges or self._reads.running else self._again - 1

    def _take_gone(self) -> list[tuple[bytes, bytes]]:
        with self._noting:
            ranges, self._gone, self._deleted = list(self._gone.values()), {}, {}
        return ranges

    def _take_much(self) -> list[tuple[bytes, bytes]]:
        """Of a log that has not much more rows must be deleted before it is asked again how much it is."""
        with self._noting:
            asked = {log: (first, last) for log, (first, last, rows) in self._deleted.items() if rows >= _MANY_ROWS}
        much = {log for log, (first, last) in asked.items() if self._size(first, last) >= _MUCH}
        with self._noting:
            for log in asked.keys() - much:
                first, last, _ = self._deleted[log]
                self._deleted[log] = first, last, 0
            return [self._deleted.pop(log)[:2] for log in much]

    def _size(self, start: bytes, stop: bytes) -> int:
        with self._reading():
            size: int = self._db.approximate_size(start, stop)
            return size

    def _note_gone(self, deleted: Sequence[tuple[Table, bytes]], rewritten: Sequence[tuple[Table, bytes]]) -> None:
        """Notes from where to where rows of each log were deleted, the oldest first, or rewritten: nearly all in between are."""
        with self._noting:
            for is_deleted, keys in ((True, deleted), (False, rewritten)):
                for table, key in keys:
                    if table not in _LARGE:
                        continue
                    at = table.value + key
                    log = at[: -_LARGE[table]]
                    first, last = self._gone.get(log, (at, at))
                    self._gone[log] = min(first, at), max(last, at)
                    if is_deleted and table is Table.MESSAGE:
                        first, last, rows = self._deleted.get(log, (at, at, 0))
                        self._deleted[log] = min(first, at), max(last, at), rows + 1

    def check_written(self) -> None:
        """No other process has it: what was open is what was written."""

    def lease_table(self) -> None:
        return None

    def staged(self, least_free: int = 0) -> AbstractContextManager[Staged]:
        return staged_leveldb(self._path, self._paused)

    @contextmanager
    def _paused(self) -> Iterator[int]:
        with self._writing:
            if self._failed or self._db.closed:
                raise StoreClosed(f"{self._path} is closed")
            yield self.number

    def close(self) -> None:
        self._failed = True
        self._reads.close()
        if self._db is not None:
            self._db.close()
        if self._end is not None:
            self._end.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            unlock(lock)

    def _read_end_row(self) -> EndRow:
        data = self._db.get(ROW_KEY, verify_checksums=True)
        row = EndRow(0, os.urandom(TOKEN_SIZE)) if data is None else EndRow.from_bytes(data)
        if row is None:
            raise StoreDamaged(f"{self._path}: the row that says how far the store has come is damaged")
        return row

    def _check_end(self, start: bytes, stop: bytes, last: bytes | None, reverse: bool) -> None:
        """Raises plyvel.CorruptionError if a scan ended behind ``last`` because of damage.

        plyvel's iterator ends where LevelDB's is no longer valid and does not ask for its status: a damaged block behind
        which there is nothing was answered as if it were empty. The raw iterator asks after every step.
        """
        with closing(self._db.raw_iterator(verify_checksums=True, fill_cache=False)) as raw:
            raw.seek(last or (stop if reverse else start))
            if reverse:
                _ = raw.prev() if raw.valid() else raw.seek_to_last()
            elif last is not None and raw.valid():
                raw.next()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self._failed:
            raise StoreClosed(f"{self._path} is closed")
        with self._reads:
            try:
                yield
            except plyvel.CorruptionError as error:
                raise StoreDamaged(f"{self._path}: {error}") from error
            except plyvel.Error as error:
                raise StoreError(f"{self._path}: {error}") from error


def delay(level_0_files: int, size: int) -> float:
    """Tells how many seconds LevelDB needs after a write of so many bytes while it has so many files to merge."""
    return max(0, level_0_files - _FEW_FILES) ** 2 * size * _DELAY


def _parts(start: bytes, stop: bytes, size_of: Callable[[bytes, bytes], int]) -> Iterator[tuple[bytes, bytes]]:
    """Cuts a range of keys into parts whose tables are merged at once, as far as keys differ early."""
    length = max(len(start), len(stop), _CUT_AT)
    first, last = (int.from_bytes(key.ljust(length, b"\0"), "big") for key in (start, stop))
    middle = ((first + last) // 2).to_bytes(length, "big")
    if not start < middle < stop or size_of(start, stop) <= _MERGED_AT_ONCE:
        yield start, stop
        return
    yield from _parts(start, middle, size_of)
    yield from _parts(middle, stop, size_of)


def _opened(path: Path, new: bool) -> plyvel.DB:
    """Opens the database. Tables that LevelDB writes before it finds damage are deleted again. Raises plyvel.Error."""
    before = set(path.iterdir())
    try:
        return plyvel.DB(
            str(path),
            create_if_missing=new,
            paranoid_checks=True,
            write_buffer_size=_WRITE_BUFFER,
            lru_cache_size=_BLOCK_CACHE,
            max_open_files=_MAX_OPEN_FILES,
            max_file_size=_MAX_FILE_SIZE,
            bloom_filter_bits=10,
            compression=None,
        )
    except plyvel.Error:
        for each in set(path.iterdir()) - before:
            if each.suffix == ".ldb":
                each.unlink()
        raise
