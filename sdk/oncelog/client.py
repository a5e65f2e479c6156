"""Everything but the streams of messages: topics, producers, policies, status. One method a call of the REST interface."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from oncelog.errors import InvalidRequest, InvalidResponse, OncelogError, TopicExists
from oncelog.retry import may_retry, pause
from oncelog.transport import READ_SECONDS, Transport
from oncelog.wire.codec import (
    decode_consume_response,
    decode_publish_response,
    encode_consume_request,
    encode_publish_request,
)
from oncelog.wire.media import DEFAULT_NAMESPACE, JSON, ONCELOG_AVRO
from oncelog.wire.models import (
    Gaps,
    NamespacePolicies,
    OpenedProducer,
    OpenProducer,
    Producer,
    Topic,
    TopicStats,
    Verification,
    Why,
)
from oncelog.wire.requests import ConsumeRequest, PublishRequest, ReceiptRun

T = TypeVar("T")

RETRY_SECONDS = 15.0
"""How long a call is tried again before its error is raised: as long as a service needs to restart."""
_PAGE = 1_000

_NAMES: TypeAdapter[list[str]] = TypeAdapter(list[str])
_PRODUCERS: TypeAdapter[list[Producer]] = TypeAdapter(list[Producer])
_TOPIC = TypeAdapter(Topic)
_STATS = TypeAdapter(TopicStats)
_OPENED = TypeAdapter(OpenedProducer)
_PRODUCER = TypeAdapter(Producer)
_WHY = TypeAdapter(Why)
_POLICIES = TypeAdapter(NamespacePolicies)
_VERIFICATION = TypeAdapter(Verification)
_LINE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

PropertyValue = str | int | bool


class Client:
    """A service, by its URL. Thread-safe; a context manager.

    Every call tries again what is safe to try again, for ``retry`` seconds, and raises an OncelogError then.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = READ_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        """``url``: else ONCELOG_URL, else http://127.0.0.1:7070; ``token``: else ONCELOG_TOKEN.

        ``timeout``: seconds until an answer must have come. Raises ValueError for what is no http(s) URL.
        """
        self._transport = Transport(url, token, timeout)
        self._timeout = timeout
        self._retry = retry

    @property
    def url(self) -> str:
        """Of the service."""
        return self._transport.url

    # --- topics

    def create_topic(
        self,
        topic: str,
        properties: Mapping[str, PropertyValue] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        exist_ok: bool = False,
    ) -> None:
        """Create a topic. Raises TopicExists unless ``exist_ok`` (an existing topic's properties are left alone)."""
        try:
            self._put(_topic_path(namespace, topic), _as_strings(properties))
        except TopicExists:
            if not exist_ok:
                raise

    def update_topic(self, topic: str, properties: Mapping[str, PropertyValue], namespace: str = DEFAULT_NAMESPACE) -> None:
        """Replace all properties. Raises TopicNotFound."""
        self._put(_topic_path(namespace, topic) + "/properties", _as_strings(properties))

    def topic(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> Topic:
        """Name and properties. Raises TopicNotFound."""
        return _parse(_TOPIC, self._get(_topic_path(namespace, topic)))

    def topics(self, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        """Names, sorted."""
        return _parse(_NAMES, self._get(f"/v1/namespaces/{_quoted(namespace)}/topics"))

    def delete_topic(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Delete topic, messages and producers. Raises TopicNotFound."""
        path = _topic_path(namespace, topic)
        # Not repeated blindly: between two tries somebody may have created it again.
        self._trying(lambda: self._transport.call("DELETE", path), idempotent=False)

    def stats(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> TopicStats:
        """Where the log begins and ends. Raises TopicNotFound."""
        return _parse(_STATS, self._get(_topic_path(namespace, topic) + "/stats"))

    def verify(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> Iterator[tuple[int, int] | Verification]:
        """Refold the log and compare it with the live maps: (messages, of) while it goes on, the Verification last.

        Raises InvalidResponse if the answer ends before it.
        """
        line = b"{}"
        for line in self._transport.lines("POST", _topic_path(namespace, topic) + "/verify"):
            progress = _parse(_LINE, line)
            if "of" in progress:
                yield int(progress["messages"]), int(progress["of"])
        yield _parse(_VERIFICATION, line)

    # --- namespaces

    def namespaces(self) -> list[str]:
        """Every namespace that has a topic or a policy."""
        return _parse(_NAMES, self._get("/v1/namespaces"))

    def policies(self, namespace: str = DEFAULT_NAMESPACE) -> NamespacePolicies:
        """What holds for topics that do not say otherwise."""
        return _parse(_POLICIES, self._get(f"/v1/namespaces/{_quoted(namespace)}/policies"))

    def set_policies(self, policies: NamespacePolicies, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Replace the policies of a namespace."""
        self._put(f"/v1/namespaces/{_quoted(namespace)}/policies", policies.to_wire())

    # --- producers

    def open_producer(
        self, topic: str, name: str | None = None, *, gaps: Gaps = "allow", namespace: str = DEFAULT_NAMESPACE
    ) -> OpenedProducer:
        """Begin a new incarnation, fencing the older ones. What :class:`oncelog.Producer` does when it is made."""
        path = _topic_path(namespace, topic) + "/producers"
        # The nonce makes a repeated open the same open.
        try:
            asked = OpenProducer(name=name, nonce=uuid4().hex, gaps=gaps)
        except ValidationError as error:
            raise InvalidRequest(f"not a producer: {error}") from error
        body = json.dumps(asked.to_wire()).encode()
        return _parse(_OPENED, self._trying(lambda: self._transport.call("POST", path, body, JSON), idempotent=True))

    def producers(self, topic: str, namespace: str = DEFAULT_NAMESPACE) -> Iterator[Producer]:
        """Every producer of a topic, by name, fetched page by page."""
        path = _topic_path(namespace, topic) + "/producers"
        after = ""
        while True:
            page = _parse(_PRODUCERS, self._get(path, {"after": after, "limit": str(_PAGE)}))
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].name

    def producer(self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE) -> Producer:
        """One producer as the live maps have it. Raises ProducerNotFound."""
        return _parse(_PRODUCER, self._get(_producer_path(namespace, topic, name)))

    def forget_producer(self, topic: str, name: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Drop its sequence ids and fence its running incarnation. Raises ProducerNotFound."""
        path = _producer_path(namespace, topic, name)
        self._trying(lambda: self._transport.call("DELETE", path), idempotent=False)

    def why(self, topic: str, name: str, sequence_id: int, namespace: str = DEFAULT_NAMESPACE) -> Why:
        """Why a message with this sequence id was or would be dropped."""
        return _parse(_WHY, self._get(_producer_path(namespace, topic, name) + "/why", {"sequenceId": str(sequence_id)}))

    # --- messages

    def publish(self, topic: str, request: PublishRequest, namespace: str = DEFAULT_NAMESPACE) -> list[ReceiptRun]:
        """One publish request, sent once and never tried again; :class:`oncelog.Producer` is what one wants."""
        path = _topic_path(namespace, topic) + "/publish"
        body = self._transport.call("POST", path, encode_publish_request(request), ONCELOG_AVRO)
        return _decoded(decode_publish_response, body)

    def poll(
        self, topic: str, request: ConsumeRequest, namespace: str = DEFAULT_NAMESPACE
    ) -> tuple[list[dict[str, object]], bytes | None]:
        """One poll: records of messages and the position to go on from; :class:`oncelog.Reader` is what one wants."""
        path = _topic_path(namespace, topic) + "/poll"
        data = encode_consume_request(request)
        timeout = self._timeout + (request.wait or 0) / 1000
        body = self._trying(lambda: self._transport.call("POST", path, data, ONCELOG_AVRO, timeout=timeout), idempotent=True)
        return _decoded(decode_consume_response, body)

    # --- status

    def healthy(self) -> bool:
        """Whether the service is up and its store open. Never raises an OncelogError."""
        try:
            self._transport.call("GET", "/healthz", timeout=5)
        except OncelogError:
            return False
        return True

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, path: str, params: dict[str, str] | None = None) -> bytes:
        return self._trying(lambda: self._transport.call("GET", path, params=params), idempotent=True)

    def _put(self, path: str, value: object) -> None:
        body = json.dumps(value).encode()
        self._trying(lambda: self._transport.call("PUT", path, body, JSON), idempotent=False)

    def _trying(self, call: Callable[[], T], idempotent: bool) -> T:
        end = time.monotonic() + self._retry
        attempt = 0
        perhaps_done = False
        while True:
            try:
                return call()
            except OncelogError as error:
                wait = pause(attempt, random.random())
                if not may_retry(error, idempotent) or time.monotonic() + wait > end:
                    error.definite = error.definite and not perhaps_done  # an earlier try may have got through
                    raise
                perhaps_done = perhaps_done or not error.definite
            time.sleep(wait)
            attempt += 1


def _quoted(name: str) -> str:
    if name in ("", ".", "..") or "/" in name:
        raise InvalidRequest(f"not a name: {name!r}")
    return quote(name, safe="")


def _topic_path(namespace: str, topic: str) -> str:
    return f"/v1/namespaces/{_quoted(namespace)}/topics/{_quoted(topic)}"


def _producer_path(namespace: str, topic: str, name: str) -> str:
    return f"{_topic_path(namespace, topic)}/producers/{_quoted(name)}"


def _as_strings(properties: Mapping[str, PropertyValue] | None) -> dict[str, str]:
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in (properties or {}).items()
    }


def _parse(kind: TypeAdapter[T], body: bytes) -> T:
    try:
        return kind.validate_json(body)
    except ValidationError as error:
        raise InvalidResponse(f"the answer is not what was expected: {error}") from error


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except InvalidRequest as error:
        raise InvalidResponse(f"the answer cannot be read: {error.detail}") from error
