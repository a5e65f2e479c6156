"""Brings the rows of an outbox to their topics: each that is committed, once, whatever is killed when.

The relay numbers the rows it sees, in a transaction of its own, publishes them under these numbers as sequence ids, and deletes
them. A row is numbered after it has become visible, so a transaction that commits late gets later numbers and is never passed
over. Numbers are in the database before they are published, so a relay that died is repeated exactly; the service answers what it
has already as duplicates (decision 0022).
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType, TracebackType
from uuid import uuid4

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from oncelog.api.api import Api
from oncelog.api.retry import pause
from oncelog.errors import OncelogError, OutboxBehind, OutboxBlocked, OutboxBusy, ProducerFenced
from oncelog.http.trust import Certificate, Verify
from oncelog.process import forks
from oncelog.sql.outbox import Outbox
from oncelog.sql.outbox_lease import PATIENCE_SECONDS, Lease, LeaseLost, Name, OutboxDatabase, Row
from oncelog.sql.outbox_plan import Planned
from oncelog.sql.outbox_publishing import Publishing, is_the_services

ROWS = 1_000
"""Numbered in one transaction."""
_ROWS_LIMIT = 10_000
_BYTES = 4 << 20
"""And together no larger than this, so that memory is bounded."""
_BLOCKED_TOPICS = 100
_HELD_ROWS = 10_000
"""With more topics, or rows of theirs, that cannot be published, all others wait too: the plan is written with every batch."""
_BLOCKED_SECONDS = 30.0
"""Longest pause between two tries of a topic that refuses."""
_AGAIN_SECONDS = 30.0
"""After an error that somebody has to mend, the thread begins anew."""
_CLIENT_RETRY_SECONDS = 1.0
"""The relay tries again itself."""

logger = logging.getLogger("oncelog.outbox")


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """What a relay is doing."""

    state: str = "stopped"
    """``relaying``; ``standby``: another relay does it; ``waiting`` for the service or the database; ``stopped``; ``failed``."""
    stored: int = 0
    """Messages that this relay has published."""
    duplicates: int = 0
    """Rows that were in their topics already: an earlier relay died before it could delete them."""
    blocked: Mapping[str, OncelogError] = field(default_factory=lambda: MappingProxyType({}))
    """By topic, ``namespace/topic``: why its next row is refused. What is behind it there waits."""
    error: Exception | None = None
    """What it waits for or failed with."""


@dataclass(slots=True)
class _Blocked:
    """A topic whose next row is refused."""

    error: OncelogError
    planned: list[Planned]
    tries: int
    due: float
    """By the monotonic clock."""


class OutboxRelay:
    """The relay of one outbox, for a ``with`` statement: a thread publishes whatever is committed, until the block ends.

        with OutboxRelay(Outbox("orders"), engine):
            serve_the_shop()

    Or call :meth:`run_once` now and then, or run ``oncelog outbox relay``. Any number of relays may run, in any number of
    processes: one of them publishes, the others stand by and follow it, at once if it stopped cleanly, else ``takeover_seconds``
    after it was last heard of. One that was thought dead and awakes can neither publish nor change anything.

    A topic that refuses a row (it is not there, the message is too large for the service) holds up its own rows only; it is tried
    again with growing pauses of up to 30 s, and :attr:`status` and the log say why.
    """

    def __init__(
        self,
        outbox: Outbox,
        database: Engine | str,
        *,
        url: str | None = None,
        client: Api | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        rows: int = ROWS,
        poll_seconds: float = 0.2,
        takeover_seconds: float = PATIENCE_SECONDS,
        told: Callable[[RelayStatus], None] | None = None,
    ) -> None:
        """
        Args:
            database: where the outbox is, as an engine or a URL.
            url: of the service, else as :class:`oncelog.Client` finds it; or ``client``.
            rows: numbered and published at once, at most.
            poll_seconds: how often an idle relay looks for new rows.
            takeover_seconds: how long the relay in charge must have been silent for another one to follow it.
            told: called with the status whenever it has changed.
        """
        if not 1 <= rows <= _ROWS_LIMIT:
            raise ValueError(f"rows is 1 to {_ROWS_LIMIT}, not {rows}")
        self.outbox = outbox
        self._owns_engine = isinstance(database, str)
        self._engine = create_engine(database, pool_pre_ping=True) if isinstance(database, str) else database
        self._owns_client = client is None
        self._client = Api(url, retry=_CLIENT_RETRY_SECONDS, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._database = OutboxDatabase(outbox, self._engine, takeover_seconds)
        self._rows = rows
        self._poll_seconds = poll_seconds
        self._takeover_seconds = takeover_seconds
        self._told = told
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}"[-200:]
        self._status = self._last_told = RelayStatus()
        self._stopping = threading.Event()
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None
        self._lease: Lease | None = None
        self._heard_of: tuple[Lease | None, float] = (None, 0.0)
        self._beaten = 0.0
        self._pending: list[Planned] = []
        self._blocked: dict[Name, _Blocked] = {}
        self._failures = 0
        self._publishing = self._new_publishing()
        self._home = forks.here()

    @property
    def status(self) -> RelayStatus:
        """What it is doing now."""
        return self._status

    # --- its life

    def start(self) -> None:
        """Relay in a thread of its own. Errors do not end it; they are in :attr:`status` and in the log ``oncelog.outbox``."""
        self._check_made_here()
        if self._thread is not None:
            raise RuntimeError("this relay has been started")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run_on, name=f"oncelog-outbox-{self.outbox.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the batch in hand, and leave the outbox to other relays. Twice is as once."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stop, and let go of what this relay has opened itself."""
        self.stop()
        if self._owns_client:
            self._client.close()
        if self._owns_engine:
            self._engine.dispose(close=forks.here() == self._home)  # a forked child leaves its parent's connections alone

    def __enter__(self) -> OutboxRelay:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def run(self) -> None:
        """Relay in this thread until :meth:`stop` is called elsewhere.

        Raises:
            OutboxBehind: the database does not know of everything that was published under the outbox's name. What else fails
            is tried again.
        """
        self._check_made_here()
        with self._running:
            try:
                while not self._stopping.is_set():
                    self._stopping.wait(self._turn())
            finally:
                self._let_go()

    def run_once(self) -> int:
        """Publish what is committed now, and return when it is on disk in its topics and deleted here; how many rows.

        Raises:
            OutboxBusy: another relay is at it. OutboxBehind: as :meth:`run`.
            OutboxBlocked: a topic refuses a row; everything that could be published is.
            OncelogError, SQLAlchemyError: the service, or the database, does not answer.
        """
        self._check_made_here()
        with self._running:
            before = self._status.stored + self._status.duplicates
            try:
                self._claim_or_wait()
                while self._advance():
                    pass
            except LeaseLost:
                raise self._busy() from None
            finally:
                self._let_go()
            for name, blocked in self._blocked.items():
                raise self._refusal(name, blocked)
            return self._status.stored + self._status.duplicates - before

    def renumber(self) -> int:
        """After :class:`~oncelog.errors.OutboxBehind`: number from above everything that any topic has of this producer.

        Rows that are in their topics already, but came back with an older state of the database, would be published again: delete
        them first. Answers the next number. Raises OutboxBusy, OncelogError, SQLAlchemyError.
        """
        self._check_made_here()
        with self._running:
            try:
                self._claim_or_wait(check=False)
                assert self._lease is not None
                self._lease = self._database.raise_number(self._lease, self._highest_published() + 1)
                return self._lease.next_number
            except LeaseLost:
                raise self._busy() from None
            finally:
                self._let_go()

    def _check_made_here(self) -> None:
        """Raises Forked: the lease, and what is in hand, are the parent's."""
        forks.check_made_here(self._home, f"the relay of outbox {self.outbox.name!r}")

    def _highest_published(self) -> int:
        highest = -1
        for namespace in self._client.namespaces():
            for topic in self._client.topics(namespace):
                with suppress(OncelogError):
                    last = self._client.producer(topic, self.outbox.name, namespace).last_persisted
                    highest = max(highest, -1 if last is None else last)
        return highest

    def _run_on(self) -> None:
        while not self._stopping.is_set():
            try:
                self.run()
            except Exception as error:
                logger.exception("outbox %s: the relay failed; it begins anew in %d s", self.outbox.name, _AGAIN_SECONDS)
                self._tell(state="failed", error=error)
                self._stopping.wait(_AGAIN_SECONDS)

    # --- turns

    def _turn(self) -> float:
        """Do what is to be done now; how many seconds may pass before the next turn."""
        try:
            if self._lease is None and not self._follow():
                self._tell(state="standby", error=None)
                return min(1.0, self._takeover_seconds / 10)
            more = self._advance()
        except LeaseLost:
            logger.warning("outbox %s: another relay has taken over", self.outbox.name)
            self._forget()
            return 0.0
        except OutboxBehind:
            raise
        except (OncelogError, SQLAlchemyError) as error:
            return self._wait_for(error)
        self._failures = 0
        self._tell(state="relaying", error=None)
        return 0.0 if more else self._poll_seconds

    def _wait_for(self, error: OncelogError | SQLAlchemyError) -> float:
        if self._failures == 0:
            logger.warning("outbox %s: waiting: %s", self.outbox.name, error)
        self._tell(state="waiting", error=error)
        if isinstance(error, SQLAlchemyError | ProducerFenced):
            self._forget()  # whatever it was doing: what became of it is read from the database
        self._failures += 1
        return pause(self._failures - 1, random.random())

    def _forget(self) -> None:
        """Nothing in memory is believed any more."""
        self._lease = None
        self._pending, self._blocked = [], {}
        self._publishing = self._new_publishing()
        self._tell(blocked=MappingProxyType({}))

    def _new_publishing(self) -> Publishing:
        return Publishing(self._client, self.outbox.name, self._beat)

    # --- the lease

    def _follow(self) -> bool:
        """Whether the outbox is this relay's now: nobody held it, or whoever did has not been heard of for long enough."""
        seen = self._database.lease()
        now = time.monotonic()
        if seen.holder not in (None, self._holder):
            before, since = self._heard_of
            if before is None or (before.holder, before.version) != (seen.holder, seen.version):
                self._heard_of = (seen, now)
                return False
            if now - since < self._takeover_seconds:
                return False
            logger.warning("outbox %s: %s is silent; this relay takes over", self.outbox.name, seen.holder)
        self._claim(seen)
        return True

    def _claim(self, seen: Lease, check: bool = True) -> None:
        lease = self._database.claim(seen, self._holder)
        self._forget()
        try:
            if check:
                self._check_not_behind(lease)
        except BaseException:
            with suppress(LeaseLost, SQLAlchemyError):
                self._database.release(lease)
            raise
        self._lease, self._beaten = lease, time.monotonic()
        self._pending = list(lease.plan)

    def _check_not_behind(self, lease: Lease) -> None:
        """Before anything is published, and for every row there is: in an older state of the database, rows that are published
        already have no number yet, and would get others."""
        for name in self._database.topics():
            try:
                self._publishing.check_not_behind(name, lease.next_number)
            except OutboxBehind:
                raise
            except OncelogError as error:
                if is_the_services(error):
                    raise
                # Of this topic alone: it is told when a row is to be published there, after the same check.

    def _claim_or_wait(self, check: bool = True) -> None:
        """Hold the outbox, waiting for as long as a dead relay may seem alive. Raises OutboxBusy, OutboxBehind."""
        before = seen = self._database.lease()
        end = time.monotonic() + self._takeover_seconds
        while seen.holder not in (None, self._holder) and time.monotonic() < end:
            time.sleep(min(0.1, self._takeover_seconds / 10))
            seen = self._database.lease()
            if seen.holder is not None and seen.version != before.version:
                raise self._busy(seen.holder)
        self._claim(seen, check)

    def _busy(self, holder: str | None = None) -> OutboxBusy:
        who = holder or "another relay"
        return OutboxBusy(f"outbox {self.outbox.name!r} is published by {who}", outbox=self.outbox.name, holder=who)

    def _beat(self) -> None:
        """Be heard of, unless that was just now. Raises LeaseLost."""
        if self._lease is not None and time.monotonic() - self._beaten > self._takeover_seconds / 4:
            self._lease = self._database.beat(self._lease)
            self._beaten = time.monotonic()

    def _let_go(self) -> None:
        lease, self._lease = self._lease, None
        self._heard_of = (None, 0.0)
        if lease is not None:
            with suppress(LeaseLost, SQLAlchemyError):
                self._database.release(lease)
        self._tell(state="stopped")

    # --- the rows

    def _advance(self, every: bool = False) -> bool:
        """Publish what is numbered, delete what is published, number what has come; whether there may be more to do.

        Raises LeaseLost, OutboxBehind, ProducerFenced, SQLAlchemyError; the OncelogError of a service that does not answer.
        """
        self._beat()
        due = sorted(self._pending + self._due_again())
        done: list[Planned] = []
        try:
            if due:
                self._publish(due, done)
        finally:
            # Also when it fails in the middle: what is published need not be published again.
            more = self._step(done)
        return more

    def _due_again(self) -> list[Planned]:
        now = time.monotonic()
        return [planned for blocked in self._blocked.values() if blocked.due <= now for planned in blocked.planned]

    def _publish(self, due: Sequence[Planned], done: list[Planned]) -> None:
        """``done`` gets what is on disk in its topic, and what is not in the outbox any more."""
        assert self._lease is not None
        rows = self._database.rows_of(due)
        there = {row.planned for row in rows}
        done += [planned for planned in due if planned not in there]
        for name, group in groupby(sorted(rows, key=_by_topic), key=lambda row: row.name):
            mine = list(group)
            published = self._publishing.publish(name, mine, self._lease.next_number)
            done += [row.planned for row in published.rows]
            left = [row.planned for row in mine[len(published.rows) :]]
            self._count(len(published.rows), published.duplicates)
            if published.error is None:
                continue
            if is_the_services(published.error):
                raise published.error
            self._block(name, published.error, left, progress=bool(published.rows))

    def _step(self, done: Sequence[Planned]) -> bool:
        assert self._lease is not None
        gone = set(done)
        for blocked in self._blocked.values():
            blocked.planned = [planned for planned in blocked.planned if planned not in gone]
        self._blocked = {name: blocked for name, blocked in self._blocked.items() if blocked.planned}
        held = {planned for blocked in self._blocked.values() for planned in blocked.planned}
        self._pending = [planned for planned in self._pending if planned not in gone and planned not in held]
        room = not self._pending and len(self._blocked) <= _BLOCKED_TOPICS and len(held) <= _HELD_ROWS
        if not done and not (room and self._database.is_waiting(self._blocked)):
            return False
        before = self._lease.next_number
        self._lease = self._database.step(self._lease, done, self._rows if room else 0, _BYTES, self._blocked)
        self._beaten = time.monotonic()
        self._pending += self._lease.plan[len(self._lease.plan) - (self._lease.next_number - before) :]
        return bool(self._pending)

    def _block(self, name: Name, error: OncelogError, planned: list[Planned], progress: bool) -> None:
        before = self._blocked.get(name)
        tries = 0 if before is None or progress else before.tries + 1
        if before is None or before.error.code != error.code:
            logger.error("outbox %s: topic %s refuses row %d: %s", self.outbox.name, name, planned[0].row, error)
        wait = min(_BLOCKED_SECONDS, 0.5 * 2.0 ** min(tries, 16))
        self._blocked[name] = _Blocked(error, planned, tries, time.monotonic() + wait)

    def _refusal(self, name: Name, blocked: _Blocked) -> OutboxBlocked:
        row = blocked.planned[0].row
        return OutboxBlocked(
            f"topic {name} refuses row {row} of outbox {self.outbox.name!r}: {blocked.error}",
            outbox=self.outbox.name,
            topic=str(name),
            row=row,
            cause=blocked.error.code,
        )

    # --- telling

    def _count(self, published: int, duplicates: int) -> None:
        status = self._status
        self._status = replace(status, stored=status.stored + published - duplicates, duplicates=status.duplicates + duplicates)

    def _tell(self, **changes: object) -> None:
        blocked = {str(name): blocked.error for name, blocked in self._blocked.items()}
        self._status = replace(self._status, **{"blocked": MappingProxyType(blocked), **changes})  # type: ignore[arg-type]
        if self._told is not None and self._status != self._last_told:
            self._last_told = self._status
            self._told(self._status)


def _by_topic(row: Row) -> tuple[Name, int]:
    return row.name, row.planned.number
