"""How many connections there may be, of one client address and of all, and which one gives its place to another. Pure.

The invariants:

* Each connection that is open has a place; of one address there are never more than its share, and never more than all.
* A place is taken from a connection only while its client is waited for: between two requests, for a head, for a body that comes
  too slowly, or to read an answer that it takes too slowly.
* Who holds most gives way first, and to others: an address at its own limit takes from itself alone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, Protocol

from oncelog_service.traffic import Traffic

_AT_ONCE = 64
"""Found in one search among all: a search at each of many arrivals would be what they are after."""

_BARREN_SECONDS = 0.1
"""How long nobody is looked for after nobody was found."""

_RESERVE = 256
"""Descriptors that are left to the store, to other instances and to connections that are being refused: LevelDB opens up to 74
tables, a database has its pool, each copy and backup its files."""


class Awaited(IntEnum):
    """What a connection's client is waited for; who is waited for the first of these gives way first."""

    REQUEST = 0
    """It is between two requests."""
    HEAD = 1
    """It has begun a head, or has sent nothing yet."""
    BODY = 2
    """Of a body less has come than a client in earnest would have sent."""
    READING = 3
    """Of an answer it has taken less."""


class Waits(NamedTuple):
    """For what a connection's client is waited for."""

    what: Awaited
    due: float
    """When its time is over: of two that wait for the same, the earlier one has waited longer."""


class Holder(Protocol):
    """A connection, as far as it matters here."""

    @property
    def address(self) -> str:
        """Whose it is, as :func:`address_of` says."""

    def waits(self) -> Waits | None:
        """None: something is under way as it should be, and it keeps its place."""


def address_of(host: str) -> str:
    """Whose connections are counted together: an IPv4 address, or the 64 bits that are one client's network of IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64)) + "/64"


def places_for(descriptors: int, used: int, wanted: int) -> int:
    """How many connections there may be where a process may open so many descriptors and has so many open.

    The reserve is kept; where that is more than half of what there is, half.
    """
    room = max(0, descriptors - used)
    return max(1, min(wanted, room - min(_RESERVE, room // 2)))


def told_for(places: int) -> int:
    """How many that have no place may be told so at a time; their descriptors are of the reserve."""
    return max(4, min(64, places // 8))


class Places:
    """Who has a place."""

    def __init__(self, all_of_them: int, of_one: int, traffic: Traffic) -> None:
        self.all = all_of_them
        self.of_one = of_one
        self.held: Counter[str] = Counter()
        self._traffic = traffic
        self._found: dict[str | None, list[tuple[Holder, float]]] = {}
        """Whom the last search found, the best one last, and when its time was over then; by address, None: of all."""
        self._barren: dict[str | None, float] = {}
        """Until when there is no search, since the last one found nobody."""

    def is_full_for(self, address: str) -> bool:
        """Tells whether its share is used up."""
        return self.held[address] >= self.of_one

    @property
    def is_full(self) -> bool:
        """Tells whether there is none left at all."""
        return self._traffic.connections >= self.all

    def take(self, address: str) -> None:
        """A connection has come."""
        self.held[address] += 1
        self._traffic.connections += 1

    def leave(self, address: str) -> None:
        """It has ended."""
        self._traffic.connections -= 1
        self.held[address] -= 1
        if self.held[address] <= 0:
            del self.held[address]
            self._found.pop(address, None)
            self._barren.pop(address, None)

    def gives_way(self, holders: Iterable[Holder], address: str | None, now: float) -> Holder | None:
        """Who ends for another's sake, of this address or of all; None: something is under way on each, as it should be."""
        if (holder := self._next(self._found.get(address, []))) is not None:
            return holder
        if now < self._barren.get(address, now):
            return None
        found = self._found[address] = self._search(holders, address)
        holder = self._next(found)
        if holder is None:
            del self._found[address]
            self._barren[address] = now + _BARREN_SECONDS
        return holder

    def _next(self, found: list[tuple[Holder, float]]) -> Holder | None:
        while found:
            holder, due = found.pop()
            now = holder.waits()
            if now is not None and now.due == due:
                return holder
        return None

    def _search(self, holders: Iterable[Holder], address: str | None) -> list[tuple[Holder, float]]:
        """Of the address that holds most; there in the order of :class:`Awaited`, of those alike the longest first."""
        waiting = (
            ((-self.held[each.address], waits.what, waits.due), each)
            for each in holders
            if (address is None or each.address == address) and (waits := each.waits()) is not None
        )
        found = heapq.nsmallest(_AT_ONCE, waiting, key=lambda pair: pair[0])
        return [(each, key[2]) for key, each in reversed(found)]
