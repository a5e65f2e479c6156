"""Reads the facts from the live service: bounded, some topics at a time, and nothing of it on the way of a publish.

Only topics that are open are looked at: of one that nobody has used since the start, no lag is known and nothing is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from heapq import nlargest, nsmallest
from typing import NamedTuple

from oncelog.errors import NotServedHere, OncelogError, StorageUnavailable, TopicDamaged, TopicNotFound
from oncelog.wire.models import TransactionState, TransactionStatus
from oncelog_service.health import is_damaged, reading, stalled_seconds
from oncelog_service.log.scan import find_offset
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import read
from oncelog_service.service import Service
from oncelog_service.storage.keys import split_row_id
from oncelog_service.storage.port import Store
from oncelog_service.topics.directory import TopicName
from oncelog_service.transactions.remote import RemoteTransactions
from oncelog_service.watch.facts import Expiring, Facts, Held, Lagging, Replay, Thresholds
from oncelog_service.watch.refusals import Refusals
from oncelog_service.watch.rules import MOST_OF_A_KIND

_AT_ONCE = 200
"""Topics that are looked at in one turn of the event loop: about a millisecond."""
_PATIENCE_SECONDS = 1.0
"""How long others are asked: what they do not say is left out."""


class _OfTopics(NamedTuple):
    """What is seen of the topics that are open; of each kind the worst."""

    held: list[tuple[int, TopicName, TopicLog]]
    """By since when."""
    lagging: list[tuple[int, TopicName, TopicLog, str, int]]
    """Lag, topic, log, subscription, offset of the first message."""
    replays: list[Replay]
    ahead: tuple[str, str, int] | None


Published = dict[tuple[bytes, str], tuple[int, int | None]]
"""(topic, subscription) → where it stood, and when the message there was published."""


async def gather(
    service: Service,
    refusals: Refusals,
    shed: Mapping[str, int],
    thresholds: Thresholds,
    published: Published,
) -> Facts:
    """The facts of this moment. ``shed``: as in :class:`Facts`; ``published``: what was read the last time, which is replaced by
    what is read now."""
    settings, room, now_ms, edge = service.settings, service.room, service.clock.now_ms(), service.traffic.edge()
    seen = _OfTopics([], [], [], None)
    held: tuple[Held, ...] = ()
    lagging: tuple[Lagging, ...] = ()
    transactions_url, reachable, restored_ms = None, True, None
    with suppress(StorageUnavailable):  # of a store that is not open nothing more is known
        seen = await _of_topics(service, thresholds, now_ms)
        held = await _held(service, seen)
        lagging = await _lagging(service, seen, published)
        await _forget_mended(service, refusals)
        transactions_url, reachable = _reached(service)
        restored_ms = service.opening.topics.directory.incarnation.began_ms
    return Facts(
        now_ms=now_ms,
        open=service.present is not None,
        reason=service.reason,
        damaged=is_damaged(service),
        failures=service.failures.count,
        stalled_ms=round(stalled_seconds(service) * 1000),
        disk_state=room.state,
        disk_free=room.free,
        disk_floor=room.floor,
        disk_refused=room.refused,
        held=held,
        lagging=lagging,
        refused=refusals.lately(now_ms),
        shed=shed,
        replays=tuple(seen.replays),
        transactions_url=transactions_url,
        transactions_reachable=reachable,
        failing=tuple(service.background.failing),
        clock_behind_ms=service.clock.behind_ms(),
        ahead=seen.ahead,
        certificate=settings.tls_certificate or "",
        certificate_ends_ms=edge.certificate_ends_ms,
        tokens=tuple(
            Expiring(each.id, each.name, each.created_ms, each.expires_ms)
            for each in service.access.tokens
            if each.expires_ms is not None
        ),
        restored_ms=restored_ms,
        host=settings.host,
        is_local=settings.is_local,
        speaks_tls=settings.speaks_tls,
        asks_for_credentials=not service.access.is_open,
        behind_a_proxy=bool(settings.allowed_hosts),
        descriptors=edge.descriptors,
        connections_wanted=settings.max_connections,
    )


async def open_logs(service: Service) -> AsyncIterator[tuple[TopicName, TopicLog]]:
    """The topics that are open, some in a turn of the event loop. Raises StorageUnavailable."""
    for at, name in enumerate(list(service.opening.topics.logs.opened)):
        if at and at % _AT_ONCE == 0:
            await asyncio.sleep(0)
        log = service.opening.topics.logs.opened.get(name)
        if log is not None:
            yield name, log


async def _of_topics(service: Service, thresholds: Thresholds, now_ms: int) -> _OfTopics:
    held: list[tuple[int, TopicName, TopicLog]] = []
    lagging: list[tuple[int, TopicName, TopicLog, str, int]] = []
    replays: list[Replay] = []
    ahead: tuple[str, str, int] | None = None
    async for name, log in open_logs(service):
        run = log.ranges.held_from
        if run is not None:
            held.append((split_row_id(run.first_id)[0], name, log))
        lagging += [(lag, name, log, each, at) for each, lag, at in log.subscriptions.lagging(thresholds.lag_messages)]
        replays.append(Replay(*name, log.snapshots.behind))
        by = log.last_timestamp - now_ms
        if by > 0 and (ahead is None or by > ahead[2]):
            ahead = (*name, by)
        if len(lagging) > 10 * MOST_OF_A_KIND:
            lagging = _most_lag(lagging)
    return _OfTopics(
        nsmallest(MOST_OF_A_KIND, held, key=lambda each: each[:2]),
        _most_lag(lagging),
        nlargest(MOST_OF_A_KIND, replays, key=lambda each: each.messages),
        ahead,
    )


def _most_lag(found: list[tuple[int, TopicName, TopicLog, str, int]]) -> list[tuple[int, TopicName, TopicLog, str, int]]:
    return nlargest(MOST_OF_A_KIND, found, key=lambda each: each[0])


async def _held(service: Service, seen: _OfTopics) -> tuple[Held, ...]:
    """What holds the topics back, and what the transaction service says of it."""
    found = []
    for since_ms, (namespace, topic), log in seen.held:
        run = log.ranges.held_from
        if run is None or run.write_pointer is None:
            continue  # it was decided meanwhile
        found.append(
            Held(
                namespace,
                topic,
                run.write_pointer,
                since_ms,
                log.position.upcoming_offset - run.first_offset,
                tuple(sorted(producer for producer, _ in run.last_entries)),
                len(log.subscriptions),
            )
        )
    if not found:
        return ()
    states, told = await _told(service, [each.pointer for each in found])
    with_states = []
    for each in found:
        status = told.get(each.pointer)
        each = each._replace(state=states.get(each.pointer))
        if status is not None:
            each = each._replace(owner=status.owner, expires_ms=status.expires_ms, resource=status.resource)
        with_states.append(each)
    return tuple(with_states)


async def _told(service: Service, pointers: list[int]) -> tuple[dict[int, TransactionState], dict[int, TransactionStatus]]:
    states: dict[int, TransactionState] = {}
    told: dict[int, TransactionStatus] = {}
    with suppress(OncelogError, TimeoutError):
        async with reading(service), asyncio.timeout(_PATIENCE_SECONDS):
            states = await service.opening.topics.transactions.states(pointers)
            for pointer in pointers:
                if states.get(pointer) == "in_progress":
                    with suppress(OncelogError):
                        told[pointer] = await service.opening.transactions.show(pointer)
    return states, told


async def _lagging(service: Service, seen: _OfTopics, published: Published) -> tuple[Lagging, ...]:
    before = dict(published)
    published.clear()
    found = []
    with suppress(TimeoutError):
        async with reading(service):
            for lag, (namespace, topic), log, name, at in seen.lagging:
                key = log.prefix, name
                known = before.get(key)
                if known is None or known[0] != at:
                    known = at, await _published_at(service.opening.store, log.prefix, at)
                published[key] = known
                found.append(Lagging(namespace, topic, name, lag, known[1], at))
    return tuple(found)


async def _published_at(store: Store, prefix: bytes, offset: int) -> int | None:
    """When the message at an offset was published; None: it is gone, or cannot be read."""
    try:
        found = await read(find_offset, store, prefix, offset)
    except TopicDamaged:
        return None
    return None if found is None else split_row_id(found)[0]


async def _forget_mended(service: Service, refusals: Refusals) -> None:
    """Topics that were met damaged, and are deleted by now."""
    gone = []
    with suppress(TimeoutError):
        async with reading(service):
            for name in refusals.damaged:
                try:
                    await service.opening.topics.directory.get(*name)
                except TopicNotFound:
                    gone.append(name)
                except OncelogError:
                    continue  # it cannot be said
    refusals.mended(gone)


def _reached(service: Service) -> tuple[str | None, bool]:
    """The address of the transaction service, where it runs alone, and whether it answers."""
    try:
        transactions = service.opening.transactions
    except (NotServedHere, StorageUnavailable):
        return None, True
    return service.settings.transactions_url, transactions.reachable if isinstance(transactions, RemoteTransactions) else True
