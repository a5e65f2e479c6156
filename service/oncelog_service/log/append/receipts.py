"""What a publish answers: receipts as runs, and the range of rows that the TMS page calls rollback information. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise

from oncelog.wire.requests import DUPLICATE, STORED, PublishResponse, ReceiptRun
from oncelog_service.log.append.history import Original, OriginalRun
from oncelog_service.storage.keys import ROW_ID_SIZE, split_row_id
from oncelog_service.storage.rows import message_id_of


def stored_runs(sequence_ids: Sequence[int] | None, row_ids: Sequence[bytes], first_offset: int) -> list[ReceiptRun]:
    """Receipts of messages that have just become rows."""
    runs: list[ReceiptRun] = []
    at = 0
    for count in _run_lengths(sequence_ids, row_ids):
        sequence_id = None if sequence_ids is None else sequence_ids[at]
        runs.append(ReceiptRun(STORED, count, sequence_id, message_id_of(row_ids[at]), first_offset + at))
        at += count
    return runs


def duplicate_runs(sequence_ids: Sequence[int], originals: Mapping[int, Original]) -> list[ReceiptRun]:
    """Receipts of messages that are there already, with the ids of those originals that were found."""
    whole = _one_run(sequence_ids, originals)
    if whole is not None:
        return [whole]
    runs: list[ReceiptRun] = []
    for sequence_id in sequence_ids:
        original = originals.get(sequence_id)
        last = runs[-1] if runs else None
        if last is not None and _continues(last, sequence_id, original):
            runs[-1] = last._replace(count=last.count + 1)
        else:
            message_id, offset = (None, None) if original is None else (original.message_id, original.offset)
            runs.append(ReceiptRun(DUPLICATE, 1, sequence_id, message_id, offset))
    return runs


def repeated_runs(originals: OriginalRun) -> list[ReceiptRun]:
    """Receipts of messages that are there already, side by side. Those of a millisecond have no seq_id between them: offsets are
    dense."""
    return [
        run._replace(status=DUPLICATE) for run in stored_runs(originals.sequence_ids, originals.row_ids, originals.first_offset)
    ]


def _one_run(sequence_ids: Sequence[int], originals: Mapping[int, Original]) -> ReceiptRun | None:
    """One receipt for all messages, if they lie side by side, as those of a repeated request do; else None."""
    count = len(sequence_ids)
    if not originals or len(originals) < count or sequence_ids[-1] - sequence_ids[0] != count - 1:
        return None
    first, last = originals.get(sequence_ids[0]), originals.get(sequence_ids[-1])
    if first is None or last is None:
        return None
    timestamp, seq_id = split_row_id(first.message_id)
    if split_row_id(last.message_id) != (timestamp, seq_id + count - 1):
        return None
    if any(chain(first.message_id[ROW_ID_SIZE:], last.message_id[ROW_ID_SIZE:])):
        return None  # in a stored group the seq_id does not rise
    if [each.offset for each in map(originals.__getitem__, sequence_ids)] != [*range(first.offset, first.offset + count)]:
        return None
    return ReceiptRun(DUPLICATE, count, sequence_ids[0], first.message_id, first.offset)


def unplaced_runs(status: str, sequence_ids: Sequence[int] | None, count: int) -> list[ReceiptRun]:
    """Receipts of messages that have no place in the log yet."""
    if not count:
        return []
    if sequence_ids is None:
        return [ReceiptRun(status, count, None, None, None)]
    return [run._replace(status=status) for run in duplicate_runs(sequence_ids, {})]


def response(runs: list[ReceiptRun], row_ids: Iterable[bytes] = (), write_pointer: int | None = None) -> PublishResponse:
    """The answer; ``row_ids`` rise and say which rows a roll-back would take."""
    ends = list(row_ids)
    if not ends:
        return PublishResponse(runs, write_pointer)
    return PublishResponse(runs, write_pointer, *split_row_id(ends[0]), *split_row_id(ends[-1]))


def rows_of(originals: Mapping[int, Original], write_pointer: int) -> list[bytes]:
    """Row ids, rising, of those originals that the same transaction stored: its retry needs the roll-back information too."""
    return sorted(each.message_id[:ROW_ID_SIZE] for each in originals.values() if each.write_pointer == write_pointer)


def _run_lengths(sequence_ids: Sequence[int] | None, row_ids: Sequence[bytes]) -> list[int]:
    """How many messages in a row share a receipt: one millisecond, and sequence ids that leave nothing out."""
    if sequence_ids is None or sequence_ids[-1] - sequence_ids[0] == len(sequence_ids) - 1:
        ends = [0]
        while (begin := ends[-1]) < len(row_ids):
            ends.append(bisect_right(row_ids, row_ids[begin][:8] + b"\xff\xff", begin))
        return [end - begin for begin, end in pairwise(ends)]
    lengths = [1]
    for at in range(1, len(row_ids)):
        if sequence_ids[at] == sequence_ids[at - 1] + 1 and row_ids[at][:8] == row_ids[at - 1][:8]:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def _continues(run: ReceiptRun, sequence_id: int, original: Original | None) -> bool:
    if run.sequence_id is None or sequence_id != run.sequence_id + run.count:
        return False
    if original is None or run.message_id is None or run.offset is None:
        return original is None and run.message_id is None
    if any(chain(run.message_id[ROW_ID_SIZE:], original.message_id[ROW_ID_SIZE:])):
        return False  # in a stored group the seq_id does not rise
    timestamp, seq_id = split_row_id(run.message_id)
    return split_row_id(original.message_id) == (timestamp, seq_id + run.count) and original.offset == run.offset + run.count
