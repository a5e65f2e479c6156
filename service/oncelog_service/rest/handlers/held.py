"""Shows what topics hold back under write pointers that are not decided, and lets an operator end those nobody here knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

from oncelog.errors import NotSupported, TransactionsUnavailable
from oncelog.wire.models import EndHeld, HeldMessages, HeldOnTopic, TransactionState
from oncelog_service.bounds.slices import slices
from oncelog_service.log.groups.held import held_messages
from oncelog_service.rest.bodies import query_limit
from oncelog_service.rest.handlers.transactions import pointer_of
from oncelog_service.rest.routes import HELD, Call

M = TypeVar("M", bound=HeldMessages)
T = TypeVar("T")
_MADE_AT_ONCE = 25


_TOPICS_AT_ONCE = 200
"""Of which most hold nothing back."""


async def on_topic(call: Call) -> list[HeldMessages]:
    """What the topic holds back: one entry for each write pointer, that of the oldest message first, at most `limit`.

    The first one is what its consumers, Spark, snapshots and retention stop at. `state` is what the transaction service says of
    it; null: it does not know this pointer, or cannot be asked now.
    """
    log = await call.log()
    return await _with_states(call, await _made(held_messages(log.dedup.fold.unsettled, query_limit(call))))


async def everywhere(call: Call) -> list[HeldOnTopic]:
    """What all topics that are open hold back, the oldest first, at most `limit`; also those that other instances serve.

    With `here=true` only of the instance that is asked.
    """
    limit = query_limit(call)
    found: list[HeldOnTopic] = []
    for at, part in enumerate(slices([*call.service.opening.topics.logs.opened.items()], _TOPICS_AT_ONCE)):
        if at:
            await asyncio.sleep(0)
        for (namespace, topic), log in part:
            if unsettled := log.dedup.fold.unsettled:
                held = await _made(held_messages(unsettled, limit))
                found += await _made(HeldOnTopic(namespace=namespace, topic=topic, **each.model_dump()) for each in held)
                if len(found) > 2 * limit:
                    found = _oldest(found, limit)
    answered = await _with_states(call, _oldest(found, limit))
    if call.query.get("here", "false") != "true":
        answered += await _elsewhere(call, limit)
    return _oldest(answered, limit)


def _oldest(found: list[HeldOnTopic], limit: int) -> list[HeldOnTopic]:
    return sorted(found, key=lambda each: (each.since_ms, each.write_pointer))[:limit]


async def end(call: Call, asked: EndHeld) -> None:
    """End a write pointer that our transaction service does not know on this topic: its messages count from now on, or are rolled
    back.

    Refused for one that it knows: that transaction is ended there, on all its topics.
    """
    pointer = pointer_of(call)
    call.note(asked)
    log = await call.log()
    await log.settling.end_foreign(pointer, asked.committed)


async def _with_states(call: Call, found: list[M]) -> list[M]:
    """With what the transaction service says of them; where it does not answer, what is held back is shown all the same."""
    states: dict[int, TransactionState] = {}
    with suppress(TransactionsUnavailable):
        if found:
            states = await call.service.opening.topics.transactions.states([each.write_pointer for each in found])
    return await _made(each.model_copy(update={"state": states.get(each.write_pointer)}) for each in found)


async def _made(each: Iterable[T]) -> list[T]:
    """Makes them, some at a time."""
    found: list[T] = []
    for part in slices(each, _MADE_AT_ONCE):
        if found:
            await asyncio.sleep(0)
        found += part
    return found


async def _elsewhere(call: Call, limit: int) -> list[HeldOnTopic]:
    try:
        membership = call.service.opening.membership
    except NotSupported:
        return []
    instances, _ = await membership.overview()
    urls = [each.url for each in instances if each.id != membership.id]
    return [each for part in await asyncio.gather(*(_ask(call, url, limit) for url in urls)) for each in part]


async def _ask(call: Call, url: str, limit: int) -> list[HeldOnTopic]:
    found = await call.ask(url, "GET", f"{HELD}?here=true&limit={limit}")
    return [HeldOnTopic.model_validate(each) for each in found]
