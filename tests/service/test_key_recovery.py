"""CONTRACT §6.1: what is known of keys is a fold over the log; crashes, retention and lost snapshots change nothing in it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from oncelog.errors import (
    KeyInTransaction,
    OffsetMismatch,
    StoredGroupPublished,
    TopicDamaged,
)
from oncelog.wire.requests import PublishRequest, Rollback
from oncelog.wire.transaction import TransactionType
from oncelog_dedup import SequenceMap, Snapshot
from oncelog_service import group_commit as writer
from oncelog_service.log.keep.recovery import read_snapshots, recover
from oncelog_service.log.key_index import KeyIndex
from oncelog_service.log.limits import Limits
from oncelog_service.log.scan import Expired, expired_rows
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import Findings, verify_log
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from tests.patience import PATIENCE
from tests.service.house import BEGIN, PREFIX, House, crashed, flip, opened
from tests.support import ManualClock

FEW = Limits(snapshot_messages=7, snapshot_seconds=1_000.0)


@pytest.fixture(autouse=True)
def _nobody_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LAZY_SECONDS", 0.0)


def keyed(*keys: str | None, **expectations: int | dict[str, int | None]) -> PublishRequest:
    """A request whose messages have these keys."""
    names = [None if key is None else key.encode() for key in keys]
    return PublishRequest([b"x"] * len(keys), keys=names, **expectations)  # type: ignore[arg-type]


def keys_of(log: TopicLog) -> KeyIndex:
    assert log.keys is not None
    return log.keys


def recovered_keys(disk: Disk) -> KeyIndex:
    keys = recover(MemoryStore(disk), PREFIX, True).keys
    assert keys is not None
    return keys


def oldest(disk: Disk, count: int) -> list[Expired]:
    return expired_rows(MemoryStore(disk), PREFIX, 2**62, 0, count)


def found_by_verify(house: House) -> Findings:
    *_, last = verify_log(house.store, house.log)
    return last


async def publish_some(house: House, count: int) -> None:
    for number in range(count):
        await house.log.publish(keyed("ab"[number % 2], None))


# --- snapshots ----------------------------------------------------------------------------------------------------------


def test_the_keys_are_snapshotted_beside_the_producers_and_replayed_from_there() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, limits=FEW, keyed=True, clean=False) as house:
            await publish_some(house, 20)
            await house.log.snapshots.take()
            for slot in SNAPSHOT_SLOTS:
                pair = [Snapshot.from_bytes(disk.tables[table][PREFIX + slot]) for table in (Table.SNAPSHOT, Table.KEY_SNAPSHOT)]
                assert pair[0].position == pair[1].position
            live = keys_of(house.log)
            after = crashed(disk)
        assert recovered_keys(after).copy() == live.copy() == SequenceMap(dict(live.copy().items()))
        assert recovered_keys(after).state()[:2] == live.state()[:2]

    asyncio.run(scenario())


def test_where_nobody_asks_nothing_is_kept_of_keys() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, limits=FEW) as house:
            await publish_some(house, 20)
            assert house.log.keys is None
            pointer = (await house.transactions.start(TransactionType.LONG)).write_pointer
            await house.log.store(PublishRequest([b"x"], keys=[b"k"], write_pointer=pointer))
            assert (await house.log.transactional.groups.open(pointer)).keys == {}
        assert disk.tables[Table.SNAPSHOT]
        assert not disk.tables[Table.KEY_SNAPSHOT]

    asyncio.run(scenario())


def test_an_index_that_is_new_is_in_both_slots_before_anything_is_deleted() -> None:
    """The producers' two snapshots were there long before it."""

    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, limits=FEW) as house:
            await publish_some(house, 10)
            await house.log.snapshots.take()
        async with opened(disk, limits=FEW, keyed=True, clean=False) as house:
            assert house.log.snapshots.covered_by_both == 0
            assert await asyncio.wait_for(house.log.trim(oldest(disk, 5)), PATIENCE) == 5
            assert len(disk.tables[Table.KEY_SNAPSHOT]) == 2
            live = keys_of(house.log).copy()
        for slot in SNAPSHOT_SLOTS:
            damaged = crashed(disk)
            flip(damaged, Table.KEY_SNAPSHOT, PREFIX + slot)
            assert recovered_keys(damaged).copy() == live

    asyncio.run(scenario())


def test_keys_whose_messages_are_deleted_are_known_or_the_topic_is_refused() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, limits=FEW, keyed=True, clean=False) as house:
            await house.log.publish(keyed("gone"))
            await publish_some(house, 10)
            await house.log.trim(oldest(disk, 15))
            assert keys_of(house.log).newest("gone") == 0
            assert not found_by_verify(house).problems
        assert recovered_keys(disk).newest("gone") == 0
        for slot in SNAPSHOT_SLOTS:
            flip(disk, Table.KEY_SNAPSHOT, PREFIX + slot)
        with pytest.raises(TopicDamaged, match="newest offsets of keys are not known"):
            recovered_keys(disk)
        assert recover(MemoryStore(disk), PREFIX).keys is None, "with the check off it is not looked at"

    asyncio.run(scenario())


