"""Which messages of a named producer's request are new, and the receipts of those that are not.

Every answer here depends on something that may still be under way: a write, or somebody else's transaction. Writes are waited
for. An undecided transaction is not: the request is refused, definitely, and may be tried again (decision 0012).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from oncelog.errors import ProducerInTransaction, SequenceGap, SequenceReused, TransactionNotInProgress
from oncelog.wire.requests import PublishRequest, ReceiptRun
from oncelog_service.log.append.history import History, Original
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.receipts import duplicate_runs
from oncelog_service.log.groups.stored import Groups
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.reading import read


class Known(NamedTuple):
    """What of a request is already stored: its first ``messages``."""

    messages: int
    receipts: list[ReceiptRun]
    originals: Mapping[int, Original]


NOTHING = Known(0, [], {})


class Judge:
    """Of one open topic. Works on the event loop that owns it, on the same maps as the publish path."""

    def __init__(
        self,
        topic: OpenTopic,
        producers: Producers,
        groups: Groups,
        deduplication: Callable[[], bool],
        settle: Callable[[int, bool], Coroutine[Any, Any, None]],
    ) -> None:
        """``settle`` tells the topic that a transaction has ended, and whether it was committed."""
        self._history = History(topic.store, topic.prefix)
        self._writer = topic.writer
        self._dedup = topic.dedup
        self._producers = producers
        self._groups = groups
        self._pointers = topic.pointers
        self._transactions = topic.transactions
        self._deduplication = deduplication
        self._check_open = topic.check_open
        self._settle = settle

    @property
    def deduplicates(self) -> bool:
        """Whether deduplication is on for the topic."""
        return self._deduplication()

    async def known(self, request: PublishRequest, *, gaps: bool = True) -> Known:
        """What of the request is stored; when this returns, its other messages are new at this very moment.

        Raises:
            ProducerFenced, SequenceReused, ProducerInTransaction; SequenceGap, if ``gaps`` are to be looked at.
        """
        producer, sequence_ids = request.producer, request.sequence_ids
        if producer is None or sequence_ids is None:
            return NOTHING
        known = NOTHING
        cleared: Mapping[int, bool] = {}
        while True:
            self._check_open()
            await self._producers.check_epoch(producer, request.epoch)
            if not self._deduplication():
                return NOTHING
            others = self.transactions_of(producer) - {request.write_pointer}
            if not others <= cleared.keys():
                cleared = await self._clear(producer, request.write_pointer, others)
                continue
            if cleared:
                self._check_undecided(producer, sequence_ids, request.write_pointer, cleared)
            verdict = self._dedup.judge(producer, sequence_ids)
            if verdict.in_flight or (self._pointers.in_use and self._dedup.in_flight(producer)):
                await self._writer.settled()
            elif verdict.persisted != known.messages:
                known = await self.originals(producer, sequence_ids[: verdict.persisted], request.payloads)
            elif not gaps or (gap := self._producers.gap(producer, sequence_ids[known.messages :])) is None:
                return known
            elif self._dedup.in_flight(producer):
                await self._writer.settled()  # the refusal depends on what is being written
            else:
                raise sequence_gap(producer, *gap)

    # --- transactions of the same producer

    def transactions_of(self, producer: str) -> set[int]:
        """Write pointers under which the producer has messages that are not settled, published or stored."""
        return {*self._dedup.fold.pointers_of(producer), *self._groups.pointers_of(producer)}

    async def cleared(self, producer: str, first_sequence_id: int) -> frozenset[int]:
        """Those of the producer's unsettled transactions that do not forbid it to publish from this sequence id on, none of them
        its own. What has ended is settled on the way. Raises ProducerInTransaction."""
        while others := self.transactions_of(producer):
            cleared = await self._clear(producer, None, others)
            if self.transactions_of(producer) <= cleared.keys():
                self._check_undecided(producer, range(first_sequence_id, first_sequence_id + 1), None, cleared)
                return frozenset(cleared)
        return frozenset()

    async def _clear(self, producer: str, pointer: int | None, others: Collection[int]) -> dict[int, bool]:
        """Those of ``others`` that do not forbid the request, and whether they belong to its own transaction.

        What has ended is settled on the way. Raises ProducerInTransaction: a producer is in one transaction at a time, as in
        Kafka; or ids of the one could not be used again when it is rolled back behind the other.
        """
        states = await self._transactions.states(others)
        own = None if pointer is None else await self._transactions.root(pointer)
        cleared: dict[int, bool] = {}
        for other in others:
            state = states.get(other)
            if state is None and self._pointers.outlived(other):
                await self._settle(other, True)
            elif state is None:
                cleared[other] = False
            elif state == "committed" or (state != "in_progress" and pointer is None):
                # A request under a pointer of its own must not wait for those under another: two of them could for each other.
                await self._settle(other, state == "committed")
            elif own is not None and await self._root(other) == own:
                cleared[other] = True
            else:
                raise _in_transaction(producer, other)
        return cleared

    async def _root(self, other: int) -> int | None:
        """None also for a transaction that has ended: that is no concern of whoever comes with another one."""
        try:
            return await self._transactions.root(other)
        except TransactionNotInProgress:
            return None

    def _check_undecided(
        self, producer: str, sequence_ids: Sequence[int], pointer: int | None, cleared: Mapping[int, bool]
    ) -> None:
        """Somebody else's service decides about these transactions: what only they hold is neither stored nor new."""
        own = [other for other, is_own in cleared.items() if is_own]
        settled = self._dedup.fold.settled_mark(producer, own if pointer is None else [*own, pointer])
        live = self._dedup.fold.get(producer)
        if live is None or (settled is not None and settled.sequence_id >= live.sequence_id):
            return
        floor = -1 if settled is None else settled.sequence_id
        if any(floor < sequence_id <= live.sequence_id for sequence_id in sequence_ids):
            raise _in_transaction(producer, next(other for other, is_own in cleared.items() if not is_own))

    # --- originals

    async def originals(self, producer: str, sequence_ids: Sequence[int], payloads: Sequence[bytes]) -> Known:
        """What is stored of messages that were judged persisted. Raises SequenceReused."""
        mark = self._dedup.last_persisted(producer)
        if mark is None or not sequence_ids:
            return NOTHING  # rolled back while this waited
        originals = await read(self._history.originals, producer, mark, sequence_ids, self._producers.counts_from(producer))
        for sequence_id, payload in zip(sequence_ids, payloads, strict=False):
            original = originals.get(sequence_id)
            if original is not None and original.payload != payload:
                raise SequenceReused(
                    f"sequence id {sequence_id} of producer {producer!r} is stored at offset {original.offset} "
                    "with another payload",
                    producer=producer,
                    sequence_id=sequence_id,
                    message_id=original.message_id.hex(),
                    offset=original.offset,
                )
        return Known(len(sequence_ids), duplicate_runs(sequence_ids, originals), originals)


def sequence_gap(producer: str, expected: int, received: int) -> SequenceGap:
    """The refusal of a producer that was opened with gaps refused."""
    return SequenceGap(
        f"producer {producer!r} refuses gaps: expected sequence id {expected}, received {received}",
        producer=producer,
        expected=expected,
        received=received,
    )


def _in_transaction(producer: str, pointer: int) -> ProducerInTransaction:
    return ProducerInTransaction(
        f"producer {producer!r} has messages in the transaction {pointer}, which is not settled; a producer is in one "
        "transaction at a time",
        producer=producer,
        write_pointer=pointer,
    )
