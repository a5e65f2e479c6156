"""CONTRACT §5.3, §6: what the messages of an atomic commit expect is judged at the commit, on all its topics at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from oncelog.errors import (
    ExpectationsNotChecked,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    SequenceReused,
    StorageFailed,
)
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.transaction import TransactionType
from oncelog_service.atomic import coordinator
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from oncelog_service.transactions.manager import TransactionManager
from tests.behaviours.atomics import CHECKED, House, copy_of, living, messages, refusal

NO_MESSAGE = bytes(20)


@pytest.fixture(autouse=True)
def _no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's rounds are run by the tests."""
    monkeypatch.setattr(coordinator, "_ROUND_SECONDS", 3_600)


async def _checked(house: House) -> None:
    await house.create("a", "b", **CHECKED)


def test_every_chunk_is_held_against_the_offset_at_its_own_place() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await _checked(house)
            await house.publish("a", messages("0"))
            await house.begin("t")
            await house.begin("branch", of="t")
            await house.stage("t", "a", 0, messages("1", "2", expected_offset=1))
            await house.stage("t", "a", 1, messages("3", expected_offset=3))
            await house.stage("branch", "a", 0, messages("5", "6", expected_offset=5))
            await house.stage("branch", "a", 1, messages("7", expected_offset=7))
            await house.commit(
                "t", {"a": messages("4", expected_offset=4), "b": messages("0", expected_offset=0)}, branches=["branch"]
            )
            assert await house.shown("a") == [str(number) for number in range(8)]
            await house.verify("a", "b")

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", ["own", "inline", "branch"])
def test_a_mismatch_of_any_chunk_on_one_topic_stores_nothing_on_the_other_and_is_answered_again(wrong: str) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await _checked(house)
            await house.begin("t")
            await house.begin("branch", of="t")
            off = {name: int(name == wrong) for name in ("own", "inline", "branch")}
            await house.stage("t", "a", 0, messages("0", expected_offset=0 + off["own"]))
            await house.stage("branch", "a", 0, messages("2", expected_offset=2 + off["branch"]))
            await house.stage("branch", "b", 0, messages("0"))
            parts = {"a": messages("1", expected_offset=1 + off["inline"])}
            first = await refusal(house.commit("t", parts, branches=["branch"]))
            assert isinstance(first, OffsetMismatch)
            place = ["own", "inline", "branch"].index(wrong)
            assert (first.condition, first.expected, first.actual) == ("offset", place + 1, place)
            assert (first.topic, first.definite) == ("default/a", True)
            assert await house.shown("a") == await house.shown("b") == []
            shown = await house.journal.show("t")
            assert (shown.state, shown.reason) == ("aborted", "offset_mismatch")
            await house.journal.once()
            await house.dropped()
            assert house.rows(Table.PAYLOAD) == house.rows(Table.CHUNK) == 0
            for topic in ("a", "b"):
                await house.publish(topic, messages("0", "1", "2", "3"))
            after = copy_of(disk)
            again = await refusal(house.commit("t", parts, branches=["branch"]))
        async with living(after) as house:
            later = await refusal(house.commit("t", parts, branches=["branch"]))
            for each in (again, later):
                assert isinstance(each, OffsetMismatch)
                assert each.to_problem() == first.to_problem()
            assert (await house.journal.show("branch")).reason == "not_named"

    asyncio.run(scenario())


def test_the_first_messages_of_a_commit_may_expect_the_last_id_and_no_others() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await _checked(house)
            await house.commit("first", {"a": messages("0", expected_last_message_id=NO_MESSAGE)}, group="g")
            (newest,) = await house.read("a")
            lost = await refusal(house.commit("lost", {"a": messages("x", expected_last_message_id=NO_MESSAGE)}, group="g"))
            assert isinstance(lost, OffsetMismatch)
            assert (lost.condition, lost.actual) == ("last_message_id", newest.message_id.hex())
            await house.commit("second", {"a": messages("1", expected_last_message_id=newest.message_id)}, group="g")
            newest = (await house.read("a"))[-1]
            await house.begin("t")
            await house.stage("t", "a", 0, messages("2", expected_last_message_id=newest.message_id))
            behind = house.commit("t", {"a": messages("3", expected_last_message_id=newest.message_id)})
            assert isinstance(await refusal(behind), InvalidRequest)
            assert await house.shown("a") == ["0", "1"]

    asyncio.run(scenario())


