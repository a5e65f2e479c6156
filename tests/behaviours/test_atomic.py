"""CONTRACT §5: an atomic commit is on all its topics or on none, once, and its outcome is durable and final."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from oncelog.errors import (
    BranchGone,
    ChunkReused,
    GroupProducerNotFound,
    InvalidRequest,
    ProducerFenced,
    ProducerInTransaction,
    SequenceGap,
    SequenceReused,
    TopicDamaged,
    TopicNotFound,
    TransactionalMismatch,
    TransactionExists,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.atomic import coordinator
from oncelog_service.log.append.atomic import Journaled
from oncelog_service.storage.keys import generation_key, topic_key
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from oncelog_service.topics import Topics
from oncelog_service.transactions.manager import TransactionManager
from tests.behaviours.atomics import CHECKED, House, copy_of, living, messages, refusal
from tests.service.house import flip
from tests.support import ManualClock


@pytest.fixture(autouse=True)
def _no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's rounds are run by the tests."""
    monkeypatch.setattr(coordinator, "_ROUND_SECONDS", 3_600)


# --- all or nothing, and unseen until then


def test_what_is_staged_is_seen_by_nobody_and_after_the_commit_by_everybody_on_every_topic() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.publish("a", messages("before"))
            await house.begin("t")
            await house.stage("t", "a", 0, messages("1", "2"))
            await house.stage("t", "a", 1, messages("3"))
            await house.stage("t", "b", 0, messages("1"))
            assert (await house.shown("a"), await house.shown("b")) == (["before"], [])
            outcome = await house.commit("t", {"b": messages("inline")})
            assert (await house.shown("a"), await house.shown("b")) == (["before", "1", "2", "3"], ["1", "inline"])
            assert (outcome.state, outcome.messages) == ("committed", 5)
            first = {each.topic: (each.messages, each.first_offset, each.first_message_id) for each in outcome.topics}
            assert {topic: place[:2] for topic, place in first.items()} == {"a": (3, 1), "b": (2, 0)}
            for topic, (_, offset, message_id) in first.items():
                assert message_id is not None
                assert [each.message_id for each in await house.read(topic) if each.offset == offset] == [bytes(message_id)]
            await house.publish("a", messages("behind"))
            assert await house.shown("a") == ["before", "1", "2", "3", "behind"]
            assert [each.payload.decode() for each in await house.read("a", limit=1)] == ["before", "1", "2", "3", "behind"]
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_an_aborted_transaction_is_never_seen_and_its_data_goes() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.begin("t")
            await house.stage("t", "a", 0, messages(*map(str, range(1_500))))
            await house.stage("t", "b", 0, messages("1"))
            aborted = await house.journal.abort("t")
            assert (aborted.state, aborted.reason) == ("aborted", "asked")
            assert await house.journal.abort("t") == aborted
            assert await house.shown("a") == await house.shown("b") == []
            await house.dropped()
            assert house.rows(Table.PAYLOAD) == house.rows(Table.CHUNK) == 0
            late = await refusal(house.commit("t"))
            assert isinstance(late, TransactionNotInProgress)
            assert late.definite
            assert (late.state, late.reason) == ("aborted", "asked")
            for call in (house.stage("t", "a", 1, messages("x")), house.begin("branch", of="t")):
                assert isinstance(await refusal(call), TransactionNotInProgress)

    asyncio.run(scenario())


def test_data_that_was_still_being_written_at_the_abort_goes_too() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.publish("a", messages("0", producer="p", first=0))
            refused = house.commit("t", {"a": messages("1"), "b": messages("1", "1", producer="p", epoch=7, first=0)}, group="g")
            assert isinstance(await refusal(refused), InvalidRequest)
            loader = {"group": "g", "producer": "loader", "sequence_id": 0}
            assert (await house.commit("first", {"a": messages("1")}, **loader)).state == "committed"
            assert (await house.commit("second", {"a": messages("1")}, **loader)).state == "duplicate"
            again = house.commit("third", {"a": messages("0", "new", producer="p", first=0)}, group="g")
            assert (await again).messages == 1
            await house.dropped()
            assert house.rows(Table.CHUNK) == 0
            assert house.rows(Table.PAYLOAD) == 2

    asyncio.run(scenario())


def test_a_commit_without_messages_is_committed_with_none() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            outcome = await house.commit("t", group="g")
            assert (outcome.state, outcome.messages, outcome.topics) == ("committed", 0, [])

    asyncio.run(scenario())


def test_the_commits_of_a_group_are_in_one_order_on_every_topic_however_many_commit_at_once() -> None:
    async def scenario() -> None:
        topics, random = ("a", "b", "c"), Random(5)
        async with living(Disk()) as house:
            await house.create(*topics)

            async def client(number: int) -> None:
                for turn in range(6):
                    name, chosen = f"{number}.{turn}", random.sample(topics, random.randint(1, 3))
                    if turn % 2:
                        await house.commit(name, {topic: messages(name, name) for topic in chosen}, group="g")
                        continue
                    await house.begin(name)
                    for topic in chosen:
                        await house.stage(name, topic, 0, messages(name, name))
                    await house.commit(name)

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

    asyncio.run(scenario())


