"""Answers that were written and are not read: bounded in bytes, all together, and in time.

The invariants:

* What is written to a connection counts until its client has read it, or the connection has ended; but for what fits into the
  system's buffers and 16 KiB.
* Beyond the bound the slowest reader ends, and the next one, until all together are within it; one alone may go beyond.
* A client that reads less than the least rate for as long as its grace ends; where half of the bound is used, or no connection
  has a place left, after a moment.
* Who ends so is cut off in the middle of an answer, which passes for none: its length is not reached, or the last chunk missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from oncelog_service.rest.bounds.pace import Pace
from oncelog_service.traffic import Traffic

BUFFER_BYTES = 16 * 2**10
"""What a connection may hold unread before it counts."""

_LOOK_SECONDS = 1.0
_PRESSED_SECONDS = 2.0
"""How long a client may take nothing while others wait for room, or for its place."""
_ROOM_SECONDS = 5.0
"""How long what only reads waits for room: then it is answered, and the slowest reader ends for it."""


class Reader(Protocol):
    """A connection, as far as it matters here."""

    def unread(self) -> int:
        """Bytes that were written to it and have not left."""

    def abort(self) -> None:
        """Ends it at once."""


class Noted:
    """What was last seen of a reader."""

    __slots__ = ("good_until", "size")

    def __init__(self, size: int, good_until: float) -> None:
        self.size = size
        self.good_until = good_until


def slowest(readers: Mapping[Reader, Noted]) -> Reader:
    """Whose time is over first; of several the one that has been unread longest."""
    return min(readers, key=lambda each: readers[each].good_until)


class Unread:
    """Looks after those who do not read. Nothing is done for who does."""

    def __init__(self, max_bytes: int, traffic: Traffic) -> None:
        self.pace = Pace(4 * 2**10, 60.0)
        """nginx's send_timeout, and a rate at which a mebibyte takes four minutes: a byte a minute does not hold on."""
        self.max_bytes = max_bytes
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._readers: dict[Reader, Noted] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()

    @property
    def is_pressed(self) -> bool:
        """Tells whether what only reads has to wait."""
        return self._traffic.unread_bytes > self.max_bytes // 2

    async def wait_for_room(self) -> None:
        """Returns when there is some, or has been none for too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROOM_SECONDS):
                while self.is_pressed:
                    self._room.clear()
                    await self._room.wait()

    def enough_until(self, reader: Reader) -> float | None:
        """Until when what it has taken was enough, if that is over where others wait; None: it keeps pace, or has read all."""
        noted = self._readers.get(reader)
        if noted is None or noted.good_until >= self._over(self._loop.time()):
            return None
        return noted.good_until

    def _over(self, now: float) -> float:
        """Whoever was good until before this is over where others wait."""
        return now + max(0.0, self.pace.grace_seconds - _PRESSED_SECONDS)

    def begins(self, reader: Reader) -> None:
        """Something was written to it that does not leave at once."""
        now = self._loop.time()
        noted = self._readers.get(reader)
        if noted is None:
            noted = self._readers[reader] = Noted(0, self.pace.begun(now))
        self._note(noted, reader.unread())
        if self._traffic.unread_bytes > self.max_bytes:
            self._look(now)
            self._shed()
        if self._alarm is None and self._readers:
            self._alarm = self._loop.call_later(min(_LOOK_SECONDS, self.pace.grace_seconds), self._look_around)

    def ends(self, reader: Reader) -> None:
        """All is read, or the connection has ended. Twice is as once."""
        if (noted := self._readers.pop(reader, None)) is not None:
            self._note(noted, 0)
            if not self.is_pressed:
                self._room.set()

    def _note(self, noted: Noted, size: int) -> None:
        self._traffic.unread_bytes += size - noted.size
        noted.size = size

    def _look(self, now: float) -> None:
        """Notes what has been read since the last look."""
        for reader, noted in self._readers.items():
            size = reader.unread()
            noted.good_until = self.pace.after(noted.good_until, max(0, noted.size - size), now)
            self._note(noted, size)

    def _look_around(self) -> None:
        self._alarm = None
        now = self._loop.time()
        self._look(now)
        over = self._over(now) if self.is_pressed else now
        for reader in [reader for reader, noted in self._readers.items() if noted.good_until < over]:
            self._end(reader, "slow_reader")
        if not self.is_pressed:
            self._room.set()
        if self._readers:
            self._alarm = self._loop.call_later(min(_LOOK_SECONDS, self.pace.grace_seconds), self._look_around)

    def _shed(self) -> None:
        while self._traffic.unread_bytes > self.max_bytes and len(self._readers) > 1:
            self._end(slowest(self._readers), "unread")

    def _end(self, reader: Reader, reason: str) -> None:
        self._traffic.refused[reason] += 1
        self.ends(reader)
        reader.abort()
