"""Brings the rows of an outbox to their topics: each that is committed, once, whatever is killed when.

The relay numbers the rows it sees, in a transaction of its own, publishes them under these numbers as sequence ids, and deletes
them. A row is numbered after it has become visible, so a transaction that commits late gets later numbers and is never passed
over. Numbers are in the database before they are published, so a relay that died is repeated exactly; the service answers what it
has already as duplicates (decision 0022).
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from oncelog.api.api import Api, check_client, clock_of
from oncelog.api.retry import pause
from oncelog.errors import OncelogError, OutboxBehind, OutboxBlocked, ProducerFenced
from oncelog.http.trust import Certificate, Verify
from oncelog.process import forks
from oncelog.process.frames import Face
from oncelog.sql.outbox.apart import check_apart
from oncelog.sql.outbox.database import PATIENCE_SECONDS, Lease, LeaseLost, OutboxDatabase
from oncelog.sql.outbox.holder import LeaseHolder
from oncelog.sql.outbox.outbox import Outbox
from oncelog.sql.outbox.plan import Backlog, Name, Planned
from oncelog.sql.outbox.publishing import Publishing, concerns_all
from oncelog.values.arguments import check_kind
from oncelog.values.numbers import MILLISECOND, check_count, check_seconds

ROWS = 1_000
"""Numbered in one transaction."""
_ROWS_LIMIT = 10_000
_BYTES = 4 << 20
"""And together no larger than this, so that memory is bounded."""
_AGAIN_SECONDS = 30.0
"""After an error that an operator has to mend, the thread begins anew."""
_CLIENT_RETRY_SECONDS = 1.0
"""The relay tries again itself."""

logger = logging.getLogger("oncelog.outbox")
_name = attrgetter("name")


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """The state of a relay, and what it has published."""

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


class OutboxRelay(Face):
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
        on_change: Callable[[RelayStatus], None] | None = None,
    ) -> None:
        """
        Args:
            database: where the outbox is, as an engine or a URL.
            url: of the service, else as :class:`oncelog.Client` finds it; or ``client``.
            rows: numbered and published at once, at most.
            poll_seconds: how often an idle relay looks for new rows.
            takeover_seconds: how long the relay in charge must have been silent for another one to follow it.
            on_change: called with the status whenever that has changed.
        """
        check_kind("outbox", outbox, Outbox, "an Outbox")
        check_client(Api, client, url=url, verify=verify, cert=cert, proxy=proxy)
        check_count("rows", rows)
        check_seconds("poll_seconds", poll_seconds, MILLISECOND)
        check_seconds("takeover_seconds", takeover_seconds, MILLISECOND)
        if rows > _ROWS_LIMIT:
            raise ValueError(f"rows is 1 to {_ROWS_LIMIT}, not {rows}")
        if not isinstance(database, Engine | str) or (isinstance(database, Engine) and database.dialect.is_async):
            raise TypeError(
                "a relay's database is an Engine whose driver blocks, or a URL: one of asyncio works on its event loop only"
            )
        self.outbox = outbox
        self._owns_engine = isinstance(database, str)
        self._engine = create_engine(database, pool_pre_ping=True) if isinstance(database, str) else database
        self._owns_client = client is None
        self._client = Api(url, retry=_CLIENT_RETRY_SECONDS, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._clock = clock_of(self._client)
        self._database = OutboxDatabase(outbox, self._engine, takeover_seconds)
        self._rows = rows
        self._poll_seconds = poll_seconds
        self._takeover_seconds = takeover_seconds
        self._on_change = on_change
        self._status = self._last_shown = RelayStatus()
        self._goes_on = threading.Lock()
        """Held until it is to stop. To wait for it is one call of C: Ctrl-C ends that and leaves nothing behind, as in
        threading.Event it may; and a signal handler that stops the relay it has interrupted waits for nothing."""
        self._goes_on.acquire()
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None
        self._holder = LeaseHolder(self._database, outbox.name, takeover_seconds, self._clock)
        self._failures = 0
        self._is_apart = False
        """Whether this engine was found to have connections for several threads."""
        self._first_number = 0
        """The next number when the lease was taken."""
        self._forget()
        self._home = forks.here()

    @property
    def status(self) -> RelayStatus:
        """The state of this relay now."""
        return self._status

    # --- its life

    def start(self) -> None:
        """Relays in a thread of its own. Errors do not end it; they are in :attr:`status` and in the log ``oncelog.outbox``.

        Raises:
            ValueError: in this engine a thread has no connection of its own to the same database: with a StaticPool it would
                commit and roll back what others have begun, and with SQLite in memory it would see no rows.
        """
        if self._thread is not None:
            raise RuntimeError("this relay has been started")
        self._check_apart()
        self._goes_on.acquire(blocking=False)
        self._thread = threading.Thread(target=self._run_on, name=f"oncelog-outbox-{self.outbox.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the batch in hand, and leaves the outbox to other relays. Idempotent."""
        with suppress(RuntimeError):  # it is to stop already
            self._goes_on.release()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stops, and lets go of what this relay has opened itself."""
        self.stop()
        if self._owns_client:
            self._client.close()
        if self._owns_engine:
            self._engine.dispose(close=forks.here() == self._home)  # a forked child leaves its parent's connections alone

    def __enter__(self) -> OutboxRelay:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The relay does nothing else meanwhile, and leaves the outbox to others then.

        Raises Forked: it is the parent's. OutboxBusy: its own thread is at it, for as long as it is started.
        """
        self._check_made_here()
        if self._thread not in (None, threading.current_thread()):
            raise self._holder.busy("this relay, in a thread of its own")
        with self._running:
            try:
                yield
            except LeaseLost:
                raise self._holder.busy() from None
            finally:
                self._holder.let_go()
                self._show(state="stopped")

    def run(self) -> None:
        """Relays in this thread until :meth:`stop` is called elsewhere.

        Raises:
            OutboxBehind: the database does not know of everything that was published under the outbox's name. What else fails
            is tried again. ValueError: as :meth:`start`; whoever adds rows meanwhile does so in another thread.
        """
        self._check_apart()
        with self._alone():
            while self._goes_on.locked():
                self._wait(self._turn())

    def run_once(self) -> int:
        """Publishes what is committed now, deletes it here once it is on disk in its topics, and answers how many rows it was.

        Raises:
            OutboxBusy: another relay is at it. OutboxBehind: as :meth:`run`. ValueError: the engine is in AUTOCOMMIT.
            OutboxBlocked: a topic refuses a row; everything that could be published is.
            OncelogError, SQLAlchemyError: the service, or the database, does not answer.
        """
        with self._alone():
            before = self._status.stored + self._status.duplicates
            self._take(self._holder.wait_until_free())
            while self._advance():
                pass
            for name, blocked in self._backlog.blocked.items():
                row = blocked.planned[0].row if blocked.row is None else blocked.row
                raise OutboxBlocked(
                    f"topic {name} refuses row {row} of outbox {self.outbox.name!r}: {blocked.error}",
                    outbox=self.outbox.name,
                    topic=str(name),
                    row=row,
                    cause=blocked.error.code,
                )
            return self._status.stored + self._status.duplicates - before

    def renumber(self) -> int:
        """Goes on, after :class:`~oncelog.errors.OutboxBehind`, with numbers above those that any topic has of this producer.

        Rows that are in their topics already, but came back with an older state of the database, would be published again: delete
        them first. Answers the next number. Raises OutboxBusy, OncelogError, SQLAlchemyError.
        """
        with self._alone():
            # Not checked: that the database is behind is why this is called.
            lease = self._holder.take(self._holder.wait_until_free(), lambda _: None)
            next_number = max(lease.next_number, self._highest_published() + 1)
            self._holder.moved(self._database.change(lease, next_number=next_number))
            return next_number

    def _check_apart(self) -> None:
        self._check_made_here()
        if not self._is_apart:
            check_apart(self._engine, self.outbox.table.name, self.outbox.create_tables)
            self._is_apart = True

    def _check_made_here(self) -> None:
        """Raises Forked: the lease, and what is in hand, are the parent's."""
        forks.check_made_here(self._home, f"the relay of outbox {self.outbox.name!r}")

    def _highest_published(self) -> int:
        highest = -1
        for namespace in self._client.namespaces():
            for topic in self._client.topics(namespace):
                try:
                    last = self._client.producer(topic, self.outbox.name, namespace).last_persisted
                except OncelogError as error:
                    if concerns_all(error):
                        raise  # what is not answered now is not nothing
                    continue
                highest = max(highest, -1 if last is None else last)
        return highest

    def _run_on(self) -> None:
        while self._goes_on.locked():
            try:
                self.run()
            except Exception as error:
                logger.exception("outbox %s: the relay failed; it begins anew in %d s", self.outbox.name, _AGAIN_SECONDS)
                self._show(state="failed", error=error)
                self._wait(_AGAIN_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Waits so long, or until it is to stop."""
        if self._goes_on.acquire(timeout=max(0.0, seconds)):
            with suppress(RuntimeError):  # it was told so again
                self._goes_on.release()

    # --- turns

    def _turn(self) -> float:
        """Does what is to be done now; answers how many seconds may pass before the next turn."""
        try:
            if self._holder.lease is None:
                free = self._holder.free()
                if free is None:
                    self._show(state="standby", error=None)
                    return min(1.0, self._takeover_seconds / 10)
                self._take(free)
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
        self._show(state="relaying", error=None)
        return 0.0 if more else self._poll_seconds

    def _wait_for(self, error: OncelogError | SQLAlchemyError) -> float:
        if self._failures == 0:
            logger.warning("outbox %s: waiting: %s", self.outbox.name, error)
        if isinstance(error, SQLAlchemyError | ProducerFenced):
            self._forget()  # whatever it was doing: what became of it is read from the database
        self._show(state="waiting", error=error)
        self._failures += 1
        return pause(self._failures - 1, random.random())

    def _forget(self) -> None:
        """Drops what is in memory, which may be wrong."""
        self._holder.lease = None
        self._backlog = Backlog()
        self._checked: set[Name] = set()
        """Topics that had no number, when the lease was taken, which the database does not know."""
        # Between two requests too: a batch may take longer than others wait for a sign of life.
        self._publishing = Publishing(self._client, self.outbox.name, self._holder.beat)

    def _take(self, free: Lease) -> None:
        """Begins anew with what the database says. Raises LeaseLost, OutboxBehind."""
        self._forget()
        # Checked under the lease: before that, another relay may still publish.
        lease = self._holder.take(free, self._check_all)
        self._backlog = Backlog(lease.plan)

    def _check_all(self, lease: Lease) -> None:
        """Before anything is published, and for every row there is: in an older state of the database, rows that are published
        already have no number yet, and would get others."""
        self._first_number = lease.next_number
        for name in self._database.topics():
            self._check_not_behind(name)  # what concerns this topic alone is met again before a row of it gets a number

    def _check_not_behind(self, name: Name) -> OncelogError | None:
        """Before the first row of a topic gets a number: with one that the topic has, it would be taken for a duplicate.

        Answers what the topic says instead of its newest number, where that concerns this topic alone. Raises OutboxBehind.
        """
        try:
            # Held against what the number was then: it rises with the rows of other topics.
            self._publishing.check_not_behind(name, self._first_number)
        except OncelogError as error:
            if concerns_all(error):
                raise
            return error
        self._checked.add(name)
        return None

    # --- the rows

    def _advance(self) -> bool:
        """Publishes what is numbered, deletes what is published, numbers what has come; whether there may be more to do.

        Raises LeaseLost, OutboxBehind, ProducerFenced, SQLAlchemyError; the OncelogError of a service that does not answer.
        """
        self._holder.beat()
        for name in self._backlog.unnumbered(self._clock.monotonic()):
            self._look(name)
        due = self._backlog.due(self._clock.monotonic())
        done: list[Planned] = []
        try:
            if due:
                self._publish(due, done)
        finally:
            # Also when it fails in the middle: what is published need not be published again.
            more = self._step(done)
        return more

    def _publish(self, due: Sequence[Planned], done: list[Planned]) -> None:
        """Publishes rows; ``done`` gets those that are on disk in their topic, and those that are not in the outbox any more."""
        assert self._holder.lease is not None
        rows = self._database.rows_of(due)
        there = {row.planned for row in rows}
        done += [planned for planned in due if planned not in there]
        for name, group in groupby(sorted(rows, key=_name), key=_name):
            mine = list(group)
            published = self._publishing.publish(name, mine, self._holder.lease.next_number)
            done += [row.planned for row in published.rows]
            left = [row.planned for row in mine[len(published.rows) :]]
            self._status = replace(
                self._status,
                stored=self._status.stored + len(published.rows) - published.duplicates,
                duplicates=self._status.duplicates + published.duplicates,
            )
            if published.error is None:
                continue
            if concerns_all(published.error):
                raise published.error
            if self._backlog.block(name, published.error, left, self._clock.monotonic(), progress=bool(published.rows)):
                self._log_refusal(name, left[0].row, published.error)

    def _step(self, done: Sequence[Planned]) -> bool:
        before = self._holder.lease
        assert before is not None
        self._backlog.drop(done)
        blocked, room = self._backlog.blocked, self._backlog.has_room()
        if not done and not (room and self._database.is_waiting(blocked)):
            return False
        # Deleted and numbered in one transaction, behind publishing: whenever this dies, what is in the plan is published again
        # under its numbers, and answered as duplicates.
        lease, unchecked = self._database.step(before, done, self._rows if room else 0, _BYTES, blocked, self._checked)
        self._holder.moved(lease)
        waits = self._backlog.add(lease.plan[len(lease.plan) - (lease.next_number - before.next_number) :])
        for name in unchecked:
            self._look(name)
        return waits or bool(unchecked)

    def _look(self, name: Name) -> None:
        """Finds out whether rows of a topic may get numbers. Until then they are passed over."""
        row = self._database.first_of(name)
        error = None if row is None else self._check_not_behind(name)
        if error is None:
            self._backlog.blocked.pop(name, None)
        elif self._backlog.block(name, error, [], self._clock.monotonic(), row=row):
            self._log_refusal(name, row, error)

    def _log_refusal(self, name: Name, row: int | None, error: OncelogError) -> None:
        logger.error("outbox %s: topic %s refuses row %d: %s", self.outbox.name, name, row, error)

    # --- its status

    def _show(self, **changes: object) -> None:
        blocked = {str(name): blocked.error for name, blocked in self._backlog.blocked.items()}
        self._status = replace(self._status, **{"blocked": MappingProxyType(blocked), **changes})  # type: ignore[arg-type]
        if self._on_change is not None and self._status != self._last_shown:
            self._last_shown = self._status
            try:
                self._on_change(self._status)
            except Exception:  # it would end the thread, and nothing would be published any more
                logger.exception("outbox %s: on_change failed", self.outbox.name)
