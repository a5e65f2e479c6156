"""One relay's side of the lease of an outbox: it takes the lease, shows that it lives, and lets go."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from oncelog.errors import OutboxBusy
from oncelog.process.clock import Clock
from oncelog.sql.outbox.database import Lease, LeaseLost, OutboxDatabase
from oncelog.sql.outbox.plan import Watch

logger = logging.getLogger("oncelog.outbox")


class LeaseHolder:
    """Holds the lease of an outbox for one relay, while it has it. For one thread."""

    def __init__(self, database: OutboxDatabase, outbox: str, takeover_seconds: float, clock: Clock) -> None:
        self.lease: Lease | None = None
        """As this relay left it; None: it does not hold it, or what became of it is to be read from the database."""
        self._database = database
        self._outbox = outbox
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}"[-200:]
        self._takeover_seconds = takeover_seconds
        self._clock = clock
        self._watch = Watch(takeover_seconds)
        self._beaten = 0.0

    def free(self) -> Lease | None:
        """The lease as it was seen, if this relay may take it: no other one holds it, or one that is silent."""
        seen = self._database.lease()
        if seen.holder not in (None, self._name):
            if not self._watch.is_silent(seen.holder, seen.version, self._clock.monotonic()):
                return None
            logger.warning("outbox %s: %s is silent; this relay takes over", self._outbox, seen.holder)
        return seen

    def wait_until_free(self) -> Lease:
        """Waits for as long as a dead relay may seem alive. Raises OutboxBusy: the one that holds it lives."""
        before = self._database.lease()
        while (free := self.free()) is None:
            self._clock.sleep(min(0.1, self._takeover_seconds / 10))
            seen = self._database.lease()
            if seen.holder is not None and seen.version != before.version:
                raise self.busy(seen.holder)
        return free

    def take(self, seen: Lease, check: Callable[[Lease], None]) -> Lease:
        """Takes the lease if it still is as ``seen``, and lets it go again where ``check`` raises. Raises LeaseLost."""
        lease = self._database.change(seen, holder=self._name)
        try:
            check(lease)
        except BaseException:
            self._release(lease)
            raise
        self.moved(lease)
        return lease

    def moved(self, lease: Lease) -> None:
        """Notes a change that this relay has made under its lease: the others have seen by it that it lives."""
        self.lease, self._beaten = lease, self._clock.monotonic()

    def beat(self) -> None:
        """Shows that this relay lives, unless that was just now. Raises LeaseLost."""
        if self.lease is not None and self._clock.monotonic() - self._beaten > self._takeover_seconds / 4:
            self.moved(self._database.change(self.lease))

    def let_go(self) -> None:
        """Leaves the outbox to other relays."""
        lease, self.lease = self.lease, None
        self._watch = Watch(self._takeover_seconds)
        if lease is not None:
            self._release(lease)

    def _release(self, lease: Lease) -> None:
        with suppress(LeaseLost, SQLAlchemyError):  # then the others wait until it is silent
            self._database.change(lease, holder=None)

    def busy(self, holder: str | None = None) -> OutboxBusy:
        """Makes the error for an outbox that another relay publishes."""
        who = holder or "another relay"
        return OutboxBusy(f"outbox {self._outbox!r} is published by {who}", outbox=self._outbox, holder=who)
