"""All calls of the REST interface, one method a call, as procedures: here those on topics, producers, policies and status."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime
from inspect import getmembers, isfunction
from math import ceil
from typing import Any, Self
from uuid import uuid4

from oncelog.api.calls import as_request, check_generation, of_generation, parse, quoted, topic_path
from oncelog.api.plausible import check_page
from oncelog.api.tokens import TokenCalls
from oncelog.errors import InvalidResponse, NotSupported, OncelogError, TopicExists, from_problem
from oncelog.http.transport import MAX_JSON_BYTES, READ_SECONDS
from oncelog.message_id import MessageId
from oncelog.process.frames import Face
from oncelog.values.arguments import check_kind, check_mapping
from oncelog.values.numbers import MAX_LONG, check_long, check_seconds, check_timeout
from oncelog.wire.codec import (
    encode_consume_request,
)
from oncelog.wire.isolation import COMMITTED, ISOLATION
from oncelog.wire.media import DEFAULT_NAMESPACE, JSON, ONCELOG_AVRO
from oncelog.wire.models import (
    Backup,
    Cluster,
    ErasedMessage,
    EraseMessage,
    Gaps,
    ListedTopic,
    NamespacePolicies,
    OpenedProducer,
    OpenProducer,
    Producer,
    Resource,
    Topic,
    TopicStats,
    Trimmed,
    TrimTopic,
    Verification,
    Why,
)
from oncelog.wire.overview import Alarms, Overview
from oncelog.wire.requests import ConsumeRequest, Polled

_LEASES = 2_000
"""In one answer: a service answers no more."""


class _BackupProgress(Resource):
    bytes: int
    of: int


class _Progress(Resource):
    messages: int
    of: int


class _Broken(Resource):
    """An answer that ends with an error."""

    problem: dict[str, Any]


PropertyValue = str | int | bool


class AsyncApi(Face, TokenCalls):
    """Every call of the REST interface, one method a call; :class:`oncelog.AsyncClient` adds what is made of several."""

    # --- topics

    async def create_topic(
        self,
        topic: str,
        properties: Mapping[str, PropertyValue] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        exist_ok: bool = False,
    ) -> None:
        """Create a topic. Raises TopicExists unless ``exist_ok`` (an existing topic's properties are left alone).

        ``properties``: ``ttl`` (seconds, default a week), ``deduplication``, ``transactional``, ``check.expected.offsets``,
        ``max.messages.per.second``, ``max.bytes.per.second``, ``max.bytes``, ``max.bytes.policy``.
        """
        try:
            await self._put(topic_path(namespace, topic), _as_strings(properties))
        except TopicExists:
            if not exist_ok:
                raise

    async def update_topic(
        self,
        topic: str,
        properties: Mapping[str, PropertyValue],
        namespace: str = DEFAULT_NAMESPACE,
        *,
        expected: Mapping[str, str] | None = None,
    ) -> None:
        """Replace all properties, as of :meth:`create_topic`: one that is not named has its default again. Raises TopicNotFound.

        ``expected``: what :meth:`topic` had said they are, all of them. Raises PropertiesChanged, which carries what they are
        now, where somebody has changed them meanwhile, or has made the topic anew; nothing was done then.
        """
        params = None if expected is None else {"expected": json.dumps(dict(expected))}
        await self._put(topic_path(namespace, topic) + "/properties", _as_strings(properties), params)

    async def topic(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> Topic:
        """Name and properties. Raises TopicNotFound."""
        return parse(Topic, await self._get(topic_path(namespace, topic), accept=JSON))

    async def topics(self, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        """Names, sorted."""
        return parse(list[str], await self._get(f"/v1/namespaces/{quoted(namespace)}/topics"))

    async def delete_topic(self, topic: str, namespace: str = DEFAULT_NAMESPACE, *, generation: int | None = None) -> None:
        """Delete topic, messages and producers. Raises TopicNotFound.

        ``generation``: only if it is of this one. Raises StaleMessageId: it was made anew, and stays.
        """
        await self._delete(topic_path(namespace, topic), of_generation(generation))

    async def trim_topic(
        self, topic: str, before: int | datetime, namespace: str = DEFAULT_NAMESPACE, *, generation: int | None = None
    ) -> int:
        """Have everything before an offset or a time be gone, for good; the offset at which the log begins now.

        Readers find nothing of it any more from now on, and its rows leave the disk by and by. Offsets do not change, and no
        sequence id is forgotten. An offset may not lie beyond what is stable, and a time reaches as far as that. Idempotent.

        ``generation``: the topic's, as :meth:`stats` tells it; without it that of this moment, which is asked for first: where an
        answer is lost and the topic made anew meanwhile, the messages of the new one stay.

        Raises OffsetOutOfRange; TopicNotFound; StaleMessageId: it is another generation; ValueError: a time without its zone.
        """
        if isinstance(before, datetime):
            if before.tzinfo is None:
                raise ValueError(f"before {before} has no time zone; use datetime.now(UTC) or .astimezone()")
            bound = {"before_time": ceil(before.timestamp() * 1000)}
        else:
            check_long("before", before)
            bound = {"before_offset": before}
        check_generation(generation)
        asked = as_request(TrimTopic, "a trim", **bound, generation=generation or (await self.stats(topic, namespace)).generation)
        return parse(Trimmed, await self._post(topic_path(namespace, topic) + "/trim", asked, idempotent=True)).earliest_offset

    async def erase_message(
        self, topic: str, at: int | MessageId, namespace: str = DEFAULT_NAMESPACE, *, generation: int | None = None
    ) -> ErasedMessage:
        """Have the payload and the properties of one message be gone, named by its offset or by its id.

        They are gone for readers, and from the store's files. The message's place stays, with its key, its producer and its
        sequence id: readers are given it with an empty payload, and :attr:`oncelog.Message.erased` says so. Idempotent.
        ``generation``: as of :meth:`trim_topic`; an id is of one generation by itself.

        Raises OffsetOutOfRange, InvalidMessageId; StaleMessageId: it is of another generation; MessagesExpired: it is deleted
        already. MessageInTransaction: abort that. StorageFailed: earlier bytes may be left in files; repeat it.
        """
        check_generation(generation)
        if isinstance(at, MessageId):
            where: dict[str, object] = {"message_id": at, "generation": generation}
        else:
            check_long("at", at)
            where = {"offset": at, "generation": generation or (await self.stats(topic, namespace)).generation}
        asked = as_request(EraseMessage, "an erasure", **where)
        return parse(ErasedMessage, await self._post(topic_path(namespace, topic) + "/erase", asked, idempotent=True))

    async def stats(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> TopicStats:
        """The ends of the log, and what is in hand. Raises TopicNotFound."""
        return parse(TopicStats, await self._get(topic_path(namespace, topic) + "/stats"))

    def all_stats(self, namespace: str = DEFAULT_NAMESPACE) -> AsyncIterator[ListedTopic]:
        """What is known of each topic of a namespace without opening it, by name, fetched page by page."""
        path, large = f"/v1/namespaces/{quoted(namespace)}/stats", {"limit": "2000"}
        return self._listed(list[ListedTopic], path, lambda each: each.name, large)

    async def verify(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> AsyncIterator[tuple[int, int] | Verification]:
        """Refold the log and compare it with the live maps: (messages, of) while it goes on, the Verification last.

        Raises StorageUnavailable, TopicDamaged: the store cannot be read; InvalidResponse if the answer ends before it.
        """
        line = b"{}"
        async for line in self._lines(topic_path(namespace, topic) + "/verify", idempotent=True):
            said = parse(dict[str, Any], line)
            if "problem" in said:
                raise from_problem(parse(_Broken, line).problem, 500)
            if "of" in said:
                progress = parse(_Progress, line)
                yield progress.messages, progress.of
        yield parse(Verification, line)

    # --- backups

    async def backup(self, directory: str) -> AsyncIterator[tuple[int, int] | Backup]:
        """Have the service back its store up into a directory on its machine: (bytes, of) while it goes on, the Backup last.

        Leaving it early ends the backup: then there is none. ``directory``: below the service's ``backup_root``.

        Raises NotSupported: it makes no backups, or has none to make; InvalidRequest: the directory is not below; BackupFailed;
        DiskFull: its disk has too little room; InvalidResponse if the answer ends before it.
        """
        body = json.dumps({"directory": directory}).encode()
        line = b"{}"
        async for line in self._lines("/v1/backup", body, JSON, idempotent=False):
            said = parse(dict[str, Any], line)
            if "problem" in said:
                raise from_problem(parse(_Broken, line).problem, 500)
            if "of" in said:
                progress = parse(_BackupProgress, line)
                yield progress.bytes, progress.of
        yield parse(Backup, line)

    # --- instances

    async def cluster(self) -> Cluster:
        """The instances over the service's store, and who serves what, which is fetched page by page.

        Raises NotSupported: it has its store for itself; InvalidResponse: a page does not go on.
        """
        asked = {"limit": str(_LEASES)}
        whole = page = parse(Cluster, await self._get("/v1/cluster", asked))
        seen = set[str]()
        while len(page.leases) >= _LEASES:
            behind = page.leases[-1].name
            if behind in seen:
                raise InvalidResponse(f"the page of leases behind {behind[:100]} was answered before")
            seen.add(behind)
            page = parse(Cluster, await self._get("/v1/cluster", {**asked, "after": behind}))
            whole.leases.extend(page.leases)
        return whole

    # --- namespaces

    async def namespaces(self) -> list[str]:
        """Every namespace that has a topic or a policy."""
        return parse(list[str], await self._get("/v1/namespaces"))

    async def policies(self, namespace: str = DEFAULT_NAMESPACE) -> NamespacePolicies:
        """The policies of a namespace: they hold for topics that do not say otherwise."""
        return parse(NamespacePolicies, await self._get(f"/v1/namespaces/{quoted(namespace)}/policies"))

    async def set_policies(self, policies: NamespacePolicies, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Replace the policies of a namespace: one that is None has its default again. The class is that of
        ``oncelog.wire.models``."""
        check_kind("policies", policies, NamespacePolicies, "a NamespacePolicies of oncelog.wire.models")
        await self._put(f"/v1/namespaces/{quoted(namespace)}/policies", policies.to_wire())

    # --- producers

    async def open_producer(
        self, topic: str, name: str | None = None, *, gaps: Gaps = "allow", namespace: str = DEFAULT_NAMESPACE
    ) -> OpenedProducer:
        """Begin a new incarnation, fencing the older ones. What :class:`oncelog.Producer` does when it is made."""
        # The nonce makes a repeated open the same open.
        wanted = as_request(OpenProducer, "a producer", name=name, nonce=uuid4().hex, gaps=gaps)
        opened = parse(OpenedProducer, await self._post(topic_path(namespace, topic) + "/producers", wanted, idempotent=True))
        if opened.name != (name or opened.name) or not 0 < opened.epoch <= MAX_LONG:
            raise InvalidResponse(f"the answer opens the producer {opened.name[:250]!r}, epoch {opened.epoch}; not {name!r}")
        if not -1 < (opened.last_sequence_id or 0) <= MAX_LONG:
            raise InvalidResponse(f"the answer has a last sequence id of {opened.last_sequence_id}")
        return opened

    def producers(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> AsyncIterator[Producer]:
        """Every producer of a topic, by name, fetched page by page."""
        return self._listed(list[Producer], topic_path(namespace, topic) + "/producers", lambda each: each.name)

    async def producer(self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE) -> Producer:
        """Show one producer as the live maps have it. Raises ProducerNotFound."""
        return parse(Producer, await self._get(_producer_path(namespace, topic, name)))

    async def forget_producer(
        self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE, *, generation: int | None = None
    ) -> None:
        """Drop its sequence ids and fence its running incarnation. ``generation``: as of :meth:`delete_topic`.

        Raises ProducerNotFound.
        """
        await self._delete(_producer_path(namespace, topic, name), of_generation(generation))

    async def end_producer(
        self, topic: str, name: str, epoch: int, namespace: str = DEFAULT_NAMESPACE, *, timeout: float | None = None
    ) -> None:
        """End a producer whose name the service assigned: nothing is stored under that any more. Idempotent.

        Only where all its messages have a definite outcome. Tried once, for ``timeout`` seconds: what is not ended ends by itself
        when it was not used for long. Raises InvalidRequest: a caller chose the name; ProducerFenced.
        """
        check_long("epoch", epoch)
        check_timeout(timeout)
        await self._transport.ask("DELETE", _producer_path(namespace, topic, name), params={"epoch": str(epoch)}, timeout=timeout)

    async def why(self, topic: str, name: str, sequence_id: int, namespace: str = DEFAULT_NAMESPACE) -> Why:
        """Explain why a message with this sequence id was or would be dropped."""
        check_long("sequence_id", sequence_id)
        return parse(Why, await self._get(_producer_path(namespace, topic, name) + "/why", {"sequenceId": str(sequence_id)}))

    # --- messages

    async def poll(self, topic: str, request: ConsumeRequest, namespace: str = DEFAULT_NAMESPACE) -> Polled:
        """Poll once: records of messages and the position to go on from; :class:`oncelog.Reader` is what one wants.

        Tried again, it waits for what is left of ``request.wait`` only, once the service was heard of. It brings everything in
        the log, unless the request says an ``isolation``.

        Raises NotSupported: the service is of a version that knows no isolation; what it answered is not used.
        """
        isolation = request.isolation
        polled = await self._page(
            topic_path(namespace, topic) + "/poll",
            lambda left_ms: encode_consume_request(replace(request, wait=request.wait and left_ms)),
            ONCELOG_AVRO,
            request.wait or 0,
            request.limit,
            None if isolation is None else {ISOLATION: isolation},
        )
        if isolation == COMMITTED and polled.isolation is None:
            raise NotSupported("the service is of a version whose polls answer what is not committed, too")
        if polled.isolation not in (isolation, None) and isolation is not None:
            raise InvalidResponse(f"the answer reads {polled.isolation[:50]!r} where {isolation!r} was asked for")
        check_page(
            polled.messages,
            polled.position,
            start=request.start_from,
            inclusive=request.inclusive,
            first_offset=request.start_offset,
            limit=request.limit,
        )
        return polled

    # --- status

    async def alarms(self) -> Alarms:
        """What is wrong with the service, the most severe first: since when, with its figures, and the commands that end it."""
        return parse(Alarms, await self._get("/v1/alarms"))

    async def overview(self, *, after: int = 0, wait: float = 0) -> Overview:
        """How the service is doing, and how it did: rates, latency, disk, the busiest topics, alarms, half an hour of samples.

        ``after``: the number of a sample; only those behind it, and for ``wait`` seconds it waits until there is one.
        """
        check_long("after", after)
        check_seconds("wait", wait)

        async def once(held: float) -> Overview:
            params = {"after": str(after), "wait": str(round(held * 1000))}
            return parse(
                Overview,
                await self._transport.ask("GET", "/v1/overview", params=params, timeout=READ_SECONDS + held, most=MAX_JSON_BYTES),
            )

        return await self._held(wait, once, lambda overview: not overview.history)

    async def healthy(self) -> bool:
        """Whether the service is up and its store open. Never raises an OncelogError."""
        try:
            await self._transport.ask("GET", "/healthz", timeout=5)
        except OncelogError:
            return False
        return True

    async def close(self) -> None:
        """Close the connections. It stays closed: every later call raises ClientClosed, and so does one that waits for messages.
        Idempotent.

        Where this is the last client of a store that this process has opened, that is closed, too, when this returns.
        """
        await self._transport.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


for _name, _call in getmembers(AsyncApi, isfunction):
    if not _name.startswith("_"):
        _call.__qualname__ = f"AsyncClient.{_name}"


def _producer_path(namespace: str, topic: str, name: str) -> str:
    return f"{topic_path(namespace, topic)}/producers/{quoted(name)}"


def _as_strings(properties: Mapping[str, PropertyValue] | None) -> dict[str, str]:
    check_mapping("properties", properties)
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in (properties or {}).items()
    }
