"""A number that was committed to a topic which was deleted and made anew since is never answered as a duplicate: nothing of that
commit is in the topic of now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oncelog.errors import CommitGone, SequenceGap, TopicNotFound
from oncelog_service.atomic import repeats
from oncelog_service.storage.keys import group_producer_key
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from tests.atomic.house import House, living, messages, refused
from tests.world.clock import ManualClock
from tests.world.disk import crashed

LOADER = {"group": "g", "producer": "loader", "incarnation": "i"}
KEY = group_producer_key("g", "loader")
GOLDEN = Path(__file__).parents[1] / "golden"
DAY_MS = 24 * 3_600_000


async def made_anew(house: House, *topics: str) -> None:
    for name in topics:
        await house.delete(name)
        await house.create(name)


async def test_a_number_that_was_committed_to_a_topic_which_was_made_anew_is_no_duplicate() -> None:
    disk = Disk()
    async with living(disk, topics="ab") as house:
        await house.commit("t", {"a": messages("1"), "b": messages("1")}, sequence_id=1, **LOADER)
        await made_anew(house, "b")  # one of several is enough: nothing of the commit is in it
        after = crashed(disk)
    async with living(after) as house:
        again = house.commit("u", {"a": messages("1"), "b": messages("1")}, sequence_id=1, **LOADER)
        error = await refused(CommitGone, again)
        assert (error.definite, error.producer, error.transaction) == (True, "loader", "t")
        assert (error.topic, error.generation, error.current_generation) == ("default/b", 1, 2)
        assert await house.state("u") == "commit_gone"
        assert (await house.shown("a"), await house.shown("b")) == (["1"], [])
        # The next number is taken, and is a commit to the topic of now: a repeat of that is a duplicate, and says where it lies.
        await house.commit("v", {"b": messages("2")}, sequence_id=2, **LOADER)
        twin = await house.commit("w", {"b": messages("2")}, sequence_id=2, **LOADER)
        assert (twin.state, [(each.topic, each.generation) for each in twin.topics]) == ("duplicate", [("b", 2)])
        assert await house.shown("b") == ["2"]
        # What comes below it was committed to the topic that was deleted, if ever.
        older = await refused(CommitGone, house.commit("x", {"b": messages("1")}, sequence_id=1, **LOADER))
        assert (older.transaction, older.topic, older.current_generation) == (None, "default/b", 2)
        assert (await house.commit("y", {"a": messages("1")}, sequence_id=1, **LOADER)).state == "duplicate"


async def test_what_was_staged_in_branches_is_no_duplicate_either(house: House) -> None:
    await house.commit("t", {"a": messages("1")}, sequence_id=1, **LOADER)
    await house.commit("u", {"a": messages("2")}, sequence_id=2, **LOADER)
    await made_anew(house, "a")
    for number in (1, 2):
        branch, whole = f"branch-{number}", f"whole-{number}"
        await house.begin(branch, of=whole)
        await house.stage(branch, "a", 0, messages(str(number)))
        await refused(CommitGone, house.commit(whole, sequence_id=number, branches=[branch], **LOADER))
    assert await house.shown("a") == []
    await house.atomic.producers.forget("g", "loader")  # as the error says
    await house.begin("anew", of="third")
    await house.stage("anew", "a", 0, messages("1"))
    assert (await house.commit("third", sequence_id=1, branches=["anew"], **LOADER)).state == "committed"
    assert await house.shown("a") == ["1"]


async def test_a_topic_that_is_deleted_between_stage_and_commit_ends_that_commit_and_moves_no_number(house: House) -> None:
    await house.begin("t")
    await house.stage("t", "a", 0, messages("1"))
    await house.stage("t", "b", 0, messages("1"))
    await made_anew(house, "a")
    await refused(TopicNotFound, house.commit("t", sequence_id=1, **LOADER))
    assert (await house.shown("a"), await house.shown("b")) == ([], [])
    again = await house.commit("u", {"a": messages("1"), "b": messages("1")}, sequence_id=1, **LOADER)
    assert again.state == "committed"
    assert (await house.shown("a"), await house.shown("b")) == (["1"], ["1"])


async def test_a_commit_without_messages_forgets_no_topic_of_the_one_before(house: House) -> None:
    await house.commit("t", {"a": messages("1")}, sequence_id=1, **LOADER)
    await house.commit("u", sequence_id=2, **LOADER)
    await made_anew(house, "a")
    await refused(CommitGone, house.commit("v", {"a": messages("1")}, sequence_id=1, **LOADER))
    await refused(CommitGone, house.commit("w", {"a": messages("2")}, sequence_id=2, **LOADER))
    twin = await house.commit("x", sequence_id=2, **LOADER)  # of which nothing can be gone
    assert (twin.state, twin.original, twin.topics) == ("duplicate", "u", [])


async def test_what_a_later_commit_does_not_write_to_is_not_forgotten_for_a_repeat_of_one_before_it() -> None:
    """A job of days, each to topics of its own: the first day's topic is made anew, and that day is run again."""
    disk = Disk()
    async with living(disk, topics="abc") as house:
        for number, topic in enumerate("abc"):
            await house.commit(f"t{number}", {topic: messages(topic)}, sequence_id=number, **LOADER)
        await made_anew(house, "a")
        after = crashed(disk)
    async with living(after) as house:
        error = await refused(CommitGone, house.commit("u", {"a": messages("a")}, sequence_id=0, **LOADER))
        assert (error.topic, error.generation, error.current_generation) == ("default/a", 1, 2)
        for number, topic in ((1, "b"), (2, "c")):  # nothing of these is gone
            assert (await house.commit(f"v{number}", {topic: messages(topic)}, sequence_id=number, **LOADER)).state == "duplicate"
        shown = {
            each.topic: (each.generation, each.current_generation)
            for each in (await house.atomic.producers.show("g", "loader")).topics
        }
        assert shown == {"c": (1, 1), "a": (1, 2), "b": (1, 1)}
        await house.commit("w", {"a": messages("d")}, sequence_id=3, **LOADER)
        await refused(CommitGone, house.commit("x", {"a": messages("a")}, sequence_id=0, **LOADER))
        assert await house.shown("a") == ["d"]


