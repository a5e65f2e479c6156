"""Topics are created, updated and deleted: each under its lock and its lease, judged with the write.

What a deleted topic's next generation must not use again – ids, timestamps, epochs – stays with the name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from oncelog.errors import PropertiesChanged, StaleMessageId, TopicExists
from oncelog_service.bounds.holding import check_names
from oncelog_service.clock import Clock
from oncelog_service.cluster.leases import SETUP, Leases, held_briefly
from oncelog_service.group_commit import Writer
from oncelog_service.log.keep.recovery import last_timestamp, read_judgements
from oncelog_service.log.limits import Limits
from oncelog_service.log.names.generations import floor_of, highest_epoch
from oncelog_service.properties import check_properties, expired_before, shown_properties
from oncelog_service.reading import read
from oncelog_service.storage.incarnation import raised
from oncelog_service.storage.keys import FIRST_GENERATION, generation_key, topic_key
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import TopicRow, encode_record
from oncelog_service.topics.directory import Directory, check_topic_name
from oncelog_service.topics.logs import Logs
from oncelog_service.topics.policies import Policies

MOST_UNSET = 100_000
"""Topics of one namespace where nothing else is set, and this process has the store for itself. What an idle one takes is in the
store alone; one that is used is open until a restart, 10 kB and what its producers take."""


class Changes:
    """Belongs to the event loop that owns the writer."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        leases: Leases,
        clock: Clock,
        limits: Limits,
        directory: Directory,
        policies: Policies,
        logs: Logs,
    ) -> None:
        self._store = store
        self._writer = writer
        self._leases = leases
        self._clock = clock
        self._limits = limits
        self._directory = directory
        self._incarnation = directory.incarnation
        self._policies = policies
        self._logs = logs
        self._is_shared = leases.alive is not None
        self._most = limits.max_topics if limits.max_topics is not None or self._is_shared else MOST_UNSET
        """Topics that a namespace may have; None: as many as are made."""
        self._held: dict[str, int] = {}
        """How many a namespace has, or a few more, once this process has made one; nothing where the store is shared."""

    async def create(self, namespace: str, topic: str, properties: object) -> None:
        """Raises InvalidRequest, TopicExists, QuotaExceeded: the namespace has as many as it may have; DiskFull."""
        check_topic_name(namespace, topic)
        kept = check_properties(properties, lenient=self._limits.cdap_clients)
        async with self._logs.locked((namespace, topic)), self._counted() as counting:
            writer = await self._logs.writer_of((namespace, topic))
            before = await self._directory.row(namespace, topic)
            if before is not None and not before.deleted:
                raise TopicExists(f"topic {namespace}/{topic} exists already; exist_ok (--exist-ok) leaves it as it is")
            if self._most is not None:
                check_names("topics", await self._count(namespace), 1, self._most, f"namespace {namespace}")
            now_ms = self._clock.now_ms()
            writer.room.admit()
            if before is None:
                row = TopicRow(FIRST_GENERATION, max(now_ms, self._incarnation.messages_ms), kept)
            else:
                created = max(now_ms, before.last_timestamp + 1, self._incarnation.messages_ms)
                row = TopicRow(before.generation + 1, created, kept, epoch_floor=before.epoch_floor)
            self._have(namespace, 1)  # handed over in this step: of two who have counted, one sees the other's
            await _write(writer, namespace, topic, row, counting)

    async def _count(self, namespace: str) -> int:
        """How many topics a namespace has, never fewer than there are; so late that nothing is awaited behind it."""
        if self._is_shared:  # others make some, too
            return len(await self._directory.names(namespace))
        if namespace not in self._held:
            found = len(await self._directory.names(namespace))  # 0.9 s of a thread for 100,000: once
            self._held.setdefault(namespace, found)  # else another one has counted, and made some since
        return self._held[namespace]

    def _have(self, namespace: str, more: int) -> None:
        if namespace in self._held:
            self._held[namespace] += more

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[Writer | None]:
        """Where instances count their topics together: no other one makes any before this one is there.

        What is written with the writer that it gives stands on that. None: they do not. Raises StorageUnavailable.
        """
        if self._most is None or not self._is_shared:
            yield None
            return
        async with held_briefly(self._leases, SETUP) as lease:
            yield self._writer.under(lease)

    async def update(self, namespace: str, topic: str, properties: object, expected: Mapping[str, str] | None = None) -> None:
        """Replace all properties. ``expected``: as :meth:`Directory.get` had shown them, to whom asks this.

        Of two who have seen the same, one finds what the other has made of it: judged under the topic's lock and its lease, with
        the write. Raises InvalidRequest, TopicNotFound, PropertiesChanged.
        """
        name = (namespace, topic)
        async with self._present(namespace, topic) as (writer, row):
            generation = raised(row.generation, self._incarnation)
            present = shown_properties(row.properties, generation)
            if expected is not None and expected != present:
                raise PropertiesChanged(
                    f"the properties of topic {namespace}/{topic} were changed since you looked; nothing was done, look again",
                    properties=present,
                )
            kept = check_properties(properties, generation, row.properties, lenient=self._limits.cdap_clients)
            log = self._logs.opened.get(name)
            prefix = generation_key(topic_key(*name), row.generation)
            before = await read(self._expired_before, row, prefix) if log is None else log.expired_before
            checked = self._policies.checks_expectations(row)
            row = replace(row, properties=kept, expired_before=before)
            if self._policies.checks_expectations(row) != checked:
                await self._logs.close_one(name)  # so that one routine builds the index of keys: recovery
            await _write(writer, namespace, topic, row)
            log = self._logs.opened.get(name)
            if log is not None:
                log.change(row)

    def _expired_before(self, row: TopicRow, prefix: bytes) -> int:
        last = max(row.created, last_timestamp(self._store, prefix))
        judgements = read_judgements(self._store, prefix)
        now_ms = max(self._clock.now_ms(), last, *(each.ms for each in judgements))
        return expired_before(row, now_ms, last)

    async def delete(self, namespace: str, topic: str, generation: int | None = None) -> None:
        """The topic and its messages are gone at once; their rows leave by and by. Raises InvalidRequest, TopicNotFound;
        StaleMessageId: it is of another ``generation`` than that."""
        name = (namespace, topic)
        async with self._present(namespace, topic) as (writer, row):
            present = raised(row.generation, self._incarnation)
            if generation is not None and generation != present:
                raise StaleMessageId(
                    f"generation {generation} of topic {namespace}/{topic} is gone; generation {present}, made anew, stays",
                    generation=present,
                )
            # No recovery is under way: it would hold the lock. One that waits for it will find the topic deleted.
            log = self._logs.opened.pop(name, None)
            if log is not None:
                await log.close(snapshot=False)  # from here on it hands out nothing more
                last, epoch = log.last_timestamp, log.highest_epoch
            else:
                prefix = generation_key(topic_key(*name), row.generation)
                last = await read(last_timestamp, self._store, prefix)
                epoch = await read(highest_epoch, self._store, prefix)
            gone = replace(
                row,
                deleted=True,
                properties={},
                last_timestamp=max(last, row.created),
                expired_before=0,
                # Also above the first epoch of every name that has ended and left no row.
                epoch_floor=max(epoch, floor_of(row, self._incarnation) + 1),
            )
            counted = namespace in self._held  # else who counts it now may see it as gone already: it would go twice
            await _write(writer, namespace, topic, gone, on_written=lambda: self._have(namespace, -counted))

    @asynccontextmanager
    async def _present(self, namespace: str, topic: str) -> AsyncIterator[tuple[Writer, TopicRow]]:
        """Holds the lock of a topic that there is: what writes to it here, and its row as whoever served it before has left it.

        Raises InvalidRequest, TopicNotFound, NotServedHere, StorageUnavailable.
        """
        async with self._logs.locked((namespace, topic)):
            await self._directory.existing(namespace, topic)  # else a lease would be taken of what is none
            writer = await self._logs.writer_of((namespace, topic))
            yield writer, await self._directory.existing(namespace, topic)


async def _write(
    writer: Writer,
    namespace: str,
    topic: str,
    row: TopicRow,
    counting: Writer | None = None,
    on_written: Callable[[], None] = lambda: None,
) -> None:
    batch = Batch()
    if counting is not None:
        counting.fence(batch)
    batch.put(Table.TOPIC, topic_key(namespace, topic), encode_record(row))
    await writer.submit(batch, on_written)
