"""Several instances over one store: any of them is the service, whoever dies or sleeps; nobody writes what is another's."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
import requests

from oncelog import Client, Consumer, Producer, Reader
from oncelog.errors import NotSupported, QuotaExceeded, TopicNotFound
from oncelog.http.connections import Connections, Response
from oncelog.http.sockets import Deadline
from oncelog.http.transport import Transport
from oncelog.reading import twins
from oncelog.wire.models import NamespacePolicies, TopicAsked
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import Transaction
from oncelog_service.app import build_service
from oncelog_service.config import Settings
from oncelog_service.rest.routes import HAND_OVER
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Fence, StoreError
from tests.behaviours.cli.support import run, value
from tests.cluster.instances import LEASE_SECONDS, Instances, address, instances, side_by_side, until
from tests.patience import PATIENCE
from tests.postgres import PostgresServer
from tests.rest.talk import assert_problem, connected, head, receipts
from tests.scenarios.committing import check_commits, committing
from tests.sdk.fakes import Answer, fake_server, problem
from tests.world.crash import wait_for_attempts
from tests.world.service import free_port, running_service

pytestmark = pytest.mark.real

T = TypeVar("T")


def payloads(client: Client, topic: str) -> list[bytes]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [message.payload for message in reader]


def send(client: Client, topic: str, payload: bytes) -> None:
    with Producer(topic, name="p", client=client, delivery_timeout=PATIENCE) as producer:
        producer.send(payload)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The base of every URL that this process asks, in order."""
    found: list[str] = []
    ask = Connections.ask

    async def spied(
        connections: Connections, method: str, url: str, body: bytes | None, headers: Mapping[str, str], deadline: Deadline
    ) -> Response:
        found.append(url.partition("/v1/")[0])
        return await ask(connections, method, url, body, headers, deadline)

    monkeypatch.setattr(Connections, "ask", spied)
    return found


# --- who answers


def test_an_instance_that_does_not_serve_a_topic_says_who_does(cluster: Instances, client: Client) -> None:
    owner, *others = cluster.all
    topic = cluster.topic_at(owner, client)
    assert owner.publish(topic, "a").status_code == 200
    for other in others:
        for method, path in (("POST", "/publish"), ("GET", "/stats?x=a%20b"), ("DELETE", "")):
            answer = other.ask(method, address(topic) + path, json={"messages": ["b"]})
            told = assert_problem(answer, 307, "not_served_here")
            assert told["url"] == owner.url
            assert told["definite"]
            assert answer.headers["location"] == owner.url + address(topic) + path
    assert payloads(client, topic) == [b"a"]


def test_a_client_asks_one_that_answers_follows_and_goes_straight_there_the_next_time(
    cluster: Instances, client: Client, asked: list[str]
) -> None:
    owner, other, _ = cluster.all
    topic = cluster.topic_at(owner, client)
    dead = f"http://127.0.0.1:{free_port()}"
    with Client(f"{dead}, {other.url}/") as stranger:
        del asked[:]
        with Producer(topic, name="p", client=stranger) as producer:
            assert producer.send(b"a").offset == 0
        assert asked[:3] == [dead, other.url, owner.url]
        assert payloads(stranger, topic) == [b"a"]
        assert set(asked[2:]) == {owner.url}


def test_asked_to_any_instance_answers_by_itself(cluster: Instances, client: Client) -> None:
    owner, *others = cluster.all
    topic = cluster.topic_at(owner, client)
    for number, other in enumerate(others):
        stored = other.publish(topic, f"m{number}", proxy=True)
        assert stored.status_code == 200
        assert receipts(stored)[0]["offset"] == number
        assert [each["payload"] for each in other.poll(topic, proxy=True).json()] == [f"m{each}" for each in range(number + 1)]
        verified = other.ask("POST", address(topic) + "/verify", proxy=True)
        assert other.ask("HEAD", address(topic) + "/stats", proxy=True, timeout=20).status_code == 200
        last = json.loads(verified.content.splitlines()[-1])
        assert (last["ok"], last["messages"]) == (True, number + 1)
    assert_problem(others[0].ask("GET", address("nowhere") + "/stats", proxy=True), 404, "topic_not_found")


