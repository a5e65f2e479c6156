"""A store that must not be served meanwhile: what is looked at, and held, where several processes can share it.

A store in files has a lock, and needs none of this. In a database can be seen which instances are alive; a process that was
stopped and wakes up later is kept out by raising the epoch of every lease that it may have; and every start of a service takes
the lease SETUP, so that its epoch tells whether one has begun in between. Blocks; not for the event loop.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from uuid import uuid4

from oncelog_service.clock import Clock, SystemClock
from oncelog_service.cluster.leases import SETUP
from oncelog_service.storage.port import Fence, Instance, LeaseTable, Store, StoreError

COPY = b"copy"
"""What a process holds while it copies into the store."""
_TTL_SECONDS = 5.0
_BEATS = 4
_LOOK_SECONDS = 0.1


class Served(Exception):
    """Another process serves the store, or has served it meanwhile."""


class Unserved:
    """Watches a store that is only read: it is not served at :meth:`begin`, and had not been by :meth:`check`."""

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self._table = store.lease_table()
        self._clock = clock or SystemClock()
        self._epoch = 0

    def begin(self) -> None:
        """Raises Served; StoreError."""
        if self._table is None:
            return
        me = uuid4().hex
        try:
            self._epoch = _take_over(self._table, self._clock, me)[SETUP].epoch
        finally:
            self._table.leave(me)
        # A service that came while SETUP was held did not take it; one that comes from here on does.
        _check_alone(self._table)
        if self._table.held():
            raise Served("another process has begun to serve it")

    def check(self) -> None:
        """Raises Served: it has been served since. StoreError."""
        before = self._epoch
        self.begin()
        if self._table is not None and self._epoch != before + 1:
            raise Served("it has been served, copied or verified by another process meanwhile")


class Kept:
    """Keeps others from writing a store, as a context: writes to it carry :attr:`fence`, where several could share it."""

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self._table = store.lease_table()
        self._clock = clock or SystemClock()
        self._id = uuid4().hex
        self._ending = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="oncelog-copy-heartbeat", daemon=True)
        self.fence: Fence | None = None

    def __enter__(self) -> Kept:
        """Raises Served; StoreError."""
        if self._table is not None:
            try:
                self.fence = _take_over(self._table, self._clock, self._id, COPY)[COPY]
            except BaseException:
                self._leave()
                raise
            self._heart.start()
        return self

    def raise_leases(self, epoch: int) -> None:
        """Has no fence of before be valid any more, this one's apart, not even of what is not known to have been served.

        Raises StoreError.
        """
        if self._table is not None:
            self._table.raise_all(epoch)
            found = self._table.take(self._id, COPY)
            assert isinstance(found, Fence)  # it is this one's as long as that is alive; else take has raised Dead
            self.fence = found

    def check(self) -> None:
        """Raises Served: another process is there. StoreError."""
        if self._table is not None:
            _check_alone(self._table, self._id)

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._heart.is_alive():
            self._heart.join()
        self._leave()

    def _leave(self) -> None:
        if self._table is not None:
            with suppress(StoreError):  # then it expires
                self._table.leave(self._id)

    def _beat(self) -> None:
        assert self._table is not None
        while not self._ending.wait(_TTL_SECONDS / _BEATS):
            # What is too late, or does not get through, matters once another one takes over: then the fence keeps us out.
            with suppress(Exception):
                self._table.renew(self._id, round(_TTL_SECONDS * 1000))


def this_process() -> str:
    """Names a process that is no service, where others see it."""
    return f"oncelog on {socket.gethostname()}, process {os.getpid()}"


def _take_over(table: LeaseTable, clock: Clock, me: str, *more: bytes) -> dict[bytes, Fence]:
    """Joins and takes every lease that is held, SETUP and ``more``. Raises Served."""
    _check_alone(table, me, patient=True)
    table.join(me, this_process(), round(_TTL_SECONDS * 1000))
    fences = {}
    heard = clock.monotonic()
    for resource in dict.fromkeys((SETUP, *more, *table.held())):
        if clock.monotonic() > heard + _TTL_SECONDS / _BEATS:  # who served thousands of topics and was killed holds thousands
            heard = clock.monotonic()
            table.renew(me, round(_TTL_SECONDS * 1000))
        found = table.take(me, resource)
        if not isinstance(found, Fence):
            raise Served(_sentence(found))
        fences[resource] = found
    return fences


def _check_alone(table: LeaseTable, me: str | None = None, *, patient: bool = False) -> None:
    """Raises Served. ``patient``: waits for an instance that is no service, and may have been killed, until it expires or is
    heard of."""
    left: dict[str, int] = {}
    while alive := [each for each in table.instances() if each.id != me]:
        for each in alive:
            if each.is_service or not patient or each.expires_in_ms > left.get(each.id, each.expires_in_ms):
                raise Served(_sentence(each))
        left = {each.id: each.expires_in_ms for each in alive}
        time.sleep(_LOOK_SECONDS)


def _sentence(instance: Instance) -> str:
    if instance.is_service:
        return f"{instance.url} serves it; stop every service over it first (one that was killed counts for some seconds more)"
    return f"{instance.url} is at work on it"
