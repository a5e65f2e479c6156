"""The answer for one message."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import eq
from typing import Any, Literal, overload

from oncelog.message_id import MessageId
from oncelog.wire.requests import ReceiptRun

_ROW_ID = struct.Struct(">qH")


class Receipt:
    """Tells what became of one message: ``stored`` now, or a ``duplicate`` of one that was stored before. Immutable.

    A duplicate's message id and offset are the original's: always for the producer's newest message, for all of its most recent
    request as long as they are not deleted, and whenever else the service knows them cheaply; otherwise None.
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
        """Its offset, or None for a duplicate whose original was not looked up, or is deleted."""
        return None if self._run.offset is None else self._run.offset + self._at

    @property
    def message_id(self) -> MessageId | None:
        """Its id, or None for a duplicate whose original was not looked up, or is deleted."""
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


class Receipts(Sequence[Receipt]):
    """The receipts of many messages, in their order: a sequence that makes each when it is looked at. Immutable.

    It equals a list of the same receipts, and is shown as that is; a slice is a list.
    """

    __slots__ = ("_ends", "runs")

    def __init__(self, runs: Sequence[ReceiptRun]) -> None:
        self.runs = runs
        """Of each, sequence ids, offsets and message ids follow on each other."""
        self._ends = [*accumulate(run.count for run in runs)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError("there is no receipt of that index")
        return self.at(at)

    def at(self, index: int) -> Receipt:
        """Make the receipt of an index that there is."""
        number = bisect_right(self._ends, index)
        return Receipt(self.runs[number], index - self._ends[number] + self.runs[number].count)

    def __iter__(self) -> Iterator[Receipt]:
        return (Receipt(run, at) for run in self.runs for at in range(run.count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipts | list):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr([*self])

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Show it in a notebook as the list that it is: an entry a line, and not each of thousands."""
        printer.pretty([*self])
