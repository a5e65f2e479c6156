"""What can be watched, in Prometheus' text format. Each is documented in docs/operating.md, and a test says so.

Read from the live objects when asked: counting costs the hot path nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from oncelog.errors import NotServedHere, StorageUnavailable
from oncelog_service.atomic.coordinator import AtomicCommits
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.service import Service
from oncelog_service.storage.keys import split_row_id
from oncelog_service.traffic import REASONS, Traffic
from oncelog_service.transactions.edits import Aborted, Committed, Started
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.remote import RemoteTransactions

T = TypeVar("T")
Family: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]
GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily


class _Metric(NamedTuple, Generic[T]):
    """One line of a table: how a value is read from what the table is about, what it is called and what it says."""

    kind: Family
    name: str
    said: str
    read: Callable[[T], float]


ALWAYS: Sequence[_Metric[Service]] = (
    _Metric(COUNTER, "store_failures", "Times the store failed and had to be reopened", lambda it: it.failures),
    _Metric(
        COUNTER,
        "background_failures",
        "Times a background task met an unforeseen error and went on",
        lambda it: it.background.failures,
    ),
    _Metric(GAUGE, "store_damaged", "Whether writes fail again and again since what is stored is damaged", lambda it: it.damaged),
    _Metric(GAUGE, "store_open", "Whether the store is open", lambda it: _serves(it)),
    _Metric(GAUGE, "connections", "Connections that are open", lambda it: it.traffic.connections),
    _Metric(GAUGE, "body_bytes", "Request bodies in hand", lambda it: it.traffic.body_bytes),
    _Metric(GAUGE, "unread_bytes", "Answers that are written and not read yet", lambda it: it.traffic.unread_bytes),
)

WHILE_OPEN: Sequence[_Metric[Service]] = (
    _Metric(COUNTER, "writes", "Synced writes since the store was opened", lambda it: it.writer.groups),
    _Metric(COUNTER, "submissions", "Requests that those writes carried", lambda it: it.writer.submissions),
    _Metric(GAUGE, "open_topics", "Topics that are open", lambda it: len(it.topics.opened)),
    _Metric(GAUGE, "cache_bytes", "Memory held by recent messages", lambda it: it.cache.size),
    _Metric(COUNTER, "messages", "Messages stored in the topics that are open", lambda it: sum(log.stored for log in _logs(it))),
    _Metric(
        COUNTER, "duplicates", "Messages refused as duplicates in the topics that are open",
        lambda it: sum(log.refused for log in _logs(it)),
    ),
    _Metric(
        COUNTER, "replayed", "Messages replayed when the open topics were opened",
        lambda it: sum(log.replayed for log in _logs(it)),
    ),
    _Metric(
        GAUGE, "subscriptions", "Subscriptions of the topics that are open",
        lambda it: sum(len(log.subscriptions) for log in _logs(it)),
    ),
    _Metric(
        GAUGE, "largest_lag", "Offsets that the subscription farthest behind, of the topics that are open, has before it",
        lambda it: max((log.subscriptions.largest_lag for log in _logs(it)), default=0),
    ),
    _Metric(
        GAUGE, "held_topics", "Open topics that hold messages back since a transaction is not decided",
        lambda it: len(_held(it)),
    ),
    _Metric(
        GAUGE, "held_seconds",
        "For how long the oldest undecided message of the topics that are open has held back what is behind it",
        lambda it: _held_seconds(it),
    ),
    _Metric(
        GAUGE, "disk_free_bytes", "Bytes that can still be written to the disk a moment ago; infinite where nobody can tell",
        lambda it: it.room.free,
    ),
    _Metric(GAUGE, "disk_min_free_bytes", "Below so many nothing more is taken in", lambda it: it.room.floor),
    _Metric(
        GAUGE, "disk_full", "Whether nothing more is taken in until the disk has room again", lambda it: it.room.state == "full"
    ),
    _Metric(COUNTER, "disk_refusals", "Requests that were refused since the disk has no room", lambda it: it.room.refused),
    _Metric(GAUGE, "leases", "Leases that this instance holds on a shared store", lambda it: it.leases_held),
)  # fmt: skip

OF_TRANSACTIONS: Sequence[_Metric[TransactionManager]] = (
    _Metric(GAUGE, "transactions_in_progress", "Transactions in progress", lambda it: len(it.state.open)),
    _Metric(
        GAUGE, "transactions_invalid", "Write pointers that no new transaction may ever see", lambda it: len(it.state.invalids)
    ),
    _Metric(COUNTER, "transactions_started", "Transactions started", lambda it: it.counts[Started]),
    _Metric(COUNTER, "transactions_committed", "Transactions committed", lambda it: it.counts[Committed]),
    _Metric(COUNTER, "transactions_aborted", "Transactions aborted", lambda it: it.counts[Aborted]),
    _Metric(COUNTER, "transactions_timed_out", "Transactions that timed out", lambda it: it.timed_out),
)

OF_ATOMIC_COMMITS: Sequence[_Metric[AtomicCommits]] = (
    _Metric(GAUGE, "atomic_open", "Atomic commits and branches that have not ended", lambda it: len(it.ledger.numbers)),
    _Metric(COUNTER, "atomic_committed", "Atomic commits", lambda it: it.endings.committed),
    _Metric(COUNTER, "atomic_aborted", "Atomic commits aborted", lambda it: it.endings.aborted),
)


def _families(metrics: Sequence[_Metric[T]], it: T) -> Iterator[Metric]:
    for each in metrics:
        yield each.kind(f"oncelog_{each.name}", each.said, each.read(it))


class _Collector:
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield from _families(ALWAYS, service)
        yield _refused(service.traffic)
        with suppress(StorageUnavailable):  # of a store that is not open nothing else is known
            yield from _families(WHILE_OPEN, service)
        with suppress(NotServedHere, StorageUnavailable):  # it counts for all where it is served
            transactions = service.transactions
            remote = transactions if isinstance(transactions, RemoteTransactions) else None
            reachable = True if remote is None else remote.reachable
            yield GAUGE("oncelog_transactions_reachable", "Whether the transaction service answers", reachable)
            if not isinstance(transactions, RemoteTransactions):  # that one counts for all who use it
                yield from _families(OF_TRANSACTIONS, transactions)
        with suppress(NotServedHere, StorageUnavailable):
            yield from _families(OF_ATOMIC_COMMITS, service.atomic)


def _refused(traffic: Traffic) -> Metric:
    family = CounterMetricFamily(
        "oncelog_refused", "Connections and requests that were refused, or ended for others' sake", labels=["reason"]
    )
    for reason in REASONS:
        family.add_metric([reason], traffic.refused[reason])
    return family


def _logs(service: Service) -> Collection[TopicLog]:
    return service.topics.opened.values()


def _held(service: Service) -> list[int]:
    """When the oldest undecided message of each open topic that has one was published."""
    return [split_row_id(run.first_id)[0] for log in _logs(service) if (run := log.ranges.held_from) is not None]


def _held_seconds(service: Service) -> float:
    since_ms = min(_held(service), default=None)
    return 0 if since_ms is None else max(0, service.clock.now_ms() - since_ms) / 1000


def _serves(service: Service) -> bool:
    try:
        service.check_serves()
    except StorageUnavailable:
        return False
    return True


def exposition(service: Service) -> tuple[bytes, str]:
    """The metrics as a body, and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(service))
    return generate_latest(registry), CONTENT_TYPE_LATEST
