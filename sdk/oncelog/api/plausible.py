"""Whether an answer can be one: what a service never says is an InvalidResponse, and nothing of it is used. Pure.

A page of messages goes on behind the place that was asked for: ids and offsets strictly rise, within it and from one to the
next, so that none is delivered twice. Offsets may be left out, since messages expire one by one and are rolled back.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from operator import lt
from typing import Any

from oncelog.errors import InvalidResponse
from oncelog.message_id import SIZE
from oncelog.values.numbers import MAX_LONG
from oncelog.wire.columns import MessageColumns
from oncelog.wire.pages import Page
from oncelog.wire.requests import DUPLICATE, STORED, ReceiptRun

_MAX_SEQ_ID = 0xFFFF
_NOT_BEFORE, _BEFORE = bytes(8), struct.pack(">q", 253_402_300_800_000)
"""Of a timestamp: from 1970 to the end of the year 9999, which Python can show."""


def check_page(
    records: Sequence[Mapping[str, Any]],
    position: bytes | None,
    *,
    start: bytes | int | None,
    inclusive: bool = False,
    first_offset: int | None = None,
    limit: int | None = None,
) -> None:
    """Check the answer to a poll or a consumer's receive.

    ``start``: as asked, the id of a message or a time in ms; ``first_offset``: as asked.

    Raises InvalidResponse.
    """
    after = start if isinstance(start, bytes) else None
    if position is not None:
        _check_id(position)
        if after is not None and not (position >= after if inclusive else position > after):
            raise InvalidResponse("the page ends before the place that was asked for: it would come again for ever")
    if not records:
        return
    if limit is not None and len(records) > limit:
        raise InvalidResponse(f"the page has {len(records)} messages where {limit} were asked for")
    if isinstance(records, Page):
        ids, offsets = records.ids, records.offsets
    else:
        ids = [record["id"] for record in records]
        offsets = [range(record["offset"], record["offset"] + 1) for record in records]
    _check_ids(ids)
    if after is not None and not (ids[0] >= after if inclusive else ids[0] > after):
        raise InvalidResponse("the page begins before the place that was asked for: it was delivered already")
    if isinstance(start, int) and int.from_bytes(ids[0][:8], "big") < start:
        raise InvalidResponse("the page begins before the time that was asked for")
    if position is None or position < ids[-1]:
        raise InvalidResponse("the page does not say that it ends behind its last message: it would come again for ever")
    _check_offsets(offsets, first_offset or 0)


def check_receipts(runs: Sequence[ReceiptRun], messages: int) -> None:
    """Check the receipts, in runs, of a publish of so many messages. Raises InvalidResponse."""
    named = 0
    for run in runs:
        if run.status not in (STORED, DUPLICATE) or not 0 < run.count <= messages - named:
            raise InvalidResponse("the answer has receipts for other messages than were sent; they may or may not be stored")
        named += run.count
        for first in (run.sequence_id, run.offset):
            if first is not None and not 0 <= first <= MAX_LONG - run.count + 1:
                raise InvalidResponse("the answer has a receipt with a number that cannot be one")
        if run.message_id is not None:
            _check_id(run.message_id)
            if int.from_bytes(run.message_id[8:10], "big") + run.count - 1 > _MAX_SEQ_ID:
                raise InvalidResponse("the answer has a receipt whose ids cannot follow on each other")
    if named != messages:
        raise InvalidResponse(
            f"the answer does not name all messages that were sent, but {named} of {messages}; they may or may not be stored"
        )


def check_names_all(runs: Sequence[ReceiptRun], sequence_ids: Sequence[int]) -> None:
    """A message counts as stored only when the answer names its sequence id. The runs are checked: they are of as many messages.

    Raises InvalidResponse.
    """
    at, most = 0, len(sequence_ids)
    for run in runs:
        first, upto = run.sequence_id, at + run.count
        if first is None or not at < upto <= most or list(sequence_ids[at:upto]) != list(range(first, first + run.count)):
            raise InvalidResponse("the answer does not name the sequence ids that were sent; they may or may not be stored")
        at = upto
    if at != most:
        raise InvalidResponse("the answer does not name all messages that were sent; they may or may not be stored")


def check_columns(columns: MessageColumns, first: int, upto: int, limit: int | None) -> None:
    """Check the columns of the messages with offsets from ``first`` to below ``upto``. Raises InvalidResponse."""
    if not (first < columns.next <= upto or first == columns.next == upto):
        raise InvalidResponse(f"the answer goes on at offset {columns.next}, where {first} to {upto} were asked for")
    if limit is not None and columns.messages > limit:
        raise InvalidResponse(f"the answer has {columns.messages} messages where {limit} were asked for")
    at = first
    for run in columns.offsets:
        if run.first < at or run.first + run.count > columns.next:
            raise InvalidResponse(f"the answer has offsets from {run.first} on, where {at} to {columns.next} were due")
        at = run.first + run.count
    for producers in columns.producers:
        number = producers.sequence_id
        if number is not None and not 0 <= number <= MAX_LONG - producers.count + 1:
            raise InvalidResponse("the answer has a sequence id that cannot be one")
    ids = columns.message_ids
    if ids:
        _check_ids([ids[at : at + SIZE] for at in range(0, len(ids), SIZE)])


def check_names_rise(names: Sequence[Any], after: Any, rising: bool = True) -> None:
    """Check one page of a listing: it goes on behind ``after``; one that is not ``rising`` ends elsewhere at least.

    Raises InvalidResponse: it would never end.
    """
    good = all(map(lt, names, islice(names, 1, None))) and (after is None or (after < names[0] if rising else after != names[-1]))
    if not good:
        raise InvalidResponse("the page of a listing does not go on behind the one before: it would come again for ever")


def _check_id(message_id: bytes) -> None:
    if len(message_id) != SIZE:
        raise InvalidResponse(f"the answer has a message id of {len(message_id)} bytes")
    if not _NOT_BEFORE <= message_id[:8] < _BEFORE:
        raise InvalidResponse("the answer has a message id of no time there is")


def _check_ids(ids: Sequence[bytes]) -> None:
    _check_id(ids[0])
    _check_id(ids[-1])
    if set(map(len, ids)) != {SIZE}:
        raise InvalidResponse(f"the answer has message ids of other than {SIZE} bytes")
    if not all(map(lt, ids, islice(ids, 1, None))):
        raise InvalidResponse("the ids of the answer's messages do not rise")


def _check_offsets(runs: Sequence[range], first: int) -> None:
    begin, end = runs[0].start, runs[-1].stop - 1
    if begin < first or end > MAX_LONG:
        raise InvalidResponse(f"the answer has offsets from {begin} to {end}, where {first} on were asked for")
    if not all(run.stop <= following.start for run, following in pairwise(runs)):
        raise InvalidResponse("the offsets of the answer's messages do not rise")
