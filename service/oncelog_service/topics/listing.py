"""A list of topics with what is known of each, page by page: none is opened for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from oncelog.errors import TopicDamaged
from oncelog.wire.models import ListedTopic
from oncelog.wire.names import check_namespace
from oncelog_service.bounds.size import Size
from oncelog_service.bounds.slices import slices
from oncelog_service.cluster.leases import Leases
from oncelog_service.log.groups.held import count_held
from oncelog_service.log.scan import run_before, trim_of
from oncelog_service.reading import Scans
from oncelog_service.storage.incarnation import raised
from oncelog_service.storage.keys import generation_key, prefix_end, topic_key
from oncelog_service.storage.port import Store, StoreDamaged
from oncelog_service.storage.records import TopicRow
from oncelog_service.topics.directory import Directory
from oncelog_service.topics.logs import Logs
from oncelog_service.topics.policies import Policies

_LISTED_AT_ONCE = 20
"""Topics of a list that are described in one step."""


class _Ends(NamedTuple):
    """What is known of a log by its ends."""

    earliest_offset: int
    upcoming_offset: int
    bytes: int


class Listing:
    """Belongs to the event loop of the logs."""

    def __init__(self, store: Store, leases: Leases, scans: Scans, directory: Directory, policies: Policies, logs: Logs) -> None:
        self._store = store
        self._leases = leases
        self._scans = scans
        self._directory = directory
        self._policies = policies
        self._logs = logs

    async def rows_behind(self, namespace: str, after: str, limit: int) -> list[tuple[str, TopicRow]]:
        """The first ``limit`` topics behind ``after``, by name. Raises InvalidRequest."""
        check_namespace(namespace)
        return await self._scans.read(self._rows_behind, namespace, after, limit)

    def _rows_behind(self, namespace: str, after: str, limit: int) -> list[tuple[str, TopicRow]]:
        """The first ``limit`` behind a name, by name; what lies before them is not read.

        Keys are in another order than names in one case: the name that others begin with lies behind those that go on with a
        character before the colon. So no key of a name behind ``after`` lies before the text of ``after``; and a name that
        belongs on the page, and lies behind the last key that was read for it, is one that the name of this key begins with.
        """
        begin = f"{namespace}:".encode()
        found: dict[str, TopicRow] = {}
        last = ""
        with closing(self._directory.rows(begin + after.encode(), prefix_end(begin))) as rows:
            for (_, name), row in rows:
                if name > after and not row.deleted:
                    found[name] = row
                    if len(found) == limit:
                        last = name
                        break
        for size in range(1, len(last)):
            name = last[:size]
            if last[size] < ":" and name > after and name not in found:
                shorter = self._directory.stored(namespace, name)
                if shorter is not None and not shorter.deleted:
                    found[name] = shorter
        return sorted(found.items())[:limit]

    async def describe(self, namespace: str, rows: Sequence[tuple[str, TopicRow]]) -> list[ListedTopic]:
        """What is known of these topics without opening them."""
        ends = {}
        if self._leases.alive is None:  # a look at a database is a way there and back, for each topic
            unopened = [(name, row) for name, row in rows if (namespace, name) not in self._logs.opened]
            ends = await self._scans.read(self._ends, namespace, unopened)
        found: list[ListedTopic] = []
        for at, part in enumerate(slices(rows, _LISTED_AT_ONCE)):
            if at:
                await asyncio.sleep(0)
            found += [self._listed(namespace, name, row, ends.get(name)) for name, row in part]
        return found

    def _ends(self, namespace: str, rows: Sequence[tuple[str, TopicRow]]) -> dict[str, _Ends | str]:
        """Where each log begins and ends, or why that cannot be said; two looks into the store each."""
        found: dict[str, _Ends | str] = {}
        for name, row in rows:
            prefix = generation_key(topic_key(namespace, name), row.generation)
            try:
                last = run_before(self._store, prefix)
                trim = trim_of(self._store, prefix)
                end = trim.earliest_offset if last is None else last.end
                size = Size(trim.bytes_below if last is None else last.upto_bytes, trim.bytes_below, trim.missing)
                found[name] = _Ends(max(trim.earliest_offset, trim.hidden_below), end, size.present)
            except (TopicDamaged, StoreDamaged) as damage:
                found[name] = str(damage)
        return found

    def _listed(self, namespace: str, name: str, row: TopicRow, ends: _Ends | str | None) -> ListedTopic:
        generation = raised(row.generation, self._directory.incarnation)
        deduplication = self._policies.deduplicates(namespace, row)
        log = self._logs.opened.get((namespace, name))
        if log is not None:
            return ListedTopic(
                name=name,
                generation=generation,
                open=True,
                deduplication=deduplication,
                earliest_offset=log.begin_offset,
                upcoming_offset=log.position.upcoming_offset,
                bytes=log.topic.size.present,
                producers=len(log.dedup.fold),
                subscriptions=len(log.subscriptions),
                held_messages=count_held(log.dedup.fold.unsettled),
                largest_lag=log.subscriptions.largest_lag,
            )
        known: dict[str, Any] = {} if ends is None else {"damage": ends} if isinstance(ends, str) else ends._asdict()
        return ListedTopic(name=name, generation=generation, open=False, deduplication=deduplication, **known)
