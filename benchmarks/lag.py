"""How long others wait while one request has all that a body may hold: the longest small answer beside each large one."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import requests

from benchmarks.measure import Row, running
from oncelog.wire.avro_parts import encode_array, encode_bytes, encode_long
from oncelog.wire.codec import encode_consume_request
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.requests import ConsumeRequest

TARGET_MS = 50.0
_BYTES = 8 * 2**20 - 100
_TOPIC = "/v1/namespaces/default/topics/lag"
_TRANSACTION = "/v1/transactions/{tx}"
_TIMES = 3


def _bodies() -> Mapping[str, tuple[str, str, bytes, int]]:
    """What → (address, media type, body, status). Each is as large as a body may be, or holds as much. ``{tx}`` in an address: a
    transaction that has just begun."""
    maps, arrays = _BYTES // 2, _BYTES // 3
    plain = [b"x" * 780] * 10_000
    entries = b"".join(b"\x02%c\x02v" % (97 + at) for at in range(8))
    properties = (b"\x02" + encode_long(8) + entries + b"\x00") * 10_000
    return {
        "4 million empty maps, Avro": (
            _TOPIC + "/publish",
            ONCELOG_AVRO,
            b"\x00" * 5 + b"\x02" + encode_long(maps) + b"\x02\x00" * maps,
            413,
        ),
        "8 million empty messages, Avro": (
            _TOPIC + "/publish",
            AVRO,
            b"\x02" + encode_long(_BYTES) + b"\x00" * (_BYTES + 1),
            413,
        ),
        "2.8 million empty arrays, JSON": (_TOPIC + "/publish", JSON, _messages(b"[]", arrays - 10), 413),
        "33,000 values of the wrong kind, JSON": (_TOPIC + "/publish", JSON, _messages(b"[]", 33_000), 400),
        "99,000 changed keys of the wrong kind": (_TRANSACTION + "/commit", JSON, _changes(b"1", 99_000), 400),
        "99,000 changed keys, too many": (_TRANSACTION + "/commit", JSON, _changes(b'"key-%06d"', 99_000), 413),
        "20,000 changed keys": (_TRANSACTION + "/commit", JSON, _changes(b'"key-%06d"', 20_000), 200),
        "one message of 8 MiB, JSON": (
            _TOPIC + "/publish",
            JSON,
            json.dumps({"messages": ["x" * (_BYTES - 100)]}).encode(),
            200,
        ),
        "10,000 messages, 8 MiB, Avro": (
            _TOPIC + "/publish",
            AVRO,
            b"\x02" + b"".join(encode_array(map(encode_bytes, plain), len(plain))),
            200,
        ),
        "10,000 messages with 80,000 properties, Avro": (
            _TOPIC + "/publish",
            ONCELOG_AVRO,
            b"\x00" * 5
            + b"\x02"
            + encode_long(10_000)
            + properties
            + b"\x00"
            + b"\x00" * 4
            + encode_long(10_000)
            + b"\x02x" * 10_000
            + b"\x00",
            200,
        ),
        "a poll of 100,000 messages, Avro": (
            _TOPIC + "/poll",
            ONCELOG_AVRO,
            encode_consume_request(ConsumeRequest(limit=100_000)),
            200,
        ),
        "a poll of 100,000 messages, JSON": (_TOPIC + "/poll", JSON, b'{"limit": 100000}', 200),
        "2,000 rows to look at": (_TOPIC + "/rows?limit=2000", JSON, b"", 200),
        "2,000 of 3,000 producers": (_TOPIC + "/producers?limit=2000", JSON, b"", 200),
        "a verification": (_TOPIC + "/verify", JSON, b"", 200),
        "nothing": (_TOPIC + "/stats", JSON, b"", 200),
    }


def _messages(each: bytes, count: int) -> bytes:
    return b'{"messages": [' + b",".join([each] * count) + b"]}"


def _changes(each: bytes, count: int) -> bytes:
    keys = (each % number if b"%" in each else each for number in range(count))
    return b'{"changes": [' + b",".join(keys) + b"]}"


def lag() -> list[Row]:
    """The longest answer to a small request beside each large one, ms: the machine's own noise is in it, see the last line."""
    with running("oncelog") as server:
        requests.put(server.url + _TOPIC, json={}, timeout=60).raise_for_status()
        with requests.Session() as session:
            for number in range(3_000):
                body = {"messages": ["x"], "producer": f"p{number * 7 % 3_000}", "sequenceIds": [0]}
                session.post(server.url + _TOPIC + "/publish", json=body, timeout=60).raise_for_status()
        rows = []
        for what, (path, media, body, status) in _bodies().items():
            longest = min(_longest_beside(server.url, path, media, body, status) for _ in range(_TIMES))
            rows.append(Row(f"others wait beside {what}", longest, "ms", f"at most {TARGET_MS:.0f} ms", longest <= TARGET_MS))
        return rows


def _longest_beside(url: str, path: str, media: str, body: bytes, status: int) -> float:
    """Milliseconds of the longest answer to others while this one is answered. Raises RuntimeError for another status."""
    ended = threading.Event()
    answered: list[int] = []
    if "{tx}" in path:
        begun = requests.post(url + "/v1/transactions", json={}, timeout=60).json()
        path = path.format(tx=begun["writePointer"])

    def large() -> None:
        method = "POST" if body or path.endswith("/verify") else "GET"
        answer = requests.request(method, url + path, data=body, headers={"content-type": media}, timeout=120)
        answered.append(answer.status_code)
        time.sleep(0.05)
        ended.set()

    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    sender = threading.Thread(target=large)
    sender.start()
    longest = 0.0
    while not ended.is_set():
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        longest = max(longest, time.perf_counter() - began)
    sender.join()
    connection.close()
    if answered != [status]:
        raise RuntimeError(f"{path} answered {answered} instead of {status}")
    return longest * 1000
