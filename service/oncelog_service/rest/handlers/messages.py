"""Publish, store, rollback and poll."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from oncelog.errors import InternalError, OncelogError, Overloaded, StorageUnavailable
from oncelog.wire.codec import (
    decode_consume_request,
    decode_plain,
    decode_publish_request,
    decode_rollback,
    encode_consume_response,
    encode_publish_response,
)
from oncelog.wire.isolation import IN_TRANSACTION, ISOLATION, UNCOMMITTED, headers_of
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO, essence
from oncelog.wire.requests import ConsumeRequest, Polled, PublishResponse
from oncelog_service.access.grants import Principal
from oncelog_service.bounds.turns import Sizes
from oncelog_service.log.append.step import Stored
from oncelog_service.log.read.inspection import Glance
from oncelog_service.log.read.pages import AS_JSON, AS_ONCELOG, AS_TMS, Page, noting_pointers
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import Place
from oncelog_service.rest import cdap
from oncelog_service.rest.answer import Answer, refusal
from oncelog_service.rest.bodies import AT_ONCE_BYTES, AT_ONCE_ITEMS, decoded, off_loop
from oncelog_service.rest.exchange import Answers, Exchange, Step
from oncelog_service.rest.handlers.cdap_polls import asks_for_everything, everything
from oncelog_service.rest.handlers.cdap_publishes import check_of_cdap, sizes_of
from oncelog_service.rest.routes import Call
from oncelog_service.service import Service
from oncelog_service.watch.watch import Watch

_log = logging.getLogger(__name__)

ENCODINGS = {AVRO: AS_TMS, ONCELOG_AVRO: AS_ONCELOG, JSON: AS_JSON}
"""How the messages of a page are encoded, by the media type of the answer."""


_JOINED_AT_ONCE = 10_000
_RECEIPTS_AT_ONCE = 500
"""Encoded on the event loop, in a millisecond: there is one for all messages of a request, but where its ids have gaps."""


async def page_answer(
    call: Call, media: str, page: Page, place: Place, generation: int, more: Sequence[Mapping[str, object]] | None = None
) -> Answer:
    """Messages in a media type; of more than a few in JSON, or very many, on a thread. ``more``: what else each says in JSON."""
    large = page.delivered > _JOINED_AT_ONCE or (media == JSON and sum(map(len, page.messages)) > AT_ONCE_BYTES)
    found = page.messages, page.last_id, more, said_of(page, generation), page.delivered
    return Answer(await off_loop(call, large, place.taken, encode_consume_response, media, *found), media)


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
        request = await decoded(call, decode_publish_request, holds=True)
        if call.service.settings.cdap_clients:
            check_of_cdap(call, request)
        may = partial(check_producer, call, request.producer if request.payloads else None)  # what is stored may be of any
        may()
        call.count(request)
        response = await log.publish(request, call.principal.whose(), may)
    if media == AVRO and request.write_pointer is None:
        return Answer(b"", media, headers=_quota_of(log))
    return await _published(call, media, response, log)


async def _published(call: Call, media: str, response: PublishResponse, log: TopicLog) -> Answer:
    """What was stored; of many receipts on a thread."""
    large = len(response.receipts) > _RECEIPTS_AT_ONCE
    return Answer(await off_loop(call, large, False, encode_publish_response, media, response), media, headers=_quota_of(log))


class PublishStep:
    """A publish whose topic is open, whose turn it is at once, and of which all is new, as nearly each is: judged and handed over
    in one step. Whatever has to wait goes the long way, from its beginning, and comes to the same step (TopicLog.step)."""

    __slots__ = ("_connection", "_exchange", "_log", "_path", "_principal", "_service", "_sizes", "_stored", "_watch")

    def __init__(
        self, service: Service, watch: Watch, path: dict[str, str], principal: Principal, exchange: Exchange, connection: Answers
    ) -> None:
        self._service = service
        self._watch = watch
        self._path = path
        self._principal = principal
        self._exchange = exchange
        self._connection = connection
        self._sizes: Sizes = ()
        """Of its turn; nothing once that has ended."""

    def begin(self, behind: Step | None = None) -> bool:
        """As :meth:`exchange.Step.begin`."""
        service, exchange, path = self._service, self._exchange, self._path
        head, headers = exchange.head, exchange.head.headers
        if headers.get(b"content-type") != _OWN or b"content-encoding" in headers or head.query or exchange.size > AT_ONCE_BYTES:
            return False
        if service.principal_quotas.are_limited or service.settings.cdap_clients:
            return False
        name, present = (path["namespace"], path["topic"]), service.present
        log = None if present is None else present.topics.logs.opened.get(name)
        if log is None or (behind is not None and not self._follows(behind, log)):
            return False
        request, sizes = decode_plain(exchange.body, AT_ONCE_ITEMS), ((name, exchange.size),)
        if request is None or not service.turns.begin_light(sizes):
            return False
        self._log, self._sizes = log, sizes
        try:
            self._principal.check_producer(*name, request.producer)
            log.check(request)
            stored = log.step(request, self._told)
            if isinstance(stored, Stored):
                self._stored = stored
                return True
        except StorageUnavailable:
            pass  # the topic may be served elsewhere by now
        except OncelogError as error:
            self._watch.refused(error, path, self._principal.owner or "")
            exchange.refused = error.with_traceback(None)
        except BaseException:
            service.turns.end_light(sizes)
            self._sizes = ()
            raise
        service.turns.end_light(sizes)
        return False

    def _follows(self, behind: Step, log: TopicLog) -> bool:
        """Whether what is handed over to this log now is on disk only if what the step ``behind`` has handed over is.

        What is handed over becomes durable in its order (group_commit.py): what is in one write as a whole or not at all, and
        behind a failed write nothing, until those who wait for it are told. But what stands on a lease that is lost is left out
        of a write alone, with whatever stands on the same one: that of the same log. One that is opened anew has another lease.
        """
        return isinstance(behind, PublishStep) and (log is behind._log or not behind._log.topic.writer.shared)

    def _told(self, error: OncelogError | None) -> None:
        """What was handed over is on disk, or is not."""
        try:
            answer = self._answer(error)
        except Exception:
            _log.exception("what was stored could not be told")
            answer = refusal(InternalError(), self._exchange.head.target)
        self._service.turns.end_light(self._sizes)
        self._connection.give(self._exchange, answer)

    def _answer(self, error: OncelogError | None) -> Answer:
        if error is None:
            return Answer(self._stored.encoded(), ONCELOG_AVRO, 200, _quota_of(self._log))
        self._watch.refused(error, self._path, self._principal.owner or "")
        self._service.traffic.problems[error.code] += 1
        return refusal(error, self._exchange.head.target)


_OWN = ONCELOG_AVRO.encode()
_NO_QUOTA: Mapping[str, str] = {}


def _quota_of(log: TopicLog) -> Mapping[str, str]:
    """What is left of the topic's quota, where it has one."""
    if not log.topic.quota.is_limited:
        return _NO_QUOTA
    return log.topic.quota.headers(log.topic.clock.monotonic())


async def store(call: Call) -> Answer:
    """Put messages into the Payload Table under a write pointer, unseen until a publish with this pointer and no messages.

    Repeats of a named producer are not stored again. The TMS media type gets an empty answer, the others receipts without ids.
    """
    await call.log()
    media = essence(call.content_type)
    async with call.turn(sizes_of(call)):
        log = await call.log()
        request = await decoded(call, decode_publish_request, holds=True)
        if call.service.settings.cdap_clients:
            check_of_cdap(call, request)
        may = partial(check_producer, call, request.producer)
        may()
        call.count(request)
        response = await log.store(request, call.principal.whose(), may)
    if media == AVRO:
        return Answer(b"", media, headers=_quota_of(log))
    return await _published(call, media, response, log)


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
    with call.service.scans.place(call) as place, call.service.waits.holding(len(call.body)) as may_wait:
        page = await log.poll(request if may_wait else replace(request, wait=None), encoding, by, place)
        if not may_wait and request.wait and not (page.delivered or page.undecided):
            raise Overloaded("nothing has come yet, and polls with large bodies hold as much as they may; try again")
        more = [_of_transaction(log, glance, each) for each in pointers] if glance is not None else None
        answer = await page_answer(call, media, page, place, log.generation, more)
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
