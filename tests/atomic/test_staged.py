"""What atomic commits stage on one topic: read back as it was, refused when it is damaged, dropped to the last row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest, OffsetMismatch, StorageUnavailable, TopicDamaged
from oncelog.wire.requests import PublishRequest
from oncelog_service.cluster.leases import Lease
from oncelog_service.log.append.atomic import Staged
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Batch, Fence, Table
from tests.service.house import PREFIX, House, crashed, flip, numbered, opened

NUMBER = 1_790_000_000_000_000_000


async def put(house: House, staged: Staged, chunk: int, request: PublishRequest) -> None:
    batch = Batch()
    assert house.log.atomic.is_new(staged, chunk, request)
    house.log.atomic.put(batch, staged, chunk, request)
    await house.writer.submit(batch, lambda: None)


async def staged_disk() -> Disk:
    """With three chunks."""
    disk = Disk()
    async with opened(disk, keyed=True) as house:
        staged = house.log.atomic.begun(NUMBER)
        await put(house, staged, 0, numbered([b"0", b"1"], "p", 0))
        await put(house, staged, 1, PublishRequest([b"2"], keys=[b"k"], expected_offset=2))
        await put(house, staged, 2, PublishRequest([b"3"], expected_key_offsets={"k": 2, "x": None}))
        return crashed(disk)


async def test_what_is_staged_reads_back_as_it_was_in_store_order() -> None:
    async with opened(await staged_disk(), keyed=True) as house:
        staged = await house.log.atomic.open(NUMBER)
        assert list(staged.chunks) == [0, 1, 2]
        assert [(each.first_index, each.messages) for each in staged.chunks.values()] == [(0, 2), (2, 1), (3, 1)]
        assert staged.chunks[2].key_indexes == {"k": 2}
        assert (staged.next_chunk, staged.group.messages) == (3, 4)
        assert not house.log.atomic.is_new(staged, 0, numbered([b"0", b"1"], "p", 0))
        ready = await house.log.atomic.ready([staged])
        assert house.log.atomic.judged(ready)


@pytest.mark.parametrize("table", [Table.PAYLOAD, Table.CHUNK])
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("how", ["missing", "flipped"])
async def test_a_staged_row_that_is_damaged_or_missing_is_refused(table: Table, place: int, how: str) -> None:
    disk = await staged_disk()
    key = sorted(disk.tables[table])[place]
    if how == "missing":
        del disk.tables[table][key]
    elif table is Table.CHUNK:
        disk.tables[table][key] = b"{" + disk.tables[table][key]
    else:
        flip(disk, table, key)
    async with opened(disk, keyed=True) as house:
        with pytest.raises(TopicDamaged):
            await house.log.atomic.open(NUMBER)


async def test_nothing_is_copied_into_a_log_that_was_closed() -> None:
    async with opened(await staged_disk(), keyed=True) as house:
        staged = await house.log.atomic.open(NUMBER)
        ready = await house.log.atomic.ready([staged])
        await house.log.close()
        with pytest.raises(StorageUnavailable):
            house.log.atomic.judged(ready)
        assert staged.group.row is None


class Chunk(NamedTuple):
    """As it is drawn: of the producer p, which wishes nothing; or plain messages, which have a key and expect something."""

    messages: int
    named: bool = False
    key: str | None = None
    off: int | None = None
    """How far the offset that it expects is off."""
    expects: str | None = None
    """The key whose newest offset it expects."""
    right: bool = True


@dataclass
class Model:
    """A topic: how many messages it has, key → the offset of its newest one, and the next sequence id of the producer p."""

    count: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    next_id: int = 0

    def holds(self, request: PublishRequest) -> bool:
        """Whether what it expects holds; then it is appended, without what is there already."""
        newest = request.expected_key_offsets or {}
        if request.expected_offset not in (None, self.count) or any(self.newest.get(key) != at for key, at in newest.items()):
            return False
        if request.sequence_ids is not None:
            self.count += sum(each >= self.next_id for each in request.sequence_ids)
            self.next_id = max(self.next_id, request.sequence_ids[-1] + 1)
        else:
            self.count += len(request.payloads)
        if request.keys is not None:
            self.newest[(request.keys[-1] or b"").decode("latin-1")] = self.count - 1
        return True


def request_of(chunk: Chunk, ahead: Model, first: int) -> PublishRequest:
    """``ahead``: what its client takes the topic for; ``first``: the next sequence id that it sends."""
    if chunk.named:
        return numbered([b"%d" % number for number in range(first, first + chunk.messages)], "p", first)
    newest = {chunk.expects: ahead.newest.get(chunk.expects) if chunk.right else ahead.count} if chunk.expects else None
    keys = None if chunk.key is None else [chunk.key.encode("latin-1")] * chunk.messages
    offset = None if chunk.off is None else ahead.count + chunk.off
    return PublishRequest([b"x"] * chunk.messages, keys=keys, expected_offset=offset, expected_key_offsets=newest)


sizes = st.integers(1, 3)
plain = st.builds(
    Chunk,
    sizes,
    key=st.sampled_from(["k", "k", "k", None]),
    off=st.sampled_from([None, None, 0, 0, 0, 0, 0, 1]),
    expects=st.sampled_from(["k", "k", "\xff", None]),
    right=st.integers(0, 7).map(bool),
)
chunks = plain | plain | st.builds(Chunk, sizes, st.just(True))


@given(
    st.lists(chunks, max_size=3), st.lists(st.lists(chunks, max_size=3), min_size=1, max_size=3), st.integers(0, 9), st.booleans()
)
@example([], [[Chunk(2)], [Chunk(1, key="k"), Chunk(2, key="k", off=0, expects="k"), Chunk(1, expects="k")]], 0, False)
@example([], [[Chunk(1)], [Chunk(1, off=1)]], 0, True)
def test_what_each_chunk_expects_is_judged_at_its_own_place(
    before: list[Chunk], branches: list[list[Chunk]], behind: int, crash: bool
) -> None:
    """Behind what the topic has, the chunks before it and the branches before its own, without what was there already."""
    asyncio.run(_judged_as_the_model(before, branches, behind, crash))


async def _judged_as_the_model(before: list[Chunk], branches: list[list[Chunk]], behind: int, crash: bool) -> None:
    model, requests, disk = Model(), list[PublishRequest](), Disk()
    async with opened(disk, keyed=True) as house:
        for chunk in before:
            request = request_of(chunk._replace(off=None, expects=None), model, model.next_id)
            assert model.holds(request)
            await house.log.publish(request)
        ahead, first = replace(model, newest=dict(model.newest)), max(0, model.next_id - behind)
        for number, each in enumerate(branches):
            staged = house.log.atomic.begun(NUMBER + number)
            for at, chunk in enumerate(each):
                requests.append(request_of(chunk, ahead, first))
                first += chunk.messages if chunk.named else 0
                wishless = replace(requests[-1], expected_offset=None, expected_key_offsets=None)
                assert ahead.holds(wishless)
                await put(house, staged, at, requests[-1])
        disk = crashed(disk) if crash else disk
        if not crash:
            await _check_judged(house, model, requests, len(branches))
    if crash:
        async with opened(disk, keyed=True) as house:
            await _check_judged(house, model, requests, len(branches))


async def _check_judged(house: House, model: Model, requests: list[PublishRequest], branches: int) -> None:
    atomic = house.log.atomic
    staged = [await atomic.open(NUMBER + number) for number in range(branches)]
    ready = await atomic.ready(staged)
    if not all(map(model.holds, requests)):
        with pytest.raises(OffsetMismatch):
            atomic.judged(ready)
        return
    assert atomic.judged(ready)
    batch = Batch()
    with house.writer.moving():
        written = list[Callable[[], None]]()
        atomic.copy(batch, ready.staged, written)
        done = house.writer.submit(batch, lambda: [each() for each in written] and None)
    await done
    newest = {key: model.newest.get(key) for key in ("k", "\xff")}
    await house.log.publish(PublishRequest([b"next"], expected_offset=model.count, expected_key_offsets=newest))


@pytest.mark.parametrize("published", [1, 2])
async def test_a_commit_is_looked_at_again_if_its_first_message_was_published_meanwhile(published: int) -> None:
    """Then it is judged once more; also where that is all which came in between."""
    async with opened(await staged_disk(), keyed=True) as house:
        staged = await house.log.atomic.open(NUMBER)
        ready = await house.log.atomic.ready([staged])
        assert house.log.atomic.judged(ready)
        await house.log.publish(numbered([b"0", b"1"][:published], "p", 0))
        assert not house.log.atomic.judged(ready)


@pytest.mark.parametrize("begin", [0, 1, 2])
async def test_sequence_ids_rise_from_one_branch_to_the_next(begin: int) -> None:
    async with opened(Disk()) as house:
        branches = [house.log.atomic.begun(NUMBER + each) for each in (0, 1)]
        await put(house, branches[0], 0, numbered([b"0", b"1"], "p", 0))
        await put(house, branches[1], 0, numbered([b"x"], "p", begin))
        if begin > 1:
            await house.log.atomic.ready(branches)
            return
        with pytest.raises(InvalidRequest, match="strictly rise"):
            await house.log.atomic.ready(branches)


@pytest.mark.parametrize("step", ["stage", "copy", "bring"])
async def test_what_a_coordinator_stages_and_copies_stands_on_the_lease_of_the_topic(step: str) -> None:
    """It submits the batch itself, and may have been stopped for long: then two rows would stand at one offset."""
    disk = await staged_disk()
    async with opened(disk, keyed=True, clean=False) as house:
        staged = await house.log.atomic.open(NUMBER)
        fence = Fence(PREFIX, 1)
        house.log.atomic._topic.writer = house.writer.under(Lease(fence, lambda: True))
        batch, disk.epochs[PREFIX] = Batch(), 2
        if step == "stage":
            house.log.atomic.put(batch, staged, 3, PublishRequest([b"4"]))
        elif step == "copy":
            house.log.atomic.copy(batch, [staged], [])
        else:
            house.log.atomic.copy(batch, [house.log.atomic.brought(PublishRequest([b"4"]))], [])
        rows = {table: dict(found) for table, found in disk.tables.items()}
        with pytest.raises(StorageUnavailable):
            await house.writer.submit(batch, lambda: None)
        assert disk.tables == rows


async def test_what_is_dropped_leaves_no_row_of_its_own_and_every_row_of_others() -> None:
    disk = Disk()
    async with opened(disk) as house:
        for number in (NUMBER - 1, NUMBER, NUMBER + 1):
            staged = house.log.atomic.begun(number)
            for chunk in range(3 if number == NUMBER else 1):
                await put(house, staged, chunk, PublishRequest([b"x"] * (700 if number == NUMBER else 1)))
        await house.log.atomic.drop(NUMBER)
        await house.writer.synced()
        assert [len(disk.tables[table]) for table in (Table.PAYLOAD, Table.CHUNK)] == [2, 2]
        assert (await house.log.atomic.open(NUMBER)).group.messages == 0
        for number in (NUMBER - 1, NUMBER + 1):
            house.log.atomic.close(number)
            assert (await house.log.atomic.open(number)).group.messages == 1
