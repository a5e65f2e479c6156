"""Publish, store, rollback and poll."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from oncelog.errors import Overloaded
from oncelog.wire.codec import (
    decode_consume_request,
    decode_publish_request,
    decode_rollback,
    encode_consume_response,
    encode_publish_response,
)
from oncelog.wire.isolation import IN_TRANSACTION, ISOLATION, UNCOMMITTED, headers_of
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO, essence
from oncelog.wire.requests import ConsumeRequest, Polled
from oncelog_service.log.read.inspection import Glance
from oncelog_service.log.read.pages import AS_JSON, AS_ONCELOG, AS_TMS, Page, noting_pointers
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.rest import cdap
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bodies import AT_ONCE_BYTES, decoded, off_loop
from oncelog_service.rest.handlers.cdap_polls import asks_for_everything, everything
from oncelog_service.rest.handlers.cdap_publishes import check_of_cdap, sizes_of
from oncelog_service.rest.routes import Call

ENCODINGS = {AVRO: AS_TMS, ONCELOG_AVRO: AS_ONCELOG, JSON: AS_JSON}
"""How the messages of a page are encoded, by the media type of the answer."""


_JOINED_AT_ONCE = 10_000


async def page_answer(media: str, page: Page, generation: int, more: Sequence[Mapping[str, object]] | None = None) -> Answer:
    """Messages in a media type; of more than a few in JSON, or very many, on a thread. ``more``: what else each says in JSON."""
    large = page.delivered > _JOINED_AT_ONCE or (media == JSON and sum(map(len, page.messages)) > AT_ONCE_BYTES)
    found = page.messages, page.last_id, more, said_of(page, generation), page.delivered
    return Answer(await off_loop(large, encode_consume_response, media, *found), media)


async def publish(call: Call) -> Answer:
    """Store messages: all of the request that are new, contiguous and in order, or none.

    The answer comes when they are synced to disk. With a producer and sequence ids each message is judged alone; those that are
    already there are answered `duplicate` and not stored again. A receipt covers `count` messages in a row. With a write pointer
    the messages belong to its transaction, and the answer is the rollback information; without messages, what was stored under
    the pointer appears as one group.

    Expectations are judged where offsets are assigned: `expectedOffset` of the first message, `expectedLastMessageId` (20 bytes
    that are 0: none was ever published) and `expectedKeyOffsets`, per key the offset of its newest message or null for none. If
    one does not hold, nothing is stored: `offset_mismatch`. Repeats of a named producer are answered `duplicate` first.

    The TMS media type gets an empty answer where there is no write pointer: nothing can be rolled back.
    """
    await call.log()
    media = essence(call.content_type)
    async with call.turn(sizes_of(call)):
        log = await call.log()  # by now it may be another one, or none
        request = await decoded(call, decode_publish_request)
        if call.service.settings.cdap_clients:
            check_of_cdap(call, request)
        may = partial(check_producer, call, request.producer if request.payloads else None)  # what is stored may be of any
        may()
        call.count(request)
        response = await log.publish(request, call.principal.whose(), may)
    body = b"" if media == AVRO and request.write_pointer is None else encode_publish_response(media, response)
    return Answer(body, media, headers=_quota_of(log))


def _quota_of(log: TopicLog) -> Mapping[str, str]:
    """What is left of the topic's quota, where it has one."""
    return log.topic.quota.headers(log.topic.clock.monotonic())


async def store(call: Call) -> Answer:
    """Put messages into the Payload Table under a write pointer, unseen until a publish with this pointer and no messages.

    Repeats of a named producer are not stored again. The TMS media type gets an empty answer, the others receipts without ids.
    """
    await call.log()
    media = essence(call.content_type)
    async with call.turn(sizes_of(call)):
        log = await call.log()
        request = await decoded(call, decode_publish_request)
        if call.service.settings.cdap_clients:
            check_of_cdap(call, request)
        may = partial(check_producer, call, request.producer)
        may()
        call.count(request)
        response = await log.store(request, call.principal.whose(), may)
    body = b"" if media == AVRO else encode_publish_response(media, response)
    return Answer(body, media, headers=_quota_of(log))


