"""What older generations of a topic's name have left behind: epochs and nonces, none of which counts in this one.

Epochs go on rising across the generations, and across the incarnations of the store (storage/incarnation.py). When a topic
is deleted, its row keeps the highest one that was ever handed out under the name, the *floor*; all that are handed out from then
on lie above it, and whatever carries one at or below it was opened on a topic that is gone.
"""

from __future__ import annotations

from contextlib import closing
from typing import TypeVar

from oncelog.errors import ConsumerFenced, ProducerFenced
from oncelog_service.log.names.epochs import Opens, begun_by
from oncelog_service.reading import read
from oncelog_service.storage.incarnation import Incarnation, raised
from oncelog_service.storage.keys import FIRST_GENERATION, GENERATION_SIZE, generation_key, prefix_end
from oncelog_service.storage.port import RowDamaged, Store, StoreDamaged, Table
from oncelog_service.storage.records import ProducerRow, SubscriptionRow, TopicRow, decode_record

O = TypeVar("O", ProducerRow, SubscriptionRow)  # noqa: E741

UNREADABLE = 2**32
"""Added to the floor where a row cannot be read: no epoch that it may have held is as high."""
_LOOKED_BACK = 4
"""Generations whose nonces are looked for. Retention deletes them some minutes after their topic."""


class Generations:
    """The generation of one open topic, and the floor under its epochs."""

    __slots__ = ("_floor", "_generation", "_store", "_topic", "present")

    def __init__(self, prefix: bytes, row: TopicRow, incarnation: Incarnation, store: Store) -> None:
        """``prefix`` begins every key of this generation; ``incarnation``: of the store."""
        self._topic = prefix[:-GENERATION_SIZE]
        self._generation = row.generation
        self.present = raised(row.generation, incarnation)
        """As clients are told it."""
        self._floor = floor_of(row, incarnation)
        self._store = store

    def next_epoch(self, epoch: int | None) -> int:
        """What follows on ``epoch``, the latest one of a name in this generation; None: there is none yet."""
        return max(epoch or 0, self._floor) + 1

    def older(self, epoch: int) -> bool:
        """Whether it may have been handed out in an older generation, or by an older incarnation of the store, and was in no case
        in these."""
        return 0 < epoch <= self._floor

    def producer_fenced(self, name: str, epoch: int | None, current: int | None) -> ProducerFenced:
        """The refusal of a producer that was opened in an older generation."""
        return ProducerFenced(
            f"producer {name!r} {self._why(epoch)}", producer=name, epoch=epoch, current_epoch=current, generation=self.present
        )

    def consumer_fenced(self, name: str, epoch: int | None, current: int | None) -> ConsumerFenced:
        """The refusal of a consumer that was opened in an older generation."""
        return ConsumerFenced(
            f"subscription {name!r} {self._why(epoch)}",
            subscription=name,
            epoch=epoch,
            current_epoch=current,
            generation=self.present,
        )

    def _why(self, epoch: int | None) -> str:
        under = "" if epoch is None else f" under epoch {epoch}"
        return (
            f"was opened{under} before the topic was deleted and made anew, or its store was put back in time: this is "
            f"generation {self.present} of the topic, and nothing of an older one counts in it. One that is opened now is told "
            "where to go on"
        )

    async def opened_before(self, kind: type[O], name: str, nonce: str) -> bool:
        """Whether this open is one of an older generation that comes once more, as far as that is still known."""
        if self._generation == FIRST_GENERATION:
            return False
        return await read(self._opened_before, kind, name, nonce)

    def _opened_before(self, kind: type[O], name: str, nonce: str) -> bool:
        table = Table.PRODUCER if kind is ProducerRow else Table.SUBSCRIPTION
        for generation in range(self._generation - 1, max(FIRST_GENERATION, self._generation - _LOOKED_BACK) - 1, -1):
            opens = self._opens(kind, table, generation_key(self._topic, generation) + name.encode())
            if begun_by(opens, nonce) is not None:
                return True
        return False

    def _opens(self, kind: type[O], table: Table, key: bytes) -> Opens:
        try:
            data = self._store.get(table, key)
            return () if data is None else decode_record(kind, data).opens
        except (RowDamaged, StoreDamaged):
            return ()  # of a topic that is gone: no reason to refuse this one's producers


def floor_of(row: TopicRow, incarnation: Incarnation) -> int:
    """The floor under the epochs of a topic: none that was handed out in an older generation or incarnation is above it."""
    return max(row.epoch_floor, raised(0, incarnation))


def highest_epoch(store: Store, prefix: bytes) -> int:
    """The highest epoch handed out in a generation of a topic, which need not be readable otherwise: it can be deleted all the
    same."""
    return max(_highest(store, prefix, Table.PRODUCER, ProducerRow), _highest(store, prefix, Table.SUBSCRIPTION, SubscriptionRow))


def _highest(store: Store, prefix: bytes, table: Table, kind: type[O]) -> int:
    highest = 0
    try:
        with closing(store.scan(table, prefix, prefix_end(prefix))) as found:
            for _, data in found:
                highest = max(highest, decode_record(kind, data).epoch or 0)
    except (RowDamaged, StoreDamaged):
        return highest + UNREADABLE
    return highest
