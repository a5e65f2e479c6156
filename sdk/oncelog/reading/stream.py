"""Messages that are fetched ahead and delivered one after the other: what readers and consumers share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from math import inf
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from oncelog.codecs import Codec
from oncelog.errors import ConsumerClosed, ReaderClosed
from oncelog.message_id import MessageId
from oncelog.process.errands import Errands, Stopped
from oncelog.values.message import Message
from oncelog.wire.requests import Polled

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

PAGE = 5_000
"""Messages fetched at once; the service ends a page by bytes too."""
_WAIT_MS = 20_000
"""How long one request is held on the service when there is nothing yet."""


class Stream(Generic[T]):
    """Not thread-safe: one a thread."""

    def __init__(self, timeout: float | None, codec: Codec[Any] | None) -> None:
        """``timeout``: of iteration."""
        self._timeout = timeout
        self._codec = codec
        self._buffer: deque[dict[str, Any]] = deque()
        self._position: MessageId | None = None
        self._errands = Errands(f"oncelog-{type(self).__name__.lower()}")
        """Asks the service, so that :meth:`close` can end the waiting for it."""
        self._closed = False
        self._offset: int | None = None
        """Of the last message delivered."""
        self._fresh_until = inf
        """When the first message that is fetched ahead expires, by the monotonic clock: it is not delivered after that."""
        self._lives: tuple[float, int, int] | None = None
        """When what is fetched ahead came, the service's time then in ms, and the topic's ttl in ms."""
        self._interrupted = False
        """What is fetched ahead is not to be delivered any more; why, the next :meth:`_fetch` says."""

    def _fetch(self, wait_ms: int) -> bool:
        """Ask once for more. Whether it is certain that asking again would bring nothing. Raises Stopped."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raises what ended it for good: that it is closed, at least."""
        raise NotImplementedError

    def _note_lives(self, polled: Polled) -> None:
        """How long what is about to be held, in an empty buffer, lives."""
        if polled.now_ms is not None and polled.ttl_ms is not None:
            self._lives = time.monotonic(), polled.now_ms, polled.ttl_ms
            self._fresh_until = min(map(self._expires, polled.messages), default=inf)

    def _expires(self, record: dict[str, Any]) -> float:
        """When a message expires, by the monotonic clock: its ttl, or the topic's, after its timestamp."""
        if self._lives is None:
            return inf
        came, now_ms, ttl_ms = self._lives
        own = record["ttl"]
        lives_ms = ttl_ms if own is None else min(ttl_ms, own * 1000)
        return came + (int.from_bytes(record["id"][:8], "big") + lives_ms - now_ms) / 1000

    def _drop_expired(self) -> None:
        """Some of what is fetched ahead has expired: none of that is delivered."""
        now = time.monotonic()
        living = [record for record in self._buffer if self._expires(record) > now]
        self._buffer.clear()
        self._buffer.extend(living)
        self._fresh_until = min(map(self._expires, living), default=inf)

    def _deliver(self, limit: int, timeout: float | None) -> list[Message[T]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever)."""
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        self._check()
        end = None if timeout is None else time.monotonic() + timeout
        if time.monotonic() >= self._fresh_until:
            self._drop_expired()
        while not self._buffer or self._interrupted:
            left = _WAIT_MS / 1000 if end is None else min(_WAIT_MS / 1000, max(0.0, end - time.monotonic()))
            try:
                nothing_more = self._fetch(int(left * 1000))
            except Stopped:
                return []
            if not self._buffer and (nothing_more or (end is not None and time.monotonic() >= end)):
                return []
        delivered = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        self._offset = delivered[-1]["offset"]
        self._position = MessageId.from_bytes(delivered[-1]["id"])
        return [Message(record, self._codec) for record in delivered]

    def __iter__(self) -> Iterator[Message[T]]:
        buffer, codec = self._buffer, self._codec
        self._check()
        monotonic = time.monotonic
        while not self._closed:
            if not buffer or self._interrupted or monotonic() >= self._fresh_until:
                try:
                    first = self._deliver(1, self._timeout)
                except (ReaderClosed, ConsumerClosed):
                    return  # by another thread, or a signal handler
                if not first:
                    return
                yield first[0]
                continue
            record = buffer.popleft()
            self._offset = record["offset"]
            self._position = MessageId.from_bytes(record["id"])
            yield Message(record, codec)
