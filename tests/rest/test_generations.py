"""What was made anew since somebody looked is not deleted or moved in its place; and what no address leads to has no name."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_a_client_would_take_for_a_way_up_is_none(topic: Topic, name: str) -> None:
    assert_problem(
        topic.request("POST", "/producers", json={"name": name, "nonce": "n", "gaps": "allow"}), 400, "invalid_request"
    )
    assert_problem(topic.publish("m", producer=name, sequenceIds=[0]), 400, "invalid_request")