# --- once, by its id


def test_a_begin_and_a_commit_are_repeated_at_the_same_time_and_happen_once() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b")
            begun = await asyncio.gather(*(house.begin("t") for _ in range(5)))
            assert all(each == begun[0] for each in begun)
            await house.stage("t", "a", 0, messages("1"))
            parts = {"b": messages("2")}
            committed = await asyncio.gather(*(house.commit("t", parts) for _ in range(5)))
            one = await asyncio.gather(*(house.commit("u", {"a": messages("u")}, group="g") for _ in range(5)))
            assert all(each == committed[0] for each in committed)
            assert all(each == one[0] for each in one)
            assert await house.begin("t") == committed[0]
            after = copy_of(disk)
        async with living(after) as house:
            assert await house.commit("t", parts) == await house.begin("t") == committed[0]
            assert await house.commit("u", {"a": messages("u")}, group="g") == one[0]
            assert (await house.shown("a"), await house.shown("b")) == (["1", "u"], ["2"])

    asyncio.run(scenario())


def test_an_id_belongs_to_the_group_that_began_it() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a")
            await house.begin("t")
            for call in (house.begin("t", group="h"), house.commit("t", {"a": messages("1")}, group="h")):
                error = await refusal(call)
                assert isinstance(error, TransactionExists)
                assert error.definite
            assert (await house.journal.show("t")).state == "in_progress"
            await house.commit("t", {"a": messages("1")}, group="g")
            assert isinstance(await refusal(house.begin("t", group="h")), TransactionExists)
            assert isinstance(await refusal(house.commit("t", {"a": messages("1")}, group="h")), TransactionExists)
            assert isinstance(await refusal(house.commit("unknown")), TransactionNotFound)

    asyncio.run(scenario())


def test_a_branch_of_a_transaction_is_of_its_group() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.begin("t")
            assert isinstance(await refusal(house.begin("b", group="h", of="t")), InvalidRequest)
            assert isinstance(await refusal(house.journal.show("b")), TransactionNotFound)
            assert (await house.begin("b", of="t")).of == "t"

    asyncio.run(scenario())


def test_an_id_that_the_service_assigns_is_nobody_elses() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with living(Disk(), clock) as house:
            assert isinstance(await refusal(house.begin(str(clock.now_ms() * 1_000_000 + 1))), InvalidRequest)
            assert isinstance(await refusal(house.commit("7", group="g")), InvalidRequest)
            assigned = [(await house.journal.begin(None, "g", None, None)).id for _ in range(3)]
            assert len(set(assigned)) == 3
            assert await house.begin(assigned[0]) == await house.journal.show(assigned[0])

    asyncio.run(scenario())


# --- time


def test_a_transaction_out_of_time_is_aborted_and_its_late_commit_is_refused_with_state_and_reason() -> None:
    async def scenario() -> None:
        disk, clock = Disk(), ManualClock()
        async with living(disk, clock) as house:
            await house.create("a")
            for name in ("by-a-round", "by-its-commit"):
                begun = await house.begin(name, timeout_ms=1_000)
                assert begun.expires_ms == clock.now_ms() + 1_000
                await house.stage(name, "a", 0, messages(name, producer="p", first=0))
            clock.advance(999)
            await house.journal.once()
            assert (await house.journal.show("by-a-round")).state == "in_progress"
            clock.advance(1)
            late = await refusal(house.commit("by-its-commit"))
            assert isinstance(late, TransactionNotInProgress)
            assert (late.state, late.reason, late.definite) == ("aborted", "timed_out", True)
            await house.journal.once()
            assert (await house.journal.show("by-a-round")).reason == "timed_out"
            await house.dropped()
            assert house.rows(Table.PAYLOAD) == house.rows(Table.CHUNK) == 0
            after = copy_of(disk)
        async with living(after, clock) as house:
            again = await refusal(house.commit("by-a-round"))
            assert isinstance(again, TransactionNotInProgress)
            assert (again.state, again.reason) == ("aborted", "timed_out")
            assert await house.shown("a") == []
            await house.publish("a", messages("0", "1", producer="p", first=0))
            assert await house.shown("a") == ["0", "1"]

    asyncio.run(scenario())


@pytest.mark.parametrize("step_ms", [-3_600_000, 1_000, 90_000_000])
def test_a_transaction_has_its_whole_time_anew_when_the_service_is_back_whatever_the_clock_says(step_ms: int) -> None:
    async def scenario() -> None:
        disk, clock = Disk(), ManualClock()
        async with living(disk, clock) as house:
            await house.create("a")
            await house.begin("t", timeout_ms=1_000)
            await house.stage("t", "a", 0, messages("1"))
            after = copy_of(disk)
        clock.ms += step_ms
        async with living(after, clock) as house:
            clock.seconds += 0.999
            await house.journal.once()
            assert (await house.journal.show("t")).state == "in_progress"
            clock.ms -= step_ms  # and set right again: neither earlier nor later
            await house.journal.once()
            assert (await house.journal.show("t")).state == "in_progress"
            clock.seconds += 0.001
            await house.journal.once()
            assert (await house.journal.show("t")).reason == "timed_out"
            assert await house.shown("a") == []

    asyncio.run(scenario())


