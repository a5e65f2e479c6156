"""CONTRACT §5.2: what a crash leaves of an atomic commit, a restart makes whole or nothing, once; what was answered holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from oncelog.errors import OncelogError, TopicExists, TransactionNotFound, TransactionNotInProgress
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, PublishRequest
from oncelog_service.atomic import coordinator, ledger
from oncelog_service.storage.keys import split_chunk_key
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Table
from tests.behaviours.atomics import CHECKED, BatchByBatch, House, commit_of, copy_of, living, messages

TOPICS = ("a", "b")
PLACED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "t1": {"a": ["t1:own", "t1:inline", "t1:one"], "b": ["t1:b", "t1:two"]},
    "t2": {"a": ["t2:3", "t2:4"], "b": ["t2:b"]},
    "t3": {"a": ["t3:k", "t3:k2"], "b": ["t3:b"]},
    "t8": {"a": ["t8:a"], "b": ["t8:b"]},
    "t9": {"a": ["t9:a"], "b": ["t9:b"]},
    "t10": {"a": ["t10:a"], "b": ["t10:b"]},
}
"""What each transaction that can be committed brings to each topic."""
GROUPS = {"t10": "h"}
NEVER = ("t4", "t5", "t6", "t7", "one-unnamed")


@pytest.fixture(autouse=True)
def _trimmed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is trimmed in the middle of the history; its rounds are run by the tests."""
    monkeypatch.setattr(ledger, "_TRIM_EVERY", 3)
    monkeypatch.setattr(coordinator, "_ROUND_SECONDS", 3_600)


@dataclass
class Told:
    """What a client was answered, with the number of batches that were on disk by then."""

    outcomes: list[tuple[int, str, AtomicOutcome | OncelogError]] = field(default_factory=list)
    commits: dict[str, CommitRequest] = field(default_factory=dict)

    def by(self, batches: int) -> dict[str, AtomicOutcome | OncelogError]:
        return {name: outcome for when, name, outcome in self.outcomes if when <= batches}


class Client:
    """Does everything in order; run again after a crash it repeats every call, as a client must that does not know."""

    def __init__(self, house: House, told: Told) -> None:
        self.house = house
        self.told = told

    def _batches(self) -> int:
        return len(self.house.store.disks) - 1 if isinstance(self.house.store, BatchByBatch) else 0

    async def stage(self, name: str, topic: str, chunk: int, request: PublishRequest) -> None:
        with suppress(TransactionNotInProgress):  # it was repeated after the transaction had ended
            await self.house.stage(name, topic, chunk, request)

    async def commit(self, name: str, parts: Mapping[str, PublishRequest], **fields: object) -> None:
        request = self.told.commits[name] = commit_of(parts, group=GROUPS.get(name, "g"), **fields)
        answer: AtomicOutcome | OncelogError
        try:
            answer = await self.house.journal.commit(name, request)
        except OncelogError as error:
            answer = error
        self.told.outcomes.append((self._batches(), name, answer))

    async def run(self) -> None:
        house = self.house
        for topic in TOPICS:
            with suppress(TopicExists):
                await house.create(topic, **CHECKED)
        await house.begin("t1")
        await self.stage("t1", "a", 0, messages("t1:own", keys=[b"k"]))
        await self.stage("t1", "b", 0, messages("t1:b"))
        for branch, topic in (("one", "a"), ("two", "b"), ("one-unnamed", "a")):
            await house.begin(branch, of="t1")
            await self.stage(branch, topic, 0, messages(f"t1:{branch}"))
        loader = {"producer": "loader", "sequence_id": 0, "incarnation": "i", "checksum": "c"}
        await self.commit("t1", {"a": messages("t1:inline")}, branches=["two", "one"], **loader)
        await house.publish("a", messages("p0", "p1", "p2", producer="p", first=0))
        await self.commit("t2", {"a": messages("p1", "p2", "t2:3", "t2:4", producer="p", first=1), "b": messages("t2:b")})
        wants = messages("t3:k", "t3:k2", keys=[b"k", b"k"], expected_offset=8, expected_key_offsets={"k": 0, "x": None})
        await self.commit("t3", {"a": wants, "b": messages("t3:b", expected_offset=3)})
        await self.commit("t4", {"a": messages("t4:a"), "b": messages("t4:b", expected_offset=77)})
        await self.commit("t5", {"a": messages("t5:a"), "b": messages("t5:b")}, **loader)
        await house.begin("t6")
        await self.stage("t6", "a", 0, messages("t6:a"))
        await house.journal.abort("t6")
        await house.begin("t7")
        await self.stage("t7", "a", 0, messages("t7:a"))
        await self.stage("t7", "b", 0, messages("t7:b"))
        await asyncio.gather(
            *(self.commit(name, {"a": messages(f"{name}:a"), "b": messages(f"{name}:b")}) for name in ("t8", "t9", "t10"))
        )
        await house.journal.close()


