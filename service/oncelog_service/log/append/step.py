"""What one step of a publish comes to: what is known of it, what has to be waited for, or what was handed over.

A publish is judged and handed over in one step of the event loop, or has changed nothing. What it waits for in between, whoever
waits, is in one place: a loop around the step (TopicLog.publish).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oncelog.wire.codec import encode_publish_response, encode_stored
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishResponse, ReceiptRun
from oncelog_service.log.append.history import Original
from oncelog_service.log.append.receipts import response, stored_runs
from oncelog_service.storage.keys import split_row_id
from oncelog_service.storage.rows import message_id_of


class Known(NamedTuple):
    """What of a request is already stored: its first ``messages``."""

    messages: int
    receipts: list[ReceiptRun]
    originals: Mapping[int, Original]


NOTHING = Known(0, [], {})


class Sofar(NamedTuple):
    """What was found out about a request while it waited."""

    known: Known = NOTHING
    cleared: Mapping[int, bool] = {}
    """Unsettled transactions of its producer that do not forbid it, and whether they belong to its own."""


BEGINNING = Sofar()

Waits = Callable[[], Awaitable[Sofar]]
"""Waits for what a verdict depends on; then it is to be judged again, with what was found out. Or raises: the verdict."""


@dataclass(slots=True)
class Stored:
    """What a request came to: what was there already, and what of it was handed over to be written. An answer waits for that."""

    known: Known
    rows_again: Sequence[bytes]
    """Rows of its transaction among those that were there already, rising."""
    write_pointer: int | None
    sequence_ids: Sequence[int] | None = None
    """Of what was handed over."""
    row_ids: Sequence[bytes] = ()
    """Empty: nothing was."""
    first_offset: int = 0

    def encoded(self) -> bytes:
        """The answer in our own media type, as it is on the wire."""
        ids, rows = self.sequence_ids, self.row_ids
        is_one = rows and not self.known.messages and self.write_pointer is None and rows[0][:8] == rows[-1][:8]
        if is_one and (ids is None or ids[-1] - ids[0] == len(rows) - 1):
            sequence_id = None if ids is None else ids[0]
            return encode_stored(*split_row_id(rows[0]), len(rows), sequence_id, message_id_of(rows[0]), self.first_offset)
        return encode_publish_response(ONCELOG_AVRO, self.response())

    def response(self) -> PublishResponse:
        """The answer, once what was handed over is on disk."""
        receipts = self.known.receipts
        if self.row_ids:
            receipts = receipts + stored_runs(self.sequence_ids, self.row_ids, self.first_offset)
        return response(receipts, [*self.rows_again, *self.row_ids], self.write_pointer)