# --- chunks


def test_a_repeated_chunk_is_stored_once_and_another_one_under_its_number_is_refused() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a")
            await house.begin("t")
            await asyncio.gather(*(house.stage("t", "a", 0, messages("0", "1")) for _ in range(4)))
            await house.stage("t", "a", 1, messages("2"))
            await house.stage("t", "a", 0, messages("0", "1"))
            for chunk, body in ((0, messages("0")), (1, messages("2", keys=[b"k"]))):
                error = await refusal(house.stage("t", "a", chunk, body))
                assert isinstance(error, ChunkReused)
                assert error.definite
            assert isinstance(await refusal(house.stage("t", "a", 3, messages("4"))), InvalidRequest)
            after = copy_of(disk)
        async with living(after) as house:
            await house.stage("t", "a", 1, messages("2"))
            assert isinstance(await refusal(house.stage("t", "a", 1, messages("x"))), ChunkReused)
            await house.stage("t", "a", 2, messages("3"))
            assert (await house.commit("t")).messages == 4
            assert await house.shown("a") == ["0", "1", "2", "3"]
            assert house.rows(Table.CHUNK) == 0

    asyncio.run(scenario())


def test_what_was_staged_before_the_commit_was_asked_for_is_in_it_and_what_comes_meanwhile_is_in_it_or_refused() -> None:
    async def scenario(late: str) -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b")
            await house.begin("t")
            await house.begin("branch", of="t")
            await house.stage("t", "a", 0, messages("1"))
            await house.stage("t", "b", 0, messages("1"))
            after = copy_of(disk)
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

    for late in ("t@a", "t@b", "branch@a", "branch@b"):
        asyncio.run(scenario(late))


def test_a_chunk_is_the_same_whatever_order_its_properties_come_in_and_whether_empty_columns_are_there() -> None:
    """Whoever repeats it may have built it anew, or speak JSON this time."""

    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", **CHECKED)
            await house.begin("t")
            expected: dict[str, int | None] = {"k": None, "l": None}
            await house.stage("t", "a", 0, messages("0", properties=[{"x": "1", "y": "2"}], expected_key_offsets=expected))
            again = {"properties": [{"y": "2", "x": "1"}], "expected_key_offsets": dict(reversed(expected.items()))}
            await house.stage("t", "a", 0, messages("0", keys=[None], ttls=[None], **again))
            other = messages("0", properties=[{"x": "2", "y": "1"}], expected_key_offsets=expected)
            assert isinstance(await refusal(house.stage("t", "a", 0, other)), ChunkReused)
            await house.stage("t", "a", 1, messages("1"))
            await house.stage("t", "a", 1, messages("1", properties=[{}], ttls=[None]))
            assert (await house.commit("t")).messages == 2

    asyncio.run(scenario())


def test_of_two_contents_for_one_chunk_at_the_same_time_one_is_staged() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a")
            await house.begin("t")
            calls = [house.stage("t", "a", 0, messages(payload)) for payload in "xyxy"]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in answers] == [type(None), ChunkReused, type(None), ChunkReused]
            await house.commit("t")
            assert await house.shown("a") == ["x"]

    asyncio.run(scenario())


# --- branches


def test_the_order_of_the_names_is_the_order_of_the_messages_and_unnamed_branches_are_dropped() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.begin("t")
            for name in ("b1", "b2", "b3", "b4"):
                await house.begin(name, of="t")
                for topic in ("a", "b") if name != "b2" else ("b",):
                    await house.stage(name, topic, 0, messages(f"{name}.0"))
                    await house.stage(name, topic, 1, messages(f"{name}.1"))
            await house.stage("t", "a", 0, messages("own"))
            outcome = await house.commit("t", {"a": messages("inline")}, branches=["b3", "b2", "b1"])
            assert (outcome.branches, outcome.messages) == (["b3", "b2", "b1"], 12)
            assert await house.shown("a") == ["own", "inline", "b3.0", "b3.1", "b1.0", "b1.1"]
            assert await house.shown("b") == ["b3.0", "b3.1", "b2.0", "b2.1", "b1.0", "b1.1"]
            assert [(await house.journal.show(name)).state for name in ("b1", "b2", "b3")] == ["committed"] * 3
            assert (await house.journal.show("b1")).of == "t"
            await house.journal.once()
            dropped = await house.journal.show("b4")
            assert (dropped.state, dropped.reason) == ("aborted", "not_named")
            await house.dropped()
            assert house.rows(Table.CHUNK) == 0
            assert house.rows(Table.PAYLOAD) == 12
            assert isinstance(await refusal(house.stage("b4", "a", 2, messages("late"))), TransactionNotInProgress)
            assert isinstance(await refusal(house.begin("b5", of="t")), TransactionNotInProgress)
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_a_branch_that_is_gone_refuses_the_commit_and_leaves_the_transaction_usable() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.begin("t")
            await house.stage("t", "b", 0, messages("own"))
            for name, of, group in (("gone", "t", "g"), ("here", "t", "g"), ("others", "u", "g"), ("elsewhere", None, "h")):
                await house.begin(name, of=of, group=group)
                await house.stage(name, "a", 0, messages(name))
            await house.journal.abort("gone")
            for name in ("gone", "never", "others", "elsewhere"):
                error = await refusal(house.commit("t", {"a": messages("inline")}, branches=["here", name]))
                assert isinstance(error, BranchGone)
                assert (error.definite, error.branch) == (True, name)
                assert (await house.journal.show("t")).state == "in_progress"
                assert await house.shown("a") == []
            await house.begin("gone.2", of="t")
            await house.stage("gone.2", "a", 0, messages("gone"))
            await house.commit("t", {"a": messages("inline")}, branches=["here", "gone.2"])
            assert (await house.shown("a"), await house.shown("b")) == (["inline", "here", "gone"], ["own"])

    asyncio.run(scenario())


