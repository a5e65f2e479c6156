"""The leases of several processes, in memory and by no clock: what the lease table of a database must be like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oncelog_service.storage.port import Dead, Fence, Instance, LeaseHolder


class LeasesInMemory:
    """Implements :class:`~oncelog_service.storage.port.LeaseTable`; an instance is alive until a test says otherwise."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        """Id of an instance → its URL."""
        self.expired: set[str] = set()
        """Those of them that were not heard of in time."""
        self.leases: dict[bytes, tuple[int, str | None]] = {}
        self.floor = 0
        """Of the epochs of what was never taken."""
        self.renewals = 0
        self.error: Exception | None = None
        """Raised by the next renewals."""

    def is_alive(self, id: str | None) -> bool:  # noqa: A002
        return id in self.there and id not in self.expired

    def join(self, id: str, url: str, ttl_ms: int) -> None:  # noqa: A002
        self.there = {each: at for each, at in self.there.items() if at != url} | {id: url}

    def renew(self, id: str, ttl_ms: int) -> Sequence[Instance]:  # noqa: A002
        self.renewals += 1
        if self.error is not None:
            raise self.error
        if not self.is_alive(id):
            raise Dead("it was taken for dead")
        return self.instances()

    def leave(self, id: str) -> None:  # noqa: A002
        self.there.pop(id, None)
        self.leases = {each: (epoch, None if held == id else held) for each, (epoch, held) in self.leases.items()}

    def take(self, id: str, resource: bytes) -> Fence | Instance:  # noqa: A002
        epoch, holder = self.leases.get(resource, (self.floor, None))
        if holder != id and holder is not None:
            if self.is_alive(holder):
                return Instance(holder, self.there[holder], 1_000)
            if self.is_alive(id):
                self.there.pop(holder, None)
        if not self.is_alive(id):
            raise Dead("it was taken for dead")
        self.leases[resource] = epoch + 1, id
        return Fence(resource, epoch + 1)

    def give_up(self, id: str, fence: Fence, to: str | None = None) -> None:  # noqa: A002
        if self.leases.get(fence.resource) == (fence.epoch, id):
            self.leases[fence.resource] = fence.epoch + 1, to

    def holder(self, resource: bytes) -> Instance | None:
        holder = self.leases.get(resource, (0, None))[1]
        return Instance(holder, self.there[holder], 1_000) if holder is not None and self.is_alive(holder) else None

    def instances(self) -> Sequence[Instance]:
        return [Instance(*each, 1_000) for each in self.there.items() if self.is_alive(each[0])]

    def held(self, after: bytes = b"", limit: int | None = None) -> Mapping[bytes, LeaseHolder]:
        leases = sorted((each, *lease) for each, lease in self.leases.items() if each > after)
        found = [LeaseHolder(each, epoch, held) for each, epoch, held in leases if held is not None]
        return {each.resource: each for each in found[:limit]}

    def raise_all(self, epoch: int) -> None:
        self.floor = max(self.floor, epoch) + 1
        self.leases = {each: (max(before, epoch) + 1, held) for each, (before, held) in self.leases.items()}