async def test_of_topics_that_earlier_commits_wrote_to_a_bounded_number_is_kept(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "MAX_EARLIER", 1)
    for number, topic in enumerate("aba"):
        await house.commit(f"t{number}", {topic: messages(topic)}, sequence_id=number, **LOADER)
    await house.create("z")
    await house.commit("u", {"z": messages("z")}, sequence_id=3, **LOADER)
    known = await house.atomic.producers.show("g", "loader")
    assert [each.topic for each in known.topics] == ["z", "a"]  # the one that was written to last


# --- what a store of before these were kept says


@pytest.mark.parametrize(
    ("remembered", "anew", "state"),
    [(True, False, "duplicate"), (True, True, "commit_gone"), (False, False, "duplicate"), (False, True, "commit_gone")],
)
async def test_of_a_number_from_before_its_topics_were_kept_the_outcome_says_them_or_else_the_topic_itself(
    remembered: bool, anew: bool, state: str
) -> None:
    disk, clock = Disk(), ManualClock()
    async with living(disk, clock, topics="a") as house:
        await house.commit("t", {"a": messages("1")}, sequence_id=1, **LOADER)
        if anew:
            await made_anew(house, "a")
        if not remembered:
            await house.service.opening.topics.changes.update("default", "a", {"ttl": "1"})
            clock.advance(2 * DAY_MS)
            assert await house.atomic.upkeep.forget_outcomes() == 1
    _as_it_was(disk)
    async with living(disk, clock) as house:
        again = house.commit("u", {"a": messages("1")}, sequence_id=1, **LOADER)
        if state == "commit_gone":
            assert (await refused(CommitGone, again)).current_generation == 2
        else:
            assert (await again).state == state


def _as_it_was(disk: Disk) -> None:
    """The producer's row without what stands beside it since."""
    store, batch = MemoryStore(disk), Batch()
    assert store.get(Table.GROUP_NOTE, KEY) is not None
    batch.delete(Table.GROUP_NOTE, KEY)
    store.write([batch])
    store.close()


async def test_a_version_that_knows_of_no_notes_reads_the_row_of_a_producer_as_it_ever_was() -> None:
    """Within one format any version opens what another one of it left; one row that it cannot read would be a store that is
    damaged."""
    disk = Disk()
    async with living(disk, topics="a") as house:
        await house.commit("t", {"a": messages("1")}, sequence_id=1, refuses_gaps=True, **LOADER)
    store = MemoryStore(disk)
    row = json.loads(store.get(Table.GROUP_PRODUCER, KEY) or b"")
    assert row.keys() == json.loads((GOLDEN / "group_producer_v1.json").read_text()).keys()


async def test_a_note_is_not_taken_for_one_about_a_commit_that_a_version_without_notes_made() -> None:
    disk = Disk()
    async with living(disk, topics="ab") as house:
        await house.commit("t", {"a": messages("1")}, sequence_id=1, **LOADER)
        store = MemoryStore(disk)
        note = store.get(Table.GROUP_NOTE, KEY) or b""
        store.close()
        await house.commit("u", {"b": messages("2")}, sequence_id=2, refuses_gaps=True, **LOADER)
    store, batch = MemoryStore(disk), Batch()
    batch.put(Table.GROUP_NOTE, KEY, note)
    store.write([batch])
    store.close()
    async with living(disk) as house:
        known = await house.atomic.producers.show("g", "loader")
        assert (known.sequence_id, [each.topic for each in known.topics]) == (2, ["b"])  # as the outcome says
        await house.commit("v", {"b": messages("9")}, sequence_id=9, refuses_gaps=True, **LOADER)
        twin = await house.commit("w", {"b": messages("9")}, sequence_id=9, **LOADER)
        assert (twin.state, twin.original) == ("duplicate", "v")


# --- numbers without holes


async def test_a_number_is_left_out_only_where_either_commit_allows_it() -> None:
    disk = Disk()
    async with living(disk, topics="a") as house:
        dense = {**LOADER, "refuses_gaps": True}
        await house.commit("t", {"a": messages("0")}, sequence_id=3, **dense)  # the first number may be any
        await house.commit("u", sequence_id=4, **dense)
        after = crashed(disk)
    async with living(after) as house:
        error = await refused(SequenceGap, house.commit("v", {"a": messages("1")}, sequence_id=7, **dense))
        assert (error.definite, error.producer, error.expected, error.received) == (True, "loader", 5, 7)
        assert (await house.commit("w", sequence_id=4, **dense)).state == "duplicate"
        assert (await house.atomic.producers.show("g", "loader")).sequence_id == 4
        # Who allows holes, as all did before, may leave some; behind such a commit nobody knows what is missing.
        await house.commit("x", {"a": messages("1")}, sequence_id=7, **LOADER)
        await house.commit("y", sequence_id=9, **dense)
        await refused(SequenceGap, house.commit("z", {"a": messages("2")}, sequence_id=11, **dense))
        await house.atomic.producers.forget("g", "loader")
        assert (await house.commit("anew", {"a": messages("2")}, sequence_id=11, **dense)).state == "committed"
        assert await house.shown("a") == ["0", "1", "2"]
