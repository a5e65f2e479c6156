"""Whose requests are looked at next, of connections where some wait as bytes: no address keeps the event loop for itself. Pure.

The invariants:

* Of what arrives, so much is looked at at once as costs about 10 ms; the rest waits, where that is no more than HELD_BYTES: no
  other bound knows of it.
* In one turn of the event loop so much is looked at as costs about 2 ms, however many connections wait, and whose they are: who
  comes meanwhile is served between two turns.
* Addresses go round, and within one its connections: each time one connection is looked at as far as ONCE goes.
* Who alone has something that waits has every turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

AT_ONCE = 512
"""Parts (limits.py) in one turn: 16 requests that are refused, or small publishes, of 60 to 120 µs.

Turns that are as short as the switch interval (app.py) would keep the interpreter from the writer's thread."""
ONCE = 256
"""Parts of one connection. What is under way together is written together, and this is half of a turn."""


TAKEN_AT_ONCE = 4_096
"""Parts of what arrives on all connections, before what else does waits: 128 requests. Few have as many connections that ask at
the same time, and each that waits is asked by two system calls not to send, and to go on."""

HELD_BYTES = 16 * 2**20
"""Of all connections: of each one what it has read, 256 KiB at most."""


class Waiting(Protocol):
    """A connection, as far as it matters here."""

    address: str

    def look_on(self, most: int) -> int:
        """Looks at so many parts of what waits, about; returns how many it was."""


class Rounds:
    """Of the connections of a server."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        """``soon``: calls in the next turn of the event loop."""
        self._soon = soon
        self._waiting: dict[str, deque[Waiting]] = {}
        """By address, the one first whose turn it is."""
        self._has_turn = False
        self.taken = 0
        """Parts of what has arrived, and was looked at at once, since the last turn."""
        self.held = 0
        """Bytes of what was not."""

    def add(self, connection: Waiting) -> None:
        """Something waits on it, until it is looked at."""
        if (queue := self._waiting.get(connection.address)) is None:
            queue = self._waiting[connection.address] = deque()
        queue.append(connection)
        self.turn_soon()

    def turn_soon(self) -> None:
        """In the next turn of the event loop what waits is looked at, and as much of what arrives as ever."""
        if not self._has_turn:
            self._has_turn = True
            self._soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self.taken = 0
        left = AT_ONCE
        try:
            for _ in range(sum(map(len, self._waiting.values()))):  # what is added meanwhile has the next turn
                address = next(iter(self._waiting))
                queue = self._waiting.pop(address)
                connection = queue.popleft()
                if queue:
                    self._waiting[address] = queue  # behind all others
                left -= max(1, connection.look_on(ONCE))
                if left <= 0:
                    break
        finally:  # whoever fails stands in nobody's way
            if self._waiting:
                self.turn_soon()
