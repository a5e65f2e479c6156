"""The recent past of a service: one sample each few seconds, of which so many are kept as fill half an hour. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oncelog.wire.overview import Sample

EVERY_SECONDS = 5.0
KEPT = 360
"""Half an hour."""


class Totals(NamedTuple):
    """What was counted of one thing so far."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    duplicates: int = 0

    def since(self, before: Totals) -> Totals:
        """What was counted since then. What has begun anew meanwhile counts from its beginning."""
        return Totals(*(now - then if now >= then else now for then, now in zip(before, self, strict=True)))

    def rates(self, seconds: float) -> dict[str, float | None]:
        """These in each of so many seconds, by the names of :class:`oncelog.wire.overview.Rates`; 0 seconds: nobody knows."""
        return {name: round(each / seconds, 3) if seconds else None for name, each in self._asdict().items()}


def part(values: Sequence[float], of_them: float) -> float | None:
    """The least of these values that such a part of them does not exceed (nearest rank); None: there are none."""
    if not values:
        return None
    rank = max(1, -(-len(values) * of_them // 1))
    return sorted(values)[int(rank) - 1]


class Samples:
    """The newest samples, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[Sample] = deque(maxlen=KEPT)

    @property
    def newest(self) -> Sample | None:
        """None: there is none yet."""
        return self._kept[-1] if self._kept else None

    @property
    def next_number(self) -> int:
        """That of the sample that comes next; 1 at first."""
        return 1 if self.newest is None else self.newest.number + 1

    def add(self, sample: Sample) -> None:
        """Keep one more; the oldest goes where there are enough."""
        self._kept.append(sample)

    def behind(self, number: int) -> list[Sample]:
        """Those with higher numbers; all, where that one is none of ours: it may be of a process that was before this one."""
        newest = self.newest
        if newest is None or number > newest.number:
            return list(self._kept)
        return [each for each in self._kept if each.number > number]


def busiest(activity: Mapping[tuple[str, str], Totals], most: int) -> list[tuple[str, str]]:
    """The names of those through which most messages go, in and out; then by name."""

    def weight(name: tuple[str, str]) -> tuple[int, tuple[str, str]]:
        each = activity[name]
        return -(each.messages_in + each.messages_out + each.duplicates), name

    return sorted(activity, key=weight)[:most]
