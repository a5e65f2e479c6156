"""Reads back what a restart must know of atomic commits. Not for the event loop."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import NamedTuple

from oncelog_service.atomic.plan import Plan
from oncelog_service.atomic.records import RECORDS, TopicRef
from oncelog_service.atomic.repeats import Newest, newest
from oncelog_service.storage.incarnation import find_incarnation
from oncelog_service.storage.keys import GENERATION_SIZE, journal_key, split_chunk_key, split_topic_key
from oncelog_service.storage.port import Batch, RowDamaged, Store, StoreDamaged, Table
from oncelog_service.storage.records import GroupNoteRow, GroupProducerRow, JournalMetaRow, decode_record

META_KEY = b""
_AFTER_ANY = b"\xff"


class Found(NamedTuple):
    """Everything that is known of transactions in progress and of the producers of atomic commits."""

    row: JournalMetaRow
    plans: list[Plan]
    """One per partition."""
    producers: dict[tuple[str, str], Newest]
    """By group and name."""
    stale: Batch
    """Deletes what partitions that are not used any more have left."""
    staged: list[tuple[TopicRef, int]]
    """Where something is staged, and the number of the transaction that did it; that may have ended."""
    first_ms: int
    """No number that is handed out from now on is of an earlier time: an earlier incarnation of the store may have had it."""


def find(store: Store, partitions: int) -> Found:
    """Reads the journal back. The number of ``partitions`` changes only once every transaction has ended.

    Raises:
        StoreDamaged: a record cannot be read, is missing, or does not follow on those before it. Rather than half a journal.
    """
    try:
        data = store.get(Table.JOURNAL_META, META_KEY)
        row = JournalMetaRow(partitions, 0, [0] * partitions) if data is None else decode_record(JournalMetaRow, data)
        producers = _producers(store)
    except RowDamaged as damage:
        raise StoreDamaged(f"what is kept of atomic commits is damaged: {damage}") from damage
    plans = [_plan(store, partition, begin) for partition, begin in enumerate(row.begins)]
    stale = Batch()
    if row.partitions != partitions and not any(plan.transactions for plan in plans):
        for partition, plan in enumerate(plans):
            for position in range(row.begins[partition], plan.position):
                stale.delete(Table.JOURNAL, journal_key(partition, position))
        row = JournalMetaRow(partitions, row.numbers, [0] * partitions)
        plans = [Plan() for _ in range(partitions)]
    return Found(row, plans, producers, stale, _staged(store), find_incarnation(store).numbers_ms)


def _plan(store: Store, partition: int, begin: int) -> Plan:
    plan = Plan(begin)
    RECORDS.replay(store, partial(journal_key, partition), begin, plan.apply)
    return plan


def _staged(store: Store) -> list[tuple[TopicRef, int]]:
    found: dict[tuple[TopicRef, int], None] = {}
    with closing(store.scan(Table.CHUNK, b"", _AFTER_ANY)) as rows:
        for key, _ in rows:
            prefix, number = split_chunk_key(key)
            generation = int.from_bytes(prefix[-GENERATION_SIZE:], "big")
            found[TopicRef(*split_topic_key(prefix[:-GENERATION_SIZE]), generation), number] = None
    return list(found)


def _producers(store: Store) -> dict[tuple[str, str], Newest]:
    with closing(store.scan(Table.GROUP_NOTE, b"", _AFTER_ANY)) as rows:
        notes = {key: decode_record(GroupNoteRow, data) for key, data in rows}
    found: dict[tuple[str, str], Newest] = {}
    with closing(store.scan(Table.GROUP_PRODUCER, b"", _AFTER_ANY)) as rows:
        for key, data in rows:
            group, _, name = key.decode("ascii").partition("\x00")
            found[group, name] = newest(decode_record(GroupProducerRow, data), notes.get(key))
    return found
