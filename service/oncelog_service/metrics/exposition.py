"""All metrics as one answer."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

import oncelog
from oncelog.errors import NotServedHere, NotSupported, StorageUnavailable, TopicDamaged, all_errors
from oncelog_service.counting.counts import Counts
from oncelog_service.health import reading
from oncelog_service.metrics import tables
from oncelog_service.metrics.families import GAUGE, families, histogram
from oncelog_service.metrics.overview import look_over
from oncelog_service.metrics.topics import of_subscriptions, of_topics
from oncelog_service.service import Service
from oncelog_service.traffic import REASONS, UNROUTED, Traffic
from oncelog_service.transactions.remote import RemoteTransactions

_CODES = sorted({kind.code for kind in all_errors() if kind.status})
"""Each from the beginning: what is not there and then is 1 has no rate."""


class _Collected:
    """What was found, for a registry that is used once."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def _of_process(service: Service) -> Iterator[Metric]:
    yield _build_info()
    yield from families(tables.ALWAYS, service)
    yield from families(tables.COUNTED, service.counts)
    yield from _of_time(service.counts)
    yield from _of_traffic(service.traffic)


async def _of_store(service: Service) -> list[Metric]:
    """Finds what there is while the store is open; what it cannot find is left out."""
    found: list[Metric] = []
    try:
        opened = service.opening.topics.logs.opened
        overview = await look_over(opened, service.clock.now_ms(), service.settings.metrics_topics)
        found += families(tables.WHILE_OPEN, service)
        found += families(tables.OF_OPEN_TOPICS, overview)
        found.append(of_subscriptions(overview.lags[: service.settings.metrics_topics]))
        with suppress(TimeoutError):
            async with reading(service):
                found.append(
                    GAUGE("oncelog_store_bytes", "Bytes that the store takes on disk", await service.opening.store_bytes())
                )
    except (StorageUnavailable, TopicDamaged):  # of a store that is not open nothing else is known
        opened = {}
    return [*found, *of_topics(service, opened)]


async def _of_instances(service: Service) -> list[Metric]:
    """Finds how many there are over a shared store. The database is asked only while one has vanished."""
    alive, missing = 1, 0
    try:
        membership = service.opening.membership
        alive = len(membership.alive[1])
        if membership.vanished:
            async with reading(service):
                missing = len(membership.missing(*await membership.overview()))
    except NotSupported:
        pass
    except (StorageUnavailable, TimeoutError):
        return []
    return [
        GAUGE("oncelog_instances", "Instances over the store that are alive", alive),
        GAUGE("oncelog_instances_missing", "Instances that are gone without having left, with leases", missing),
    ]


def _of_transactions(service: Service) -> Iterator[Metric]:
    """Yields what only the instance knows that serves them."""
    with suppress(NotServedHere, StorageUnavailable):
        transactions = service.opening.transactions
        remote = transactions if isinstance(transactions, RemoteTransactions) else None
        reachable = True if remote is None else remote.reachable
        yield GAUGE("oncelog_transactions_reachable", "Whether the transaction service answers", reachable)
        if not isinstance(transactions, RemoteTransactions):
            yield from families(tables.OF_TRANSACTIONS, transactions)
    with suppress(NotServedHere, StorageUnavailable):
        yield from families(tables.OF_ATOMIC_COMMITS, service.opening.atomic)


def _build_info() -> Metric:
    family = GaugeMetricFamily("oncelog_build_info", "What runs", labels=["version", "python"])
    family.add_metric([oncelog.__version__, platform.python_version()], 1)
    return family


def _of_time(counts: Counts) -> Iterator[Metric]:
    yield histogram("page_seconds", "To put a page together for a poll or a consumer, without the wait for messages", counts.page)
    yield histogram("sync_seconds", "One synced write of the store", counts.sync)
    yield histogram("write_submissions", "Requests that shared a synced write", counts.group)


def _of_traffic(traffic: Traffic) -> Iterator[Metric]:
    yield histogram(
        "publish_seconds", "From a publish, read as a whole, to its answer, where it was not refused", traffic.publishes
    )
    refused = CounterMetricFamily(
        "oncelog_refused", "Connections and requests that were refused, or ended for others' sake", labels=["reason"]
    )
    for reason in REASONS:
        refused.add_metric([reason], traffic.refused[reason])
    yield refused
    problems = CounterMetricFamily("oncelog_problems", "Answers that refuse, by the code of their problem", labels=["code"])
    for code in _CODES:
        problems.add_metric([code], traffic.problems[code])
    yield problems
    broken = CounterMetricFamily(
        "oncelog_answers_broken_off", "Answers that ended before they were whole, by the code of what failed", labels=["code"]
    )
    for code in _CODES:
        broken.add_metric([code], traffic.broken_off[code])
    yield broken
    requests = HistogramMetricFamily(
        "oncelog_http_request_seconds",
        "From a request, read as a whole and next on its connection, to its answer, with what a poll waits for messages",
        labels=["method", "route", "code"],
    )
    for (method, path), times_of in [(UNROUTED, traffic.unrouted), *traffic.routes.items()]:
        for status, found in times_of.by_status.items():
            requests.add_metric([method, path, str(status)], found.buckets(), found.sum)
    yield requests


async def collected(service: Service) -> list[Metric]:
    """Returns all metrics as they are now."""
    process = await asyncio.get_running_loop().run_in_executor(service.telling, ProcessCollector(registry=None).collect)
    return [*_of_process(service), *await _of_store(service), *await _of_instances(service), *_of_transactions(service), *process]


async def exposition(service: Service) -> tuple[bytes, str]:
    """Returns the metrics as a body, and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(await collected(service)))
    body = await asyncio.get_running_loop().run_in_executor(service.telling, generate_latest, registry)
    return body, CONTENT_TYPE_LATEST
