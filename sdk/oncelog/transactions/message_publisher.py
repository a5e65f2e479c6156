"""The messages of a transaction: buffered here up to a bound, stored on the service beyond it, published when it commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from oncelog.api.api import AnyApi, tried
from oncelog.api.plausible import check_names_all
from oncelog.api.transactions import BUFFER_BYTES
from oncelog.errors import StoredGroupPublished, TransactionClosed
from oncelog.process.tracing import Place, switch
from oncelog.transactions.chunks import NO_PRODUCER, Origin, TopicChunks
from oncelog.transactions.enlisted_producers import EnlistedProducers
from oncelog.transactions.twins import AnyProducer, turn_of
from oncelog.values.numbers import check_count
from oncelog.values.outgoing import CARRIES, Outgoing, carrying
from oncelog.values.receipt import Receipt
from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog.wire.transaction import Transaction

_Send = Callable[[str, PublishRequest, str], PublishResponse | Awaitable[PublishResponse]]
"""A call of either twin's client."""


@dataclass
class _Topic:
    """The messages for one topic that have not left yet, by producer (None: without one), in the order of sending."""

    namespace: str
    name: str
    chunks: dict[str | None, TopicChunks] = field(default_factory=dict)
    unnamed: int = 0
    """How many messages without a producer were sent under the present write pointer."""
    is_spilled: bool = False
    """Whether something is stored under the present write pointer, so that the rest has to be."""

    @property
    def size(self) -> int:
        """What has not left yet counts for, in bytes."""
        return sum(each.size for each in self.chunks.values())

    def add(self, message: Outgoing, origin: Origin) -> None:
        """Append a message; one without a producer is numbered here."""
        if origin.producer is None:
            message = message._replace(sequence_id=self.unnamed)
            self.unnamed += 1
        chunks = self.chunks.get(origin.producer)
        if chunks is None:
            chunks = self.chunks[origin.producer] = TopicChunks(self.namespace, self.name)
        chunks.add(message, origin)


class MessagePublisher:
    """The participant that publishes, of either twin; always the last one, so that nothing is published that others still refuse.

    Messages of one topic and producer keep their order. Those without a producer are numbered here, within the write pointer and
    the topic. So what is stored or published is deduplicated, and a request whose answer was lost is repeated. Nothing is undone
    from here: when the transaction is aborted the service rolls back whatever each topic holds of it, also where no answer came.
    """

    def __init__(self, client: AnyApi, buffer_bytes: int = BUFFER_BYTES) -> None:
        """``buffer_bytes``: 0 stores each message at once."""
        check_count("buffer_bytes", buffer_bytes, 0)
        self._client = client
        self._buffer_bytes = buffer_bytes
        self._lock = turn_of(client, "the transaction")
        self._tx: Transaction | None = None
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._producers = EnlistedProducers(client)
        self._size = 0
        self._failure: BaseException | None = None

    @property
    def buffered_bytes(self) -> int:
        """What is in memory now."""
        return self._size

    async def send(self, topic: str, message: Outgoing, namespace: str, producer: AnyProducer | None) -> None:
        """Add one message; see :meth:`oncelog.TransactionContext.send`."""
        tracing = switch.tracing
        if tracing is None:
            return await self._add(topic, message, namespace, producer)
        with tracing.send(Place(namespace, topic, self._client.url), [message.properties], 1) as span:
            return await self._add(topic, carrying(message, span.context, CARRIES), namespace, producer)

    async def _add(self, topic: str, message: Outgoing, namespace: str, producer: AnyProducer | None) -> None:
        with await self._lock.come():
            tx, origin = self._running(), NO_PRODUCER
            if producer is not None:
                number = await self._producers.number(tx.transaction_id, namespace, topic, producer, message.sequence_id)
                message, origin = message._replace(sequence_id=number), Origin(producer.name, producer.epoch)
            self._topics.setdefault((namespace, topic), _Topic(namespace, topic)).add(message, origin)
            self._size += message.size
            await self._spill(tx)

    def _running(self) -> Transaction:
        if self._tx is None:
            raise TransactionClosed
        if self._failure is not None:
            raise TransactionClosed("an earlier message of this transaction failed; roll it back") from self._failure
        return self._tx

    async def _spill(self, tx: Transaction) -> None:
        """Store the largest topics until what is left fits."""
        while self._size > self._buffer_bytes:
            largest = max(self._topics.values(), key=lambda topic: topic.size)
            with self._noting():
                await self._store(tx, largest)

    # --- the participant

    def start_tx(self, tx: Transaction) -> None:
        """A transaction begins."""
        self._tx = tx

    async def update_tx(self, tx: Transaction) -> None:
        """A checkpoint: what was sent so far is published under the pointer that it was sent under."""
        await self.commit_tx()
        self._tx = tx

    def get_tx_changes(self) -> tuple[bytes, ...]:
        """None: any number of transactions may publish to a topic."""
        return ()

    async def commit_tx(self) -> None:
        """Publish everything. Raises what the service answers; what was published before it is then undone with the rest."""
        with await self._lock.come():
            tx = self._running()
            with self._noting():
                for topic in self._topics.values():
                    await self._publish(tx, topic)
            self._topics.clear()

    async def post_tx_commit(self) -> None:
        """The producers go on behind the numbers that they have used."""
        with await self._lock.come():
            self._producers.commit()
            self._end()

    async def rollback_tx(self) -> None:
        """The producers get their numbers back. What the topics hold is undone by the abort that follows."""
        with await self._lock.come():
            self._producers.roll_back()
            self._end()

    async def in_doubt_tx(self, error: BaseException) -> None:
        """The producers stop, as it is not known which numbers are used."""
        with await self._lock.come():
            self._producers.in_doubt(error)
            self._end()

    def _end(self) -> None:
        self._tx = None
        self._topics.clear()
        self._size = 0

    # --- the wire

    async def _publish(self, tx: Transaction, topic: _Topic) -> None:
        if topic.is_spilled:
            await self._store(tx, topic)
            await self._publish_group(tx, topic)
        else:
            await self._send_all(tx, topic, self._client.publish_transactional)

    async def _store(self, tx: Transaction, topic: _Topic) -> None:
        topic.is_spilled = True
        await self._send_all(tx, topic, self._client.store)

    async def _send_all(self, tx: Transaction, topic: _Topic, send: _Send) -> None:
        for chunks in topic.chunks.values():
            for _, request in chunks.take():
                request.write_pointer = tx.write_pointer
                await self._send(topic, request, send)
        self._size = sum(each.size for each in self._topics.values())

    async def _publish_group(self, tx: Transaction, topic: _Topic) -> None:
        """Make what is stored appear. Repeated freely: the pointer is ours alone, and it publishes its group once."""
        request = PublishRequest([], write_pointer=tx.write_pointer)
        try:
            await tried(self._client, lambda: self._client.publish_transactional(topic.name, request, topic.namespace))
        except StoredGroupPublished as error:
            if error.definite:
                raise
            # An earlier try got through and its answer was lost.

    async def _send(self, topic: _Topic, request: PublishRequest, send: _Send) -> None:
        response = await tried(self._client, lambda: send(topic.name, request, topic.namespace))
        assert request.sequence_ids is not None  # each message has one, with a producer or without
        # Before anything is noted: an answer that leaves one out says nothing of the others either.
        check_names_all(response.receipts, request.sequence_ids)
        if request.producer is not None:
            run = response.receipts[-1]
            self._producers.note_last(topic.namespace, topic.name, request.producer, Receipt(run, run.count - 1))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """After a failure nothing goes on."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise
