"""A store made equal to another one, row by row and byte for byte; and two stores compared.

A piece of the source is read, then the same range of the target, and what differs is written. So a copy that was broken off goes
on from any point, and nothing is taken on trust: neither what is there already, nor that the source has stayed the same.

A row in COPY says that the target is a copy under way; no service opens such a store. It stays when the copy is finished, and is
not copied itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from oncelog_service.storage.incarnation import check_not_behind
from oncelog_service.storage.port import Batch, Fence, Store, StoreError, Table
from oncelog_service.storage.records import CopyRow, decode_record, encode_record

TABLES = tuple(table for table in Table if table is not Table.COPY)
"""What is copied."""
SALVAGED = "what was salvaged of "
"""Begins the source of a store that `oncelog salvage` has made."""
PIECE_ROWS = 8_192
PIECE_BYTES = 8 * 2**20
"""A piece ends with the row that reaches this; a row can be as large as a request."""
_KEY = b""
_END = b"\xff" * 64
"""Sorts after every key."""


class CopyRefused(Exception):
    """The copy would be none, or of the wrong store. Nothing was changed."""


class Difference(NamedTuple):
    """A row that is not the same in both."""

    table: Table
    key: bytes
    left: bytes | None
    right: bytes | None


@dataclass(slots=True)
class Copied:
    """Says how far a copy has come."""

    table: Table = TABLES[0]
    rows: int = 0
    """Of the source, that are in the target now."""
    size: int = 0
    """Of their keys and values, in bytes."""
    written: int = 0
    """Rows that were not there, or not the same."""
    deleted: int = 0
    """Rows of the target that are none of the source's any more."""


class Piece(NamedTuple):
    """The rows of one store in a range of keys."""

    table: Table
    start: bytes
    stop: bytes
    rows: dict[bytes, bytes]
    size: int
    """Of keys and values, in bytes."""


def check_whole(store: Store) -> None:
    """Raises StoreError for a store that is half a copy, or has gone back in time under a service; RowDamaged."""
    check_finished(store)
    check_not_behind(store)


def check_finished(store: Store) -> None:
    """Raises StoreError for a store that is half a copy; RowDamaged."""
    row = copy_row_of(store)
    if row is not None and not row.finished and row.source.startswith(SALVAGED):
        raise StoreError(
            f"it is {row.source}, and nobody has accepted what was lost; `oncelog salvage --accept-losses` does, "
            "and until then no service opens it"
        )
    if row is not None and not row.finished:
        raise StoreError(
            f"it is half a copy, of {row.source}; the same `oncelog copy` again goes on with it, "
            "and until it is finished no service opens it"
        )


def copy_row_of(store: Store) -> CopyRow | None:
    """Reads the row that says that a store is a copy. Raises RowDamaged, StoreError."""
    data = store.get(Table.COPY, _KEY)
    return None if data is None else decode_record(CopyRow, data)


def begin_copy(source: Store, target: Store, shown: str, fence: Fence | None = None) -> bool:
    """Notes in the target that it is a copy under way; tells whether one was before. ``shown``: the source, for people.

    Raises:
        CopyRefused: the source is no whole store, or the target holds something else than a broken off copy of it.
        StoreError, RowDamaged.
    """
    name = _name_of(source)
    present = copy_row_of(target)
    if present is None:
        if any(next(target.scan(table, b"", _END), None) for table in TABLES):
            raise CopyRefused("the target is not empty, and nothing in it says that it is a copy; choose an empty one")
    elif present.of != name:
        raise CopyRefused(f"the target holds a copy of another store, {present.source}; choose an empty one")
    elif present.finished:
        raise CopyRefused(
            "the target holds a finished copy of this store, which may have been served since; "
            "`oncelog verify --store FROM --same-as TO` says whether they are equal"
        )
    else:
        return True
    set_copy_row(target, CopyRow(of=name, source=shown, finished=False), fence)
    return False


def copy_rows(source: Store, target: Store, fence: Fence | None = None) -> Iterator[Copied]:
    """Makes the target's rows those of the source. Yields the same progress after each piece. Raises StoreError."""
    copied = Copied()
    for table in TABLES:
        copied.table = table
        with closing(pieces(source, table)) as found:  # type: ignore[type-var]
            for piece in found:
                rows = len(piece.rows)
                _bring(piece, target, copied, fence)
                copied.rows += rows
                copied.size += piece.size
                yield copied


def end_copy(target: Store, fence: Fence | None = None) -> None:
    """Notes that the copy is finished: services may open it. Raises StoreError."""
    row = copy_row_of(target)
    assert row is not None
    set_copy_row(target, CopyRow(of=row.of, source=row.source, finished=True), fence)


def pieces(store: Store, table: Table) -> Iterator[Piece]:
    """Yields all rows of a table; the ranges follow on each other, from the first possible key to the last. Raises StoreError."""
    start, rows, size = b"", dict[bytes, bytes](), 0
    with closing(store.scan(table, b"", _END)) as found:
        for key, value in found:
            rows[key] = value
            size += len(key) + len(value)
            if size >= PIECE_BYTES or len(rows) == PIECE_ROWS:
                stop = key + b"\x00"
                yield Piece(table, start, stop, rows, size)
                start, rows, size = stop, {}, 0
    yield Piece(table, start, _END, rows, size)


def differences(piece: Piece, other: Store) -> Iterator[Difference]:
    """Yields the differences in the piece's range, and takes its rows out of the piece. Raises StoreError."""
    table, missing = piece.table, piece.rows
    with closing(other.scan(table, piece.start, piece.stop)) as rows:
        for key, value in rows:
            expected = missing.pop(key, None)
            if expected != value:
                yield Difference(table, key, expected, value)
    for key, value in missing.items():
        yield Difference(table, key, value, None)


def _bring(piece: Piece, target: Store, copied: Copied, fence: Fence | None) -> None:
    """Writes a piece to the target at once; deletes rows that are not the source's, in several writes where they are many."""
    wanted = piece.rows
    batch = Batch(fence)
    with closing(target.scan(piece.table, piece.start, piece.stop)) as present:
        for key, value in present:
            expected = wanted.get(key)
            if expected is None:
                batch.delete(piece.table, key)
                copied.deleted += 1
                if len(batch.deletes) == PIECE_ROWS:
                    target.write([batch])
                    batch = Batch(fence)
            elif expected == value:
                del wanted[key]
    copied.written += len(wanted)
    if wanted:
        batch.put_rows(piece.table, b"", [*wanted.items()])
    if wanted or batch.deletes:
        target.write([batch])


def _name_of(store: Store) -> str:
    """Returns the name of a whole store. Raises CopyRefused: no service has ever opened it, or it is half a copy."""
    row, name = copy_row_of(store), store.get(Table.STORE_ID, b"")
    if row is not None and not row.finished:
        raise CopyRefused(f"the source is half a copy itself, of {row.source}; finish that one first")
    if name is None:
        raise CopyRefused("there is no store in the source: no service has ever opened it")
    return name.decode("ascii", "replace")


def set_copy_row(target: Store, row: CopyRow | None, fence: Fence | None = None) -> None:
    """Writes the row that says that a store is a copy; None takes it away, before anything was copied. Raises StoreError."""
    batch = Batch(fence)
    if row is None:
        batch.delete(Table.COPY, _KEY)
    else:
        batch.put(Table.COPY, _KEY, encode_record(row))
    target.write([batch])
