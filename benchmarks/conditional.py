"""Conditional publish beside plain: what an expectation costs, and what the index of keys does to a topic that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.measure import PAYLOADS, Row, Server, running
from benchmarks.transactions import Connection
from benchmarks.turns import Turns, in_turns, repeat
from oncelog import Client
from oncelog.wire.avro_parts import VALUE_BRANCH, encode_array, encode_bytes, encode_long, encode_optional_long
from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest

BATCH = 100
KEYS = 1_000
"""Of them each request takes the next ones in turn, one for each of its messages."""
_CHECKED: Mapping[str, Mapping[str, str]] = {"checked": {"check.expected.offsets": "true"}, "unchecked": {}}
_NULL = b"\x00"

PLAIN, PLAIN_UNCHECKED, OFFSET = "plain", "plain, unchecked topic", "expected offset"
KEYED, KEYED_UNCHECKED, KEY_OFFSETS = "keyed", "keyed, unchecked topic", "expected offset of every key"

Body = Callable[[int], bytes]
"""The next request, given the offset that its first message will have: whoever writes alone knows it."""


def conditional_rates(seconds: float) -> list[Row]:
    """Every shape on one connection, each kind with a topic of its own."""
    with running("oncelog") as server, Client(server.url) as client:
        connection = Connection(server.url)
        rows = _shape(server, connection, client, "single publishes", 1, seconds)
        rows += _shape(server, connection, client, f"requests of {BATCH}", BATCH, seconds)
        connection.close()
    return rows


def _shape(server: Server, connection: Connection, client: Client, what: str, messages: int, seconds: float) -> list[Row]:
    kinds: dict[str, tuple[str, Body]] = {
        PLAIN_UNCHECKED: ("unchecked", _plain(messages)),
        PLAIN: ("checked", _plain(messages)),
        OFFSET: ("checked", _at_offset(messages)),
        KEYED_UNCHECKED: ("unchecked", _keyed(messages)),
        KEYED: ("checked", _keyed(messages)),
        KEY_OFFSETS: ("checked", _at_keys(messages)),
    }
    publishers = {}
    for number, (kind, (checked, body)) in enumerate(kinds.items()):
        topic = f"bench-{messages}-{number}"
        client.create_topic(topic, _CHECKED[checked])
        publishers[kind] = _Publisher(connection, topic, messages, body)
    turns = in_turns(
        {kind: partial(repeat, publisher.publish) for kind, publisher in publishers.items()},
        dict.fromkeys(kinds, server.processor_seconds),
        seconds,
    )
    for kind in (OFFSET, KEY_OFFSETS):
        publishers[kind].check_that_a_wrong_expectation_is_refused()
    rows = []
    for kind in kinds:
        rows.append(Row(f"{what}: {kind}", turns.rate(kind) * messages, "messages/s"))
        rows.append(Row(f"{what}: {kind}: the service's processor", turns.processor_ms(kind), "ms a request"))
    for kind, bases in ((OFFSET, (PLAIN, PLAIN_UNCHECKED)), (KEY_OFFSETS, (KEYED, KEYED_UNCHECKED))):
        rows += [_share(turns, what, kind, base) for base in bases]
    return rows


def _share(turns: Turns, what: str, kind: str, base: str) -> Row:
    share = turns.share(kind, base)
    return Row(f"{what}: {kind}: share of {base}", share * 100, "%", "≥ 90 %", share >= 0.9)


class _Publisher:
    """The only one that writes to its topic."""

    def __init__(self, connection: Connection, topic: str, messages: int, body: Body) -> None:
        self._connection = connection
        self._path = f"/v1/namespaces/default/topics/{topic}/publish"
        self._messages = messages
        self._body = body
        self._upcoming = 0

    def publish(self) -> None:
        self._connection.post(self._path, self._body(self._upcoming), ONCELOG_AVRO)
        self._upcoming += self._messages

    def check_that_a_wrong_expectation_is_refused(self) -> None:
        try:
            self._connection.post(self._path, self._body(self._upcoming + KEYS), ONCELOG_AVRO)
        except RuntimeError as refused:
            if "offset_mismatch" in str(refused):
                return
            raise
        raise RuntimeError(f"{self._path}: a wrong expectation was taken")


# --- bodies, all but what changes encoded once


def _plain(messages: int) -> Body:
    body = encode_publish_request(PublishRequest(PAYLOADS[:messages]))
    return lambda upcoming: body


def _at_offset(messages: int) -> Body:
    head, tail = _NULL * 7, _NULL * 2 + _messages(messages)
    return lambda upcoming: head + encode_optional_long(upcoming) + tail


def _keyed(messages: int) -> Body:
    bodies = [encode_publish_request(PublishRequest(PAYLOADS[:messages], keys=keys)) for keys in _keys(messages)]
    return lambda upcoming: bodies[upcoming // messages % len(bodies)]


def _at_keys(messages: int) -> Body:
    """A key comes again every ``KEYS`` messages, so its newest offset is known."""
    tail = _messages(messages)
    parts = []
    for keys in _keys(messages):
        column = b"".join(encode_array([VALUE_BRANCH + encode_bytes(key) for key in keys], messages))
        head = _NULL * 4 + VALUE_BRANCH + column + _NULL * 4 + VALUE_BRANCH + encode_long(messages)
        parts.append((head, [encode_bytes(key) for key in keys]))

    def body(upcoming: int) -> bytes:
        head, keys = parts[upcoming // messages % len(parts)]
        before = upcoming - KEYS
        expected = [key + encode_optional_long(None if before < 0 else before + at) for at, key in enumerate(keys)]
        return b"".join((head, *expected, _NULL, tail))

    return body


def _keys(messages: int) -> list[list[bytes]]:
    return [[b"key-%d" % number for number in range(first, first + messages)] for first in range(0, KEYS, messages)]


def _messages(messages: int) -> bytes:
    return b"".join(encode_array([encode_bytes(payload) for payload in PAYLOADS[:messages]], messages))