def test_a_branch_is_not_committed_by_itself() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a")
            await house.begin("branch", of="t")
            await house.stage("branch", "a", 0, messages("1"))
            assert isinstance(await refusal(house.commit("branch")), InvalidRequest)
            await house.begin("t")
            await house.commit("t", branches=["branch"])
            assert await house.shown("a") == ["1"]

    asyncio.run(scenario())


def test_of_two_transactions_that_name_one_branch_one_gets_it() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.begin("branch")
            await house.stage("branch", "a", 0, messages("branch"))
            for name in ("t", "u"):
                await house.begin(name)
                await house.stage(name, "b", 0, messages(name))
            calls = [house.commit(name, branches=["branch"]) for name in ("t", "u")]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            lost = [each for each in answers if isinstance(each, BaseException)]
            assert [type(each) for each in lost] == [BranchGone]
            assert await house.shown("a") == ["branch"]
            loser = "u" if answers[1] in lost else "t"
            assert (await house.journal.show(loser)).state == "in_progress"
            await house.commit(loser)
            assert sorted(await house.shown("b")) == ["t", "u"]

    asyncio.run(scenario())


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


CARRIED: dict[str, dict[str, Any]] = {
    "messages": {"parts": {"a": messages("inline"), "b": messages("inline")}},
    "a branch": {"branches": ["third"]},
    "a number": {"producer": "loader", "sequence_id": 0},
    "each the other": {"branches": ["u"]},
}


@pytest.mark.parametrize("carried", CARRIED.values(), ids=CARRIED.keys())
@pytest.mark.parametrize("where", [(Topics, "open"), (Journaled, "ready")], ids=["for a topic", "for its verdict"])
def test_a_commit_overtaken_by_one_that_names_it_is_refused_if_it_carries_anything_and_nothing_of_that_is_there(
    where: tuple[Any, str], carried: dict[str, Any]
) -> None:
    """It was answered *committed* although its own messages were in no topic, its branches dropped, its number not taken."""

    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            for name in ("t", "u", "third"):
                await house.begin(name)
                await house.stage(name, "a", 0, messages(name))
            async with _waiting(*where, house.commit("t", **carried)) as overtaken:
                assert (await house.commit("u", branches=["t"])).state == "committed"
            error = overtaken.exception()
            assert isinstance(error, TransactionNotInProgress), overtaken
            assert (error.definite, error.state) == (True, "committed")
            outcome = await house.journal.show("t")
            assert (outcome.state, outcome.of, outcome.producer) == ("committed", "u", None)
            assert (await house.shown("a"), await house.shown("b")) == (["u", "t"], [])
            assert (await house.journal.show("third")).state == "in_progress"
            await house.dropped()
            assert house.rows(Table.CHUNK) == 1, "what it carried is gone; what the third one has staged is not"
            after = copy_of(house.store.disk)  # type: ignore[attr-defined]
            assert isinstance(await refusal(house.commit("t", **carried)), TransactionNotInProgress)
            assert await house.commit("t") == outcome
            await house.verify("a", "b")
        async with living(after) as house:
            assert isinstance(await refusal(house.commit("t", **carried)), TransactionNotInProgress)
            assert await house.commit("t") == outcome, "it asks for nothing that is not there"
            assert (await house.shown("a"), await house.shown("b")) == (["u", "t"], [])

    asyncio.run(scenario())


@pytest.mark.parametrize("where", [(Journaled, "open"), (Journaled, "ready")], ids=["open", "ready"])
def test_a_commit_that_carries_nothing_is_answered_what_became_of_it_by_the_one_that_overtook_it(where: tuple[Any, str]) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a")
            for name in ("t", "u"):
                await house.begin(name)
                await house.stage(name, "a", 0, messages(name))
            disk = copy_of(disk)
        async with living(disk) as house:
            async with _waiting(*where, house.commit("t")) as overtaken:
                await house.commit("u", branches=["t"])
            assert (overtaken.result().state, overtaken.result().of) == ("committed", "u")
            assert await house.shown("a") == ["u", "t"]
            await house.verify("a")

    asyncio.run(scenario())


