"""The messages of a transaction: buffered here up to a bound, stored on the service beyond it, published when it commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from oncelog.api.plausible import check_names_all
from oncelog.api.transactions import BUFFER_BYTES, TransactionCalls
from oncelog.codecs import codec_for
from oncelog.errors import StoredGroupPublished, TransactionClosed
from oncelog.process.turns import Turn
from oncelog.producing.producer import Producer, checked_extras, encode_value
from oncelog.transactions.held_producers import HeldProducers
from oncelog.values.receipt import Receipt
from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog.wire.transaction import Transaction

REQUEST_BYTES = 4 << 20
REQUEST_MESSAGES = 5_000
"""Of one request: half of what a service takes by default (8 MiB, 10,000 messages)."""
_ROW_BYTES = 128
"""What a message costs in memory beside payload, key and properties, roughly. On the wire it is less."""


class _Row(NamedTuple):
    payload: bytes
    sequence_id: int | None
    key: bytes | None
    properties: Mapping[str, str] | None
    ttl: int | None
    size: int
    """What it counts for, in bytes."""


@dataclass
class _Topic:
    """The messages for one topic that have not left yet, by producer (None: without one), in the order of sending."""

    namespace: str
    name: str
    rows: dict[str | None, list[_Row]] = field(default_factory=dict)
    size: int = 0
    spilled: bool = False
    """Whether something is stored under the present write pointer, so that the rest has to be."""


class MessagePublisher:
    """The participant that publishes; always the last one, so that nothing is published that others still refuse.

    Messages of one topic and producer keep their order. Those without a producer are numbered here, within the write pointer and
    the topic. So what is stored or published is deduplicated, and a request whose answer was lost is repeated. Nothing is undone
    from here: when the transaction is aborted the service marks whatever each topic holds of it, whether its answer was heard or
    not.
    """

    def __init__(self, client: TransactionCalls, buffer_bytes: int = BUFFER_BYTES) -> None:
        """Raises ValueError for a negative buffer; 0 stores each message at once."""
        if buffer_bytes < 0:
            raise ValueError(f"buffer_bytes is at least 0, not {buffer_bytes}")
        self._client = client
        self._buffer_bytes = buffer_bytes
        self._lock = Turn("the transaction")
        self._tx: Transaction | None = None
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._held = HeldProducers()
        self._unnamed: Counter[tuple[str, str]] = Counter()
        """How many messages without a producer have been sent to each topic under the present write pointer."""
        self._size = 0
        self._failure: BaseException | None = None

    @property
    def buffered_bytes(self) -> int:
        """What is in memory now."""
        return self._size

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        namespace: str,
        producer: Producer[Any] | None = None,
        sequence_id: int | None = None,
        codec: Any = None,
    ) -> None:
        """Add one message; see :meth:`oncelog.TransactionContext.send`."""
        if sequence_id is not None and producer is None:
            raise ValueError("a sequence id is a producer's; give the producer too")
        encode = codec_for(codec)
        payload = producer._encode(value) if producer is not None and encode is None else encode_value(value, encode)
        raw_key = checked_extras(key, properties, ttl)
        with self._lock:
            tx = self._running()
            number = None
            if producer is not None:
                number = self._held.number(tx.transaction_id, namespace, topic, producer, sequence_id)
            row = _Row(payload, number, raw_key, properties and dict(properties), ttl, _size(payload, raw_key, properties))
            self._add(namespace, topic, None if producer is None else producer.name, row)
            self._spill(tx)

    def _running(self) -> Transaction:
        if self._tx is None:
            raise TransactionClosed
        if self._failure is not None:
            raise TransactionClosed("an earlier message of this transaction failed; roll it back") from self._failure
        return self._tx

    def _add(self, namespace: str, name: str, producer: str | None, row: _Row) -> None:
        topic = self._topics.setdefault((namespace, name), _Topic(namespace, name))
        topic.rows.setdefault(producer, []).append(row)
        topic.size += row.size
        self._size += row.size

    def _spill(self, tx: Transaction) -> None:
        """Store the largest topics until what is left fits."""
        while self._size > self._buffer_bytes:
            largest = max(self._topics.values(), key=lambda topic: topic.size)
            with self._noting():
                self._store(tx, largest)

    # --- the participant

    def start_tx(self, tx: Transaction) -> None:
        """A transaction begins."""
        self._unnamed.clear()
        self._tx = tx

    def update_tx(self, tx: Transaction) -> None:
        """A checkpoint: what was sent so far is published under the pointer that it was sent under."""
        self.commit_tx()
        self._unnamed.clear()
        self._tx = tx

    def get_tx_changes(self) -> tuple[bytes, ...]:
        """None: any number of transactions may publish to a topic."""
        return ()

    def commit_tx(self) -> None:
        """Publish everything. Raises what the service answers; what was published before it is then undone with the rest."""
        with self._lock:
            tx = self._running()
            with self._noting():
                for topic in self._topics.values():
                    self._publish(tx, topic)
            self._topics.clear()

    def post_tx_commit(self) -> None:
        """The producers go on behind the numbers that they have used."""
        with self._lock:
            self._held.release()
            self._end()

    def rollback_tx(self) -> None:
        """The producers get their numbers back. What the topics hold is undone by the abort that follows."""
        with self._lock:
            self._held.roll_back()
            self._end()

    def in_doubt_tx(self, error: BaseException) -> None:
        """Which numbers are used cannot be told: the producers stop."""
        with self._lock:
            self._held.stop(error)
            self._end()

    def _end(self) -> None:
        self._tx = None
        self._topics.clear()
        self._size = 0

    # --- the wire

    def _publish(self, tx: Transaction, topic: _Topic) -> None:
        if topic.spilled:
            self._store(tx, topic)
            self._publish_group(tx, topic)
            return
        for request in self._take(tx, topic):
            response = self._sent(request, partial(self._client.publish_transactional, topic.name, request, topic.namespace))
            self._note_last(topic, request, response)

    def _store(self, tx: Transaction, topic: _Topic) -> None:
        for request in self._take(tx, topic):
            topic.spilled = True
            response = self._sent(request, partial(self._client.store, topic.name, request, topic.namespace))
            self._note_last(topic, request, response)

    def _publish_group(self, tx: Transaction, topic: _Topic) -> None:
        """Make what is stored appear. Repeated freely: the pointer is ours alone, and it publishes its group once."""
        request = PublishRequest([], write_pointer=tx.write_pointer)
        try:
            self._client._trying(
                lambda: self._client.publish_transactional(topic.name, request, topic.namespace), idempotent=True
            )
        except StoredGroupPublished as error:
            if error.definite:
                raise
            # An earlier try got through and its answer was lost.
        topic.spilled = False

    def _take(self, tx: Transaction, topic: _Topic) -> Iterator[PublishRequest]:
        """The messages of a topic as requests. Taking one out of the buffer comes before sending it: nothing is sent twice."""
        for producer, rows in topic.rows.items():
            at = 0
            for upto in _ends(rows):
                taken, at = rows[at:upto], upto
                size = sum(row.size for row in taken)
                topic.size -= size
                self._size -= size
                yield self._request(tx, topic, producer, taken)
        topic.rows.clear()

    def _request(self, tx: Transaction, topic: _Topic, producer: str | None, rows: list[_Row]) -> PublishRequest:
        # Lists: a tuple where a union may be would be (branch, value) to fastavro.
        payloads, ids, keys, properties, ttls, _ = (list(column) for column in zip(*rows, strict=True))
        request = PublishRequest(
            payloads,
            keys=keys if any(key is not None for key in keys) else None,
            properties=properties if any(properties) else None,
            ttls=ttls if any(ttls) else None,
            write_pointer=tx.write_pointer,
        )
        if producer is None:
            name = topic.namespace, topic.name
            request.sequence_ids = range(self._unnamed[name], self._unnamed[name] + len(rows))
            self._unnamed[name] += len(rows)
        else:
            epoch = self._held.epoch(topic.namespace, topic.name, producer)
            request.producer, request.epoch, request.sequence_ids = producer, epoch, ids
        return request

    def _sent(self, request: PublishRequest, send: Callable[[], PublishResponse]) -> PublishResponse:
        assert request.sequence_ids is not None  # each message has one, with a producer or without
        response = self._client._trying(send, idempotent=True)
        check_names_all(response.receipts, request.sequence_ids)
        return response

    def _note_last(self, topic: _Topic, request: PublishRequest, response: PublishResponse) -> None:
        if request.producer is not None:
            run = response.receipts[-1]
            self._held.note_last(topic.namespace, topic.name, request.producer, Receipt(run, run.count - 1))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """After a failure nothing goes on."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise


def _size(payload: bytes, key: bytes | None, properties: Mapping[str, str] | None) -> int:
    size = _ROW_BYTES + len(payload)
    if key is not None or properties:
        size += len(key or b"") + sum(len(name) + len(value) for name, value in (properties or {}).items())
    return size


def _ends(rows: list[_Row]) -> Iterator[int]:
    """Where each request ends: a message too large for one goes alone, and the service judges it."""
    begin = size = 0
    for at, row in enumerate(rows):
        if at > begin and (size + row.size > REQUEST_BYTES or at - begin == REQUEST_MESSAGES):
            yield at
            begin, size = at, 0
        size += row.size
    yield len(rows)
