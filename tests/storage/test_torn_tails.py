"""A power cut tears what was not synced: whatever it leaves of that, the store opens, with everything that was acknowledged.

What a disk may do to the end of a file that was written and not synced: each sector of it is there or is not (zeros, where the
file has grown), the file ends anywhere. What had been synced is not touched, and nothing was begun behind it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import plyvel
import pytest

from oncelog_service.storage.files.end_file import ROW_KEY, TOKEN_SIZE, EndFile, EndRow, read_end
from oncelog_service.storage.files.leveldb_log import end_of_log, end_of_records, records
from oncelog_service.storage.port import Store, StoreDamaged
from tests.storage.stores import M, S, check_refused, keys_of, log_of, opened, put, write

BLOCK = 32_768


def write_random(store: Store, key: str, *sizes: int) -> None:
    """One write of LevelDB, of as many batches as there are sizes."""
    values = ((f"{key}.{number}".encode(), random.Random(key).randbytes(size)) for number, size in enumerate(sizes))
    store.write([put((M, *row)) for row in values])


def fill(store: Store, path: Path, left: int) -> None:
    """Write until so many bytes are left in the last block of the log."""
    number, overhead = 0, 60  # of a record, its number and one row, as long as the row has 128 bytes to 16 KiB
    while (missing := -log_of(path).stat().st_size % BLOCK - left) != 0:
        write_random(store, f"f{number:02}", missing - overhead if 200 < missing < 10_000 else 3_000)
        number += 1


class Cut(NamedTuple):
    """A store at the moment of a power cut: the last write is on its way to the disk."""

    path: Path
    """As it was before that write."""
    keys: list[bytes]
    """What was acknowledged."""
    last: list[bytes]
    """What would be there besides, had the last write come through."""
    before: bytes
    after: bytes
    """The log without the last write, and with it."""
    behind: bytes
    """What another write added to the log then."""
    number: int
    """Of the newest acknowledged write."""
    tables: EndRow
    """The newest write that is in a table."""

    def torn(self) -> list[tuple[str, bytes]]:
        """(name, log) of all states of the disk."""
        return list(tears(self.before, self.after, 512 if len(self.after) - len(self.before) < 10_000 else 4_096))

    def copied(self, path: Path, log: bytes | None = None) -> Path:
        shutil.copytree(self.path, path)
        if log is not None:
            log_of(path).write_bytes(log)
        return path


KINDS: dict[str, tuple[int | None, tuple[int, ...]]] = {
    "small": (5_000, (600,)),
    "across the end of a block": (300, (600,)),
    "its number across the end of a block": (30, (600,)),
    "the next one's number across the end of a block": (700, (610,)),
    "its head at the end of a block": (7, (600,)),
    "behind an empty end of a block": (4, (600,)),
    "to the end of a block": (669, (600,)),
    "over several blocks": (5_000, (70_000,)),
    "a group": (5_000, (300, 0, 9_000, 40_000)),
    "the first of a log": (None, (600,)),
}
"""Name → how much is left in the block, None: the log is new; sizes of the last write's batches."""


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cut]:
    return {name: made(tmp_path_factory.mktemp("cut"), *kind) for name, kind in KINDS.items()}


def made(place: Path, left: int | None, sizes: tuple[int, ...]) -> Cut:
    path, base = place / "data", place / "before"
    with closing(opened("leveldb", path)) as store:
        for number in range(20):
            write_random(store, f"a{number:02}", 600)
    with closing(opened("leveldb", path)) as store:
        with closing(plyvel.DB(str(shutil.copytree(path, place / "looked at")))) as database:
            tables = EndRow.from_bytes(database.get(ROW_KEY))
        if left is not None:
            fill(store, path, left)
        keys, before = keys_of(store), log_of(path).read_bytes()
        shutil.copytree(path, base)
        write_random(store, "last", *sizes)
        after, last = log_of(path).read_bytes(), sorted(set(keys_of(store)) - set(keys))
        write_random(store, "next", 600)
        behind = log_of(path).read_bytes()[len(after) :]
    assert after.startswith(before)
    assert tables is not None
    return Cut(base, keys, last, before, after, behind, read_end(base / "oncelog.end"), tables)


def tears(before: bytes, after: bytes, sector: int = 512) -> Iterator[tuple[str, bytes]]:
    """What a disk may hold of ``after`` when the sectors in which it is not ``before`` were not synced: each in its old or in its
    new state (zeros, where the file has grown), and the file ends anywhere in what is new."""
    begin, end = len(before), len(after)
    old = before.ljust(end, b"\0")
    edges = sorted({0, begin, *range(0, end, sector), end})
    changed = [each for each in pairwise(edges) if old[slice(*each)] != after[slice(*each)]]
    for cut in sorted({*range(begin, begin + 60), *edges, end - 1, end - 7} & set(range(begin, end))):
        yield f"cut at {cut - begin}", after[:cut]
    for number in range(len(changed)):
        yield f"sector {number} missing", mixed(old, after, changed[:number] + changed[number + 1 :])
        yield f"from sector {number} on missing", mixed(old, after, changed[:number])
        yield f"up to sector {number} missing", mixed(old, after, changed[number:])
        yield f"only sector {number} there", mixed(old, after, [changed[number]])
        yield f"only sector {number} there, the last one", mixed(old, after, [changed[number]])[: max(begin, changed[number][1])]
    for seed in range(12):
        chance = random.Random(seed)
        some = [each for each in changed if chance.random() < 0.5]
        yield f"sectors at random, seed {seed}", mixed(old, after, some)[: max(begin, chance.choice(edges))]


def mixed(old: bytes, new: bytes, sectors: list[tuple[int, int]]) -> bytes:
    """The old bytes, and the new ones in these sectors."""
    data = bytearray(old)
    for begin, end in sectors:
        data[begin:end] = new[begin:end]
    return bytes(data)


@pytest.mark.parametrize("name", KINDS)
def test_a_tail_torn_in_any_way_ends_with_the_last_acknowledged_write(cuts: dict[str, Cut], name: str) -> None:
    cut = cuts[name]
    for what, data in cut.torn():
        whole = data == cut.after
        expected = EndRow(cut.number + whole, cut.tables.token), len(cut.after if whole else cut.before)
        for known in (cut.number, 0):
            assert end_of_log(data, cut.tables, known) == expected, what
        if len(data) == len(cut.after):
            # The file beside may know of neither. But a write begins when the one before it is synced.
            with suppress(StoreDamaged):
                assert end_of_log(data + cut.behind, cut.tables, 0)[0].number == cut.number + 2, what


@pytest.mark.parametrize("name", KINDS)
def test_a_store_whose_last_write_was_torn_opens_unless_that_was_acknowledged(
    cuts: dict[str, Cut], name: str, tmp_path: Path
) -> None:
    cut = cuts[name]
    for what, data in random.Random(name).sample(cut.torn(), 2):
        path = cut.copied(tmp_path / what, data)
        if data != cut.after:
            acknowledged = cut.copied(tmp_path / f"{what}, acknowledged", data)
            EndFile(acknowledged / "oncelog.end", cut.number + 1).close()
            check_refused("leveldb", acknowledged)
        expected = cut.keys + (cut.last if data == cut.after else [])
        with closing(opened("leveldb", path)) as store:
            assert keys_of(store) == sorted(expected)
            write_random(store, "next", 100)
        with closing(opened("leveldb", path)) as store:  # what was cut off is cut off for good
            assert keys_of(store) == sorted([*expected, b"next.0"])


def looks(cut: Cut) -> dict[str, bytes]:
    """Messages that look like other writes: a backup of a store, and all that could come behind one; both lack the token."""
    made = (b"\x01\x04" + ROW_KEY + b"\x18" + EndRow(cut.number + n, bytes(TOKEN_SIZE)).to_bytes() for n in range(1_000))
    return {"a store": bytes(600) + cut.before + bytes(600), "all later writes": bytes(40_000) + b"".join(made) + bytes(40_000)}


@pytest.mark.parametrize("what", ["a store", "all later writes"])
def test_no_client_keeps_a_store_from_opening_by_what_its_messages_hold(cuts: dict[str, Cut], what: str, tmp_path: Path) -> None:
    """The process is killed while it writes such a message, or the disk is full by then."""
    cut = cuts["over several blocks"]
    path = cut.copied(tmp_path / "data")
    with closing(opened("leveldb", path)) as store:
        killed = Path(shutil.copytree(path, tmp_path / "killed"))
        write(store, M, b"last", value=looks(cut)[what])
        log_of(killed).write_bytes(log_of(path).read_bytes()[:-300])
    with closing(opened("leveldb", killed)) as store:
        assert keys_of(store) == sorted(cut.keys)


def test_a_log_of_another_store_is_refused(cuts: dict[str, Cut]) -> None:
    """Its writes are whole, and their numbers may follow on those that are there."""
    with pytest.raises(StoreDamaged, match="not of this store"):
        end_of_log(cuts["a group"].before, cuts["small"].tables, 0)


