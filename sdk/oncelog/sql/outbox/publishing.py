"""Rows of an outbox, brought to their topics under the numbers they were given.

Not through :class:`oncelog.Producer`, which goes on behind a message that is refused for what it is: here everything behind it
waits, or its number would be passed over and the row lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from oncelog.api.api import Api
from oncelog.api.plausible import check_names_all
from oncelog.api.retry import may_retry
from oncelog.errors import (
    InvalidRequest,
    InvalidResponse,
    OncelogError,
    OutboxBehind,
    OutboxBlocked,
    ProducerFenced,
    ProducerInTransaction,
    ProducerNotFound,
    RequestTooLarge,
    SequenceReused,
    Unauthorized,
)
from oncelog.producing.batching import MAX_BYTES, MAX_MESSAGES
from oncelog.producing.cutting import Bounds, Messages
from oncelog.sql.outbox.database import Row
from oncelog.sql.outbox.plan import Name
from oncelog.wire.requests import DUPLICATE

_CAN_BE_ONE_OF_MANY = (SequenceReused, InvalidRequest, RequestTooLarge)
"""Refusals of a request that one of its rows may have brought upon it: it is divided until that one is alone."""


class Published(NamedTuple):
    """The outcome of publishing rows of one topic."""

    rows: Sequence[Row]
    """On disk in their topic."""
    duplicates: int
    """Of these, how many were there already."""
    error: OncelogError | None
    """What the next one met."""


class Publishing:
    """Publishes under one producer's name, to many topics. For one thread; made anew whenever the outbox is claimed."""

    def __init__(self, client: Api, producer: str, before_request: Callable[[], None]) -> None:
        """``before_request``: whether this relay still may; raises if not."""
        self._client = client
        self._producer = producer
        self._before_request = before_request
        self._epochs: dict[Name, int] = {}

    def publish(self, name: Name, rows: Sequence[Row], next_number: int) -> Published:
        """Publishes rows of one topic, in their order, up to the first that is refused.

        One meets OutboxBehind where the topic has numbers of this producer that the database never gave, ``next_number`` and
        above. Raises ProducerFenced: another relay has opened it. Where it is the topic that was made anew, it is opened there.
        """
        done = duplicates = 0
        messages = Messages()
        messages.extend(*zip(*((row.payload, row.planned.number, row.key, row.properties, row.ttl) for row in rows), strict=True))
        parts = list(messages.cut(Bounds(MAX_MESSAGES, MAX_BYTES)))
        try:
            if name not in self._epochs:
                self._open(name, rows[0], next_number)
            while parts:
                part = parts[0]
                try:
                    duplicates += self._send(name, part)
                except _CAN_BE_ONE_OF_MANY:
                    if len(part) == 1:
                        raise
                    middle = len(part) // 2
                    parts[:1] = [part.part(0, middle), part.part(middle, len(part))]
                    continue
                done += len(part)
                del parts[0]
        except OncelogError as error:
            if isinstance(error, ProducerFenced) and error.generation is None:
                raise
            # By the next try the topic may be another one, or deduplication switched off; and this may have been stored.
            self._epochs.pop(name, None)
            return Published(rows[:done], duplicates, error)
        return Published(rows, duplicates, None)

    def check_not_behind(self, name: Name, next_number: int) -> None:
        """Asks a topic for its newest number. Raises OutboxBehind. It opens nothing, so that asking fences no other relay."""
        try:
            last = self._client.producer(name.topic, self._producer, name.namespace).last_persisted
        except ProducerNotFound:
            last = None
        self._compare(name, last, next_number)

    def _open(self, name: Name, first: Row, next_number: int) -> None:
        self.check_not_behind(name, next_number)
        if not self._client.stats(name.topic, name.namespace).deduplication:
            raise OutboxBlocked(
                f"deduplication is off for topic {name}: what is published twice would be there twice; switch it on",
                outbox=self._producer,
                topic=str(name),
                row=first.planned.row,
            )
        # Asked before it is opened: with an older state of the database, opening would fence the relay that is right. And judged
        # again behind that: what a fenced relay had under way is stored by then, or never.
        opened = self._client.open_producer(name.topic, self._producer, namespace=name.namespace)
        self._compare(name, opened.last_sequence_id, next_number)
        self._epochs[name] = opened.epoch

    def _compare(self, name: Name, last: int | None, next_number: int) -> None:
        if last is not None and last >= next_number:
            raise OutboxBehind(
                f"topic {name} has messages of producer {self._producer!r} up to sequence id {last}, but the outbox's database "
                f"has given no number above {next_number - 1}: it is an older state of itself (a restored backup, a replica that "
                f"lagged), it lost the table of its relays, or something else publishes as {self._producer!r}. Nothing was "
                "published. Delete the rows that are in their topics already, then `oncelog outbox renumber` (docs/outbox.md)",
                outbox=self._producer,
                topic=str(name),
                next_number=next_number,
                last_sequence_id=last,
            )

    def _send(self, name: Name, messages: Messages) -> int:
        """Sends one request; answers how many of its messages were there already."""
        self._before_request()
        request = messages.request(self._producer, self._epochs[name])
        runs = self._client.publish(name.topic, request, name.namespace)
        assert request.sequence_ids is not None  # each row has its number
        check_names_all(runs, request.sequence_ids)
        return sum(run.count for run in runs if run.status == DUPLICATE)


def concerns_all(error: OncelogError) -> bool:
    """Whether an error concerns the service or the outbox as a whole, so that other topics need not be tried now."""
    return not isinstance(error, ProducerInTransaction) and (
        may_retry(error, idempotent=True) or isinstance(error, Unauthorized | InvalidResponse | OutboxBehind)
    )
