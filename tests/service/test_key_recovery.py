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
    ProducerInTransaction,
    SequenceReused,
    StoredGroupPublished,
    TopicDamaged,
)
from oncelog.wire.requests import PublishRequest, Rollback
from oncelog.wire.transaction import TransactionType
from oncelog_dedup import Fold
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
from tests.world.clock import ManualClock

FEW = Limits(snapshot_messages=7, snapshot_seconds=1_000.0)


@pytest.fixture(autouse=True)
def _nobody_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LAZY_SECONDS", 0.0)


def keyed(*keys: str | None, **expectations: int | dict[str, int | None]) -> PublishRequest:
    """A request whose messages have these keys."""
    names = [None if key is None else key.encode() for key in keys]
    return PublishRequest([b"x"] * len(keys), keys=names, **expectations)  # type: ignore[arg-type]


def keys_of(log: TopicLog) -> KeyIndex:
    assert log.topic.keys is not None
    return log.topic.keys


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


async def test_where_nobody_asks_nothing_is_kept_of_keys() -> None:
    disk = Disk()
    async with opened(disk, limits=FEW) as house:
        await publish_some(house, 20)
        assert house.log.topic.keys is None
        pointer = (await house.transactions.start(TransactionType.LONG)).write_pointer
        await house.log.store(PublishRequest([b"x"], keys=[b"k"], write_pointer=pointer))
        assert (await house.log.topic.groups.open(pointer)).keys == {}
    assert disk.tables[Table.SNAPSHOT]
    assert not disk.tables[Table.KEY_SNAPSHOT]


async def test_an_index_that_is_new_is_in_both_slots_before_anything_is_deleted() -> None:
    """The producers' two snapshots were there long before it."""
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


async def test_keys_whose_messages_are_deleted_are_known_or_the_topic_is_refused() -> None:
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


@pytest.mark.parametrize("trimmed", [0, 4, 6])
async def test_switched_off_and_on_again_it_claims_nothing_about_what_it_missed(trimmed: int) -> None:
    disk = Disk()
    async with opened(disk, limits=FEW, keyed=True) as house:
        await house.log.publish(keyed("a", "b"))
    async with opened(disk, limits=FEW) as house:
        await house.log.publish(keyed("a", "c"))
        await house.log.publish(keyed("c", "d"))
        last = house.log.position.last_message_id
        await house.log.trim(oldest(disk, trimmed))
        # Once something is deleted they would miss the message with the key a at offset 2.
        assert bool(disk.tables[Table.KEY_SNAPSHOT]) == (not trimmed)
    known = {0: {"a": 2, "b": 1, "c": 4, "d": 5}, 4: {"c": 4, "d": 5}, 6: {}}[trimmed]
    async with opened(disk, limits=FEW, keyed=True) as house:
        assert {key: last_entry.offset for key, last_entry in keys_of(house.log).copy().items()} == known
        assert keys_of(house.log).state()[:2] == (6, last)
        assert not found_by_verify(house).problems
        await house.log.publish(keyed("a", expected_offset=6, expected_key_offsets={key: known.get(key) for key in "abcd"}))
    assert {key: last_entry.offset for key, last_entry in recovered_keys(disk).copy().items()} == {**known, "a": 6}


async def test_verify_notices_a_key_that_the_index_has_wrong() -> None:
    async with opened(Disk(), keyed=True) as house:
        await publish_some(house, 4)
        assert not found_by_verify(house).problems
        index = keys_of(house.log).fold
        last_entries = dict(index.copy().items())
        index._head.last_entries.raise_to("a", last_entries["b"])
        (problem,) = found_by_verify(house).problems
        assert problem.startswith("key 'a': the log says")


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


def unsettled(fold: Fold) -> dict[int, list[tuple[object, ...]]]:
    """What is undecided; of empty groups nothing is, and retention may pass their rows."""
    found = {pointer: [each[:4] for each in runs if each.count] for pointer, runs in fold.unsettled.items()}
    return {pointer: runs for pointer, runs in found.items() if runs}


