"""What can be watched, in Prometheus' text format. Each is documented in docs/operating.md, and a test says so.

Read from the live objects when asked: counting costs the hot path nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from oncelog.errors import NotServedHere, StorageUnavailable
from oncelog_service.atomic.coordinator import Journal
from oncelog_service.service import Service
from oncelog_service.storage.keys import split_row_id
from oncelog_service.transactions.edits import Aborted, Committed, Started
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.remote import RemoteTransactions


class _Collector:
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield CounterMetricFamily("oncelog_store_failures", "Times the store failed and had to be reopened", service.failures)
        yield CounterMetricFamily(
            "oncelog_background_failures",
            "Times a background task met an error that nobody foresaw and went on",
            service.background.failures,
        )
        yield GaugeMetricFamily(
            "oncelog_store_damaged", "Whether writes fail again and again since what is stored is damaged", service.damaged
        )
        try:
            topics, writer, cache = service.topics, service.writer, service.cache
        except StorageUnavailable:
            yield GaugeMetricFamily("oncelog_store_open", "Whether the store is open", 0)
            return
        yield GaugeMetricFamily("oncelog_store_open", "Whether the store is open", _serves(service))
        yield CounterMetricFamily("oncelog_writes", "Synced writes since the store was opened", writer.groups)
        yield CounterMetricFamily("oncelog_submissions", "Requests that those writes carried", writer.submissions)
        yield GaugeMetricFamily("oncelog_open_topics", "Topics that are open", len(topics.opened))
        yield GaugeMetricFamily("oncelog_cache_bytes", "Memory held by recent messages", cache.size)
        logs = topics.opened.values()
        yield CounterMetricFamily(
            "oncelog_messages", "Messages stored in the topics that are open", sum(log.stored for log in logs)
        )
        yield CounterMetricFamily(
            "oncelog_duplicates", "Messages refused as duplicates in the topics that are open", sum(log.refused for log in logs)
        )
        yield CounterMetricFamily(
            "oncelog_replayed", "Messages replayed when the open topics were opened", sum(log.replayed for log in logs)
        )
        subscriptions = [log.subscriptions for log in logs]
        yield GaugeMetricFamily(
            "oncelog_subscriptions", "Subscriptions of the topics that are open", sum(len(each) for each in subscriptions)
        )
        yield GaugeMetricFamily(
            "oncelog_largest_lag",
            "Offsets that the subscription farthest behind, of the topics that are open, has before it",
            max((each.largest_lag for each in subscriptions), default=0),
        )
        yield from _of_held(service)
        with suppress(NotServedHere, StorageUnavailable):  # it counts for all where it is served
            yield from _of_transactions(service.transactions)
        with suppress(NotServedHere, StorageUnavailable):
            yield from _of_atomic_commits(service.journal)
        yield GaugeMetricFamily("oncelog_leases", "Leases that this instance holds on a shared store", service.leases_held)


def _serves(service: Service) -> bool:
    try:
        service.check_serves()
    except StorageUnavailable:
        return False
    return True


def _of_held(service: Service) -> Iterator[Metric]:
    oldest = [run for log in service.topics.opened.values() if (run := log.ranges.held_from) is not None]
    since_ms = min((split_row_id(run.first_id)[0] for run in oldest), default=None)
    yield GaugeMetricFamily(
        "oncelog_held_topics", "Open topics that hold messages back since a transaction is not decided", len(oldest)
    )
    yield GaugeMetricFamily(
        "oncelog_held_seconds",
        "For how long the oldest undecided message of the topics that are open has held back what is behind it",
        0 if since_ms is None else max(0, service.clock.now_ms() - since_ms) / 1000,
    )


def _of_transactions(transactions: TransactionManager | RemoteTransactions) -> Iterator[Metric]:
    reachable = transactions.reachable if isinstance(transactions, RemoteTransactions) else True
    yield GaugeMetricFamily("oncelog_transactions_reachable", "Whether the transaction service answers", reachable)
    if isinstance(transactions, RemoteTransactions):
        return  # it counts for all who use it
    state, counts = transactions.state, transactions.counts
    yield GaugeMetricFamily("oncelog_transactions_in_progress", "Transactions in progress", len(state.open))
    yield GaugeMetricFamily(
        "oncelog_transactions_invalid", "Write pointers that every new transaction is told never to see", len(state.invalids)
    )
    yield CounterMetricFamily("oncelog_transactions_started", "Transactions started", counts[Started])
    yield CounterMetricFamily("oncelog_transactions_committed", "Transactions committed", counts[Committed])
    yield CounterMetricFamily("oncelog_transactions_aborted", "Transactions aborted", counts[Aborted])
    yield CounterMetricFamily("oncelog_transactions_timed_out", "Transactions that timed out", transactions.timed_out)


def _of_atomic_commits(journal: Journal) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "oncelog_atomic_open", "Journaled transactions and branches that have not ended", journal.open_transactions
    )
    yield CounterMetricFamily("oncelog_atomic_committed", "Atomic commits", journal.committed)
    yield CounterMetricFamily("oncelog_atomic_aborted", "Journaled transactions aborted", journal.aborted)


def exposition(service: Service) -> tuple[bytes, str]:
    """The metrics as a body, and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(service))
    return generate_latest(registry), CONTENT_TYPE_LATEST
