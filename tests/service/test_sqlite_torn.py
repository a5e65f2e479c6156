"""A power cut and SQLite's write-ahead log: what was acknowledged is there, whatever the cut leaves of the rest."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from oncelog_service.storage import sql_sqlite
from oncelog_service.storage.end_file import read_end
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreError, Table

S = Table.SNAPSHOT
"""Rows of no log."""
HEAD = 32
"""Of the write-ahead log: SQLite syncs it before it writes over what follows (sqlite3WalFrames)."""


def opened(path: Path) -> Store:
    return store_opener(f"sqlite://{path}/data")()


def write(store: Store, *names: bytes, size: int = 3_000) -> None:
    batch = Batch()
    for name in names:
        batch.put(S, name, random.Random(name).randbytes(size))
    store.write([batch])


def keys_of(store: Store) -> list[bytes]:
    return [key for key, _ in store.scan(S, b"", b"\xff")]


def tears(before: bytes, after: bytes) -> Iterator[tuple[str, bytes]]:
    """What a disk may hold when the sectors in which these differ were not synced: each in its old or in its new state."""
    old = before.ljust(len(after), b"\0")
    edges = [*range(0, len(after), 512), len(after)]
    changed = [(begin, end) for begin, end in pairwise(edges) if old[begin:end] != after[begin:end]]
    for number in range(len(changed)):
        for what, kept in (
            ("up to", changed[:number]),
            ("from", changed[number:]),
            ("but", changed[:number] + changed[number + 1 :]),
        ):
            yield f"{what} {number}", mixed(old, after, kept)
    for begin, _ in changed:
        if begin >= len(before):
            yield f"cut at {begin}", after[:begin]
    for seed in range(20):
        chance = random.Random(seed)
        yield f"seed {seed}", mixed(old, after, [each for each in changed if chance.random() < 0.5])


def mixed(old: bytes, new: bytes, kept: list[tuple[int, int]]) -> bytes:
    data = bytearray(old)
    for begin, end in kept:
        data[begin:end] = new[begin:end]
    return bytes(data)


@pytest.mark.parametrize("begun_anew", [False, True])
def test_a_database_whose_last_write_was_torn_opens(tmp_path: Path, begun_anew: bool) -> None:
    path, before = tmp_path / "live", tmp_path / "before"
    path.mkdir()
    with closing(opened(path)) as store:
        write(store, *(b"a%d" % number for number in range(9)))
        if begun_anew:  # its frames are in the database, and the next ones are written over them
            with closing(sqlite3.connect(path / "data")) as other:
                assert other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
        shutil.copytree(path, before)
        write(store, b"last", b"last too")
        after, keys = (path / "data-wal").read_bytes(), keys_of(store)
    old = (before / "data-wal").read_bytes()
    cases = [("nothing of it", old), *tears(after[:HEAD] + old[HEAD:], after)]
    for what, data in random.Random(0).sample(cases, 25):
        torn = Path(shutil.copytree(before, tmp_path / what))
        (torn / "data-wal").write_bytes(data)
        with closing(opened(torn)) as store:
            assert keys_of(store) in (keys[:-2], keys), what
            write(store, b"next")


def test_what_a_killed_process_had_not_synced_is_synced_before_it_counts(tmp_path: Path) -> None:
    """It was killed within its last write, the next one read that, and the power failed: the log is as it was synced."""
    path, killed, cut = tmp_path / "live", tmp_path / "killed", tmp_path / "cut"
    path.mkdir()
    with closing(opened(path)) as store:
        write(store, b"first")
        synced, told = (path / "data-wal").read_bytes(), (path / "data.end").read_bytes()
        write(store, b"last")
        shutil.copytree(path, killed)
    (killed / "data.end").write_bytes(told)
    with closing(opened(killed)) as store:
        assert keys_of(store) == [b"first", b"last"]
        shutil.copytree(killed, cut)
    if (cut / "data-wal").stat().st_size:
        (cut / "data-wal").write_bytes(synced)
    with closing(opened(cut)) as store:
        assert keys_of(store) == [b"first", b"last"]


def test_a_tool_that_reads_for_hours_does_not_keep_a_database_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy, or a shell that somebody has left at a prompt."""
    monkeypatch.setattr(sql_sqlite, "_BUSY_SECONDS", 120)
    with closing(opened(tmp_path)) as store, closing(sqlite3.connect(tmp_path / "data")) as tool:
        write(store, b"first")
        tool.execute("BEGIN")
        (rows,) = tool.execute("SELECT count(*) FROM oncelog_row").fetchone()
        write(store, b"last")
        store.close()
        begin = time.monotonic()
        with closing(opened(tmp_path)) as again:
            assert time.monotonic() - begin < 100
            assert keys_of(again) == [b"first", b"last"]
            write(again, b"next")
        assert tool.execute("SELECT count(*) FROM oncelog_row").fetchone() == (rows,)
    with closing(opened(tmp_path)) as store:
        assert keys_of(store) == [b"first", b"last", b"next"]


def test_a_database_without_the_file_beside_where_a_making_was_broken_off_loses_nothing(tmp_path: Path) -> None:
    """As sqlite3's .backup makes one."""
    path = tmp_path / "data"
    with closing(opened(tmp_path)) as store:
        write(store, b"first")
        batch = Batch()
        batch.put(Table.PRODUCER, b"loader", b"value")
        store.write([batch])
    number = read_end(tmp_path / "data.end")
    (tmp_path / "data.end").unlink()
    (tmp_path / "data.creating").touch()
    with closing(opened(tmp_path)) as store:
        assert keys_of(store) == [b"first"]
        assert store.get(Table.PRODUCER, b"loader") == b"value"
    assert path.exists()
    assert read_end(tmp_path / "data.end") >= number


def test_two_that_write_to_one_database_never_both_go_on(tmp_path: Path) -> None:
    """Somebody has deleted the lock file, since it looked stale."""
    with closing(opened(tmp_path)) as first:
        write(first, b"first")
        (tmp_path / "data.lock").unlink()
        with closing(opened(tmp_path)) as second:
            write(second, b"second")
            with pytest.raises(StoreError, match="somebody else"):
                write(first, b"third")
            assert keys_of(second) == [b"first", b"second"]
            write(second, b"fourth")


FULL_DISK = """
import os, sys
from pathlib import Path
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, StoreError, Table

def write(store, number):
    batch = Batch()
    batch.put(Table.SNAPSHOT, b"%06d" % number, os.urandom(20_000))
    store.write([batch])

opener, number = store_opener(f"sqlite://{sys.argv[1]}/data"), 0
store = opener()
try:
    while True:
        write(store, number)
        number += 1
except StoreError as error:
    assert "full" in str(error), error
store.close()
store = opener()  # what is in the write-ahead log has no room in the database
assert Path(sys.argv[1], "data-wal").stat().st_size > 2**20
assert [int(key) for key, _ in store.scan(Table.SNAPSHOT, b"", b"\\xff")] == list(range(number))
store.close()
(Path(sys.argv[1]) / "filler").unlink()
store = opener()
write(store, number)
store.close()
"""


def test_a_database_on_a_full_disk_opens_and_is_read(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=6m none "$0" && head -c 3000000 /dev/zero > "$0/filler"'
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-ec"]
    if shutil.which("unshare") is None or subprocess.run([*alone, mount, tmp_path], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    subprocess.run([*alone, f'{mount}; "$1" -c "$2" "$0"', tmp_path, sys.executable, FULL_DISK], check=True)
