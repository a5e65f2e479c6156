"""Subscriptions: the cursors of consumers, which the service stores."""

from __future__ import annotations

from oncelog.wire.media import JSON, ONCELOG_AVRO, essence
from oncelog.wire.models import Acknowledge, OpenSubscription, ReceiveMessages, SeekSubscription
from oncelog_service.log.read.subscriptions import Subscriptions
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bodies import json_answer, query_limit, read_model
from oncelog_service.rest.handlers.messages import ENCODINGS, page_answer
from oncelog_service.rest.routes import Call


async def _subscriptions(call: Call) -> Subscriptions:
    return (await call.log()).subscriptions


async def open_(call: Call) -> Answer:
    """Begin a new epoch of a subscription, which fences its consumer before, and answer its cursor.

    A subscription that is not there is made, and begins at `start`: at the oldest message, if that says nothing. Repeating an
    open with the same `nonce` answers the same epoch.
    """
    asked = await read_model(call, OpenSubscription)
    return json_answer((await (await _subscriptions(call)).open(asked)).to_wire())


async def list_(call: Call) -> Answer:
    """Subscriptions sorted by name, behind `after`, at most `limit`, each with its cursor, its lag and its epoch."""
    limit = query_limit(call)
    subscriptions = await _subscriptions(call)
    names = subscriptions.names(call.query.get("after", ""), limit)
    return json_answer([shown.to_wire() for shown in await subscriptions.show_all(names)])


async def get(call: Call) -> Answer:
    """Cursor, lag and epoch."""
    subscriptions = await _subscriptions(call)
    return json_answer((await subscriptions.show(call.path["subscription"])).to_wire())


async def receive(call: Call) -> Answer:
    """The next messages for the consumer of this `epoch`: behind `after`, the last one it was given, else from the cursor on.

    Only what is stable: messages of transactions once they are committed, and nothing behind one that is undecided. `wait` (ms)
    holds an empty answer until there is something. The answer is that of a poll: JSON, or Avro if the Accept header says so.
    """
    asked = await read_model(call, ReceiveMessages)
    log = await call.log()
    media = ONCELOG_AVRO if ONCELOG_AVRO in map(essence, call.accept.split(",")) else JSON
    page = await log.subscriptions.receive(call.path["subscription"], asked, ENCODINGS[media])
    return await page_answer(media, page, log.row.generation)


async def acknowledge(call: Call) -> Answer:
    """Everything up to and including one message, named by `offset` (with the `generation`) or `messageId`, is dealt with.

    The cursor moves forward or not at all: an acknowledgement below it is answered with the cursor as it is.
    """
    asked = await read_model(call, Acknowledge)
    answer = await (await _subscriptions(call)).acknowledge(call.path["subscription"], asked)
    return json_answer(answer.to_wire())


async def seek(call: Call) -> Answer:
    """Put the cursor anywhere, backwards too, and begin a new epoch: with `epoch`, that of the consumer that asks; without,
    the consumer is fenced. Repeated with the same `nonce` it moves nothing again."""
    asked = await read_model(call, SeekSubscription)
    return json_answer((await (await _subscriptions(call)).seek(call.path["subscription"], asked)).to_wire())


async def delete(call: Call) -> Answer:
    """Forget the cursor and fence the consumer. Opened again, the subscription is a new one."""
    await (await _subscriptions(call)).delete(call.path["subscription"])
    return json_answer(None)
