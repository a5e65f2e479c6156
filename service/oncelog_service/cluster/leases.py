"""Who may serve a resource, as topics, transactions and atomic commits need to know it; and the answer where nobody else could.

A resource is served by one process at a time, since its order and its maps live in memory. That process holds its lease: writes
are fenced with it in the store, so that a former holder writes nothing; what is answered from memory is answered only while the
lease is known to be valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property

from oncelog.errors import InvalidRequest, NotServedHere, StorageUnavailable
from oncelog_service.storage.keys import split_topic_key
from oncelog_service.storage.port import Fence

LOST = "another process may serve this by now; nothing was done here, try again"

TRANSACTIONS = b"transactions"
ATOMIC_COMMITS = b"atomic"
SETUP = b"setup"
"""Held while something is written that the whole store has once."""
TOPIC_PREFIX = b"topic:"
"""Begins the resource of a topic's name; the topic's key follows."""
_BRIEFLY_SECONDS = 10.0


def topic_resource(topic_key: bytes) -> bytes:
    """Names a topic, with all its generations, among the leases."""
    return TOPIC_PREFIX + topic_key


def topic_of(resource: bytes) -> tuple[str, str] | None:
    """Returns (namespace, topic) of a resource; None: it is no topic."""
    return split_topic_key(resource.removeprefix(TOPIC_PREFIX)) if resource.startswith(TOPIC_PREFIX) else None


class Lease:
    """A resource that this process serves, until it is lost."""

    __slots__ = ("_standing", "fence", "lost")

    def __init__(self, fence: Fence | None, standing: Callable[[], bool] | None) -> None:
        """``standing``: tells whether the others are known to take this process for alive, at this very moment; None: there are
        none."""
        self.fence = fence
        self.lost = False
        self._standing = standing

    @property
    def lasts(self) -> bool:
        """Tells whether it cannot be lost: the process has the store for itself."""
        return self._standing is None

    @property
    def is_valid(self) -> bool:
        """Tells whether no other process can have taken it over yet.

        Once the answer was no it stays so, also when the heartbeat gets through again: what was decided meanwhile may not have
        come true. The lease is then taken anew, with the next epoch, and everything is read back.
        """
        if not self.lost and self._standing is not None and not self._standing():
            self.lost = True
        return not self.lost


class Leases:
    """Holds the leases of one process; as it stands here, of one that has the store for itself: it holds every lease, no write is
    fenced, nothing is ever moved."""

    death: Exception | None = None
    """Why this process can hold no lease any more; None: it can."""

    @cached_property
    def brief(self) -> asyncio.Lock:
        """Held along with what is held briefly: a process takes a lease once, and whoever ended first would give it away."""
        return asyncio.Lock()

    async def take(self, resource: bytes, *, claim: bool = False) -> Lease:
        """Returns the lease of a resource, and takes it where no process has it.

        ``claim``: it is wanted here, wherever it belongs; the process that has it is asked to hand it over.

        Raises:
            NotServedHere: another process has it, or should. StorageUnavailable: it cannot be had now.
        """
        return Lease(None, None)

    def belongs_here(self, resource: bytes) -> bool:
        """Tells whether this process holds it or, where nobody does, is to hold it."""
        return True

    @property
    def alive(self) -> tuple[str, tuple[str, ...]] | None:
        """Returns the id of this instance, and those of all; None: there is no other one."""
        return None

    def keep(self, resource: bytes) -> None:
        """Keeps a resource that was claimed once more from being moved elsewhere soon."""

    async def pass_on(self, resource: bytes, to: str | None) -> None:
        """Gives a resource to another instance, or to the first to want it, once nothing is served or written under its lease.

        Raises InvalidRequest, StorageUnavailable.
        """
        if to is not None:
            raise InvalidRequest("the store is this process's alone: there is nobody to hand anything over to")

    def lost(self, fences: Collection[Fence]) -> None:
        """Drops the leases whose fences the store has refused: other processes have them."""

    def misplaced(self) -> Sequence[tuple[bytes, str]]:
        """Lists resources that are held here and belong to another instance, each with its id."""
        return ()

    @property
    def held(self) -> int:
        """Counts the leases that are held; alone, none: no other process could have any."""
        return 0

    def check_alive(self) -> None:
        """Raises StorageUnavailable when others may serve everything that was served here."""

    def abandon(self) -> None:
        """Invalidates all leases: what was held may be served elsewhere."""

    async def leave(self) -> None:
        """Gives all leases back. Nothing is served or written under them any more."""


@asynccontextmanager
async def held_briefly(leases: Leases, resource: bytes) -> AsyncIterator[Lease]:
    """Holds a resource that nobody holds for long, one caller at a time. Raises StorageUnavailable: it cannot be had in a few
    seconds."""
    async with leases.brief, _held(leases, resource) as lease:
        yield lease


@asynccontextmanager
async def _held(leases: Leases, resource: bytes) -> AsyncIterator[Lease]:
    loop = asyncio.get_running_loop()
    end = loop.time() + _BRIEFLY_SECONDS
    while True:
        try:
            lease = await leases.take(resource)
            break
        except NotServedHere as elsewhere:
            if loop.time() > end:
                raise StorageUnavailable(f"{elsewhere.detail}; nothing was done, try again") from elsewhere
            await asyncio.sleep(_BRIEFLY_SECONDS / 100)
    try:
        yield lease
    finally:
        with suppress(StorageUnavailable):  # then it is held until it is wanted here again, or this process is gone
            await leases.pass_on(resource, None)
