"""Several instances over one store: any of them is the service, whoever dies or sleeps; nobody writes what is another's."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest

from oncelog import Client, Producer
from oncelog.errors import NotSupported, QuotaExceeded, TopicNotFound
from oncelog.http.connections import Connections, Response
from oncelog.http.sockets import Deadline
from oncelog.http.transport import Transport
from oncelog.wire.media import JSON
from oncelog.wire.models import NamespacePolicies, TopicAsked
from oncelog.wire.requests import PublishRequest
from oncelog_service.app import build_service
from oncelog_service.config import Settings
from oncelog_service.rest.routes import HAND_OVER
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Fence, StoreError
from tests.behaviours.cli.support import run, value
from tests.cluster.instances import LEASE_SECONDS, InPlace, Instances, address, in_place, payloads, send, side_by_side, until
from tests.patience import PATIENCE
from tests.rest.talk import assert_problem, connected, head, receipts
from tests.sdk.fakes import Answer, fake_server, problem
from tests.world.service import free_port, running_service

T = TypeVar("T")


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


def test_an_instance_that_does_not_serve_a_topic_says_who_does(cluster: Instances[InPlace], client: Client) -> None:
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
    cluster: Instances[InPlace], client: Client, asked: list[str]
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


def test_asked_to_any_instance_answers_by_itself(cluster: Instances[InPlace], client: Client) -> None:
    owner, *others = cluster.all
    topic = cluster.topic_at(owner, client)
    for number, other in enumerate(others):
        stored = other.publish(topic, f"m{number}" + "x" * 2_000, proxy=True)
        assert stored.status_code == 200
        assert receipts(stored)[0]["offset"] == number
        polled = {"data": gzip.compress(b"{}"), "headers": {"content-type": JSON, "content-encoding": "gzip"}, "proxy": True}
        found = other.ask("POST", address(topic) + "/poll", **polled)
        assert [each["payload"] for each in found.json()] == [f"m{each}" + "x" * 2_000 for each in range(number + 1)]
        assert found.headers["content-encoding"] == "gzip"
        verified = other.ask("POST", address(topic) + "/verify", proxy=True)
        assert other.ask("HEAD", address(topic) + "/stats", proxy=True).status_code == 200
        last = json.loads(verified.content.splitlines()[-1])
        assert (last["ok"], last["messages"]) == (True, number + 1)
    assert_problem(others[0].ask("GET", address("nowhere") + "/stats", proxy=True), 404, "topic_not_found")


def test_each_instance_lists_the_subscriptions_of_all_topics(cluster: Instances[InPlace], client: Client) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    for topic in topics:
        client.open_subscription(topic, "s")
        client.open_subscription(topic, "t")
    for each in cluster.all:
        with Client(each.url) as asked:
            found = [(one.topic, one.name, one.heard_ms is None) for one in asked.all_subscriptions() if one.topic in topics]
        assert sorted(found) == sorted((topic, name, False) for topic in topics for name in "st")


def test_any_instance_has_a_topic_handed_over_from_the_one_that_serves_it(cluster: Instances[InPlace], client: Client) -> None:
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
    cluster: Instances[InPlace], client: Client
) -> None:
    owner, other, _ = cluster.all
    topic = cluster.topic_at(owner, client)
    body = b'{"wait": 60000}'
    fields = ("content-type: application/json", f"content-length: {len(body)}", "oncelog-route: proxy")
    poll = head("POST", f"{address(topic)}/poll", *fields) + body
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(other.url)).sendall(poll)
        owner.service.arrived(100)
        assert other.ask("GET", f"{address(topic)}/stats", proxy=True).status_code == 200
    until(lambda: owner.service.server.under_way == 0, seconds=40)  # of the 60 that they would wait


def test_a_poll_that_waits_at_another_instance_ends_with_the_message(cluster: Instances[InPlace], client: Client) -> None:
    owner, other, third = cluster.all
    topic = cluster.topic_at(owner, client)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.poll, topic, proxy=True, wait=25_000)
        owner.service.arrived(1)
        assert third.publish(topic, "m", proxy=True).status_code == 200
        assert waiting.result(20).json()[0]["payload"] == "m"


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


def test_topics_are_made_changed_and_deleted_at_any_instance(cluster: Instances[InPlace], client: Client) -> None:
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


def test_a_policy_set_at_one_instance_holds_at_the_others_soon(cluster: Instances[InPlace], client: Client) -> None:
    with cluster.all[0].client() as here:
        here.set_policies(NamespacePolicies(deduplication=False), "space")
    for other in cluster.all[1:]:
        with other.client() as there:
            until(lambda there=there: there.policies("space").deduplication is False, seconds=5)  # type: ignore[misc]


def test_offsets_of_topics_of_several_instances_are_answered_together(cluster: Instances[InPlace], client: Client) -> None:
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
    cluster: Instances[InPlace], client: Client
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
                found = waiting.result(PATIENCE)
                assert [found[topic].stable for topic in topics] == counts


# --- who serves what


def test_the_cluster_is_shown(cluster: Instances[InPlace], client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_service_with_a_store_of_its_own_has_no_cluster() -> None:
    with running_service() as alone, Client(alone.url) as client:
        with pytest.raises(NotSupported):
            client.cluster()
        shown = run("cluster", url=alone.url)
        assert shown.exit_code != 0
        assert "several can share one on PostgreSQL" in shown.output.replace("\n", " ")


# --- one ends, one comes


def test_a_clean_stop_hands_over_at_once_and_who_comes_back_gets_a_share(cluster: Instances[InPlace], client: Client) -> None:
    leaving, *staying = cluster.all
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    for topic in topics:
        send(client, topic, b"a")
    left = cluster.seen_by(leaving).instance
    leaving.stop()
    seen = cluster.seen()
    assert leaving.url not in {each.url for each in seen.instances}, "it is not waited for until its time is over"
    assert left not in {lease.instance for lease in seen.leases}
    for topic in topics:
        send(client, topic, b"b")
        assert cluster.owner(topic) in staying
        assert payloads(client, topic) == [b"a", b"b"]
    leaving.begin()
    cluster.make_whole()

    def has_its_share() -> bool:
        belong = {cluster.preferred(topic) for topic in topics}
        return leaving not in belong or any(cluster.owner(topic) is leaving for topic in topics)

    until(has_its_share, every=0.2)


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


def test_instances_make_no_more_topics_together_than_a_namespace_may_have() -> None:
    with in_place(2, max_topics_per_namespace=3) as cluster, ExitStack() as open_:
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
