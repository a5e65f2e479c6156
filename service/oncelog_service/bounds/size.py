"""How many bytes the messages of a log take. Pure.

Every run on disk says how many bytes of messages were ever laid up to it, ``upto_bytes`` (storage/runs.py), and TRIM says what
that was where the log begins for readers. So a log's size is a difference of two numbers, right after a restart as well, and
nobody reads what lies between. What is taken out of the middle – a message is erased, or a salvage does not find a run – is noted
with the run: those bytes are *missing*, until the log begins behind it.

The invariant: the ``upto_bytes`` of a run is that of the run before, and the bytes of its own bodies, and what is noted as
missing of it. ``verify`` counts again.

A limit is judged in the step that hands over, by what was handed over before: so requests that come at once do not pass it
together. Where the oldest messages are trimmed, the limit is for what cannot be: from the first message on that is undecided,
on disk or on its way there, everything stays until that is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from oncelog.errors import QuotaExceeded


class MaxBytes(NamedTuple):
    """What the messages of a topic may take."""

    bytes: int
    trims: bool
    """A topic that is full takes more and trims its oldest messages; else it refuses more."""


class Size:
    """What one open log takes. Belongs to one event loop."""

    __slots__ = ("_missing", "_missing_bytes", "_undecided", "below", "handed_over", "newest", "shrinking", "watchers", "written")

    def __init__(self, written: int = 0, below: int = 0, missing: Iterable[Sequence[int]] = ()) -> None:
        """``written``: what the last run says; ``below`` and ``missing``: what TRIM does."""
        self.written = written
        """``upto_bytes`` of the last run on disk."""
        self.newest = 0
        """Bytes of what was written last."""
        self.handed_over = written
        """The same of the last one that was handed to the writer."""
        self.below = below
        """The same of the last one all of which is deleted or trimmed."""
        self.shrinking: set[int] = set()
        """The ends of those runs that are being written with fewer bytes."""
        self.watchers: list[set[int]] = []
        """What is shrinking is added to each, while a verification compares the log with memory."""
        self._undecided: dict[bytes, tuple[int, int]] = {}
        """Row id that a request of a transaction begins with -> its offset, and ``upto_bytes`` before it, rising; until that is
        settled."""
        self._missing = _by_end(missing)
        self._missing_bytes = sum(self._missing.values())

    def grow(self, upto_bytes: int) -> None:
        """What says ``upto_bytes`` is on disk."""
        self.newest, self.written = upto_bytes - self.written, upto_bytes

    @property
    def present(self) -> int:
        """Of all messages that are on disk and neither deleted nor trimmed; a run that is trimmed in part counts as a whole."""
        return self.written - self.below - self._missing_bytes

    @property
    def missing(self) -> dict[int, int]:
        """The offset behind a run -> the bytes that are missing of it; rising. A copy."""
        return dict(self._missing)

    def missing_from(self, offset: int) -> list[list[int]]:
        """What TRIM says is missing once the log begins behind the run that ends at this offset."""
        return [[end, size] for end, size in self._missing.items() if end > offset]

    def missing_with(self, end: int, size: int) -> list[list[int]]:
        """What TRIM says is missing once the run that ends at this offset has ``size`` bytes less."""
        found = {**self._missing, end: self._missing.get(end, 0) + size}
        return [[each, found[each]] for each in sorted(found)]

    def check(self, limit: MaxBytes, more: int) -> None:
        """Raises QuotaExceeded where so many bytes ``more`` are too many."""
        held = self._held if limit.trims else self.handed_over - self.below - self._missing_bytes
        if not more or held + more <= limit.bytes:
            return
        if limit.trims:
            what = f"{held} of the {limit.bytes} bytes that its messages may take are of undecided transactions, or behind those"
        else:
            what = f"its messages take {held} of the {limit.bytes} bytes that they may"
        raise QuotaExceeded(
            f"the topic cannot take {more} bytes more: {what} (max.bytes); nothing was done; trim it, or end what is undecided",
            quota="max.bytes",
            limit=limit.bytes,
            retry_after_ms=None,
        )

    def undecided(self, row_id: bytes, offset: int, before: int) -> None:
        """A request of a transaction begins with this row, before which the log took so many bytes; in the order of the log."""
        self._undecided[row_id] = offset, before

    def decided(self, row_id: bytes) -> None:
        """It has been committed, or rolled back."""
        self._undecided.pop(row_id, None)

    @property
    def _held(self) -> int:
        """Bytes from the first message on that is not decided; nothing of it can be trimmed."""
        if not self._undecided:
            return 0
        offset, before = next(iter(self._undecided.values()))
        return self.handed_over - before - sum(size for end, size in self._missing.items() if end > offset)

    def left_behind(self) -> Callable[[int, int], int]:
        """As of now: what tells the bytes on disk behind the run that ends at an offset and says so many ``upto_bytes``."""
        written, missing = self.written, self.missing
        return lambda end, upto_bytes: written - upto_bytes - sum(size for each, size in missing.items() if each > end)

    def shrinks(self, end: int) -> None:
        """The run that ends at this offset is handed to the writer with fewer bytes; alone, and until :meth:`noted`."""
        self.shrinking.add(end)
        for watcher in self.watchers:
            watcher.add(end)

    def noted(self, below: int, missing: Iterable[Sequence[int]]) -> None:
        """TRIM says so on disk."""
        self.below, self._missing = below, _by_end(missing)
        self.shrinking.clear()
        self._missing_bytes = sum(self._missing.values())


def _by_end(missing: Iterable[Sequence[int]]) -> dict[int, int]:
    return {each[0]: each[1] for each in missing}