def test_switched_off_and_on_again_with_a_trim_between_it_claims_nothing_about_what_it_missed() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, limits=FEW, keyed=True) as house:
            await house.log.publish(keyed("a"))
            await house.log.publish(keyed("b"))
        async with opened(disk, limits=FEW) as house:
            await house.log.publish(keyed("a", "c"))
            await house.log.publish(keyed("c", "d"))
            await house.log.trim(oldest(disk, 4))
            assert not disk.tables[Table.KEY_SNAPSHOT], "they would miss the message with the key a at offset 2"
        async with opened(disk, limits=FEW, keyed=True) as house:
            assert dict(keys_of(house.log).copy().items()).keys() == {"c", "d"}
            assert not found_by_verify(house).problems
            await house.log.publish(keyed("a", expected_offset=6, expected_key_offsets={"a": None, "c": 4, "d": 5}))
        async with opened(disk, limits=FEW, keyed=True) as house:
            assert {key: mark.offset for key, mark in keys_of(house.log).copy().items()} == {"a": 6, "c": 4, "d": 5}

    asyncio.run(scenario())


def test_off_and_on_again_without_a_trim_nothing_is_missed() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, limits=FEW, keyed=True) as house:
            await house.log.publish(keyed("a", "b"))
        async with opened(disk, limits=FEW) as house:
            await house.log.publish(keyed("a", "c"))
        assert disk.tables[Table.KEY_SNAPSHOT]
        assert {key: mark.offset for key, mark in recovered_keys(disk).copy().items()} == {"a": 2, "b": 1, "c": 3}

    asyncio.run(scenario())


def test_the_last_message_is_known_when_all_are_deleted_and_the_check_is_switched_on() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, limits=FEW) as house:
            await publish_some(house, 3)
            last = house.log.position.last_message_id
            await house.log.trim(oldest(disk, 100))
        assert recovered_keys(disk).state()[:2] == (6, last)

    asyncio.run(scenario())


def test_an_empty_group_is_no_message_that_a_reader_could_have_seen_last() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, keyed=True, clean=False) as house:
            await house.log.publish(keyed("a"))
            state = keys_of(house.log).state()[:2]
            pointer = (await house.transactions.start(TransactionType.LONG)).write_pointer
            await house.log.publish(PublishRequest([], write_pointer=pointer))
            assert house.log.position.last_message_id != state[1]
            assert keys_of(house.log).state()[:2] == state
            assert not found_by_verify(house).problems
        assert recovered_keys(disk).state()[:2] == state

    asyncio.run(scenario())


def test_verify_notices_a_key_that_the_index_has_wrong() -> None:
    async def scenario() -> None:
        async with opened(Disk(), keyed=True) as house:
            await publish_some(house, 4)
            assert not found_by_verify(house).problems
            index = keys_of(house.log).fold
            marks = dict(index.copy().items())
            index._head.marks.raise_to("a", marks["b"])
            (problem,) = found_by_verify(house).problems
            assert problem.startswith("key 'a': the log says")

    asyncio.run(scenario())


# --- at random ----------------------------------------------------------------------------------------------------------


