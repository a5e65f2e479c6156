"""CONTRACT §3: named producers and deduplication."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.rest.talk import TIMEOUT, assert_problem, without_status
from tests.world.house import House, told


def test_the_smallest_and_the_largest_sequence_id_are_like_any_other(house: House) -> None:
    topic, last = house.topic, 2**63 - 1
    assert topic.open_producer("p", "n")["lastSequenceId"] is None
    assert told(topic.send("p", 0)) == "s"
    assert topic.open_producer("p", "m")["lastSequenceId"] == topic.producer("p")["lastPersisted"] == 0
    assert topic.read()[0]["sequenceId"] == {"long": 0}
    assert told(topic.send("p", 0, last)) == "ds"
    assert told(topic.send("p", 5, last)) == "dd"
    assert told(topic.send("q", 5)) == "s"
    assert_problem(topic.publish("x", producer="p", sequenceIds=[last + 1]), 400, "invalid_request")


@pytest.mark.parametrize("many", [1, 2_500])
def test_a_retry_gets_the_original_ids_over_restarts_too(house: House, many: int) -> None:
    topic = house.topic
    first, second = range(many), range(many // 2, 2 * many)
    expected = topic.send("p", *first)[many // 2 :]
    for each in range(30):
        topic.send(f"other{each}", *range(5))
    expected += topic.send("p", *second)[len(expected) :]
    before = topic.stats()["upcomingOffset"]
    for _ in house.lives():
        again = topic.send("p", *second)  # partly a duplicate itself
        assert told(again) == "d" * len(second)
        assert without_status(again) == without_status(expected)
        assert without_status(topic.send("p", *second[-many // 2 :])) == without_status(expected[-many // 2 :])
        assert topic.stats()["upcomingOffset"] == before, "what is all duplicate moves nothing"
    answer = topic.publish(*(f"m{each}" for each in second), producer="p", sequenceIds=list(second)).json()
    assert {answer[name] for name in ("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId")} == {0}


def test_another_payload_under_a_stored_sequence_id_refuses_the_whole_request(house: House) -> None:
    topic = house.topic
    stored = topic.send("p", 0, 1)
    for messages, ids in ((("m0", "CHANGED", "new"), [0, 1, 2]), (("CHANGED", "new"), [1, 2])):
        problem = assert_problem(topic.publish(*messages, producer="p", sequenceIds=ids), 422, "sequence_reused")
        assert (problem["producer"], problem["sequence_id"], problem["offset"]) == ("p", 1, 1)
        assert problem["message_id"] == stored[1]["id"]
    assert topic.producer("p")["lastPersisted"] == 1
    assert told(topic.send("p", 1, 2)) == "ds", "the refused request burnt nothing"


def test_holes_are_allowed_unless_the_producer_was_opened_with_gaps_refused(house: House) -> None:
    topic = house.topic
    assert told(topic.send("p", 0, 5, 1_000)) == "sss"
    topic.open_producer("strict", "n", gaps="refuse")
    topic.send("strict", 7, 8)
    for _ in house.lives():
        for messages, ids, gap in ((("a",), [10], (9, 10)), (("m8", "a", "b"), [8, 9, 11], (10, 11))):
            problem = assert_problem(topic.publish(*messages, producer="strict", sequenceIds=ids), 409, "sequence_gap")
            assert (problem["expected"], problem["received"], problem["producer"]) == (*gap, "strict")
    assert told(topic.send("strict", 7, 8, 9, 10)) == "ddss"
    topic.open_producer("strict", "later", gaps="allow")
    assert told(topic.send("strict", 20)) == "s"


def test_an_older_epoch_is_fenced_for_ever(house: House) -> None:
    topic = house.topic

    def fenced(*epochs: int) -> None:
        for epoch in epochs:
            problem = assert_problem(topic.publish("x", producer="p", sequenceIds=[2], epoch=epoch), 403, "producer_fenced")
            assert (problem["producer"], problem["epoch"]) == ("p", epoch)
            assert problem["current_epoch"] > epoch

    old = topic.open_producer("p", "first")["epoch"]
    topic.send("p", 0, epoch=old)
    new = topic.open_producer("p", "second")
    assert (new["epoch"] > old, new["lastSequenceId"]) == (True, 0)
    assert_problem(topic.publish("m0", producer="p", sequenceIds=[0], epoch=old), 403, "producer_fenced")
    assert told(topic.send("p", 1, epoch=new["epoch"])) == "s"
    house.crash()
    fenced(old)
    assert topic.request("DELETE", "/producers/p").status_code == 200
    fenced(old, new["epoch"])
    third = topic.open_producer("p", "third")
    assert (third["epoch"] > new["epoch"], third["lastSequenceId"]) == (True, None)
    house.crash()
    fenced(old, new["epoch"])
    assert told(topic.send("p", 0, epoch=third["epoch"])) == "s"


def test_a_repeated_open_fences_nobody_also_after_a_newer_one(house: House) -> None:
    topic = house.topic
    with ThreadPoolExecutor(8) as pool:
        same = {house.at_once(pool, "open_producer", "p", "a").result()["epoch"] for _ in range(8)}
    assert same == {1}
    second = topic.open_producer("p", "b")["epoch"]
    for sequence_id, _ in enumerate(house.lives()):
        assert topic.open_producer("p", "a")["epoch"] == 1, "the late repeat of the older open"
        assert topic.open_producer("p", "b")["epoch"] == second
        assert told(topic.send("p", sequence_id, epoch=second)) == "s"


def test_an_open_that_comes_late_fences_nobody_who_has_opened_behind_a_forget(house: House) -> None:
    topic = house.topic
    assert topic.open_producer("p", "a")["epoch"] == 1
    assert topic.request("DELETE", "/producers/p").status_code == 200
    assert topic.open_producer("p", "a")["epoch"] == 1
    for _ in house.lives():
        assert_problem(topic.request("GET", "/producers/p"), 404, "producer_not_found")
    newest = topic.open_producer("p", "b")["epoch"]
    for sequence_id, _ in enumerate(house.lives()):
        assert topic.open_producer("p", "a")["epoch"] == 1
        assert told(topic.send("p", sequence_id, epoch=newest)) == "s"


def test_topic_before_namespace_before_service_and_null_inherits(house: House) -> None:
    house.restart(deduplication=False)
    topic = house.topic
    policies = f"{topic.base}/v1/namespaces/default/policies"
    changes: list[tuple[str, dict[str, Any], bool]] = [
        (policies, {"deduplication": True}, True),
        (topic.url + "/properties", {"deduplication": "false"}, False),
        (topic.url + "/properties", {}, True),
        (policies, {"deduplication": None}, False),
    ]
    assert not topic.stats()["deduplication"]
    for url, body, on in changes:
        assert topic.session.put(url, json=body, timeout=TIMEOUT).status_code == 200
        assert topic.stats()["deduplication"] == on


@pytest.mark.parametrize("how", ["goes on", "crashed"])
def test_switched_on_for_a_topic_with_history_it_knows_all_of_it(house: House, how: str) -> None:
    topic = house.make(deduplication="false")
    assert told(topic.send("p", 0, 1, 2)) == "sss"
    assert told(topic.send("p", 2)) == "s", "off means off"
    house.comes_back(how)
    topic.request("PUT", "/properties", json={"deduplication": "true"})
    assert told(topic.send("p", 1, 2, 3)) == "dds"
    topic.request("PUT", "/properties", json={"deduplication": "false"})
    topic.send("p", 4)
    topic.send("q", 9)
    topic.request("PUT", "/properties", json={"deduplication": "true"})
    assert told(topic.send("p", 0, 3, 4, 5)) + told(topic.send("q", 9)) == "ddds" + "d"
    house.damaged = True  # one was stored twice


def test_forgetting_is_an_operators_word_and_outlives_a_restart(house: House) -> None:
    house.restart(snapshot_messages=1)
    topic = house.topic
    topic.send("p", 0, 1, 2)
    topic.send("q", 0)
    assert topic.request("DELETE", "/producers/p").status_code == 200
    for method in ("GET", "DELETE"):
        assert_problem(topic.request(method, "/producers/p"), 404, "producer_not_found")
    assert topic.payloads() == ["m0", "m1", "m2", "m0"], "its messages stay"
    house.crash()
    assert told(topic.send("q", 0)) == "d"
    again = topic.send("p", 0, 1, payload="new{}")
    assert told(again) == "ss"
    for _ in house.lives():
        assert without_status(topic.send("p", 0, 1, payload="new{}")) == without_status(again)
    assert told(topic.send("p", 1, 2, payload="new{}")) == "ds"


def test_why_tells_what_would_become_of_a_sequence_id(house: House) -> None:
    topic = house.topic
    third, seventh = topic.send("p", 3, 7)
    for producer, sequence_id, verdict, original in (
        ("never", 0, "new", None),
        ("p", 8, "new", None),
        ("p", 3, "duplicate", third),
        ("p", 7, "duplicate", seventh),
        ("p", 5, "duplicate", None),  # left out
    ):
        why = topic.request("GET", f"/producers/{producer}/why?sequenceId={sequence_id}").json()
        where = (None, None) if original is None else (original["id"], original["offset"])
        assert (why["verdict"], why["messageId"], why["offset"]) == (verdict, *where)
    topic.request("PUT", "/properties", json={"deduplication": "false"})
    assert topic.request("GET", "/producers/p/why?sequenceId=3").json()["verdict"] == "not_judged"


def test_all_producers_are_listed_page_by_page(house: House) -> None:
    names = [f"p{each:02}" for each in range(25)]
    for at, name in enumerate(reversed(names)):
        house.topic.send(name, 0) if at % 2 else house.topic.open_producer(name, "n")
    seen: list[str] = []
    while page := house.topic.request("GET", f"/producers?limit=10&after={seen[-1] if seen else ''}").json():
        assert len(page) <= 10
        seen += [each["name"] for each in page]
    assert seen == names
