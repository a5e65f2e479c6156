"""Which sequence ids a producer's messages have, and which were taken. Pure: no thread, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from itertools import islice, pairwise
from operator import lt

from oncelog.errors import InvalidRequest, MixedSequenceIds, SequenceIdNotRising
from oncelog.values.numbers import MAX_LONG


class Numbers:
    """The numbering of one producer: by the caller, who gives each message its id, or by the SDK, which counts on.

    Of the caller's ids it knows those that are used, or may be: those that were sent and not definitely refused. A used id may be
    sent again (a retry). An unused one below the highest, one that was *passed over*, may not: the service would take it for a
    duplicate and the message would be lost - as happened when two threads took ids in one order and queued them in the other
    (Pulsar #17836).
    """

    __slots__ = ("_forgotten", "by_caller", "highest", "next", "opened_at", "ranges")

    MAX_RANGES = 10_000
    """Where ids leave gaps each range costs memory; the oldest are forgotten beyond so many."""

    def __init__(self, last: int | None, initial: int | None = None) -> None:
        """``last``: the highest sequence id that is stored; ``initial``: that of the first message; then the SDK numbers."""
        self.opened_at = -1 if last is None else last
        self.next = self.opened_at + 1 if initial is None else initial
        self.by_caller: bool | None = None if initial is None else False
        """None until the first message decides it."""
        self.ranges: list[tuple[int, int]] = []
        """(first, last) of each range of used ids, rising."""
        self.highest: int | None = None
        """Ids up to here may not be taken anew."""
        self._forgotten = -1

    def copy(self) -> Numbers:
        """Copy it."""
        copied = copy(self)
        copied.ranges = self.ranges.copy()
        return copied

    def one(self, given: int | None) -> tuple[int, tuple[int, int] | None]:
        """Return a message's sequence id, and what taking it makes of the newest range of those taken, which begins with the id
        where that is a range of its own; None: the id is used already. Changes nothing."""
        if self.by_caller is not None and self.by_caller is (given is None):
            raise MixedSequenceIds(
                "this producer's messages are numbered by "
                + ("the application: give each a sequence_id" if self.by_caller else "the SDK: give none a sequence_id")
            )
        if given is None:
            if self.next > MAX_LONG:
                raise InvalidRequest(f"the producer has used up its sequence ids: {MAX_LONG} is the last one there is")
            return self.next, None
        if given <= self.opened_at:
            return given, None
        highest, ranges = self.highest, self.ranges
        if highest is None or given > highest:
            return given, (ranges[-1][0] if ranges and given == ranges[-1][1] + 1 else given, given)
        at = bisect_left(ranges, (given + 1,)) - 1
        if given > (ranges[at][1] if at >= 0 else self._forgotten):
            raise SequenceIdNotRising(
                f"sequence id {given} was passed over: {highest} was sent before it; nothing was sent, and resume will pass over "
                f"it, too. Send it under a number above {highest}; where several threads send, let one of them give the numbers "
                "and send, or hold a lock around both",
                last=highest,
                received=given,
            )
        return given, None

    def all(self, given: Sequence[int | None]) -> tuple[list[int], Numbers]:
        """Return the sequence ids of messages that are one request, and the numbering behind them. Changes nothing."""
        after = self.copy()
        numbers = after._take_run(given) or [after._take(each) for each in given]
        for last, received in pairwise(numbers):
            if received <= last:
                raise SequenceIdNotRising(f"{received} does not follow {last}; nothing was sent", last=last, received=received)
        return numbers, after

    def _take_run(self, given: Sequence[int | None]) -> list[int] | None:
        """Take the ids at once that follow on each other, as most do, all of them new. None: each has to be looked at."""
        count = len(given)
        if given.count(None) == count > 0:
            first, _ = self.one(None)
            if first + count - 1 > MAX_LONG:
                return None
            self.by_caller, self.next = False, first + count
            return list(range(first, first + count))
        if None in given or given[-1] - given[0] != count - 1 or not all(map(lt, given, islice(given, 1, None))):  # type: ignore[operator, arg-type]  # no None among them
            return None
        first, newest = self.one(given[0])
        if newest is None:
            return None
        self.by_caller = True
        self._note(first, (newest[0], first + count - 1))
        return list(given)  # type: ignore[arg-type]  # as above

    def _take(self, given: int | None) -> int:
        number, newest = self.one(given)
        self.by_caller = given is not None
        if given is None:
            self.next = number + 1
        elif newest is not None:
            self._note(number, newest)
        return number

    def _note(self, begin: int, newest: tuple[int, int]) -> None:
        """Note that ids above the highest one are used, from ``begin`` on; ``newest``: what the newest range is with them."""
        self.highest = newest[1]
        if newest[0] == begin:
            self.ranges.append(newest)
            self.forget()
        else:
            self.ranges[-1] = newest

    def give_back(self, unused: Sequence[int], newest: bool) -> None:
        """Take back rising ids that were refused for good. ``newest``: nothing was sent behind them: they may be taken anew."""
        if not self.by_caller:
            if newest:
                self.next = unused[0]
            return
        for sequence_id in reversed(unused):
            self._remove(sequence_id)
        if newest:
            self.highest = self.ranges[-1][1] if self.ranges else None if self._forgotten < 0 else self._forgotten

    def _remove(self, sequence_id: int) -> None:
        at = bisect_left(self.ranges, (sequence_id + 1,)) - 1
        if at < 0 or sequence_id > self.ranges[at][1]:
            return
        first, last = self.ranges[at]
        rest = [(begin, end) for begin, end in ((first, sequence_id - 1), (sequence_id + 1, last)) if begin <= end]
        self.ranges[at : at + 1] = rest
        self.forget()

    def forget(self) -> None:
        """Drop the oldest range, if there are too many."""
        if len(self.ranges) > self.MAX_RANGES:
            self._forgotten = self.ranges.pop(0)[1]
