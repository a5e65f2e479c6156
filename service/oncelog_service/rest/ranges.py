"""Settled ranges of offsets: where they end, and their messages column by column."""

from __future__ import annotations

import asyncio

from oncelog.errors import InvalidRequest
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import AskOffsets
from oncelog_service.log.ranges import Ranges, wait_for_more
from oncelog_service.rest.bodies import json_answer, query_int, read_model
from oncelog_service.rest.routes import Answer, Call

MAX_TOPICS = 1_000


async def offsets(call: Call) -> Answer:
    """For each topic where its log begins and up to where it is settled: below that nothing changes any more but by expiry.

    A transaction that is not decided ends the settled part before its first message. With `after`, the answer waits until one of
    the topics is settled beyond it, or `wait` (ms) is over. `timestamp`: also the offset of the first message published then or
    later. `maxBytes` with `after`: also behind which message that many bytes are full.
    """
    asked = read_model(call, AskOffsets)
    limits = call.service.settings.limits
    if asked.wait > limits.max_wait_ms:
        raise InvalidRequest(f"wait is 0 to {limits.max_wait_ms} ms, not {asked.wait}")
    if len(asked.topics) > MAX_TOPICS:
        raise InvalidRequest(f"at most {MAX_TOPICS} topics can be asked about at once, not {len(asked.topics)}")
    found = {topic: (await _ranges(call, topic), about) for topic, about in asked.topics.items()}
    await wait_for_more(found, asked.wait, call.service.clock)
    answers = await asyncio.gather(*(ranges.offsets(about) for ranges, about in found.values()))
    return json_answer({topic: answer.to_wire() for topic, answer in zip(found, answers, strict=True)})


async def columns(call: Call) -> Answer:
    """The messages with offsets from `first` to below `upto`, which must be settled, column by column; whoever asks again gets
    the same.

    Rolled back and expired messages are left out. The answer may end earlier: go on at its `next`. With `generation` it is
    refused when the topic was deleted and created anew meanwhile.
    """
    properties = call.query.get("properties", "false")
    if properties not in ("true", "false"):
        raise InvalidRequest(f"properties is true or false, not {properties[:50]!r}")
    ranges = await _ranges(call, call.path["topic"])
    body = await ranges.columns(
        query_int(call, "first"),
        query_int(call, "upto"),
        _optional_int(call, "generation"),
        _optional_int(call, "limit"),
        _optional_int(call, "maxBytes"),
        properties == "true",
    )
    return Answer(body, ONCELOG_AVRO)


async def _ranges(call: Call, topic: str) -> Ranges:
    return (await call.service.topics.open(call.path["namespace"], topic)).ranges


def _optional_int(call: Call, name: str) -> int | None:
    return query_int(call, name) if name in call.query else None
