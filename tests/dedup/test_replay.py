"""A snapshot and what came after it give the map that was lost; a hole ends the replay with an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import Entry, Position, ReplayError, Run, SequenceMap, Snapshot, replay
from tests.dedup.last_entries import entry, last_entry, message_id, position, transactional

logs = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 30)) | st.just((None, None)), min_size=1, max_size=30
).map(lambda rows: [entry(offset, producer, sequence_id) for offset, (producer, sequence_id) in enumerate(rows)])


def last_entries_of(log: list[Entry], forgotten: dict[str, int] | None = None, snapshot: Snapshot | None = None) -> SequenceMap:
    return replay(snapshot, log, below(forgotten or {})).fold.copy()


def below(forgotten: dict[str, int]) -> Callable[[str], int]:
    return lambda name: forgotten.get(name, 0)


@given(logs.filter(lambda log: len(log) > 1), st.data())
def test_a_missing_message_in_the_middle_is_refused(log: list[Entry], data: st.DataObject) -> None:
    missing = data.draw(st.integers(0, len(log) - 2))
    with pytest.raises(ReplayError, match=f"offset {missing},"):
        replay(None, log[:missing] + log[missing + 1 :])


@pytest.mark.parametrize(
    ("snapshot", "log"),
    [
        (Snapshot(SequenceMap(), position(3)), [entry(4, "p", 0)]),
        (Snapshot(SequenceMap(), Position(3, message_id(9))), [entry(3)]),
        (None, [entry(0), entry(0)]),
        (None, [entry(0), entry(1), Entry(2, message_id(0), None, None)]),
        (None, [entry(0), entry(1), Entry(2, message_id(1), None, None)]),
    ],
    ids=["a hole behind the snapshot", "an id below the snapshot's", "doubled", "an id that falls", "the same id again"],
)
def test_what_does_not_continue_the_log_is_refused(snapshot: Snapshot | None, log: list[Entry]) -> None:
    with pytest.raises(ReplayError):
        replay(snapshot, log)


def test_what_a_forgotten_producer_published_before_does_not_count() -> None:
    log = [entry(0, "p", 9), entry(1, "q", 5), entry(2, "p", 3), entry(3, "p", 4)]
    assert last_entries_of(log, {"p": 2}) == SequenceMap({"p": last_entry(4, 3), "q": last_entry(5, 1)})
    assert last_entries_of(log, {"p": 4}) == SequenceMap({"q": last_entry(5, 1)})
    before = Snapshot(SequenceMap({"p": last_entry(9, 0), "q": last_entry(5, 1)}), position(2))
    assert last_entries_of([entry(2, "p", 3)], {"p": 2}, before) == SequenceMap({"p": last_entry(3, 2), "q": last_entry(5, 1)})
    assert before.last_entries.get("p") == last_entry(9, 0), "the snapshot is not changed"
    behind = Snapshot(SequenceMap({"p": last_entry(3, 2)}), position(3))
    assert last_entries_of([], {"p": 2, "never seen": 1}, behind) == SequenceMap({"p": last_entry(3, 2)})


def test_the_log_is_read_once_and_lazily() -> None:
    def log() -> Iterator[Entry]:
        yield entry(0, "p", 0)
        yield entry(5, "p", 1)
        raise AssertionError("read on behind the hole")

    with pytest.raises(ReplayError):
        replay(None, log())


# --- transactions


def runs_of(*log: Entry) -> dict[int, tuple[Run, ...]]:
    return dict(replay(None, log).fold.unsettled)


def test_the_rows_of_one_request_are_one_run() -> None:
    found = runs_of(
        transactional(7, 0, "p", 1), transactional(7, 1, "p", 5, begins=False), transactional(7, 2, "p", 6, begins=False)
    )
    assert found == {7: (Run(0, 3, message_id(0), message_id(2), (("p", last_entry(6, 2)),), 7),)}


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


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("hole", [transactional(7, 2, "p", 2), transactional(7, 1, "p", 2)._replace(message_id=message_id(0))])
def test_a_hole_inside_a_transaction_is_refused(hole: Entry, begins: bool) -> None:
    with pytest.raises(ReplayError):
        replay(None, [transactional(7, 0, "p", 1), hole._replace(begins=begins)])