def test_each_instance_lists_the_subscriptions_of_all_topics(cluster: Instances, client: Client) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    for topic in topics:
        client.open_subscription(topic, "s")
        client.open_subscription(topic, "t")
    for each in cluster.all:
        with Client(each.url) as asked:
            found = [(one.topic, one.name, one.heard_ms is None) for one in asked.all_subscriptions() if one.topic in topics]
        assert sorted(found) == sorted((topic, name, False) for topic in topics for name in "st")


def test_any_instance_has_a_topic_handed_over_from_the_one_that_serves_it(cluster: Instances, client: Client) -> None:
    owner, other, third = cluster.all
    topic = cluster.topic_at(owner, client)
    send(client, topic, b"a")
    target = next(each.id for each in client.cluster().instances if each.url == third.url)
    asked = {"namespace": "default", "topic": topic, "instance": target}
    told = assert_problem(other.ask("POST", HAND_OVER, json=asked), 307, "not_served_here")
    assert told["url"] == owner.url
    for _ in range(2):  # the second time it is there, and stays
        assert other.ask("POST", HAND_OVER, json=asked, proxy=True).status_code == 200
        assert cluster.holder(topic) is third
    assert payloads(client, topic) == [b"a"]


def test_polls_that_wait_at_another_instance_hold_up_nothing_there_and_end_with_their_clients(
    cluster: Instances, client: Client
) -> None:
    owner, other, _ = cluster.all
    topic = cluster.topic_at(owner, client)
    body = b'{"wait": 60000}'
    fields = ("content-type: application/json", f"content-length: {len(body)}", "oncelog-route: proxy")
    poll = head("POST", f"{address(topic)}/poll", *fields) + body
    open_files: Callable[[], int] = lambda: len(os.listdir(f"/proc/{owner.pid}/fd"))  # noqa: E731
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(other.url)).sendall(poll)
        assert other.ask("GET", f"{address(topic)}/stats", proxy=True, timeout=30).status_code == 200
        until(lambda: open_files() > 100)  # some go over connections that were open before
    until(lambda: open_files() < 50, seconds=40)  # of the 60 that they would wait


def test_a_poll_that_waits_at_another_instance_ends_with_the_message(cluster: Instances, client: Client) -> None:
    owner, other, third = cluster.all
    topic = cluster.topic_at(owner, client)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.poll, topic, proxy=True, wait=25_000)
        began = time.monotonic()
        while not waiting.done():  # from before it waits until after
            assert third.publish(topic, "m", proxy=True).status_code == 200
            assert time.monotonic() - began < 20
        assert waiting.result().json()[0]["payload"] == "m"


def test_a_token_goes_to_the_instance_that_is_named_and_to_nobody_else() -> None:
    with fake_server(lambda _: Answer(200, b"there")) as there:
        to = {"location": there.url + "/v1/x"}

        def naming(url: str) -> Callable[[object], Answer]:
            answer = problem(307, "not_served_here", url=url)
            answer.headers.update(to)
            return lambda _: answer

        def arrived(redirect: Callable[[object], Answer]) -> list[str | None]:
            del there.requests[:]
            with fake_server(redirect) as here:
                assert Transport(here.url, token="secret").call("POST", "/v1/x", b"body", "text/plain") == b"there"
            return [each.headers.get("authorization") for each in there.requests]

        assert arrived(naming(there.url)) == ["Bearer secret"]
        assert arrived(naming("http://127.0.0.1:1")) == [None]
        assert arrived(lambda _: Answer(307, b"", to)) == [None]
        with fake_server(naming(there.url)) as stranger:  # whoever a stranger names is a stranger, too
            assert arrived(lambda _: Answer(307, b"", {"location": stranger.url + "/v1/x"})) == [None]


# --- topics, policies, ranges


