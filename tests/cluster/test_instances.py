"""Several instances over one store: any of them is the service, whoever dies or sleeps; nobody writes what is another's."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import requests
from sqlalchemy import select

from oncelog import Client, Consumer, Producer, Reader
from oncelog.errors import NotServedHere, NotSupported, OncelogError, StorageUnavailable, TopicNotFound
from oncelog.http.transport import Transport
from oncelog.wire.models import NamespacePolicies, TopicAsked, Verification
from oncelog.wire.requests import ConsumeRequest, PublishRequest, PublishResponse
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.service import Service
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Fence, LeaseTable, StoreError, Table
from oncelog_service.storage.port import Instance as LeaseHolder
from oncelog_service.storage.sql import SqlStore
from oncelog_service.storage.sql_tables import INSTANCE, LEASE
from tests.behaviours.cli.support import run, value
from tests.cluster.instances import LEASE_SECONDS, TIMEOUT, Instance, Instances, address, instances, side_by_side, until
from tests.patience import PATIENCE
from tests.postgres import PostgresServer
from tests.rest.talk import assert_problem, receipts
from tests.scenarios.judge import check_acknowledged, check_order, read_log
from tests.scenarios.load import Streaming, payload_of
from tests.sdk.fakes import Answer, fake_server, problem
from tests.support import free_port, running_service

T = TypeVar("T")

FAIL_OVER_SECONDS = 60.0
"""Under 5 s where nothing else runs; `make bench` measures that."""


def payloads(client: Client, topic: str) -> list[bytes]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [message.payload for message in reader]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The base of every URL that this process asks, in order."""
    found: list[str] = []
    request = requests.Session.request

    def spied(session: requests.Session, method: str, url: str, **options: object) -> requests.Response:
        found.append(url.partition("/v1/")[0])
        return request(session, method, url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(requests.Session, "request", spied)
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


def test_a_client_follows_and_goes_straight_there_the_next_time(cluster: Instances, client: Client, asked: list[str]) -> None:
    owner, other, _ = cluster.all
    topic = cluster.topic_at(owner, client)
    with other.client() as stranger:
        del asked[:]
        with Producer(topic, name="p", client=stranger) as producer:
            assert producer.send(b"a").offset == 0
        assert asked[:2] == [other.url, owner.url]
        assert set(asked[1:]) == {owner.url}
        assert payloads(stranger, topic) == [b"a"]
        assert set(asked[1:]) == {owner.url}


def test_asked_to_any_instance_answers_by_itself(cluster: Instances, client: Client) -> None:
    owner, *others = cluster.all
    topic = cluster.topic_at(owner, client)
    for number, other in enumerate(others):
        stored = other.publish(topic, f"m{number}", proxy=True)
        assert stored.status_code == 200
        assert receipts(stored)[0]["offset"] == number
        assert [each["payload"] for each in other.poll(topic, proxy=True).json()] == [f"m{each}" for each in range(number + 1)]
        verified = other.ask("POST", address(topic) + "/verify", proxy=True)
        last = json.loads(verified.content.splitlines()[-1])
        assert (last["ok"], last["messages"]) == (True, number + 1)
    assert_problem(others[0].ask("GET", address("nowhere") + "/stats", proxy=True), 404, "topic_not_found")


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

        def named(_: object) -> Answer:
            answer = problem(307, "not_served_here", url=there.url)
            answer.headers["location"] = there.url + "/v1/x"
            return answer

        def named_another(_: object) -> Answer:
            answer = problem(307, "not_served_here", url="http://127.0.0.1:1")
            answer.headers["location"] = there.url + "/v1/x"
            return answer

        def plain(_: object) -> Answer:
            return Answer(307, b"", {"location": there.url + "/v1/x"})

        for redirect, tokens in ((named, ["Bearer secret"]), (named_another, [None]), (plain, [None])):
            del there.requests[:]
            with fake_server(redirect) as here:
                transport = Transport(here.url, token="secret")
                assert transport.call("POST", "/v1/x", b"body", "text/plain") == b"there"
            assert [each.headers.get("authorization") for each in there.requests] == tokens

        # Whoever a stranger names is a stranger, too.
        with fake_server(named) as stranger:
            del there.requests[:]
            with fake_server(lambda _: Answer(307, b"", {"location": stranger.url + "/v1/x"})) as here:
                assert Transport(here.url, token="secret").call("GET", "/v1/x") == b"there"
            assert [each.headers.get("authorization") for each in there.requests] == [None]


def test_of_several_urls_one_that_answers_is_asked(cluster: Instances, client: Client, asked: list[str]) -> None:
    owner = cluster.all[0]
    topic = cluster.topic_at(owner, client)
    dead = f"http://127.0.0.1:{free_port()}"
    with Client(f"{dead}, {owner.url}/") as other:
        del asked[:]
        assert other.topic(topic).name == topic
        assert other.stats(topic).upcoming_offset == 0
        assert asked == [dead, owner.url, owner.url]


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
            assert [found[topic].settled for topic in topics] == [0, 1, 2]
            for one, number in zip(topics, range(3), strict=True):
                assert here.offsets({one: TopicAsked()})[one].settled == number
    with pytest.raises(TopicNotFound):
        client.offsets({**{topic: TopicAsked() for topic in topics}, "nowhere": TopicAsked()})


@pytest.mark.parametrize("at", range(3))
def test_whoever_waits_for_topics_of_several_instances_hears_of_the_first(cluster: Instances, client: Client, at: int) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    behind = {topic: TopicAsked(after=0) for topic in topics}
    with cluster.all[0].client() as here, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(here.offsets, behind, wait=25)
        began = time.monotonic()
        time.sleep(0.3)  # most likely it waits by then; it must hear of it in any case
        assert not waiting.done()
        client.publish(topics[at], PublishRequest([b"m"]))
        found = waiting.result(PATIENCE)
        assert time.monotonic() - began < 20
        assert [found[topic].settled for topic in topics] == [int(number == at) for number in range(3)]


@pytest.mark.slow
def test_whoever_waits_again_and_again_holds_up_nobody(cluster: Instances, client: Client) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    with cluster.all[0].client() as here:
        for number in range(150):  # more than an instance has threads to ask others with
            behind = {topic: TopicAsked(after=number if topic == topics[0] else 0) for topic in topics}
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(here.offsets, behind, wait=50)
                here.publish(topics[0], PublishRequest([b"m"]))
                began = time.monotonic()
                assert waiting.result(PATIENCE)[topics[0]].settled == number + 1
                assert time.monotonic() - began < 20


def test_whoever_waits_for_topics_of_several_instances_in_vain_is_told_when_the_time_is_over(
    cluster: Instances, client: Client
) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    began = time.monotonic()
    found = client.offsets({topic: TopicAsked(after=0) for topic in topics}, wait=2.5)
    assert time.monotonic() - began >= 2.5
    assert {each.settled for each in found.values()} == {0}


# --- who serves what


def test_the_cluster_is_shown(cluster: Instances, client: Client) -> None:
    topic = cluster.topic_at(cluster.all[1], client)
    shown = client.cluster()
    assert sorted(each.url for each in shown.instances) == sorted(each.url for each in cluster.all)
    assert all(0 < each.expires_in_ms <= 1_000 * LEASE_SECONDS for each in shown.instances)
    leases = {lease.topic or lease.resource: lease for lease in shown.leases}
    assert leases[topic].url == cluster.all[1].url
    assert {"transactions", "journal"} <= leases.keys()
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
        with Producer(topic, name="p", client=client) as producer:
            producer.send_batch([payload_of("p", number) for number in range(10)])
    assert leaving.stop() == 0
    seen = cluster.seen()
    assert leaving.url not in {each.url for each in seen.instances}, "it is not waited for until its time is over"
    assert {lease.url for lease in seen.leases} <= {each.url for each in staying}
    for topic in topics:
        with Producer(topic, name="p", client=client) as producer:
            assert producer.last_sequence_id == 9
            assert producer.send(payload_of("p", 10)).offset == 10
    assert {cluster.owner(topic) for topic in topics} == set(staying)

    cluster.make_whole()
    new = cluster.topic_at(leaving, client)
    assert cluster.owner(new) is leaving

    def has_its_share() -> bool:
        ids = {each.url: each.id for each in cluster.seen().instances}  # one that was cut off for a while has a new one
        return any(cluster.owner(topic) is leaving for topic in topics) or not _belongs(topics, ids, leaving)

    until(has_its_share)
    for topic in topics:
        with Producer(topic, name="p", client=client) as producer:
            assert producer.send(payload_of("p", 11)).offset == 11
        check_order(read_log(cluster.url, topic))


def _belongs(topics: list[str], ids: dict[str, str], instance: Instance) -> bool:
    from oncelog_service.cluster.leases import topic_resource
    from oncelog_service.cluster.placement import preferred
    from oncelog_service.storage.keys import topic_key

    return any(preferred(topic_resource(topic_key("default", topic)), ids.values()) == ids[instance.url] for topic in topics)


def test_an_owner_that_is_killed_is_replaced_within_seconds_and_nothing_is_lost(
    cluster: Instances, client: Client, record_property: Callable[[str, object], None]
) -> None:
    owner, *others = cluster.all
    topic = cluster.topic_at(owner, client)
    reader, consumer = Reader(topic, client=client, timeout=0), Consumer(topic, "s", client=client, timeout=0)
    with Producer(topic, name="before", client=client) as producer:
        producer.send_batch([payload_of("before", number) for number in range(20)])
    assert len(reader.read(10, timeout=TIMEOUT)) == 10
    received = consumer.receive(10, timeout=TIMEOUT)
    consumer.ack(received[-1])

    writer = Streaming(cluster.url, topic, "streaming", 1)
    writer.allow(1_000_000)
    writer.start()
    until(lambda: len(writer.acknowledged) > 50)
    owner.kill()
    killed = time.monotonic()
    acknowledged = dict(writer.acknowledged)
    served = until(lambda: any(each.poll(topic, proxy=True).status_code == 200 for each in others) and time.monotonic())
    until(lambda: len(writer.acknowledged) > len(acknowledged) + 1_100)
    resumed = time.monotonic()
    record_property("served_again_seconds", round(served - killed, 2))
    print(f"\nfail-over: served again after {served - killed:.2f} s, 1,100 further messages after {resumed - killed:.2f} s")
    assert served - killed < FAIL_OVER_SECONDS
    writer.enough()
    writer.join(PATIENCE)
    assert writer.failure is None

    log = read_log(cluster.url, topic)
    check_order(log)
    check_acknowledged(log, "streaming", acknowledged)
    check_acknowledged(log, "streaming", writer.acknowledged)
    assert len(log) == 20 + len(writer.acknowledged)
    assert [message.offset for message in reader] == list(range(10, len(log)))
    assert [message.offset for message in consumer.receive(10, timeout=TIMEOUT)] == list(range(10, 20))
    assert client.producer(topic, "before").last_persisted == 19
    *_, verified = client.verify(topic)
    assert isinstance(verified, Verification)
    assert verified.ok
    consumer.close()


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


class StoppedStore:
    """A store whose process stops right before a write, heartbeat and all, and awakes when it is told to."""

    def __init__(self, store: SqlStore, renewed_for_ms: int | None) -> None:
        self._store = store
        self._renewed_for_ms = renewed_for_ms
        self.stops_at: Table | None = None
        """At the next write to this table."""
        self.stopped, self.heart_beats, self.writes = threading.Event(), threading.Event(), threading.Event()
        self.awake()

    def awake(self) -> None:
        self.heart_beats.set()
        self.writes.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, batches: Sequence[Batch]) -> None:
        if any(table is self.stops_at for batch in batches for table, *_ in (*batch.runs, *batch.puts)):
            self.stops_at = None
            self.heart_beats.clear()
            self.writes.clear()
            self.stopped.set()
        self.writes.wait()
        self._store.write(batches)

    def lease_table(self) -> LeaseTable:
        table = self._store.lease_table()
        assert table is not None
        renew = table.renew

        def renewed(id: str, ttl_ms: int) -> Sequence[LeaseHolder]:  # noqa: A002
            self.heart_beats.wait()
            return renew(id, self._renewed_for_ms or ttl_ms)

        table.renew = renewed  # type: ignore[method-assign]
        return table


