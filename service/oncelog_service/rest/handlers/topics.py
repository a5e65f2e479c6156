"""Topics and namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from oncelog.message_id import MessageId
from oncelog.wire.models import ErasedMessage, EraseMessage, ListedTopic, NamespacePolicies, Topic, TopicStats, Trimmed, TrimTopic
from oncelog.wire.names import check_namespace
from oncelog_service.access.grants import Right
from oncelog_service.log.groups.held import count_held
from oncelog_service.properties import told_properties
from oncelog_service.rest import cdap
from oncelog_service.rest.bodies import query_limit, query_optional_int, query_texts, read_json
from oncelog_service.rest.routes import Call

P = ParamSpec("P")
R = TypeVar("R")

_LOOKED_AT = 500
"""Topics at a time, of which who asks may know few."""


def _name(call: Call) -> tuple[str, str]:
    return call.path["namespace"], call.path["topic"]


async def create(call: Call) -> None:
    """The body is a JSON object of properties; empty is fine. Names: `[A-Za-z0-9_]+` / `[A-Za-z0-9_.-]+`."""
    asked = await read_json(call, "topic's properties")
    await call.service.opening.topics.changes.create(*_name(call), asked)
    call.subject = {"properties": told_properties(asked)}


async def update(call: Call) -> None:
    """The body replaces all properties.

    With `expected`, a JSON object of all of them as a GET has shown them, only if they are still that: two who change what both
    have seen do not undo each other's change unseen.
    """
    asked = await read_json(call, "topic's properties")
    await call.service.opening.topics.changes.update(*_name(call), asked, query_texts(call, "expected"))
    call.subject = {"properties": told_properties(asked)}


async def get(call: Call) -> Topic | dict[str, str]:
    """Name and properties; the values are strings.

    Where CDAP's clients are served (`cdap_clients`), the properties alone, with a `generation` that counts from 1, unless the
    Accept header names `application/json`.
    """
    if call.service.settings.cdap_clients and not cdap.names_json(call.accept):
        return cdap.shown((await call.service.opening.topics.directory.get(*_name(call), counted=True)).properties)
    return await call.service.opening.topics.directory.get(*_name(call))


async def list_(call: Call) -> list[str]:
    """The names, sorted, of those that who asks has a right on."""
    namespace = call.path["namespace"]
    names = await _alone(call, call.service.opening.topics.directory.names, namespace)
    return await call.seen(names, lambda who, name: who.may(Right.DESCRIBE, namespace, name))


async def delete(call: Call) -> None:
    """Topic, messages and producers are gone at once. Created again, the topic is empty, of the next generation.

    With a `generation` a topic that was made anew since it was looked at stays.
    """
    await call.service.opening.topics.changes.delete(*_name(call), query_optional_int(call, "generation"))


async def trim(call: Call, asked: TrimTopic) -> Trimmed:
    """Everything before `beforeOffset`, or published before `beforeTime` (ms), is gone for readers at once, and for good.

    Its rows leave the disk by and by. Offsets do not change, and no sequence id is forgotten. An offset beyond what is stable is
    refused; a time reaches as far as that. Idempotent; `earliestOffset` is where the log begins now.
    """
    call.note(asked)
    return await (await call.log()).removal.trim(asked)


async def erase(call: Call, asked: EraseMessage) -> ErasedMessage:
    """The payload and the properties of one message, named by `offset` or `messageId`, are gone, also from the store's files.

    Its place stays: readers are given it with an empty payload and the property `oncelog.erased`. Idempotent; `erasedMs` is when
    it was erased first.
    """
    call.note(asked)
    return await (await call.log()).removal.erase(asked)


async def stats(call: Call) -> TopicStats:
    """Where the log begins and ends, and what a restart would replay."""
    log = await call.log()
    last_id = log.position.last_message_id
    unsettled, limit = log.dedup.fold.unsettled, log.topic.rules.max_bytes
    return TopicStats(
        name=call.path["topic"],
        generation=log.generation,
        earliest_offset=log.begin_offset,
        upcoming_offset=log.position.upcoming_offset,
        last_message_id=None if last_id is None else MessageId.from_bytes(last_id),
        deduplication=log.topic.rules.deduplicates,
        producers=len(log.dedup.fold),
        snapshot_offset=log.snapshots.newest,
        replayed=log.replayed,
        cached_messages=log.topic.cache.messages,
        bytes=log.topic.size.present,
        max_bytes=None if limit is None else limit.bytes,
        held_messages=count_held(unsettled),
        held_write_pointers=len(unsettled),
    )


async def list_stats(call: Call) -> list[ListedTopic]:
    """What is known of each topic without opening it, sorted by name: of those that who asks has a right on.

    Of one that is open everything; of another where its log begins and ends, if the store lies in files. A page has fewer
    than `limit` entries only if it is the last.
    """
    namespace = call.path["namespace"]
    listing, found = call.service.opening.topics.listing, list[ListedTopic]()
    after, limit = call.query.get("after", ""), query_limit(call)
    while len(found) < limit:
        there = await _alone(call, listing.rows_behind, namespace, after, max(limit, _LOOKED_AT))
        if not there:
            break
        seen = await call.seen(there, lambda who, row: who.may(Right.DESCRIBE, namespace, row[0]))
        found += await listing.describe(namespace, seen[: limit - len(found)])
        after = there[-1][0]
    return found


async def _alone(call: Call, read: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Reads rows of many topics, one request at a time."""
    with call.service.scans.place_of_list(call) as place:
        await place.take()
        return await read(*args, **kwargs)


async def namespaces(call: Call) -> list[str]:
    """Every namespace that has a topic or a policy, sorted, of those in which who asks may have a right."""
    topics = call.service.opening.topics
    there = await _alone(call, topics.directory.namespaces) | topics.policies.namespaces
    return await call.seen(sorted(there), lambda who, namespace: who.knows(namespace))


async def get_policies(call: Call) -> NamespacePolicies:
    """What holds for the namespace's topics that do not say otherwise; null inherits the service's setting."""
    namespace = call.path["namespace"]
    check_namespace(namespace)
    return call.service.opening.topics.policies.of(namespace)


async def set_policies(call: Call, policies: NamespacePolicies) -> None:
    """The body replaces the policies; they hold here at once, and at other instances in a moment."""
    call.note(policies)
    await call.service.opening.topics.policies.set(call.path["namespace"], policies)
