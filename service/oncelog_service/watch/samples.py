"""The recent past of a service: one sample each few seconds, of which so many are kept as fill half an hour. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from oncelog.wire.overview import Sample

EVERY_SECONDS = 5.0
KEPT = 360
"""Half an hour."""


class Totals(NamedTuple):
    """What was counted of one thing so far; None: nobody counts it."""

    messages_in: int | None = None
    bytes_in: int | None = None
    messages_out: int | None = None
    bytes_out: int | None = None
    duplicates: int | None = None

    def since(self, before: Totals) -> Totals:
        """What was counted since then. What has begun anew meanwhile counts from its beginning."""
        return Totals(*(_since(one, other) for one, other in zip(before, self, strict=True)))

    def rates(self, seconds: float) -> dict[str, float | None]:
        """These in each of so many seconds, by the names of :class:`oncelog.wire.overview.Rates`."""
        return {name: None if each is None else round(each / seconds, 3) for name, each in self._asdict().items()}


def _since(before: int | None, now: int | None) -> int | None:
    if now is None:
        return None
    return now if before is None or now < before else now - before


def added(each: Iterable[Totals]) -> Totals:
    """The sums; of what nobody counts there is none."""
    sums: list[int | None] = [None] * len(Totals._fields)
    for totals in each:
        for at, value in enumerate(totals):
            if value is not None:
                sums[at] = (sums[at] or 0) + value
    return Totals(*sums)


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
        return -((each.messages_in or 0) + (each.messages_out or 0)), name

    return sorted(activity, key=weight)[:most]
