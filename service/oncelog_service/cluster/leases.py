"""Who may serve a resource: what topics, transaction service and journal need to know of the cluster, and its simplest answer.

A resource is served by one process at a time, since its order and its maps live in memory. Whoever serves it holds its lease:
writes are fenced with it in the store, so that a former holder writes nothing; what is answered from memory is answered only
while the lease is known to stand.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from oncelog.errors import InvalidRequest, NotServedHere, StorageUnavailable
from oncelog_service.storage.keys import split_topic_key
from oncelog_service.storage.port import Fence

LOST = "another process may serve this by now; nothing was done here, try again"

TRANSACTIONS = b"transactions"
JOURNAL = b"journal"
SETUP = b"setup"
"""Held while something is written that the whole store has once."""
TOPIC_PREFIX = b"topic:"
"""Begins the resource of a topic's name; the topic's key follows."""
_BRIEFLY_SECONDS = 10.0


def topic_resource(topic_key: bytes) -> bytes:
    """What a topic is called among the leases: all its generations."""
    return TOPIC_PREFIX + topic_key


def topic_of(resource: bytes) -> tuple[str, str] | None:
    """(namespace, topic) that a resource is; None: it is no topic."""
    return split_topic_key(resource.removeprefix(TOPIC_PREFIX)) if resource.startswith(TOPIC_PREFIX) else None


class Lease:
    """A resource that this process serves, until it is lost."""

    __slots__ = ("_standing", "fence", "lost", "resource")

    def __init__(self, resource: bytes, fence: Fence | None, standing: Callable[[], bool]) -> None:
        """``standing``: whether this process is known to be alive to the others, at this very moment."""
        self.resource = resource
        self.fence = fence
        self.lost = False
        self._standing = standing

    @property
    def stands(self) -> bool:
        """Whether nobody else can have taken it over yet. Once the answer was no it stays so, also when the heartbeat gets
        through again: what was decided meanwhile may not have come true. Whoever wants it takes it anew, and reads back."""
        if not self.lost and not self._standing():
            self.lost = True
        return not self.lost

    def check(self) -> None:
        """Raises StorageUnavailable unless it stands."""
        if not self.stands:
            raise StorageUnavailable(LOST)


class Leases(Protocol):
    """The leases that one process holds."""

    async def take(self, resource: bytes, *, claim: bool = False) -> Lease:
        """The lease of a resource, taken where nobody has it.

        ``claim``: it is wanted here, wherever it belongs; whoever has it is asked to hand it over.

        Raises:
            NotServedHere: another process has it, or should. StorageUnavailable: it cannot be had now.
        """
        ...

    def belongs_here(self, resource: bytes) -> bool:
        """Whether it is held here or, where nobody holds it, is to be."""
        ...

    @property
    def alive(self) -> tuple[str, tuple[str, ...]] | None:
        """The id of this instance, and those of all; None: there is but this one."""
        ...

    def keep(self, resource: bytes) -> None:
        """It is claimed once more: it is not to be moved elsewhere soon."""
        ...

    async def pass_on(self, resource: bytes, to: str | None) -> None:
        """Have another instance take it, or whoever wants it. Nothing is served or being written under its lease any more.

        Raises InvalidRequest, StorageUnavailable.
        """
        ...

    def lost(self, fences: Collection[Fence]) -> None:
        """The store has refused writes under these: somebody else has taken over what they stood for."""
        ...

    def misplaced(self) -> Sequence[tuple[bytes, str]]:
        """What is held here and belongs elsewhere, and the id of the instance to hand it over to."""
        ...

    @property
    def held(self) -> int:
        """How many are held."""
        ...

    @property
    def death(self) -> Exception | None:
        """Why this process holds none any more, and can take none; None: it can."""
        ...

    def check_alive(self) -> None:
        """Raises StorageUnavailable when others may serve everything that was served here."""
        ...

    def abandon(self) -> None:
        """What was held may be served elsewhere: from now on none stands."""
        ...

    async def leave(self) -> None:
        """Give all of them back. Nothing is served or being written under them any more."""
        ...


@asynccontextmanager
async def held_briefly(leases: Leases, resource: bytes) -> AsyncIterator[Lease]:
    """Hold a resource that nobody holds for long. Raises StorageUnavailable: it cannot be had in a few seconds."""
    end = time.monotonic() + _BRIEFLY_SECONDS
    while True:
        try:
            lease = await leases.take(resource)
            break
        except NotServedHere as elsewhere:
            if time.monotonic() > end:
                raise StorageUnavailable(f"{elsewhere.detail}; nothing was done, try again") from elsewhere
            await asyncio.sleep(_BRIEFLY_SECONDS / 100)
    try:
        yield lease
    finally:
        with suppress(StorageUnavailable):  # then it is held until somebody here wants it again, or this process is gone
            await leases.pass_on(resource, None)


class Alone:
    """A store that is one process's: it has every lease, and no write is fenced."""

    held = 0
    """Nobody counts what nobody else could have."""
    death = None

    async def take(self, resource: bytes, *, claim: bool = False) -> Lease:
        """At once."""
        return Lease(resource, None, _always)

    def belongs_here(self, resource: bytes) -> bool:
        """Always."""
        return True

    @property
    def alive(self) -> None:
        """There is nobody else."""
        return None

    def keep(self, resource: bytes) -> None:
        """It is not moved anyway."""

    async def pass_on(self, resource: bytes, to: str | None) -> None:
        """There is nobody else. Raises InvalidRequest if one is named."""
        if to is not None:
            raise InvalidRequest("the store is this process's alone: there is nobody to hand anything over to")

    def lost(self, fences: Collection[Fence]) -> None:
        """No write is fenced."""

    def misplaced(self) -> Sequence[tuple[bytes, str]]:
        """Nothing belongs elsewhere."""
        return ()

    def check_alive(self) -> None:
        """Nobody else serves anything."""

    def abandon(self) -> None:
        """Nobody else takes anything over."""

    async def leave(self) -> None:
        """There is nobody to give anything back to."""


def _always() -> bool:
    return True
