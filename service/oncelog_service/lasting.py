"""What a service has as long as it lives, however often its store is opened: threads, bounds, counts, who may come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncelog.http.sockets import Network
from oncelog_service.access.access import Access
from oncelog_service.access.audit import Audit
from oncelog_service.access.checks import Checks
from oncelog_service.access.issuer import Issuer
from oncelog_service.background import Background
from oncelog_service.bounds.quotas import Quotas, Rates
from oncelog_service.bounds.room import Room
from oncelog_service.bounds.shares import Shares
from oncelog_service.bounds.turns import Turns
from oncelog_service.bounds.waits import Waits
from oncelog_service.clock import Clock
from oncelog_service.config import Settings
from oncelog_service.counting.counts import Counts
from oncelog_service.looking import Looking
from oncelog_service.reading import Scans
from oncelog_service.traffic import Traffic
from oncelog_service.workers import Workers


class Lasting:
    """Belongs to one event loop."""

    def __init__(self, settings: Settings, clock: Clock, workers: Workers, url: str | None, network: Network | None) -> None:
        """``url``: the address at which other processes over the same store, and clients, find this one. ``network``: over which
        it reaches others; else sockets."""
        self.settings = settings
        self.url = url or settings.advertised_url or settings.url_of(settings.host, settings.port)
        self.clock = clock
        self.network = network
        self.workers = workers
        self.scans = Scans(workers)
        self.telling = workers.pool(1, "oncelog-telling")
        """For what is told of the process and reads no store: told also while all other threads wait for one that hangs."""
        self.packing, self.unpacking = (workers.pool(1, f"oncelog-{name}") for name in ("packing", "unpacking"))
        """For large answers, so that such an answer waits for no store either, and for large bodies that come packed."""
        self.looking = Looking(workers, clock)
        self.shares = Shares(clock.elapsed, _later, workers.pool(1, "oncelog-apart"))
        """Whose large work goes on next."""
        self.waits = Waits(settings.max_inflight_bytes // 4)
        """What long polls hold."""
        self.room = Room(settings.min_free_bytes)
        """On the disk."""
        self.counts = Counts(settings.metrics_topics)
        principal_rates = Rates(settings.max_principal_messages_per_second, settings.max_principal_bytes_per_second)
        self.principal_quotas = Quotas("a principal of this service", principal_rates)
        """What each principal may send."""
        self.turns = Turns(settings.max_inflight_bytes, _later)
        """Whose request is written next."""
        self.background = Background(clock)
        self.traffic = Traffic()
        self._checking = workers.pool(1, "oncelog-checking")
        """For the signatures of tokens."""
        issuer = _issuer(settings)
        checks = None if issuer is None else Checks(issuer, self._checking, clock.now_ms, clock.monotonic, self.traffic)
        self.access = Access(settings.token, clock.now_ms, locked=settings.is_locked, issuer=issuer, checks=checks)
        self.audit = Audit(settings.audit_log, _later)

    def begin_threads(self) -> None:
        """Begin those that must be there for a process to say how it is, and to end. Raises RuntimeError: there are no more."""
        self.scans.make_ready()
        for each in (self.telling, self.looking.thread):
            each.make_ready(1)

    def end(self) -> None:
        """End the threads, each after what it is in, and the audit log."""
        self.scans.close()
        for each in (self.telling, self.looking.thread, self.packing, self.unpacking, self.shares.thread, self._checking):
            each.shutdown(wait=False)
        self.audit.close()


def _issuer(settings: Settings) -> Issuer | None:
    if settings.jwt_issuer is None or settings.jwt_audience is None or settings.jwt_keys is None:
        return None
    return Issuer(settings.jwt_issuer, settings.jwt_audience, settings.jwt_keys, settings.jwt_grants_claim)


def _later(seconds: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, call)
