"""CONTRACT §3: named producers and deduplication."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.rest.talk import TIMEOUT, assert_problem
from tests.world.house import House, told


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
