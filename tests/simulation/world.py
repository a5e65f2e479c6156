"""A service over a disk that fails and crashes when told to; what is true of it is asked after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from oncelog.errors import OncelogError
from oncelog.wire.columns import decode_message_columns, unpack
from oncelog.wire.isolation import COMMITTED
from oncelog.wire.models import Acknowledge, OpenSubscription, ReceiveMessages, TransactionState
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.app import build_service
from oncelog_service.config import Settings
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import verify_log
from oncelog_service.service import Service
from oncelog_service.settlement import SettlementTask
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Batch
from tests.model.facts import Facts
from tests.model.log import check_groups, check_once, check_placed
from tests.model.maps import NAMESPACE, Entry, check_map, check_snapshots, empty_groups, entries
from tests.model.transactions import check_looks, check_opened, check_signs, settled, visible
from tests.world.clock import ManualClock
from tests.world.disk import Database, crashed, opened
from tests.world.polls import Delivered, decoded, read_all

TOPICS = ("orders", "payments")
LIFETIME_MS = 90_000_000


class World:
    """One service after the other over what is on disk."""

    def __init__(self, snapshot_messages: int, cache_bytes: int, database: Database | None = None) -> None:
        """``database``: where an empty database is, which is asked beside the memory."""
        self.clock = ManualClock()
        self.disk = Disk()
        self._database = database
        self._settings = Settings(
            foreign_write_pointers=True,
            store="memory://",
            snapshot_messages=snapshot_messages,
            cache_bytes=cache_bytes,
            retention_seconds=3_600,
        )
        self._ranges: dict[str, list[tuple[bytes, int, bytes | None]]] = {topic: [] for topic in TOPICS}
        """Topic → what was settled when it was looked at last."""
        self.service: Service

    async def start(self) -> None:
        """Open what is on disk."""
        disk = self.disk
        self.service = build_service(self._settings, self.clock, lambda: opened(disk, self._database))
        await self.service.start()

    async def restart(self) -> None:
        """Stop cleanly and start again."""
        await self.service.stop()
        await self.start()

    async def crash(self) -> None:
        """Start on what is on disk at this moment. What the old service does from now on is lost."""
        dying, old = self.disk, self.service
        self.disk = crashed(dying)
        dying.before_sync, dying.fail_after_apply = _dead, False
        with suppress(OncelogError):  # its disk is gone
            await old.stop()
        await self.start()

    async def ready(self) -> None:
        """Return when the store is open and every transaction that has ended is settled."""
        for _ in range(2_000):
            try:
                if not await self.service.transactions.unacknowledged(0):
                    return
                await SettlementTask(self.service.topics, self.service.transactions, self.clock).once()
            except OncelogError:
                await asyncio.sleep(0.005)  # it is being reopened
        raise AssertionError("transactions that have ended do not settle")

    async def topic(self, name: str) -> TopicLog:
        """An open topic."""
        return await self.service.topics.open(NAMESPACE, name)

    async def reopen_topic(self, name: str) -> None:
        """Close the topic; it is recovered when it is used next."""
        log = self.service.topics.opened.pop((NAMESPACE, name), None)
        if log is not None:
            await log.close()

    async def read_all(self, topic: str, limit: int, transaction: Transaction | None = None) -> list[Delivered]:
        """Everything that polls of the topic deliver."""
        return await read_all(await self.topic(topic), limit, transaction)

    # --- what must be so; nothing is under way meanwhile

    async def check(self, facts: Facts, random: Random) -> dict[str, list[Entry]]:
        """Hold the service against the disk, and the disk against what was answered; the messages of each topic."""
        await self.ready()
        logs = {topic: await self.topic(topic) for topic in TOPICS}
        await self.ready()  # opening them may have ended what they found
        await self._check_states(facts)
        tables = crashed(self.disk).tables
        found: dict[str, list[Entry]] = {}
        for topic, log in logs.items():
            found[topic] = rows = entries(tables, topic)
            final = [each for each in rows if settled(facts, each, self.clock.ms, LIFETIME_MS)]
            check_placed(facts, topic, rows)
            check_once(facts, topic, rows)
            check_groups(facts, tables, topic, rows)
            check_signs(facts, topic, rows)
            check_looks(facts, topic, rows)
            check_opened(facts, topic, final)
            check_map(topic, log, rows)
            check_snapshots(tables, topic, rows, set(final).__contains__)
            await self._check_reading(facts, topic, rows, empty_groups(tables, topic), random)
            await self._check_settled(topic, rows, random)
            *_, findings = verify_log(self.service.store, log)
            assert not findings.problems, f"{topic}: {findings.problems}"
        return found

    async def _check_states(self, facts: Facts) -> None:
        """The state of each transaction is what was answered. From now on it is what is answered here."""
        states = await self.service.transactions.states(list(facts.roots))
        for pointer, root in facts.roots.items():
            assert pointer in states, f"the transaction {root} is forgotten"
            facts.begun[root].answered(states[pointer])

    async def _check_reading(
        self, facts: Facts, topic: str, log: Sequence[Entry], empty: Sequence[Entry], random: Random
    ) -> None:
        """A plain reader is given everything; a new transaction and one that began earlier exactly what they may see."""
        limit = random.choice([2, 7, 1_000, 1_000])
        plain = await self.read_all(topic, limit)
        assert plain == [each.delivered for each in log], f"{topic}: the plain poll, limit {limit}"
        transaction = await self.service.transactions.start(TransactionType.SHORT)
        await self.service.transactions.abort(transaction.transaction_id)
        rows = sorted([*log, *empty], key=lambda each: each.message_id)
        await self._check_transaction(topic, rows, transaction, facts.states(), [], limit)
        older = [each for each in facts.begun.values() if each.certainly_open and each.seen is not None]
        if older:
            chosen = random.choice(older)
            assert chosen.seen is not None
            await self._check_transaction(topic, rows, chosen.transaction, chosen.seen, chosen.pointers, limit)

    async def _check_settled(self, topic: str, log: Sequence[Entry], random: Random) -> None:
        """A settled range is read as it was before; a durable consumer is given it in order, and nothing it has acknowledged."""
        opened = await self.topic(topic)
        first, upto, found = 0, opened.ranges.stable, list[tuple[bytes, int, bytes | None]]()
        while first < upto:
            page = decode_message_columns(await opened.ranges.columns(first, upto, limit=random.randint(1, 40)))
            ids = [page.message_ids[at : at + 20] for at in range(0, len(page.message_ids), 20)]
            offsets = [run.first + step for run in page.offsets for step in range(run.count)]
            found += zip(ids, offsets, unpack(page.values), strict=True)
            first = page.next
        expected = [each.delivered for each in log if each.offset < upto and each.counts]
        assert found == expected, f"{topic}: the range up to {upto}"
        assert found[: len(self._ranges[topic])] == self._ranges[topic], f"{topic}: a settled range has changed"
        self._ranges[topic] = found
        limit = (2, 7, 1_000)[upto % 3]
        committed = await read_all(opened, limit, isolation=COMMITTED)
        assert committed == expected, f"{topic}: what is committed up to {upto}, limit {limit}"

        consumer = await opened.subscriptions.open(OpenSubscription(name="s", nonce="only"))
        asked = ReceiveMessages(epoch=consumer.epoch, limit=random.randint(1, 20))
        page = await opened.subscriptions.receive("s", asked, AS_ONCELOG)
        records, *_ = decoded(page)
        given = [(each["id"], each["offset"], each["payload"]) for each in records]
        due = [each for each in expected if each[1] >= consumer.cursor]
        assert given == due[: len(given)], f"{topic}: a consumer at {consumer.cursor}"
        assert bool(given) == bool(due)
        if given and random.random() < 0.7:
            *_, offset, _ = random.choice(given)
            await opened.subscriptions.acknowledge("s", Acknowledge(epoch=consumer.epoch, generation=1, offset=offset))

    async def _check_transaction(
        self,
        topic: str,
        rows: Sequence[Entry],
        transaction: Transaction,
        seen: dict[int, TransactionState],
        own: Sequence[int],
        limit: int,
    ) -> None:
        given = await self.read_all(topic, limit, transaction)
        expected = [each.delivered for each in visible(rows, transaction, seen, own) if each.payload]
        if given != expected:  # the cache passes over the row of an empty group, which holds no message to stop before
            rows = [each for each in rows if each.payload]
            expected = [each.delivered for each in visible(rows, transaction, seen, own)]
        assert given == expected, f"{topic}, limit {limit}: {transaction} of {[(e.offset, e.payload, e.pointer) for e in rows]}"


def _dead(_: Sequence[Batch]) -> None:
    raise OSError("it has crashed")
