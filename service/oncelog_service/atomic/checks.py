"""Checks requests of atomic commits before any state is looked at. Pure: a request in, an error or nothing out."""

from __future__ import annotations

from oncelog.errors import InvalidRequest, RequestTooLarge
from oncelog.wire.requests import MAX_CARRIED, TOPIC_WEIGHT, CommitRequest, Part, PublishRequest
from oncelog_dedup import MAX_SEQUENCE_ID
from oncelog_service.atomic.limits import AtomicLimits
from oncelog_service.log.checks import check_publish

MAX_CHUNK = 2**31 - 1
MAX_BRANCHES = 10_000
"""One for each process of the largest jobs; a commit holds all of them at once."""


def check_begin(
    id: str | None,  # noqa: A002  # the field's word
    timeout_ms: int | None,
    of: str | None,
    limits: AtomicLimits,
) -> None:
    """Raises InvalidRequest."""
    if of is not None and of == id:
        raise InvalidRequest(f"transaction {id} cannot be a branch of itself")
    if timeout_ms is not None and not 0 < timeout_ms <= limits.max_timeout_ms:
        raise InvalidRequest(f"timeoutMs is 1 to {limits.max_timeout_ms}, not {timeout_ms}")


def check_stage(chunk: int, request: PublishRequest, limits: AtomicLimits) -> None:
    """Raises InvalidRequest, InvalidMessageId or RequestTooLarge."""
    if not 0 <= chunk <= MAX_CHUNK:
        raise InvalidRequest(f"the number of a chunk is 0 to {MAX_CHUNK}, not {chunk}")
    _check_messages(request, limits)


def check_commit(id: str, request: CommitRequest, limits: AtomicLimits) -> None:  # noqa: A002  # the field's word
    """Raises InvalidRequest, InvalidMessageId or RequestTooLarge."""
    _check_numbered(request)
    _check_branches(id, request)
    messages = sum(len(part.request.payloads) for part in request.parts)
    if messages > limits.max_messages:
        most = limits.max_messages
        raise RequestTooLarge(f"{messages} messages in one request; {most} are the most", limit=most)
    most = max(MAX_CARRIED, limits.max_messages)
    if messages + TOPIC_WEIGHT * len(request.parts) > most:
        raise RequestTooLarge(
            f"{messages} messages for {len(request.parts)} topics in one request, where a topic counts as {TOPIC_WEIGHT}; "
            f"{most} are the most: stage some before",
            limit=most,
        )
    named: set[tuple[str, str]] = set()
    for part in request.parts:
        _check_part(part, limits)
        topic = (part.namespace, part.topic)
        if topic in named:
            raise InvalidRequest(f"two parts are for {part.namespace}/{part.topic}; a commit carries at most one for each topic")
        named.add(topic)


def _check_numbered(request: CommitRequest) -> None:
    producer, sequence_id = request.producer, request.sequence_id
    if (producer is None) != (sequence_id is None):
        raise InvalidRequest("producer and sequenceId go together: a commit has both or neither")
    if sequence_id is not None and not 0 <= sequence_id <= MAX_SEQUENCE_ID:
        raise InvalidRequest(f"a sequence id is 0 to {MAX_SEQUENCE_ID}, not {sequence_id}")
    if request.incarnation is not None and producer is None:
        raise InvalidRequest("an incarnation is that of a producer; name it in producer")


def _check_branches(id: str, request: CommitRequest) -> None:  # noqa: A002  # the field's word
    branches = request.branches
    if len(branches) > MAX_BRANCHES:
        raise RequestTooLarge(f"{len(branches)} branches in one commit; {MAX_BRANCHES} are the most", limit=MAX_BRANCHES)
    named: set[str] = set()
    for branch in branches:
        if branch == id:
            raise InvalidRequest(
                f"transaction {id} cannot be a branch of itself; what it has staged is committed without being named"
            )
        if branch in named:
            raise InvalidRequest(f"branch {branch} is named twice")
        named.add(branch)


def _check_part(part: Part, limits: AtomicLimits) -> None:
    try:
        _check_messages(part.request, limits)
    except InvalidRequest as error:
        raise type(error)(f"the part for {part.namespace}/{part.topic}: {error.detail}") from error


def _check_messages(request: PublishRequest, limits: AtomicLimits) -> None:
    if request.write_pointer is not None:
        raise InvalidRequest("a message is in an atomic commit or under a write pointer: transactionWritePointer must be null")
    if not request.payloads:
        raise InvalidRequest("messages is empty: there is nothing to commit")
    check_publish(request, limits.max_messages)
