"""Producers while a transaction sends through them: they number its messages, and give the numbers back when it is undone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from oncelog.api.api import AnyApi
from oncelog.errors import OncelogError, SequenceIdNotRising
from oncelog.producing.twins import sender_of
from oncelog.transactions.twins import AnyProducer, check_twin
from oncelog.values.receipt import Receipt
from oncelog.wire.requests import STORED, ReceiptRun


@dataclass(slots=True)
class _Enlisted:
    producer: AnyProducer
    last: Receipt | None = None
    """Of the newest message that is stored, if the transaction is."""
    last_given: int | None = None


class EnlistedProducers:
    """The producers of one transaction. Each takes messages through it alone until it is committed, rolled back or in doubt."""

    def __init__(self, client: AnyApi) -> None:
        """``client``: that the transaction is begun with."""
        self._client = client
        self._enlisted: dict[tuple[str, str, str], _Enlisted] = {}

    async def number(self, transaction: int | str, namespace: str, topic: str, producer: AnyProducer, given: int | None) -> int:
        """Gives the producer's next message its sequence id.

        Raises:
            ValueError: it publishes to another topic; another one of this name is in the transaction. SequenceIdNotRising; what
            the producer's own ``send_async`` and ``flush`` raise.
        """
        check_twin(self._client, producer)
        if (producer.topic, producer.namespace) != (topic, namespace):
            raise ValueError(f"producer {producer.name!r} publishes to {producer.namespace}/{producer.topic}")
        place = namespace, topic, producer.name
        enlisted = self._enlisted.get(place)
        if enlisted is None:
            await sender_of(producer).enlist(transaction)  # which may give it another name
            enlisted = self._enlisted[namespace, topic, producer.name] = _Enlisted(producer)
        elif enlisted.producer is not producer:
            raise ValueError(f"two producers named {producer.name!r} in one transaction; the older one is fenced")
        last = enlisted.last_given
        if given is not None and last is not None and given <= last:
            raise SequenceIdNotRising(f"sequence id {given} does not follow {last}; nothing was sent", last=last, received=given)
        enlisted.last_given = number = sender_of(producer).number(given)
        return number

    def note_last(self, namespace: str, topic: str, name: str, last: Receipt) -> None:
        """Notes that this message of the producer is stored, if the transaction is."""
        self._enlisted[namespace, topic, name].last = last

    def note_all(self) -> None:
        """Notes that all numbered messages are stored, if the transaction is; their offsets are not known."""
        for enlisted in self._enlisted.values():
            if enlisted.last_given is not None:
                enlisted.last = Receipt(ReceiptRun(STORED, 1, enlisted.last_given, None, None), 0)

    def commit(self) -> None:
        """Lets the producers go on behind the numbers that they have used."""
        for enlisted in self._enlisted.values():
            sender_of(enlisted.producer).release(enlisted.last)
        self._enlisted.clear()

    async def roll_back_unused(self) -> None:
        """Rolls back those whose newest number the topic does not have: another process committed, under other numbers.

        Where that cannot be asked, they are taken for used: then there is a hole, and nothing is lost or doubled.
        """
        for place, enlisted in list(self._enlisted.items()):
            with suppress(OncelogError):
                if enlisted.last_given is not None and not await sender_of(enlisted.producer).has_stored(enlisted.last_given):
                    sender_of(enlisted.producer).roll_back()
                    del self._enlisted[place]

    def roll_back(self) -> None:
        """Gives all numbers back: nothing of the transaction will ever be seen."""
        for enlisted in self._enlisted.values():
            sender_of(enlisted.producer).roll_back()
        self._enlisted.clear()

    def in_doubt(self, error: BaseException) -> None:
        """Stops the producers: which numbers are used is not known."""
        for enlisted in self._enlisted.values():
            sender_of(enlisted.producer).stop(error)
        self._enlisted.clear()
