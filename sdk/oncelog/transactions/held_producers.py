"""Producers while a transaction sends through them: they number its messages, and give the numbers back when it is undone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from oncelog.errors import OncelogError, SequenceIdNotRising
from oncelog.producing.producer import Producer
from oncelog.values.receipt import Receipt
from oncelog.wire.requests import STORED, ReceiptRun


@dataclass(slots=True)
class _Held:
    producer: Producer[Any]
    last: Receipt | None = None
    """Of the newest message that is stored, if the transaction is."""
    last_given: int | None = None


class HeldProducers:
    """Those of one transaction. Each takes no messages but through it until it is released, rolled back or stopped."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], _Held] = {}

    def number(self, transaction: int | str, namespace: str, topic: str, producer: Producer[Any], given: int | None) -> int:
        """The sequence id of the producer's next message.

        Raises:
            ValueError: it publishes to another topic; another one of this name is in the transaction. SequenceIdNotRising; what
            the producer's own ``send_async`` and ``flush`` raise.
        """
        if (producer.topic, producer.namespace) != (topic, namespace):
            raise ValueError(f"producer {producer.name!r} publishes to {producer.namespace}/{producer.topic}")
        place = namespace, topic, producer.name
        held = self._held.get(place)
        if held is None:
            producer._hold(transaction)  # which may give it another name
            held = self._held[namespace, topic, producer.name] = _Held(producer)
        elif held.producer is not producer:
            raise ValueError(f"two producers named {producer.name!r} in one transaction; the older one is fenced")
        if given is not None and held.last_given is not None and given <= held.last_given:
            raise SequenceIdNotRising(
                f"sequence id {given} does not follow {held.last_given}; nothing was sent", last=held.last_given, received=given
            )
        held.last_given = producer._number_held(given)
        return held.last_given

    def epoch(self, namespace: str, topic: str, name: str) -> int:
        """Of a producer that is held."""
        return self._held[namespace, topic, name].producer.epoch

    def note_last(self, namespace: str, topic: str, name: str, last: Receipt) -> None:
        """This message of the producer is stored, if the transaction is."""
        self._held[namespace, topic, name].last = last

    def note_all(self) -> None:
        """All that were numbered are stored, if the transaction is; where, is not known."""
        for held in self._held.values():
            if held.last_given is not None:
                held.last = Receipt(ReceiptRun(STORED, 1, held.last_given, None, None), 0)

    def release(self) -> None:
        """The transaction is committed: they go on behind the numbers that they have used."""
        for held in self._held.values():
            held.producer._release(held.last)
        self._held.clear()

    def give_back_unused(self) -> None:
        """Roll back those whose newest number the topic does not have: it was somebody else who committed, under other numbers.

        Where that cannot be asked, they are taken for used: then there is a hole, and nothing is lost or doubled.
        """
        for place, held in list(self._held.items()):
            with suppress(OncelogError):
                if held.last_given is not None and not held.producer._has_stored(held.last_given):
                    held.producer._roll_back()
                    del self._held[place]

    def roll_back(self) -> None:
        """Nothing of it will ever be seen: their numbers are unused."""
        for held in self._held.values():
            held.producer._roll_back()
        self._held.clear()

    def stop(self, error: BaseException) -> None:
        """Which numbers are used cannot be told."""
        for held in self._held.values():
            held.producer._stop(error)
        self._held.clear()