def test_topics_are_made_changed_and_deleted_at_any_instance(cluster: Instances, client: Client) -> None:
    owner, other, third = cluster.all
    topic = cluster.topic_at(owner, client)
    with other.client() as there, third.client() as elsewhere, owner.client() as here:
        here.publish(topic, PublishRequest([b"a"]))
        there.update_topic(topic, {"ttl": "5000"})
        assert [each.topic(topic).properties["ttl"] for each in (here, there, elsewhere)] == ["5000"] * 3
        elsewhere.delete_topic(topic)
        for each in (here, there, elsewhere):
            with pytest.raises(TopicNotFound):
                each.stats(topic)
            assert topic not in each.topics()
        there.create_topic(topic)
        assert {each.stats(topic).generation for each in (here, there, elsewhere)} == {2}
        assert payloads(elsewhere, topic) == []


def test_a_policy_set_at_one_instance_holds_at_the_others_soon(cluster: Instances, client: Client) -> None:
    with cluster.all[0].client() as here:
        here.set_policies(NamespacePolicies(deduplication=False), "space")
    began = time.monotonic()
    for other in cluster.all[1:]:
        with other.client() as there:
            until(lambda there=there: there.policies("space").deduplication is False)  # type: ignore[misc]
    assert time.monotonic() - began < 60  # about a second where nothing else runs


def test_offsets_of_topics_of_several_instances_are_answered_together(cluster: Instances, client: Client) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    for number, topic in enumerate(topics):
        for _ in range(number):
            client.publish(topic, PublishRequest([b"m"]))
    for each in cluster.all:
        with each.client() as here:
            found = here.offsets({topic: TopicAsked() for topic in topics})
            assert [found[topic].stable for topic in topics] == [0, 1, 2]
    with pytest.raises(TopicNotFound):
        client.offsets({**{topic: TopicAsked() for topic in topics}, "nowhere": TopicAsked()})


def test_a_wait_for_topics_of_several_instances_ends_with_the_first_message_again_and_again(
    cluster: Instances, client: Client
) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    counts = [0] * len(topics)
    with cluster.all[0].client() as here:
        for number in range(60):  # more than an instance has threads to ask others with
            behind = {topic: TopicAsked(after=count) for topic, count in zip(topics, counts, strict=True)}
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(here.offsets, behind, wait=25)
                client.publish(topics[number % 3], PublishRequest([b"m"]))
                counts[number % 3] += 1
                began = time.monotonic()
                found = waiting.result(PATIENCE)
                assert time.monotonic() - began < 20
                assert [found[topic].stable for topic in topics] == counts


# --- who serves what


