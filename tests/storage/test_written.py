"""What an instance has written is held against what is there: going back in time is told from a fail-over that loses nothing."""

from __future__ import annotations

import pytest

from oncelog_service.storage.incarnation import FIRST, KEY, put_incarnation
from oncelog_service.storage.port import Batch, StoreBehind, StoreDamaged, Table
from oncelog_service.storage.seals import seal
from oncelog_service.storage.sql.written import Written

URL = "http://10.0.0.1:7070"


def begun(rows: dict[bytes, bytes]) -> Written:
    written = Written()
    written.named(URL)
    written.check(rows.get)
    return written


def write(written: Written, rows: dict[bytes, bytes]) -> None:
    rows |= written.next()
    written.made()


def renew(rows: dict[bytes, bytes], number: int) -> None:
    batch = Batch()
    put_incarnation(batch, FIRST._replace(number=number, began_ms=0))
    [(_, _, value)] = batch.puts
    rows[Table.STORE_ID.value + KEY] = seal(Table.STORE_ID, KEY, value)


def test_a_database_that_has_lost_a_write_is_behind_and_one_that_has_lost_none_is_not() -> None:
    rows: dict[bytes, bytes] = {}
    written = begun(rows)
    write(written, rows)
    before = dict(rows)
    write(written, rows)
    rows |= written.next()  # it may be there; nobody was told so
    written.check(rows.get)
    written.named(URL)  # as the store is opened again
    written.check(rows.get)
    for lost in (before, {}):
        with pytest.raises(StoreBehind, match="writes of http"):
            written.check(lost.get)


def test_the_next_process_at_a_url_counts_on_and_another_url_counts_by_itself() -> None:
    rows: dict[bytes, bytes] = {}
    first = begun(rows)
    for _ in range(3):
        write(first, rows)
    second = begun(rows)
    write(second, rows)
    first.check(rows.get)
    other = Written()
    other.check({}.get)  # without a name nothing is known, and nothing counted
    assert other.next() == {}
    other.named("http://10.0.0.2:7070")
    other.check(rows.get)
    write(other, rows)
    for each in (first, second, other):
        each.check(rows.get)
    assert len(rows) == 2


def test_what_was_written_to_a_former_incarnation_is_not_asked_of_a_further_one() -> None:
    rows: dict[bytes, bytes] = {}
    written = begun(rows)
    write(written, rows)
    put_back: dict[bytes, bytes] = {}
    renew(put_back, 7)
    written.check(put_back.get)
    write(written, put_back)
    written.check(put_back.get)
    with pytest.raises(StoreBehind, match="incarnation"):
        written.check({**rows, **written.next()}.get)


def test_a_row_that_is_damaged_is_no_verdict() -> None:
    rows: dict[bytes, bytes] = {}
    written = begun(rows)
    write(written, rows)
    [(key, value)] = rows.items()
    with pytest.raises(StoreDamaged):
        written.check({key: value[:-1] + bytes([value[-1] ^ 1])}.get)
