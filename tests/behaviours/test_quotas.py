"""CONTRACT §10: a topic takes as many messages and bytes a second as its quota says; who is refused is told when."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import requests

from oncelog import Producer, errors
from oncelog.http.answers import refusal
from oncelog.wire.models import NamespacePolicies
from tests.access.carrying import Carrying
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, assert_problem, avro_publish, done
from tests.world.house import House, told

MESSAGES, BYTES = "max.messages.per.second", "max.bytes.per.second"


def assert_refused(answer: requests.Response, quota: str, limit: int, ms: int) -> None:
    problem = assert_problem(answer, 429, "quota_exceeded", definite=True)
    assert (problem["quota"], problem["limit"], problem["retry_after_ms"]) == (quota, limit, ms)
    assert answer.headers["retry-after"] == str(-(-ms // 1000))
    assert answer.headers["oncelog-retry-after-ms"] == str(ms)
    assert answer.headers["ratelimit-policy"] == f'"{quota}";q={limit};w=1'
    assert answer.headers["ratelimit"] == f'"{quota}";r=0;t={-(-ms // 1000)}'


def later(house: House, seconds: float) -> None:
    house.clock.seconds += seconds


def test_a_topic_takes_as_many_messages_as_its_quota_says_and_counts_only_what_is_new(house: House) -> None:
    topic = house.make(**{MESSAGES: "4"})
    answer = topic.publish("m0", "m1", producer="p", sequenceIds=[0, 1])
    assert answer.headers["ratelimit-policy"] == '"messages";q=4;w=1'
    assert answer.headers["ratelimit"] == '"messages";r=2;t=1'
    assert told(topic.send("p", 0, 1, 2, 3)) == "ddss"
    for _ in range(3):
        assert_refused(topic.publish("m4", producer="p", sequenceIds=[4]), "messages", 4, 250)
    assert topic.producer("p")["lastPushed"] == 3
    assert told(topic.send("p", 0, 1, 2, 3)) == "dddd", "what is there counts for nothing"
    later(house, 0.25)
    assert told(topic.send("p", 4)) == "s"
    assert_refused(topic.publish("x"), "messages", 4, 250)
    later(house, 60)
    done(topic.publish(*"abcdefgh"))  # more than a bucket holds: when it is full, and then it is in debt
    assert_refused(topic.publish("x"), "messages", 4, 1250)
    assert [each["offset"] for each in topic.read()] == list(range(13))


def test_bytes_are_those_of_payloads_keys_and_properties(house: House) -> None:
    topic = house.make(**{BYTES: "100"})
    done(topic.publish("x" * 60, "y" * 30))
    assert_refused(topic.publish("x" * 11), "bytes", 100, 10)
    done(topic.publish("x" * 10))
    assert_refused(topic.post("/publish", avro_publish(b"x"), "avro/binary"), "bytes", 100, 10)
    for fields in ({"keys": ["k" * 95]}, {"properties": [{"name": "ä" * 46}]}):
        later(house, 60)
        done(topic.publish("", **fields))
        assert_problem(topic.publish("x" * 6), 429, "quota_exceeded")


def test_the_namespace_says_what_holds_where_a_topic_does_not(house: House) -> None:
    free, own = house.make("free"), house.make("own", **{MESSAGES: "2"})
    for topic in (free, own):
        done(topic.publish("x", "y"))
    house.client.set_policies(NamespacePolicies(max_messages_per_second=1, max_bytes_per_second=1000))
    assert house.client.policies().max_messages_per_second == 1
    done(free.publish("x"))
    assert_refused(free.publish("x"), "messages", 1, 1000)
    later(house, 1)
    done(own.publish("x", "y"))
    assert_refused(own.publish("x"), "messages", 2, 500)
    house.restart()
    done(free.publish("x"))
    assert_refused(free.publish("x"), "messages", 1, 1000)
    house.client.set_policies(NamespacePolicies())
    done(free.publish("x", "y", "z"))


def test_other_properties_hold_at_once(house: House) -> None:
    topic = house.make(**{MESSAGES: "1"})
    done(topic.publish("x"))
    assert_refused(topic.publish("x"), "messages", 1, 1000)
    assert topic.good("GET")["properties"][MESSAGES] == "1"
    done(topic.request("PUT", "/properties", json={MESSAGES: 3}))
    done(topic.publish("x", "y", "z"))
    assert_refused(topic.publish("x"), "messages", 3, 334)
    done(topic.request("PUT", "/properties", json={}))
    answer = done(topic.publish(*"abcdefgh"))
    assert "ratelimit" not in answer.headers


@pytest.mark.parametrize("name", [MESSAGES, BYTES, "max.bytes"])
def test_what_is_no_quota_is_refused(house: House, name: str) -> None:
    for value in ("0", "-1", "1.5", "", "x", "1000000000001", None, []):
        assert_problem(house.topic.request("PUT", "/properties", json={name: value}), 400, "invalid_request")


def commit(house: House, id_: str, parts: dict[str, int]) -> requests.Response:
    carried = [
        {"namespace": "default", "topic": name, "request": {"messages": ["x"] * count}} for name, count in parts.items() if count
    ]
    url = f"{house.service.url}/v1/atomic/{id_}/commit"
    return requests.post(url, json={"group": "g", "parts": carried}, timeout=TIMEOUT)


def test_an_atomic_commit_is_counted_by_all_of_its_topics_or_by_none(house: House) -> None:
    free, full = house.make("free", **{MESSAGES: "4"}), house.make("full", **{MESSAGES: "2"})
    done(full.publish("x"))
    for _ in range(3):
        assert_refused(commit(house, "a", {"free": 3, "full": 2}), "messages", 2, 500)
    assert requests.get(f"{house.service.url}/v1/atomic/a", timeout=TIMEOUT).status_code == 404, "nothing was begun"
    done(commit(house, "b", {"free": 4, "full": 1}))
    later(house, 1)
    assert done(commit(house, "a", {"free": 3, "full": 2})).json()["state"] == "committed"
    assert (len(free.read()), len(full.read())) == (7, 4)


def test_a_commit_that_was_begun_and_is_refused_for_now_goes_on_later(house: House) -> None:
    topic = house.make(**{MESSAGES: "2"})
    done(requests.post(f"{house.service.url}/v1/atomic", json={"id": "a", "group": "g"}, timeout=TIMEOUT))
    done(requests.put(f"{topic.url}/stage/a/0", json={"messages": ["staged"]}, timeout=TIMEOUT))
    assert_refused(commit(house, "a", {"t": 2}), "messages", 2, 500)
    later(house, 0.5)
    assert done(commit(house, "a", {"t": 2})).json()["messages"] == 3
    assert topic.payloads() == ["staged", "x", "x"]


def test_what_is_staged_or_stored_counts_then_and_appears_for_nothing(house: House) -> None:
    topic = house.make(**{MESSAGES: "2"})
    done(requests.post(f"{house.service.url}/v1/atomic", json={"id": "a", "group": "g"}, timeout=TIMEOUT))
    stage = f"{topic.url}/stage/a/"
    for _ in range(2):
        done(requests.put(stage + "0", json={"messages": ["x", "y"]}, timeout=TIMEOUT))
    assert_refused(requests.put(stage + "1", json={"messages": ["z"]}, timeout=TIMEOUT), "messages", 2, 500)
    done(commit(house, "a", {}))
    later(house, 1)
    pointer = house.start()
    topic.store_under(pointer, "x", "y")
    assert_refused(topic.store(pointer, "z"), "messages", 2, 500)
    done(topic.publish(transactionWritePointer=pointer))
    assert len(topic.read()) == 4


def test_a_producer_comes_again_when_told_and_stores_each_message_once(house: House) -> None:
    topic = house.make(**{MESSAGES: "10"})
    done(topic.publish(*["x"] * 19))  # in debt, for a second by a clock that stands still
    with Producer("t", name="p", url=house.service.url, delivery_timeout=PATIENCE) as producer:
        sent = [producer.send_async(f"m{each}".encode()) for each in range(3)]
        until(lambda: producer.last_sequence_id is None and not sent[0].done(), "it waits")
        later(house, 2)
        assert [each.result(PATIENCE).status for each in sent] == ["stored"] * 3
    assert topic.payloads()[19:] == ["m0", "m1", "m2"]


def test_the_sdk_says_what_the_quota_is_and_heeds_parts_of_a_second(house: House) -> None:
    topic = house.make(**{MESSAGES: "8"})
    done(topic.publish(*["x"] * 8))
    with Producer("t", url=house.service.url, delivery_timeout=0.2) as producer, pytest.raises(errors.QuotaExceeded) as refused:
        producer.send(b"x")
    error = refused.value
    assert (error.quota, error.limit, error.retry_after_ms, error.definite) == ("messages", 8, 125, True)
    answer = topic.publish("x")
    heeded = refusal("", 429, answer.headers, answer.content, datetime.now(UTC))
    assert (answer.headers["retry-after"], heeded.retry_after) == ("1", 0.125)


def test_a_principal_takes_from_its_own_quota_on_all_topics(house: House) -> None:
    house.restart(max_principal_messages_per_second=4)
    one, _ = house.make("one"), house.make("other")
    done(one.publish(*"abcdefgh"))  # nobody has a name yet
    admin = Carrying(house.service.url).holding("ada", "admin")
    loader = admin.holding("loader", "write:default/*")
    publish = "/v1/namespaces/default/topics/{}/publish"
    done(loader.request("POST", publish.format("one"), json={"messages": ["x"] * 3}))
    assert_refused(loader.request("POST", publish.format("other"), json={"messages": ["x"] * 2}), "messages", 4, 250)
    parts = [{"namespace": "default", "topic": name, "request": {"messages": ["x"]}} for name in ("one", "other")]
    commit = {"group": "g", "parts": parts}
    assert_refused(loader.request("POST", "/v1/atomic/a/commit", json=commit), "messages", 4, 250)
    done(admin.request("POST", publish.format("other"), json={"messages": ["x"] * 4}))
    later(house, 0.25)
    done(loader.request("POST", "/v1/atomic/a/commit", json=commit))
    house.damaged = True  # who verifies here has no token
