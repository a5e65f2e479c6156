"""What was made anew since somebody looked is not deleted or moved in its place; and what no address leads to has no name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from oncelog_service.service import Service
from tests.rest.talk import Topic, assert_problem
from tests.world.service import RunningService


@pytest.fixture
def topic(running: RunningService) -> Topic:
    """One of the second generation, with a producer and a subscription of the names that the first one had."""
    topic = Topic(running.url, "anew")
    for remains in (False, True):
        topic.send("p", 0, 1)
        topic.good("POST", "/subscriptions", json={"name": "s", "nonce": f"n{remains}", "start": {"at": "earliest"}})
        if not remains:
            topic.good("DELETE")
            topic.good("PUT", json={})
    return topic


SEEK = {"to": {"at": "latest"}, "nonce": "m"}


@pytest.mark.parametrize(
    ("method", "path", "options", "seen"),
    [
        ("DELETE", "", {"params": {"generation": 1}}, ""),
        ("DELETE", "/subscriptions/s", {"params": {"generation": 1}}, "/subscriptions/s"),
        ("DELETE", "/producers/p", {"params": {"generation": 1}}, "/producers/p"),
        ("POST", "/subscriptions/s/seek", {"json": {**SEEK, "generation": 1}}, "/subscriptions/s"),
    ],
)
def test_nothing_is_done_to_what_was_made_anew(topic: Topic, method: str, path: str, options: dict[str, Any], seen: str) -> None:
    before = topic.good("GET", seen)
    answer = topic.request(method, path, **options)
    assert assert_problem(answer, 400, "stale_message_id")["generation"] == 2
    assert topic.good("GET", seen) == before
    meant = {"params": {"generation": 2}} if method == "DELETE" else {"json": {**SEEK, "generation": 2}}
    topic.good(method, path, **meant)
    gone = topic.request("GET", seen)
    assert gone.status_code == 404 if method == "DELETE" else gone.json()["cursor"] == 2


def test_of_those_who_change_what_all_have_seen_one_does(running: RunningService) -> None:
    topic = Topic(running.url, "changed")
    seen = topic.good("GET")["properties"]

    async def all_at_once(service: Service) -> list[object]:
        asked = (service.opening.topics.changes.update("default", "changed", {"ttl": str(ttl)}, seen) for ttl in range(1, 9))
        return await asyncio.gather(*asked, return_exceptions=True)

    ended = running.on_loop(all_at_once)
    assert sorted(type(each).__name__ for each in ended) == ["NoneType", *["PropertiesChanged"] * 7]
    first = {"ttl": str(ended.index(None) + 1), "generation": "1"}
    assert topic.good("GET")["properties"] == first
    answer = topic.request("PUT", "/properties", params={"expected": json.dumps(seen)}, json={"ttl": 99})
    assert assert_problem(answer, 412, "properties_changed")["properties"] == first == topic.good("GET")["properties"]
    topic.good("PUT", "/properties", params={"expected": json.dumps(first)}, json={"ttl": 99})
    now = topic.good("GET")["properties"]
    topic.good("DELETE")
    topic.good("PUT", json={"ttl": 99})
    answer = topic.request("PUT", "/properties", params={"expected": json.dumps(now)}, json={})
    assert assert_problem(answer, 412, "properties_changed")["properties"] == {"ttl": "99", "generation": "2"}
    for wrong in ("", "[]", '{"ttl": 99}', "{", "null"):
        assert_problem(topic.request("PUT", "/properties", params={"expected": wrong}, json={}), 400, "invalid_request")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_a_client_would_take_for_a_way_up_is_none(topic: Topic, name: str) -> None:
    assert_problem(
        topic.request("POST", "/producers", json={"name": name, "nonce": "n", "gaps": "allow"}), 400, "invalid_request"
    )
    assert_problem(topic.publish("m", producer=name, sequenceIds=[0]), 400, "invalid_request")
