"""CONTRACT §5: what an atomic commit is answered and refused, what it meets meanwhile, and what its producers have published.

That it is on all its topics or on none, once, whatever happens before it and within it, is in test_at_random.py; what it is
refused with, in test_refusals.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from oncelog.errors import (
    BranchGone,
    ChunkReused,
    ExpectationsNotChecked,
    InvalidRequest,
    OffsetMismatch,
    SequenceReused,
    TopicDamaged,
    TransactionExists,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import ConsumeRequest
from oncelog_service.log.append.atomic import AtomicOnTopic, Staged
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from oncelog_service.topics.logs import Logs
from tests.atomic.house import BatchByBatch, House, Stalling, living, messages, refused
from tests.patience import PATIENCE
from tests.world.clock import ManualClock
from tests.world.disk import crashed
from tests.world.polls import decoded

# --- all or nothing, and unseen until then


async def test_data_that_was_still_being_written_at_the_abort_goes_too() -> None:
    store = Stalling(Disk())
    async with living(None, None, store, topics="a") as house:
        await house.begin("t")
        store.stall()
        calls = [asyncio.ensure_future(house.stage("t", "a", 0, messages("1")))]
        assert await asyncio.to_thread(store.entered.wait, PATIENCE)
        calls.append(asyncio.ensure_future(house.atomic.abort("t")))
        await asyncio.sleep(0.05)
        store.goes.set()
        await asyncio.gather(*calls)
        await house.dropped()
        assert house.rows(Table.CHUNK) == house.rows(Table.PAYLOAD) == 0


async def test_the_commits_of_a_group_are_in_one_order_on_every_topic_however_many_commit_at_once() -> None:
    topics, random = ("a", "b", "c"), Random(5)
    async with living(Disk()) as house:
        await house.create(*topics)

        async def client(number: int) -> None:
            for turn in range(6):
                name, chosen = f"{number}.{turn}", random.sample(topics, random.randint(1, 3))
                await house.commit(name, {topic: messages(name, name) for topic in chosen}, group="g")

        async def plain(number: int) -> None:
            for turn in range(12):
                await house.publish(topics[turn % 3], messages(f"plain {number} {turn}"))

        await asyncio.gather(*map(client, range(20)), *map(plain, range(4)))
        orders = []
        for topic in topics:
            shown = await house.shown(topic)
            atomic = [each for each in shown if not each.startswith("plain")]
            assert atomic[::2] == atomic[1::2]
            orders.append(atomic[::2])
            assert len(set(orders[-1])) == len(orders[-1])
        for one, other in pairwise((*orders, orders[0])):
            assert [each for each in one if each in other] == [each for each in other if each in one]
        assert len({name for order in orders for name in order}) == 120
        await house.verify(*topics)


# --- once, by its id


async def test_a_begin_and_a_commit_are_repeated_at_the_same_time_and_happen_once() -> None:
    disk = Disk()
    async with living(disk, topics="ab") as house:
        begun = await asyncio.gather(*(house.begin("t") for _ in range(5)))
        assert all(each == begun[0] for each in begun)
        await house.stage("t", "a", 0, messages("1"))
        parts = {"b": messages("2")}
        committed = await asyncio.gather(*(house.commit("t", parts) for _ in range(5)))
        one = await asyncio.gather(*(house.commit("u", {"a": messages("u")}, group="g") for _ in range(5)))
        assert all(each == committed[0] for each in committed)
        assert all(each == one[0] for each in one)
        assert await house.begin("t") == committed[0]
        after = crashed(disk)
    async with living(after) as house:
        assert await house.commit("t", parts) == await house.begin("t") == committed[0]
        assert await house.commit("u", {"a": messages("u")}, group="g") == one[0]
        assert (await house.shown("a"), await house.shown("b")) == (["1", "u"], ["2"])


async def test_an_id_belongs_to_the_group_that_began_it(house: House) -> None:
    await house.begin("t")
    for call in (house.begin("t", group="h"), house.commit("t", {"a": messages("1")}, group="h")):
        error = await refused(TransactionExists, call)
        assert error.definite
    await refused(InvalidRequest, house.begin("branch", group="h", of="t"))
    assert (await house.begin("branch", of="t")).of == "t"
    assert await house.state("t") == "in_progress"
    await house.commit("t", {"a": messages("1")}, group="g")
    await refused(TransactionExists, house.begin("t", group="h"))
    await refused(TransactionExists, house.commit("t", {"a": messages("1")}, group="h"))
    await refused(TransactionNotFound, house.commit("unknown"))


async def test_an_id_that_the_service_assigns_is_nobody_elses() -> None:
    clock = ManualClock()
    async with living(Disk(), clock) as house:
        await refused(InvalidRequest, house.begin(str(clock.now_ms() * 1_000_000 + 1)))
        await refused(InvalidRequest, house.commit("7", group="g"))
        assigned = [(await house.atomic.begin(None, "g", None, None)).id for _ in range(3)]
        assert len(set(assigned)) == 3
        assert await house.begin(assigned[0]) == await house.atomic.show(assigned[0])


# --- time


@pytest.mark.parametrize("step_ms", [-3_600_000, 1_000, 90_000_000])
async def test_a_transaction_has_its_whole_time_anew_when_the_service_is_back_whatever_the_clock_says(step_ms: int) -> None:
    disk, clock = Disk(), ManualClock()
    async with living(disk, clock, topics="a") as house:
        await house.begin("t", timeout_ms=1_000)
        await house.stage("t", "a", 0, messages("1"))
        after = crashed(disk)
    clock.ms += step_ms
    async with living(after, clock) as house:
        clock.seconds += 0.999
        await house.atomic.upkeep.once()
        assert await house.state("t") == "in_progress"
        clock.ms -= step_ms  # and set right again: neither earlier nor later
        await house.atomic.upkeep.once()
        assert await house.state("t") == "in_progress"
        clock.seconds += 0.001
        await house.atomic.upkeep.once()
        assert await house.state("t") == "timed_out"
        assert await house.shown("a") == []


async def test_a_round_leaves_alone_what_a_call_is_ending_and_gives_up_the_others(house: House) -> None:
    for name in ("t", "u"):
        await house.begin(name, timeout_ms=1_000)
        await house.stage(name, "a", 0, messages(name))
    async with _waiting(AtomicOnTopic, "ready", house.commit("t")) as waiting:
        house.clock.advance(1_000)
        await asyncio.wait_for(house.atomic.upkeep.once(), 5)
        assert [await house.state(name) for name in ("t", "u")] == ["in_progress", "timed_out"]
    assert waiting.result().state == "committed"


# --- chunks


async def test_a_chunk_is_stored_once_and_another_one_under_its_number_is_refused(house: House) -> None:
    await house.begin("t")
    await asyncio.gather(*(house.stage("t", "a", 0, messages("0", "1")) for _ in range(4)))
    await house.stage("t", "a", 1, messages("2"))
    for chunk, body in ((0, messages("0")), (1, messages("2", keys=[b"k"]))):
        assert (await refused(ChunkReused, house.stage("t", "a", chunk, body))).definite
    await refused(InvalidRequest, house.stage("t", "a", 3, messages("4")))
    await house.commit("t")
    assert await house.shown("a") == ["0", "1", "2"]


@pytest.mark.parametrize("late", ["t@a", "t@b", "branch@a", "branch@b"])
async def test_what_was_staged_before_the_commit_is_in_it_and_what_comes_meanwhile_is_in_it_or_refused(late: str) -> None:
    disk = Disk()
    async with living(disk, topics="ab") as house:
        await house.begin("t")
        await house.begin("branch", of="t")
        await house.stage("t", "a", 0, messages("1"))
        await house.stage("t", "b", 0, messages("1"))
        after = crashed(disk)
    async with living(after) as house:  # where nothing is in memory, so that the commit waits for the disk
        await house.topic("a")
        await house.topic("b")
        commit = asyncio.ensure_future(house.commit("t", branches=["branch"]))
        staged = 0
        number, topic = late.split("@")
        chunk = int(number == "t")
        while not commit.done():
            await asyncio.sleep(0)
            try:
                await house.stage(number, topic, chunk, messages("late"))
            except TransactionNotInProgress:
                break
            staged, chunk = staged + 1, chunk + 1
        await commit
        found = await house.shown("a") + await house.shown("b")
        assert found.count("late") == staged


# --- branches


async def test_a_branch_that_ends_while_its_rows_are_read_back_is_gone_and_its_topic_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch, house: House
) -> None:
    await house.begin("branch")
    await house.stage("branch", "a", 0, messages("branch"))
    await house.begin("t")
    opened = AtomicOnTopic.open

    async def overtaken(self: AtomicOnTopic, number: int) -> Staged:
        monkeypatch.setattr(AtomicOnTopic, "open", opened)
        await house.commit("u", group="g", branches=["branch"])
        return await opened(self, number)

    monkeypatch.setattr(AtomicOnTopic, "open", overtaken)
    await refused(BranchGone, house.commit("t", branches=["branch"]))
    assert await house.shown("a") == ["branch"]
    assert await house.state("t") == "in_progress"
    await house.verify("a")


async def test_a_commit_that_was_overtaken_is_not_refused_for_what_it_finds_then(
    monkeypatch: pytest.MonkeyPatch, house: House
) -> None:
    for name in ("t", "u"):
        await house.begin(name)
        await house.stage(name, "a", 0, messages(name))
    ready = AtomicOnTopic.ready

    async def overtaken(self: AtomicOnTopic, *_: Any) -> Any:
        monkeypatch.setattr(AtomicOnTopic, "ready", ready)
        await house.commit("u", branches=["t"])
        raise TopicDamaged("as it was read")

    monkeypatch.setattr(AtomicOnTopic, "ready", overtaken)
    assert (await house.commit("t")).of == "u"
    assert await house.shown("a") == ["u", "t"]


# --- a commit answers for what it carries itself, and for nothing else


@asynccontextmanager
async def _waiting(where: Any, name: str, call: Any) -> AsyncIterator[asyncio.Future[Any]]:
    """The call, stopped behind the first use of this method until the block ends."""
    reached, gate = asyncio.Event(), asyncio.Event()
    original = getattr(where, name)

    async def gated(*values: Any, **named: Any) -> Any:
        found = await original(*values, **named)
        if not reached.is_set():
            reached.set()
            await gate.wait()
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, name, gated)
        waiting = asyncio.ensure_future(call)
        await asyncio.wait([waiting, asyncio.ensure_future(reached.wait())], return_when=asyncio.FIRST_COMPLETED)
        yield waiting
        gate.set()
        await asyncio.wait([waiting])


async def test_what_a_commit_brings_is_nowhere_until_it_is_committed_and_then_lies_as_if_it_were_published(house: House) -> None:
    await house.publish("a", messages("0", producer="p", first=0))
    parts = {"a": messages("1", "2", producer="p", first=1, keys=[b"k", None]), "b": messages("3")}
    await house.begin("t")
    async with _waiting(AtomicOnTopic, "ready", house.commit("t", parts, group="g")) as waiting:
        await house.service.opening.writer.synced()
        assert [house.rows(table) for table in (Table.PAYLOAD, Table.CHUNK, Table.GROUP, Table.MESSAGE)] == [0, 0, 0, 1]
        assert await house.state("t") == "in_progress"
    committed = await waiting
    assert [house.rows(table) for table in (Table.PAYLOAD, Table.CHUNK, Table.GROUP, Table.MESSAGE)] == [0, 0, 0, 3]
    assert await house.shown("a") == ["0", "1", "2"]
    found = {name: await house.read(name) for name in "ab"}
    first = {
        topic.topic: (topic.messages, topic.first_offset, bytes.fromhex(str(topic.first_message_id)))
        for topic in committed.topics
    }
    assert first == {"a": (2, 1, found["a"][1].message_id), "b": (1, 0, found["b"][0].message_id)}
    again = await house.publish("a", parts["a"])
    assert [(each.status, each.message_id, each.offset) for each in again.receipts] == [
        ("duplicate", found["a"][1].message_id, 1)
    ]
    await house.verify("a", "b")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_commit_that_brings_everything_is_one_write_behind_which_all_of_it_is_there(begun: bool) -> None:
    store = BatchByBatch(Disk())
    async with living(None, store=store, topics="ab") as house:
        await house.publish("a", messages("0", producer="p", first=0))
        await house.commit("before", {"a": messages("1", producer="p", first=1)}, group="g")
        if begun:
            await house.begin("t")
        await house.service.opening.writer.synced()
        written = len(store.disks)
        parts = {"a": messages("2", "3", producer="p", first=2), "b": messages("4")}
        committed = await house.commit("t", parts, group="g", producer="loader", sequence_id=0)
        assert len(store.disks) == written + 1
    for disk, shown in ((store.disks[written - 1], [["0", "1"], []]), (store.disks[written], [["0", "1", "2", "3"], ["4"]])):
        async with living(crashed(disk)) as house:
            assert [await house.shown(name) for name in "ab"] == shown
            again = await house.commit("t", parts, group="g", producer="loader", sequence_id=0)
            assert again == committed if shown[1] else again.state == "committed"
            assert [await house.shown(name) for name in "ab"] == [["0", "1", "2", "3"], ["4"]]
            await house.verify("a", "b")


async def test_what_a_commit_brings_is_committed_though_its_topic_was_opened_anew_while_it_waited(house: House) -> None:
    parts = {"a": messages("0", producer="p", first=0), "b": messages("1", "2", producer="p", first=0)}
    await house.begin("t")
    async with _waiting(AtomicOnTopic, "ready", house.commit("t", parts, group="g")) as waiting:
        house.service.opening.topics.logs.drop(("default", "b"))  # as one whose lease was lost, and came back
    assert (await waiting).state == "committed"
    assert [await house.shown(name) for name in "ab"] == [["0"], ["1", "2"]]
    await house.verify("a", "b")


CARRIED: dict[str, dict[str, Any]] = {
    "messages": {"parts": {"a": messages("inline"), "b": messages("inline")}},
    "a branch": {"branches": ["third"]},
    "a number": {"producer": "loader", "sequence_id": 0},
    "each the other": {"branches": ["u"]},
}


@pytest.mark.parametrize("carried", CARRIED.values(), ids=CARRIED.keys())
@pytest.mark.parametrize("where", [(Logs, "open"), (AtomicOnTopic, "ready")], ids=["for a topic", "for its verdict"])
async def test_a_commit_overtaken_by_one_that_names_it_is_refused_if_it_carries_anything_and_nothing_of_that_is_there(
    where: tuple[Any, str], carried: dict[str, Any]
) -> None:
    """It was answered *committed* although its own messages were in no topic, its branches dropped, its number not taken."""
    async with living(topics="ab") as house:
        for name in ("t", "u", "third"):
            await house.begin(name)
            await house.stage(name, "a", 0, messages(name))
        async with _waiting(*where, house.commit("t", **carried)) as overtaken:
            assert (await house.commit("u", branches=["t"])).state == "committed"
        error = overtaken.exception()
        assert isinstance(error, TransactionNotInProgress), overtaken
        assert (error.definite, error.state) == (True, "committed")
        outcome = await house.atomic.show("t")
        assert (outcome.state, outcome.of, outcome.producer) == ("committed", "u", None)
        assert (await house.shown("a"), await house.shown("b")) == (["u", "t"], [])
        assert await house.state("third") == "in_progress"
        await house.dropped()
        assert house.rows(Table.CHUNK) == 1, "what it carried is gone; what the third one has staged is not"
        after = crashed(house.store.disk)  # type: ignore[attr-defined]
        await refused(TransactionNotInProgress, house.commit("t", **carried))
        assert await house.commit("t") == outcome
        await house.verify("a", "b")
    async with living(after) as house:
        await refused(TransactionNotInProgress, house.commit("t", **carried))
        assert await house.commit("t") == outcome, "it asks for nothing that is not there"
        assert (await house.shown("a"), await house.shown("b")) == (["u", "t"], [])


@pytest.mark.parametrize("where", [(AtomicOnTopic, "open"), (AtomicOnTopic, "ready")], ids=["open", "ready"])
async def test_a_commit_that_carries_nothing_is_answered_how_the_one_that_overtook_it_ended_it(
    where: tuple[Any, str],
) -> None:
    disk = Disk()
    async with living(disk, topics="a") as house:
        for name in ("t", "u"):
            await house.begin(name)
            await house.stage(name, "a", 0, messages(name))
        disk = crashed(disk)
    async with living(disk) as house:
        async with _waiting(*where, house.commit("t")) as overtaken:
            await house.commit("u", branches=["t"])
        assert (overtaken.result().state, overtaken.result().of) == ("committed", "u")
        assert await house.shown("a") == ["u", "t"]
        await house.verify("a")


# --- (producer, sequence id) of a commit


async def test_of_twins_that_commit_at_once_one_is_committed_and_the_others_are_duplicates_of_it(house: House) -> None:
    """Also one that was judged before the other was committed, and not copied yet."""
    loader = {"group": "g", "producer": "loader", "sequence_id": 0}
    for name in ("late", "staged"):
        await house.begin(name)
        await house.stage(name, "a", 0, messages("staged"))
    async with _waiting(AtomicOnTopic, "ready", house.commit("late", {"b": messages("inline")}, **loader)) as late:
        calls = [house.commit(name, {"b": messages("inline")}, **loader) for name in ("first", "second", "staged")]
        committed, *others = await asyncio.gather(*calls)
    assert committed.state == "committed"
    assert [(each.state, each.original) for each in (*others, late.result())] == [("duplicate", "first")] * 3
    assert (await house.shown("a"), await house.shown("b")) == ([], ["inline"])
    await house.dropped()
    assert house.rows(Table.CHUNK) == 0


# --- named producers inside


async def _published(house: House, *payloads: str) -> None:
    await house.publish("a", messages(*payloads, producer="p", first=0))


async def test_the_original_of_each_message_is_found_where_its_commit_has_put_it(house: House) -> None:
    await _published(house, "0", "1", "2", "3")
    await house.begin("t")
    for number, name in enumerate(("one", "two", "three")):
        await house.begin(name, of="t")
        first = 3 + 2 * number
        await house.stage(name, "a", 0, messages(str(first), str(first + 1), producer="p", first=first))
        await house.stage(name, "a", 1, messages(f"plain {number}"))
    await house.commit("t", branches=["one", "two", "three"])
    shown = ["0", "1", "2", "3", "4", "plain 0", "5", "6", "plain 1", "7", "8", "plain 2"]
    assert await house.shown("a") == shown
    log = await house.topic("a")
    for sequence_id in range(9):
        why = await log.producers.why("p", sequence_id, True)
        assert (why.verdict, why.offset) == ("duplicate", shown.index(str(sequence_id)))
    answer = await house.publish("a", messages("7", "8", "9", producer="p", first=7))
    assert [(each.status, each.offset, each.count) for each in answer.receipts] == [("duplicate", 9, 2), ("stored", 12, 1)]
    await refused(SequenceReused, house.publish("a", messages("x", producer="p", first=8)))
    await house.verify("a")


async def test_what_is_left_of_a_commit_says_everything_that_it_said_when_it_was_staged(house: House) -> None:
    said: dict[str, Any] = {"keys": [b"k", None, b"l"], "properties": [None, {"a": "1"}, {"b": "2"}], "ttls": [9, 8, None]}
    await house.begin("t")
    for producer in ("p", "q"):
        await house.publish("a", messages("0", producer=producer, first=0))
        await house.stage("t", "a", int(producer == "q"), messages("0", "1", "2", producer=producer, first=0, **said))
    await house.commit("t")
    page = await (await house.topic("a")).poll(ConsumeRequest(None), AS_ONCELOG)
    found, *_ = decoded(page)
    left = [("1", 1, None, {"a": "1"}, 8), ("2", 2, b"l", {"b": "2"}, None)]
    fields = ("producer", "sequenceId", "key", "properties", "ttl")
    told = [(each["payload"].decode(), *(each[name] for name in fields)) for each in found][2:]
    assert told == [(payload, producer, *rest) for producer in "pq" for payload, *rest in left]
    await house.dropped()
    assert house.rows(Table.CHUNK) == house.rows(Table.PAYLOAD) == 0, "what was staged was not copied from there"
    house.clock.advance(8_000)
    assert [each.payload for each in await house.read("a")] == [b"0", b"0", b"2", b"2"]


async def test_what_is_left_of_a_commit_holds_what_was_still_being_staged() -> None:
    store = Stalling(Disk())
    async with living(None, None, store, topics="a") as house:
        await house.begin("t")
        await _published(house, "0")
        store.stall()
        calls = [asyncio.ensure_future(house.stage("t", "a", 0, messages("0", "1", producer="p", first=0)))]
        assert await asyncio.to_thread(store.entered.wait, PATIENCE)
        calls.append(asyncio.ensure_future(house.commit("t")))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        store.goes.set()
        await asyncio.gather(*calls)
        assert await house.shown("a") == ["0", "1"]


async def test_what_is_staged_while_the_rest_is_held_in_memory_is_in_the_commit(house: House) -> None:
    await house.begin("t")
    await _published(house, "0")
    await house.stage("t", "a", 0, messages("0", "1", producer="p", first=0))
    async with _waiting(AtomicOnTopic, "ready", house.commit("t")):
        await house.stage("t", "a", 1, messages("2"))
    assert await house.shown("a") == ["0", "1", "2"]


async def test_the_same_message_published_and_committed_at_once_is_in_the_log_once(house: House) -> None:
    for turn in range(8):
        body = messages(f"{turn}", producer="p", first=turn)
        calls = [
            house.commit(f"t{turn}", {"a": body, "b": messages(f"{turn}")}, group="g"),
            house.publish("a", body),
            house.commit(f"u{turn}", {"a": body}, group="h"),
        ]
        await asyncio.gather(*(calls if turn % 2 else reversed(calls)))
    assert await house.shown("a") == await house.shown("b") == [str(turn) for turn in range(8)]
    await house.verify("a", "b")


async def test_where_nobody_deduplicates_a_commit_stores_every_message() -> None:
    async with living(Disk()) as house:
        await house.create("a", deduplication="false")
        for name in ("t", "u"):
            await house.commit(name, {"a": messages("0", "1", producer="p", first=0)}, group="g")
        assert await house.shown("a") == ["0", "1", "0", "1"]
        await house.service.opening.topics.changes.update("default", "a", {})
        assert (await house.commit("v", {"a": messages("1", "2", producer="p", first=1)}, group="g")).messages == 1
        assert await house.shown("a") == ["0", "1", "0", "1", "2"]


@pytest.mark.parametrize("how", ["gone", "fenced", "not checked"])
async def test_a_commit_that_was_made_before_is_a_duplicate_though_its_topic_would_not_take_it_now(how: str) -> None:
    numbered = {"group": "g", "producer": "p", "sequence_id": 1, "incarnation": "i"}
    async with living(topics="a", checked=True) as house:
        await (await house.topic("a")).producers.open("p", "nonce-1", "allow")
        parts = {"a": messages("1", producer="p", first=0, epoch=1, expected_offset=0)}
        await house.commit("t", parts, **numbered)
        if how == "gone":
            await house.delete("a")
        elif how == "fenced":
            await (await house.topic("a")).producers.open("p", "nonce-2", "allow")
        else:
            await house.service.opening.topics.changes.update("default", "a", {})
        assert (await house.commit("u", parts, **numbered)).state == "duplicate"


# --- what its messages expect; on one topic: test_staged.py


async def test_of_two_commits_that_expect_the_same_offsets_one_wins_on_both_topics(checked: House) -> None:
    for turn in range(5):
        names = [f"{turn}-{number}" for number in range(8)]
        calls: list[Awaitable[AtomicOutcome]] = []
        for name in names:
            parts = {topic: messages(name, expected_offset=turn) for topic in ("a", "b")}
            calls.append(checked.commit(name, parts, group="gh"[len(calls) % 2]))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        (winner,) = (name for name, answer in zip(names, answers, strict=True) if not isinstance(answer, BaseException))
        assert all(isinstance(each, OffsetMismatch) for each in answers if isinstance(each, BaseException))
        assert (await checked.shown("a"))[-1] == (await checked.shown("b"))[-1] == winner
    assert len(await checked.shown("a")) == len(await checked.shown("b")) == 5
    await checked.verify("a", "b")


async def test_expectations_behind_messages_that_the_topic_has_hold_at_the_places_that_are_left(checked: House) -> None:
    await checked.publish("a", messages("0", "1", keys=[b"k", b"k"], producer="p", first=0))
    await checked.begin("t")
    await checked.stage("t", "a", 0, messages("0", "1", keys=[b"k", b"k"], producer="p", first=0))
    await checked.stage("t", "a", 1, messages("2", producer="p", first=2, expected_offset=2, expected_key_offsets={"k": 1}))
    await checked.stage("t", "a", 2, messages("3", keys=[b"k"], producer="p", first=3))
    await checked.stage("t", "a", 3, messages("4", expected_offset=4, expected_key_offsets={"k": 3}))
    assert (await checked.commit("t")).messages == 3
    assert await checked.shown("a") == ["0", "1", "2", "3", "4"]
    part = messages("3", "5", keys=[b"k", None], producer="p", first=3, expected_offset=3)
    part.sequence_ids = [3, 5]
    behind = await refused(OffsetMismatch, checked.commit("behind", {"a": part}, group="g"))
    assert (behind.expected, behind.actual) == (4, 5)
    unknown = messages("3", "5", keys=[b"k", None], producer="p", expected_key_offsets={"k": 1})
    unknown.sequence_ids = [3, 5]
    await refused(SequenceReused, checked.commit("unknown", {"a": unknown}, group="g"))
    await checked.verify("a")


async def test_a_topic_that_begins_to_check_expectations_knows_the_keys_of_what_was_staged_before(house: House) -> None:
    await house.begin("t")
    part = messages("0", keys=[b"k"], expected_offset=0)
    await refused(ExpectationsNotChecked, house.stage("t", "a", 0, part))
    await house.stage("t", "a", 0, messages("0", keys=[b"k"]))
    await house.stage("t", "b", 0, messages("0"))
    await house.service.opening.topics.changes.update("default", "a", {"check.expected.offsets": "true"})
    await house.stage("t", "a", 1, messages("1", expected_key_offsets={"k": 0, "x": None}, expected_offset=1))
    await house.commit("t")
    assert (await house.shown("a"), await house.shown("b")) == (["0", "1"], ["0"])
    await house.verify("a", "b")


async def test_the_last_message_id_is_known_after_a_crash_also_of_a_branch_with_one_message_of_nobody() -> None:
    """It stands for one message, as a row of a publish does; its id is another."""
    disk = Disk()
    async with living(disk, topics="a", checked=True) as house:
        await house.begin("t")
        await house.stage("t", "a", 0, messages("0"))
        await house.commit("t")
        (newest,) = await house.read("a")
        disk = crashed(disk)
    async with living(disk) as house:
        await house.publish("a", messages("1", expected_last_message_id=newest.message_id))
        assert await house.shown("a") == ["0", "1"]