OTHERS: dict[str, dict[str, Any]] = {
    "other payload": {"parts": {"a": messages("x", keys=[b"k"]), "b": messages("2")}},
    "other key": {"parts": {"a": messages("1", keys=[b"l"]), "b": messages("2")}},
    "another producer": {"parts": {"a": messages("1", keys=[b"k"], producer="q", first=0), "b": messages("2")}},
    "a part less": {"parts": {"a": messages("1", keys=[b"k"])}},
    "a part more": {"parts": {"a": messages("1", keys=[b"k"]), "b": messages("2"), "c": messages("3")}},
    "another topic": {"parts": {"c": messages("1", keys=[b"k"]), "b": messages("2")}},
    "another branch": {"branches": ["other"]},
    "no branch": {"branches": []},
    "another number": {"sequence_id": 5},
    "another incarnation": {"incarnation": "j"},
    "another checksum": {"checksum": "d"},
}


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("duplicate", [False, True], ids=["committed", "duplicate"])
def test_another_commit_under_the_id_of_one_that_has_ended_is_refused_also_after_a_restart(
    duplicate: bool, changed: dict[str, Any]
) -> None:
    """It was answered *committed*, or *duplicate*, although it was another one."""
    numbered = {"producer": "loader", "sequence_id": 4, "incarnation": "i", "checksum": "c"}
    asked: dict[str, Any] = {
        "group": "g",
        "parts": {"a": messages("1", keys=[b"k"]), "b": messages("2")},
        "branches": ["branch"],
        **numbered,
    }

    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b", "c")
            if duplicate:
                await house.commit("first", group="g", **numbered)
            await house.begin("branch")
            await house.begin("other")
            outcome = await house.commit("t", **asked)
            assert outcome.state == ("duplicate" if duplicate else "committed")
            before = [await house.shown(topic) for topic in "abc"]
            disk = copy_of(disk)
        for _ in range(2):
            async with living(disk) as house:
                error = await refusal(house.commit("t", **{**asked, **changed}))
                assert isinstance(error, TransactionNotInProgress)
                assert (error.definite, error.state, error.transaction) == (True, outcome.state, "t")
                assert await house.commit("t", **asked) == outcome
                assert await house.commit("t") == outcome
                assert [await house.shown(topic) for topic in "abc"] == before
                disk = copy_of(disk)

    asyncio.run(scenario())


def test_the_same_messages_under_new_numbers_and_expectations_are_the_same_commit() -> None:
    """Whoever comes again under an id of its own has opened its producers anew, and read the end of the log anew."""

    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", **CHECKED)
            first = messages("1", producer="p", first=0, expected_offset=0)
            outcome = await house.commit("t", {"a": first}, group="g")
            again = messages("1", producer="p", first=1, expected_offset=1)
            assert await house.commit("t", {"a": again}, group="g") == outcome
            assert await house.shown("a") == ["1"]

    asyncio.run(scenario())


def test_what_a_commit_carried_that_was_refused_and_is_in_progress_as_before_is_no_part_of_it() -> None:
    """Its messages stayed staged, and appeared with the next commit under its id, or with one that named it."""

    async def scenario(named: bool) -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.begin("t")
            await house.stage("t", "a", 0, messages("staged"))
            refused = house.commit("t", {"a": messages("refused"), "b": messages("refused")}, branches=["gone"])
            assert isinstance(await refusal(refused), BranchGone)
            if named:
                await house.commit("u", {"b": messages("next")}, group="g", branches=["t"])
            else:
                await house.commit("t", {"b": messages("next")})
            assert (await house.shown("a"), await house.shown("b")) == (["staged"], ["next"])
            await house.dropped()
            assert house.rows(Table.CHUNK) == 0
            await house.verify("a", "b")

    for named in (False, True):
        asyncio.run(scenario(named))


@pytest.mark.parametrize("delay", range(0, 12, 2))
def test_a_transaction_is_committed_by_itself_or_as_a_branch_and_never_both(delay: int) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b")
            await house.begin("t")
            await house.begin("u")
            await house.stage("t", "a", 0, messages("t"))
            await house.stage("u", "b", 0, messages("u"))
            after = copy_of(disk)
        async with living(after) as house:
            alone = asyncio.ensure_future(house.commit("t", {"b": messages("inline")}))
            for _ in range(delay):
                await asyncio.sleep(0)
            whole, answer = await asyncio.gather(house.commit("u", branches=["t"]), alone, return_exceptions=True)
            assert isinstance(whole, BranchGone) or not isinstance(whole, BaseException), whole
            if isinstance(whole, BranchGone):
                assert not isinstance(answer, BaseException), answer
            else:
                # Whoever comes late is told what has become of it.
                assert not isinstance(answer, BaseException) or isinstance(answer, TransactionNotInProgress | BranchGone), answer
            assert await house.shown("a") == ["t"]
            await house.verify("a", "b")

    asyncio.run(scenario())


# --- (producer, sequence id) of a commit


