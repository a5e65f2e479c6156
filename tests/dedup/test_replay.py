"""A snapshot and what came after it give the map that was lost; a hole ends the replay with an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import START, Entry, Position, ReplayError, SequenceMap, Snapshot, replay
from tests.dedup.marks import entry, mark, message_id, position

logs = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 30)) | st.just((None, None)), min_size=1, max_size=30
).map(lambda rows: [entry(offset, producer, sequence_id) for offset, (producer, sequence_id) in enumerate(rows)])


def test_an_empty_log_folds_to_nothing() -> None:
    assert replay(None, []) == (SequenceMap(), START, 0)


def test_sequence_id_zero_is_found_again() -> None:
    assert replay(None, [entry(0, "p", 0)]) == (SequenceMap({"p": mark(0, 0)}), position(1), 1)


def test_unnamed_messages_move_the_position_and_nothing_else() -> None:
    assert replay(None, [entry(0), entry(1)]) == (SequenceMap(), position(2), 2)


def test_a_name_without_a_sequence_id_does_not_count() -> None:
    assert replay(None, [entry(0, "p", None)]).marks == SequenceMap()


@given(logs, st.data())
def test_any_snapshot_and_the_rest_give_the_whole_fold(log: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    before = replay(None, log[:cut])
    after = replay(Snapshot(before.marks, before.position), log[cut:])
    whole = replay(None, log)
    assert (after.marks, after.position) == (whole.marks, whole.position)
    assert after.entries == len(log) - cut


def test_replaying_does_not_change_the_snapshot() -> None:
    snapshot = Snapshot(SequenceMap({"p": mark(0, 0)}), position(1))
    replay(snapshot, [entry(1, "p", 1), entry(2, "q", 0)], {"p": 1})
    assert snapshot == Snapshot(SequenceMap({"p": mark(0, 0)}), position(1))


@given(logs.filter(lambda log: len(log) > 1), st.data())
def test_a_missing_message_in_the_middle_is_refused(log: list[Entry], data: st.DataObject) -> None:
    missing = data.draw(st.integers(0, len(log) - 2))
    with pytest.raises(ReplayError, match=f"offset {missing},"):
        replay(None, log[:missing] + log[missing + 1 :])


def test_a_missing_message_right_behind_the_snapshot_is_refused() -> None:
    with pytest.raises(ReplayError):
        replay(Snapshot(SequenceMap(), position(3)), [entry(4, "p", 0)])


def test_a_doubled_message_is_refused() -> None:
    with pytest.raises(ReplayError):
        replay(None, [entry(0), entry(0)])


@pytest.mark.parametrize("other", [0, 1])
def test_a_message_id_that_does_not_rise_is_refused(other: int) -> None:
    with pytest.raises(ReplayError, match="does not rise"):
        replay(None, [entry(0), entry(1), Entry(2, message_id(other), None, None)])


def test_a_message_id_below_the_snapshots_last_one_is_refused() -> None:
    with pytest.raises(ReplayError, match="does not rise"):
        replay(Snapshot(SequenceMap(), Position(3, message_id(9))), [entry(3)])


def test_what_a_forgotten_producer_published_before_does_not_count() -> None:
    log = [entry(0, "p", 9), entry(1, "q", 5), entry(2, "p", 3), entry(3, "p", 4)]
    assert replay(None, log, {"p": 2}).marks == SequenceMap({"p": mark(4, 3), "q": mark(5, 1)})
    assert replay(None, log, {"p": 4}).marks == SequenceMap({"q": mark(5, 1)})


def test_a_snapshot_from_before_the_forgetting_does_not_bring_the_producer_back() -> None:
    snapshot = Snapshot(SequenceMap({"p": mark(9, 0), "q": mark(5, 1)}), position(2))
    assert replay(snapshot, [entry(2, "p", 3)], {"p": 2}).marks == SequenceMap({"p": mark(3, 2), "q": mark(5, 1)})


def test_a_snapshot_from_after_the_forgetting_counts() -> None:
    snapshot = Snapshot(SequenceMap({"p": mark(3, 2)}), position(3))
    assert replay(snapshot, [], {"p": 2, "never seen": 1}).marks == SequenceMap({"p": mark(3, 2)})


def test_the_log_is_read_once_and_lazily() -> None:
    def log() -> object:
        yield entry(0, "p", 0)
        yield entry(5, "p", 1)
        raise AssertionError("read on behind the hole")

    with pytest.raises(ReplayError):
        replay(None, log())  # type: ignore[arg-type]
