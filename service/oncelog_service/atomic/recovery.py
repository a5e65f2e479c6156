"""The journal as a restart finds it. Reads the store; not for the event loop."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from oncelog_service.atomic.plan import Plan, PlanError
from oncelog_service.atomic.records import RecordDamaged, TopicRef, decode
from oncelog_service.storage.keys import GENERATION_SIZE, journal_key, split_chunk_key, split_topic_key
from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table
from oncelog_service.storage.rows import GroupProducerRow, JournalMetaRow, RowDamaged, decode_record

META_KEY = b""
_AFTER_ANY = b"\xff"


class Found(NamedTuple):
    """All that is known of journaled transactions that have not ended, and of the producers of atomic commits."""

    row: JournalMetaRow
    plans: list[Plan]
    """One per partition."""
    producers: dict[tuple[str, str], GroupProducerRow]
    """By group and name."""
    stale: Batch
    """Deletes what partitions that are not used any more have left."""
    staged: list[tuple[TopicRef, int]]
    """Where something is staged, and the number of the transaction that did it; that may have ended."""


def find(store: Store, partitions: int) -> Found:
    """Read it back. The number of ``partitions`` changes only once every transaction has ended.

    Raises:
        StoreDamaged: a record cannot be read, is missing, or does not follow on those before it. Rather than half a journal.
    """
    try:
        data = store.get(Table.JOURNAL_META, META_KEY)
        row = JournalMetaRow(partitions, 0, [0] * partitions) if data is None else decode_record(JournalMetaRow, data)
        plans = [_plan(store, partition, begin) for partition, begin in enumerate(row.begins)]
        producers = _producers(store)
    except (RowDamaged, RecordDamaged, PlanError) as damage:
        raise StoreDamaged(f"the journal is damaged: {damage}") from damage
    stale = Batch()
    if row.partitions != partitions and not any(plan.transactions for plan in plans):
        for partition, plan in enumerate(plans):
            for position in range(row.begins[partition], plan.position):
                stale.delete(Table.JOURNAL, journal_key(partition, position))
        row = JournalMetaRow(partitions, row.numbers, [0] * partitions)
        plans = [Plan() for _ in range(partitions)]
    return Found(row, plans, producers, stale, _staged(store))


def _plan(store: Store, partition: int, begin: int) -> Plan:
    plan = Plan(begin)
    with closing(store.scan(Table.JOURNAL, journal_key(partition, begin), journal_key(partition + 1, 0))) as rows:
        for key, data in rows:
            position = int.from_bytes(key[2:], "big")
            plan.apply(position, decode(position, data))
    return plan


def _staged(store: Store) -> list[tuple[TopicRef, int]]:
    found: dict[tuple[TopicRef, int], None] = {}
    with closing(store.scan(Table.CHUNK, b"", _AFTER_ANY)) as rows:
        for key, _ in rows:
            prefix, number = split_chunk_key(key)
            generation = int.from_bytes(prefix[-GENERATION_SIZE:], "big")
            found[TopicRef(*split_topic_key(prefix[:-GENERATION_SIZE]), generation), number] = None
    return list(found)


def _producers(store: Store) -> dict[tuple[str, str], GroupProducerRow]:
    found: dict[tuple[str, str], GroupProducerRow] = {}
    with closing(store.scan(Table.GROUP_PRODUCER, b"", _AFTER_ANY)) as rows:
        for key, data in rows:
            group, _, name = key.decode("ascii").partition("\x00")
            found[group, name] = decode_record(GroupProducerRow, data)
    return found
