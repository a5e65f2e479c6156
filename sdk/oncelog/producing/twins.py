"""What the twins of a named producer share, of threads and of asyncio: their arguments, what they are asked, what they send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from oncelog.api.api import C, OfTopic
from oncelog.codecs import Codec, V, codec_for
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process.exits import EXIT_SECONDS
from oncelog.process.procedures import called
from oncelog.process.tracing import Place, Span, Tracing
from oncelog.producing.batching import LINGER_SECONDS, MAX_BYTES, MAX_MESSAGES, Batch
from oncelog.producing.core import DELIVERY_SECONDS, MAX_PENDING, MAX_PENDING_BYTES, Policy
from oncelog.producing.cutting import Bounds
from oncelog.producing.shell import Address, Shell
from oncelog.values.expectation import UNCHECKED, expectation
from oncelog.values.numbers import check_count, check_long, check_seconds
from oncelog.values.outgoing import Outgoing, carrying, outgoing_columns
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Gaps

X = TypeVar("X")


class ProducerTwin(OfTopic[C], Generic[C, V]):
    """What both producers are made of."""

    _sender: Shell

    @called("Producer")
    def __init__(
        self,
        topic: str,
        *,
        name: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: C | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        initial_sequence_id: int | None = None,
        gaps: Gaps = "allow",
        stop_on_refusal: bool = False,
        codec: Any = None,
        batch_max_messages: int = MAX_MESSAGES,
        batch_max_bytes: int = MAX_BYTES,
        linger: float = LINGER_SECONDS,
        max_pending: int = MAX_PENDING,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        delivery_timeout: float = DELIVERY_SECONDS,
        exit_timeout: float = EXIT_SECONDS,
    ) -> None:
        """Open the producer on the service; the twin of asyncio does so when it is opened.

        Args:
            name: None lets the service assign a unique one, which ends with this producer: nobody can resume under it.
            initial_sequence_id: of the first message; above the last persisted one.
            gaps: ``refuse`` has the service refuse a message that leaves a sequence id out.
            stop_on_refusal: a message that is refused for its own fault, or one of a producer without a name that fails for any
                other reason, stops the producer: nothing that was sent behind it is stored.
            client: a :class:`oncelog.Client`, or for asyncio an :class:`oncelog.AsyncClient`; else it makes one of its own.
            verify, cert, proxy: as of a :class:`oncelog.Client`, where none is given.
            codec: None for bytes, or what :func:`oncelog.codecs.codec_for` takes.
            linger: seconds that a message sent by send_async may wait for company.
            max_pending, max_pending_bytes: messages, and their bytes, that may wait; send_async waits beyond that. A single
                message may be larger, when nothing else waits.
            delivery_timeout: seconds that a batch is tried again before the producer stops. Without a name they count from when
                the batch was complete, since it does not stop, and others wait behind it.
            exit_timeout: seconds that what is unsent may take when the interpreter exits, or Ctrl-C ends the ``with`` block; for
                asyncio, when the task is cancelled in the ``async with`` block.

        Raises:
            TopicNotFound, InitialSequenceIdTaken, InvalidRequest, ConnectionFailed; ValueError: a number that cannot be.
        """
        if initial_sequence_id is not None:
            check_long("initial_sequence_id", initial_sequence_id)
        check_count("batch_max_messages", batch_max_messages)
        check_count("batch_max_bytes", batch_max_bytes)
        check_seconds("linger", linger)
        check_count("max_pending", max_pending)
        check_count("max_pending_bytes", max_pending_bytes)
        check_seconds("delivery_timeout", delivery_timeout)
        check_seconds("exit_timeout", exit_timeout)
        self._connect(topic, namespace, client, url, verify, cert, proxy)
        self._codec = codec_for(codec)
        self._exit_timeout = exit_timeout
        self._address = Address(self._client, topic, namespace, name, gaps, initial_sequence_id)
        bounds = Bounds(batch_max_messages, batch_max_bytes)
        queued = (bounds, linger, max_pending, max_pending_bytes)
        self._policy = Policy(name is None, gaps == "refuse", *queued, delivery_timeout, stop_on_refusal)
        self._made()

    def _made(self) -> None:
        """Open it, or prepare for it."""
        raise NotImplementedError

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
        """Yield those of ``rows`` whose sequence id is above what is already persisted. One-shot iterators are fine."""
        for row in rows:
            number = sequence_id(row)
            check_long("sequence_id", number)
            if self._sender.core.numbers.opened_at < number:
                yield row

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
