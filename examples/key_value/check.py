"""The proof: is what several clients were told one serial history, and is that history the log? Pure.

The log is replayed change by change, and what each client noted is held against it:

1. Every change in the log was asked for, and no request has changed anything twice.
2. A change that was acknowledged is in the log, at the place its answer said; what was refused or only read is not. What became
   of a request without an answer is not known: it is there once or not at all.
3. Each change follows from the value before it: an increment adds one, a compare-and-set found what it expected. What an answer
   said of the values before and after was so.
4. A refusal and a reading are right at their place in the history.
5. The history keeps to the clock: what had been answered before something else was asked lies before it (linearizability).
6. A leader's dictionary is the fold of the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .history import Attempt, Request
from .leader import Value


class Logged(NamedTuple):
    """One change as it lies in the log."""

    offset: int
    request: str | None
    key: str
    value: Value


class Replay:
    """The log, folded, with the values of each key at every place."""

    def __init__(self, log: Sequence[Logged]) -> None:
        self.log = log
        self.offsets: dict[str | None, list[int]] = defaultdict(list)
        """Of the changes that each request has brought about."""
        self._places: dict[str, list[int]] = defaultdict(list)
        self._values: dict[str, list[Value]] = defaultdict(list)
        for place, change in enumerate(log):
            self.offsets[change.request].append(place)
            self._places[change.key].append(place)
            self._values[change.key].append(change.value)

    def value(self, key: str, place: int) -> Value:
        """Of a key after the first ``place`` changes."""
        changes = bisect_left(self._places[key], place)
        return self._values[key][changes - 1] if changes else None

    def values(self, place: int) -> dict[str, str]:
        """The whole dictionary after the first ``place`` changes."""
        found = {key: self.value(key, place) for key in list(self._places)}
        return {key: value for key, value in found.items() if value is not None}


def check(log: Sequence[Logged], attempts: Sequence[Attempt], leaders: Iterable[tuple[int, Mapping[str, str]]]) -> list[str]:
    """What is wrong, in words; nothing if all of it holds. ``leaders``: next offset and dictionary of each."""
    replay = Replay(log)
    problems = [f"the change at place {place} says offset {at.offset}" for place, at in enumerate(log) if at.offset != place]
    problems += _check_requests(replay, {attempt.request.name for attempt in attempts})
    for attempt in attempts:
        problems += [f"{_shown(attempt.request)}: {problem}" for problem in _check_attempt(replay, attempt)]
    problems += _check_clock(replay, attempts)
    for place, values in leaders:
        if place > len(log) or dict(values) != replay.values(place):
            problems.append(f"a leader's dictionary after {place} changes is not what the log gives: {dict(values)}")
    return problems


def _check_requests(replay: Replay, asked: set[str]) -> Iterator[str]:
    for request, offsets in replay.offsets.items():
        if request not in asked:
            yield f"nobody asked for the changes of {request!r} at {offsets}"
        elif len(offsets) > 1:
            yield f"{request} has changed something {len(offsets)} times, at {offsets}"


def _check_attempt(replay: Replay, attempt: Attempt) -> Iterator[str]:
    request, answer = attempt.request, attempt.answer
    offsets = replay.offsets.get(request.name, [])
    for offset in offsets:
        yield from _check_change(replay, request, offset)
    if answer is None:
        return
    if answer.place > len(replay.log):
        yield f"answered at place {answer.place}, and the log ends at {len(replay.log)}"
        return
    if answer.status == "changed":
        if offsets != [answer.place]:
            yield f"acknowledged at {answer.place}, and in the log at {offsets}"
        elif answer.after != replay.log[answer.place].value:
            yield f"acknowledged as {answer.after!r}, and in the log as {replay.log[answer.place].value!r}"
    elif offsets:
        yield f"{answer.status}, and in the log at {offsets}"
    if answer.before != replay.value(request.key, answer.place):
        yield f"saw {answer.before!r} at {answer.place}, where there was {replay.value(request.key, answer.place)!r}"
    if answer.status == "refused" and (request.kind != "compare and set" or answer.before == request.expected):
        yield f"refused for no reason: there was {answer.before!r}"


def _check_change(replay: Replay, request: Request, offset: int) -> Iterator[str]:
    change, before = replay.log[offset], replay.value(request.key, offset)
    if change.key != request.key:
        yield f"has changed {change.key!r} at {offset}"
    elif request.kind == "get":
        yield f"a get has changed something at {offset}"
    elif request.kind == "compare and set" and before != request.expected:
        yield f"expected {request.expected!r} and has changed {before!r} at {offset}"
    elif change.value != wanted(request, before):
        yield f"has made {change.value!r} of {before!r} at {offset}"


def wanted(request: Request, before: Value) -> Value:
    """What the request is to make of a value."""
    return str(int(before or "0") + 1) if request.kind == "increment" else request.value


def _check_clock(replay: Replay, attempts: Iterable[Attempt]) -> Iterator[str]:
    """In the order of asking: each lies behind everything that had been answered by then.

    Where there are n changes, a reading lies at n; the change at offset n lies between n and n + 1.
    """
    begun = sorted(attempts, key=lambda attempt: attempt.begun)
    answered = iter(sorted((each for each in begun if each.ended is not None), key=lambda attempt: attempt.ended or 0.0))
    following = next(answered, None)
    reached, last = 0, ""
    for attempt in begun:
        while following is not None and following.ended is not None and following.ended < attempt.begun:
            place = _place_behind(following)
            if place > reached:
                reached, last = place, following.request.name
            following = next(answered, None)
        for place in _places(replay, attempt):
            if place < reached:
                yield f"{_shown(attempt.request)}: lies at {place}, before {last}, which had been answered before it was asked"


def _place_behind(attempt: Attempt) -> int:
    assert attempt.answer is not None
    return attempt.answer.place + (attempt.answer.status == "changed")


def _places(replay: Replay, attempt: Attempt) -> list[int]:
    if attempt.answer is not None:
        return [attempt.answer.place]
    return replay.offsets.get(attempt.request.name, [])


def _shown(request: Request) -> str:
    return f"{request.name} ({request.kind} {request.key})"
