"""Transactions: whole ones a second, what a transactional poll costs, and what a long list of invalid ones costs."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from functools import cache
from urllib.parse import urlsplit

from benchmarks.measure import PAYLOADS, Row, running
from oncelog import Client
from oncelog.wire.avro_parts import encode_optional_long
from oncelog.wire.codec import encode_consume_request, encode_publish_request
from oncelog.wire.media import JSON, ONCELOG_AVRO
from oncelog.wire.requests import ConsumeRequest, PublishRequest
from oncelog.wire.transaction import Transaction

MESSAGES = 100
"""Per transaction."""
VISIBLE = 100_000
INVALID = 10_000
_TOPIC = "/v1/namespaces/default/topics/{}"
_CHUNK = 2**20
_THRIFT = "application/vnd.apache.thrift.binary"


@cache
def _encoded(messages: int) -> bytes:
    return encode_publish_request(PublishRequest(PAYLOADS[:messages]))[1:]


class Connection:
    """One connection and next to no client: what is measured is the service, not an HTTP library."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._credential = "" if token is None else f"\r\nauthorization: Bearer {token}"
        host, port = urlsplit(url).hostname, urlsplit(url).port
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: bytes = b"", media: str = JSON, accept: str = "*/*") -> bytes:
        headers = f"host: 127.0.0.1\r\ncontent-type: {media}\r\naccept: {accept}\r\ncontent-length: {len(body)}{self._credential}"
        self._socket.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + body)
        data = self._socket.recv(_CHUNK)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._socket.recv(_CHUNK)
        head = data[:end].lower() + b"\r\n"
        at = head.index(b"content-length:") + len(b"content-length:")
        length = int(head[at : head.index(b"\r\n", at)])
        parts, missing = [data[end + 4 :]], length - (len(data) - end - 4)
        while missing > 0:
            parts.append(self._socket.recv(_CHUNK))
            missing -= len(parts[-1])
        answer = b"".join(parts)
        if b" 200 " not in head[:20]:
            raise RuntimeError(f"{path}: {head!r} {answer[:300]!r}")
        return answer

    def close(self) -> None:
        self._socket.close()

    def start(self) -> Transaction:
        return Transaction.from_bytes(self.post("/v1/transactions", accept=_THRIFT))

    def publish(self, topic: str, pointer: int, messages: int) -> None:
        # The write pointer is the first field: what follows on it is encoded once.
        body = encode_optional_long(pointer) + _encoded(messages)
        self.post(_TOPIC.format(topic) + "/publish", body, ONCELOG_AVRO)

    def end(self, pointer: int, how: str) -> None:
        self.post(f"/v1/transactions/{pointer}/{how}")


def transaction_rates(seconds: float) -> list[Row]:
    """All of it, on fresh services."""
    with running("bare") as server:
        connection = Connection(server.url)
        bare, _ = _rate(lambda: _as_bare(connection), seconds)
        connection.close()
    with running("oncelog") as server, Client(server.url) as client:
        connection = Connection(server.url)
        client.create_topic("bench")
        rows = _whole(connection, client, seconds, bare)
        rows += _polls(connection, client)
        rows += _invalid(connection, client)
        connection.close()
    return rows


def _as_bare(connection: Connection) -> None:
    """What a transaction asks of the bare server: three synced requests, the one in the middle with all messages."""
    for messages in (1, MESSAGES, 1):
        connection.post("/publish", b"\x00" + _encoded(messages), ONCELOG_AVRO)


def _whole(connection: Connection, client: Client, seconds: float, bare: float) -> list[Row]:
    def raw() -> None:
        pointer = connection.start().write_pointer
        connection.publish("bench", pointer, MESSAGES)
        connection.end(pointer, "commit")

    def sdk() -> None:
        with client.transaction() as transaction:
            for payload in PAYLOADS[:MESSAGES]:
                transaction.send("bench", payload)

    rate, p50 = _rate(raw, seconds)
    sdk_rate, _ = _rate(sdk, seconds)
    what = f"transactions of {MESSAGES} messages, 1 connection"
    return [
        Row(f"{what}: start, publish, commit", rate, "transactions/s", "≥ 400", rate >= 400),
        Row(f"{what}: p50 of a whole one", p50, "ms"),
        Row(f"{what}: three requests to the bare server instead", bare, "a second"),
        Row(f"{what}: share of bare", rate / bare * 100, "%"),
        Row(f"{what}: through the SDK", sdk_rate, "transactions/s"),
    ]


def _rate(call: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Calls a second, and the median of one in ms."""
    spans = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        call()
        spans.append(time.perf_counter() - began)
    return len(spans) / sum(spans), statistics.median(spans) * 1000


def _polls(connection: Connection, client: Client) -> list[Row]:
    """Pages of 1,000 over messages that committed transactions published."""
    client.create_topic("visible")
    for _ in range(VISIBLE // 1_000):
        pointer = connection.start().write_pointer
        connection.publish("visible", pointer, 1_000)
        connection.end(pointer, "commit")
    reader = connection.start()
    plain, seen = _in_turns(connection, None, reader.to_bytes())
    share = plain / seen
    what = f"poll of {VISIBLE:,} visible messages"
    return [
        Row(f"{what}: plain", VISIBLE / plain, "messages/s"),
        Row(f"{what}: with a transaction", VISIBLE / seen, "messages/s"),
        Row(f"{what}: share of plain", share * 100, "%", "≥ 80 %", share >= 0.8),
    ]


def _invalid(connection: Connection, client: Client) -> list[Row]:
    """What a long list of invalid transactions costs a start, and a poll that carries it."""
    none = connection.start()
    for _ in range(INVALID):
        connection.end(connection.start().write_pointer, "invalidate")
    spans = []
    for _ in range(200):
        began = time.perf_counter()
        many = connection.start()
        spans.append(time.perf_counter() - began)
        connection.end(many.write_pointer, "abort")
    start = statistics.median(spans) * 1000
    many = connection.start()
    assert len(many.invalids) >= INVALID, f"{len(many.invalids)} invalid transactions instead of {INVALID}"
    without, with_many = _in_turns(connection, none.to_bytes(), many.to_bytes())
    ratio = with_many / without
    what = f"{INVALID:,} invalid transactions"
    return [
        Row(f"{what}: start, p50", start, "ms", "< 5", start < 5),
        Row(f"{what}: poll, times the cost with none", ratio, "", "≤ 2", ratio <= 2),
    ]


def _in_turns(connection: Connection, one: bytes | None, other: bytes | None) -> tuple[float, float]:
    """The shortest time that reading everything takes with each of two transactions."""
    pairs = [(_read_all(connection, one), _read_all(connection, other)) for _ in range(5)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def _read_all(connection: Connection, transaction: bytes | None) -> float:
    request = ConsumeRequest(limit=1_000, transaction=transaction)
    pages = 0
    began = time.perf_counter()
    while True:
        body = connection.post(_TOPIC.format("visible") + "/poll", encode_consume_request(request), ONCELOG_AVRO)
        if body[:1] == b"\x00":
            break
        pages += 1
        request = ConsumeRequest(start_offset=pages * 1_000, limit=1_000, transaction=transaction)
    span = time.perf_counter() - began
    assert pages == VISIBLE // 1_000, f"{pages} pages"
    return span
