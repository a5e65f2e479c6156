"""The calls that a durable consumer is made of, and what operators do with subscriptions. One method a call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import uuid4

from oncelog.api.calls import as_request, check_generation, of_generation, parse, quoted, topic_path
from oncelog.api.plausible import check_page
from oncelog.api.ranges import RangeCalls
from oncelog.values.numbers import check_long, check_timeout
from oncelog.values.start import Start, start_position
from oncelog.wire.media import DEFAULT_NAMESPACE, JSON
from oncelog.wire.models import (
    Acknowledge,
    Acknowledged,
    OpenSubscription,
    ReceiveMessages,
    SeekSubscription,
    Subscription,
    SubscriptionOnTopic,
)
from oncelog.wire.requests import Polled

_WHAT = "a subscription"


class SubscriptionCalls(RangeCalls):
    """Subscriptions of topics; :class:`oncelog.Consumer` is what one wants."""

    async def open_subscription(
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
        wanted = as_request(OpenSubscription, _WHAT, name=name, nonce=uuid4().hex, start=start_position(start, inclusive))
        return parse(Subscription, await self._post(topic_path(namespace, topic) + "/subscriptions", wanted, idempotent=True))

    def subscriptions(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> AsyncIterator[Subscription]:
        """Every subscription of a topic, by name, fetched page by page."""
        return self._listed(list[Subscription], topic_path(namespace, topic) + "/subscriptions", lambda each: each.name)

    def all_subscriptions(self) -> AsyncIterator[SubscriptionOnTopic]:
        """The subscriptions of every topic on which this client has a right, topic by topic, fetched page by page."""
        return self._listed(
            list[SubscriptionOnTopic],
            "/v1/subscriptions",
            lambda each: f"{each.namespace}/{each.topic}/{each.name}",
            rising=False,
        )

    async def subscription(self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE) -> Subscription:
        """Show one subscription: its cursor, its lag, its epoch. Raises SubscriptionNotFound."""
        return parse(Subscription, await self._get(_path(namespace, topic, name)))

    async def receive(self, topic: str, name: str, asked: ReceiveMessages, namespace: str = DEFAULT_NAMESPACE) -> Polled:
        """Records of the next messages, and the position to go on from. Raises ConsumerFenced, SubscriptionNotFound."""
        polled = await self._page(
            _path(namespace, topic, name) + "/receive",
            lambda left_ms: json.dumps(asked.model_copy(update={"wait": left_ms}).to_wire()).encode(),
            JSON,
            asked.wait,
            asked.limit,
        )
        start = None if asked.after is None else bytes(asked.after)
        check_page(polled.messages, polled.position, start=start, limit=asked.limit)
        return polled

    async def acknowledge(
        self, topic: str, name: str, asked: Acknowledge, namespace: str = DEFAULT_NAMESPACE, *, within: float | None = None
    ) -> int:
        """Move the cursor, and tell where it stands, on disk.

        ``within``: seconds for all tries together, else the client's ``retry``.

        Raises ConsumerFenced, SubscriptionNotFound, OffsetOutOfRange, InvalidMessageId.
        """
        check_timeout(within, name="within")
        path = _path(namespace, topic, name) + "/ack"
        return parse(Acknowledged, await self._post(path, asked.to_wire(), idempotent=True, within=within)).cursor

    async def seek_subscription(
        self,
        topic: str,
        name: str,
        to: Start,
        *,
        inclusive: bool = False,
        epoch: int | None = None,
        generation: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Subscription:
        """Put the cursor anywhere, fencing whoever consumes; with ``epoch``, for the consumer of that one, who gets a new one.

        ``generation``: as of :meth:`delete_subscription`. Raises ConsumerFenced, SubscriptionNotFound; what
        :meth:`open_subscription` raises for a ``start``.
        """
        where = start_position(to, inclusive)
        check_generation(generation)
        if epoch is not None:
            check_long("epoch", epoch)
        wanted = as_request(SeekSubscription, _WHAT, to=where, nonce=uuid4().hex, epoch=epoch, generation=generation)
        return parse(Subscription, await self._post(_path(namespace, topic, name) + "/seek", wanted, idempotent=True))

    async def delete_subscription(
        self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE, *, generation: int | None = None
    ) -> None:
        """Forget the cursor and fence the consumer. Raises SubscriptionNotFound.

        ``generation``: only if its topic is of this one. Raises StaleMessageId: it was made anew, and its subscription stays.
        """
        await self._delete(_path(namespace, topic, name), of_generation(generation))


def _path(namespace: str, topic: str, name: str) -> str:
    return f"{topic_path(namespace, topic)}/subscriptions/{quoted(name)}"