def test_a_commit_that_was_made_under_another_id_is_a_duplicate_that_answers_the_original() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a")
            loader = {"group": "g", "producer": "loader", "incarnation": "i"}
            await house.commit("c0", {"a": messages("0")}, sequence_id=0, checksum="zero", **loader)
            await house.commit("c4", {"a": messages("4", "4")}, sequence_id=4, checksum="four", **loader)
            after = copy_of(disk)
        async with living(after) as house:
            twin = await house.commit("c4-again", {"a": messages("4", "4")}, sequence_id=4, checksum="mine", **loader)
            assert (twin.state, twin.original, twin.messages, twin.checksum) == ("duplicate", "c4", 2, "four")
            lower = await house.commit("c3", {"a": messages("3")}, sequence_id=3, **loader)
            assert (lower.state, lower.original, lower.messages) == ("duplicate", None, None)
            assert twin.committed
            assert await house.journal.show("c4-again") == twin
            assert await house.commit("c4-again", {"a": messages("4", "4")}, sequence_id=4, checksum="mine", **loader) == twin
            other = house.commit("c5", {"a": messages("5")}, group="g", producer="loader", incarnation="j", sequence_id=5)
            error = await refusal(other)
            assert isinstance(error, ProducerFenced)
            assert (error.definite, error.incarnation, error.current_incarnation) == (True, "j", "i")
            assert (await house.journal.show("c5")).reason == "producer_fenced"
            known = await house.journal.producer("g", "loader")
            assert (known.sequence_id, known.incarnation, known.transaction, known.messages) == (4, "i", "c4", 2)
            assert await house.shown("a") == ["0", "4", "4"]
            elsewhere = await house.commit("h", {"a": messages("h")}, group="h", producer="loader", sequence_id=0)
            assert elsewhere.state == "committed"
            await house.journal.forget_producer("g", "loader")
            assert isinstance(await refusal(house.journal.producer("g", "loader")), GroupProducerNotFound)
            anew = await house.commit("c6", {"a": messages("6")}, group="g", producer="loader", incarnation="j", sequence_id=0)
            assert anew.state == "committed"

    asyncio.run(scenario())


@pytest.mark.parametrize(("first", "then"), [("i", None), (None, "i")])
def test_no_incarnation_is_another_one_than_any(first: str | None, then: str | None) -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a")
            loader = {"group": "g", "producer": "loader"}
            await house.commit("c0", {"a": messages("0")}, sequence_id=0, incarnation=first, **loader)
            for sequence_id in (0, 1):
                other = house.commit(f"d{sequence_id}", {"a": messages("d")}, sequence_id=sequence_id, incarnation=then, **loader)
                error = await refusal(other)
                assert isinstance(error, ProducerFenced)
                assert (error.incarnation, error.current_incarnation) == (then, first)
            assert await house.shown("a") == ["0"]

    asyncio.run(scenario())


def test_of_twins_that_commit_at_once_one_is_committed_and_the_others_are_duplicates_of_it() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            names = [f"twin-{number}" for number in range(6)]
            for name in names[:3]:
                await house.begin(name)
                await house.stage(name, "a", 0, messages("staged"))
            loader = {"group": "g", "producer": "loader", "sequence_id": 0}
            answers = await asyncio.gather(*(house.commit(name, {"b": messages("inline")}, **loader) for name in names))
            (committed,) = (each for each in answers if each.state == "committed")
            assert all(each.original == committed.id for each in answers if each is not committed)
            assert {each.state for each in answers if each is not committed} == {"duplicate"}
            assert await house.shown("b") == ["inline"]
            assert len(await house.shown("a")) <= 1
            await house.dropped()
            assert house.rows(Table.CHUNK) == 0

    asyncio.run(scenario())


# --- named producers inside


async def _published(house: House, *payloads: str) -> None:
    await house.publish("a", messages(*payloads, producer="p", first=0))


def test_messages_that_a_topic_has_are_left_out_of_a_commit() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await house.create("a", "b")
            await _published(house, "0", "1", "2", "3")
            every = await house.commit("all", {"a": messages("1", "2", producer="p", first=1), "b": messages("all")}, group="g")
            assert every.messages == 1
            prefix = await house.commit("prefix", {"a": messages("3", "4", producer="p", first=3)}, group="g")
            assert prefix.messages == 1
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
                assert why.verdict == "duplicate"
                assert why.offset == shown.index(str(sequence_id)), f"the original of {sequence_id} is not found"
            answer = await house.publish("a", messages("7", "8", "9", producer="p", first=7))
            assert (answer.receipts[0].status, answer.receipts[0].offset) == ("duplicate", shown.index("7"))
            assert answer.receipts[-1].status == "stored"
            assert isinstance(await refusal(house.publish("a", messages("x", producer="p", first=8))), SequenceReused)
            await house.verify("a", "b")
            await house.dropped()
            assert house.rows(Table.CHUNK) == 0
            after = copy_of(disk)
        async with living(after) as house:
            assert await house.shown("a") == [*shown, "9"]
            assert (await house.publish("a", messages("8", "9", producer="p", first=8))).receipts[0].status == "duplicate"
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_a_sequence_id_with_another_payload_aborts_the_commit_on_every_topic() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await _published(house, "0", "1")
            parts = {"b": messages("b"), "a": messages("other", "2", producer="p", first=1)}
            for _ in range(2):
                error = await refusal(house.commit("t", parts, group="g"))
                assert isinstance(error, SequenceReused)
                assert error.definite
            assert (await house.journal.show("t")).reason == "sequence_reused"
            assert (await house.shown("a"), await house.shown("b")) == (["0", "1"], [])
            await house.publish("a", messages("2", producer="p", first=2))

    asyncio.run(scenario())


