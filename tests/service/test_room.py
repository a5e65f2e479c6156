"""Room on the disk: whatever is admitted fits above the floor, whenever it is written and whenever somebody looks."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import DiskFull
from oncelog_service.bounds import room as bounds
from oncelog_service.bounds.room import Room, look, make
from oncelog_service.group_commit import Writer
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from oncelog_service.workers import ThreadWorkers
from tests.world.clock import ManualClock
from tests.world.disk import Gate

MIB = 2**20
FLOOR = 64 * MIB


def told(free: float, floor: int = FLOOR) -> Room:
    """Room on a disk that was looked at once."""
    room = Room(floor)
    room.looked(free, 0)
    return room


def admits(room: Room, size: int = 0) -> bool:
    try:
        room.admit(size)
    except DiskFull:
        return False
    return True


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 8 * MIB)),
        st.tuples(st.sampled_from(["write", "begin a look", "end a look"]), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.integers(1, 80 * MIB)),
    ),
    max_size=200,
)


@given(free=st.integers(0, 4 * FLOOR), steps=STEPS)
def test_no_flood_runs_through_the_floor_between_two_looks(free: int, steps: list[tuple[str, int]]) -> None:
    """A disk that nobody else writes to. What was admitted takes twice what it carries, and is written whenever that may be; a
    look begins behind what was admitted before, is overtaken by further writes, and ends."""
    room, to_write, begun = told(free), list[int](), None
    for step, value in steps:
        if step == "admit" and admits(room, value):
            to_write.append(2 * value)
            assert free - sum(to_write) >= FLOOR
        elif step == "write":
            free -= sum(to_write[:value])
            del to_write[:value]
        elif step == "begin a look":
            begun = room.admitted
            free -= sum(to_write)
            to_write.clear()
        elif step == "end a look" and begun is not None:
            room.looked(free, begun)
            begun = None
        elif step == "delete":
            free += value


@given(free=st.integers(2 * FLOOR, 4 * FLOOR), sizes=st.lists(st.integers(0, 8 * MIB), max_size=30))
def test_as_much_is_admitted_as_there_is_room_for(free: int, sizes: list[int]) -> None:
    """Nothing is refused that would leave the floor: each takes twice what it carries, and less than a kilobyte."""
    room, taken = told(free), 0
    for size in sizes:
        fits = free - taken - 2 * size - 1024 >= FLOOR
        admitted = admits(room, size)
        assert admitted or not fits
        taken += (2 * size + 1024) * admitted


def test_what_others_write_to_the_disk_counts_from_the_next_look_on() -> None:
    room = told(3 * FLOOR)
    assert admits(room)
    room.looked(FLOOR - 1, room.admitted)
    assert not admits(room)
    room.looked(3 * FLOOR, room.admitted)
    assert admits(room)


def test_where_nobody_can_look_or_no_floor_is_set_nothing_is_refused() -> None:
    unseen, none = Room(FLOOR), told(0, floor=0)
    assert all(admits(room, 2**50) for room in (unseen, none))
    assert (unseen.state, none.state) == ("ok", "ok")


def test_each_state_is_left_later_than_it_is_entered_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    room = Room(400)
    free = (801, 800, 799, 400, 801, 899, 900, 799, 400, 399, 0, 400, 499, 500, 800, 899, 900, 10)
    states = []
    with caplog.at_level(logging.INFO):
        for each in free:
            room.looked(each, 0)
            states.append(room.state)
    ok, low, full = "ok", "low", "full"
    assert states == [ok, ok, low, low, low, low, ok, low, low, full, full, full, full, low, low, low, ok, full]
    changes = [now for before, now in zip([ok, *states], states, strict=False) if before != now]
    assert len(caplog.records) == len(changes) == 7
    levels = {full: logging.ERROR, low: logging.WARNING, ok: logging.WARNING}
    assert [record.levelno for record in caplog.records] == [levels[state] for state in changes]
    assert "taken in again" in caplog.records[4].message, "from full to low"
    assert "taken in again" not in caplog.records[0].message, "from ok to low"


async def test_a_look_is_behind_what_was_admitted_before_it() -> None:
    """While the disk is held up no look takes for written what is not."""
    disk = Disk()
    gate, room, store, written = Gate(), Room(FLOOR), MemoryStore(disk), list[bool]()

    def free() -> int:
        written.append(gate.opened.is_set())
        return 3 * FLOOR

    disk.before_sync, disk.free = gate, free
    writer = Writer(store, lambda _: None, room=room, clock=ManualClock(), workers=ThreadWorkers())
    try:
        await asyncio.wait_for(look(room, store.free_bytes, writer.drained), 60)
        writer.room.admit(FLOOR // 2)
        batch = Batch()
        batch.put(Table.MESSAGE, b"k", b"v")
        writer.submit(batch)
        looking = asyncio.ensure_future(look(room, store.free_bytes, writer.drained))
        assert await asyncio.to_thread(gate.entered.wait, 60)
        writer.room.admit(FLOOR // 4)  # behind the look
        assert not looking.done()
        with pytest.raises(DiskFull):
            writer.room.admit(FLOOR // 4)
        gate.opened.set()
        await asyncio.wait_for(looking, 60)
        assert written == [False, True], "the look was behind the write"
        writer.room.admit(FLOOR // 2)
        with pytest.raises(DiskFull):
            writer.room.admit(FLOOR // 2)  # what came behind the look is still counted
    finally:
        gate.opened.set()
        await writer.close()


# --- what is rolled back


async def test_a_roll_back_leaves_three_quarters_of_the_floor_and_goes_on_as_the_store_gives_back() -> None:
    """Of each slice the disk is given back one copy at the next look: what the rows were before, and the log."""
    room, free, taken = told(FLOOR + MIB), FLOOR + MIB, 0
    assert room.slice_bytes <= FLOOR // 16
    lowest = free

    async def rolled_back() -> None:
        nonlocal taken, lowest
        for _ in range(40):
            await room.rewrite(int(room.slice_bytes))
            taken += 2 * int(room.slice_bytes)
            lowest = min(lowest, free - taken)

    rolling = asyncio.ensure_future(rolled_back())
    for _ in range(1_000):
        await asyncio.sleep(0)
        if rolling.done():
            break
        assert room.is_wanted
        taken = 0
        room.looked(free, room.admitted)
    await asyncio.wait_for(rolling, 60)
    assert FLOOR * 3 // 4 <= lowest < FLOOR * 7 // 8
    assert not room.is_wanted or room.state != "ok"


async def test_what_was_taken_in_counts_for_a_roll_back_and_the_other_way_round() -> None:
    room = told(2 * FLOOR)
    room.admit(FLOOR // 4)
    await room.rewrite(FLOOR // 8)
    assert not admits(room, FLOOR // 8)
    room.looked(2 * FLOOR, room.admitted)
    assert admits(room, FLOOR // 8)


async def test_where_there_is_room_the_store_is_asked_now_and_then_for_what_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_TIDIED_AFTER", 3)
    asked, heard, loop = list[tuple[bool, bool]](), asyncio.Event(), asyncio.get_running_loop()

    def reclaim(thorough: bool, only_much: bool) -> None:
        asked.append((thorough, only_much))
        loop.call_soon_threadsafe(heard.set)

    making = asyncio.ensure_future(make(told(FLOOR * 9), reclaim))
    try:
        await asyncio.wait_for(heard.wait(), 60)
    finally:
        making.cancel()
    assert set(asked) == {(False, True)}


async def test_a_roll_back_without_room_has_the_store_asked_for_some_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_TIDIED_AFTER", 10**9)
    room, asked, heard, loop = told(FLOOR * 9), list[bool](), asyncio.Event(), asyncio.get_running_loop()

    def reclaim(thorough: bool, only_much: bool) -> None:
        asked.append(thorough or only_much)
        loop.call_soon_threadsafe(heard.set)

    making = asyncio.ensure_future(make(room, reclaim))
    waiting = asyncio.ensure_future(room.rewrite(FLOOR * 5))
    try:
        async with asyncio.timeout(60):
            await heard.wait()
        assert (room.state, set(asked)) == ("ok", {False}), "there is much room, but not for that"
        room.looked(11 * FLOOR, room.admitted)
        await asyncio.wait_for(waiting, 60)
        with pytest.raises(DiskFull, match="rolled back later"):
            await room.rewrite(FLOOR)
        assert not room.is_wanted
    finally:
        making.cancel()
    for unbounded in (Room(FLOOR), told(0, floor=0)):
        await unbounded.rewrite(2**50)
