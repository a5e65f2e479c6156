"""How the tests here speak to a service: over real HTTP, and over bare sockets where a client library would not."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests

from oncelog.wire.codec import encode
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.transaction import Transaction

TIMEOUT = 60

GOLDEN = bytes.fromhex(
    "0a000100000000000000030a000200000000000000030f00030a000000000f00040a0000000100000000000000020a0005000000000000000208"
    "0006000000010a000700000000000000030f00080a000000000800090000000100"
)
"""A transaction as Tephra writes it."""

ANY = {
    "namespace": "default",
    "topic": "t",
    "producer": "p",
    "writePointer": "5",
    "participant": "here:default/t/1",
    "transaction": "a",
    "chunk": "0",
    "group": "g",
    "subscription": "s",
    "token": "ab12",
}
"""Something good for each name in an address."""


def done(answer: requests.Response) -> requests.Response:
    """It has succeeded."""
    assert answer.status_code == 200, answer.text
    return answer


class Calls:
    """What a running service answers below an address."""

    def __init__(self, base: str, path: str) -> None:
        self.base = base
        self.url = base + path
        self.session = requests.Session()
        self.session.trust_env = False

    def request(self, method: str, path: str = "", **options: Any) -> requests.Response:
        return self.session.request(method, self.url + path, timeout=TIMEOUT, **options)

    def good(self, method: str, path: str = "", **options: Any) -> Any:
        """The JSON of a call that must succeed."""
        return done(self.request(method, path, **options)).json()


class Topic(Calls):
    """One topic of a running service."""

    def __init__(self, url: str, name: str = "t", namespace: str = "default", create: bool = True, **properties: str) -> None:
        super().__init__(url, f"/v1/namespaces/{namespace}/topics/{name}")
        if create:
            answer = self.request("PUT", "", json=properties)
            assert answer.status_code in (200, 409), answer.text

    def post(self, path: str, body: bytes, media: str = JSON) -> requests.Response:
        return self.request("POST", path, data=body, headers={"content-type": media})

    def publish(self, *messages: str, **fields: Any) -> requests.Response:
        return self.request("POST", "/publish", json={"messages": list(messages), **fields})

    def send(self, producer: str, *sequence_ids: int, payload: str = "m{}", **fields: Any) -> list[dict[str, Any]]:
        """Publish one message per sequence id, which must succeed; one receipt per message."""
        messages = [payload.format(sequence_id) for sequence_id in sequence_ids]
        return receipts(done(self.publish(*messages, producer=producer, sequenceIds=list(sequence_ids), **fields)))

    def poll(self, **fields: Any) -> requests.Response:
        return self.request("POST", "/poll", json=fields)

    def read(self, **fields: Any) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = done(self.poll(**fields)).json()
        return messages

    def payloads(self, **fields: Any) -> list[str]:
        return [message["payload"] for message in self.read(**fields)]

    # --- in transactions

    def publish_under(self, pointer: int, *messages: str, **fields: Any) -> requests.Response:
        """Publish within a transaction, which must succeed; the answer rolls it back. Without messages: what is stored."""
        return done(self.publish(*messages, transactionWritePointer=pointer, **fields))

    def store(self, pointer: int | None, *messages: str, **fields: Any) -> requests.Response:
        return self.request("POST", "/store", json={"transactionWritePointer": pointer, "messages": list(messages), **fields})

    def store_under(self, pointer: int, *messages: str, **fields: Any) -> requests.Response:
        """Store, which must succeed."""
        return done(self.store(pointer, *messages, **fields))

    def roll_back(self, published: requests.Response) -> requests.Response:
        """Send the answer of a publish back as it came."""
        return self.post("/rollback", published.content, published.headers["content-type"])

    def roll_back_range(self, **record: Any) -> requests.Response:
        """Send a rollback of the test's own making."""
        return self.request("POST", "/rollback", json=record)

    def seen(self, transaction: Transaction, **fields: Any) -> list[str]:
        """The payloads that a transaction is delivered."""
        return self.payloads(transaction=transaction.to_bytes().decode("latin-1"), **fields)

    # --- what is known of it

    def producer(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.good("GET", f"/producers/{name}")
        return found

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.good("GET", "/stats")
        return found

    def open_producer(self, name: str | None, nonce: str, gaps: str = "allow") -> dict[str, Any]:
        opened: dict[str, Any] = self.good("POST", "/producers", json={"name": name, "nonce": nonce, "gaps": gaps})
        return opened

    def verify(self) -> dict[str, Any]:
        last: dict[str, Any] = json.loads(done(self.request("POST", "/verify")).content.splitlines()[-1])
        return last


def hex_id(message_id: str) -> str:
    """The 40 hex digits of a message id in Avro's JSON encoding."""
    return message_id.encode("latin-1").hex()


def receipts(answer: requests.Response) -> list[dict[str, Any]]:
    """One receipt per message, from the runs that are answered."""
    found = []
    for run in answer.json()["receipts"]:
        message_id = run["messageId"] and hex_id(run["messageId"]["bytes"])
        sequence_id, offset = (run[name] and run[name]["long"] for name in ("sequenceId", "offset"))
        found += [
            {
                "status": run["status"],
                "id": message_id and f"{int(message_id, 16) + (step << 80):040x}",
                "sequence_id": None if sequence_id is None else sequence_id + step,
                "offset": None if offset is None else offset + step,
            }
            for step in range(run["count"])
        ]
    return found


def without_status(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != "status"} for each in found]


def assert_problem(answer: requests.Response, status: int, code: str, definite: bool = True) -> dict[str, Any]:
    """The answer is exactly this problem, with everything a client needs to go on."""
    asked = f"{answer.request.method} {answer.request.url} {ascii(answer.request.body)[:300]}"
    assert answer.status_code == status, (asked, answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (problem["status"], problem["code"], problem["definite"]) == (status, code, definite), (asked, problem)
    assert isinstance(problem["detail"], str)
    assert problem["detail"]
    assert problem["title"]
    return problem


def avro_publish(*messages: bytes, media: str = AVRO, **fields: Any) -> bytes:
    return encode("PublishRequest", media, {"transactionWritePointer": None, "messages": list(messages), **fields})


def avro_poll(media: str = AVRO, **fields: Any) -> bytes:
    record = {"startFrom": None, "inclusive": True, "limit": None, "transaction": None, **fields}
    return encode("ConsumeRequest", media, record)


MEDIA = (AVRO, ONCELOG_AVRO, JSON)


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A bare connection."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT) as connection:
        yield connection


def head(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *headers, "", ""]).encode("latin-1")


def read_answer(stream: Any) -> tuple[int, dict[str, str], bytes]:
    """One answer with a declared length from a socket's file; status 0 when the connection was closed instead."""
    line = stream.readline()
    if not line:
        return 0, {}, b""
    headers = {}
    while (text := stream.readline().strip()) != b"":
        name, _, value = text.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return int(line.split()[1]), headers, stream.read(int(headers.get("content-length", "0")))
