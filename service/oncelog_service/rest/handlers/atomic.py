"""Atomic commits over several topics: begin, stage, commit, abort; what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from oncelog.errors import InvalidRequest
from oncelog.wire.codec import decode_commit_request, decode_publish_request
from oncelog.wire.models import AtomicOutcome, BeginAtomic, GroupProducer
from oncelog.wire.names import check_atomic_id, check_group
from oncelog.wire.requests import CommitRequest
from oncelog_service.access.owners import may_touch
from oncelog_service.atomic.checks import MAX_CHUNK
from oncelog_service.rest.bodies import decoded, query_limit
from oncelog_service.rest.handlers.transactions import of_another
from oncelog_service.rest.routes import Call
from oncelog_service.storage.incarnation import raised


async def begin(call: Call, asked: BeginAtomic) -> AtomicOutcome:
    """Begin a transaction of a `group`, or with `of` a branch of another one. Idempotent by its `id`.

    It is aborted when it is not committed after `timeoutMs`.
    """
    return _told(call, await call.service.opening.atomic.begin(asked.id, asked.group, asked.timeout_ms, asked.of, call.principal))


async def stage(call: Call) -> None:
    """Put messages where no poll finds them, as chunk 0, 1, 2, … of what the transaction has for this topic.

    The same chunk again is stored once. Expectations and sequence ids are judged when the transaction is committed.
    """
    chunk = _chunk(call)
    namespace, topic = call.path["namespace"], call.path["topic"]
    _ = call.service.opening.atomic  # is it here?
    async with call.turn():
        request = await decoded(call, decode_publish_request, holds=True)
        call.principal.check_producer(namespace, topic, request.producer)
        atomic = call.service.opening.atomic
        call.count(request)
        await atomic.stage(call.path["transaction"], namespace, topic, chunk, request, call.principal, call.may_write)


async def commit(call: Call) -> AtomicOutcome:
    """Make messages appear on all topics or on none: what was staged under this id, `parts`, and other `branches`, in this order.

    Where nothing was begun, `group` begins it, so that one request may be a whole commit. `committed` is answered when the
    messages are there. It is idempotent: a repeat answers the same; another commit under the same id is refused. With
    `producer` and `sequenceId` it is deduplicated as a whole: then it answers `duplicate`, and `original`; with `?gaps=refuse` it
    is refused where it is not the number behind the newest one, and that came with the same word. Who asks must be allowed to
    write to every topic on which messages would appear, at that moment: where not, it stays in progress.
    """
    gaps = call.query.get("gaps", "allow")
    if gaps not in ("allow", "refuse"):
        raise InvalidRequest(f"gaps is allow or refuse, not {gaps[:50]!r}")
    request = await decoded(call, decode_commit_request)
    request.refuses_gaps = gaps == "refuse"
    _ = call.service.opening.atomic  # is it here?
    sizes: Counter[tuple[str, str]] = Counter()
    for part in request.parts:
        sizes[part.namespace, part.topic] += part.request.size
    if not sizes:
        return await _committed(call, request)
    async with call.turn(tuple(sizes.items())):
        return await _committed(call, request)


async def _committed(call: Call, request: CommitRequest) -> AtomicOutcome:
    for part in request.parts:
        call.principal.check_producer(part.namespace, part.topic, part.request.producer)
    atomic = call.service.opening.atomic
    call.count(*(part.request for part in request.parts))
    return _ended(call, await atomic.commit(call.path["transaction"], request, call.principal, call.may_write))


async def abort(call: Call) -> AtomicOutcome:
    """Drop everything that is staged; none of it will ever be seen. Idempotent."""
    with of_another(call):
        return _ended(call, await call.service.opening.atomic.abort(call.path["transaction"], call.principal))


async def free(call: Call) -> None:
    """Abort it if it is in progress, and forget what became of it: who comes next begins under the id as if for the first time.

    Its messages stay. A repeat of the commit that was made is another commit then.
    """
    await call.service.opening.atomic.free(call.path["transaction"])


async def show(call: Call) -> AtomicOutcome:
    """What became of a transaction: `in_progress`, `committed`, `duplicate` or `aborted`. What is answered is durable."""
    return _told(call, await call.service.opening.atomic.show(call.path["transaction"], call.principal))


async def list_(call: Call) -> Sequence[AtomicOutcome]:
    """Transactions that are in progress, oldest first, behind `after`, at most `limit`.

    Without `operate` those of the principal that asks.
    """
    group, after, limit = call.query.get("group"), call.query.get("after"), query_limit(call)
    if group is not None:
        check_group(group)
    if after is not None:
        check_atomic_id(after, "after: the id of a transaction")
    return [_told(call, each) for each in await call.service.opening.atomic.list(group, after, limit, call.principal)]


async def producer(call: Call) -> GroupProducer:
    """The newest commit under a producer's name: what the next sequence id must lie above."""
    return await call.service.opening.atomic.producers.show(*_producer(call), call.principal)


async def forget_producer(call: Call) -> None:
    """Forget sequence id and incarnation: then any is taken, also one that is committed already.

    With `incarnation` only while the newest commit is of that one: else `producer_fenced`, and nothing is forgotten.
    """
    await call.service.opening.atomic.producers.forget(*_producer(call), call.query.get("incarnation"), call.principal)


def _ended(call: Call, outcome: AtomicOutcome) -> AtomicOutcome:
    """That somebody has ended what another principal began is kept."""
    call.audited = not may_touch(outcome.owner, call.principal.name)
    call.subject = {"owner": outcome.owner}
    return _told(call, outcome)


def _told(call: Call, outcome: AtomicOutcome) -> AtomicOutcome:
    """With the generations of its topics as clients are told them."""
    incarnation = call.service.opening.topics.directory.incarnation
    if not incarnation.number:
        return outcome
    raised_ = [each.model_copy(update={"generation": raised(each.generation, incarnation)}) for each in outcome.topics]
    return outcome.model_copy(update={"topics": raised_})


def _chunk(call: Call) -> int:
    """The chunk's number in the address. Raises InvalidRequest."""
    text = call.path["chunk"]
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_CHUNK))):
        raise InvalidRequest(f"the number of a chunk is 0 to {MAX_CHUNK}, not {text[:50]!r}")
    return int(text)


def _producer(call: Call) -> tuple[str, str]:
    """Group and producer in the address."""
    return call.path["group"], call.path["producer"]
