"""The incarnation of a store: the first as it was made, and another one each time that it was put back in time.

What was acknowledged behind a backup, or lost with the newest writes, is not known to the store that is there now; clients know
of it: they hold epochs, generations, offsets and ids that the store of before handed out, and this one would hand out once more.
So whatever is compared for being of the same store is raised by the incarnation, and none of it is ever handed out by two:

* the generation of each topic, as clients are told it: positions of before are refused (`stale_message_id`);
* epochs, of producers and of consumers: those of before are fenced;
* ids of messages, write pointers and numbers of atomic commits: those of before are older.

The number of an incarnation has 53 bits, so that a program that keeps numbers as JavaScript does, keeps it exactly::

    26  time, in 64 s since 1970: till 2106
    16  chance: two stores that were put back to one state are two incarnations, on whichever machines, in whichever second
    11  all 0: generations that a topic is made anew, and epochs of a name, are counted on from there

Each is above all that its store knows of the former ones, whatever the clock says.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from oncelog_service.storage.port import Batch, Store, StoreDamaged, StoreError, Table
from oncelog_service.storage.records import BehindRow, IncarnationRow, decode_record, encode_record
from oncelog_service.storage.seals import unseal

KEY = b"restored"
"""Of its row in STORE_ID."""
_BEHIND_KEY = b"behind"
"""Of a row beside it, in a store that has gone back in time under whoever had written to it."""
TIME_BITS, CHANCE_BITS, ANEW_BITS = 26, 16, 11
_UNIT_MS = 64_000
_BEFORE = 2**20
"""An incarnation was the second of a restore, 32 hex digits, and its number so many times that."""


class Incarnation(NamedTuple):
    """An incarnation, and the floors under what it hands out: times, ms since 1970."""

    number: int = 0
    messages_ms: int = 0
    """No message of it is older, and all that an earlier one handed out are."""
    pointers_ms: int = 0
    """The same of write pointers."""
    numbers_ms: int = 0
    """The same of the numbers of atomic commits."""
    began_ms: int | None = None
    """When it began, by a clock; None: with the store."""


FIRST = Incarnation()
"""Of a store as it was made."""


def find_incarnation(store: Store) -> Incarnation:
    """Reads the incarnation. Raises StoreError."""
    data = store.get(Table.STORE_ID, KEY)
    if data is None:
        return FIRST
    try:
        return decode_incarnation(data)
    except ValueError as error:
        raise StoreDamaged(f"{data[:100]!r} is not the incarnation of a store") from error


def number_in(sealed: bytes | None) -> int:
    """The number in the row of the incarnation as it stands on disk, seal and all. Raises StoreDamaged."""
    if sealed is None:
        return FIRST.number
    try:
        return decode_incarnation(unseal(Table.STORE_ID, KEY, sealed)).number
    except ValueError as error:
        raise StoreDamaged(f"{sealed[:100]!r} is not the incarnation of a store") from error


def decode_row(key: bytes, data: bytes) -> object:
    """Reads a row of STORE_ID: of these two, or hex digits. Raises ValueError."""
    if key == _BEHIND_KEY:
        return decode_record(BehindRow, data)
    return decode_incarnation(data) if key == KEY else bytes.fromhex(data.decode("ascii"))


def decode_incarnation(data: bytes) -> Incarnation:
    """Reads it back. Raises ValueError: it is none."""
    if not data.startswith(b"{"):
        second = int(data, 16)
        return Incarnation(second * _BEFORE, second * 1_000, second * 1_000, second * 1_000, second * 1_000)
    row = decode_record(IncarnationRow, data)
    return Incarnation(row.number, row.messages_ms, row.pointers_ms, row.numbers_ms, row.began_ms)


def put_incarnation(batch: Batch, incarnation: Incarnation) -> None:
    """Has it be the store's from the write of this batch on."""
    assert incarnation.began_ms is not None
    batch.delete(Table.STORE_ID, _BEHIND_KEY)
    batch.put(Table.STORE_ID, KEY, encode_record(IncarnationRow(**incarnation._asdict())))


def behind_row(by: str, what: str) -> tuple[bytes, bytes]:
    """The row of STORE_ID that says that a store has gone back in time, as key and value. ``by``: who has found that; ``what``: a
    sentence on how it is known."""
    return _BEHIND_KEY, encode_record(BehindRow(by, what, time.time_ns() // 1_000_000))


def found_behind(store: Store) -> BehindRow | None:
    """Reads who has found that the store has gone back in time, if nobody has renewed it since. Raises StoreError."""
    data = store.get(Table.STORE_ID, _BEHIND_KEY)
    return None if data is None else decode_record(BehindRow, data)


def check_not_behind(store: Store) -> None:
    """Raises StoreError: it has gone back in time, and no incarnation was begun since."""
    row = found_behind(store)
    if row is not None:
        raise StoreError(
            f"it has gone back in time: {row.what}, as {row.by} found. Nobody serves it until `oncelog renew` was run: "
            "stop every service over it first"
        )


def next_number(known: int, now_ms: int, chance: int) -> int:
    """Returns the number of a further incarnation. ``known``: no generation or epoch that the store knows of is above it.

    Raises StoreError: there is none.
    """
    unit = max(now_ms // _UNIT_MS, (known >> CHANCE_BITS + ANEW_BITS) + 1)
    if unit >> TIME_BITS:
        raise StoreError("no incarnation can follow: the clock of this machine, or one of before, says that 2106 is over")
    return (unit << CHANCE_BITS | chance & (1 << CHANCE_BITS) - 1) << ANEW_BITS


def raised(number: int, incarnation: Incarnation) -> int:
    """Raises a generation, or a floor of epochs, by the incarnation."""
    return number + incarnation.number
