"""The logs of topics that are open here: each recovered under its lease when it is first used, let go of when that is lost.

Whatever changes a topic, recovers it or gives it away holds its lock: one at a time. A topic whose lock nobody holds is open
under the lease that it was recovered under, or is not open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from oncelog.errors import OncelogError, StorageUnavailable, TopicDamaged, TransactionsUnavailable
from oncelog_service.cluster.leases import Leases, topic_resource
from oncelog_service.group_commit import Writer
from oncelog_service.log.keep.recovery import recover
from oncelog_service.log.open_topic import Recovered
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import Scans, read
from oncelog_service.storage.keys import generation_key, topic_key
from oncelog_service.storage.port import Store
from oncelog_service.storage.records import TopicRow
from oncelog_service.topics.directory import Directory, TopicName, check_topic_name
from oncelog_service.topics.policies import Policies

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.5
"""How long the opening of a topic waits to hear how its transactions ended."""
_AGAIN_SECONDS = 1.0
"""Between two questions, where nobody says so."""

_Build = Callable[[TopicName, TopicRow, bytes, Writer, Recovered], TopicLog]


class Logs:
    """Those of one opening of the store. They work on the event loop that owns the writer."""

    def __init__(
        self, store: Store, writer: Writer, leases: Leases, scans: Scans, directory: Directory, policies: Policies, build: _Build
    ) -> None:
        """``leases``: which process serves which topic; ``build`` makes the log of what was recovered."""
        self._store = store
        self._writer = writer
        self._leases = leases
        self._scans = scans
        self._directory = directory
        self._policies = policies
        policies.on_change = self._follow
        self._build = build
        self.opened: dict[TopicName, TopicLog] = {}
        """The topics that are open now."""
        self._opening: dict[tuple[TopicName, bool], asyncio.Task[TopicLog]] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()  # gone with its last user

    async def open(self, namespace: str, topic: str, *, claim: bool = False) -> TopicLog:
        """The topic's log, recovered when it is first used; everyone who asks meanwhile waits for the same recovery.

        ``claim``: also where another process serves it, which is asked to hand it over.

        Raises:
            InvalidRequest, TopicNotFound; NotServedHere: another process serves it; TopicDamaged: its log cannot be recovered.
        """
        name = (namespace, topic)
        log = self.opened.get(name)
        if log is not None and log.is_valid:
            if claim:
                self._leases.keep(_resource(name))
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
        async with self.locked(name):
            await self._directory.existing(*name)
            writer = await self.writer_of(name, claim)
            present = self.opened.get(name)
            if present is not None:
                return present
            if self._leases.alive is not None:
                await read(self._store.check_written)
            row = await self._directory.existing(*name)  # as the process that served it before has left it
            prefix = generation_key(topic_key(*name), row.generation)
            recovered = await self._scans.read(recover, self._store, prefix, self._policies.checks_expectations(row))
            self._writer.counts.replayed += recovered.replayed
            log = self.opened[name] = self._build(name, row, prefix, writer, recovered)
            log.trimming.begin_if_due()
        await self._settle_ended(log)
        return log

    async def _settle_ended(self, log: TopicLog) -> None:
        """Tell it how the transactions ended that it found unsettled; if their service does not answer soon, it learns later."""
        if not log.dedup.fold.unsettled:
            return
        task = asyncio.ensure_future(_learn_ends(log))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        await asyncio.wait([task], timeout=_PATIENCE_SECONDS)

    def _follow(self) -> None:
        for log in self.opened.values():
            log.topic.follow()

    # --- under its lock, under its lease

    @asynccontextmanager
    async def locked(self, name: TopicName) -> AsyncIterator[None]:
        """One change, or one recovery, of a topic at a time."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        async with lock:
            yield

    async def writer_of(self, name: TopicName, claim: bool = False) -> Writer:
        """What writes to the topic, whose lock is held, as long as it is served here. A log of an earlier lease is let go of.

        Raises NotServedHere, StorageUnavailable.
        """
        lease = await self._leases.take(_resource(name), claim=claim)
        log = self.opened.get(name)
        if log is not None and not log.is_valid:
            self.drop(name)
        return self._writer.under(lease)

    async def writer(self, name: TopicName) -> Writer:
        """As :meth:`writer_of`, of a topic whose lock is not held."""
        async with self.locked(name):
            return await self.writer_of(name)

    def belongs_here(self, name: TopicName) -> bool:
        """Whether this process serves it, or would."""
        return self._leases.belongs_here(_resource(name))

    async def hand_over(self, namespace: str, topic: str, to: str) -> None:
        """Have the instance ``to`` serve it from now on. What is in flight is finished before. Raises StorageUnavailable."""
        name = (namespace, topic)
        check_topic_name(*name)
        async with self.locked(name):
            await self.close_one(name)
            await self._leases.pass_on(_resource(name), to)

    # --- how they end

    async def close_one(self, name: TopicName) -> None:
        """Let go of a topic's log, whose lock is held: the next request recovers it."""
        log = self.opened.pop(name, None)
        if log is not None:
            await log.close()

    def drop(self, name: TopicName) -> None:
        """Let go of a topic that is served elsewhere now; all who wait for something of it are asked to try again."""
        log = self.opened.pop(name, None)
        if log is not None:
            log.release()

    def dismiss(self) -> None:
        """Have readers that wait answer with what there is."""
        for log in self.opened.values():
            log.topic.dismiss()

    def release(self) -> None:
        """Before a stop: all who wait for something are asked to try again at once."""
        for log in self.opened.values():
            log.release()

    async def close(self) -> None:
        """Close every open topic with a snapshot; all of them share a few writes. One that is damaged keeps no other from it."""
        logs = {name: log for name, log in self.opened.items() if log.is_valid}
        ended = await asyncio.gather(*(log.close() for log in logs.values()), return_exceptions=True)
        for (namespace, topic), error in zip(logs, ended, strict=True):
            if isinstance(error, TopicDamaged):
                _log.error("topic %s/%s is damaged, and is closed without a snapshot: %s", namespace, topic, error)
            elif error is not None:
                raise error

    def abandon(self) -> None:
        """After the store has failed."""
        self.release()
        self.opened.clear()


def _resource(name: TopicName) -> bytes:
    return topic_resource(topic_key(*name))


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
