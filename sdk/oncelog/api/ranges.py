"""The calls that readers of whole ranges are made of: which offsets are stable, and their messages column by column."""

from __future__ import annotations

import json
from collections.abc import Mapping

from oncelog.api.atomic import AtomicCalls
from oncelog.api.calls import as_request, check_generation, decoded, parse, quoted, topic_path
from oncelog.api.plausible import check_columns
from oncelog.http.transport import MAX_ANSWER_BYTES, MAX_JSON_BYTES
from oncelog.values.numbers import MAX_LONG, check_long, check_seconds
from oncelog.wire.columns import MessageColumns, decode_message_columns
from oncelog.wire.media import DEFAULT_NAMESPACE, JSON
from oncelog.wire.models import AskOffsets, InspectedGroup, InspectedPayload, InspectedRow, TopicAsked, TopicOffsets


class RangeCalls(AtomicCalls):
    """Ranges of offsets that hold the same messages whenever they are read."""

    async def offsets(
        self, topics: Mapping[str, TopicAsked], namespace: str = DEFAULT_NAMESPACE, *, wait: float = 0
    ) -> dict[str, TopicOffsets]:
        """Tell where the log of each topic begins, and up to where it is stable.

        Answers at once when a topic is stable beyond its ``after``; else after ``wait`` seconds at the latest. Raises
        TopicNotFound, InvalidRequest.
        """
        check_seconds("wait", wait)
        path, asked = f"/v1/namespaces/{quoted(namespace)}/offsets", dict(topics)
        served = next((topic_path(namespace, topic) for topic in asked), None)

        async def once(held: float) -> dict[str, TopicOffsets]:
            wanted = as_request(AskOffsets, "a question about offsets", topics=asked, wait=round(held * 1000))
            body = json.dumps(wanted).encode()
            waits = self._waits(held, served)
            answer = await self._transport.ask("POST", path, body, JSON, None, waits, None, MAX_JSON_BYTES)
            return parse(dict[str, TopicOffsets], answer)

        def is_nothing(found: dict[str, TopicOffsets]) -> bool:
            each = [(found.get(topic), about.after) for topic, about in asked.items()]
            return not any(known is None or after is None or known.stable > after for known, after in each)

        return await self._held(wait, once, is_nothing)

    async def read_columns(
        self,
        topic: str,
        first: int,
        upto: int,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        generation: int | None = None,
        limit: int | None = None,
        max_bytes: int | None = None,
        properties: bool = False,
        refuse_expired: bool = False,
    ) -> MessageColumns:
        """The stable messages with offsets from ``first`` to below ``upto``, or the first of them: go on at ``next``.

        ``limit``, ``max_bytes``: of one answer, at most what the service allows; ``properties``: whether to bring them;
        ``refuse_expired``: whether messages of the range that have expired by the topic's ttl are an error, or left out.

        Raises:
            OffsetOutOfRange: ``upto`` is not stable yet, or ``first`` lies before the oldest message.
            StaleMessageId: the topic is not of this ``generation`` any more. MessagesExpired: with ``refuse_expired``.
            TopicNotFound, TopicDamaged, InvalidRequest.
        """
        check_long("first", first)
        check_long("upto", upto)
        check_generation(generation)
        for name, most in (("limit", limit), ("max_bytes", max_bytes)):
            if most is not None:
                check_long(name, most, 1)
        given = {"first": first, "upto": upto, "generation": generation, "limit": limit, "maxBytes": max_bytes}
        params = {name: str(value) for name, value in given.items() if value is not None}
        params |= {name: "true" for name, wanted in (("properties", properties), ("refuseExpired", refuse_expired)) if wanted}
        columns = decoded(
            decode_message_columns, await self._get(f"{topic_path(namespace, topic)}/columns", params, MAX_ANSWER_BYTES)
        )
        check_columns(columns, first, upto, limit)
        return columns

    # --- the tables of a topic

    async def inspect_rows(
        self, topic: str, first: int = 0, limit: int = 100, namespace: str = DEFAULT_NAMESPACE
    ) -> list[InspectedRow]:
        """Rows of the log from the offset ``first`` on, each with its write pointer and what became of that.

        Raises TopicNotFound, OffsetOutOfRange, TopicDamaged.
        """
        check_long("first", first)
        check_long("limit", limit, 1)
        return parse(
            list[InspectedRow],
            await self._get(topic_path(namespace, topic) + "/rows", {"first": str(first), "limit": str(limit)}),
        )

    async def inspect_groups(self, topic: str, limit: int = 100, namespace: str = DEFAULT_NAMESPACE) -> list[InspectedGroup]:
        """List what is stored apart from the log, by write pointer. Raises TopicNotFound, TopicDamaged."""
        check_long("limit", limit, 1)
        return parse(list[InspectedGroup], await self._get(topic_path(namespace, topic) + "/groups", {"limit": str(limit)}))

    async def inspect_payloads(
        self, topic: str, under: int, limit: int = 100, namespace: str = DEFAULT_NAMESPACE
    ) -> list[InspectedPayload]:
        """The payloads stored under a write pointer (of an atomic commit: minus its number). Raises as the others do."""
        check_long("under", under, -MAX_LONG)
        check_long("limit", limit, 1)
        return parse(
            list[InspectedPayload],
            await self._get(topic_path(namespace, topic) + "/payloads", {"under": str(under), "limit": str(limit)}),
        )
