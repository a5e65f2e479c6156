"""What a reader of a topic in this process is given."""

from __future__ import annotations

from typing import Any, NamedTuple

from oncelog.wire.codec import decode_polled, encode_consume_response
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import ConsumeRequest, Polled
from oncelog.wire.transaction import Transaction
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.log.topic_log import TopicLog


class Delivered(NamedTuple):
    """A message, as a poll delivers it."""

    message_id: bytes
    offset: int
    payload: bytes


def decoded(page: Any) -> Polled:
    """A page as its client reads it."""
    return decode_polled(encode_consume_response(ONCELOG_AVRO, page.messages, page.last_id, count=page.delivered))


async def read_all(
    log: TopicLog, limit: int = 100, transaction: Transaction | None = None, isolation: str | None = None
) -> list[Delivered]:
    """Everything that polls deliver, page after page; each begins behind the one before it."""
    found, position = list[Delivered](), None
    while True:
        request = ConsumeRequest(position, inclusive=position is None, limit=limit, isolation=isolation)
        request.transaction = None if transaction is None else transaction.to_bytes()
        messages, last, *_ = decoded(await log.poll(request, AS_ONCELOG))
        found += [Delivered(each["id"], each["offset"], each["payload"]) for each in messages]
        if last is None:
            return found
        assert position is None or position < last, f"a poll after {position!r} answers {last!r}"
        position = last
