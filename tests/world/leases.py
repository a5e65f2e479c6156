"""The leases of several processes, in memory: what the lease table of a database must be like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from oncelog_service.storage.port import Dead, Fence, Instance, LeaseHolder


class LeasesInMemory:
    """Implements :class:`~oncelog_service.storage.port.LeaseTable` by a clock; that of most tests stands still."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self.there: dict[str, tuple[str, int]] = {}
        """Id of an instance → its URL, and when it expires."""
        self.leases: dict[bytes, tuple[int, str | None]] = {}
        self.floor = 0
        """Of the epochs of what was never taken."""
        self.renewals = 0
        self.error: Exception | None = None
        """Raised by the next renewals."""

    @property
    def epochs(self) -> dict[bytes, int]:
        """Resource → epoch under which it may be written."""
        return {resource: epoch for resource, (epoch, held) in self.leases.items() if held}

    def expire(self, id: str) -> None:  # noqa: A002
        """Have an instance not be heard of any more, in time."""
        if id in self.there:
            self.there[id] = (self.there[id][0], self._now_ms())

    def is_alive(self, id: str | None) -> bool:  # noqa: A002
        return id in self.there and self.there[id][1] > self._now_ms()

    def _instance(self, id: str) -> Instance:  # noqa: A002
        url, expires_ms = self.there[id]
        return Instance(id, url, expires_ms - self._now_ms())

    def join(self, id: str, url: str, ttl_ms: int) -> None:  # noqa: A002
        others = {each: about for each, about in self.there.items() if about[0] != url}
        self.there = others | {id: (url, self._now_ms() + ttl_ms)}

    def renew(self, id: str, ttl_ms: int) -> Sequence[Instance]:  # noqa: A002
        self.renewals += 1
        if self.error is not None:
            raise self.error
        if not self.is_alive(id):
            raise Dead("it was taken for dead")
        self.there[id] = (self.there[id][0], self._now_ms() + ttl_ms)
        return self.instances()

    def leave(self, id: str) -> None:  # noqa: A002
        self.there.pop(id, None)
        self.leases = {each: (epoch, None if held == id else held) for each, (epoch, held) in self.leases.items()}

    def take(self, id: str, resource: bytes) -> Fence | Instance:  # noqa: A002
        epoch, holder = self.leases.get(resource, (self.floor, None))
        if holder != id and holder is not None:
            if self.is_alive(holder):
                return self._instance(holder)
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
        return self._instance(holder) if holder is not None and self.is_alive(holder) else None

    def instances(self) -> Sequence[Instance]:
        return [self._instance(each) for each in self.there if self.is_alive(each)]

    def held(self, after: bytes = b"", limit: int | None = None) -> Mapping[bytes, LeaseHolder]:
        leases = sorted((each, *lease) for each, lease in self.leases.items() if each > after)
        found = [LeaseHolder(each, epoch, held) for each, epoch, held in leases if held is not None]
        return {each.resource: each for each in found[:limit]}

    def raise_all(self, epoch: int) -> None:
        self.floor = max(self.floor, epoch) + 1
        self.leases = {each: (max(before, epoch) + 1, held) for each, (before, held) in self.leases.items()}