class Model:
    """A plain list of what was published."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.pointers: list[int | None] = []
        """Of each message; None: it counts for good."""

    def add(self, keys: list[bytes | None], pointer: int | None) -> None:
        self.keys += keys
        self.pointers += [pointer] * len(keys)

    def end(self, pointer: int, committed: bool, offsets: range | None = None) -> None:
        for offset, each in enumerate(self.pointers):
            if each == pointer and (offsets is None or offset in offsets):
                self.pointers[offset] = None
                self.keys[offset] = self.keys[offset] if committed else None

    def newest(self, key: str) -> int | None:
        return next((at for at in reversed(range(len(self.keys))) if self.keys[at] == key.encode()), None)

    def holds(self, request: PublishRequest) -> bool | int:
        """Whether the expectations hold; or the transaction that this is up to."""
        if request.expected_offset not in (None, len(self.keys)):
            return False
        for key, offset in (request.expected_key_offsets or {}).items():
            newest = self.newest(key)
            pointer = None if newest is None else self.pointers[newest]
            if pointer not in (None, request.write_pointer):
                return pointer
            if newest != offset:
                return False
        return True


KINDS = ["start", "plain", "direct", "store", "group", "commit", "abort", "roll back", "trim"]


class Play:
    """One life after another of a topic, each step held against the model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.disk, self.clock, self.model = Disk(), ManualClock(BEGIN), Model()
        self.begun: list[int] = []
        self.stored: dict[int, list[bytes | None]] = {}
        self.outcomes: Counter[str] = Counter()

    async def life(self) -> None:
        clean = self.rng.random() < 0.3
        async with opened(self.disk, self.clock, FEW, keyed=True, clean=clean) as house:
            await house.log.settle_ended()
            self.check(house)
            for _ in range(self.rng.randint(1, 25)):
                await self.step(house)
                self.check(house)
            assert not (problems := found_by_verify(house).problems), (self.seed, problems)
            if not clean:
                self.disk = crashed(self.disk)
        table = self.rng.choice([Table.SNAPSHOT, Table.KEY_SNAPSHOT])
        if self.rng.random() < 0.3 and all(read_snapshots(MemoryStore(self.disk), PREFIX, table)):
            flip(self.disk, table, PREFIX + self.rng.choice(SNAPSHOT_SLOTS))

    def check(self, house: House) -> None:
        index, model = keys_of(house.log), self.model
        assert index.upcoming_offset == len(model.keys) == house.log.position.upcoming_offset, self.seed
        for key in "abc":
            assert index.newest(key) == model.newest(key), (self.seed, key)

    async def step(self, house: House) -> None:
        self.clock.advance(self.rng.randint(0, 2))
        kind = self.rng.choice([*KINDS, *KINDS[1:4], *KINDS[1:4]])
        if kind == "trim":
            await house.log.trim(oldest(self.disk, self.rng.randint(3, 9)))
        elif kind == "plain":
            await self.publish(house, self.request(None))
        elif kind == "start" or not self.begun:
            pointer = (await house.transactions.start(TransactionType.LONG)).write_pointer
            self.begun.append(pointer)
        else:
            await self.step_in(house, kind, self.rng.choice(self.begun))

    async def step_in(self, house: House, kind: str, pointer: int) -> None:
        if kind in ("direct", "roll back"):
            request = self.request(pointer)
            first = len(self.model.keys)
            answer = await self.publish(house, request)
            if answer is not None and kind == "roll back":
                await house.log.roll_back(answer)
                self.model.end(pointer, False, range(first, len(self.model.keys)))
        elif kind == "store":
            with suppress(StoredGroupPublished):
                request = self.request(pointer)
                await house.log.store(PublishRequest(request.payloads, keys=request.keys, write_pointer=pointer))
                self.stored.setdefault(pointer, []).extend(request.keys or [])
        elif kind == "group":
            request = self.request(pointer)
            request.payloads, request.keys = [], None
            with suppress(StoredGroupPublished):
                await self.publish(house, request, self.stored.get(pointer, []))
        else:
            self.begun.remove(pointer)
            await (house.transactions.commit if kind == "commit" else house.transactions.abort)(pointer)
            await house.log.settle(pointer, kind == "commit")
            self.model.end(pointer, kind == "commit")

    def request(self, pointer: int | None) -> PublishRequest:
        rng, model = self.rng, self.model
        keys = [rng.choice([None, b"a", b"b", b"c"]) for _ in range(rng.randint(1, 3))]
        request = PublishRequest([b"x"] * len(keys), keys=keys, write_pointer=pointer)
        if rng.random() < 0.3:
            request.expected_offset = len(model.keys) + rng.choice([0, 0, 0, 1])
        if rng.random() < 0.6:
            chosen = rng.sample("abc", rng.randint(0, 2))
            request.expected_key_offsets = {key: rng.choice([model.newest(key), model.newest(key), 1, None]) for key in chosen}
        return request

    async def publish(self, house: House, request: PublishRequest, group: list[bytes | None] | None = None) -> Rollback | None:
        pointer, holds = request.write_pointer, self.model.holds(request)
        try:
            answer = await house.log.publish(request)
        except OffsetMismatch:
            assert holds is False, self.seed
            self.outcomes["mismatch"] += 1
        except KeyInTransaction as error:
            self.outcomes["held" if error.write_pointer == holds else "held by another"] += 1
        else:
            assert holds is True, self.seed
            self.outcomes["stored"] += 1
            self.model.add(list(request.keys or []) if group is None else group, pointer)
            ends = (answer.start_timestamp, answer.start_sequence_id), (answer.end_timestamp, answer.end_sequence_id)
            return None if pointer is None else Rollback(pointer, *ends)
        return None


@pytest.mark.parametrize("seed", range(40))
def test_every_condition_is_judged_as_by_a_plain_list_through_crashes_roll_backs_and_retention(seed: int) -> None:
    async def scenario() -> None:
        play = Play(seed)
        for _ in range(4):
            await play.life()
        assert play.outcomes["stored"], seed
        assert not play.outcomes["held by another"], seed

    asyncio.run(scenario())


def test_the_histories_above_have_every_outcome() -> None:
    async def scenario() -> None:
        outcomes: Counter[str] = Counter()
        for seed in range(1_000, 1_010):
            play = Play(seed)
            for _ in range(3):
                await play.life()
            outcomes += play.outcomes
        assert all(outcomes[each] >= 5 for each in ("stored", "mismatch", "held")), outcomes

    asyncio.run(scenario())
