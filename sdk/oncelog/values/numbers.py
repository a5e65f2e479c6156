"""Judges the numbers that callers give, where they are given. Pure.

A number that is judged later fails far from the line that has the mistake, on a thread that nobody looks at, or is waited for for
ever. Every public argument that takes a number goes through here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, SupportsIndex

from oncelog.errors import InvalidRequest

LONGEST_SECONDS = 365 * 86_400.0
"""A year; sockets and locks take some three hundred."""
MILLISECOND = 0.001
"""The least of what would be done without a pause otherwise, or could not be done at all."""
MAX_LONG = 2**63 - 1
"""What travels as Avro's long: sequence ids, offsets, write pointers."""


class Own(Enum):
    """The type of :data:`OWN`."""

    OWN = "own"

    def __repr__(self) -> str:
        return self.name


OWN: Final = Own.OWN
"""The ``timeout`` that a reader or consumer was made with; None would wait for ever."""


def check_seconds(name: str, seconds: float, least: float = 0.0) -> None:
    """Raises TypeError for what is no number, and ValueError for what nothing can wait for: a thread would end there, and who
    waits for that one would wait for ever."""
    if not isinstance(seconds, float | SupportsIndex) or isinstance(seconds, bool):
        raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
    if not least <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"{name} is {least:g} to {LONGEST_SECONDS:.0f} s, not {seconds}")


def check_timeout(seconds: float | None, name: str = "timeout") -> None:
    """As :func:`check_seconds`; None is one, too: for ever, or as long as something else says."""
    if seconds is not None:
        check_seconds(name, seconds)


def milliseconds(name: str, seconds: float | None) -> int | None:
    """Seconds as they travel; None: it is left to the service. Raises InvalidRequest for what the service would refuse."""
    if seconds is None:
        return None
    if not isinstance(seconds, float | SupportsIndex) or isinstance(seconds, bool) or not 1 <= seconds * 1000 <= MAX_LONG:
        raise InvalidRequest(f"{name} is a number of seconds from 0.001 on, not {seconds!r}")
    return round(seconds * 1000)


def check_count(name: str, count: SupportsIndex, least: int = 1) -> None:
    """Raises TypeError for what is no whole number, ValueError for one that is too small or counts more than there can be."""
    if not isinstance(count, SupportsIndex) or isinstance(count, bool):
        raise TypeError(f"{name} is a whole number, not {count!r}")
    if not least <= count.__index__() <= MAX_LONG:
        raise ValueError(f"{name} is at least {least}, and at most {MAX_LONG}, not {count}")


def check_long(name: str, number: int, least: int = 0) -> None:
    """Raises InvalidRequest for what the service would refuse as this number of a request."""
    if type(number) is not int or not least <= number <= MAX_LONG:
        raise InvalidRequest(f"{name} is an int from {least} to {MAX_LONG}, not {number!r}")


def check_longs(name: str, numbers: Iterable[int | None]) -> None:
    """As :func:`check_long` for each of them that is not None. A call for each would take longer than the rest of a batch."""
    for number in numbers:
        if number is not None and not (type(number) is int and 0 <= number <= MAX_LONG):
            check_long(name, number)
