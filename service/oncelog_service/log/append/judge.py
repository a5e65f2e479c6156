"""Which messages of a named producer's request are new, and the receipts of those that are not.

Every answer here depends on something that may still be under way: a write, or another transaction. Writes are waited
for. An undecided transaction is not: the request is refused, definitely, and may be tried again (decision 0012).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from oncelog.errors import OncelogError, ProducerInTransaction, SequenceGap, SequenceReused
from oncelog.wire.requests import PublishRequest
from oncelog_service.log.append.history import History, OriginalRun, differs
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.receipts import duplicate_runs, repeated_runs
from oncelog_service.log.append.step import BEGINNING, NOTHING, Known, Sofar, Waits
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.settling import Settling
from oncelog_service.reading import read


class Judge:
    """Decides which messages of a request are new, on the maps of the publish path and on its event loop."""

    __slots__ = ("_dedup", "_history", "_pointers", "_producers", "_settling", "_topic", "_writer")

    def __init__(self, topic: OpenTopic, producers: Producers, settling: Settling) -> None:
        self._topic = topic
        self._history = History(topic.store, topic.prefix)
        self._writer = topic.writer
        self._dedup = topic.dedup
        self._pointers = topic.pointers
        self._producers = producers
        self._settling = settling

    async def known(self, request: PublishRequest, *, gaps: bool = True) -> Known:
        """As :meth:`step`, having waited for whatever that depends on."""
        sofar = BEGINNING
        while True:
            self._topic.check_open()  # each time round: the store may have failed while this waited
            found = self.step(request, sofar, gaps=gaps)
            if isinstance(found, Known):
                return found
            sofar = await found()

    def step(self, request: PublishRequest, sofar: Sofar = BEGINNING, *, gaps: bool = True) -> Known | Waits:
        """What of the request is stored, while its other messages are new at this very moment; or what has to be waited for. The
        caller has asked whether the topic is open.

        Raises:
            ProducerFenced, SequenceReused, ProducerInTransaction; SequenceGap, if ``gaps`` are to be looked at.
        """
        producer, sequence_ids, pointer = request.producer, request.sequence_ids, request.write_pointer
        if producer is None or sequence_ids is None:
            return NOTHING
        if (refusal := self._producers.refusal(producer, request.epoch)) is not None:
            return partial(self._refused, refusal)
        if not self._topic.rules.deduplicates:
            return NOTHING
        known, cleared = sofar
        if self._topic.any_transactions:
            others = self._topic.transactions_of(producer) - {pointer}
            if not others <= cleared.keys():
                return partial(self._clear_more, producer, pointer, others, known)
        if cleared:
            own = [other for other, is_own in cleared.items() if is_own]
            self.check_undecided(producer, sequence_ids, own if pointer is None else [*own, pointer])
        verdict = self._dedup.judge(producer, sequence_ids)
        if verdict.in_flight or (self._pointers.in_use and self._dedup.in_flight(producer)):
            return partial(self._drained, sofar)
        if verdict.persisted != known.messages:
            return partial(self._read, request, verdict.persisted, cleared)
        if not gaps or (gap := self._producers.gap(producer, sequence_ids[known.messages :])) is None:
            return known
        if self._dedup.in_flight(producer):
            return partial(self._drained, sofar)  # the refusal depends on what is being written
        raise sequence_gap(producer, *gap)

    # --- what a verdict waits for

    async def _refused(self, refusal: OncelogError) -> Sofar:
        await self._producers.refuse(refusal)
        return BEGINNING

    async def _drained(self, sofar: Sofar) -> Sofar:
        await self._writer.drained()
        return sofar

    async def _clear_more(self, producer: str, pointer: int | None, others: Collection[int], known: Known) -> Sofar:
        return Sofar(known, await self._clear(producer, pointer, others))

    async def _read(self, request: PublishRequest, persisted: int, cleared: Mapping[int, bool]) -> Sofar:
        assert request.producer is not None  # whose messages are persisted
        assert request.sequence_ids is not None
        return Sofar(await self.originals(request.producer, request.sequence_ids[:persisted], request), cleared)

    # --- transactions of the same producer

    async def cleared(self, producer: str, first_sequence_id: int) -> frozenset[int]:
        """Those of the producer's unsettled transactions that do not forbid it to publish from this sequence id on, none of them
        its own. What has ended is settled on the way. Raises ProducerInTransaction."""
        while others := self._topic.transactions_of(producer):
            cleared = await self._clear(producer, None, others)
            if self._topic.transactions_of(producer) <= cleared.keys():
                self.check_undecided(producer, [first_sequence_id])
                return frozenset(cleared)
        return frozenset()

    async def _clear(self, producer: str, pointer: int | None, others: Collection[int]) -> dict[int, bool]:
        """Those of ``others`` that do not forbid the request, and whether they belong to its own transaction.

        What has ended is settled on the way. Raises ProducerInTransaction: a producer is in one transaction at a time, as in
        Kafka; or ids of the one could not be used again when it is rolled back behind the other.
        """
        cleared: dict[int, bool] = {}
        for other, state in (await self._settling.settle_ended(others, under=pointer)).items():
            if state is not None and not await self._settling.are_related(pointer, other):
                raise _in_transaction(producer, other)
            cleared[other] = state is not None
        return cleared

    def check_undecided(self, producer: str, sequence_ids: Sequence[int], besides: Collection[int] = ()) -> None:
        """Another service decides about the transactions of the producer outside ``besides``: what only they hold is neither
        stored nor new, also where more was settled behind it. Raises ProducerInTransaction."""
        fold = self._dedup.fold
        live = fold.get(producer)
        if live is None or sequence_ids[0] > live.sequence_id:
            return
        for pointer, floor, top in fold.undecided_ranges(producer, besides):
            if bisect_right(sequence_ids, floor) < bisect_right(sequence_ids, top):
                raise _in_transaction(producer, pointer)

    # --- originals

    async def originals(self, producer: str, sequence_ids: Sequence[int], request: PublishRequest) -> Known:
        """What is stored of the request's first messages, which were judged persisted. Raises SequenceReused."""
        last_entry = self._dedup.last_persisted(producer)
        if last_entry is None or not sequence_ids:
            return NOTHING  # rolled back while this waited
        counts_from, payload_bytes = self._producers.counts_from(producer), sum(map(len, request.payloads))
        originals = await read(self._history.originals, producer, last_entry, sequence_ids, counts_from, payload_bytes)
        if isinstance(originals, OriginalRun) and originals.has_payloads(request.payloads[: len(originals)]):
            return Known(len(sequence_ids), repeated_runs(originals), originals)
        for index, sequence_id in enumerate(sequence_ids):
            original = originals.get(sequence_id)
            if original is not None and differs(original, request, index):
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
