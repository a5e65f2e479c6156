"""The answer for one message."""

from __future__ import annotations

import struct
from typing import Literal

from oncelog.message_id import MessageId
from oncelog.wire.requests import ReceiptRun

_ROW_ID = struct.Struct(">qH")


class Receipt:
    """Tells what became of one message: ``stored`` now, or a ``duplicate`` of one that was stored before. Immutable.

    A duplicate's message id and offset are the original's: always when the producer's most recent request is repeated, and
    whenever else the service knows them cheaply; otherwise None.
    """

    __slots__ = ("_at", "_run")
    _run: ReceiptRun
    _at: int

    def __init__(self, run: ReceiptRun, at: int) -> None:
        """Message number ``at`` of the run."""
        self._run = run
        self._at = at

    @property
    def status(self) -> Literal["stored", "duplicate"]:
        """Whether it is stored now or was before."""
        return "stored" if self._run.status == "stored" else "duplicate"

    @property
    def sequence_id(self) -> int:
        """The producer's number for the message."""
        assert self._run.sequence_id is not None
        return self._run.sequence_id + self._at

    @property
    def offset(self) -> int | None:
        """Its offset, or None for a duplicate whose original was not looked up."""
        return None if self._run.offset is None else self._run.offset + self._at

    @property
    def message_id(self) -> MessageId | None:
        """Its id, or None for a duplicate whose original was not looked up."""
        if self._run.message_id is None:
            return None
        timestamp, seq_id = _ROW_ID.unpack_from(self._run.message_id)
        return MessageId.from_bytes(_ROW_ID.pack(timestamp, seq_id + self._at) + self._run.message_id[_ROW_ID.size :])

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, Receipt) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        status, sequence_id, offset, message_id = self._values()
        return f"Receipt({status!r}, sequence_id={sequence_id}, offset={offset}, message_id={message_id})"

    def _values(self) -> tuple[str, int, int | None, MessageId | None]:
        return self.status, self.sequence_id, self.offset, self.message_id