class Play:
    """One life after another of a topic, each step held against the model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.disk, self.clock, self.model = Disk(), ManualClock(BEGIN), Model()
        self.begun: list[int] = []
        self.stored: dict[int, list[bytes | None]] = {}
        self.outcomes: Counter[str] = Counter()
        self.untold: tuple[int, bool] | None = None
        """A transaction that has ended, and how, of which the topic does not know."""
        self.numbers: Counter[str] = Counter()
        """Producer → its next sequence id."""

    async def life(self) -> None:
        self.outcomes["lives"] += 1
        clean = self.rng.random() < 0.3
        async with opened(self.disk, self.clock, FEW, keyed=True, clean=clean) as house:
            await house.log.settling.settle_all_ended()
            self.tell()
            self.check(house)
            for _ in range(self.rng.randint(1, 25)):
                await self.step(house)
                self.check(house)
                if self.untold is not None:
                    break
            assert not (problems := found_by_verify(house).problems), (self.seed, problems)
            self.check_recovered(house, crashed(self.disk))
            if not house.log.earliest_offset:
                whole = crashed(self.disk)
                whole.tables[Table.SNAPSHOT].clear()
                self.check_recovered(house, whole)
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

    def check_recovered(self, house: House, disk: Disk) -> None:
        """What a restart would know of this disk is what is known now."""
        live, found = house.log.dedup.fold, recover(MemoryStore(disk), PREFIX, True)
        assert (found.fold.copy(), found.fold.position) == (live.copy(), live.position), self.seed
        assert unsettled(found.fold).items() >= unsettled(live).items(), self.seed
        assert found.keys is not None
        keys = keys_of(house.log)
        assert (found.keys.copy(), found.keys.state()[:2]) == (keys.copy(), keys.state()[:2]), self.seed

    def tell(self) -> None:
        """The model learns how a transaction ended of which the topic was not told before the crash."""
        if self.untold is not None:
            self.model.end(*self.untold)
            self.untold = None

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
            with suppress(StoredGroupPublished, ProducerInTransaction):
                request = self.request(pointer)
                request.expected_offset = request.expected_key_offsets = None
                await house.log.store(request)
                self.stored.setdefault(pointer, []).extend(request.keys or [])
        elif kind == "group":
            request = self.request(pointer)
            request.payloads, request.keys, request.producer, request.sequence_ids = [], None, None, None
            with suppress(StoredGroupPublished):
                await self.publish(house, request, self.stored.get(pointer, []))
        else:
            self.begun.remove(pointer)
            await (house.transactions.commit if kind == "commit" else house.transactions.abort)(pointer)
            self.untold = pointer, kind == "commit"
            if self.rng.random() < 0.8:  # else a crash comes before the topic is told
                await house.log.settle(*self.untold)
                self.tell()

    def request(self, pointer: int | None) -> PublishRequest:
        rng, model = self.rng, self.model
        keys = [rng.choice([None, b"a", b"b", b"c"]) for _ in range(rng.randint(1, 3))]
        request = PublishRequest([b"x"] * len(keys), keys=keys, write_pointer=pointer)
        if (name := rng.choice([None, "p", "q"])) is not None:
            request.producer, request.sequence_ids = name, range(self.numbers[name], self.numbers[name] + len(keys))
            self.numbers[name] += len(keys)
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
        except (ProducerInTransaction, SequenceReused):
            self.outcomes["refused"] += 1
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


OUTCOMES: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(25))
async def test_every_condition_is_judged_as_by_a_plain_list_through_crashes_roll_backs_and_retention(seed: int) -> None:
    play = Play(seed)
    for _ in range(4):
        await play.life()
    assert play.outcomes["stored"], seed
    assert not play.outcomes["held by another"], seed
    OUTCOMES.update(play.outcomes)
    if seed == 24 and OUTCOMES["lives"] == 100:
        assert all(OUTCOMES[each] >= 5 for each in ("mismatch", "held")), OUTCOMES
