"""Polls of CDAP's own clients for everything: they know no limit but their own, and take what they are answered for all there is.

What fits a page is answered as ever. More comes in chunks, an array block of Avro for each page, as long as there is more of what
the log held when the first page was made.

The invariants:

* It is what pages that follow one another would be: each message up to that end once, in the log's order, but for what has
  expired or was trimmed by the time its page is made.
* Of a transaction that ends under way a later part never comes without the earlier ones. What is committed is read up to where
  the log was stable at the beginning; a reader's transaction takes for undecided what it took for it then, and the answer ends
  before that, but passes over what was rolled back; without either everything is read, decided or not.
* It ends with the array's end and the last chunk, or something has failed: then neither comes, and never a shorter answer.
* Each page is judged as a request of its own: who asks, and whether the topic is the same and is served here. It takes its place
  among the large pages, and others have a turn before it.
* One page is held for it, and none is made before that one is read (rest/protocol.py). A transaction that it is asked with is
  held as that of a poll that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from oncelog.errors import Overloaded
from oncelog.wire.avro_parts import encode_array
from oncelog.wire.media import AVRO
from oncelog.wire.requests import ConsumeRequest
from oncelog_service.log.read.pages import AS_TMS, Page
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.routes import Call

_EVERYTHING = 2**31 - 1
"""The limit of CDAP's clients that have none: Java's Integer.MAX_VALUE."""
_PAGE = AS_TMS._replace(max_messages=10_000, max_bytes=2**20)
"""Small: a quarter of the bound on what is not read is left when four clients do not read."""
_END = encode_array((), 0)[-1]
"""Of an array, after its blocks."""


def asks_for_everything(call: Call, media: str, request: ConsumeRequest) -> bool:
    """Tells whether a poll is to be answered without a bound of the service's."""
    serves = call.service.settings.cdap_clients and media == AVRO and call.takes_chunks
    return serves and request.limit in (None, _EVERYTHING)


async def everything(call: Call, log: TopicLog, request: ConsumeRequest, headers: Mapping[str, str]) -> Answer:
    """Answers the first page, and whatever follows it. Raises as a poll does, and Overloaded: too much is held for those who are
    answered so."""
    request = replace(request, limit=_EVERYTHING)
    blocks: list[bytes] = []
    page = await _page(call, log, request, blocks)
    if page.cut_before is None:
        return Answer(blocks.pop() + _END, AVRO, headers=headers)
    with call.service.waits.holding(len(call.body)) as may_hold:
        if not may_hold:
            raise Overloaded("polls with large transactions hold as much as they may; try again, or ask with a limit")
    return Answer(_following(call, request, page, blocks, log.generation), AVRO, headers=headers)


async def _following(
    call: Call, request: ConsumeRequest, page: Page, blocks: list[bytes], generation: int
) -> AsyncGenerator[bytes, None]:
    """``blocks``: what is to be sent next. It is given away there, and not held here while its client reads it."""
    upto = page.cut_before
    with call.service.waits.holding(len(call.body)):
        yield blocks.pop()
        while page.cut_before is not None:
            await asyncio.sleep(0)
            log = await call.log()
            request = replace(request, start_from=page.last_id, inclusive=False, generation=generation)
            page = await _page(call, log, request, blocks, upto)
            yield blocks.pop()
    yield _END


async def _page(call: Call, log: TopicLog, request: ConsumeRequest, blocks: list[bytes], upto: bytes | None = None) -> Page:
    """The next page, whose messages are in the block that it adds."""
    with call.service.scans.place() as place:
        page = await log.poll(request, _PAGE, call.principal.whose(), place, upto)
        call.principal = call.judged_again()
        blocks.append(b"".join(encode_array(page.messages, page.delivered)[:-1]))
        return page._replace(messages=[])
