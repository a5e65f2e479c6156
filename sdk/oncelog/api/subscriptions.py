"""The calls that a durable consumer is made of, and what operators do with subscriptions. One method a call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from oncelog.api.calls import decoded, parse, quoted, topic_path
from oncelog.api.plausible import check_names_rise, check_page
from oncelog.api.ranges import RangeCalls
from oncelog.errors import InvalidRequest
from oncelog.http.transport import MAX_ANSWER_BYTES
from oncelog.values.start import Start, place_of
from oncelog.wire.codec import decode_polled
from oncelog.wire.media import DEFAULT_NAMESPACE, JSON, ONCELOG_AVRO
from oncelog.wire.models import (
    Acknowledge,
    Acknowledged,
    OpenSubscription,
    ReceiveMessages,
    SeekSubscription,
    Subscription,
)
from oncelog.wire.requests import Polled

M = TypeVar("M")

_PAGE = 1_000
_SUBSCRIPTION = TypeAdapter(Subscription)
_SUBSCRIPTIONS: TypeAdapter[list[Subscription]] = TypeAdapter(list[Subscription])
_ACKNOWLEDGED = TypeAdapter(Acknowledged)


class SubscriptionCalls(RangeCalls):
    """Subscriptions of topics; :class:`oncelog.Consumer` is what one wants."""

    def open_subscription(
        self,
        topic: str,
        name: str,
        *,
        start: Start = "earliest",
        inclusive: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Subscription:
        """Begin a new epoch, fencing the consumer before; a subscription that is not there is made, and begins at ``start``.

        Raises TopicNotFound, InvalidRequest; OffsetOutOfRange, InvalidMessageId, StaleMessageId: there is no such ``start``.
        """
        # The nonce makes a repeated open the same open.
        asked = _checked(lambda: OpenSubscription(name=name, nonce=uuid4().hex, start=place_of(start, inclusive)))
        path = topic_path(namespace, topic) + "/subscriptions"
        return parse(_SUBSCRIPTION, self._post(path, asked.to_wire(), idempotent=True))

    def subscriptions(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> Iterator[Subscription]:
        """Every subscription of a topic, by name, fetched page by page."""
        path = topic_path(namespace, topic) + "/subscriptions"
        after = ""
        while page := parse(_SUBSCRIPTIONS, self._get(path, {"after": after, "limit": str(_PAGE)})):
            check_names_rise([each.name.encode() for each in page], after.encode() or None)
            yield from page
            after = page[-1].name

    def subscription(self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE) -> Subscription:
        """One subscription: its cursor, its lag, its epoch. Raises SubscriptionNotFound."""
        return parse(_SUBSCRIPTION, self._get(_path(namespace, topic, name)))

    def receive(self, topic: str, name: str, asked: ReceiveMessages, namespace: str = DEFAULT_NAMESPACE) -> Polled:
        """Records of the next messages, and the position to go on from. Raises ConsumerFenced, SubscriptionNotFound."""
        path = _path(namespace, topic, name) + "/receive"
        end = time.monotonic() + asked.wait / 1000

        def once() -> bytes:
            left = max(0.0, end - time.monotonic())
            data = json.dumps(asked.model_copy(update={"wait": int(left * 1000)}).to_wire()).encode()
            return self._transport.call(
                "POST", path, data, JSON, accept=ONCELOG_AVRO, timeout=self._timeout + left, most=MAX_ANSWER_BYTES
            )

        polled = decoded(lambda body: decode_polled(body, asked.limit), self._trying(once, idempotent=True))
        start = None if asked.after is None else bytes(asked.after)
        check_page(polled.messages, polled.position, start=start, limit=asked.limit)
        return polled

    def acknowledge(
        self, topic: str, name: str, asked: Acknowledge, namespace: str = DEFAULT_NAMESPACE, *, within: float | None = None
    ) -> int:
        """Where the cursor stands, on disk; ``within``: seconds for all tries together, else as the client was told.

        Raises ConsumerFenced, SubscriptionNotFound, OffsetOutOfRange, InvalidMessageId.
        """
        path = _path(namespace, topic, name) + "/ack"
        return parse(_ACKNOWLEDGED, self._post(path, asked.to_wire(), idempotent=True, within=within)).cursor

    def seek_subscription(
        self,
        topic: str,
        name: str,
        to: Start,
        *,
        inclusive: bool = False,
        epoch: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Subscription:
        """Put the cursor anywhere, fencing whoever consumes; with ``epoch``, for the consumer of that one, who gets a new one.

        Raises ConsumerFenced, SubscriptionNotFound; what :meth:`open_subscription` raises for a ``start``.
        """
        asked = _checked(lambda: SeekSubscription(to=place_of(to, inclusive), nonce=uuid4().hex, epoch=epoch))
        return parse(_SUBSCRIPTION, self._post(_path(namespace, topic, name) + "/seek", asked.to_wire(), idempotent=True))

    def delete_subscription(self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Forget the cursor and fence the consumer. Raises SubscriptionNotFound."""
        path = _path(namespace, topic, name)
        self._trying(lambda: self._transport.call("DELETE", path), idempotent=False)


def _path(namespace: str, topic: str, name: str) -> str:
    return f"{topic_path(namespace, topic)}/subscriptions/{quoted(name)}"


def _checked(make: Callable[[], M]) -> M:
    try:
        return make()
    except ValidationError as error:
        raise InvalidRequest(f"not a subscription: {error}") from error
