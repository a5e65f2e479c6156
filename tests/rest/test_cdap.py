"""What CDAP's own clients need and the TMS page does not say: with the setting it is so, without it as the page has it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import requests

from oncelog import AsyncClient
from oncelog.errors import InvalidRequest
from oncelog.wire.avro_parts import encode_long
from oncelog.wire.codec import decode
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog_service.config import Settings
from oncelog_service.properties import check_properties
from oncelog_service.renewal import begin_incarnation
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import TopicRow, decode_record, encode_record
from tests.cluster.instances import InPlace, Instances, address
from tests.patience import PATIENCE
from tests.rest.talk import Topic, assert_problem, avro_poll, done
from tests.world.clock import ManualClock
from tests.world.disk import crashed
from tests.world.house import HOUR, House
from tests.world.shared import SharedDatabase

AS_JSON = {"accept": JSON}
BEYOND = b"\xff" * 20


@pytest.fixture
def cdap() -> Iterator[House]:
    """A service that serves CDAP's clients."""
    with House(cdap_clients=True) as house:
        yield house


def put(topic: Topic, path: str, properties: object) -> requests.Response:
    """As CDAP's clients do: a body that does not say what it is."""
    return topic.request("PUT", path, data=json.dumps(properties).encode())


def poll(topic: Topic, start: bytes | None = None, inclusive: bool = False, media: str = AVRO) -> requests.Response:
    """As CDAP's clients do: everything from an id on."""
    return topic.post("/poll", avro_poll(media, startFrom=start, inclusive=inclusive), media)


def read(topic: Topic, *start: Any) -> list[tuple[bytes, bytes]]:
    found = decode("ConsumeResponse", AVRO, done(poll(topic, *start)).content)
    return [(each["id"], each["payload"]) for each in found]


def payloads(topic: Topic, *start: Any) -> list[bytes]:
    return [payload for _, payload in read(topic, *start)]


def test_the_setting_implies_the_one_for_foreign_pointers() -> None:
    limits = [Settings(store="memory://", cdap_clients=on).limits for on in (False, True)]
    assert [each.foreign_write_pointers for each in limits] == [False, True]
    with pytest.raises(ValueError, match="--foreign-write-pointers on"):
        Settings(store="memory://", cdap_clients=True, foreign_write_pointers=False)


# --- properties


def test_properties_come_and_go_as_cdaps_clients_have_them(cdap: House) -> None:
    topic = Topic(cdap.service.url, "made", create=False)
    for made in range(1, 4):
        done(put(topic, "", {"ttl": "+100", "owner": "me", "generation": "77"}))
        assert topic.good("GET") == {"ttl": "+100", "owner": "me", "generation": str(made)}
        assert topic.good("GET", headers=AS_JSON) == {"name": "made", "properties": topic.good("GET")}
        done(put(topic, "/properties", {**topic.good("GET"), "ttl": 5, "generation": "-3", "": "\u20ac\n"}))
        assert topic.good("GET") == {"ttl": "5", "owner": "me", "generation": str(made), "": "\u20ac\n"}
        done(put(topic, "/properties", {}))
        assert topic.good("GET", headers={"accept": "text/html, image/gif, *; q=.2, */*; q=.2"}) == {
            "ttl": "604800",
            "generation": str(made),
        }
        assert_problem(put(topic, "", {}), 409, "topic_exists")
        done(topic.request("DELETE"))
    assert done(topic.request("PUT")).content == b"null\n"


def test_the_sdk_reads_a_topic_as_ever(cdap: House) -> None:
    Topic(cdap.service.url, "t", owner="me")
    expected = {"ttl": "604800", "owner": "me", "generation": "1"}
    assert cdap.client.topic("t").properties == expected

    async def both() -> dict[str, str]:
        async with AsyncClient(cdap.service.url) as client:
            return (await client.topic("t")).properties

    assert asyncio.run(both()) == expected


