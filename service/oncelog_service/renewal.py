"""Begins another incarnation of a store that was put back in time (storage/incarnation.py), whatever has put it back.

It is above all that the store knows, and all that the clock says. What was handed out in the lost time is not known: where the
store's own times are ahead of the clock, they went on from there, so the floors are as far ahead of what is known as that time
was long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.atomic.recovery import find
from oncelog_service.log.keep.recovery import last_known, last_timestamp, read_lost
from oncelog_service.log.names.generations import floor_of, highest_epoch
from oncelog_service.storage.incarnation import Incarnation, find_incarnation, next_number, put_incarnation, raised
from oncelog_service.storage.keys import generation_key
from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table
from oncelog_service.storage.records import LostRow, TopicRow, decode_record, encode_record
from oncelog_service.transactions.recovery import recover

_LOST_MS = 60_000
"""The lost time, where nobody knows it: in it 4,000,000,000 messages have ids before the next minute, and nobody's clock is set
forward meanwhile."""


LIVES_AGAIN = (
    "What was done in the lost time is undone: tokens that were revoked, messages that were erased or trimmed, and topics that "
    "were deleted are back. Look through the tokens (oncelog token list --store) before the service is reached, and do the rest "
    "again"
)


class _Known(NamedTuple):
    """The newest of each kind that a store knows of."""

    number: int
    """No generation, as clients were told it, and no epoch is above it."""
    messages_ms: int
    pointers_ms: int
    numbers_ms: int
    last: Mapping[bytes, bytes]
    """By what begins every key of a topic that is not deleted: the id of its last message, empty for none."""


def begin_incarnation(store: Store, now_ms: int, since_ms: int | None = None) -> Incarnation:
    """Begins another one, durably, and returns it. No process serves the store.

    ``since_ms``: when the lost time began; None: nobody knows.

    Raises StoreDamaged: what is known of transactions cannot be read; StoreError.
    """
    begun, batch = further_incarnation(store, now_ms, since_ms)
    store.write([batch])
    return begun


def further_incarnation(store: Store, now_ms: int, since_ms: int | None = None) -> tuple[Incarnation, Batch]:
    """Another one, and what begins it. As :func:`begin_incarnation`, which writes that."""
    known = _known(store)

    def floor(at_ms: int) -> int:
        if since_ms is not None:
            return max(now_ms, at_ms + max(now_ms - since_ms, 0)) + 1
        return max(now_ms, at_ms + _LOST_MS * (at_ms >= now_ms)) + 1

    begun = Incarnation(
        next_number(known.number, now_ms, int.from_bytes(os.urandom(4))),
        floor(known.messages_ms),
        floor(known.pointers_ms),
        floor(known.numbers_ms),
        now_ms,
    )
    batch = Batch()
    put_incarnation(batch, begun)
    for prefix, last in known.last.items():
        spans: list[list[int | str]] = [[each.hex(), ms] for each, ms in read_lost(store, prefix)]
        batch.put(Table.LOST, prefix, encode_record(LostRow([*spans, [last.hex(), begun.messages_ms]])))
    return begun, batch


def _known(store: Store) -> _Known:
    before, found = find_incarnation(store), dict[bytes, bytes]()
    number, messages_ms = before.number, before.messages_ms
    for key, row in _topics(store):
        prefix = generation_key(key, row.generation)
        last = _last_known(store, prefix)
        if last is not None and not row.deleted:
            found[prefix] = last
        number = max(number, raised(row.generation, before), floor_of(row, before), highest_epoch(store, prefix))
        last_ms = last_timestamp(store, prefix) if last is None else int.from_bytes(last[:8], "big")
        messages_ms = max(messages_ms, row.created, row.last_timestamp, row.expired_before, last_ms)
    return _Known(
        number,
        messages_ms,
        max(before.pointers_ms, recover(store).state.last // POINTERS_PER_MS),
        max(before.numbers_ms, find(store, 1).row.numbers // POINTERS_PER_MS),
        found,
    )


def _topics(store: Store) -> Iterator[tuple[bytes, TopicRow]]:
    with closing(store.scan(Table.TOPIC, b"", b"\xff")) as rows:
        for key, data in rows:
            yield key, decode_record(TopicRow, data)


def _last_known(store: Store, prefix: bytes) -> bytes | None:
    """The id of the newest message that is known, in the log or deleted from it. None: what would say it is damaged, which
    whoever opens or verifies the topic finds."""
    try:
        return last_known(store, prefix)
    except (TopicDamaged, StoreDamaged):
        return None
