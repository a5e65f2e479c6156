"""Publish and poll."""

from __future__ import annotations

from oncelog.wire.codec import (
    decode_consume_request,
    decode_publish_request,
    encode_consume_response,
    encode_publish_response,
)
from oncelog.wire.media import AVRO, essence
from oncelog_service.log.scan import AS_ONCELOG, AS_TMS
from oncelog_service.rest.routes import Answer, Call
from oncelog_service.storage.rows import message_id_of


async def publish(call: Call) -> Answer:
    """Store messages: all of the request that are new, contiguous and in order, or none.

    The answer comes when they are synced to disk. With a producer and sequence ids each message is judged alone; those that are
    already there are answered `duplicate` and not stored again. A receipt covers `count` messages in a row.
    """
    log = await call.service.topics.open(call.path["namespace"], call.path["topic"])
    media = essence(call.content_type)
    request = decode_publish_request(media, call.body)
    response = await log.publish(request)
    return Answer(encode_publish_response(media, response), media)


async def poll(call: Call) -> Answer:
    """Messages in order, from `startFrom` (a message id, a timestamp in ms, or null for the oldest) or `startOffset`.

    `limit` counts messages delivered; a page may be shorter, because it is bounded in bytes too. Paging exclusively after the
    last id, with any limit, delivers every message exactly once. `wait` (ms) holds an empty answer until something arrives.
    """
    log = await call.service.topics.open(call.path["namespace"], call.path["topic"])
    media = essence(call.content_type)
    request = decode_consume_request(media, call.body)
    page = await log.poll(request, AS_TMS if media == AVRO else AS_ONCELOG)
    position = None if page.last_row_id is None else message_id_of(page.last_row_id)
    return Answer(encode_consume_response(media, page.messages, position), media)