def test_without_the_setting_all_is_as_the_page_has_it(running: Any) -> None:
    topic = Topic(running.url)
    assert_problem(put(topic, "/properties", {"ttl": "5"}), 415, "unsupported_media_type")
    for wrong in ({"owner": "me"}, {"generation": "77"}):
        assert_problem(topic.request("PUT", "/properties", json=wrong), 400, "invalid_request")
    assert topic.good("GET") == topic.good("GET", headers=AS_JSON)
    for pointer in (0, -5):
        for path in ("/publish", "/store"):
            assert_problem(under(topic, pointer, path), 400, "invalid_request")


@pytest.mark.parametrize("path", ["/v1/namespaces/default/policies", f"{address('t')}/stage/a/0"])
def test_what_is_put_elsewhere_says_what_it_is(cdap: House, path: str) -> None:
    topic = Topic(cdap.service.url)
    answer = topic.session.put(topic.base + path, data=b"{}", timeout=PATIENCE)
    assert_problem(answer, 415, "unsupported_media_type")


FULL = {str(number): "x" for number in range(32)}
TTLS = [
    ("1", True), ("+5", True), ("+0005", True), ("007", True), ("2147483647", True), ("+2147483647", True), ("2147483648", False),
    ("0", False), ("+0", False), ("-5", False), ("++5", False), ("+", False), ("", False), (" 5", False), ("5 ", False),
    ("5\n", False), ("5.0", False), ("1_0", False), ("\u0665", False), ("9" * 400, False), ("+" + "0" * 400 + "5", False),
]  # fmt: skip
PROPERTIES: list[tuple[object, bool]] = [
    *(({"ttl": ttl}, good) for ttl, good in TTLS),
    ({"note": "5", "kept for": "x"}, True),
    ({"deduplication": "perhaps"}, False),
    (FULL, True),
    ({**FULL, "ttl": "5", "deduplication": "false"}, True),
    ({**FULL, "one more": "x"}, False),
    ({"k": "x" * 4095}, True),
    ({"k": "x" * 4096}, False),
    ({"k" * 4097: ""}, False),
    ({"k": "\ud800"}, False),
    ({"k": None}, False),
    ({"tll": "60"}, False),
    ({"TTL": "60"}, False),
    ({"max.bytes ": "60"}, False),
    ({"description": "60", "title": "60", "total": "60", "transaction": "60"}, True),
    ({"deduplicaton": "off"}, False),
    ({"k": 1.5}, False),
    ([], False),
]


@pytest.mark.parametrize(("properties", "good"), PROPERTIES)
def test_unknown_properties_are_kept_within_bounds_and_known_ones_are_judged(properties: object, good: bool) -> None:
    if good:
        assert check_properties(properties, lenient=True) == properties
    else:
        with pytest.raises(InvalidRequest):
            check_properties(properties, lenient=True)


