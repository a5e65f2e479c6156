"""Delivers messages that are polled ahead one after the other: what reader and consumer of threads share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Self

from oncelog.api.api import Api
from oncelog.codecs import V
from oncelog.errors import ConsumerClosed, ReaderClosed
from oncelog.process.errands import Errands
from oncelog.process.frames import shorten
from oncelog.process.procedures import answer_of, drive
from oncelog.reading.position import ITERATED
from oncelog.reading.twins import StreamTwin
from oncelog.values.message import Message
from oncelog.values.numbers import OWN, Own


class Stream(StreamTwin[Api, V]):
    """The shell around a position: it asks, waits, and can be stopped. Not thread-safe: one a thread."""

    _clients = Api

    def _prepare(self) -> None:
        self._errands = Errands(f"oncelog-{type(self).__name__.lower()}")
        """Asks the service, so that :meth:`close` can end the waiting for it."""

    def has_message_available(self) -> bool:
        """Whether a message would be delivered without waiting. Delivers nothing itself."""
        return drive(self._has_message())

    def _stop(self) -> None:
        """End the waiting, now and later."""
        self._closed = True
        self._errands.stop()

    def read(self, limit: int = 1_000, timeout: float | Own | None = OWN) -> list[Message[V]]:
        """Return messages as soon as there is one, or none after the timeout; in a transaction none at once where the next
        message is undecided.

        Args:
            limit: messages at most.
            timeout: seconds; else those that it was made with. None waits for ever, 0 for nothing.

        Raises:
            ReaderClosed, ConsumerClosed, ConsumerFenced, SubscriptionNotFound: for ever. Any other OncelogError: nothing was
                delivered, and reading again goes on where it stood.
        """
        try:
            return self._deliver(limit, timeout)
        except Exception as error:
            shorten(error)
            raise

    def _until_closed(self, call: Callable[[], Any]) -> Any:
        return self._errands.run(lambda: drive(answer_of(call)))

    def __enter__(self) -> Self:
        return self

    def _deliver(self, limit: int, timeout: float | Own | None, wanted: int | None = None) -> list[Message[V]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever)."""
        if not drive(self._poll_ahead(limit, timeout, wanted)):
            return []
        at = self._at
        messages: list[Message[V]] = [Message(record, None, at.source) for record in islice(at.records, limit)]
        at.take(len(messages))  # when all else is done: what is taken is delivered
        return messages

    def __iter__(self) -> Iterator[Message[V]]:
        at, records = self._at, self._at.records
        self._check()
        monotonic = self._clock.monotonic
        while not self._closed:
            if not records or self._interrupted or monotonic() >= at.fresh_until:
                try:
                    first = self._deliver(1, OWN, ITERATED)
                except (ReaderClosed, ConsumerClosed):
                    return  # by another thread, or a signal handler
                except Exception as error:
                    shorten(error)
                    raise
                if not first:
                    return
                yield first[0]
                continue
            record = records[0]
            message: Message[V] = Message(record, None, at.source)
            # No call from here to the yield, so that Ctrl-C cannot come between: the message would be lost, or come twice.
            at.last = record
            del records[0]
            yield message
