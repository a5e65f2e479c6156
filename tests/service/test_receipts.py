"""Receipts say of each message what became of it, however few runs they are folded into."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.requests import DUPLICATE, STORED, PublishResponse, ReceiptRun
from oncelog_service.log.append.history import Original
from oncelog_service.log.append.receipts import duplicate_runs, response, rows_of, stored_runs, unplaced_runs
from oncelog_service.log.stamps import Stamps
from oncelog_service.storage.keys import row_id, split_row_id
from oncelog_service.storage.rows import message_id_of

One = tuple[str, int | None, bytes | None, int | None]
"""status, sequence id, message id, offset of one message."""

rising = st.lists(st.integers(1, 3) | st.just(1), min_size=1, max_size=15).map(
    lambda steps: [sum(steps[: each + 1]) for each in range(len(steps))]
)


def unfolded(runs: list[ReceiptRun]) -> list[One]:
    """Each message of the runs, as a client counts them out."""
    found: list[One] = []
    for run in runs:
        for each in range(run.count):
            message_id = run.message_id
            if message_id is not None and each:
                timestamp, seq_id = split_row_id(message_id)
                message_id = row_id(timestamp, seq_id + each) + message_id[10:]
            sequence_id = None if run.sequence_id is None else run.sequence_id + each
            found.append((run.status, sequence_id, message_id, None if run.offset is None else run.offset + each))
    return found


@given(rising, st.booleans(), st.integers(65_520, 65_536), st.integers(0, 10**6))
def test_receipts_of_stored_messages_say_where_each_one_lies(
    sequence_ids: list[int], named: bool, used: int, offset: int
) -> None:
    # So that the end of a millisecond falls among the messages.
    row_ids, _ = Stamps(0, 0, row_id(1000, used - 1)).take(len(sequence_ids), 1000)
    runs = stored_runs(sequence_ids if named else None, row_ids, offset)
    assert unfolded(runs) == [
        (STORED, sequence_id if named else None, message_id_of(each), offset + number)
        for number, (each, sequence_id) in enumerate(zip(row_ids, sequence_ids, strict=True))
    ]


def test_a_request_in_one_millisecond_without_gaps_is_one_run() -> None:
    row_ids, _ = Stamps(0).take(10_000, 1000)
    assert len(stored_runs(list(range(10_000)), row_ids, 0)) == len(stored_runs(None, row_ids, 0)) == 1
    originals = {each: Original(each, message_id_of(row_ids[each]), each, b"", None) for each in range(10_000)}
    assert len(duplicate_runs(list(range(10_000)), originals)) == 1
    assert len(unplaced_runs(STORED, list(range(10_000)), 10_000)) == 1


places = st.none() | st.tuples(st.integers(1, 3), st.integers(0, 4), st.sampled_from([bytes(10), row_id(1, 0), row_id(1, 1)]))


@given(rising, st.lists(places, min_size=15, max_size=15), st.integers(0, 3))
def test_receipts_of_duplicates_say_where_each_original_lies_if_it_was_found(
    sequence_ids: list[int], found: list[tuple[int, int, bytes] | None], shift: int
) -> None:
    originals = {
        sequence_id: Original(sequence_id, row_id(place[0], place[1] + number) + place[2], number + shift * place[1], b"", None)
        for number, (sequence_id, place) in enumerate(zip(sequence_ids, found, strict=False))
        if place is not None
    }
    assert unfolded(duplicate_runs(sequence_ids, originals)) == [
        (DUPLICATE, each, *((originals[each].message_id, originals[each].offset) if each in originals else (None, None)))
        for each in sequence_ids
    ]


@given(rising, st.booleans())
def test_receipts_of_what_has_no_place_yet_say_so_of_each(sequence_ids: list[int], named: bool) -> None:
    assert unplaced_runs(DUPLICATE, [] if named else None, 0) == []
    runs = unplaced_runs(STORED, sequence_ids if named else None, len(sequence_ids))
    assert unfolded(runs) == [(STORED, each if named else None, None, None) for each in sequence_ids]


def test_an_answer_names_the_first_and_the_last_row_to_roll_back() -> None:
    rows = [row_id(5, 6), row_id(5, 7), row_id(7, 0)]
    assert response([], rows, 9) == PublishResponse([], 9, 5, 6, 7, 0)
    assert response([], iter(rows[:1]), 9) == PublishResponse([], 9, 5, 6, 5, 6)
    assert response([], (), 9) == PublishResponse([], 9, 0, 0, 0, 0)
    assert response([]) == PublishResponse([])


def test_only_rows_that_the_same_transaction_stored_can_be_rolled_back_by_a_retry() -> None:
    originals = {
        each: Original(each, message_id_of(row_id(9 - each, 0)), each, b"", pointer)
        for each, pointer in enumerate((None, 7, 8, 7, -7))
    }
    assert rows_of(originals, 7) == [row_id(6, 0), row_id(8, 0)]
    assert rows_of(originals, 5) == []