def test_a_producer_that_was_opened_again_fences_what_its_older_incarnation_staged() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            producers = (await house.topic("a")).producers
            old = await producers.open("p", "nonce-1", "allow")
            await house.begin("t")
            await house.stage("t", "a", 0, messages("0", producer="p", epoch=old.epoch, first=0))
            await house.stage("t", "b", 0, messages("0"))
            await producers.open("p", "nonce-2", "allow")
            error = await refusal(house.commit("t"))
            assert isinstance(error, ProducerFenced)
            assert (error.epoch, error.current_epoch) == (old.epoch, 2)
            assert isinstance(await refusal(house.commit("t")), ProducerFenced)
            assert await house.shown("a") == await house.shown("b") == []
            await house.begin("u")
            late = house.stage("u", "a", 0, messages("0", producer="p", epoch=old.epoch, first=0))
            assert isinstance(await refusal(late), ProducerFenced)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("begins", "told"),
    [((1, 3), (2, 3)), ((2, 3), (1, 2)), ((0, 2), (1, 2))],
    ids=["within", "before", "behind one that is known"],
)
def test_a_producer_that_refuses_gaps_refuses_those_of_a_commit(begins: tuple[int, int], told: tuple[int, int]) -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await (await house.topic("a")).producers.open("p", "nonce", "refuse")
            await house.publish("a", messages("first", producer="p", first=0))
            await house.begin("t")
            for name, first in zip(("one", "two"), begins, strict=True):
                await house.begin(name, of="t")
                await house.stage(name, "a", 0, messages("first", producer="p", first=first))
            await house.stage("t", "b", 0, messages("b"))
            error = await refusal(house.commit("t", branches=["one", "two"]))
            assert isinstance(error, SequenceGap)
            assert (error.expected, error.received) == told
            assert (await house.shown("a"), await house.shown("b")) == (["first"], [])

    asyncio.run(scenario())


def test_sequence_ids_that_do_not_rise_from_branch_to_branch_are_refused() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a")
            await house.begin("t")
            for name, first in (("one", 4), ("two", 3)):
                await house.begin(name, of="t")
                await house.stage(name, "a", 0, messages("x", producer="p", first=first))
            assert isinstance(await refusal(house.commit("t", branches=["one", "two"])), InvalidRequest)
            assert (await house.journal.show("t")).state == "aborted"
            assert await house.shown("a") == []

    asyncio.run(scenario())


def test_a_producer_with_messages_in_an_open_write_pointer_refuses_the_commit_until_that_has_ended() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            manager = house.service.transactions
            assert isinstance(manager, TransactionManager)
            transaction: Transaction = await manager.start(TransactionType.SHORT)
            pointer = transaction.write_pointer
            await house.publish("a", messages("0", producer="p", first=0, write_pointer=pointer))
            parts = {"b": messages("b"), "a": messages("1", producer="p", first=1)}
            error = await refusal(house.commit("t", parts, group="g"))
            assert isinstance(error, ProducerInTransaction)
            assert error.definite
            assert (await house.journal.show("t")).state == "in_progress"
            assert await house.shown("b") == []
            await manager.can_commit(pointer, [])
            await manager.commit(pointer)
            assert (await house.commit("t", parts, group="g")).messages == 2
            assert await house.shown("a") == ["0", "1"]

    asyncio.run(scenario())


def test_the_same_message_published_and_committed_at_once_is_in_the_log_once() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
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

    asyncio.run(scenario())


def test_where_nobody_deduplicates_a_commit_stores_every_message() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", deduplication="false")
            for name in ("t", "u"):
                await house.commit(name, {"a": messages("0", "1", producer="p", first=0)}, group="g")
            assert await house.shown("a") == ["0", "1", "0", "1"]
            await house.service.topics.update("default", "a", {})
            assert (await house.commit("v", {"a": messages("1", "2", producer="p", first=1)}, group="g")).messages == 1
            assert await house.shown("a") == ["0", "1", "0", "1", "2"]

    asyncio.run(scenario())


# --- topics that go


def test_a_topic_that_was_deleted_or_created_again_since_the_stage_refuses_the_commit() -> None:
    async def scenario(anew: bool) -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.begin("t")
            await house.stage("t", "a", 0, messages("1"))
            await house.stage("t", "b", 0, messages("1"))
            await house.delete("a")
            if anew:
                await house.create("a")
            for _ in range(2):
                assert isinstance(await refusal(house.commit("t")), TopicNotFound)
            assert (await house.journal.show("t")).reason == "topic_not_found"
            assert await house.shown("b") == []
            if anew:
                assert await house.shown("a") == []
            await house.dropped()
            await house.service.retention.once()
            assert house.rows(Table.CHUNK) == house.rows(Table.PAYLOAD) == 0

    for anew in (False, True):
        asyncio.run(scenario(anew))