def test_a_write_that_was_under_way_when_its_owner_was_stopped_and_replaced_is_refused(postgres: PostgresServer) -> None:
    async def run() -> None:
        store = postgres.fresh_schema()
        async with AsyncExitStack() as ends:
            a, opened = await _stoppable(ends, store, 8.0)
            await a.topics.create("default", "t", {})
            log = await a.topics.open("default", "t")
            await log.publish(PublishRequest([b"0"]))
            opened[0].stops_at = Table.MESSAGE
            under_way = asyncio.ensure_future(log.publish(PublishRequest([b"stale"], producer="p", sequence_ids=[0])))
            await asyncio.to_thread(opened[0].stopped.wait, PATIENCE)
            b = Service(Settings(store=store, lease_seconds=8.0), store_opener(store), SystemClock(), "http://127.0.0.1:2")
            await b.start()
            ends.push_async_callback(b.stop)
            answer = await _once_served(lambda: _publish(b, b"1"))
            assert answer.receipts[0].offset == 1
            opened[0].awake()
            with pytest.raises(StorageUnavailable) as refused:
                await under_way
            assert refused.value.definite
            assert (await _publish(b, b"2")).receipts[0].offset == 2
            page = await (await b.topics.open("default", "t")).poll(ConsumeRequest(), AS_ONCELOG)
            assert len(page.messages) == 3
            assert not any(b"stale" in message for message in page.messages)
            with pytest.raises(NotServedHere):
                await _patiently(lambda: a.topics.open("default", "t"))

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_policy_that_was_under_way_when_its_instance_was_stopped_does_not_undo_a_later_one(postgres: PostgresServer) -> None:
    async def run() -> None:
        store = postgres.fresh_schema()
        async with AsyncExitStack() as ends:
            a, opened = await _stoppable(ends, store, 8.0)
            opened[0].stops_at = Table.NAMESPACE
            under_way = asyncio.ensure_future(a.topics.set_policies("space", NamespacePolicies(deduplication=False)))
            await asyncio.to_thread(opened[0].stopped.wait, PATIENCE)
            b = Service(Settings(store=store, lease_seconds=8.0), store_opener(store), SystemClock(), "http://127.0.0.1:2")
            await b.start()
            ends.push_async_callback(b.stop)
            await b.topics.set_policies("space", NamespacePolicies(deduplication=True))
            opened[0].awake()
            with pytest.raises(StorageUnavailable) as refused:
                await under_way
            assert refused.value.definite
            await b.topics.reread_policies()
            assert b.topics.policies("space").deduplication is True

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_what_was_under_way_when_a_heartbeat_was_late_is_not_written_behind_the_back_of_who_read_it_back(
    postgres: PostgresServer,
) -> None:
    """By its own clock the lease has ended, by the database's it has not: the transactions are read back under the next epoch."""

    async def run() -> None:
        async with AsyncExitStack() as ends:
            a, opened = await _stoppable(ends, postgres.fresh_schema(), 3.0, renewed_for_ms=60_000)
            before, led = a.transactions, a._present.led_transactions
            assert led is not None
            (store,) = opened
            while (await a.membership.overview())[0][0].expires_in_ms < 10_000:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until its first heartbeat
            store.stops_at = Table.TRANSACTION_EDIT
            under_way = asyncio.ensure_future(before.start(TransactionType.SHORT))
            await asyncio.to_thread(store.stopped.wait, PATIENCE)
            await _until(lambda: led._component is None)  # it has been let go of, not only refused to answer for a moment
            store.heart_beats.set()
            await _until(lambda: _serves(a) and a.transactions is not before)
            store.awake()
            with pytest.raises(StorageUnavailable):
                await under_way
            assert not await a.transactions.list("in_progress", 0, 10)
            later = await a.transactions.start(TransactionType.SHORT)
            assert (await a.transactions.show(later.write_pointer)).state == "in_progress"
            assert len(opened) == 1

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