async def rollback(call: Call) -> None:
    """Roll back what a publish stored. The body is that publish's answer, sent back as it came. Idempotent."""
    check_producer(call, None)  # what it names may be of any producer
    log = await call.log()
    details = await decoded(call, decode_rollback)
    check_producer(call, None)
    await log.roll_back(details, call.principal.whose())


async def poll(call: Call) -> Answer:
    """Messages in order, from `startFrom` (a message id, a timestamp in ms, or null for the oldest) or `startOffset`.

    `limit` counts messages delivered; a page may be shorter, because it is bounded in bytes too. Paging exclusively after the
    last id, with any limit, delivers every message exactly once. `wait` (ms) holds an empty answer until something arrives.
    `generation` refuses (`stale_message_id`) a topic that was deleted and made anew since the start was found; `refuseExpired`
    refuses (`messages_expired`) a start behind which messages have expired by the topic's ttl, and says which.
    With a `transaction` (Thrift bytes) the answer holds what it sees, and ends before the first message that is undecided for it;
    without one, everything in the log, or with `?isolation=committed` what is committed, up to the first message that is not
    decided. The header `oncelog-isolation` says which of these it was: `transaction`, `uncommitted` or `committed`; an empty
    answer that ends at an undecided message says in `oncelog-held` which that is. The header `oncelog-more: true` stands on a
    page that a bound of the service ended before the log did, and not the `limit` that was asked for. In JSON each message of a
    transaction says its `writePointer` and its `state`.
    To wait with a large transaction is refused (503 `overloaded`) where many do.

    Where CDAP's own clients are served, a poll in `avro/binary` without a `limit`, or with 2147483647, is answered everything
    that the log holds when the answer begins: what is more than a page comes in chunks, and breaks off where something fails.
    """
    log = await call.log()
    media = essence(call.content_type)
    request = replace(await decoded(call, decode_consume_request), isolation=call.query.get(ISOLATION))
    if call.service.settings.cdap_clients and media == AVRO:
        request = cdap.from_moment(log, request)
    if asks_for_everything(call, media, request):
        return await everything(call, log, request, headers_of(_isolation_of(request)))
    by = call.principal.whose()
    pointers: list[tuple[int, int] | None] = []
    glance = log.inspection.glance() if media == JSON else None
    encoding = ENCODINGS[media] if glance is None else noting_pointers(AS_JSON, pointers)
    with call.service.scans.place() as place, call.service.waits.holding(len(call.body)) as may_wait:
        page = await log.poll(request if may_wait else replace(request, wait=None), encoding, by, place)
        if not may_wait and request.wait and not (page.delivered or page.undecided):
            raise Overloaded("nothing has come yet, and polls with large bodies hold as much as they may; try again")
        more = [_of_transaction(log, glance, each) for each in pointers] if glance is not None else None
        answer = await page_answer(media, page, log.generation, more)
    return answer._replace(headers=headers_of(_isolation_of(request), page.held, page.cut_before is not None))


def _isolation_of(request: ConsumeRequest) -> str:
    return IN_TRANSACTION if request.transaction is not None else request.isolation or UNCOMMITTED


def check_producer(call: Call, name: str | None) -> None:
    """Raises NotAllowed, Unauthorized unless who asks may publish to the topic in the address under this name, at this moment."""
    call.still()
    call.principal.check_producer(call.path["namespace"], call.path["topic"], name)


def _of_transaction(log: TopicLog, glance: Glance, pointer: tuple[int, int] | None) -> Mapping[str, object]:
    """What a message in JSON says of its transaction, if it is of one."""
    if pointer is None:
        return {}
    return {"writePointer": {"long": abs(pointer[0])}, "state": {"string": log.inspection.row_state(glance, *pointer)}}


def said_of(page: Page, generation: int) -> Polled:
    """What an answer says beside its messages."""
    now_ms, ttl_ms = (None, None) if page.lives is None else page.lives
    return Polled([], None, generation, page.upcoming, now_ms, ttl_ms)