def test_a_key_that_was_written_earlier_in_the_commit_has_its_offset_there() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await _checked(house)
            await house.publish("a", messages("0", "1", keys=[b"k", b"\xff"]))
            await house.begin("t")
            await house.stage("t", "a", 0, messages("2", keys=[b"k"], expected_key_offsets={"k": 0, "\xff": 1, "new": None}))
            after = copy_of(disk)
        async with living(after) as house:
            await house.stage("t", "a", 1, messages("3", "4", keys=[b"new", b"k"], expected_key_offsets={"k": 2, "new": None}))
            await house.stage("t", "a", 2, messages("5", expected_key_offsets={"k": 4, "new": 3}))
            await house.begin("branch", of="t")
            await house.stage("branch", "a", 0, messages("7", keys=[b"k"], expected_key_offsets={"k": 4, "in": 6, "new": 3}))
            await house.stage("branch", "a", 1, messages("8", expected_key_offsets={"k": 7}))
            await house.commit("t", {"a": messages("6", keys=[b"in"], expected_key_offsets={"in": None})}, branches=["branch"])
            assert len(await house.shown("a")) == 9
            wrong = house.commit("wrong", {"a": messages("x", expected_key_offsets={"k": 4})}, group="g")
            lost = await refusal(wrong)
            assert isinstance(lost, OffsetMismatch)
            assert (lost.condition, lost.key, lost.expected, lost.actual) == ("key_offset", "k", 4, 7)
            await house.publish("a", messages("9", expected_key_offsets={"k": 7, "in": 6, "new": 3, "\xff": 1}))
            await house.verify("a")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param({"expected_key_offsets": {"k": 1}}, id="older than the commit"),
        pytest.param({"expected_key_offsets": {"k": None}}, id="none"),
        pytest.param({"expected_key_offsets": {"other": 2}}, id="one that is not there"),
    ],
)
def test_a_key_offset_that_the_commit_itself_has_moved_is_a_mismatch(stale: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await _checked(house)
            await house.publish("a", messages("0", "1", keys=[None, b"k"]))
            await house.begin("t")
            await house.stage("t", "a", 0, messages("2", keys=[b"k"]))
            await house.stage("t", "b", 0, messages("b"))
            assert isinstance(await refusal(house.commit("t", {"a": messages("3", **stale)})), OffsetMismatch)
            assert (await house.shown("a"), await house.shown("b")) == (["0", "1"], [])

    asyncio.run(scenario())


def test_of_two_commits_that_expect_the_same_offsets_one_wins_on_both_topics() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await _checked(house)
            for turn in range(5):
                names = [f"{turn}-{number}" for number in range(8)]
                calls: list[Awaitable[AtomicOutcome]] = []
                for name in names:
                    parts = {topic: messages(name, expected_offset=turn) for topic in ("a", "b")}
                    calls.append(house.commit(name, parts, group="gh"[len(calls) % 2]))
                answers = await asyncio.gather(*calls, return_exceptions=True)
                (winner,) = (name for name, answer in zip(names, answers, strict=True) if not isinstance(answer, BaseException))
                assert all(isinstance(each, OffsetMismatch) for each in answers if isinstance(each, BaseException))
                assert (await house.shown("a"))[-1] == (await house.shown("b"))[-1] == winner
            assert len(await house.shown("a")) == len(await house.shown("b")) == 5
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_expectations_behind_messages_that_the_topic_has_hold_at_the_places_that_are_left() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await _checked(house)
            await house.publish("a", messages("0", "1", keys=[b"k", b"k"], producer="p", first=0))
            await house.begin("t")
            await house.stage("t", "a", 0, messages("0", "1", keys=[b"k", b"k"], producer="p", first=0))
            await house.stage("t", "a", 1, messages("2", producer="p", first=2, expected_offset=2, expected_key_offsets={"k": 1}))
            await house.stage("t", "a", 2, messages("3", keys=[b"k"], producer="p", first=3))
            await house.stage("t", "a", 3, messages("4", expected_offset=4, expected_key_offsets={"k": 3}))
            assert (await house.commit("t")).messages == 3
            assert await house.shown("a") == ["0", "1", "2", "3", "4"]
            part = messages("3", "5", keys=[b"k", None], producer="p", first=3, expected_offset=3)
            part.sequence_ids = [3, 5]
            behind = await refusal(house.commit("behind", {"a": part}, group="g"))
            assert isinstance(behind, OffsetMismatch)
            assert (behind.expected, behind.actual) == (4, 5)
            unknown = messages("3", "5", keys=[b"k", None], producer="p", expected_key_offsets={"k": 1})
            unknown.sequence_ids = [3, 5]
            assert isinstance(await refusal(house.commit("unknown", {"a": unknown}, group="g")), SequenceReused)
            await house.verify("a")

    asyncio.run(scenario())


def test_what_a_refused_condition_lost_to_is_on_disk_before_the_refusal_is_answered() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with living(disk) as house:
            await _checked(house)
            await house.publish("a", messages("0"))
            calls = [
                house.publish("a", messages("1")),
                house.commit("t", {"a": messages("x", expected_offset=1), "b": messages("x")}, group="g"),
            ]
            failing = True

            def strike(batches: Any) -> None:
                if failing and any(table is Table.MESSAGE for batch in batches for table, *_ in (*batch.runs, *batch.puts)):
                    raise OSError("the disk is full")

            disk.before_sync = strike
            published, committed = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(published, StorageFailed)
            assert not isinstance(committed, OffsetMismatch), "told that it lost to what is not there"
            failing = False

    asyncio.run(scenario())


def test_a_topic_that_does_not_check_expectations_takes_none_and_one_that_stops_checking_refuses_what_is_staged() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await house.create("a", "b")
            await house.begin("t")
            part = messages("0", keys=[b"k"], expected_offset=0)
            assert isinstance(await refusal(house.stage("t", "a", 0, part)), ExpectationsNotChecked)
            await house.stage("t", "a", 0, messages("0", keys=[b"k"]))
            await house.stage("t", "b", 0, messages("0"))
            await house.service.topics.update("default", "a", {"check.expected.offsets": "true"})
            await house.stage("t", "a", 1, messages("1", expected_key_offsets={"k": 0, "x": None}, expected_offset=1))
            await house.begin("u")
            await house.stage("u", "a", 0, messages("2", expected_offset=2))
            await house.stage("u", "b", 0, messages("2"))
            await house.commit("t")
            await house.service.topics.update("default", "a", {})
            assert isinstance(await refusal(house.commit("u")), ExpectationsNotChecked)
            assert (await house.journal.show("u")).state == "aborted"
            assert (await house.shown("a"), await house.shown("b")) == (["0", "1"], ["0"])
            await house.service.topics.update("default", "a", {"check.expected.offsets": "true"})
            await house.publish("a", messages("2", expected_key_offsets={"k": 0}))
            await house.verify("a", "b")

    asyncio.run(scenario())


def test_a_key_in_an_undecided_transaction_leaves_the_commit_in_progress() -> None:
    async def scenario() -> None:
        async with living(Disk()) as house:
            await _checked(house)
            manager = house.service.transactions
            assert isinstance(manager, TransactionManager)
            pointer = (await manager.start(TransactionType.SHORT)).write_pointer
            await house.publish("a", messages("0", keys=[b"k"], write_pointer=pointer))
            parts = {"a": messages("1", keys=[b"k"], expected_key_offsets={"k": None}), "b": messages("1")}
            undecided = await refusal(house.commit("t", parts, group="g"))
            assert isinstance(undecided, KeyInTransaction)
            assert undecided.definite
            assert (await house.journal.show("t")).state == "in_progress"
            await manager.abort(pointer)
            await (await house.topic("a")).settle(pointer, False)
            await house.commit("t", parts, group="g")
            assert await house.shown("b") == ["1"]

    asyncio.run(scenario())
