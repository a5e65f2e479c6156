"""A snapshot comes after enough messages or enough time, and never costs more than one entry per message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import SnapshotSchedule, frees_enough


def test_a_snapshot_is_due_after_a_thousand_messages() -> None:
    schedule = SnapshotSchedule(0.0)
    schedule.count(999)
    assert not schedule.due(0.0, producers=1)
    schedule.count(1)
    assert schedule.due(0.0, producers=1)


def test_a_snapshot_is_due_after_two_minutes_with_a_message() -> None:
    schedule = SnapshotSchedule(0.0)
    schedule.count(1)
    assert not schedule.due(119.9, producers=1)
    assert schedule.due(120.0, producers=1)


def test_a_topic_without_new_messages_needs_no_snapshot() -> None:
    schedule = SnapshotSchedule(0.0)
    assert not schedule.due(1e9, producers=0)


def test_a_large_map_waits_for_as_many_messages_as_it_has_producers() -> None:
    schedule = SnapshotSchedule(0.0)
    schedule.count(99_999)
    assert not schedule.due(1e9, producers=100_000)
    schedule.count(1)
    assert schedule.due(0.0, producers=100_000)


def test_replayed_messages_count_towards_the_next_snapshot() -> None:
    schedule = SnapshotSchedule(0.0, already=1_000)
    assert schedule.messages == 1_000
    assert schedule.due(0.0, producers=1)


def test_both_clocks_begin_anew_when_a_snapshot_is_written() -> None:
    schedule = SnapshotSchedule(0.0, every_messages=10, every_seconds=5.0)
    schedule.count(10)
    schedule.done(3.0)
    assert schedule.messages == 0
    schedule.count(1)
    assert not schedule.due(7.9, producers=1)
    assert schedule.due(8.0, producers=1)


def test_what_was_persisted_while_the_snapshot_was_written_counts_towards_the_next() -> None:
    schedule = SnapshotSchedule(0.0, every_messages=10)
    schedule.count(10)
    schedule.count(4)
    schedule.done(0.0, covered=10)
    assert schedule.messages == 4
    schedule.done(0.0, covered=10)
    assert schedule.messages == 0


@pytest.mark.parametrize(("messages", "seconds"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0)])
def test_an_interval_that_makes_no_sense_is_refused(messages: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        SnapshotSchedule(0.0, messages, seconds)


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20), st.floats(0, 200)), max_size=100),
)
def test_snapshots_never_write_more_entries_than_there_were_messages(
    every_messages: int, requests: list[tuple[int, int, float]]
) -> None:
    schedule = SnapshotSchedule(0.0, every_messages)
    now, messages, producers, entries = 0.0, 0, 0, 0
    for count, new_producers, pause in requests:
        now, messages, producers = now + pause, messages + count, producers + min(count, new_producers)
        schedule.count(count)
        if schedule.due(now, producers):
            entries += producers
            schedule.done(now)
        assert entries <= messages
        assert schedule.messages < max(every_messages, producers), "replay is bounded by the same number"


def test_messages_that_a_snapshot_could_not_hold_do_not_make_it_due() -> None:
    schedule = SnapshotSchedule(0.0, every_messages=10, every_seconds=60)
    schedule.count(30)
    assert not schedule.due(0.0, producers=1, held_back=25)
    assert not schedule.due(1_000.0, producers=1, held_back=30)
    assert schedule.due(1_000.0, producers=1, held_back=25)
    assert schedule.due(0.0, producers=1, held_back=20)
    assert not schedule.due(0.0, producers=11, held_back=20)


@pytest.mark.parametrize(
    ("snapshots", "entries", "messages", "affordable"),
    [(2, 100, 199, False), (2, 100, 200, True), (1, 100, 100, True), (0, 100_000, 1, True), (2, 16, 1, True), (2, 17, 33, False)],
)
def test_deleting_pays_for_no_more_entries_than_it_frees_messages(
    snapshots: int, entries: int, messages: int, affordable: bool
) -> None:
    assert frees_enough(snapshots, entries, messages) == affordable
