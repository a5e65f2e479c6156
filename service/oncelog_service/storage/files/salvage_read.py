"""Every row that can still be read of a store in files, however damaged; the files themselves are only read.

* **LevelDB**: its own repair, in a directory of links elsewhere: it makes tables of the logs, leaves out the blocks that do not
  match their checksums, and needs neither CURRENT nor manifest.
* **SQLite**: a copy of the files, read row by row in the order in which they were written, not through the index; around a page
  that cannot be read in ever smaller steps.

What comes out is not known to be intact, nor to be all: rows that were deleted or changed may come as they were before.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from oncelog_service.storage.port import StoreError, driver

_AT_ONCE = 4_096
_FILES = ("", "-wal")


def readable_rows(scheme: str, source: Path, work: Path) -> Iterator[tuple[bytes, bytes]]:
    """(key with the table's byte, value as it stands on disk). ``work``: an empty directory for as long as this runs.

    Raises StoreError: nothing can be read.
    """
    return _of_leveldb(source, work) if scheme == "leveldb" else _of_sqlite(source, work)


def _of_leveldb(source: Path, work: Path) -> Iterator[tuple[bytes, bytes]]:
    with driver("leveldb"):
        import plyvel

    for each in source.resolve().iterdir():
        if each.suffix in (".ldb", ".sst", ".log"):
            (work / each.name).symlink_to(each)
    try:
        plyvel.repair_db(str(work), paranoid_checks=True)
        with closing(plyvel.DB(str(work))) as repaired, repaired.iterator(verify_checksums=True, fill_cache=False) as rows:
            yield from rows
    except plyvel.Error as error:
        raise StoreError(f"{source}: {error}") from error


def _of_sqlite(source: Path, work: Path) -> Iterator[tuple[bytes, bytes]]:
    source = source.resolve()  # a link to a database has no write-ahead log beside it
    try:
        for end in _FILES:
            each = source.with_name(source.name + end)
            if each.exists():
                shutil.copyfile(each, work / f"copy{end}")
        with closing(sqlite3.connect(work / "copy")) as database:
            database.execute("PRAGMA query_only = ON")
            yield from _between(database, 0, _last(database))
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{source}: {error}") from error


def _last(database: sqlite3.Connection) -> int:
    try:
        (last,) = database.execute("SELECT max(rowid) FROM oncelog_row NOT INDEXED").fetchone()
    except sqlite3.DatabaseError:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        return int(pages) * _AT_ONCE  # more than fit
    return last or 0


def _between(database: sqlite3.Connection, after: int, upto: int) -> Iterator[tuple[bytes, bytes]]:
    """Rows of these numbers, as far as they can be read."""
    ranges = [(begin, min(begin + _AT_ONCE, upto)) for begin in range(after, upto, _AT_ONCE)][::-1]
    while ranges:
        begin, end = ranges.pop()
        try:
            rows = database.execute(
                "SELECT key, value FROM oncelog_row NOT INDEXED WHERE rowid > ? AND rowid <= ?", (begin, end)
            ).fetchall()
        except sqlite3.DatabaseError:
            middle = (begin + end) // 2
            if end - begin > 1:
                ranges += [(middle, end), (begin, middle)]
            continue
        yield from ((key, value) for key, value in rows if isinstance(key, bytes) and isinstance(value, bytes))
