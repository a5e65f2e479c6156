"""Reads a topic in order. The position lies with the caller: in `Checkpoint`, in a file, or nowhere."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any, Literal, Unpack, overload

from oncelog.api.api import Api
from oncelog.api.options import BegunTransaction, ReaderOptions, Untyped
from oncelog.codecs import Codec
from oncelog.errors import MessagesExpired, ReaderClosed
from oncelog.http.trust import Certificate, Verify
from oncelog.process import forks
from oncelog.reading.position import Found, ReaderPosition
from oncelog.reading.stream import PAGE, Model, Stream, T
from oncelog.values.message import Message
from oncelog.values.start import Start as Start
from oncelog.wire.media import DEFAULT_NAMESPACE
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
        self._at: ReaderPosition
        super().__init__(
            ReaderPosition(page_size, on_expired == "skip"),
            topic,
            timeout=timeout,
            namespace=namespace,
            url=url,
            client=client,
            verify=verify,
            cert=cert,
            proxy=proxy,
            codec=codec,
            page_size=page_size,
        )
        self._transaction = transaction.to_bytes() if isinstance(transaction, Transaction) else transaction
        try:
            self._begin(start, inclusive, generation)
        except BaseException:
            self.close()
            raise
        forks.register(self)

    @property
    def generation(self) -> int | None:
        """Generation of the topic, as soon as it has answered: what an offset that is noted belongs to."""
        return self._at.generation

    @property
    def lost(self) -> int:
        """How many messages were skipped because they expired before they were read; with ``on_expired="skip"`` only. Where
        retention has deleted them and it is not known which was the first, all before the first one that lives are counted."""
        return self._at.lost

    def seek(self, start: Start, *, inclusive: bool = False, generation: int | None = None) -> None:
        """Go on from somewhere else; what was fetched ahead is dropped. ``start`` and ``generation`` as when the reader is made:
        also on a topic that was deleted and made anew. What is no start is refused, and nothing has moved then."""
        self._check()
        self._begin(start, inclusive, generation)

    def read(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[T]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever).

        In a transaction none at once where the next message is undecided.

        Raises:
            OncelogError: nothing was delivered, and reading again goes on where it stood. ReaderClosed.
        """
        return self._deliver(limit, timeout)

    def close(self) -> None:
        """End reading and let go of the connection. Idempotent.

        A thread that iterates, or what a signal handler that calls this has interrupted, gets no further message, also in the
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

    def _begin(self, start: Start, inclusive: bool, generation: int | None) -> None:
        if start == "latest":
            stats = self._client.stats(self._topic, self._namespace)
            start, generation = stats.upcoming_offset, stats.generation
        self._at.begin(start, inclusive, generation)

    def _fetch(self, wait_ms: int) -> Found:
        while True:
            asked = self._at.asks(wait_ms, self._transaction_bytes())
            try:
                polled = self._errands.run(partial(self._client.poll, self._topic, asked, self._namespace))
            except MessagesExpired as error:
                lost = self._at.expired(error)
                place = f"{self._namespace}/{self._topic}"
                _log.warning("%s: %d messages expired before they were read: %s", place, lost, error.detail)
            else:
                return self._at.answered(asked, polled, time.monotonic())

    def _check(self) -> None:
        if self._closed:
            raise ReaderClosed

    def _after_fork(self) -> None:
        """In the child go on behind what was delivered, whatever another thread was doing with it."""
        self._errands.after_fork()
        self._at.rewind()

    def _transaction_bytes(self) -> bytes | None:
        transaction = self._transaction
        if transaction is None or isinstance(transaction, bytes):
            return transaction
        return transaction.transaction.to_bytes()  # each time, as a checkpoint changes it