async def _stoppable(
    ends: AsyncExitStack, store: str, lease_seconds: float, renewed_for_ms: int | None = None
) -> tuple[Service, list[StoppedStore]]:
    """A service over such a store, awake and stopped at the end; and each of these, one an opening."""
    opener, opened = store_opener(store), list[StoppedStore]()

    def open_store() -> StoppedStore:
        opened.append(StoppedStore(opener(), renewed_for_ms))  # type: ignore[arg-type]
        return opened[-1]

    settings = Settings(store=store, lease_seconds=lease_seconds)
    service = Service(settings, open_store, SystemClock(), "http://127.0.0.1:1")  # type: ignore[arg-type]
    await service.start()
    ends.push_async_callback(service.stop)
    ends.callback(lambda: [each.awake() for each in opened])
    return service, opened


def _serves(service: Service) -> bool:
    """Whether it answers for transactions."""
    try:
        return service.transactions is not None
    except OncelogError:
        return False


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _publish(service: Service, payload: bytes) -> PublishResponse:
    return await (await service.topics.open("default", "t")).publish(PublishRequest([payload]))


async def _once_served(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except (StorageUnavailable, NotServedHere):
            await asyncio.sleep(0.05)


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except StorageUnavailable:
            await asyncio.sleep(0.05)


def test_who_is_stopped_while_it_has_locked_a_lease_does_not_hold_up_the_others(postgres: PostgresServer) -> None:
    store = store_opener(postgres.fresh_schema())()
    try:
        table = store.lease_table()
        assert table is not None
        for name in "ab":
            table.join(name, f"http://{name}", 60_000)
        assert isinstance(table.take("a", b"r"), Fence)
        began = time.monotonic()
        with ExitStack() as ends:
            stopped = ends.enter_context(table._transaction())
            for each in (LEASE, INSTANCE):
                stopped.execute(select(each).with_for_update()).all()
            found = table.take("b", b"r")  # while it is stopped here
            with pytest.raises(StoreError):
                ends.close()
        assert isinstance(found, LeaseHolder)
        assert found.id == "a"
        assert time.monotonic() - began < 60  # two seconds where nothing else runs
    finally:
        store.close()


# --- clocks


class OffClock(SystemClock):
    """One that is wrong by so much."""

    def __init__(self, ms: int) -> None:
        super().__init__()
        self.ms = ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ms


def test_ids_rise_across_owners_whose_clocks_differ_by_an_hour(postgres: PostgresServer) -> None:
    store = postgres.fresh_schema()
    hour = 3_600_000

    async def alternate() -> list[tuple[int, int]]:
        services = [
            Service(Settings(store=store, lease_seconds=60), store_opener(store), OffClock(ms), f"http://127.0.0.1:{number}")
            for number, ms in enumerate((0, hour, -hour), start=1)
        ]
        for each in services:
            await each.start()
        try:
            await _anywhere(services, lambda service: service.topics.create("default", "t", {}))
            found = []
            for number in range(12):
                answer = await _published_at(services[number % 3], services)
                assert answer.end_timestamp >= answer.start_timestamp
                receipt = answer.receipts[0]
                assert receipt.offset is not None
                found.append(((answer.start_timestamp << 16) + answer.start_sequence_id, receipt.offset))
                found.append(((answer.end_timestamp << 16) + answer.end_sequence_id, receipt.offset + 1))
            return found
        finally:
            for each in services:
                await each.stop()

    found = asyncio.run(alternate())
    assert [offset for _, offset in found] == list(range(24))
    ids = [id_ for id_, _ in found]
    assert ids == sorted(set(ids))


async def _published_at(turn: Service, services: list[Service]) -> PublishResponse:
    while True:
        for each in services:
            await each.topics.hand_over("default", "t", turn.membership.id)
        try:
            return await (await turn.topics.open("default", "t")).publish(PublishRequest([b"a", b"b"]))
        except (NotServedHere, StorageUnavailable):
            continue  # it was moved to where it belongs just then


async def _anywhere(services: list[Service], call: Callable[[Service], object]) -> None:
    for each in services:
        try:
            await call(each)  # type: ignore[misc]
        except NotServedHere:
            continue
        return
    raise AssertionError("nobody serves it")


# --- transactions and atomic commits


def commit(client: Client, topics: list[str], number: int, retry: float | None = None) -> str:
    with client.atomic("g", id=f"commit-{topics[0]}-{number}", buffer_bytes=0 if number % 3 == 0 else 1 << 20) as batch:
        for topic in topics:
            batch.send(topic, b"%d" % number)
            batch.send(topic, b"%d again" % number)
    return batch.id


def test_an_atomic_commit_over_topics_of_different_owners_is_whole_or_not_at_all(cluster: Instances, client: Client) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    for number in range(4):
        assert client.atomic_outcome(commit(client, topics, number)).committed
    with pytest.raises(TopicNotFound):
        commit(client, [*topics, "nowhere"], 4)
    everything = [text for number in range(4) for text in (b"%d" % number, b"%d again" % number)]
    assert [payloads(client, topic) for topic in topics] == [everything] * 3
    journal = cluster.owner("journal")
    assert {cluster.owner(topic) for topic in topics} == {journal}


def test_atomic_commits_are_whole_or_not_also_when_who_coordinates_them_is_killed(cluster: Instances, client: Client) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    coordinator = cluster.owner("journal")
    committed: dict[int, str] = {}
    refused: dict[int, OncelogError] = {}
    stop = threading.Event()

    def commit_all(first: int) -> None:
        number = first
        while not stop.is_set():
            try:
                committed[number] = commit(client, topics, number)
            except OncelogError as error:
                refused[number] = error
            number += 4

    threads = [threading.Thread(target=commit_all, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(committed) >= 12)
        coordinator.kill()
        before = len(committed)
        until(lambda: len(committed) >= before + 12)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert cluster.owner("journal") is not coordinator
    for number, id_ in committed.items():
        assert client.atomic_outcome(id_).state == "committed", number
    found = [payloads(client, topic) for topic in topics]
    assert found[0] == found[1] == found[2], "one order on all topics"
    numbers = [int(text) for text in found[0][::2]]
    assert [text for number in numbers for text in (b"%d" % number, b"%d again" % number)] == found[0]
    assert len(set(numbers)) == len(numbers)
    assert set(committed) <= set(numbers), "acknowledged and lost"
    for number in set(numbers) - set(committed):
        assert number in refused
        assert not refused[number].definite
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
        until(lambda topic=topic: client.offsets({topic: TopicAsked()})[topic].settled == 2)  # type: ignore[misc]
    client.abort_transaction(later.write_pointer)


# --- the database


def test_without_the_database_nothing_is_acknowledged_and_everything_goes_on_afterwards(
    cluster: Instances, client: Client, postgres: PostgresServer
) -> None:
    topics = [cluster.topic_at(each, client) for each in cluster.all]
    writers = [Streaming(cluster.url, topic, "streaming", number) for number, topic in enumerate(topics)]
    for writer in writers:
        writer.allow(1_000_000)
        writer.start()
    until(lambda: all(len(writer.acknowledged) > 50 for writer in writers))
    postgres.kill()
    acknowledged = [dict(writer.acknowledged) for writer in writers]
    gone = time.monotonic()
    while time.monotonic() < gone + LEASE_SECONDS + 1:
        for instance, topic in zip(cluster.all, topics, strict=True):
            answer = instance.publish(topic, "never")
            assert answer.status_code == 503, answer.text
            began = time.monotonic()
            assert instance.poll(topic).status_code == 503 or began < gone + LEASE_SECONDS
    for writer, before in zip(writers, acknowledged, strict=True):
        # Answers that were on their way when the server was killed.
        assert len(writer.acknowledged) <= len(before) + 2_000
    wanted = [len(writer.acknowledged) + writer.ahead + 50 for writer in writers]
    postgres.start()
    until(lambda: all(len(writer.acknowledged) > count for writer, count in zip(writers, wanted, strict=True)))
    for writer in writers:
        writer.enough()
    for writer in writers:
        writer.join(PATIENCE)
        assert writer.failure is None
    for writer, topic in zip(writers, topics, strict=True):
        log = read_log(cluster.url, topic)
        check_order(log)
        check_acknowledged(log, "streaming", writer.acknowledged)
        assert len(log) == len(writer.acknowledged)
    assert all(each.running for each in cluster.all)


def test_who_cannot_reach_the_database_is_not_healthy_although_nobody_asks_it_for_anything(
    cluster: Instances, postgres: PostgresServer
) -> None:
    postgres.kill()
    until(lambda: all(each.ask("GET", "/healthz").status_code == 503 for each in cluster.all))
    for each in cluster.all:
        assert "\noncelog_store_open 0" in each.ask("GET", "/metrics").text
    postgres.start()
    until(lambda: all(each.healthy for each in cluster.all))
    for each in cluster.all:
        assert "\noncelog_store_open 1" in each.ask("GET", "/metrics").text


# --- the addresses that the others are told


@pytest.mark.parametrize(
    ("url", "advertised", "store", "warned"),
    [
        ("http://127.0.0.1:7070", None, "postgresql://db.example/oncelog", True),
        ("http://127.0.0.1:7070", None, "postgresql://127.0.0.1/oncelog", False),
        ("http://127.0.0.1:7070", None, "postgresql:///oncelog", False),
        ("http://10.0.0.1:7070", None, "postgresql://db.example/oncelog", False),
        ("http://127.0.0.1:7070", "http://127.0.0.1:7070", "postgresql://db.example/oncelog", False),
    ],
)
def test_an_address_that_is_another_machine_for_each_is_warned_of(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture, url: str, advertised: str | None, store: str, warned: bool
) -> None:
    asyncio.run(_started(postgres, Settings(store=store, advertised_url=advertised), url))
    assert ("another machine for each" in caplog.text) == warned


def test_an_address_that_is_nowhere_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(StoreError, match="--advertised-url"):
        asyncio.run(_started(postgres, Settings(), "http://0.0.0.0:7070"))


async def _started(postgres: PostgresServer, settings: Settings, url: str) -> None:
    """Start and stop a service over a database of these tests, whatever its settings say."""
    service = Service(settings, store_opener(postgres.fresh_schema()), SystemClock(), url)
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
        topics = [topic, cluster.topic_at(other, client)]
        commit(client, topics, 1)
        assert payloads(client, topic) == [b"a", b"1", b"1 again"]
