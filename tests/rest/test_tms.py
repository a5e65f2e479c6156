"""The examples of the TMS page: its addresses, its status codes, its schemas byte for byte."""

from __future__ import annotations

from oncelog.wire.avro_parts import encode_bytes, encode_long
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from tests.rest.talk import TIMEOUT, Topic, assert_problem, connected, head, read_answer
from tests.support import ManualClock, RunningService, running_service


def test_a_topic_lives_as_the_tms_page_says(running: RunningService) -> None:
    topic = Topic(running.url, "life", create=False)
    assert_problem(topic.request("GET", ""), 404, "topic_not_found")
    assert topic.request("PUT", "", json={"ttl": "86400"}).status_code == 200
    assert_problem(topic.request("PUT", "", json={"ttl": "86400"}), 409, "topic_exists")
    assert_problem(topic.request("PUT", "", json={"ttl": "never"}), 400, "invalid_request")
    assert topic.request("GET", "").json() == {"name": "life", "properties": {"ttl": "86400", "generation": "1"}}
    assert topic.request("PUT", "/properties", json={"ttl": "3600"}).status_code == 200
    assert topic.request("GET", "").json()["properties"]["ttl"] == "3600"
    assert topic.request("PUT", "/properties", json={}).status_code == 200, "replaces all"
    assert topic.request("GET", "").json()["properties"] == {"ttl": "604800", "generation": "1"}
    assert_problem(topic.request("PUT", "/properties", json={"ttl": "x"}), 400, "invalid_request")
    assert topic.request("DELETE", "").status_code == 200
    assert_problem(topic.request("DELETE", ""), 404, "topic_not_found")
    assert_problem(topic.request("PUT", "/properties", json={}), 404, "topic_not_found")
    assert_problem(topic.request("GET", ""), 404, "topic_not_found")


def test_a_topic_is_created_without_a_body(running: RunningService) -> None:
    topic = Topic(running.url, "bare", create=False)
    assert topic.request("PUT", "").status_code == 200
    assert topic.request("GET", "").json() == {"name": "bare", "properties": {"ttl": "604800", "generation": "1"}}


def test_topics_are_listed_by_namespace(running: RunningService) -> None:
    for name, namespace in [("b", "one"), ("a.b-c_D", "one"), ("x" * 249, "one"), ("b", "two")]:
        Topic(running.url, name, namespace)
    session = Topic(running.url, create=False).session
    of = f"{running.url}/v1/namespaces/%s/topics"
    assert session.get(of % "one", timeout=TIMEOUT).json() == ["a.b-c_D", "b", "x" * 249]
    assert session.get(of % "two", timeout=TIMEOUT).json() == ["b"]
    assert session.get(of % "three", timeout=TIMEOUT).json() == []
    assert session.get(f"{running.url}/v1/namespaces", timeout=TIMEOUT).json() == ["one", "two"]
    Topic(running.url, "b", "two").request("DELETE", "")
    assert session.get(of % "two", timeout=TIMEOUT).json() == []


def test_publish_and_poll_in_the_tms_form_byte_for_byte() -> None:
    clock = ManualClock(1_000_000)
    with running_service(clock=clock) as service:
        topic = Topic(service.url)
        published = topic.post("/publish", bytes.fromhex("02" + "04" + "02" + "61" + "04" + "0062" + "00"), AVRO)
        assert published.status_code == 200
        assert published.content == b"", "without a write pointer there is nothing to roll back"
        polled = topic.post("/poll", bytes.fromhex("04" + "01" + "02" + "02"), AVRO)
        assert polled.status_code == 200
        assert polled.headers["content-type"] == AVRO
        stamp = (1_000_000).to_bytes(8, "big")
        ids = [stamp + seq_id.to_bytes(2, "big") + bytes(10) for seq_id in (0, 1)]
        messages = [encode_bytes(ids[0]) + encode_bytes(b"a"), encode_bytes(ids[1]) + encode_bytes(b"\x00b")]
        assert polled.content == b"\x04" + messages[0] + messages[1] + b"\x00"
        behind_first = topic.post("/poll", b"\x00" + encode_bytes(ids[0]) + b"\x00" + b"\x00\x02" + b"\x02", AVRO)
        assert behind_first.content == b"\x02" + messages[1] + b"\x00"
        nothing = topic.post("/poll", b"\x00" + encode_bytes(ids[1]) + b"\x00\x02\x02", AVRO)
        assert nothing.content == b"\x00"


def test_blocks_with_their_size_are_read_as_well(running: RunningService) -> None:
    """Avro's writers may announce a block by a negative count and its size in bytes; Java's do."""
    topic = Topic(running.url)
    block = encode_long(-1) + encode_long(2) + b"\x02a" + encode_long(1) + b"\x02b" + b"\x00"
    assert topic.post("/publish", b"\x02" + block, AVRO).status_code == 200
    assert topic.payloads() == ["a", "b"]


def test_what_is_published_in_one_form_is_read_in_every_other(running: RunningService) -> None:
    topic = Topic(running.url)
    payload = bytes(range(256))
    topic.post("/publish", b"\x02\x02" + encode_bytes(payload) + b"\x00", AVRO)
    topic.publish(payload.decode("latin-1"), keys=["k\xff"], properties=[{"a": "\u20ac"}], ttls=[50])
    in_json = topic.read()
    assert [message["payload"] for message in in_json] == [payload.decode("latin-1")] * 2
    assert in_json[0]["key"] is None
    assert (in_json[1]["key"], in_json[1]["properties"], in_json[1]["ttl"]) == (
        {"bytes": "k\xff"},
        {"map": {"a": "\u20ac"}},
        {"long": 50},
    )
    assert topic.post("/poll", b"\x04\x01\x02\x02", AVRO).content.count(payload) == 2
    full = topic.post("/poll", b"\x04\x00\x01\x02\x00\x02\x00\x00", ONCELOG_AVRO)
    assert full.headers["content-type"] == ONCELOG_AVRO
    assert full.content.count(payload) == 2


def test_unions_in_json_are_read_with_and_without_their_tags(running: RunningService) -> None:
    topic = Topic(running.url)
    tagged = {"producer": {"string": "p"}, "sequenceIds": {"array": [7]}, "messages": ["a"], "transactionWritePointer": None}
    assert topic.request("POST", "/publish", json=tagged).status_code == 200
    assert topic.send("p", 7, payload="a")[0]["status"] == "duplicate"
    first = topic.read()[0]["id"]
    for start in (first, {"bytes": first}, first.encode("latin-1").hex()):
        assert topic.payloads(startFrom=start, limit={"int": 5}) == ["a"]


def test_the_media_type_may_carry_parameters(running: RunningService) -> None:
    topic = Topic(running.url)
    assert topic.post("/publish", b'{"messages":["a"]}', JSON + "; charset=utf-8").status_code == 200
    assert topic.post("/poll", b"{}", "Application/JSON").json()[0]["payload"] == "a"


def test_head_answers_like_get_without_a_body(running: RunningService) -> None:
    with connected(running.url) as connection:
        connection.sendall(head("HEAD", "/healthz") + head("GET", "/healthz"))
        stream = connection.makefile("rb")
        assert stream.readline().startswith(b"HTTP/1.1 200")
        while stream.readline().strip():
            pass
        assert read_answer(stream)[0] == 200
