"""Topics by name: created, updated, listed, deleted, and opened when they are first used.

A name that was deleted keeps its row, so that the next generation's ids and timestamps go on rising.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from oncelog.errors import (
    OncelogError,
    PropertiesChanged,
    StaleMessageId,
    StorageUnavailable,
    TopicDamaged,
    TopicExists,
    TopicNotFound,
    TransactionConflict,
    TransactionsUnavailable,
)
from oncelog.wire.models import ListedTopic, NamespacePolicies, Topic, TransactionState
from oncelog.wire.names import check_namespace, check_topic
from oncelog_service.bounds.holding import check_names
from oncelog_service.bounds.size import MaxBytes, Size
from oncelog_service.bounds.slices import slices
from oncelog_service.clock import Clock
from oncelog_service.cluster.leases import SETUP, Leases, held_briefly, topic_resource
from oncelog_service.cluster.placement import preferred
from oncelog_service.group_commit import Writer
from oncelog_service.log.cache import RecentMessages
from oncelog_service.log.groups.held import count_held
from oncelog_service.log.keep.recovery import last_timestamp, read_judgements, recover
from oncelog_service.log.limits import Limits
from oncelog_service.log.names.generations import floor_of, highest_epoch
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import read_back, run_before, trim_of
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.properties import (
    Rules,
    check_properties,
    checks_expectations,
    deduplicates,
    expired_before,
    max_bytes,
    rates,
    shown_properties,
)
from oncelog_service.reading import Scans, read
from oncelog_service.storage.incarnation import find_incarnation, raised
from oncelog_service.storage.keys import (
    FIRST_GENERATION,
    GENERATION_SIZE,
    generation_key,
    generation_of,
    pointer_key,
    prefix_end,
    split_topic_key,
    topic_key,
)
from oncelog_service.storage.port import Batch, RowDamaged, Store, StoreDamaged, Table
from oncelog_service.storage.records import EndedRow, NamespaceRow, TopicRow, decode_record, encode_record
from oncelog_service.transactions.port import Transactions
from oncelog_service.transactions.wanted import Wanted, topic_of_participant

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.5
"""How long the opening of a topic waits to hear how its transactions ended."""
_AGAIN_SECONDS = 1.0
"""Between two questions, where nobody says so."""

_LISTED_AT_ONCE = 20
"""Topics of a list that are described in one step."""

_NO_POLICIES = NamespacePolicies()

TopicName = tuple[str, str]
"""(namespace, topic)."""


class _Ends(NamedTuple):
    """What is known of a log by its ends."""

    earliest_offset: int
    upcoming_offset: int
    bytes: int


def check_topic_name(namespace: str, topic: str) -> None:
    """Raises InvalidRequest unless both are names."""
    check_namespace(namespace)
    check_topic(topic)


def participant(store_id: str, namespace: str, topic: str, generation: int) -> str:
    """What a generation of a topic is called by the transaction service."""
    return f"{store_id}:{namespace}/{topic}/{generation}"


class Topics:
    """Every topic over one opening of the store. Works on the event loop that owns the writer."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        clock: Clock,
        cache: RecentMessages,
        limits: Limits,
        transactions: Transactions,
        store_id: str,
        *,
        leases: Leases,
        scans: Scans,
    ) -> None:
        """``store_id``: this store among those that share a transaction service. ``leases``: which process serves which topic."""
        self._store = store
        self._writer = writer
        self._clock = clock
        self._cache = cache
        self._limits = limits
        self._transactions = transactions
        self._store_id = store_id
        self.incarnation = find_incarnation(store)
        self._leases = leases
        self.scans = scans
        self._policies = _read_policies(store)
        self.rolled_back_by_hand = _read_rolled_back(store)
        """Keys of the pointers whose messages an operator has rolled back on a topic, whether it is open or not. Topics that are
        open note here what is said of them."""
        self._opening: dict[tuple[TopicName, bool], asyncio.Task[TopicLog]] = {}
        self._open: dict[TopicName, TopicLog] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()  # gone with its last user

    # --- the resource

    async def create(self, namespace: str, topic: str, properties: object) -> None:
        """Raises InvalidRequest, TopicExists, QuotaExceeded: the namespace has as many as it may have; DiskFull."""
        check_topic_name(namespace, topic)
        kept = check_properties(properties, lenient=self._limits.cdap_clients)
        async with self._locked((namespace, topic)), self._counted() as counting:
            writer = await self._writer_of((namespace, topic))
            before = await self._row(namespace, topic)
            if before is not None and not before.deleted:
                raise TopicExists(f"topic {namespace}/{topic} exists already; exist_ok (--exist-ok) leaves it as it is")
            if counting is not None:
                held = len(await read(self._present, namespace))
                check_names("topics", held, 1, self._limits.max_topics, f"namespace {namespace}")
            now_ms = self._clock.now_ms()
            writer.admit()
            if before is None:
                row = TopicRow(FIRST_GENERATION, max(now_ms, self.incarnation.messages_ms), kept)
            else:
                created = max(now_ms, before.last_timestamp + 1, self.incarnation.messages_ms)
                row = TopicRow(before.generation + 1, created, kept, epoch_floor=before.epoch_floor)
            await self._write(writer, namespace, topic, row, counting)

    async def update(self, namespace: str, topic: str, properties: object, expected: Mapping[str, str] | None = None) -> None:
        """Replace all properties. ``expected``: as :meth:`get` had shown them, to whom asks this.

        Of two who have seen the same, one finds what the other has made of it: judged under the topic's lock and its lease, with
        the write. Raises InvalidRequest, TopicNotFound, PropertiesChanged.
        """
        async with self._locked((namespace, topic)):
            row = await self._existing(namespace, topic)
            writer = await self._writer_of((namespace, topic))
            row = await self._existing(namespace, topic)
            present = shown_properties(row.properties, raised(row.generation, self.incarnation))
            if expected is not None and expected != present:
                raise PropertiesChanged(
                    f"the properties of topic {namespace}/{topic} were changed since you looked; nothing was done, look again",
                    properties=present,
                )
            generation = raised(row.generation, self.incarnation)
            kept = check_properties(properties, generation, row.properties, lenient=self._limits.cdap_clients)
            log = self._open.get((namespace, topic))
            before = (
                await read(self._expired_before, row, generation_key(topic_key(namespace, topic), row.generation))
                if log is None
                else log.expired_before
            )
            checked = self._checks_expectations(row)
            row = replace(row, properties=kept, expired_before=before)
            if self._checks_expectations(row) != checked:
                await self._close((namespace, topic))  # so that one routine builds the index of keys: recovery
            await self._write(writer, namespace, topic, row)
            log = self._open.get((namespace, topic))
            if log is not None:
                log.change(row)

    def _expired_before(self, row: TopicRow, prefix: bytes) -> int:
        last = max(row.created, last_timestamp(self._store, prefix))
        judgements = read_judgements(self._store, prefix)
        now_ms = max(self._clock.now_ms(), last, *(each.ms for each in judgements))
        return expired_before(row, now_ms, last)

    def _checks_expectations(self, row: TopicRow) -> bool:
        return checks_expectations(row.properties, self._limits.check_expected_offsets)

    def _deduplicates(self, namespace: str, row: TopicRow) -> bool:
        return deduplicates(row.properties, self._policies.get(namespace, _NO_POLICIES).deduplication, self._limits.deduplication)

    def max_bytes(self, namespace: str, row: TopicRow) -> MaxBytes | None:
        """What the messages of a topic with this row may take; None: there is no limit."""
        return max_bytes(row.properties, self._policies.get(namespace, _NO_POLICIES))

    def _rules(self, namespace: str, row: TopicRow) -> Rules:
        allowed = rates(row.properties, self._policies.get(namespace, _NO_POLICIES))
        return Rules(self._deduplicates(namespace, row), allowed, self.max_bytes(namespace, row))

    async def _close(self, name: TopicName) -> None:
        """Let go of a topic's log, whose lock is held: the next request recovers it."""
        log = self._open.pop(name, None)
        if log is not None:
            await log.close()

    async def get(self, namespace: str, topic: str, *, counted: bool = False) -> Topic:
        """``counted``: its generation is how often the name was made, whatever was done to the store since.

        Raises InvalidRequest, TopicNotFound.
        """
        row = await self._existing(namespace, topic)
        generation = row.generation if counted else raised(row.generation, self.incarnation)
        return Topic(name=topic, properties=shown_properties(row.properties, generation))

    async def generation(self, namespace: str, topic: str) -> int | None:
        """The generation of a topic, as the store knows it; None: there is no such topic now."""
        row = await self._row(namespace, topic)
        return None if row is None or row.deleted else row.generation

    async def names(self, namespace: str) -> list[str]:
        """The names of the topics in a namespace, sorted. Raises InvalidRequest."""
        check_namespace(namespace)
        return await read(self._present, namespace)

    async def rows_behind(self, namespace: str, after: str, limit: int) -> list[tuple[str, TopicRow]]:
        """The first ``limit`` topics behind ``after``, by name. Raises InvalidRequest."""
        check_namespace(namespace)
        return await self.scans.read(self._rows_behind, namespace, after, limit)

    async def listed(self, namespace: str, rows: Sequence[tuple[str, TopicRow]]) -> list[ListedTopic]:
        """What is known of these topics without opening them."""
        ends = {}
        if self._leases.alive is None:  # a look at a database is a way there and back, for each topic
            unopened = [(name, row) for name, row in rows if (namespace, name) not in self._open]
            ends = await self.scans.read(self._ends, namespace, unopened)
        found: list[ListedTopic] = []
        for at, part in enumerate(slices(rows, _LISTED_AT_ONCE)):
            if at:
                await asyncio.sleep(0)
            found += [self._listed(namespace, name, row, ends.get(name)) for name, row in part]
        return found

    def _rows_behind(self, namespace: str, after: str, limit: int) -> list[tuple[str, TopicRow]]:
        """The first ``limit`` behind a name, by name; what lies before them is not read.

        Keys are in another order than names in one case: the name that others begin with lies behind those that go on with a
        character before the colon. So no key of a name behind ``after`` lies before the text of ``after``; and a name that
        belongs on the page, and lies behind the last key that was read for it, is one that the name of this key begins with.
        """
        begin = f"{namespace}:".encode()
        found: dict[str, TopicRow] = {}
        last = ""
        with closing(self.rows(begin + after.encode(), prefix_end(begin))) as rows:
            for (_, name), row in rows:
                if name > after and not row.deleted:
                    found[name] = row
                    if len(found) == limit:
                        last = name
                        break
        for size in range(1, len(last)):
            name = last[:size]
            if last[size] < ":" and name > after and name not in found:
                shorter = self._stored(topic_key(namespace, name))
                if shorter is not None and not shorter.deleted:
                    found[name] = shorter
        return sorted(found.items())[:limit]

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
        generation, deduplication = raised(row.generation, self.incarnation), self._deduplicates(namespace, row)
        log = self._open.get((namespace, name))
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

    async def delete(self, namespace: str, topic: str, generation: int | None = None) -> None:
        """The topic and its messages are gone at once; their rows leave by and by. What its generations must not use again – ids,
        timestamps, epochs – is kept with the name. Raises InvalidRequest, TopicNotFound; StaleMessageId: it is of another
        ``generation`` than that."""
        name = (namespace, topic)
        async with self._locked(name):
            await self._existing(namespace, topic)
            writer = await self._writer_of(name)
            row = await self._existing(namespace, topic)
            present = raised(row.generation, self.incarnation)
            if generation is not None and generation != present:
                raise StaleMessageId(
                    f"generation {generation} of topic {namespace}/{topic} is gone; generation {present}, made anew, stays",
                    generation=present,
                )
            # No recovery is under way: it would hold the lock. One that waits for it will find the topic deleted.
            log = self._open.pop(name, None)
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
                epoch_floor=max(epoch, floor_of(row, self.incarnation) + 1),
            )
            await self._write(writer, namespace, topic, gone)

    async def open(self, namespace: str, topic: str, *, claim: bool = False) -> TopicLog:
        """The topic's log, recovered when it is first used; everyone who asks meanwhile waits for the same recovery.

        ``claim``: also where another process serves it, which is asked to hand it over.

        Raises:
            InvalidRequest, TopicNotFound; NotServedHere: another process serves it; TopicDamaged: its log cannot be recovered.
        """
        name = (namespace, topic)
        log = self._open.get(name)
        if log is not None and log.is_valid:
            if claim:
                self._leases.keep(topic_resource(topic_key(*name)))
            return log
        opening = self._opening.get((name, claim))
        if opening is None:
            opening = asyncio.ensure_future(self._recover(name, claim))
            self._opening[name, claim] = opening
            opening.add_done_callback(lambda opened: self._opened(name, claim, opened))
        # It goes on where who asks has gone: asyncio.shield of CPython 3.14 would have what it ends with be an error of nobody's.
        await asyncio.wait([opening])
        return opening.result()

    def _opened(self, name: TopicName, claim: bool, opening: asyncio.Task[TopicLog]) -> None:
        del self._opening[name, claim]
        if not opening.cancelled():
            opening.exception()  # whoever waits is told; where all have gone, the next who asks meets it

    async def _recover(self, name: TopicName, claim: bool) -> TopicLog:
        async with self._locked(name):
            await self._existing(*name)
            writer = await self._writer_of(name, claim)
            present = self._open.get(name)
            if present is not None:
                return present
            if self._leases.alive is not None:
                await read(self._store.check_written)
            row = await self._existing(*name)  # as the process that served it before has left it
            prefix = generation_key(topic_key(*name), row.generation)
            recovered = await self.scans.read(recover, self._store, prefix, self._checks_expectations(row))
            self._writer.counts.replayed += recovered.replayed
            topic = OpenTopic(
                prefix=prefix,
                row=row,
                store=self._store,
                writer=writer,
                clock=self._clock,
                limits=self._limits,
                transactions=self._transactions,
                participant=participant(self._store_id, *name, row.generation),
                incarnation=self.incarnation,
                rules_of=partial(self._rules, name[0]),
                cache=self._cache.topic(),
                counts=self._writer.counts.topics.of(name),
                rolled_back_by_hand=self.rolled_back_by_hand,
                recovered=recovered,
            )
            log = self._open[name] = TopicLog(topic, recovered, self.scans)
            log.trimming.begin_if_due()
        await self._settle_ended(log)
        return log

    async def _writer_of(self, name: TopicName, claim: bool = False) -> Writer:
        """What writes to the topic, whose lock is held, as long as it is served here. A log of an earlier lease is let go of."""
        lease = await self._leases.take(topic_resource(topic_key(*name)), claim=claim)
        log = self._open.get(name)
        if log is not None and not log.is_valid:
            self.drop(name)
        return self._writer.under(lease)

    async def writer(self, name: TopicName) -> Writer:
        """What writes to the topic as long as it is served here. Raises NotServedHere, StorageUnavailable."""
        async with self._locked(name):
            return await self._writer_of(name)

    def belongs_here(self, name: TopicName) -> bool:
        """Whether this process serves it, or would."""
        return self._leases.belongs_here(topic_resource(topic_key(*name)))

    def drop(self, name: TopicName) -> None:
        """Let go of a topic that is served elsewhere now; all who wait for something of it are asked to try again."""
        log = self._open.pop(name, None)
        if log is not None:
            log.release()

    async def hand_over(self, namespace: str, topic: str, to: str) -> None:
        """Have the instance ``to`` serve it from now on. What is in flight is finished before. Raises StorageUnavailable."""
        name = (namespace, topic)
        check_topic_name(*name)
        async with self._locked(name):
            await self._close(name)
            await self._leases.pass_on(topic_resource(topic_key(*name)), to)

    async def _settle_ended(self, log: TopicLog) -> None:
        """Tell it how the transactions ended that it found unsettled; if their service does not answer soon, it learns later."""
        if not log.dedup.fold.unsettled:
            return
        task = asyncio.ensure_future(_learn_ends(log))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        await asyncio.wait([task], timeout=_PATIENCE_SECONDS)

    def wanted(self, without: frozenset[str]) -> Wanted:
        """Of which participants' ends this process wants to be notified: those that it serves, ``without`` some."""
        alive = self._leases.alive
        if alive is None:
            return Wanted(without=without)
        member, ids = alive
        also = {
            log.participant
            for name, log in self._open.items()
            if log.waits_for_an_end and preferred(topic_resource(topic_key(*name)), ids) != member
        }
        return Wanted(member, ids, frozenset(also) - without, without)

    def named(self, participants: Iterable[str]) -> list[tuple[str, str, int]]:
        """Returns the topics of this store, with their generations, among participants of a transaction; of another store's
        nobody here knows who may write there."""
        found, own = list[tuple[str, str, int]](), f"{self._store_id}:"
        for each in participants:
            with suppress(ValueError):  # a service enlists under any name
                found += [topic_of_participant(each)] if each.startswith(own) else []
        return found

    def check_not_rolled_back(self, namespace: str, topic: str, generation: int, pointers: Iterable[int]) -> None:
        """Raises TransactionConflict: the transaction of these pointers cannot commit as a whole any more.

        Its service did not know it for a time, and an operator has rolled back what the topic held of it.
        """
        prefix = generation_key(topic_key(namespace, topic), generation)
        for pointer in pointers:
            if pointer_key(prefix, pointer) in self.rolled_back_by_hand:
                raise TransactionConflict(
                    f"an operator has rolled back on topic {namespace}/{topic} what was published under write pointer {pointer}, "
                    "while the transaction service did not know it; roll back and try the whole transaction again",
                    write_pointer=pointer,
                )

    async def settle(self, participant: str, pointer: int, committed: bool) -> None:
        """Tell a participant of this service how a transaction ended. One that is gone has nothing to settle, nor has one whose
        name is no generation of a topic: anybody may enlist under any name."""
        try:
            namespace, topic, generation = topic_of_participant(participant)
        except ValueError:
            return
        log = self._open.get((namespace, topic))
        if log is None:
            row = await self._row(namespace, topic)
            if row is None or row.deleted:
                return
            log = await self.open(namespace, topic)
        log.topic.check_open()  # one of an earlier lease may be of an earlier generation than the participant
        if log.row.generation == generation:
            await log.settle(pointer, committed)

    async def states(self, pointers: Collection[int]) -> dict[int, TransactionState]:
        """What the transaction service that topics ask says of these. Raises TransactionsUnavailable."""
        return await self._transactions.states(pointers)

    # --- policies of namespaces

    async def reread(self) -> None:
        """Read the policies, and what operators have rolled back, as other processes have set them.

        Raises StorageUnavailable, TopicDamaged.
        """
        known = self.rolled_back_by_hand.copy()
        found = await read(_read_rolled_back, self._store)
        self.rolled_back_by_hand -= known - found  # forgotten, as what is noted here meanwhile is not
        self.rolled_back_by_hand |= found
        before = self._policies
        policies = await read(_read_policies, self._store)
        if self._policies is before and policies != before:  # else some were set here meanwhile; the next time is soon
            self._follow(policies)

    def policies(self, namespace: str) -> NamespacePolicies:
        """Raises InvalidRequest."""
        check_namespace(namespace)
        return self._policies.get(namespace, _NO_POLICIES)

    async def set_policies(self, namespace: str, policies: NamespacePolicies) -> None:
        """Replace the policies; they hold for the topics open here at once, for those elsewhere once they are read again.

        Raises InvalidRequest, StorageUnavailable.
        """
        check_namespace(namespace)
        batch = Batch()
        kept = {"deduplication": policies.deduplication, **policies.model_dump(exclude_none=True)}
        batch.put(Table.NAMESPACE, namespace.encode(), encode_record(NamespaceRow(kept)))

        def apply() -> None:
            self._follow({**self._policies, namespace: policies})

        # Under a lease, so that one who was stopped before it was written does not undo what was set elsewhere meanwhile.
        async with held_briefly(self._leases, SETUP) as lease:
            await self._writer.under(lease).submit(batch, apply)

    def _follow(self, policies: dict[str, NamespacePolicies]) -> None:
        self._policies = policies
        for log in self._open.values():
            log.topic.follow()

    async def subscribed(self, behind: TopicName | None, limit: int, *, including: bool = False) -> list[TopicName]:
        """The first ``limit`` topics behind this one, or from it on, that have or had a subscription, as their keys sort."""
        return await read(self._subscribed, behind, limit, including)

    def _subscribed(self, behind: TopicName | None, limit: int, including: bool) -> list[TopicName]:
        found: list[TopicName] = []
        start = b"" if behind is None else topic_key(*behind) if including else prefix_end(topic_key(*behind))
        while len(found) < limit:
            with closing(self._store.scan(Table.SUBSCRIPTION, start, b"\xff")) as rows:
                key = next((key for key, _ in rows), None)
            if key is None:
                break
            topic = generation_of(key)[:-GENERATION_SIZE]
            found.append(split_topic_key(topic))
            start = prefix_end(topic)
        return found

    async def namespaces(self) -> list[str]:
        """Every namespace that has a topic or a policy, sorted."""
        return sorted(await read(self._present_namespaces) | self._policies.keys())

    def _present_namespaces(self) -> set[str]:
        found = set[str]()
        with closing(self._store.scan(Table.TOPIC, b"", b"\xff")) as rows:
            for key, data in rows:
                namespace, _ = split_topic_key(key)
                if namespace not in found and not read_back(decode_record, TopicRow, data).deleted:
                    found.add(namespace)
        return found

    # --- for those who keep house

    @property
    def opened(self) -> dict[TopicName, TopicLog]:
        """The topics that are open now."""
        return self._open

    def rows(self, start: bytes = b"", stop: bytes = b"\xff") -> Generator[tuple[TopicName, TopicRow]]:
        """Every topic name there ever was between two keys, with its row. Reads the store; not for the event loop."""
        with closing(self._store.scan(Table.TOPIC, start, stop)) as found:
            for key, data in found:
                yield split_topic_key(key), read_back(decode_record, TopicRow, data)

    async def close(self) -> None:
        """Close every open topic with a snapshot; all of them share a few writes. One that is damaged keeps no other from it."""
        logs = {name: log for name, log in self._open.items() if log.is_valid}
        ended = await asyncio.gather(*(log.close() for log in logs.values()), return_exceptions=True)
        for (namespace, topic), error in zip(logs, ended, strict=True):
            if isinstance(error, TopicDamaged):
                _log.error("topic %s/%s is damaged, and is closed without a snapshot: %s", namespace, topic, error)
            elif error is not None:
                raise error

    def abandon(self) -> None:
        """After the store has failed."""
        for log in self._open.values():
            log.release()
        self._open.clear()

    def _present(self, namespace: str) -> list[str]:
        begin = f"{namespace}:".encode()
        with closing(self.rows(begin, prefix_end(begin))) as rows:
            return sorted(topic for (_, topic), row in rows if not row.deleted)

    async def _existing(self, namespace: str, topic: str) -> TopicRow:
        check_topic_name(namespace, topic)
        row = await self._row(namespace, topic)
        if row is None or row.deleted:
            raise TopicNotFound(f"there is no topic {namespace}/{topic}; create it first")
        return row

    async def _row(self, namespace: str, topic: str) -> TopicRow | None:
        return await read(self._stored, topic_key(namespace, topic))

    def _stored(self, key: bytes) -> TopicRow | None:
        data = self._store.get(Table.TOPIC, key)
        return None if data is None else read_back(decode_record, TopicRow, data)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[Writer | None]:
        """Where a namespace may have so many topics: nobody else makes one before this one is there, on any instance.

        What is written with the writer that it gives stands on that. None: they are not counted. Raises StorageUnavailable.
        """
        if self._limits.max_topics is None:
            yield None
            return
        async with held_briefly(self._leases, SETUP) as lease:
            yield self._writer.under(lease)

    async def _write(self, writer: Writer, namespace: str, topic: str, row: TopicRow, counting: Writer | None = None) -> None:
        batch = Batch()
        if counting is not None:
            counting.fence(batch)
        batch.put(Table.TOPIC, topic_key(namespace, topic), encode_record(row))
        await writer.submit(batch)

    @asynccontextmanager
    async def _locked(self, name: TopicName) -> AsyncIterator[None]:
        """One change, or one recovery, of a topic at a time."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        async with lock:
            yield


async def _learn_ends(log: TopicLog) -> None:
    """Settle what had ended when the topic was opened, and ask again until that is done.

    Nobody else does: of what the topic had acknowledged when it was open before, it is not notified again.
    """
    while not log.topic.closed and log.is_valid:
        try:
            await log.settling.settle_all_ended()
            return
        except (TransactionsUnavailable, StorageUnavailable):
            pass  # said elsewhere
        except OncelogError as error:
            _log.warning("transactions of a topic that was opened are not settled yet: %s", error)
        except Exception:
            _log.exception("transactions of a topic that was opened are not settled")
            return
        await asyncio.sleep(_AGAIN_SECONDS)


def _read_rolled_back(store: Store) -> set[bytes]:
    with closing(store.scan(Table.ENDED, b"", b"\xff")) as rows:
        return {key for key, data in rows if _is_rolled_back(data)}


def _is_rolled_back(data: bytes) -> bool:
    try:
        return not decode_record(EndedRow, data).committed
    except RowDamaged:
        return True  # its topic is not opened: nothing commits there


def _read_policies(store: Store) -> dict[str, NamespacePolicies]:
    try:
        with closing(store.scan(Table.NAMESPACE, b"", b"\xff")) as rows:
            found = {key.decode(): decode_record(NamespaceRow, data).policies for key, data in rows}
            return {namespace: NamespacePolicies.model_validate(policies) for namespace, policies in found.items()}
    except (RowDamaged, ValueError) as damage:
        raise StoreDamaged(str(damage)) from damage
