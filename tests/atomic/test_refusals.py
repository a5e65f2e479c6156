"""CONTRACT §5.3: which refusals end a commit for good, which leave it in progress; nothing of it is on any topic either way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from oncelog.errors import (
    BranchGone,
    ExpectationsNotChecked,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    ProducerFenced,
    ProducerInTransaction,
    SequenceGap,
    SequenceReused,
    TopicDamaged,
    TopicNotFound,
    TransactionalMismatch,
    TransactionNotInProgress,
)
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from oncelog_service.storage.keys import generation_key, topic_key
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from oncelog_service.transactions.manager import TransactionManager
from tests.atomic.house import CHECKED, SEES_ALL, House, living, messages, refused
from tests.world.disk import crashed, flip

Fields = dict[str, Any]
"""Of the commit "t"."""
B = {"b": messages("b")}


class Row(NamedTuple):
    name: str
    before: Callable[[House], Awaitable[Fields]]
    error: type[OncelogError]
    reason: str | None
    """Why it has ended; None: it is in progress."""
    told: dict[str, Any]
    mend: Callable[[House], Awaitable[None]] | None = None
    """After which the same is committed."""


def of_p(*payloads: str, first: int, **fields: Any) -> PublishRequest:
    return messages(*payloads, producer="p", first=first, **fields)


async def _staged(house: House, *topics: str, name: str = "t", **fields: Any) -> Fields:
    """What the transaction has staged on these topics."""
    await house.begin(name, **fields)
    for topic in topics:
        await house.stage(name, topic, 0, messages(name))
    return {}


# --- what it carries


async def reused(house: House) -> Fields:
    await house.publish("a", of_p("0", "1", first=0))
    return {"parts": {**B, "a": of_p("other", "2", first=1)}}


async def fenced(house: House) -> Fields:
    producers = (await house.topic("a")).producers
    await producers.open("p", "nonce-1", "allow")
    old = of_p("0", first=0, epoch=1)
    await _staged(house, "b")
    await house.stage("t", "a", 0, old)
    await producers.open("p", "nonce-2", "allow")
    await _staged(house, name="late")
    await refused(ProducerFenced, house.stage("late", "a", 0, old))
    return {}


def gaps(*begins: int) -> Callable[[House], Awaitable[Fields]]:
    """Two branches that begin with these ids, where the topic has 0."""

    async def call(house: House) -> Fields:
        await (await house.topic("a")).producers.open("p", "nonce", "refuse")
        await house.publish("a", of_p("first", first=0))
        await _staged(house, "b")
        for name, first in zip(("one", "two"), begins, strict=True):
            await house.begin(name, of="t")
            await house.stage(name, "a", 0, of_p("first", first=first))
        return {"branches": ["one", "two"]}

    return call


async def gap_between_its_messages(house: House) -> Fields:
    """Were it committed, the message left out would be called a duplicate for ever."""
    await (await house.topic("a")).producers.open("p", "nonce", "refuse")
    await _staged(house, "b")
    left_out = messages("0", "2", producer="p", sequence_ids=[0, 2])
    await refused(SequenceGap, house.stage("t", "a", 0, left_out))
    return {"parts": {"a": left_out}}


def incarnations(first: str | None, then: str | None, sequence_id: int) -> Callable[[House], Awaitable[Fields]]:
    async def call(house: House) -> Fields:
        loader = {"group": "g", "producer": "loader"}
        await house.commit("c0", sequence_id=0, incarnation=first, **loader)
        return {"parts": B, "sequence_id": sequence_id, "incarnation": then, **loader}

    return call


# --- what it expects


def expects(wrong: str) -> Callable[[House], Awaitable[Fields]]:
    """Offsets of what it has staged, of what it carries, and of a branch; one is wrong."""

    async def call(house: House) -> Fields:
        off = {name: int(name == wrong) for name in ("own", "carried", "branch")}
        await _staged(house)
        await _staged(house, "b", name="branch", of="t")
        await house.stage("t", "a", 0, messages("0", expected_offset=off["own"]))
        await house.stage("branch", "a", 0, messages("2", expected_offset=2 + off["branch"]))
        return {"parts": {"a": messages("1", expected_offset=1 + off["carried"])}, "branches": ["branch"]}

    return call


async def last_id(house: House) -> Fields:
    await house.publish("a", messages("0"))
    return {"parts": {**B, "a": messages("x", expected_last_message_id=bytes(20))}}


async def last_id_in_its_midst(house: House) -> Fields:
    empty = messages("0", expected_last_message_id=bytes(20))
    await house.commit("first", {"a": empty}, group="g")
    (newest,) = await house.read("a")
    await house.commit("next", {"a": messages("1", expected_last_message_id=newest.message_id)}, group="g")
    *_, newest = await house.read("a")
    first, second = (messages("x", expected_last_message_id=newest.message_id) for _ in range(2))
    await _staged(house, "b")
    await house.stage("t", "a", 0, first)
    return {"parts": {"a": second}}


async def newest_of_a_key(house: House) -> Fields:
    await house.publish("a", messages("0", keys=[b"k"]))
    return {"parts": {**B, "a": messages("x", expected_key_offsets={"k": None})}}


async def not_checked_any_more(house: House) -> Fields:
    await _staged(house, "b")
    await house.stage("t", "a", 0, messages("2", expected_offset=0))
    await house.service.opening.topics.changes.update("default", "a", {})
    await _staged(house, name="late")
    await refused(ExpectationsNotChecked, house.stage("late", "a", 0, messages("2", expected_offset=0)))
    return {}


# --- topics that go


async def deleted(house: House) -> Fields:
    await _staged(house, "a", "b")
    await house.delete("a")
    return {}


async def created_again(house: House) -> Fields:
    await deleted(house)
    await house.create("a", **CHECKED)
    return {}


async def no_topic(house: House) -> Fields:
    return {"parts": {**B, "nowhere": messages("2")}}


async def no_topic_behind_its_begin(house: House) -> Fields:
    await _staged(house, "a")
    return await no_topic(house)


async def transactional_only(house: House) -> Fields:
    await house.create("only", transactional="only")
    await _staged(house, "b")
    await refused(TransactionalMismatch, house.stage("t", "only", 0, messages("1")))
    await refused(InvalidRequest, house.stage("t", "b", 1, PublishRequest([b"1"], write_pointer=5)))
    return {"parts": {"only": messages("1")}}


async def out_of_time(house: House) -> Fields:
    begun = await house.begin("t", timeout_ms=1_000)
    assert begun.expires_ms == house.clock.now_ms() + 1_000
    house.clock.advance(1_000)
    return {"parts": B}


# --- what may pass


def _manager(house: House) -> TransactionManager:
    assert isinstance(house.service.opening.transactions, TransactionManager)
    return house.service.opening.transactions


async def in_a_transaction(house: House) -> Fields:
    pointer = (await _manager(house).start(TransactionType.SHORT)).write_pointer
    await house.publish("a", of_p("0", first=0, write_pointer=pointer, keys=[b"k"]))
    return {"parts": {**B, "a": of_p("1", first=1)}}


async def its_transaction_commits(house: House) -> None:
    (open_,) = await _manager(house).list("in_progress", 0, 10)
    await _manager(house).commit(open_.write_pointer)


async def key_in_a_transaction(house: House) -> Fields:
    await in_a_transaction(house)
    return {"parts": {**B, "a": messages("1", keys=[b"k"], expected_key_offsets={"k": None})}}


async def its_transaction_aborts(house: House) -> None:
    (open_,) = await _manager(house).list("in_progress", 0, 10)
    await _manager(house).abort(open_.write_pointer)
    await (await house.topic("a")).settle(open_.write_pointer, False)


def _foreign(house: House) -> int:
    return house.clock.now_ms() * POINTERS_PER_MS + 5


async def held_by_a_foreign_transaction(house: House) -> Fields:
    """It was left out as a message that is there, also where the commit begins with one that is; and then it was rolled back."""
    await house.publish("a", of_p("0", first=0))
    await house.publish("a", of_p("1", first=1, write_pointer=_foreign(house)))
    return {"parts": {**B, "a": of_p("0", "1", "2", first=0)}}


async def the_foreign_one_aborts(house: House) -> None:
    await (await house.topic("a")).settling.end_foreign(_foreign(house), committed=False)


def branch(name: str) -> Callable[[House], Awaitable[Fields]]:
    async def call(house: House) -> Fields:
        await _staged(house, "a", "b")
        await house.begin("others", of="u")
        await house.begin("elsewhere", group="h")
        return {"branches": [name]}

    return call


def incarnation(first: str | None, then: str | None) -> dict[str, Any]:
    return {"incarnation": then, "current_incarnation": first}


def offset(expected: int) -> dict[str, Any]:
    return {"condition": "offset", "expected": expected, "actual": expected - 1, "topic": "default/a"}


FENCED = [("i", "j", 1), ("i", None, 0), ("i", None, 1), (None, "i", 0), (None, "i", 1)]
TABLE = [
    Row("a sequence id with another payload", reused, SequenceReused, "sequence_reused", {}),
    Row("an older incarnation's messages", fenced, ProducerFenced, "producer_fenced", {"epoch": 1, "current_epoch": 2}),
    Row("a gap within", gaps(1, 3), SequenceGap, "sequence_gap", {"expected": 2, "received": 3}),
    Row("a gap in a request", gap_between_its_messages, SequenceGap, "sequence_gap", {"expected": 1, "received": 2}),
    Row("a gap before", gaps(2, 3), SequenceGap, "sequence_gap", {"expected": 1, "received": 2}),
    Row("a gap behind a known one", gaps(0, 2), SequenceGap, "sequence_gap", {"expected": 1, "received": 2}),
    *[
        Row(f"{then} after {first}, id {id_}", incarnations(first, then, id_), ProducerFenced, "producer_fenced", told)
        for first, then, id_ in FENCED
        for told in [incarnation(first, then)]
    ],
    Row("an offset of its own", expects("own"), OffsetMismatch, "offset_mismatch", offset(1)),
    Row("an offset of what it carries", expects("carried"), OffsetMismatch, "offset_mismatch", offset(2)),
    Row("an offset of a branch", expects("branch"), OffsetMismatch, "offset_mismatch", offset(3)),
    Row("the last id", last_id, OffsetMismatch, "offset_mismatch", {"condition": "last_message_id", "expected": None}),
    Row("the last id in its midst", last_id_in_its_midst, InvalidRequest, "invalid_request", {}),
    Row("a key", newest_of_a_key, OffsetMismatch, "offset_mismatch", {"key": "k", "expected": None, "actual": 0}),
    Row("not checked", not_checked_any_more, ExpectationsNotChecked, "expectations_not_checked", {}),
    Row("a deleted topic", deleted, TopicNotFound, "topic_not_found", {}),
    Row("a topic created again", created_again, TopicNotFound, "topic_not_found", {}),
    Row("no topic", no_topic, TopicNotFound, "topic_not_found", {}),
    Row("no topic, begun", no_topic_behind_its_begin, TopicNotFound, "topic_not_found", {}),
    Row("transactional only", transactional_only, TransactionalMismatch, "transactional_mismatch", {}),
    Row("out of time", out_of_time, TransactionNotInProgress, "timed_out", {"state": "aborted", "reason": "timed_out"}),
    Row("a producer in a transaction", in_a_transaction, ProducerInTransaction, None, {}, its_transaction_commits),
    Row("a key in a transaction", key_in_a_transaction, KeyInTransaction, None, {}, its_transaction_aborts),
    Row("a foreign transaction", held_by_a_foreign_transaction, ProducerInTransaction, None, {}, the_foreign_one_aborts),
    *[Row(f"branch: {name}", branch(name), BranchGone, None, {"branch": name}) for name in ("never", "others", "elsewhere")],
]


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
async def test_a_commit_that_is_refused_is_on_no_topic_and_has_ended_or_may_be_repeated(row: Row) -> None:
    async with living(topics="ab", checked=True, foreign_write_pointers=True) as house:
        fields = {"group": "g", **await row.before(house)}
        present = {topic: await house.read(topic) for topic in ("a", "b") if row.before is not deleted or topic == "b"}
        first = await refused(row.error, house.commit("t", **fields))
        assert {name: getattr(first, name) for name in row.told} == row.told
        assert first.definite
        assert await house.state("t") == (row.reason or "in_progress")
        assert {topic: await house.read(topic) for topic in present} == present
        if row.mend is not None:
            await row.mend(house)
            assert (await house.commit("t", **fields)).state == "committed"
            assert await house.shown("b") == ["b"]
            assert (await house.read("a", SEES_ALL))[-1].payload in (b"1", b"2")
        if row.reason is None:
            return
        await house.atomic.upkeep.once()
        await house.dropped()
        await house.service.opening.retention().once()
        assert house.rows(Table.CHUNK) == 0
        assert house.rows(Table.PAYLOAD) == 0
        for topic in ("a", "b", "nowhere"):  # what it was refused for passes: a copy of it that comes late stores nothing
            if topic not in present:
                await house.create(topic)
            await house.publish(topic, messages("0", "1", "2"))
        disk = crashed(house.store.disk)  # type: ignore[attr-defined]
        again = await refused(row.error, house.commit("t", **fields))
    async with living(disk, house.clock, foreign_write_pointers=True) as house:
        later = await refused(row.error, house.commit("t", **fields))
        if row.error is not TransactionNotInProgress:
            assert first.to_problem() == again.to_problem() == later.to_problem()
        assert [each.payload for each in await house.read("b")][-3:] == [b"0", b"1", b"2"]


# --- topics that have lost something


DAMAGES = {"log": Table.MESSAGE, "chunk": Table.CHUNK, "topic": Table.TOPIC, "all that was staged": Table.PAYLOAD}


@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_commit_on_a_damaged_topic_is_on_no_topic_and_is_made_when_that_is_mended(kind: str) -> None:
    """Staged rows of a topic that are gone, all of them, were taken for nothing staged."""
    async with living(topics="ab") as house:
        await house.publish("a", messages("before"))
        await house.begin("t")
        await house.stage("t", "a", 0, messages("1", "2"))
        await house.stage("t", "b", 0, messages("1"))
        disk: Disk = crashed(house.store.disk)  # type: ignore[attr-defined]
    whole, rows = crashed(disk), disk.tables[DAMAGES[kind]]
    prefix = generation_key(topic_key("default", "a"), 1)
    if kind == "all that was staged":
        for table in (Table.PAYLOAD, Table.CHUNK):
            disk.tables[table] = {key: row for key, row in disk.tables[table].items() if not key.startswith(prefix)}
    elif kind == "log":
        flip(disk, Table.MESSAGE, min(key for key in rows if key.startswith(prefix)))
    else:
        key = topic_key("default", "a") if kind == "topic" else min(key for key in rows if key.startswith(prefix))
        rows[key] = b"{" + rows[key]
    async with living(disk) as house:
        await refused(TopicDamaged, house.commit("t", {"b": messages("more")}))
        assert await house.state("t") == "in_progress"
        assert await house.shown("b") == []
        if kind == "all that was staged":
            assert await house.shown("a") == ["before"]
            return
        for table in (Table.MESSAGE, Table.CHUNK, Table.TOPIC):
            disk.tables[table] |= whole.tables[table]
        await house.service.opening.retention().once()
        assert (await house.commit("t", {"b": messages("more")})).messages == 4
        assert (await house.shown("a"), await house.shown("b")) == (["before", "1", "2"], ["1", "more"])
        await house.verify("a", "b")
