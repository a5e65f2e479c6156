"""A snapshot comes after enough messages or enough time, and never costs more than one entry per message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import SnapshotSchedule, frees_enough


@pytest.mark.parametrize(
    ("messages", "now", "producers", "held_back", "due"),
    [
        (999, 0.0, 1, 0, False),
        (1_000, 0.0, 1, 0, True),
        (1, 119.9, 1, 0, False),
        (1, 120.0, 1, 0, True),
        (0, 1e9, 0, 0, False),
        (99_999, 1e9, 100_000, 0, False),  # a large map waits for as many messages as it has producers
        (100_000, 0.0, 100_000, 0, True),
        (1_030, 0.0, 1, 31, False),  # those that a snapshot could not hold do not make it due
        (1_030, 0.0, 1, 30, True),
        (1_030, 1e9, 1, 1_030, False),
        (1_030, 1e9, 11, 1_020, False),
    ],
)
def test_when_a_snapshot_is_due(messages: int, now: float, producers: int, held_back: int, due: bool) -> None:
    replayed, counted = SnapshotSchedule(0.0, already=messages), SnapshotSchedule(0.0)
    counted.count(messages)
    assert replayed.due(now, producers, held_back) == counted.due(now, producers, held_back) == due
    assert counted.may_be_due(now) or not due
    assert replayed.messages == counted.messages == messages


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


@pytest.mark.parametrize(
    ("snapshots", "entries", "messages", "affordable"),
    [(2, 100, 199, False), (2, 100, 200, True), (1, 100, 100, True), (0, 100_000, 1, True), (2, 16, 1, True), (2, 17, 33, False)],
)
def test_deleting_pays_for_no_more_entries_than_it_frees_messages(
    snapshots: int, entries: int, messages: int, affordable: bool
) -> None:
    assert frees_enough(snapshots, entries, messages) == affordable
