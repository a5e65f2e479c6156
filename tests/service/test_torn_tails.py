"""A power cut tears what was not synced: whatever it leaves of that, the store opens, with everything that was acknowledged.

What a disk may do to the end of a file that was written and not synced: each sector of it is there or is not (zeros, where the
file has grown), the file ends anywhere. What had been synced is not touched, and nothing was begun behind it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import plyvel
import pytest

from oncelog_service.storage import leveldb
from oncelog_service.storage.end_file import ROW_KEY, TOKEN_SIZE, EndFile, Mark, read_end
from oncelog_service.storage.leveldb_log import end_of_log
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table

M = Table.MESSAGE
BLOCK = 32_768
OURS = ("LOG", "LOG.old", "LOCK")


def opened(path: Path) -> Store:
    return store_opener(f"leveldb://{path}")()


def write(store: Store, key: str, *sizes: int) -> None:
    """One write of LevelDB, of as many batches as there are sizes."""
    batches = []
    for number, size in enumerate(sizes):
        batch = Batch()
        batch.put(M, f"{key}.{number}".encode(), random.Random(key).randbytes(size))
        batches.append(batch)
    store.write(batches)


def keys_of(store: Store) -> list[str]:
    return [key.decode() for key, _ in store.scan(M, b"", b"\xff")]


def log_of(path: Path) -> Path:
    return max(path.glob("*.log"))


def files_of(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name not in OURS}


def fill(store: Store, path: Path, left: int) -> None:
    """Write until so many bytes are left in the last block of the log."""
    number, overhead = 0, 60  # of a record, its number and one row, as long as the row has 128 bytes to 16 KiB
    while (missing := -log_of(path).stat().st_size % BLOCK - left) != 0:
        write(store, f"f{number:02}", missing - overhead if 200 < missing < 10_000 else 3_000)
        number += 1


class Cut(NamedTuple):
    """A store at the moment of a power cut: the last write is on its way to the disk."""

    path: Path
    """As it was before that write."""
    keys: list[str]
    """What was acknowledged."""
    last: list[str]
    """What would be there besides, had the last write come through."""
    before: bytes
    after: bytes
    """The log without the last write, and with it."""
    number: int
    """Of the newest acknowledged write."""
    tables: Mark
    """The newest write that is in a table."""


KINDS: dict[str, tuple[int | None, tuple[int, ...]]] = {
    "small": (5_000, (600,)),
    "across the end of a block": (300, (600,)),
    "its number across the end of a block": (30, (600,)),
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
    path = place / "data"
    with closing(opened(path)) as store:
        for number in range(20):
            write(store, f"a{number:02}", 600)
    with closing(opened(path)) as store:
        tables = mark_of(path)
        if left is not None:
            fill(store, path, left)
        keys, before = keys_of(store), log_of(path).read_bytes()
        shutil.copytree(path, place / "before")
        write(store, "last", *sizes)
        after, last = log_of(path).read_bytes(), sorted(set(keys_of(store)) - set(keys))
    assert after.startswith(before)
    return Cut(place / "before", keys, last, before, after, read_end(place / "before" / "oncelog.end"), tables)


def tears(before: bytes, after: bytes, sector: int = 512) -> Iterator[tuple[str, bytes]]:
    """What a disk may hold of ``after`` when what is more in it than in ``before`` was not synced."""
    begin, end = len(before), len(after)
    edges = [begin, *range(begin // sector * sector + sector, end, sector), end]
    for cut in sorted({*range(begin, begin + 60), *edges, end - 1, end - 7} & set(range(begin, end))):
        yield f"cut at {cut - begin}", after[:cut]
    sectors = list(pairwise(edges))
    for number in range(len(sectors)):
        yield f"sector {number} missing", without(after, sectors[number : number + 1])
        yield f"from sector {number} on missing", without(after, sectors[number:])
        yield f"only sector {number} there", without(after, sectors[:number] + sectors[number + 1 :])
        yield f"only sector {number} there, the last one", without(after, sectors[:number])[: sectors[number][1]]
    for seed in range(40):
        chance = random.Random(seed)
        some = [each for each in sectors if chance.random() < 0.5]
        yield f"sectors at random, seed {seed}", without(after, some)[: chance.choice(edges[1:])]


def without(data: bytes, sectors: list[tuple[int, int]]) -> bytes:
    left = bytearray(data)
    for begin, end in sectors:
        left[begin:end] = bytes(end - begin)
    return bytes(left)


def sector_of(cut: Cut) -> int:
    return 512 if len(cut.after) - len(cut.before) < 10_000 else 4_096


def mark_of(path: Path) -> Mark:
    """Of the newest write to a store that is open."""
    with closing(plyvel.DB(str(shutil.copytree(path, path.with_name("looked at"))))) as database:
        mark = Mark.from_bytes(database.get(ROW_KEY))
    assert mark is not None
    return mark


def ends(cut: Cut) -> tuple[tuple[Mark, int], ...]:
    token = cut.tables.token
    return (Mark(cut.number, token), len(cut.before)), (Mark(cut.number + 1, token), len(cut.after))


@pytest.mark.parametrize("name", KINDS)
def test_a_tail_torn_in_any_way_ends_with_the_last_acknowledged_write(cuts: dict[str, Cut], name: str) -> None:
    cut, cases = cuts[name], 0
    before, after = ends(cut)
    for what, data in tears(cut.before, cut.after, sector_of(cut)):
        cases += 1
        expected = after if data == cut.after else before
        for known in (cut.number, 0):
            assert end_of_log(data, cut.tables, known) == expected, what
    assert cases > 100


def open_torn(cut: Cut, path: Path, data: bytes) -> None:
    """As after the power came back; twice, since what was cut off is cut off for good."""
    shutil.copytree(cut.path, path)
    log_of(path).write_bytes(data)
    expected = cut.keys + (cut.last if data == cut.after else [])
    with closing(opened(path)) as store:
        assert keys_of(store) == sorted(expected)
        write(store, "next", 100)
    with closing(opened(path)) as store:
        assert keys_of(store) == sorted([*expected, "next.0"])
    shutil.rmtree(path)


def some(cut: Cut, count: int, seed: str) -> list[tuple[str, bytes]]:
    cases = list(tears(cut.before, cut.after, sector_of(cut)))
    return random.Random(seed).sample(cases, min(count, len(cases)))


@pytest.mark.parametrize("name", KINDS)
def test_a_store_whose_last_write_was_torn_opens(cuts: dict[str, Cut], name: str, tmp_path: Path) -> None:
    for what, data in some(cuts[name], 12, name):
        open_torn(cuts[name], tmp_path / what, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_store_opens_however_its_last_write_was_torn(cuts: dict[str, Cut], name: str, tmp_path: Path) -> None:
    for what, data in some(cuts[name], 1_000, name):
        open_torn(cuts[name], tmp_path / what, data)


def refused(path: Path, match: str | None = None) -> None:
    before = files_of(path)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=match):
            opened(path)
        assert files_of(path) == before


@pytest.mark.parametrize("name", ["small", "across the end of a block", "over several blocks", "a group"])
def test_what_was_acknowledged_and_is_torn_is_refused_and_left_as_it_is(cuts: dict[str, Cut], name: str, tmp_path: Path) -> None:
    """The same states of the disk, but the file beside knows that somebody was told."""
    cut = cuts[name]
    for what, data in some(cut, 4, f"acknowledged {name}"):
        path = Path(shutil.copytree(cut.path, tmp_path / what))
        EndFile(path / "oncelog.end", cut.number + 1).close()
        log_of(path).write_bytes(data)
        refused(path)


LAST_BUT_ONE = ("small", "across the end of a block", "behind an empty end of a block", "over several blocks")


@pytest.mark.parametrize("name", LAST_BUT_ONE)
def test_a_write_behind_which_there_is_another_one_was_not_torn_but_damaged(
    cuts: dict[str, Cut], name: str, tmp_path: Path
) -> None:
    """The file beside knows of neither: it lags. But a write begins when the one before it is synced."""
    cut = cuts[name]
    path = Path(shutil.copytree(cut.path, tmp_path / "both"))
    log_of(path).write_bytes(cut.after)
    with closing(opened(path)) as store:  # a new log
        shutil.copytree(path, tmp_path / "base")
        before = log_of(path).read_bytes()
        write(store, "one", *KINDS[name][1])
        one = log_of(path).read_bytes()
        write(store, "two", 600)
        two = log_of(path).read_bytes()
    cases = [(what, data + two[len(one) :]) for what, data in tears(before, one, 512) if len(data) == len(one) and data != one]
    for what, data in random.Random(name).sample(cases, 5):
        path = Path(shutil.copytree(tmp_path / "base", tmp_path / what))
        log_of(path).write_bytes(data)
        refused(path)


def test_a_write_whose_number_lies_across_the_end_of_a_block_is_found_behind_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with closing(opened(path)) as store:
        shutil.copytree(path, tmp_path / "base")
        fill(store, path, 700)
        begin = log_of(path).stat().st_size
        write(store, "one", 610)
        end = log_of(path).stat().st_size
        assert -end % BLOCK == 30
        write(store, "two", 600)
        data = bytearray(log_of(path).read_bytes())
    data[begin:end] = bytes(end - begin)
    path = tmp_path / "base"
    log_of(path).write_bytes(data)
    refused(path, "is damaged, and write")


def test_what_looks_like_another_store_within_a_torn_message_is_no_later_write(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """A message may hold the log of a store, such as a backup."""
    cut = cuts["over several blocks"]
    path = Path(shutil.copytree(cut.path, tmp_path / "data"))
    with closing(opened(path)) as store:
        shutil.copytree(path, tmp_path / "torn")
        batch = Batch()
        batch.put(M, b"last", bytes(600) + cut.before + bytes(600))
        store.write([batch])
        data = log_of(path).read_bytes()
    path = tmp_path / "torn"
    log_of(path).write_bytes(data[:-300])
    with closing(opened(path)) as store:
        assert keys_of(store) == sorted(cut.keys)


def test_no_client_keeps_a_store_from_opening_by_what_its_messages_hold(tmp_path: Path) -> None:
    """A message that looks like all the writes that could come behind it; and the process is killed while it is written, or the
    disk is full by then. What they lack is the store's token."""
    path = tmp_path / "data"
    with closing(opened(path)) as store:
        write(store, "first", 600)
        number = read_end(path / "oncelog.end")
        shutil.copytree(path, tmp_path / "killed")
        looks = [b"\x01\x04" + ROW_KEY + b"\x18" + Mark(number + n, bytes(TOKEN_SIZE)).to_bytes() for n in range(1_000)]
        batch = Batch()
        batch.put(M, b"last", bytes(40_000) + b"".join(looks) + bytes(40_000))
        store.write([batch])
        data = log_of(path).read_bytes()
    log_of(tmp_path / "killed").write_bytes(data[:-20_000])
    with closing(opened(tmp_path / "killed")) as store:
        assert keys_of(store) == ["first.0"]


