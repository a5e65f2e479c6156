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
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO

TARGET_MS = 50.0
_BYTES = 8 * 2**20 - 100
_TOPIC = "/v1/namespaces/default/topics/lag"
_TIMES = 3


def _bodies() -> Mapping[str, tuple[str, str, bytes]]:
    """What → (address below the topic, media type, body). Each is as large as a body may be, or holds as much."""
    maps, arrays = _BYTES // 2, _BYTES // 3
    plain = [b"x" * 780] * 10_000
    entries = b"".join(b"\x02%c\x02v" % (97 + at) for at in range(8))
    properties = (b"\x02" + encode_long(8) + entries + b"\x00") * 10_000
    return {
        "4 million empty maps, Avro": ("/publish", ONCELOG_AVRO, b"\x00" * 5 + b"\x02" + encode_long(maps) + b"\x02\x00" * maps),
        "8 million empty messages, Avro": ("/publish", AVRO, b"\x02" + encode_long(_BYTES) + b"\x00" * (_BYTES + 1)),
        "2.8 million empty arrays, JSON": ("/publish", JSON, b'{"messages": [' + b"[]," * (arrays - 10) + b"[]]}"),
        "33,000 values of the wrong kind, JSON": ("/publish", JSON, b'{"messages": [' + b"[]," * 33_000 + b"[]]}"),
        "one message of 8 MiB, JSON": ("/publish", JSON, json.dumps({"messages": ["x" * (_BYTES - 100)]}).encode()),
        "10,000 messages, 8 MiB, Avro": (
            "/publish",
            AVRO,
            b"\x02" + b"".join(encode_array(map(encode_bytes, plain), len(plain))),
        ),
        "10,000 messages with 80,000 properties, Avro": (
            "/publish",
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
        ),
        "a poll of 100,000 messages, Avro": ("/poll", ONCELOG_AVRO, b"\x04\x00\x01\x00" + encode_long(100_000) + b"\x00\x02"),
        "a poll of 100,000 messages, JSON": ("/poll", JSON, b'{"limit": 100000}'),
        "a verification": ("/verify", JSON, b""),
        "nothing": ("/stats", JSON, b""),
    }


def lag() -> list[Row]:
    """The longest answer to a small request beside each large one, ms: the machine's own noise is in it, see the last line."""
    with running("oncelog") as server:
        requests.put(server.url + _TOPIC, json={}, timeout=60).raise_for_status()
        rows = []
        for what, (path, media, body) in _bodies().items():
            longest = min(_longest_beside(server.url, path, media, body) for _ in range(_TIMES))
            rows.append(Row(f"others wait beside {what}", longest, "ms", f"at most {TARGET_MS:.0f} ms", longest <= TARGET_MS))
        return rows


def _longest_beside(url: str, path: str, media: str, body: bytes) -> float:
    """Milliseconds of the longest answer to others while this one is sent and answered."""
    ended = threading.Event()

    def large() -> None:
        method = "GET" if path == "/stats" else "POST"
        requests.request(method, url + _TOPIC + path, data=body, headers={"content-type": media}, timeout=120)
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
    return longest * 1000
