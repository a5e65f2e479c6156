"""No input yields a 5xx: random bytes, random JSON and damaged good requests, in every media type, on every address.

That what is cut short or has something behind it is refused is told of the codecs, in tests/sdk/test_hostile_bytes.py.
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import requests
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.wire.codec import avro_source, encode, encode_commit_request
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO, PROBLEM
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog.wire.transaction import Transaction
from oncelog_service.rest.routes import Route
from oncelog_service.rest.table import ROUTES
from tests.rest.talk import ANY, MEDIA, TIMEOUT, Topic, avro_poll, avro_publish
from tests.world.service import RunningService

MEDIA_OR_NOT = st.sampled_from([*MEDIA, "application/json; charset=utf-16", "", "text/plain"])
NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63)])
TEXT = st.text(st.characters(codec=None), max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        field["name"]
        for name in ("PublishRequest", "PublishResponse", "ConsumeRequest", "CommitRequest")
        for field in avro_source(JSON, name)["fields"]
    ]
    + ["name", "nonce", "gaps", "ttl", "deduplication", "generation"]
    + ["type", "timeoutMs", "changes", "resource", "writePointers", "beforeMs", "participant", "id", "of"]
)
NEARLY_RIGHT = st.dictionaries(FIELDS, VALUES, max_size=5).flatmap(
    lambda changed: st.sampled_from(
        [
            changed,
            {"messages": ["a", "b"], **changed},
            {"group": "g", **changed},
            {"group": "g", "parts": [{"namespace": "default", "topic": "fuzz", "request": {"messages": ["a"], **changed}}]},
        ]
    )
)
TAGS = st.sampled_from(["long", "bytes", "array", "null", "string", "int", "map"])
POINTER = time.time_ns()
"""Of another transaction service: taken, as long as it is young."""
CHECKED = {"check.expected.offsets": "true"}
RANGE = {"startTimestamp": POINTER // 10**6, "startSequenceId": 0, "endTimestamp": POINTER // 10**6 + 60_000, "endSequenceId": 9}
SEEN_BY = Transaction(POINTER + 1, POINTER, (7, 5), (POINTER,), write_pointer=POINTER + 1).to_bytes()
GOOD_AVRO = st.sampled_from(
    [
        avro_publish(b"payload", b""),
        avro_publish(b"p", media=ONCELOG_AVRO, producer="q", sequenceIds=[5], keys=[b"k"], properties=[{"a": "b"}], ttls=[9]),
        avro_publish(b"p", media=ONCELOG_AVRO, producer="q", sequenceIds=[2**63 - 1]),
        avro_publish(b"p", transactionWritePointer=POINTER),
        avro_publish(transactionWritePointer=POINTER),
        avro_publish(b"p", media=ONCELOG_AVRO, producer="r", sequenceIds=[5], transactionWritePointer=POINTER),
        encode("PublishResponse", AVRO, {**RANGE, "transactionWritePointer": POINTER}),
        encode("PublishResponse", ONCELOG_AVRO, {**RANGE, "transactionWritePointer": POINTER, "receipts": []}),
        avro_poll(startFrom=bytes(20), limit=5),
        avro_poll(startFrom=1_700_000_000_000),
        avro_poll(transaction=SEEN_BY),
        avro_poll(ONCELOG_AVRO, startFrom=bytes(20), limit=5, wait=1),
        avro_poll(ONCELOG_AVRO, startOffset=1),
        avro_publish(b"p", media=ONCELOG_AVRO, expectedOffset=0, expectedLastMessageId=bytes(20), expectedKeyOffsets={"k": None}),
        encode_commit_request(CommitRequest("g", [Part("default", "fuzz", PublishRequest([b"p"], keys=[b"k"]))])),
        encode_commit_request(CommitRequest("g", [Part("default", "fuzz", PublishRequest([b"p"]))], ["b"], "q", 5, "i", "c")),
    ]
)


@st.composite
def damaged_avro(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(GOOD_AVRO))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        kind = draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip" and at < len(body):
            body[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del body[at : at + draw(st.integers(1, 5))]
        else:
            body[at:at] = draw(st.binary(max_size=12))
    return bytes(body)


BODIES = (
    st.binary(max_size=200)
    | damaged_avro()
    | GOOD_AVRO
    | VALUES.map(lambda value: json.dumps(value).encode())
    | NEARLY_RIGHT.map(lambda value: json.dumps(value).encode())
    | st.builds(lambda tag, value: json.dumps({"messages": ["a"], "epoch": {tag: value}}).encode(), TAGS, VALUES)
)
PARAMETERS = st.sampled_from(["limit", "after", "sequenceId", "state", "wait", "storeId", "group"])
NAMES = st.sampled_from(["default", "fuzz", "p", "5", "here:t", "g", "0"]) | st.text(min_size=1, max_size=10)


def check(answer: requests.Response) -> str | None:
    """It is no fault of the service; the code of the refusal, if it is one."""
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == PROBLEM
        problem = answer.json()
        assert problem["status"] == answer.status_code
        assert problem["definite"] is True
        assert problem["code"]
        return str(problem["code"])
    return None


@given(st.sampled_from([route for route in ROUTES if route.method in ("POST", "PUT")]), MEDIA_OR_NOT, BODIES)
@example(ROUTES[0], JSON, b"[" * 900 + b"]" * 900)
def test_no_body_yields_a_5xx(shared: RunningService, topic: Topic, route: Route, media: str, body: bytes) -> None:
    fuzzed = Topic(shared.url, "fuzz", **CHECKED)
    transaction = "staging" if "/stage/" in route.path else uuid4().hex  # whose commit and abort would be the end of it
    if transaction == "staging":
        topic.session.post(shared.url + "/v1/atomic", json={"id": transaction, "group": "g"}, timeout=TIMEOUT)
    path = route.path.format(**{**ANY, "topic": "fuzz", "transaction": transaction})
    headers = {"content-type": media} if media else {}
    code = check(topic.session.request(route.method, shared.url + path, data=body, headers=headers, timeout=TIMEOUT))
    assert code in {None, *(error.code for error in route.errors)}, "it is not documented"
    fuzzed.session.close()


@given(st.sampled_from(ROUTES), NAMES, NAMES, NAMES, st.dictionaries(PARAMETERS, TEXT))
def test_no_address_yields_a_5xx(
    shared: RunningService, topic: Topic, route: Route, namespace: str, name: str, producer: str, query: dict[str, str]
) -> None:
    names = {"namespace": namespace, "topic": name, "producer": producer, "writePointer": producer, "participant": name}
    names |= {"transaction": name, "chunk": producer, "group": namespace, "subscription": producer, "token": name}
    path = route.path.format(**{part: quote(value.encode("utf-8", "surrogatepass"), safe="") for part, value in names.items()})
    asked = "&".join(f"{key}={quote(value.encode('utf-8', 'surrogatepass'))}" for key, value in query.items())
    answer = topic.session.request(route.method, f"{shared.url}{path}?{asked}", data=b"", timeout=TIMEOUT)
    check(answer)


@given(st.sampled_from([AVRO, ONCELOG_AVRO]), st.sampled_from(["/publish", "/store", "/rollback", "/poll"]), damaged_avro())
def test_no_damaged_avro_yields_a_5xx_and_what_is_accepted_reads_back(
    shared: RunningService, topic: Topic, media: str, path: str, body: bytes
) -> None:
    """Damage can leave another good request; whatever was accepted, the log must still be whole."""
    fuzzed = Topic(shared.url, "fuzz", **CHECKED)
    check(fuzzed.post(path, body, media))
    for each in MEDIA:
        answer = fuzzed.post("/poll", b'{"limit": 100000}' if each == JSON else avro_poll(each, limit=100_000), each)
        assert answer.status_code == 200, answer.text
    fuzzed.session.close()
