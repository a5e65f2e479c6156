"""Instances as processes over one PostgreSQL, of which one stands still or is killed, or all lose the database."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from oncelog import Client
from tests.cluster.instances import LEASE_SECONDS, Instance, Instances, address, instances, payloads, send, side_by_side, until
from tests.patience import PATIENCE
from tests.postgres import PostgresServer, postgres_server
from tests.scenarios.committing import check_commits, committing
from tests.world.crash import wait_for_attempts

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def _instances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances[Instance]]:
    folder = tmp_path_factory.mktemp("instances")
    with instances(postgres_server().fresh_schema(), folder, lease_seconds=LEASE_SECONDS) as found:
        yield found


@pytest.fixture
def cluster(_instances: Instances[Instance]) -> Instances[Instance]:
    _instances.make_whole()
    return _instances


def test_an_owner_that_awakes_after_it_was_replaced_writes_nothing_and_answers_nothing_stale(
    cluster: Instances, client: Client, record_property: Callable[[str, object], None]
) -> None:
    owner, other, _ = cluster.all
    topic = cluster.topic_at(owner, client, **{"check.expected.offsets": "true"})
    assert owner.publish(topic, "0", producer="p", sequenceIds=[0]).status_code == 200
    requests_: list[Callable[[], requests.Response]] = [
        lambda: owner.publish(topic, "stale"),
        lambda: owner.publish(topic, "1", producer="p", sequenceIds=[1]),
        lambda: owner.publish(topic, "stale", expectedOffset=1),
        lambda: owner.publish(topic, "stale", expectedOffset=0),
        lambda: owner.poll(topic),
        lambda: owner.poll(topic, wait=20_000, startFrom={"long": 2**61}),
        lambda: owner.ask("GET", address(topic) + "/stats"),
        lambda: owner.ask("GET", address(topic) + "/producers/p"),
        lambda: owner.ask("POST", "/v1/namespaces/default/offsets", json={"topics": {topic: {}}}),
    ]
    owner.freeze()
    frozen = time.monotonic()
    with ThreadPoolExecutor(len(requests_)) as threads:
        waiting = [threads.submit(each) for each in requests_]  # in its sockets, unread
        again = {"producer": "p", "sequenceIds": [1]}

        def served_again() -> bool:
            # A request that is sent on to it is answered when it awakes; so others are made meanwhile.
            seconds = 1 + time.monotonic() - frozen
            return other.publish(topic, "1", proxy=True, timeout=seconds, **again).status_code == 200

        until(served_again)
        print(f"\nfail-over of one that is stopped: after {time.monotonic() - frozen:.2f} s")
        record_property("served_again_seconds", round(time.monotonic() - frozen, 2))
        owner.thaw()
        answers = [each.result(PATIENCE) for each in waiting]
        for each in (*answers, *side_by_side(requests_)):
            assert each.status_code in (307, 503), each.text
            assert each.json()["definite"], each.text
            assert each.status_code == 503 or each.json()["url"] != owner.url, each.text
    # When it has found back, it sends on to whoever serves the topic now.
    until(lambda: owner.publish(topic, "2", proxy=True, expectedOffset=2).status_code == 200)
    assert payloads(client, topic) == [b"0", b"1", b"2"]
    assert client.producer(topic, "p").last_persisted == 1
    assert "others may" in owner.log()


def test_atomic_commits_are_whole_or_not_also_when_who_coordinates_them_is_killed(cluster: Instances, client: Client) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    coordinator = cluster.owner("atomic")
    with committing(cluster.url, topics, random.getrandbits(32)) as clients:
        wait_for_attempts(clients, 3)
        coordinator.kill()
        wait_for_attempts(clients, 3)
    assert cluster.owner("atomic") is not coordinator
    check_commits(cluster.url, topics, clients)
    assert not list(client.atomic_transactions())


def test_without_the_database_nothing_is_answered_and_everything_goes_on_afterwards(
    cluster: Instances, client: Client, postgres: PostgresServer
) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    for topic in topics:
        send(client, topic, b"before")
    postgres.kill()
    gone = time.monotonic()
    while time.monotonic() < gone + LEASE_SECONDS + 1:
        for instance, topic in zip(cluster.all, topics, strict=True):
            assert instance.publish(topic, "never").status_code == 503
            began = time.monotonic()
            assert instance.poll(topic).status_code == 503 or began < gone + LEASE_SECONDS, "it may be another's by now"
    for each in cluster.all:
        until(lambda each=each: each.ask("GET", "/healthz").status_code == 503)  # type: ignore[misc]
        assert [each.ask("GET", path).status_code for path in ("/readyz", "/livez")] == [503, 200]
        assert "\noncelog_store_open 0" in each.ask("GET", "/metrics").text
    postgres.start()
    for topic in topics:
        send(client, topic, b"behind")
        assert payloads(client, topic) == [b"before", b"behind"]
    for each in cluster.all:
        until(lambda each=each: each.healthy)  # type: ignore[misc]
        assert "\noncelog_store_open 1" in each.ask("GET", "/metrics").text