@pytest.mark.parametrize("begun", [True, False])
def test_a_commit_that_brings_messages_for_no_topic_ends_its_transaction(begun: bool) -> None:
    """It was refused for good: a copy of it that comes late, when there is such a topic, stores nothing."""

    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a")
            if begun:
                await house.begin("t")
                await house.stage("t", "a", 0, messages("1"))
            parts = {"a": messages("2"), "b": messages("2")}
            assert isinstance(await refusal(house.commit("t", parts, group="g")), TopicNotFound)
            await house.create("b")
            assert isinstance(await refusal(house.commit("t", parts, group="g")), TopicNotFound)
            outcome = await house.journal.show("t")
            assert (outcome.state, outcome.reason) == ("aborted", "topic_not_found")
            assert await house.shown("a") == await house.shown("b") == []
            await house.dropped()
            assert house.rows(Table.CHUNK) == house.rows(Table.PAYLOAD) == 0

    asyncio.run(scenario())


def test_a_commit_that_was_made_before_is_a_duplicate_though_its_topic_is_gone() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a")
            numbered = {"group": "g", "producer": "p", "sequence_id": 1, "incarnation": "i"}
            await house.commit("t", {"a": messages("1")}, **numbered)
            await house.delete("a")
            assert (await house.commit("u", {"a": messages("1")}, **numbered)).state == "duplicate"

    asyncio.run(scenario())


def test_a_topic_that_takes_transactional_messages_only_takes_no_atomic_commit() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", transactional="only")
            await house.begin("t")
            assert isinstance(await refusal(house.stage("t", "a", 0, messages("1"))), TransactionalMismatch)
            assert isinstance(await refusal(house.commit("t", {"a": messages("1")})), TransactionalMismatch)
            assert (await house.journal.show("t")).reason == "transactional_mismatch"
            with_pointer = PublishRequest([b"1"], write_pointer=5)
            await house.create("b")
            assert isinstance(await refusal(house.stage("t", "b", 0, with_pointer)), InvalidRequest)

    asyncio.run(scenario())


# --- topics that cannot be written, or have lost something


def _damaged(disk: Disk, kind: str) -> tuple[Table, bytes]:
    """Damage the topic a; the table and key of the row that was damaged."""
    prefix = generation_key(topic_key("default", "a"), 1)
    table = {"log": Table.MESSAGE, "payload": Table.PAYLOAD, "chunk": Table.CHUNK, "topic": Table.TOPIC}[kind]
    first = min(each for each in disk.tables[table] if table is Table.TOPIC or each.startswith(prefix))
    key = topic_key("default", "a") if table is Table.TOPIC else first
    if table in (Table.CHUNK, Table.TOPIC):
        disk.tables[table][key] = b"{" + disk.tables[table][key]
    else:
        flip(disk, table, key)
    return table, key


async def _staged_on_both() -> Disk:
    disk = Disk()
    async with living(disk) as house:
        await house.create("a", "b")
        await house.publish("a", messages("before"))
        await house.begin("t")
        await house.stage("t", "a", 0, messages("1", "2"))
        await house.stage("t", "b", 0, messages("1"))
        return copy_of(disk)


@pytest.mark.parametrize("kind", ["log", "payload", "chunk", "topic"])
def test_a_commit_on_a_damaged_topic_is_on_no_topic_and_is_made_when_that_is_mended(kind: str) -> None:
    async def scenario() -> None:
        disk = await _staged_on_both()
        whole = copy_of(disk)
        table, key = _damaged(disk, kind)
        async with living(disk) as house:
            assert isinstance(await refusal(house.commit("t", {"b": messages("more")})), TopicDamaged)
            assert (await house.journal.show("t")).state == "in_progress"
            assert await house.shown("b") == []
            disk.tables[table][key] = whole.tables[table][key]
            await house.service.retention.once()
            assert (await house.commit("t", {"b": messages("more")})).messages == 4
            assert (await house.shown("a"), await house.shown("b")) == (["before", "1", "2"], ["1", "more"])
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_nothing_is_committed_without_what_was_staged_for_it() -> None:
    """Rows of a topic's data journal that are gone, all of them, were taken for nothing staged."""

    async def scenario() -> None:
        disk = await _staged_on_both()
        prefix = generation_key(topic_key("default", "a"), 1)
        for table in (Table.PAYLOAD, Table.CHUNK):
            for key in [each for each in disk.tables[table] if each.startswith(prefix)]:
                del disk.tables[table][key]
        async with living(disk) as house:
            assert isinstance(await refusal(house.commit("t")), TopicDamaged)
            assert (await house.shown("a"), await house.shown("b")) == (["before"], [])

    asyncio.run(scenario())
