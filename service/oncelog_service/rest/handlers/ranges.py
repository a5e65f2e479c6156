"""Stable ranges of offsets: where they end, and their messages column by column."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from oncelog.errors import InvalidRequest, NotServedHere
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import AskOffsets, TopicAsked, TopicOffsets
from oncelog_service.access.grants import Right
from oncelog_service.bounds.slices import slices
from oncelog_service.log.read.ranges import Ranges, offsets_of, wait_for_more
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bodies import json_in_slices, query_int, query_optional_int
from oncelog_service.rest.routes import Call

MAX_TOPICS = 1_000
_WAIT_MS = 2_000
"""The longest wait for another instance at a time."""


_CHECKED_AT_ONCE = 100


async def offsets(call: Call, asked: AskOffsets) -> Answer:
    """For each topic where its log begins and up to where it is stable: below that nothing changes any more but by expiry.

    A transaction that is not decided ends the stable part before its first message. With `after`, the answer waits until one of
    the topics is stable beyond it, or `wait` (ms) is over. `timestamp`: also the offset of the first message published then or
    later. `maxBytes` with `after`: also behind which message that many bytes are full.
    """
    wait = min(asked.wait, call.service.settings.max_wait_ms)
    if len(asked.topics) > MAX_TOPICS:
        raise InvalidRequest(f"at most {MAX_TOPICS} topics can be asked about at once, not {len(asked.topics)}")
    await _check(call, asked)
    found: dict[str, tuple[Ranges, TopicAsked]] = {}
    elsewhere: dict[str, dict[str, TopicAsked]] = {}
    for at, part in enumerate(slices(asked.topics.items(), _CHECKED_AT_ONCE)):
        if at:
            await asyncio.sleep(0)
        for topic, about in part:
            try:
                found[topic] = (await _ranges(call, topic), about)
            except NotServedHere as there:
                elsewhere.setdefault(there.url, {})[topic] = about
    if elsewhere and not found and len(elsewhere) == 1:
        raise NotServedHere(url=next(iter(elsewhere)))
    with call.service.waits.holding(len(call.body)) as may_wait:
        wait = wait if may_wait else 0
        if elsewhere:
            answer = await _everywhere(call, found, elsewhere, wait)
        else:
            await wait_for_more([*found.values()], wait, call.service.clock)
            with call.service.scans.place_of_list(call) as place:
                if len(found) > _CHECKED_AT_ONCE:
                    await place.take()
                answer = await _here(found)
    encoded = await json_in_slices(call, answer)
    await _check(call, asked)
    return encoded


async def _check(call: Call, asked: AskOffsets) -> None:
    """Raises NotAllowed unless who asks may, at this moment, read each of the topics."""
    call.still()
    if len(asked.topics) <= _CHECKED_AT_ONCE:
        for topic in asked.topics:
            call.check(Right.READ, topic)
        return
    async with call.service.shares.alone(call.standing.who):
        checked = None
        while call.principal.grants != checked:  # they may have changed while others had their turn
            checked = call.principal.grants
            for topics in slices(asked.topics, _CHECKED_AT_ONCE):
                for topic in topics:
                    call.check(Right.READ, topic)
                await asyncio.sleep(0)
                call.still()


async def _here(found: Mapping[str, tuple[Ranges, TopicAsked]]) -> dict[str, TopicOffsets]:
    return dict(zip(found, await offsets_of([*found.values()]), strict=True))


def _is_beyond(offsets: TopicOffsets, after: int | None) -> bool:
    return after is None or offsets.stable > after


async def _everywhere(
    call: Call, found: Mapping[str, tuple[Ranges, TopicAsked]], elsewhere: Mapping[str, dict[str, TopicAsked]], wait_ms: int
) -> dict[str, TopicOffsets]:
    """Wait here and at the other instances until one of them has more; then ask all once more, without waiting.

    A little at a time: another instance that is waited for in vain answers when its wait is over, and holds a thread until then.
    """

    async def ask(url: str, topics: dict[str, TopicAsked], wait: int) -> dict[str, TopicOffsets]:
        target = f"/v1/namespaces/{call.path['namespace']}/offsets"
        found = await call.ask(url, "POST", target, AskOffsets(topics=topics, wait=wait).to_wire())
        return {topic: TopicOffsets.model_validate(each) for topic, each in found.items()}

    async def wait_anywhere(wait: int) -> None:
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(ask(url, topics, wait)) for url, topics in elsewhere.items()]
        if found:
            waiting.append(asyncio.ensure_future(wait_for_more([*found.values()], wait, clock)))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        first = [each for each in waiting if each.done()]
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for each in first:
            each.result()

    clock = call.service.clock
    after = {topic: about.after for topic, (_, about) in found.items()}
    after |= {topic: about.after for topics in elsewhere.values() for topic, about in topics.items()}
    end = clock.monotonic() + wait_ms / 1000
    while True:
        left_ms = round((end - clock.monotonic()) * 1000)
        if left_ms > 0:
            await wait_anywhere(min(left_ms, _WAIT_MS))
        answers = await asyncio.gather(_here(found), *(ask(url, topics, 0) for url, topics in elsewhere.items()))
        together = {topic: each for answer in answers for topic, each in answer.items()}
        is_over = left_ms <= _WAIT_MS or call.service.draining
        if is_over or any(_is_beyond(each, after[topic]) for topic, each in together.items()):
            return together


async def columns(call: Call) -> Answer:
    """The messages with offsets from `first` to below `upto`, which must be stable, column by column; asked again, it answers
    the same.

    Rolled back and expired messages are left out. The answer may end earlier: go on at its `next`. With `generation` it is
    refused when the topic was deleted and created anew meanwhile; with `refuseExpired` where messages of the range have expired
    by the topic's ttl.
    """
    ranges = await _ranges(call, call.path["topic"])
    asked = (
        query_int(call, "first"),
        query_int(call, "upto"),
        query_optional_int(call, "generation"),
        query_optional_int(call, "limit"),
        query_optional_int(call, "maxBytes"),
        _optional_bool(call, "properties"),
        _optional_bool(call, "refuseExpired"),
    )
    with call.service.scans.place_of_columns() as place:
        await place.take()
        return Answer(await ranges.columns(*asked), ONCELOG_AVRO)


async def _ranges(call: Call, topic: str) -> Ranges:
    return (await call.service.opening.topics.logs.open(call.path["namespace"], topic)).ranges


def _optional_bool(call: Call, name: str) -> bool:
    value = call.query.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} is true or false, not {value[:50]!r}")
    return value == "true"
