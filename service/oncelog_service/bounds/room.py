"""Room on the disk: below a floor nothing more is taken in, so that what makes room again can still be written.

A full disk stops all of a store, deletes too: they are written to its log, and LevelDB merges tables into new ones before the old
ones go. So the last of the disk is kept for that: what is refused is whatever adds rows; what changes, deletes or ends something
goes on.

The invariant: nothing is admitted that would leave less than the floor once all that was admitted is written, as far as it was
known at the last look at the disk. In between the looks what is admitted is counted, so that no flood runs through the floor from
one look to the next. A look counts for what was on disk when it was made: whatever was admitted before, and may not be written
yet, stays counted (:meth:`Room.looked`). What others write to the same disk is seen by the next look.

What ends something is not refused, but a roll-back writes again as much as the transaction had: of the floor that may take a
quarter at most (:meth:`Room.rewrite`). It is cut into slices, which wait for the store to give back what the rows were before.
The rest is for what makes that room, and for deletes, whatever is rolled back: LevelDB has merged four tables of 20 MB in one go,
beside two logs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from math import inf
from typing import Literal

from oncelog.errors import DiskFull

_log = logging.getLogger(__name__)

State = Literal["ok", "low", "full"]

LOOK_SECONDS = 1.0
_TIDIED_AFTER = 30
"""Looks."""
_COPIES = 2
"""What is admitted lies in LevelDB's log and in a table before the log goes, in SQLite's log and in its file. What it takes to
merge tables is a part of the floor."""
_OVERHEAD = 512
"""Bytes for the keys and the heads of rows of one request."""
_PATIENCE_SECONDS = 5.0
"""How long a rewrite waits for room, which is some looks. Who settles by itself comes again; of the others somebody waits."""


class Room:
    """How much may still be admitted. It is told what the disk has. Belongs to one event loop."""

    def __init__(self, floor: int) -> None:
        """``floor``: bytes that stay free; 0 for none, and then nothing is ever refused."""
        self.floor = floor
        self.free = inf
        """Bytes, as of the last look; infinite before the first, and where nobody can look."""
        self.state: State = "ok"
        """`low`: less than twice the floor is free. `full`: nothing is admitted."""
        self.admitted = 0
        """Bytes that everything admitted so far may take."""
        self.refused = 0
        """Requests, so far."""
        self._on_disk = 0
        """So many of these were on disk at the last look."""
        self._rewrites = 0
        """Those that wait for room."""
        self._next_look: asyncio.Future[None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the store should give back what it can."""
        return self.state != "ok" or self._rewrites > 0

    @property
    def slice_bytes(self) -> float:
        """How much may be rewritten in one go, so that it fits into its part of the floor twice."""
        return self.floor // (8 * _COPIES) or inf

    @property
    def _kept(self) -> int:
        """Bytes of the floor that no roll-back takes."""
        return self.floor - self.floor // 4

    def admit(self, size: int = 0) -> None:
        """Count a request that carries so many bytes. To be asked before anything of it is stamped or moves. Raises DiskFull."""
        takes = _COPIES * size + _OVERHEAD
        if self.floor and (self.state == "full" or self.free - (self.admitted - self._on_disk) - takes < self.floor):
            self.refused += 1
            raise DiskFull(
                f"the disk of the service has {self.free:.0f} bytes left, and {self.floor} are kept for making room "
                "(min_free_bytes); nothing was done, try again later"
            )
        self.admitted += takes

    async def rewrite(self, size: int) -> None:
        """Count so many bytes of rows that are written again, once three quarters of the floor stay free behind them.

        They are to be handed over in the step in which this returns. What makes room is not to wait for it. Raises DiskFull:
        there was none for some seconds.
        """
        takes = _COPIES * size + _OVERHEAD
        if self._left - takes < self._kept and self.floor:
            self._rewrites += 1
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    while self._left - takes < self._kept:
                        if self._next_look is None:
                            self._next_look = asyncio.get_running_loop().create_future()
                        await asyncio.shield(self._next_look)
            except TimeoutError:
                raise DiskFull(
                    f"the disk of the service has {self.free:.0f} bytes left, and {self._kept} are kept from roll-backs "
                    f"(three quarters of min_free_bytes); the next part of this one takes {takes}, and is rolled back later"
                ) from None
            finally:
                self._rewrites -= 1
        self.admitted += takes

    @property
    def _left(self) -> float:
        return self.free - (self.admitted - self._on_disk)

    def looked(self, free: float, on_disk: int) -> None:
        """``free``: bytes that the disk has; ``on_disk``: what :attr:`admitted` was at a moment before that look, and was all
        written by then."""
        self.free, self._on_disk = free, on_disk
        if self._next_look is not None:
            self._next_look.set_result(None)
            self._next_look = None
        before, self.state = self.state, self._judged(free)
        if self.state != before:
            _say(before, self)

    def _judged(self, free: float) -> State:
        # A state is left a quarter of the floor later than it is entered: else each file that goes or comes would change it.
        more = self.floor / 4
        if free < self.floor + (more if self.state == "full" else 0):
            return "full"
        return "low" if free < 2 * self.floor + (0 if self.state == "ok" else more) else "ok"


def _say(before: State, room: Room) -> None:
    free, floor = f"{room.free:.0f} bytes are free on the disk", f"{room.floor} (min_free_bytes)"
    if room.state == "full":
        _log.error("%s, fewer than %s: nothing more is taken in until there is room; reading and deleting go on", free, floor)
    elif room.state == "low":
        writes = "messages are taken in again" if before == "full" else f"below {floor} nothing more is taken in"
        _log.warning("%s: %s", free, writes)
    else:
        _log.warning("%s: there is room again", free)


async def look(room: Room, free_bytes: Callable[[], int | None], drained: Callable[[], Awaitable[None]]) -> None:
    """Look at the disk once, behind what is being written. ``free_bytes``: runs on a thread; None: nobody can tell.

    ``drained``: returns when everything handed over before is on disk. Raises as both do.
    """
    on_disk = room.admitted
    await drained()  # whoever admits hands over in the same step of the event loop
    free = await asyncio.to_thread(free_bytes)
    room.looked(inf if free is None else free, on_disk)


async def make(room: Room, reclaim: Callable[[bool, bool], None]) -> None:
    """Have the store give the disk back what was deleted, again and again while there is little room, and now and then where that
    is much, until cancelled.

    ``reclaim``: runs on a thread; True: of whatever was ever deleted, and: only where it is much. Raises as it does.
    """
    for looks in count(1):
        await asyncio.sleep(LOOK_SECONDS)
        if room.is_wanted or looks % _TIDIED_AFTER == 0:
            await asyncio.to_thread(reclaim, room.state == "full", not room.is_wanted)


async def watch(room: Room, free_bytes: Callable[[], int | None], drained: Callable[[], Awaitable[None]]) -> None:
    """Look again and again, until cancelled. Raises as a look does."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await look(room, free_bytes, drained)
