"""Subscriptions: the cursors of consumers, which the service stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlencode

from oncelog.api.calls import topic_path
from oncelog.errors import NotServedHere, TopicDamaged, TopicNotFound
from oncelog.wire.isolation import COMMITTED, headers_of
from oncelog.wire.media import JSON, ONCELOG_AVRO, essence
from oncelog.wire.models import (
    Acknowledge,
    Acknowledged,
    OpenSubscription,
    ReceiveMessages,
    SeekSubscription,
    Subscription,
    SubscriptionOnTopic,
)
from oncelog.wire.names import check_subscription
from oncelog_service.access.grants import Right
from oncelog_service.log.read.subscriptions import Subscriptions
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bodies import query_limit, query_optional_int
from oncelog_service.rest.handlers.messages import ENCODINGS, page_answer
from oncelog_service.rest.routes import Call
from oncelog_service.topics.directory import TopicName, check_topic_name

_TOPICS_AT_ONCE = 8
"""Asked together for their subscriptions: those that nobody has used yet are recovered for it."""


async def _subscriptions(call: Call) -> Subscriptions:
    return (await call.log()).subscriptions


async def open_(call: Call, asked: OpenSubscription) -> Subscription:
    """Begin a new epoch of a subscription, which fences its consumer before, and answer its cursor.

    A subscription that is not there is made, and begins at `start`: at the oldest message, if that says nothing. Repeating an
    open with the same `nonce` answers the same epoch.
    """
    return await (await _subscriptions(call)).open(asked)


async def list_(call: Call) -> list[Subscription]:
    """Subscriptions sorted by name, behind `after`, at most `limit`, each with its cursor, its lag and its epoch."""
    limit = query_limit(call)
    subscriptions = await _subscriptions(call)
    names = subscriptions.names(call.query.get("after", ""), limit)
    return await subscriptions.show_all(names)


async def everywhere(call: Call) -> list[SubscriptionOnTopic]:
    """The subscriptions of all topics on which who asks has a right, topic by topic, behind `after`, at most `limit`.

    Also those of topics that other instances serve; topics that are damaged are left out. An empty page is the last.
    """
    limit = query_limit(call)
    behind, name = _behind(call.query["after"]) if "after" in call.query else (None, "")
    found: list[SubscriptionOnTopic] = []
    while len(found) < limit:
        topics = await call.service.opening.topics.directory.subscribed(behind, _TOPICS_AT_ONCE, including=bool(name))
        if not topics:
            break
        call.still()
        seen = [each for each in topics if call.principal.may(Right.DESCRIBE, *each)]
        asked = (_of_topic(call, each, name if each == behind else "", limit) for each in seen)
        found += [each for part in await asyncio.gather(*asked) for each in part]
        behind, name = topics[-1], ""
    call.still()
    return [each for each in found[:limit] if call.principal.may(Right.DESCRIBE, each.namespace, each.topic)]


def _behind(after: str) -> tuple[TopicName, str]:
    namespace, _, rest = after.partition("/")
    topic, _, name = rest.partition("/")
    check_topic_name(namespace, topic)
    check_subscription(name)
    return (namespace, topic), name


async def _of_topic(call: Call, topic: TopicName, after: str, limit: int) -> Sequence[SubscriptionOnTopic]:
    """Those of one topic, wherever it is served; none if it is gone by now, or damaged."""
    namespace, name = topic
    try:
        try:
            subscriptions = (await call.service.opening.topics.logs.open(namespace, name)).subscriptions
            shown = [each.to_wire() for each in await subscriptions.show_all(subscriptions.names(after, limit))]
        except NotServedHere as elsewhere:
            query = urlencode({"after": after, "limit": limit})
            shown = await call.ask(elsewhere.url, "GET", f"{topic_path(namespace, name)}/subscriptions?{query}")
    except (TopicNotFound, TopicDamaged):
        return []
    return [SubscriptionOnTopic.model_validate({**each, "namespace": namespace, "topic": name}) for each in shown]


async def get(call: Call) -> Subscription:
    """Cursor, lag and epoch."""
    return await (await _subscriptions(call)).show(call.path["subscription"])


async def receive(call: Call, asked: ReceiveMessages) -> Answer:
    """The next messages for the consumer of this `epoch`: behind `after`, the last one it was given, else from the cursor on.

    Only what is stable: messages of transactions once they are committed, and nothing behind one that is undecided. `wait` (ms)
    holds an empty answer until there is something. The answer is that of a poll: JSON, or Avro if the Accept header says so; the
    header `oncelog-held` says which undecided message an empty one ends at, `oncelog-more` that a bound of the service ended it.
    """
    log = await call.log()
    media = ONCELOG_AVRO if ONCELOG_AVRO in map(essence, call.accept.split(",")) else JSON
    with call.service.scans.place(call) as place, call.service.waits.holding(len(call.body)) as may_wait:
        asked = asked if may_wait else asked.model_copy(update={"wait": 0})
        page = await log.subscriptions.receive(call.path["subscription"], asked, ENCODINGS[media], place)
        answer = await page_answer(call, media, page, place, log.generation)
    return answer._replace(headers=headers_of(COMMITTED, page.held, page.cut_before is not None))


async def acknowledge(call: Call, asked: Acknowledge) -> Acknowledged:
    """Everything up to and including one message, named by `offset` (with the `generation`) or `messageId`, is dealt with.

    The cursor moves forward or not at all: an acknowledgement below it is answered with the cursor as it is.
    """
    return await (await _subscriptions(call)).acknowledge(call.path["subscription"], asked)


async def seek(call: Call, asked: SeekSubscription) -> Subscription:
    """Put the cursor anywhere, backwards too, and begin a new epoch: with `epoch`, that of the consumer that asks; without,
    the consumer is fenced. Repeated with the same `nonce` it moves nothing again."""
    call.audited = asked.epoch is None  # a consumer's own is no administration
    call.subject = {"to": asked.to.model_dump(by_alias=True, mode="json", exclude_defaults=True)}
    return await (await _subscriptions(call)).seek(call.path["subscription"], asked)


async def delete(call: Call) -> None:
    """Forget the cursor and fence the consumer. Opened again, the subscription is a new one.

    With a `generation` nothing is done to one of a topic that was made anew since it was looked at.
    """
    await (await _subscriptions(call)).delete(call.path["subscription"], query_optional_int(call, "generation"))
