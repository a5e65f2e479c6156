"""Named producers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from oncelog.errors import ProducerNotFound
from oncelog.wire.models import OpenedProducer, OpenProducer, Producer, Why
from oncelog_service.access.grants import Right
from oncelog_service.bounds.slices import slices
from oncelog_service.rest.bodies import query_int, query_limit, query_optional_int
from oncelog_service.rest.handlers.messages import check_producer
from oncelog_service.rest.routes import Call

_SHOWN_AT_ONCE = 50


async def open_(call: Call, asked: OpenProducer) -> OpenedProducer:
    """Begin a new incarnation of a producer, which fences the older ones, and answer how far it has come.

    Repeating an open with the same `nonce` answers the same epoch. Without a `name` a globally unique one is assigned, which ends
    when it is deleted under its `epoch`, or was not used for long; repeating that assigns another one, and the first ends unused.
    """
    check_producer(call, asked.name)
    log = await call.log()
    check_producer(call, asked.name)
    return await log.producers.open(asked.name, asked.nonce, asked.gaps)


async def list_(call: Call) -> list[Producer]:
    """Producers sorted by name, behind `after`, at most `limit`."""
    limit = query_limit(call)
    log = await call.log()
    names = await log.producers.names(call.query.get("after", ""), limit)
    shown: list[Producer] = []
    for at, part in enumerate(slices(names, _SHOWN_AT_ONCE)):
        if at:
            await asyncio.sleep(0)
        for name in part:
            with suppress(ProducerNotFound):  # forgotten while the names were sorted, or others were shown
                shown.append(log.producers.show(name))
    return shown


async def get(call: Call) -> Producer:
    """Epoch, last pushed and last persisted sequence id, as the live maps have them."""
    log = await call.log()
    return await log.producers.shown(call.path["producer"])


async def delete(call: Call) -> None:
    """Forget the producer's sequence ids and fence its running incarnation. Its messages stay.

    With the `epoch` of its newest incarnation: the name, which the service assigned, ends; nothing is stored under it any more.
    With a `generation` nothing is done to one of a topic that was made anew since it was looked at.
    """
    name = call.path["producer"]
    call.audited = "epoch" not in call.query  # else its client has done with it
    _check_end(call, name)
    log = await call.log()
    _check_end(call, name)
    log.topic.check_generation(query_optional_int(call, "generation"))
    if "epoch" in call.query:
        await log.producers.end(name, query_int(call, "epoch"))
    else:
        await log.producers.forget(name)


def _check_end(call: Call, name: str) -> None:
    """Raises NotAllowed unless who asks may have the name end, or be forgotten."""
    if "epoch" in call.query:
        check_producer(call, name)
    else:
        call.check(Right.MANAGE, call.path["topic"])


async def why(call: Call) -> Why:
    """Why a message with this sequence id was or would be dropped, and where the original is."""
    sequence_id = query_int(call, "sequenceId")
    log = await call.log()
    return await log.producers.why(call.path["producer"], sequence_id, log.topic.rules.deduplicates)
