"""A snapshot and what came after it give the map that was lost; a hole ends the replay with an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import START, Entry, Mark, Position, ReplayError, Run, SequenceMap, Snapshot, replay
from tests.dedup.marks import entry, mark, message_id, position, run, transactional

logs = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 30)) | st.just((None, None)), min_size=1, max_size=30
).map(lambda rows: [entry(offset, producer, sequence_id) for offset, (producer, sequence_id) in enumerate(rows)])


def marks_of(log: list[Entry], forgotten: dict[str, int] | None = None, snapshot: Snapshot | None = None) -> SequenceMap:
    return replay(snapshot, log, below(forgotten or {})).fold.copy()


def below(forgotten: dict[str, int]) -> Callable[[str], int]:
    return lambda name: forgotten.get(name, 0)


def test_an_empty_log_folds_to_nothing() -> None:
    fold, entries = replay(None, [])
    assert (fold.settled, entries) == (Snapshot(SequenceMap(), START), 0)


def test_sequence_id_zero_is_found_again() -> None:
    fold, entries = replay(None, [entry(0, "p", 0)])
    assert (fold.settled, entries) == (Snapshot(SequenceMap({"p": mark(0, 0)}), position(1)), 1)


def test_unnamed_messages_move_the_position_and_nothing_else() -> None:
    fold, entries = replay(None, [entry(0), entry(1)])
    assert (fold.settled, entries) == (Snapshot(SequenceMap(), position(2)), 2)


def test_a_name_without_a_sequence_id_does_not_count() -> None:
    assert marks_of([entry(0, "p", None)]) == SequenceMap()


@given(logs, st.data())
def test_any_snapshot_and_the_rest_give_the_whole_fold(log: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    after = replay(replay(None, log[:cut]).fold.settled, log[cut:])
    assert after.fold.settled == replay(None, log).fold.settled
    assert after.entries == len(log) - cut


def test_replaying_does_not_change_the_snapshot() -> None:
    snapshot = Snapshot(SequenceMap({"p": mark(0, 0)}), position(1))
    replay(snapshot, [entry(1, "p", 1), entry(2, "q", 0)], below({"p": 1}))
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
    assert marks_of(log, {"p": 2}) == SequenceMap({"p": mark(4, 3), "q": mark(5, 1)})
    assert marks_of(log, {"p": 4}) == SequenceMap({"q": mark(5, 1)})


def test_a_snapshot_from_before_the_forgetting_does_not_bring_the_producer_back() -> None:
    snapshot = Snapshot(SequenceMap({"p": mark(9, 0), "q": mark(5, 1)}), position(2))
    assert marks_of([entry(2, "p", 3)], {"p": 2}, snapshot) == SequenceMap({"p": mark(3, 2), "q": mark(5, 1)})


def test_a_snapshot_from_after_the_forgetting_counts() -> None:
    snapshot = Snapshot(SequenceMap({"p": mark(3, 2)}), position(3))
    assert marks_of([], {"p": 2, "never seen": 1}, snapshot) == SequenceMap({"p": mark(3, 2)})


def test_the_log_is_read_once_and_lazily() -> None:
    def log() -> object:
        yield entry(0, "p", 0)
        yield entry(5, "p", 1)
        raise AssertionError("read on behind the hole")

    with pytest.raises(ReplayError):
        replay(None, log())  # type: ignore[arg-type]


# --- transactions


def runs_of(*log: Entry) -> dict[int, tuple[Run, ...]]:
    return dict(replay(None, log).fold.unsettled)


def test_transactional_messages_count_and_are_unsettled() -> None:
    fold, entries = replay(None, [entry(0, "p", 1), transactional(7, 1, "p", 2), entry(2, "q", 5)])
    assert (fold.copy(), fold.position, entries) == (SequenceMap({"p": mark(2, 1), "q": mark(5, 2)}), position(3), 3)
    assert fold.settled == Snapshot(SequenceMap({"p": mark(1, 0)}), position(1))
    assert dict(fold.unsettled) == {7: (run(1, 7, p=2),)}


def test_rolled_back_messages_move_the_position_and_nothing_else() -> None:
    log = [transactional(-7, 0, "p", 1), transactional(-7, 1, "p", 2, begins=False), entry(2, "p", 0)]
    fold, entries = replay(None, log)
    assert (fold.settled, entries) == (Snapshot(SequenceMap({"p": mark(0, 2)}), position(3)), 3)


def test_the_rows_of_one_request_are_one_run() -> None:
    found = runs_of(
        transactional(7, 0, "p", 1), transactional(7, 1, "p", 5, begins=False), transactional(7, 2, "p", 6, begins=False)
    )
    assert found == {7: (Run(0, 3, message_id(0), message_id(2), (("p", mark(6, 2)),), 7),)}


@pytest.mark.parametrize(
    "second",
    [
        transactional(7, 1, "p", 2),
        transactional(7, 1, "q", 2, begins=False),
        transactional(7, 1, begins=False),
        transactional(8, 1, "p", 2, begins=False),
    ],
    ids=["begins", "other producer", "no producer", "other transaction"],
)
def test_the_rows_of_two_requests_are_two_runs(second: Entry) -> None:
    found = [each for runs in runs_of(transactional(7, 0, "p", 1), second).values() for each in runs]
    assert [(each.first_offset, each.count) for each in found] == [(0, 1), (1, 1)]


def test_a_plain_row_ends_a_run() -> None:
    found = runs_of(transactional(7, 0), entry(1), transactional(7, 2, begins=False))
    assert [(each.first_offset, each.count) for each in found[7]] == [(0, 1), (2, 1)]


def test_a_stored_group_is_one_run_with_all_its_offsets() -> None:
    last_id = message_id(0)[:10] + b"\1" * 10
    marks = (("p", Mark(4, last_id, 2)), ("q", mark(9, 1)))
    group = Entry(0, message_id(0), None, None, 7, 3, marks, last_id)
    fold, entries = replay(None, [group, entry(3, "p", 5)])
    assert dict(fold.unsettled) == {7: (Run(0, 3, message_id(0), last_id, marks, 7),)}
    assert (fold.copy(), fold.position, entries) == (SequenceMap({"p": mark(5, 3), "q": mark(9, 1)}), position(4), 4)


def test_an_empty_stored_group_takes_no_offset() -> None:
    group = Entry(0, message_id(0), None, None, 7, 0)
    fold, entries = replay(None, [group, Entry(0, message_id(1), "p", 5)])
    assert (fold.position, entries) == (Position(1, message_id(1)), 1)
    assert fold.unsettled[7] == (Run(0, 0, message_id(0), message_id(0), (), 7),)


def test_a_settled_stored_group_counts() -> None:
    group = Entry(0, message_id(0), None, None, None, 2, (("p", mark(4, 1)),), message_id(1))
    assert replay(None, [group]).fold.settled == Snapshot(SequenceMap({"p": mark(4, 1)}), position(2))


def test_what_a_forgotten_producer_published_in_a_transaction_does_not_count() -> None:
    group = Entry(2, message_id(2), None, None, 8, 2, (("p", mark(30, 2)), ("q", mark(9, 3))), message_id(3))
    log = [transactional(7, 0, "p", 10), transactional(7, 1, "p", 20, begins=False), group, transactional(7, 4, "p", 3)]
    fold = replay(None, log, below({"p": 4})).fold
    fold.commit(7)
    fold.commit(8)
    assert fold.copy() == SequenceMap({"p": mark(3, 4), "q": mark(9, 3)})


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("hole", [transactional(7, 2, "p", 2), transactional(7, 1, "p", 2)._replace(message_id=message_id(0))])
def test_a_hole_inside_a_transaction_is_refused(hole: Entry, begins: bool) -> None:
    with pytest.raises(ReplayError):
        replay(None, [transactional(7, 0, "p", 1), hole._replace(begins=begins)])