def test_a_log_of_another_store_is_refused(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """Its writes are whole, and their numbers may follow on those that are there."""
    one, other = cuts["small"], cuts["a group"]
    path = Path(shutil.copytree(one.path, tmp_path / "data"))
    log_of(path).write_bytes(log_of(other.path).read_bytes())
    refused(path, "not of this store")


def test_what_is_cut_off_is_there_again_if_the_store_is_refused_then(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """One sector of an old message is damaged besides, which LevelDB alone finds."""
    cut = cuts["small"]
    path = Path(shutil.copytree(cut.path, tmp_path / "data"))
    data = bytearray(cut.after[:-100])
    data[200] ^= 1
    log_of(path).write_bytes(data)
    refused(path, "checksum mismatch")


def test_a_torn_log_that_leveldb_has_read_back_and_meant_to_delete_changes_nothing(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """Its deletion was not on disk yet; and LevelDB may have been interrupted when it began the next one."""
    cut = cuts["small"]
    path = Path(shutil.copytree(cut.path, tmp_path / "data"))
    old, torn = log_of(path), cut.after[:-100]
    old.write_bytes(torn)
    next_log = path / f"{int(old.stem) + 1:06}.log"
    next_log.touch()  # made, and then the power failed
    with closing(opened(path)) as store:
        write(store, "next", 100)
    assert not old.exists()
    old.write_bytes(torn)
    with closing(opened(path)) as store:
        assert keys_of(store) == sorted([*cut.keys, "next.0"])


# --- the manifest


class Change(NamedTuple):
    """A store at the moment when a record was written to its manifest: what LevelDB had before is there still."""

    path: Path
    """With all files that ever were, and the manifest without that record."""
    before: bytes
    after: bytes
    keys: list[str]


@pytest.fixture(scope="module")
def change(tmp_path_factory: pytest.TempPathFactory) -> Change:
    """Tables are written, merged and deleted while the service runs, every few writes."""
    place = tmp_path_factory.mktemp("change")
    path, seen = place / "data", place / "seen"
    seen.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leveldb, "_WRITE_BUFFER", 2**16)  # the least that LevelDB takes
        store = opened(path)
    number, (manifest,) = 0, path.glob("MANIFEST-*")
    states = [manifest.read_bytes()]
    while len(states) < 8:
        write(store, f"m{number:04}", 9_000)
        number += 1
        keep(path, seen)
        if (data := manifest.read_bytes()) != states[-1]:
            states.append(data)
    keys = keys_of(store)
    store.close()
    keep(path, seen)
    for name in ("CURRENT", "oncelog.end"):
        shutil.copyfile(path / name, seen / name)
    if (data := manifest.read_bytes()) != states[-1]:  # LevelDB went on merging
        states.append(data)
    return Change(seen, states[-2], states[-1], keys)


def keep(path: Path, seen: Path) -> None:
    """Names for LevelDB's files that stay when it deletes them; what is written to them later is there too."""
    for each in path.iterdir():
        if each.suffix in (".log", ".ldb") and not (seen / each.name).exists():
            try:
                os.link(each, seen / each.name)
            except FileNotFoundError:
                continue


def copied(source: Path, path: Path, manifest: bytes, only: Callable[[Path], bool] = lambda _: True) -> Path:
    path.mkdir()
    for each in source.iterdir():
        if only(each):
            shutil.copyfile(each, path / each.name)
    (path / (path / "CURRENT").read_text().strip()).write_bytes(manifest)
    return path


def test_a_store_whose_manifest_was_torn_opens(change: Change, tmp_path: Path) -> None:
    cases = list(tears(change.before, change.after, 16))  # its records are small: as if one lay across sectors
    for what, data in random.Random("manifest").sample(cases, 20):
        path = copied(change.path, tmp_path / what, data)
        with closing(opened(path)) as store:
            assert keys_of(store) == change.keys


def test_a_manifest_without_its_end_is_refused_where_what_it_replaced_is_gone(change: Change, tmp_path: Path) -> None:
    """What it replaced is gone: it was synced, so this is damage, whatever it looks like."""
    path = copied(change.path, tmp_path / "whole", change.after)
    live = live_files(path)
    for what, data in islice(tears(change.before, change.after, 16), 0, None, 20):
        if data == change.after:
            continue
        path = copied(change.path, tmp_path / what, data, lambda each: each.suffix not in (".ldb", ".log") or each.name in live)
        refused(path)


def live_files(path: Path) -> set[str]:
    with closing(opened(path)):
        pass
    return {each.name for each in path.iterdir()}


# --- the first moments


def beginnings(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """What a power cut may leave of a store that is being made: nothing in it was ever acknowledged."""
    whole = tmp_path / "whole"
    opened(whole).close()
    names = [each.name for each in whole.iterdir() if each.name not in (*OURS, "oncelog.end")]
    for name in names:
        data = (whole / name).read_bytes()
        for size in sorted({0, 1, 7, len(data) // 2, max(0, len(data) - 1)}):
            for left in (data[:size], data[:size] + bytes(len(data) - size)):
                path = Path(shutil.copytree(whole, tmp_path / f"{name} {size} {len(left)}", dirs_exist_ok=True))
                (path / "oncelog.end").unlink(missing_ok=True)
                (path / "oncelog.creating").touch()
                (path / name).write_bytes(left)
                yield path.name, path
    for data in (b"", bytes(16), bytes(1024)):
        path = Path(shutil.copytree(whole, tmp_path / f"end {len(data)}"))
        (path / "oncelog.creating").touch()
        (path / "oncelog.end").write_bytes(data)
        yield path.name, path


def test_a_store_that_was_being_made_when_the_power_failed_is_made(tmp_path: Path) -> None:
    for what, path in beginnings(tmp_path):
        with closing(opened(path)) as store:
            assert keys_of(store) == [], what
            write(store, "next", 100)
        with closing(opened(path)) as store:
            assert keys_of(store) == ["next.0"], what