def test_what_is_cut_off_is_there_again_if_the_store_is_refused_then(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """One sector of an old message is damaged besides, which LevelDB alone finds."""
    data = bytearray(cuts["small"].after[:-100])
    data[200] ^= 1
    check_refused("leveldb", cuts["small"].copied(tmp_path / "data", bytes(data)), "checksum mismatch")


def test_a_torn_log_that_leveldb_has_read_back_and_meant_to_delete_changes_nothing(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """Its deletion was not on disk yet; and LevelDB may have been interrupted when it began the next one."""
    cut = cuts["small"]
    torn = mixed(
        cut.after, bytes(len(cut.after)), [(len(cut.before) + 300, len(cut.after) - 100)]
    )  # LevelDB alone would refuse it
    path = cut.copied(tmp_path / "data", torn)
    old = log_of(path)
    (path / f"{int(old.stem) + 1:06}.log").touch()  # made, and then the power failed
    with closing(opened("leveldb", path)) as store:
        write_random(store, "next", 100)
    assert not old.exists()
    old.write_bytes(torn)
    with closing(opened("leveldb", path)) as store:
        assert keys_of(store) == sorted([*cut.keys, b"next.0"])


def test_a_torn_record_of_the_manifest_is_cut_off(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """Without it the manifest describes the directory as it was before."""
    whole = (cuts["small"].path / (cuts["small"].path / "CURRENT").read_text().strip()).read_bytes()
    ends = [record.end for record in records(whole)]
    for what, data in tears(whole[: ends[-2]], whole, 16):  # its records are small: as if one lay across sectors
        assert end_of_records(data) == (len(whole) if data == whole else ends[-2]), what
    path = cuts["small"].copied(tmp_path / "data")
    manifest = path / (path / "CURRENT").read_text().strip()
    manifest.write_bytes(whole + whole[ends[-2] : -3] + b"???")
    with closing(opened("leveldb", path)) as store:
        assert keys_of(store) == cuts["small"].keys


# --- the first moments


def test_a_store_that_was_being_made_when_the_power_failed_is_made(tmp_path: Path) -> None:
    """Nothing in it was ever acknowledged."""
    whole = tmp_path / "whole"
    opened("leveldb", whole).close()
    spoiled: list[tuple[str, bytes | None]] = [("oncelog.end", data) for data in (b"", bytes(16), bytes(1024))]
    for each in whole.iterdir():
        if each.name not in ("LOG", "LOG.old", "LOCK", "oncelog.end"):
            data = each.read_bytes()
            spoiled.append((each.name, None))
            sizes = {0, len(data) // 2, max(0, len(data) - 1)}
            spoiled += [(each.name, data[:size] + bytes(len(data) - size) * (size > 0)) for size in sizes]
    for number, (name, data) in enumerate(spoiled):
        path = Path(shutil.copytree(whole, tmp_path / f"{number}"))
        (path / "oncelog.creating").touch()
        if name != "oncelog.end":
            (path / "oncelog.end").unlink()
        (path / name).unlink() if data is None else (path / name).write_bytes(data)
        for before in ([], [b"next"]):
            with closing(opened("leveldb", path)) as store:
                assert keys_of(store) == before, (name, data)
                write(store, M, b"next")
        assert not (path / "oncelog.creating").exists()


# --- SQLite's write-ahead log

HEAD = 32
"""Of the write-ahead log: SQLite syncs it before it writes over what follows (sqlite3WalFrames)."""


@pytest.mark.parametrize("begun_anew", [False, True])
def test_a_database_whose_last_write_was_torn_opens(tmp_path: Path, begun_anew: bool) -> None:
    path, before = tmp_path / "live", tmp_path / "before"
    path.mkdir()
    with closing(opened("sqlite", path)) as store:
        for number in range(9):
            write(store, S, b"a%d" % number, value=random.Random(number).randbytes(3_000))
        if begun_anew:  # its frames are in the database, and the next ones are written over them
            with closing(sqlite3.connect(path / "data")) as other:
                assert other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
        shutil.copytree(path, before)
        write(store, S, b"last", b"last too", value=random.Random(9).randbytes(3_000))
        after, keys = (path / "data-wal").read_bytes(), keys_of(store, S)
    old = (before / "data-wal").read_bytes()
    cases = [("nothing of it", old), *tears(after[:HEAD] + old[HEAD:], after)]
    for what, data in random.Random(0).sample(cases, 8):
        torn = Path(shutil.copytree(before, tmp_path / what))
        (torn / "data-wal").write_bytes(data)
        with closing(opened("sqlite", torn)) as store:
            assert keys_of(store, S) in (keys[:-2], keys), what
            write(store, S, b"next")


def test_what_a_killed_process_had_not_synced_is_synced_before_it_counts(tmp_path: Path) -> None:
    """It was killed within its last write, the next one read that, and the power failed: the log is as it was synced."""
    path, killed, cut = tmp_path / "live", tmp_path / "killed", tmp_path / "cut"
    path.mkdir()
    with closing(opened("sqlite", path)) as store:
        write(store, S, b"first")
        synced, told = (path / "data-wal").read_bytes(), (path / "data.end").read_bytes()
        write(store, S, b"last")
        shutil.copytree(path, killed)
    (killed / "data.end").write_bytes(told)
    with closing(opened("sqlite", killed)) as store:
        assert keys_of(store, S) == [b"first", b"last"]
        shutil.copytree(killed, cut)
    if (cut / "data-wal").stat().st_size:
        (cut / "data-wal").write_bytes(synced)
    with closing(opened("sqlite", cut)) as store:
        assert keys_of(store, S) == [b"first", b"last"]