def test_what_is_kept_is_no_obstacle_once_the_setting_is_taken_away_and_no_log_shows_it(
    cdap: House, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        topic = Topic(cdap.service.url, "kept", ttl="5", password="s3cret")
        cdap.restart(cdap_clients=False)
        topic = Topic(cdap.service.url, "kept", create=False)
        kept = topic.good("GET")["properties"]
        assert kept == {"ttl": "5", "password": "s3cret", "generation": "1"}
        expected = {"params": {"expected": json.dumps(kept)}}
        done(topic.request("PUT", "/properties", json={**kept, "ttl": "6"}, **expected))
        assert topic.good("GET")["properties"] == {**kept, "ttl": "6"}
        for wrong in ({"password": "another"}, {"password": "s3cret", "owner": "me"}):
            assert_problem(topic.request("PUT", "/properties", json=wrong), 400, "invalid_request")
        topic.publish("m")
        assert topic.payloads() == ["m"]
        done(topic.request("PUT", "/properties", json={}))
        assert_problem(topic.request("PUT", "/properties", json={"password": "s3cret"}), 400, "invalid_request")
    audited = [each.getMessage() for each in caplog.records if each.name == "oncelog.audit"]
    assert any("password" in line and "ttl" in line for line in audited)
    assert not any("s3cret" in each.getMessage() for each in caplog.records)


def test_a_ttl_of_an_older_version_stays_and_is_shown_as_the_longest_one(cdap: House) -> None:
    topic = Topic(cdap.service.url, "t", ttl="5")
    rows = cdap.disk.tables[Table.TOPIC]
    [(key, row)] = rows.items()
    rows[key] = encode_record(replace(decode_record(TopicRow, row), properties={"ttl": "3153600000"}))
    assert topic.good("GET")["ttl"] == "2147483647"
    assert topic.good("GET", headers=AS_JSON)["properties"]["ttl"] == "3153600000"
    done(put(topic, "/properties", {"ttl": "3153600000", "deduplication": "false"}))
    assert_problem(put(topic, "/properties", {"ttl": "3153600001"}), 400, "invalid_request")


# --- ids


def test_an_id_of_an_older_generation_is_a_moment(cdap: House) -> None:
    """Also one whose time lies ahead of the clock."""
    topic = Topic(cdap.service.url, "anew")
    cdap.clock.advance(HOUR)
    topic.publish("old 1", "old 2")
    [(_, _), (old, _)] = read(topic)
    cdap.clock.advance(-2 * HOUR)
    done(topic.request("DELETE"))
    done(topic.request("PUT"))
    for inclusive in (False, True):
        assert read(topic, old, inclusive) == []
    topic.publish("new 1")
    topic.publish("new 2")
    for inclusive in (False, True):
        assert payloads(topic, old, inclusive) == [b"new 1", b"new 2"], "none is skipped"
    position, found = old, list[bytes]()
    for number in range(3, 6):
        page = read(topic, position)
        position, found = page[-1][0], [*found, *(payload for _, payload in page)]
        topic.publish(f"new {number}")
    assert found == [b"new 1", b"new 2", b"new 3", b"new 4"], "none comes twice"
    assert payloads(topic, position, True) == [b"new 4", b"new 5"], "the newest id is a place"
    for media in (JSON, ONCELOG_AVRO):
        body = json.dumps({"startFrom": {"bytes": old.decode("latin-1")}}).encode() if media == JSON else None
        answer = topic.post("/poll", body, JSON) if body else poll(topic, old, media=ONCELOG_AVRO)
        assert_problem(answer, 400, "stale_message_id")
    cdap.restart(cdap_clients=False)
    assert_problem(poll(Topic(cdap.service.url, "anew", create=False), old), 400, "stale_message_id")


def test_an_id_of_a_lost_time_is_a_moment_and_generations_are_counted_on(cdap: House) -> None:
    topic = Topic(cdap.service.url, "lost")
    topic.publish("kept")
    cdap.clock.advance(HOUR)
    saved = crashed(cdap.disk)
    topic.publish("lost 1")
    (kept, _), (lost, _) = read(topic)
    late = Topic(cdap.service.url, "late")
    late.publish("lost 2")
    [(of_late, _)] = read(late)
    cdap.clock.advance(HOUR)
    cdap.disk = saved
    begin_incarnation(MemoryStore(saved), cdap.clock.now_ms())
    cdap.clock.advance(-3 * HOUR)
    cdap.restart(cdap_clients=True)
    topic, late = (Topic(cdap.service.url, name) for name in ("lost", "late"))
    assert topic.good("GET")["generation"] == "1"
    assert int(topic.good("GET", headers=AS_JSON)["properties"]["generation"]) > 2**31, "ours is that of the incarnation"
    for each in (topic, late):
        each.publish("new")
    assert payloads(topic, lost) == payloads(topic, lost, True) == payloads(topic, kept) == [b"new"]
    assert payloads(late, of_late) == payloads(late, lost) == [b"new"]
    assert payloads(topic, kept, True) == [b"kept", b"new"]
    assert payloads(topic, read(topic)[-1][0]) == []


def test_an_id_behind_every_other_begins_at_the_end(running: Any) -> None:
    """Without the setting, too."""
    topic = Topic(running.url)
    assert payloads(topic, BEYOND) == []
    for _ in range(2):
        topic.publish("there")
        assert payloads(topic, BEYOND) == payloads(topic, BEYOND, True) == []
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(topic.payloads, startFrom={"bytes": BEYOND.decode("latin-1")}, wait=60_000)
            running.arrived(1)
            topic.publish("then")
            assert waiting.result(PATIENCE) == ["then"]
        done(topic.request("DELETE"))
        done(topic.request("PUT"))


@pytest.mark.parametrize("time", [2**62 + 1, 2**63 - 1])
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_start_beyond_every_time_is_empty(topic: Topic, time: int, inclusive: bool) -> None:
    assert done(topic.post("/poll", b"\x02" + encode_long(time) + bytes([inclusive]) + b"\x02\x02", AVRO)).content == b"\x00"
    assert topic.read(startFrom={"long": time}, inclusive=inclusive) == []


# --- write pointers


def under(topic: Topic, pointer: int, path: str = "/publish", **headers: str) -> requests.Response:
    body = b"\x00" + encode_long(pointer) + b"\x02\x02x\x00"
    return topic.request("POST", path, data=body, headers={"content-type": AVRO, **headers})


@pytest.mark.parametrize("path", ["/publish", "/store"])
def test_what_can_be_no_pointer_any_more_is_a_conflict(path: str) -> None:
    now_s = 1_000_000
    with House(ManualClock(now_s * 1000), cdap_clients=True, max_transaction_lifetime_seconds=100) as house:
        topic = Topic(house.service.url)
        for pointer in (0, -1, -(2**63) + 1, -(2**63), 1, 499_999, (now_s - 101) * 10**9):
            problem = assert_problem(under(topic, pointer, path), 409, "transaction_not_in_progress")
            assert problem["write_pointer"] == pointer
            from_java = {"user-agent": "Java/17.0.15"}
            assert under(topic, pointer, path, **from_java).status_code == (409 if pointer > 0 else 500), "as 6.10 asks for"
        assert_problem(under(topic, 500_000, path), 409, "unknown_write_pointer")
        ahead = assert_problem(under(topic, (now_s + 101) * 10**9, path), 409, "transaction_not_in_progress")
        assert "was handed out 101 s ahead of the clock" in ahead["detail"]
        assert payloads(topic) == []
        done(under(topic, (now_s - 99) * 10**9, path))


# --- several instances


def test_an_instance_passes_on_what_cdaps_clients_cannot_send_elsewhere() -> None:
    """Also to one without the setting, and the types that it has been told of."""
    database = SharedDatabase(lambda: 0)
    there, here = InPlace(database, "there"), InPlace(database, "here", cdap_clients=True)
    found = Instances([there, here])
    try:
        found.make_whole()
        with found.client(retry=PATIENCE) as client:
            path = address(found.topic_at(there, client))
        done(here.ask("PUT", path + "/properties", data=b'{"ttl": "7"}'))
        assert done(here.ask("GET", path)).json() == {"ttl": "7", "generation": "1"}
        publish = {"data": b"\x02\x02\x02x\x00", "headers": {"content-type": AVRO}}
        done(here.ask("POST", path + "/publish", **publish))
        for media in (JSON, ONCELOG_AVRO):
            redirected = here.ask("POST", path + "/publish", data=b"{}", headers={"content-type": media})
            assert redirected.status_code == 307
        assert done(here.ask("POST", path + "/poll", data=avro_poll(), headers={"content-type": AVRO})).content.endswith(
            b"\x02x\x00"
        )
        done(here.ask("DELETE", path))
        assert there.ask("POST", path + "/publish", **publish).status_code in (404, 307)
    finally:
        for each in found.all:
            each.stop()