async def check_whole(house: House, told: Mapping[str, AtomicOutcome | OncelogError]) -> None:
    """Every transaction is on all its topics or on none, once, and what was answered is what holds."""
    logs = {}
    for topic in TOPICS:
        with suppress(OncelogError):  # it was not created yet
            logs[topic] = await house.shown(topic)
    for name, parts in PLACED.items():
        present = {topic: found for topic in logs if (found := [each for each in logs[topic] if each.startswith(f"{name}:")])}
        assert present in ({}, {topic: list(bodies) for topic, bodies in parts.items()}), f"{name} is torn: {present}"
        for topic, found in present.items():
            at = logs[topic].index(found[0])
            assert logs[topic][at : at + len(found)] == found, f"{name} is not in a row on {topic}: {logs[topic]}"
        state = await state_of(house, name)
        assert (state == "committed") == bool(present), f"{name} is {state}, and there is {present}"
        if present:
            said = {each.topic: (each.first_offset, each.messages) for each in (await house.journal.show(name)).topics}
            assert said == {topic: (logs[topic].index(found[0]), len(found)) for topic, found in present.items()}
    for name in NEVER:
        assert not any(each.startswith((f"{name}:", f"t1:{name}")) for log in logs.values() for each in log)
    if logs:
        assert in_order(logs["a"]) == in_order(logs.get("b", []))
    for name, answer in told.items():
        if isinstance(answer, AtomicOutcome):
            assert await house.journal.show(name) == answer
            assert (answer.state == "committed") == (name in PLACED)
        else:
            assert (await house.journal.show(name)).reason == answer.code
    await house.verify(*logs)


def in_order(log: Sequence[str]) -> list[str]:
    """The transactions of the group ``g`` in the order in which a topic shows them."""
    names = dict.fromkeys(each.partition(":")[0] for each in log if ":" in each)
    return [name for name in names if name not in GROUPS]


async def state_of(house: House, name: str) -> str | None:
    try:
        return (await house.journal.show(name)).state
    except TransactionNotFound:
        return None


async def repeated(house: House, told: Told, by: Mapping[str, AtomicOutcome | OncelogError]) -> None:
    """A client repeats everything; what was answered is answered again, and in the end everything is there once."""
    again = Told()
    await Client(house, again).run()
    second = again.by(0)
    for name, answer in by.items():
        other = second[name]
        if isinstance(answer, AtomicOutcome):
            assert other == answer
        else:
            assert isinstance(other, type(answer)), other
            assert other.to_problem() == answer.to_problem()
    await check_whole(house, second)
    for name in PLACED:
        assert await state_of(house, name) == "committed", name
    await house.journal.once()
    await house.journal.close()
    kept = {split_chunk_key(key)[1] for key in house.keys(Table.CHUNK)}
    assert len(kept) == 1, f"only t7 is in progress, and chunks are kept of {kept}"


async def history() -> tuple[list[Disk], Told]:
    """The disk after every batch of it."""
    disk, told = Disk(), Told()
    store = BatchByBatch(disk)
    async with living(disk, store=store) as house:
        await Client(house, told).run()
        await house.service.writer.synced()
        await check_whole(house, told.by(10**9))
        disks = list(store.disks)
    return disks, told


def test_after_a_crash_behind_any_batch_every_transaction_is_whole_and_once_and_what_was_answered_holds() -> None:
    async def scenario() -> None:
        disks, told = await history()
        assert len(disks) > 40
        assert {each.state for _, _, each in told.outcomes if isinstance(each, AtomicOutcome)} == {"committed", "duplicate"}
        for batches, disk in enumerate(disks):
            async with living(copy_of(disk)) as house:
                await check_whole(house, told.by(batches))
                await repeated(house, told, told.by(batches))

    asyncio.run(scenario())


def test_the_same_history_on_leveldb_is_the_same_in_every_life(tmp_path: Path) -> None:
    async def scenario() -> None:
        open_store = store_opener(f"leveldb://{tmp_path / 'data'}")
        told = Told()
        async with living(None, store=open_store()) as house:
            await Client(house, told).run()
            await check_whole(house, told.by(0))
        for _ in range(2):
            async with living(None, store=open_store()) as house:
                await check_whole(house, told.by(0))
                await repeated(house, told, told.by(0))

    asyncio.run(scenario())


def _of_commits(disk: Disk) -> object:
    return [disk.tables[table] for table in (Table.JOURNAL, Table.ATOMIC_OUTCOME, Table.CHUNK)]


def test_a_crash_behind_any_batch_of_the_recovery_itself_changes_nothing() -> None:
    async def scenario() -> None:
        disks, told = await history()
        given_up = 0
        for batches, disk in enumerate(disks):
            survivor = copy_of(disk)
            store = BatchByBatch(survivor)
            async with living(survivor, store=store) as house:
                await house.dropped()
                crashes = [each for each in store.disks[1:] if _of_commits(each) != _of_commits(disk)]
            for crash in crashes:
                given_up += len(crash.tables[Table.ATOMIC_OUTCOME]) > len(disk.tables[Table.ATOMIC_OUTCOME])
                async with living(crash) as house:
                    await check_whole(house, told.by(batches))
        assert given_up > 20, "the branch that no commit named is given up by the recovery"

    asyncio.run(scenario())
