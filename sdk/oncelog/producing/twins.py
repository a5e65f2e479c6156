"""What the twins of a named producer share, of threads and of asyncio: their arguments, what they are asked, what they send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from oncelog.api.api import C, OfTopic
from oncelog.codecs import Codec, V
from oncelog.message_id import MessageId
from oncelog.process.frames import shorten
from oncelog.process.tracing import Place, Span, Tracing
from oncelog.producing.batching import Batch
from oncelog.producing.shell import Address, Shell
from oncelog.values.arguments import check_call
from oncelog.values.expectation import UNCHECKED, expectation
from oncelog.values.numbers import check_long
from oncelog.values.outgoing import Outgoing, carrying, outgoing_columns

X = TypeVar("X")


class ProducerTwin(OfTopic[C], Generic[C, V]):
    """What both producers are made of."""

    _sender: Shell

    _codec: Codec[Any] | None
    _address: Address

    def __repr__(self) -> str:
        with suppress(RuntimeError):
            return self._shown(name=self.name, epoch=self.epoch, last_sequence_id=self.last_sequence_id)
        return self._shown(name=self._address.name)  # it is not open

    @property
    def topic(self) -> str:
        """Where it publishes."""
        return self._topic

    @property
    def namespace(self) -> str:
        """The topic's namespace."""
        return self._namespace

    @property
    def name(self) -> str:
        """The producer's name, also when the service assigned it."""
        return self._sender.core.name

    @property
    def epoch(self) -> int:
        """The number of this incarnation."""
        return self._sender.core.epoch

    @property
    def last_sequence_id(self) -> int | None:
        """The highest sequence id that is known to be on disk; None if this producer never published."""
        return self._sender.core.last_sequence_id

    @property
    def last_message_id(self) -> MessageId | None:
        """The id of that message, or None."""
        return self._sender.core.last_message_id

    def resume(self, rows: Iterable[X], *, sequence_id: Callable[[X], int]) -> Iterator[X]:
        """Yield those of ``rows`` whose sequence id is above what is already persisted. One-shot iterators are fine.

        Send them in this order, from one thread: a row whose number was overtaken is refused (SequenceIdNotRising), and passed
        over by every later ``resume``.
        """
        check_call("sequence_id", sequence_id)
        try:
            for row in rows:
                number = sequence_id(row)
                check_long("sequence_id", number)
                if self._sender.core.numbers.opened_at < number:
                    yield row
        except Exception as error:
            shorten(error)
            raise

    def _batch(
        self,
        values: Sequence[V],
        sequence_ids: Sequence[int] | None,
        keys: Sequence[bytes | str | None] | None,
        properties: Sequence[Mapping[str, str] | None] | None,
        expected_offset: int | None,
        expected_last_id: MessageId | None,
    ) -> Batch:
        """All messages of a call, before the first is queued: where one cannot be sent none is, and sending again doubles
        nothing."""
        batch = Batch()
        batch.extend(*outgoing_columns(values, self._codec, sequence_ids, keys, properties))
        batch.expected = expectation(expected_offset, expected_last_id, UNCHECKED, None)
        batch.whole = batch.expected is not None
        return batch

    def _traced(self, tracing: Tracing, message: Outgoing) -> tuple[Span, Outgoing]:
        """The span of a call that sends one message, and the message with its context."""
        span = tracing.send(self._place(), [message.properties], 1)
        return span, carrying(message, span.context)

    def _traced_batch(self, tracing: Tracing, batch: Batch) -> Span:
        """The span of a call that sends a batch, which gets its context."""
        span = tracing.send(self._place(), batch.properties, len(batch))
        batch.carry(span.context)
        return span

    def _place(self) -> Place:
        return Place(self._namespace, self._topic, self._client.url)


def codec_of(producer: ProducerTwin[Any, Any]) -> Codec[Any] | None:
    """Return the codec that makes bytes of a producer's values; None where they are bytes."""
    return producer._codec


def sender_of(producer: ProducerTwin[Any, Any]) -> Shell:
    """Return what sends for a producer: transactions number and roll back its messages there."""
    return producer._sender
