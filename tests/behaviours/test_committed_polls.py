"""Polls of what is committed: up to where they reach, what wakes one that waits, and whom it names where something holds it up.

That a page of the stable part is what a consumer is given is tested with subscriptions; what readers make of it in
tests/sdk/test_committed.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import requests

from oncelog.wire.isolation import read_headers
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog_service.access.grants import EVERYBODY
from oncelog_service.rest.forward import Forwarder
from tests.rest.talk import TIMEOUT, assert_problem, avro_poll, done
from tests.world.house import SECOND, House

PLENTY = TIMEOUT / 2


def poll(house: House, isolation: str = "committed", **fields: Any) -> requests.Response:
    return house.aside().request("POST", "/poll", params={"isolation": isolation}, json=fields)


def committed(house: House, **fields: Any) -> list[str]:
    answer = done(poll(house, **fields))
    assert answer.headers["oncelog-isolation"] == "committed"
    return [message["payload"] for message in answer.json()]


def test_every_answer_says_what_was_read_in_whatever_it_was_asked(house: House) -> None:
    topic = house.topic
    topic.publish("a")
    bodies = {media: avro_poll(media, startFrom=None) for media in (AVRO, ONCELOG_AVRO)} | {JSON: b"{}"}
    for media, body in bodies.items():
        for asked, said in ((None, "uncommitted"), ("uncommitted", "uncommitted"), ("committed", "committed")):
            query = "" if asked is None else f"?isolation={asked}"
            assert done(topic.post(f"/poll{query}", body, media)).headers["oncelog-isolation"] == said
    transaction = house.client.start_transaction().to_bytes().decode("latin-1")
    assert done(topic.poll(transaction=transaction)).headers["oncelog-isolation"] == "transaction"
    for isolation in ("committed", "uncommitted"):
        assert_problem(poll(house, isolation, transaction=transaction), 400, "invalid_request")
    assert_problem(poll(house, "serializable"), 400, "invalid_request")


def test_an_answer_of_another_instance_says_what_was_read_and_what_holds_it_up(house: House) -> None:
    """Where an instance passes the request on, for a client that asks it to (oncelog-route: proxy)."""
    house.topic.publish_under(house.start("long"), "open")
    path, service = "/v1/namespaces/default/topics/t/poll?isolation=committed", house.service
    forwarder, headers = Forwarder(service.service.access, TIMEOUT), {b"content-type": JSON.encode()}
    passed = asyncio.run(forwarder.send(service.url, "POST", path, headers, b"{}", EVERYBODY))
    own = done(poll(house)).headers
    assert (passed.status, passed.media) == (200, own["content-type"])
    assert passed.headers == {name: own[name] for name in ("oncelog-isolation", "oncelog-held")}


@pytest.mark.parametrize("how", ["commit", "abort", "roll back"])
def test_a_poll_that_waits_is_woken_by_the_end_of_what_it_waits_for_and_by_nothing_behind_it(house: House, how: str) -> None:
    pointer = house.start("long")
    published = house.topic.publish_under(pointer, "open")
    found: list[list[str]] = []
    waiting = threading.Thread(target=lambda: found.append(committed(house, wait=60_000)))
    waiting.start()
    house.service.arrived(1)
    house.topic.publish("behind")
    waiting.join(0.2)
    assert waiting.is_alive()
    ends: dict[str, Callable[[], object]] = {"roll back": lambda: house.topic.roll_back(published)}
    ends.get(how, lambda: house.end(pointer, how))()
    waiting.join(PLENTY)
    assert found == [["open", "behind"] if how == "commit" else ["behind"]]


def test_who_is_held_up_is_answered_before_the_wait_is_over_and_told_by_whom(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.topic.publish("a")
    house.clock.advance(SECOND)
    pointer, since = house.start("long"), house.clock.ms
    house.topic.publish_under(pointer, "open")
    answer = done(poll(house, startOffset=1, wait=60_000))
    assert answer.json() == []
    assert read_headers(answer.headers)[1] == (1, pointer, since, house.clock.ms)
    assert read_headers(done(poll(house)).headers)[1] is None, "a page with messages ends where it likes"
    house.end(pointer, "abort")
    house.settle()
    assert read_headers(done(poll(house, startOffset=1)).headers) == ("committed", None)


def test_who_has_committed_reads_that_at_once_also_as_a_consumer(house: House) -> None:
    house.topic.publish("a")
    epoch = house.client.open_subscription("t", "s", start=1).epoch
    for offset in range(1, 5):
        house.client.seek_subscription("t", "s", offset, epoch=epoch)
        epoch += 1
        pointer = house.start("long")
        house.topic.publish_under(pointer, "mine")
        house.end(pointer, "commit")
        answer = done(house.topic.request("POST", "/subscriptions/s/receive", json={"epoch": epoch}))
        assert [len(answer.json()), len(committed(house, startOffset=offset))] == [1, 1]


def test_what_is_undecided_when_it_expires_is_no_loss_until_it_is_committed(house: House) -> None:
    topic, pointers = house.make(ttl="10"), [house.start("long"), house.start("long")]
    for pointer in pointers:
        topic.publish_under(pointer, "open")
    house.clock.advance(11 * SECOND)
    topic.publish("b")
    assert committed(house, startOffset=0, refuseExpired=True) == []
    house.end(pointers[0], "abort")
    house.settle()
    assert committed(house, startOffset=0, refuseExpired=True) == []
    house.end(pointers[1], "commit")
    house.settle()
    problem = assert_problem(poll(house, startOffset=0, refuseExpired=True), 410, "messages_expired")
    assert (problem["first"], problem["earliest"]) == (0, 2)
    assert committed(house, startOffset=2, refuseExpired=True) == ["b"]
