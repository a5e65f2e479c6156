"""How many bytes the messages of a log take. Pure.

Every run on disk says how many bytes of messages were ever laid up to it, ``upto_bytes`` (storage/runs.py), and TRIM says what
that was where the log begins for readers. So a log's size is a difference of two numbers, right after a restart as well, and
nobody reads what lies between. What is taken out of the middle – a message is erased, or a salvage does not find a run – is noted
with the run: those bytes are *missing*, until the log begins behind it.

The invariant: the ``upto_bytes`` of a run is that of the run before, and the bytes of its own bodies, and what is noted as
missing of it. ``verify`` counts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Size:
    """What one open log takes. Belongs to one event loop."""

    __slots__ = ("_missing", "_missing_bytes", "below", "handed_over", "shrinking", "watchers", "written")

    def __init__(self, written: int = 0, below: int = 0, missing: Iterable[Sequence[int]] = ()) -> None:
        """``written``: what the last run says; ``below`` and ``missing``: what TRIM does."""
        self.written = written
        """``upto_bytes`` of the last run on disk."""
        self.handed_over = written
        """The same of the last one that was handed to the writer."""
        self.below = below
        """The same of the last one all of which is deleted or trimmed."""
        self.shrinking: set[int] = set()
        """The ends of those runs that are being written with fewer bytes."""
        self.watchers: list[set[int]] = []
        """What is shrinking is added to each, while a verification compares the log with memory."""
        self._missing = _by_end(missing)
        self._missing_bytes = sum(self._missing.values())

    @property
    def bytes(self) -> int:
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
