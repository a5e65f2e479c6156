"""Delivers messages that are fetched ahead one after the other: what readers and consumers share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

from pydantic import BaseModel

from oncelog.api.api import Api
from oncelog.codecs import codec_for
from oncelog.errors import ConsumerClosed, ReaderClosed
from oncelog.http.trust import Certificate, Verify
from oncelog.message_id import MessageId
from oncelog.process.errands import Errands, Stopped
from oncelog.reading.position import FetchedAhead, Found
from oncelog.values.message import Message

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

PAGE = 5_000
"""Messages fetched at once; the service ends a page by bytes too."""
WAIT_SECONDS = 20.0
"""How long one request is held on the service when there is nothing yet."""


class Stream(Generic[T]):
    """The shell around a position: it asks, waits, and can be stopped. Not thread-safe: one a thread."""

    def __init__(
        self,
        at: FetchedAhead,
        topic: str,
        *,
        timeout: float | None,
        namespace: str,
        url: str | None,
        client: Api | None,
        verify: Verify,
        cert: Certificate,
        proxy: str | None,
        codec: object,
        page_size: int,
    ) -> None:
        """The arguments are those of a :class:`oncelog.Reader`."""
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        self._at = at
        self._timeout = timeout
        self._codec = codec_for(codec)
        self._owns_client = client is None
        self._client = Api(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._topic = topic
        self._namespace = namespace
        self._page_size = page_size
        self._errands = Errands(f"oncelog-{type(self).__name__.lower()}")
        """Asks the service, so that :meth:`close` can end the waiting for it."""
        self._closed = False
        self._interrupted = False
        """What is fetched ahead is not to be delivered any more; why, the next :meth:`_fetch` says."""

    @property
    def position(self) -> MessageId | None:
        """Id of the last message delivered, or of the one that reading started after; None if there is neither."""
        delivered = self._at.delivered
        return None if delivered is None else MessageId.from_bytes(delivered)

    def has_message_available(self) -> bool:
        """Whether a message would be delivered without waiting. Delivers nothing itself."""
        self._check()
        at = self._at
        at.drop_expired(time.monotonic())
        while not at.records or self._interrupted:
            try:
                found = self._fetch(0)
            except Stopped:
                return False
            if found is not Found.MORE and not at.records:
                return False
        return True

    def _fetch(self, wait_ms: int) -> Found:
        """Ask once for more. Raises Stopped."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raise what ended it for good: that it is closed, at least."""
        raise NotImplementedError

    def _deliver(self, limit: int, timeout: float | None) -> list[Message[T]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever)."""
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        self._check()
        at = self._at
        now = time.monotonic()
        end = None if timeout is None else now + timeout
        at.drop_expired(now)
        while not at.records or self._interrupted:
            left = WAIT_SECONDS if end is None else min(WAIT_SECONDS, max(0.0, end - time.monotonic()))
            try:
                found = self._fetch(int(left * 1000))
            except Stopped:
                return []
            if not at.records and (found is Found.UNDECIDED or (end is not None and time.monotonic() >= end)):
                return []
        messages: list[Message[T]] = [Message(record, self._codec) for record in islice(at.records, limit)]
        at.take(len(messages))  # when all else is done: what is taken is delivered
        return messages

    def __iter__(self) -> Iterator[Message[T]]:
        at, codec, records = self._at, self._codec, self._at.records
        self._check()
        monotonic = time.monotonic
        while not self._closed:
            if not records or self._interrupted or monotonic() >= at.fresh_until:
                try:
                    first = self._deliver(1, self._timeout)
                except (ReaderClosed, ConsumerClosed):
                    return  # by another thread, or a signal handler
                if not first:
                    return
                yield first[0]
                continue
            record = records[0]
            message: Message[T] = Message(record, codec)
            # No call from here to the yield, so that Ctrl-C cannot come between: the message would be lost, or come twice.
            at.last = record
            del records[0]
            yield message
