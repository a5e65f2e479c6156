"""Reads a topic in order. The position lies with the caller: in `Checkpoint`, in a file, or nowhere."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from math import inf
from typing import Any, Literal, Unpack, overload

from oncelog.api.api import Api
from oncelog.api.options import BegunTransaction, ReaderOptions, Untyped
from oncelog.codecs import Codec, codec_for
from oncelog.errors import MessagesExpired, ReaderClosed
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process import forks
from oncelog.process.errands import Stopped
from oncelog.reading.stream import PAGE, Model, Stream, T
from oncelog.values.message import Message
from oncelog.values.start import Start as Start
from oncelog.values.start import milliseconds, no_start
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.requests import ConsumeRequest
from oncelog.wire.transaction import Transaction

_log = logging.getLogger(__name__)


class Reader(Stream[T]):
    """Iterates over the messages of a topic, each once, in the order that every consumer sees.

    ``position`` is the id of the last message *delivered*; messages fetched ahead do not count. Not thread-safe: one reader a
    thread; only :meth:`close` may be called from anywhere, also in a signal handler. A context manager.

        with Reader("flights") as reader:
            for message in reader:
                ...

    Without a ``transaction`` it delivers whatever is in the log, also what is not committed yet or was rolled back. With one, it
    delivers what that transaction sees, and ends before the first message whose transaction was undecided when it began: waiting
    there would be of no use, as it does not change for this transaction. A later one goes on from :attr:`position`.

    In a forked child it goes on behind what was delivered before the fork, with connections of its own, as its parent does: both
    deliver everything that comes.
    """

    @overload
    def __init__(
        self: Reader[bytes], topic: str, *, codec: Literal["bytes"] | None = None, **options: Unpack[ReaderOptions]
    ) -> None: ...

    @overload
    def __init__(self: Reader[str], topic: str, *, codec: Literal["str"], **options: Unpack[ReaderOptions]) -> None: ...

    @overload
    def __init__(self: Reader[T], topic: str, *, codec: Codec[T], **options: Unpack[ReaderOptions]) -> None: ...

    @overload
    def __init__(self: Reader[Model], topic: str, *, codec: type[Model], **options: Unpack[ReaderOptions]) -> None: ...

    @overload
    def __init__(self: Reader[Any], topic: str, *, codec: Untyped, **options: Unpack[ReaderOptions]) -> None: ...

    def __init__(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        inclusive: bool = False,
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: Api | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        codec: Any = None,
        page_size: int = PAGE,
        transaction: BegunTransaction | Transaction | bytes | None = None,
        generation: int | None = None,
        on_expired: Literal["raise", "skip"] = "raise",
    ) -> None:
        """
        Args:
            start: ``earliest``; ``latest`` (what is published from now on); a message id: after it, or with ``inclusive`` at
                it; an offset or an aware datetime: the first message at or after it.
            timeout: seconds without a new message after which iteration ends; None never ends, 0 ends at the end of the log.
            verify, cert, proxy: as of a :class:`oncelog.Client`, where none is given.
            codec: what ``Message.value`` decodes with; see :func:`oncelog.codecs.codec_for`.
            transaction: to read in: what :meth:`oncelog.Client.transaction` begins, a Transaction, or its Thrift bytes. Its own
                messages are seen once they are published, which a checkpoint brings about.
            generation: of the topic, that an offset was noted in (:attr:`generation`): another one is refused.
            on_expired: ``raise``: MessagesExpired where retention was faster than this reader, so that messages behind its
                position are gone (Kafka's ``auto.offset.reset=none``); ``skip``: go on with the first one that lives, and count
                them in :attr:`lost`. ``earliest`` and a datetime as ``start`` say themselves that what is gone is not asked for.

        Raises:
            TopicNotFound, OffsetOutOfRange, StaleMessageId, MessagesExpired at the first read (at once for ``latest``).
        """
        if on_expired not in ("raise", "skip"):
            raise ValueError(f"on_expired is 'raise' or 'skip', not {on_expired!r}")
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        super().__init__(timeout, codec_for(codec))
        self._owns_client = client is None
        self._client = Api(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._topic = topic
        self._namespace = namespace
        self._page_size = page_size
        self._transaction = transaction.to_bytes() if isinstance(transaction, Transaction) else transaction
        self._generation = generation
        self._skips_expired = on_expired == "skip"
        self._lost = 0
        try:
            self._request, self._position = self._first_request(start, inclusive)
            self._first = self._request, self._position
            """What asks for everything there is to be delivered, as long as the position is still that one."""
        except BaseException:
            self.close()
            raise
        forks.register(self)

    @property
    def position(self) -> MessageId | None:
        """Id of the last message delivered, or of the one that reading started after; None if there is neither."""
        return self._position

    @property
    def generation(self) -> int | None:
        """Of the topic that is read, as soon as it has answered: what an offset that is noted belongs to."""
        return self._generation

    @property
    def lost(self) -> int:
        """How many messages were skipped because they expired before they were read; with ``on_expired="skip"`` only. Where
        retention has deleted them and it is not known which was the first, all before the first one that lives are counted."""
        return self._lost

    def seek(self, start: Start, *, inclusive: bool = False, generation: int | None = None) -> None:
        """Go on from somewhere else; what was fetched ahead is dropped. ``start`` and ``generation`` as when the reader is made:
        also on a topic that was deleted and made anew."""
        self._check()
        self._generation, self._offset = generation, None
        request, position = self._first_request(start, inclusive)
        self._request, self._first, self._position = request, (request, position), position
        self._buffer.clear()

    def has_message_available(self) -> bool:
        """Whether :meth:`read` would deliver something without waiting. Delivers nothing itself."""
        self._check()
        while not self._buffer:
            before = self._request.start_from
            try:
                self._fetch(0)
            except Stopped:
                return False
            if self._request.start_from == before:
                break
        return bool(self._buffer)

    def read(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[T]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever).

        In a transaction none at once where the next message is undecided.

        Raises:
            OncelogError: nothing was delivered, and reading again goes on where it stood. ReaderClosed.
        """
        return self._deliver(limit, timeout)

    def close(self) -> None:
        """End reading and let go of the connection. Twice is as once.

        Whoever iterates in another thread, or below the signal handler that calls this, gets no further message, also in the
        middle of waiting for one; a :meth:`read` that waits answers none.
        """
        self._closed = True
        self._errands.stop()
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> Reader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fetch(self, wait_ms: int) -> bool:
        """Poll once. Whether it is certain that more polls would bring nothing: what comes next is undecided."""
        request = replace(self._request, wait=wait_ms, transaction=self._transaction_bytes(), generation=self._generation)
        before = request.start_from
        try:
            polled = self._errands.run(lambda: self._client.poll(self._topic, request, self._namespace))
        except MessagesExpired as error:
            self._overtaken(error)
            return self._fetch(wait_ms)
        self._generation = polled.generation
        following, first, records, buffer = self._request, self._first, polled.messages, self._buffer
        if polled.position is not None:
            following = self._behind(polled.position)
        elif polled.upcoming is not None and before is None and request.start_offset is None:
            # From the oldest, and there is none: from now on it is the next one that must not be missed.
            following = self._at(polled.upcoming)
            first = following, self._position
        self._note_lives(polled)
        # No call between these, so that Ctrl-C cannot come between: one without the other would lose a page, or double it.
        self._request, self._first = following, first
        buffer += records
        # At the end of the log the service would have said so; after a page full of rows that are passed over, moved on.
        return self._transaction is not None and not polled.messages and polled.upcoming is None and polled.position is None

    def _overtaken(self, error: MessagesExpired) -> None:
        """Retention was faster. Raises it, or goes on with what lives."""
        if error.first is None and self._offset is not None:
            error.first = self._offset + 1  # what the service does not know any more
        if not self._skips_expired:
            raise error
        lost = error.earliest - (0 if error.first is None else error.first)
        self._lost += lost
        _log.warning("%s/%s: %d messages expired before they were read: %s", self._namespace, self._topic, lost, error.detail)
        self._offset = error.earliest - 1
        self._request = self._at(error.earliest)
        self._first = self._request, self._position

    def _drop_expired(self) -> None:
        """The service is asked again: it knows what of it is lost, and what its messages' own ttl has ended."""
        self._buffer.clear()
        self._rewind()

    def _rewind(self) -> None:
        """Go on behind what was delivered, with nothing fetched ahead."""
        self._fresh_until = inf
        first, position = self._first
        if self._position is not None and self._position != position:
            self._request = self._behind(bytes(self._position))
        else:
            self._request = first

    def _behind(self, position: bytes) -> ConsumeRequest:
        return ConsumeRequest(start_from=position, inclusive=False, limit=self._page_size, refuse_expired=True)

    def _at(self, offset: int) -> ConsumeRequest:
        return ConsumeRequest(start_offset=offset, limit=self._page_size, refuse_expired=True)

    def _check(self) -> None:
        if self._closed:
            raise ReaderClosed

    def _after_fork(self) -> None:
        """Whatever another thread was doing with it: go on behind what was delivered."""
        self._errands.after_fork()
        self._buffer.clear()
        self._rewind()

    def _transaction_bytes(self) -> bytes | None:
        transaction = self._transaction
        if transaction is None or isinstance(transaction, bytes):
            return transaction
        return transaction.transaction.to_bytes()  # each time, as a checkpoint changes it

    def _first_request(self, start: Start, inclusive: bool) -> tuple[ConsumeRequest, MessageId | None]:
        request = ConsumeRequest(limit=self._page_size)
        position = None
        if isinstance(start, MessageId):
            request.start_from, request.inclusive, request.refuse_expired = bytes(start), inclusive, True
            position = None if inclusive else start
        elif start == "latest":
            stats = self._client.stats(self._topic, self._namespace)
            self._generation = stats.generation
            request = self._at(stats.upcoming_offset)
        elif isinstance(start, datetime):
            request.start_from = milliseconds(start)
        elif type(start) is int and start >= 0:
            request = self._at(start)
        elif start != "earliest":
            raise no_start(start)
        return request, position