def test_the_cluster_is_shown(cluster: Instances, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = cluster.topic_at(cluster.all[1], client)
    shown = client.cluster()
    assert sorted(each.url for each in shown.instances) == sorted(each.url for each in cluster.all)
    assert all(0 < each.expires_in_ms <= 1_000 * LEASE_SECONDS for each in shown.instances)
    leases = {lease.topic or lease.resource: lease for lease in shown.leases}
    assert leases[topic].url == cluster.all[1].url
    assert {"transactions", "atomic"} <= leases.keys()
    first = cluster.all[0].ask("GET", "/v1/cluster", params={"limit": 2}).json()["leases"]
    monkeypatch.setattr("oncelog.api.topics._LEASES", 2)
    assert [each.name for each in client.cluster().leases][:2] == [each.name for each in shown.leases][:2]
    assert {each.name for each in shown.leases} <= {each.name for each in client.cluster().leases}
    assert [each["topic"] or each["resource"] for each in first] == [each.topic or each.resource for each in shown.leases[:2]]
    for wrong in ({"limit": 0}, {"limit": 2_001}, {"after": "no:name/t"}):
        assert cluster.all[0].ask("GET", "/v1/cluster", params=wrong).status_code == 400
    printed = value(run("cluster", "--json", url=cluster.url))
    assert {each["url"] for each in printed["instances"]} == {each.url for each in cluster.all}
    table = run("cluster", url=cluster.url)
    assert table.exit_code == 0
    assert f"default/{topic}" in table.output.replace("\n", "")


def test_a_service_with_a_store_of_its_own_has_no_cluster(tmp_path: Path) -> None:
    with running_service(f"leveldb://{tmp_path}/data") as alone, Client(alone.url) as client:
        with pytest.raises(NotSupported):
            client.cluster()
        shown = run("cluster", url=alone.url)
        assert shown.exit_code != 0
        assert "several can share one on PostgreSQL" in shown.output.replace("\n", " ")


# --- one ends, one comes


def test_a_clean_stop_hands_over_at_once_and_who_comes_back_gets_a_share(cluster: Instances, client: Client) -> None:
    leaving, *staying = cluster.all
    topics = [cluster.topic_at(each, client) for each in cluster.all for _ in range(2)]
    for topic in topics:
        send(client, topic, b"a")
    left = cluster.seen_by(leaving).instance
    assert leaving.stop() == 0
    seen = cluster.seen()
    assert leaving.url not in {each.url for each in seen.instances}, "it is not waited for until its time is over"
    # By its id: one of those that stay may be out of sight for a moment, and then nobody's URL stands at what it holds.
    assert left not in {lease.instance for lease in seen.leases}
    for topic in topics:
        send(client, topic, b"b")
    assert {cluster.owner(topic) for topic in topics} <= set(staying)
    cluster.make_whole()

    def has_its_share() -> bool:
        belong = {cluster.preferred(topic) for topic in topics}
        return leaving not in belong or any(cluster.owner(topic) is leaving for topic in topics)

    until(has_its_share)
    for topic in topics:
        assert payloads(client, topic) == [b"a", b"b"]


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


def test_who_waits_at_one_that_stands_still_goes_on_at_another_and_everything_is_there_once(
    cluster: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody used to stand still until the client's own time-out, which here never comes, though another one serves."""
    monkeypatch.setattr(twins, "WAIT_SECONDS", 2.0)
    owner = cluster.owner("atomic")
    with cluster.client(timeout=PATIENCE) as client, ThreadPoolExecutor(4) as threads:
        topic, other = cluster.topic_at(owner, client), cluster.topic_at(owner, client)
        with Producer(topic, name="p", client=client) as producer, Producer(topic, client=client) as nameless:
            producer.send(b"0")
            nameless.send(b"nameless")
            reader, consumer = Reader(topic, client=client, start="latest"), Consumer(topic, "s", client=client, start="latest")
            reader.has_message_available()
            with client.atomic() as batch:
                batch.send(other, b"before")
            owner.freeze()
            waiting: list[Future[Any]] = [
                threads.submit(reader.read),
                threads.submit(consumer.receive),
                threads.submit(commit, client, other),
            ]
            assert threads.submit(producer.send, b"1").result(PATIENCE).offset == 2, "behind all that was there before"
            assert [each.payload for each in waiting[0].result(PATIENCE)] == [b"1"]
            assert [each.payload for each in waiting[1].result(PATIENCE)] == [b"1"]
            waiting[2].result(PATIENCE)
            assert owner.stopped
            owner.thaw()  # and finds what they had sent to it in its sockets
            until(lambda: owner.healthy)
            nameless.send(b"nameless too")
            producer.send(b"2")
            consumer.close()
        assert payloads(client, topic) == [b"0", b"nameless", b"1", b"nameless too", b"2"]
        assert payloads(client, other) == [b"before", b"meanwhile"]


def commit(client: Client, topic: str) -> None:
    with client.atomic() as batch:
        batch.send(topic, b"meanwhile")


# --- transactions and atomic commits


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


def test_a_transaction_outlives_who_leads_the_transactions(cluster: Instances, client: Client) -> None:
    leader = cluster.owner("transactions")
    served_there, served_elsewhere = (
        cluster.topic_at(each, client) for each in (leader, next(each for each in cluster.all if each is not leader))
    )
    topics = (served_there, served_elsewhere)
    kept, dropped = (client.start_transaction(timeout=300) for _ in range(2))

    def publish(transaction: Transaction, text: bytes) -> None:
        for topic in topics:
            request = PublishRequest([text], write_pointer=transaction.write_pointer)
            until(lambda topic=topic, request=request: client.publish_transactional(topic, request))  # type: ignore[misc]

    publish(kept, b"kept")
    publish(dropped, b"dropped")
    leader.kill()
    client.commit_transaction(kept.write_pointer)
    client.abort_transaction(dropped.write_pointer)
    assert cluster.owner("transactions") is not leader
    assert client.transaction_states([kept.write_pointer, dropped.write_pointer]) == {
        kept.write_pointer: "committed",
        dropped.write_pointer: "aborted",
    }
    later = client.start_transaction()
    assert later.write_pointer > dropped.write_pointer
    for topic in topics:
        with Reader(topic, client=client, timeout=0, transaction=later) as reader:
            assert [message.payload for message in reader] == [b"kept"]
        until(lambda topic=topic: client.offsets({topic: TopicAsked()})[topic].stable == 2)  # type: ignore[misc]
    client.abort_transaction(later.write_pointer)


# --- the database


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


# --- the addresses that the others are told


class SharedStore(MemoryStore):
    """One that several could share, by its own account."""

    def lease_table(self) -> Any:
        table = Mock()
        table.instances.return_value = []
        table.take.side_effect = lambda _, resource: self.disk.epochs.update({resource: 1}) or Fence(resource, 1)
        return table


LOCAL, OTHER = "http://127.0.0.1:7070", "postgresql://db.example/oncelog"


@pytest.mark.parametrize(
    ("url", "advertised", "store", "warned"),
    [
        (LOCAL, None, OTHER, True),
        (LOCAL, None, "postgresql://127.0.0.1/oncelog", False),
        (LOCAL, None, "postgresql:///oncelog", False),
        ("http://10.0.0.1:7070", None, OTHER, False),
        (LOCAL, LOCAL, OTHER, False),
    ],
)
def test_an_address_that_is_another_machine_for_each_is_warned_of(
    caplog: pytest.LogCaptureFixture, url: str, advertised: str | None, store: str, warned: bool
) -> None:
    asyncio.run(_started(Settings(store=store, advertised_url=advertised), url))
    assert ("another machine for each" in caplog.text) == warned


def test_an_address_that_is_nowhere_is_refused() -> None:
    with pytest.raises(StoreError, match="--advertised-url"):
        asyncio.run(_started(Settings(), "http://0.0.0.0:7070"))


async def _started(settings: Settings, url: str) -> None:
    service = build_service(settings, open_store=SharedStore, url=url)
    await service.start()
    await service.stop()


# --- tokens


@pytest.mark.slow
def test_instances_behind_a_token_ask_each_other_with_it(postgres: PostgresServer, tmp_path: Path) -> None:
    with (
        instances(postgres.fresh_schema(), tmp_path, 2, token="s3cret") as cluster,
        cluster.client(retry=PATIENCE) as client,
    ):
        owner, other = cluster.all
        topic = cluster.topic_at(owner, client)
        assert_problem(other.publish(topic, "a", proxy=True), 401, "unauthorized")
        allowed = {"authorization": "Bearer s3cret"}
        answer = other.ask("POST", f"{address(topic)}/publish", json={"messages": ["a"]}, headers=allowed, proxy=True)
        assert answer.status_code == 200
        with client.atomic() as batch:
            for each in (topic, cluster.topic_at(other, client)):
                batch.send(each, b"b")
        assert payloads(client, topic) == [b"a", b"b"]


@pytest.mark.slow
def test_instances_make_no_more_topics_together_than_a_namespace_may_have(postgres: PostgresServer, tmp_path: Path) -> None:
    with instances(postgres.fresh_schema(), tmp_path, 2, max_topics_per_namespace=3) as cluster, ExitStack() as open_:
        clients = [open_.enter_context(each.client(retry=PATIENCE)) for each in cluster.all * 4]

        def make(number: int) -> bool:
            client = clients[number % len(clients)]
            try:
                client.create_topic(f"t{number}")
            except QuotaExceeded:
                return False
            return True

        def set_policies() -> bool:  # which is written under the same lease
            clients[0].set_policies(NamespacePolicies(deduplication=True), "space")
            return False

        made = side_by_side([*(partial(make, number) for number in range(8)), set_policies])
        assert sum(made) == len(clients[0].topics()) == 3
