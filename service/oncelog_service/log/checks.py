"""What a request must satisfy before the log looks at it. Pure: a request in, an error or nothing out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from operator import lt

from oncelog.errors import InvalidMessageId, InvalidRequest, RequestTooLarge
from oncelog.message_id import SIZE
from oncelog.wire.erasure import ERASED, check_mark
from oncelog.wire.isolation import COMMITTED, UNCOMMITTED
from oncelog.wire.models import Acknowledge, StartPosition
from oncelog.wire.requests import ConsumeRequest, PublishRequest
from oncelog_dedup import MAX_SEQUENCE_ID

MAX_TIMESTAMP = 2**63 - 1
"""Milliseconds, as many as fit 8 bytes: no message is as young."""


def check_publish(request: PublishRequest, max_messages: int) -> None:
    """Raises InvalidRequest, InvalidMessageId or RequestTooLarge."""
    if request.write_pointer is not None:
        check_write_pointer(request.write_pointer)
    if request.conditional:
        _check_expectations(request, max_messages)
    if not request.payloads:
        _check_publish_stored(request)
        return
    if len(request.payloads) > max_messages:
        raise RequestTooLarge(f"{len(request.payloads)} messages in one request; {max_messages} are the most", limit=max_messages)
    if request.producer is None:
        _check_unnamed(request)
    else:
        check_sequence_ids(request.sequence_ids)
    if request.ttls is not None and any(ttl is not None and ttl <= 0 for ttl in request.ttls):
        raise InvalidRequest("a ttl is a number of seconds greater than 0")
    for payload, properties in zip(request.payloads, request.properties or (), strict=False):
        if properties and ERASED in properties:
            check_mark(payload, properties)


def _check_unnamed(request: PublishRequest) -> None:
    """Without a producer sequence ids are those of a transaction. Raises InvalidRequest."""
    ids = request.sequence_ids
    if request.epoch is not None or (ids is not None and request.write_pointer is None):
        raise InvalidRequest(
            "sequenceIds and epoch belong to a producer; name it in producer. Without one, sequenceIds go with a "
            "transactionWritePointer"
        )
    if ids is not None:
        check_sequence_ids(ids)
        if ids[-1] - ids[0] != len(ids) - 1:
            raise InvalidRequest("sequenceIds without a producer rise by one from each message to the next")


def _check_expectations(request: PublishRequest, max_keys: int) -> None:
    """Whether they can be expectations at all. Raises InvalidRequest, InvalidMessageId or RequestTooLarge."""
    if request.expected_offset is not None and request.expected_offset < 0:
        raise InvalidRequest(f"expectedOffset is 0 or more, not {request.expected_offset}")
    last_id = request.expected_last_message_id
    if last_id is not None and len(last_id) != SIZE:
        raise InvalidMessageId(f"expectedLastMessageId has {SIZE} bytes, all of them 0 for no message yet, not {len(last_id)}")
    offsets = request.expected_key_offsets or {}
    if len(offsets) > max_keys:
        raise RequestTooLarge(f"{len(offsets)} keys in expectedKeyOffsets; {max_keys} are the most", limit=max_keys)
    for key, offset in offsets.items():
        if offset is not None and offset < 0:
            raise InvalidRequest(f"an offset in expectedKeyOffsets is 0 or more, or null for no message yet, not {offset}")
        if not key.isascii() and max(key) > "\u00ff":
            raise InvalidRequest("a key in expectedKeyOffsets is its bytes, each as one character U+0000 to U+00FF")


def _check_publish_stored(request: PublishRequest) -> None:
    """A publish without messages makes a stored group appear. Raises InvalidRequest."""
    if request.write_pointer is None:
        raise InvalidRequest(
            "messages is empty: there is nothing to publish, nor a write pointer whose stored messages to publish"
        )
    if request.producer is None and request.epoch is not None:
        raise InvalidRequest("sequenceIds and epoch belong to a producer; name it in producer")


def check_store(request: PublishRequest, max_messages: int) -> None:
    """Raises InvalidRequest or RequestTooLarge."""
    if request.write_pointer is None:
        raise InvalidRequest("messages are stored under a write pointer: transactionWritePointer is missing")
    if not request.payloads:
        raise InvalidRequest("messages is empty: there is nothing to store")
    if request.conditional:
        raise InvalidRequest("expectations are judged when messages get their offsets: they go with the publish, not with store")
    check_publish(request, max_messages)


def check_write_pointer(pointer: int) -> None:
    """Raises InvalidRequest: pointers that are not positive turned visible elsewhere when they were negated."""
    if pointer <= 0:
        raise InvalidRequest(f"a write pointer is greater than 0, not {pointer}")


def check_sequence_ids(sequence_ids: Sequence[int] | None) -> None:
    """Raises InvalidRequest unless they are there, in range and strictly rising."""
    if sequence_ids is None:
        raise InvalidRequest("a named producer numbers its messages: sequenceIds is missing")
    if sequence_ids[0] < 0 or sequence_ids[-1] > MAX_SEQUENCE_ID:
        raise InvalidRequest(f"sequence ids are 0 to {MAX_SEQUENCE_ID}")
    if isinstance(sequence_ids, range):  # sent as the first of ids that rise by one
        return
    if not all(map(lt, sequence_ids, islice(sequence_ids, 1, None))):
        before, behind = next(pair for pair in pairwise(sequence_ids) if pair[1] <= pair[0])
        raise InvalidRequest(f"sequenceIds must strictly increase inside a request: {behind} follows {before}")


def check_consume(request: ConsumeRequest) -> None:
    """Raises InvalidRequest."""
    if request.limit is not None and request.limit <= 0:
        raise InvalidRequest(f"limit is a number of messages greater than 0, not {request.limit}")
    if request.wait is not None and request.wait < 0:
        raise InvalidRequest(f"wait is 0 ms or more, not {request.wait}")
    if request.start_offset is not None:
        if request.start_from is not None:
            raise InvalidRequest("startFrom and startOffset exclude each other")
        if request.start_offset < 0:
            raise InvalidRequest(f"startOffset is 0 or more, not {request.start_offset}")
    if request.isolation not in (None, COMMITTED, UNCOMMITTED):
        raise InvalidRequest(f"isolation is {COMMITTED} or {UNCOMMITTED}, not {request.isolation[:50]!r}")
    if request.isolation is not None and request.transaction is not None:
        raise InvalidRequest("isolation and transaction exclude each other: a transaction says itself what it sees")
    if isinstance(request.start_from, int) and request.start_from < 0:
        raise InvalidRequest(f"startFrom as a timestamp is ms since 1970, 0 or more, not {request.start_from}")


def check_start(place: StartPosition) -> None:
    """Raises InvalidRequest unless it is one place, and can be one."""
    if sum(each is not None for each in (place.at, place.offset, place.message_id, place.timestamp)) != 1:
        raise InvalidRequest("a place is exactly one of at, offset, messageId and timestamp")
    if place.inclusive and place.message_id is None:
        raise InvalidRequest("inclusive goes with messageId; an offset or a time includes the message there")
    if place.timestamp is not None and place.timestamp > MAX_TIMESTAMP:
        raise InvalidRequest(f"timestamp is ms since 1970, 0 to {MAX_TIMESTAMP}, not {place.timestamp}")


def check_acknowledge(asked: Acknowledge) -> None:
    """Raises InvalidRequest unless it names one message."""
    if (asked.offset is None) == (asked.message_id is None):
        raise InvalidRequest("what is acknowledged is named by its offset or by its messageId, one of them")
    if asked.offset is not None and asked.generation is None:
        raise InvalidRequest("an offset is one of a generation of the topic: generation is missing")


def first_gap(expected: int | None, sequence_ids: Sequence[int]) -> tuple[int, int] | None:
    """(expected, received) of the first sequence id that leaves one out; ``expected`` None takes any beginning."""
    for sequence_id in sequence_ids:
        if expected is not None and sequence_id != expected:
            return expected, sequence_id
        expected = sequence_id + 1
    return None
