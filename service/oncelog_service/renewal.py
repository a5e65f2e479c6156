"""Begins another incarnation of a store that was put back in time (storage/incarnation.py), whatever has put it back.

It is above all that the store knows, and all that the clock says. What was handed out in the lost time is not known: where the
store's own times are ahead of the clock, they went on from there, so the floors are as far ahead of what is known as that time
was long.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.atomic.recovery import find
from oncelog_service.log.keep.recovery import last_timestamp
from oncelog_service.log.names.generations import floor_of, highest_epoch
from oncelog_service.log.scan import trim_of
from oncelog_service.storage.incarnation import CHANCE_BITS, Incarnation, find_incarnation, next_number, put_incarnation, raised
from oncelog_service.storage.keys import generation_key
from oncelog_service.storage.port import Batch, Fence, RowDamaged, Store, StoreDamaged, Table
from oncelog_service.storage.records import TopicRow, decode_record
from oncelog_service.transactions.recovery import recover

_LOST_MS = 60_000
"""The lost time, where nobody knows it: in it 4,000,000,000 messages have ids before the next minute, and nobody's clock is set
forward meanwhile."""


class _Known(NamedTuple):
    """The newest of each kind that a store knows of."""

    number: int
    """No generation, as clients were told it, and no epoch is above it."""
    messages_ms: int
    pointers_ms: int
    numbers_ms: int


def begin_incarnation(store: Store, now_ms: int, since_ms: int | None = None, fence: Fence | None = None) -> Incarnation:
    """Begins another one, durably, and returns it. No process serves the store.

    ``since_ms``: when the lost time began; None: nobody knows.

    Raises StoreDamaged: what is known of transactions cannot be read; StoreError.
    """
    known = _known(store)

    def floor(at_ms: int) -> int:
        if since_ms is not None:
            return max(now_ms, at_ms + max(now_ms - since_ms, 0)) + 1
        return max(now_ms, at_ms + _LOST_MS * (at_ms >= now_ms)) + 1

    begun = Incarnation(
        next_number(known.number, now_ms, secrets.randbits(CHANCE_BITS)),
        floor(known.messages_ms),
        floor(known.pointers_ms),
        floor(known.numbers_ms),
        now_ms,
    )
    batch = Batch(fence)
    put_incarnation(batch, begun)
    store.write([batch])
    return begun


def _known(store: Store) -> _Known:
    before = find_incarnation(store)
    number, messages_ms = before.number, before.messages_ms
    for key, row in _topics(store):
        prefix = generation_key(key, row.generation)
        number = max(number, raised(row.generation, before), floor_of(row, before), highest_epoch(store, prefix))
        messages_ms = max(messages_ms, row.created, row.last_timestamp, row.expired_before, _last_ms(store, prefix))
    return _Known(
        number,
        messages_ms,
        max(before.pointers_ms, recover(store).state.last // POINTERS_PER_MS),
        max(before.numbers_ms, find(store, 1).row.numbers // POINTERS_PER_MS),
    )


def _topics(store: Store) -> Iterator[tuple[bytes, TopicRow]]:
    with closing(store.scan(Table.TOPIC, b"", b"\xff")) as rows:
        for key, data in rows:
            yield key, decode_record(TopicRow, data)


def _last_ms(store: Store, prefix: bytes) -> int:
    """The time of the newest message that is known, in the log or deleted from it. What cannot be read of it is found by whoever
    opens or verifies the topic."""
    found = 0
    try:
        found = last_timestamp(store, prefix)
        last_deleted = bytes.fromhex(trim_of(store, prefix).last_id or "")[:8]
        return max(found, int.from_bytes(last_deleted, "big"))
    except (TopicDamaged, StoreDamaged, RowDamaged):
        return found
