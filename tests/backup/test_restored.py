"""Clients of before against a restored store: each goes on rightly or is told; nothing is skipped or doubled without a word."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
from sqlalchemy import create_engine

from oncelog import Checkpoint, Client, Consumer, Message, MessageId, Outbox, OutboxRelay, Producer, Reader
from oncelog.errors import ConsumerFenced, OncelogError, ProducerFenced, StaleMessageId, TransactionNotFound
from oncelog.wire.models import Acknowledge, OpenedProducer, TopicAsked
from oncelog.wire.requests import PublishRequest
from oncelog_service.renewal import begin_incarnation
from oncelog_service.storage.incarnation import ANEW_BITS, CHANCE_BITS, TIME_BITS, find_incarnation, next_number
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, StoreError, Table
from oncelog_service.storage.seals import SealedStore
from tests.behaviours.cli.support import run, value
from tests.patience import PATIENCE, until
from tests.rest.talk import Topic
from tests.world.clock import ManualClock
from tests.world.service import ServiceProcess, free_port, running_service


def published(client: Client, numbers: range, name: str = "p") -> None:
    with Producer[bytes]("t", name=name, client=client) as producer:
        producer.send_batch([b"%d" % number for number in numbers])


def back_up(client: Client) -> None:
    """Into the directory ``archive`` of the service's root."""
    assert value(run("backup", "create", "archive", "--json", url=client.url))["number"] == 1


def restored(place: Path, name: str = "new") -> str:
    """The URL of what was in the backup."""
    store = f"leveldb://{place / name}"
    assert value(run("restore", str(place / "archive"), "--store", store, "--json"))["ok"]
    return store


def begun(client: Client) -> tuple[int, int]:
    """A write pointer, and the id of an atomic commit."""
    answer = requests.post(f"{client.url}/v1/atomic", json={"group": "g"}, timeout=PATIENCE)
    return client.start_transaction().write_pointer, int(answer.json()["id"])


class Reading:
    """A checkpoint and an outbox in a database of their own, which no restore takes back."""

    def __init__(self, place: Path) -> None:
        self.engine = create_engine(f"sqlite:///{place}/shop.db")
        self.checkpoint, self.outbox = Checkpoint("sums", "t"), Outbox("orders")
        self.outbox.create_tables(self.engine)

    def read_on(self, client: Client) -> list[int]:
        found = []
        with (
            self.engine.begin() as connection,
            Reader("t", client=client, start=self.checkpoint.load(connection) or "earliest", timeout=0) as reader,
        ):
            for message in reader:
                found.append(int(message.payload))
                self.checkpoint.save(connection, message)
        return found

    def put(self, *numbers: int) -> None:
        with self.engine.begin() as connection:
            for number in numbers:
                self.outbox.add(connection, "shop", b"%d" % number)


class Lost(NamedTuple):
    """What was known of a service that was restored: its topic t had 10 messages of producer p at the backup, and 20 later."""

    place: Path
    database: Reading
    known: MessageId
    """The last one of the backup."""
    seen: list[Message]
    last_of_later: MessageId
    """Of a topic that the backup has not."""
    generation: int
    epochs: dict[str, int]
    """Of producers that were opened behind the backup."""
    nameless: OpenedProducer
    consumer: int
    """The epoch of the consumer of subscription s, which was at offset 4 when the backup was taken."""
    begun: list[tuple[int, int]]

    @contextmanager
    def served(self, path: Path, clock: ManualClock | None = None) -> Iterator[Client]:
        """By the restored store, of which each test has a copy."""
        shutil.copytree(self.place / "new", path / "new")
        with running_service(f"leveldb://{path}/new", clock) as service, Client(service.url) as client:
            yield client


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    place = tmp_path_factory.mktemp("lost")
    database = Reading(place)
    with running_service(f"leveldb://{place}/data", backup_root=place) as service, Client(service.url) as client:
        for topic in ("t", "shop"):
            client.create_topic(topic)
        published(client, range(10))
        consumer = Consumer("t", "s", client=client, timeout=5)
        for message in consumer.read(4):
            consumer.ack(message)
        back_up(client)
        known = client.stats("t").last_message_id
        for message in consumer.read(4):
            consumer.ack(message)
        epochs = {name: client.open_producer("t", name).epoch for name in ("p", "later")}
        published(client, range(10, 20))
        assert database.read_on(client) == list(range(20))
        database.put(10, 11)
        assert OutboxRelay(database.outbox, database.engine, client=client, takeover_seconds=1).run_once() == 2
        client.create_topic("later")
        client.publish("later", PublishRequest([b"x"]))
        last_of_later = client.stats("later").last_message_id
        with Reader("t", client=client, timeout=0) as reader:
            seen = list(reader)
        of_consumer, generation = client.subscription("t", "s").epoch, client.stats("t").generation
        assert reader.generation == generation
        assert known is not None
        assert last_of_later is not None
        nameless, transactions = client.open_producer("t"), [begun(client) for _ in range(5)]
    restored(place)
    return Lost(place, database, known, seen, last_of_later, generation, epochs, nameless, of_consumer, transactions)


def test_a_producer_that_went_on_behind_the_backup_is_fenced_and_resumes_at_what_is_there(lost: Lost, tmp_path: Path) -> None:
    with lost.served(tmp_path) as client:
        for name, known in (*lost.epochs.items(), ("p", 1)):
            with pytest.raises(ProducerFenced) as fenced:
                client.publish("t", PublishRequest([b"x"], producer=name, epoch=known, sequence_ids=[15]))
            assert fenced.value.generation == client.stats("t").generation
        opened = lost.nameless
        with pytest.raises(OncelogError) as refused:
            client.publish("t", PublishRequest([b"x"], producer=opened.name, epoch=opened.epoch, sequence_ids=[0]))
        assert refused.value.code in ("producer_fenced", "producer_ended")
        with Producer[bytes]("t", name="p", client=client) as producer:
            assert producer.last_sequence_id == 9
            assert [each.sequence_id for each in producer.send_batch([b"10", b"11"])] == [10, 11]
        for name, epoch in lost.epochs.items():
            assert client.open_producer("t", name).epoch > epoch
        with Reader("t", client=client, timeout=0) as reader:
            assert [int(each.payload) for each in reader] == list(range(12))


def test_a_reader_beyond_the_backup_is_told_and_never_passes_over_what_took_the_place(lost: Lost, tmp_path: Path) -> None:
    with lost.served(tmp_path) as client:
        published(client, range(10, 20))
        start, generation = lost.seen[-1].offset + 1, client.stats("t").generation
        with (
            Reader("t", client=client, start=start, generation=lost.generation, timeout=0) as reader,
            pytest.raises(StaleMessageId),
        ):
            list(reader)
        with pytest.raises(StaleMessageId):
            lost.database.read_on(client)
        with Reader("t", client=client, start=lost.seen[9].message_id, timeout=0) as reader:
            assert [int(each.payload) for each in reader] == list(range(10, 20))
        assert generation != lost.generation
        assert client.topic("t").properties["generation"] == str(generation)
        client.update_topic("t", {**client.topic("t").properties, "ttl": "1000"})
        with pytest.raises(StaleMessageId):
            client.read_columns("t", 0, 5, generation=lost.generation)
        assert client.read_columns("t", 0, 5, generation=generation).next == 5


def test_an_id_that_was_handed_out_in_the_lost_time_is_refused_wherever_one_starts_from_it(lost: Lost, tmp_path: Path) -> None:
    gone = lost.seen[-1].message_id
    with lost.served(tmp_path) as client:
        published(client, range(100, 120))
        with (
            Reader("t", client=client, start=gone, timeout=0) as reader,
            pytest.raises(StaleMessageId, match=r"reset\(\)") as refused,
        ):
            list(reader)
        assert refused.value.last_message_id == str(lost.known)
        polled = Topic(client.url).poll(startFrom=bytes(gone).decode("latin-1"))
        assert (polled.status_code, polled.json()["code"]) == (400, "stale_message_id")
        with pytest.raises(StaleMessageId):
            Consumer("t", "new", client=client, start=gone)
        with Consumer("t", "s", client=client) as consumer, pytest.raises(StaleMessageId):
            consumer.seek(gone)
        newest = client.stats("t").last_message_id
        assert newest is not None
        for start, left in ((lost.known, 20), (newest, 0)):
            with Reader("t", client=client, start=start, timeout=0) as reader:
                assert len(list(reader)) == left
        client.create_topic("later")  # its name was in use in the lost time, and nothing is known of it
        client.publish("later", PublishRequest([b"y"]))
        with Reader("later", client=client, start=lost.last_of_later, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)


def test_what_each_lost_time_has_handed_out_stays_refused_when_nothing_of_before_is_left(tmp_path: Path) -> None:
    disk, ids = Disk(), []
    for _ in range(3):
        with running_service(open_store=lambda: SealedStore(MemoryStore(disk))) as service, Client(service.url) as client:
            client.create_topic("t", exist_ok=True)
            client.publish("t", PublishRequest([b"known"]))
            put_back = deepcopy(disk.tables)
            client.publish("t", PublishRequest([b"lost"]))
            ids.append(client.stats("t").last_message_id)
        disk.tables = put_back
        begin_incarnation(SealedStore(MemoryStore(disk)), time.time_ns() // 1_000_000)
    with running_service(open_store=lambda: SealedStore(MemoryStore(disk))) as service, Client(service.url) as client:
        client.publish("t", PublishRequest([b"new"]))
        client.trim_topic("t", 4)
        for each in ids:
            assert each is not None
            with Reader("t", client=client, start=each, timeout=0) as reader, pytest.raises(StaleMessageId):
                list(reader)


def test_ids_pointers_and_numbers_go_on_behind_those_of_before_whatever_the_clock_says(lost: Lost, tmp_path: Path) -> None:
    with lost.served(tmp_path, ManualClock(1_000)) as client:
        published(client, range(100, 101))
        newest = client.stats("t").last_message_id
        assert newest is not None
        assert bytes(newest) > bytes(lost.seen[-1].message_id)
        for _ in range(2):
            pointer, number = begun(client)
            assert pointer > max(each for each, _ in lost.begun)
            assert number > max(each for _, each in lost.begun)
            assert client.checkpoint_transaction(pointer).write_pointer > pointer
        for pointer, _ in lost.begun:
            with pytest.raises(TransactionNotFound):
                client.commit_transaction(pointer)


def test_nothing_comes_again_where_the_stores_own_times_are_ahead_of_the_clock(tmp_path: Path) -> None:
    """The clock was an hour ahead when something was published, and was set right before the backup."""
    right = time.time_ns() // 1_000_000 - 1_000
    clock = ManualClock(right + 3_600_000)
    with running_service(f"leveldb://{tmp_path}/data", clock, backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        published(client, range(10))
        client.start_transaction()
        clock.ms = right
        back_up(client)
        published(client, range(10, 20))
        last = str(client.stats("t").last_message_id)
        pointers = [client.start_transaction().write_pointer for _ in range(10)]
        store = restored(tmp_path)
    with running_service(store) as service, Client(service.url) as client:
        published(client, range(100, 106))
        with Reader("t", client=client, start=10, timeout=0) as reader:
            ids = [str(each.message_id) for each in reader]
        assert len(ids) == 6
        assert min(ids) > last, "a reader behind it is given all that is new"
        assert client.start_transaction().write_pointer > max(pointers)


def test_a_restore_by_a_clock_that_lags_behind_the_backup_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000 + 3_600_000)
    with running_service(f"leveldb://{tmp_path}/data", clock, backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        back_up(client)
    refused = run("restore", str(tmp_path / "archive"), "--store", f"leveldb://{tmp_path}/new")
    assert refused.exit_code == 1
    assert "set the clock first" in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("known", [0, 1, 2**40, 1_795_000_000 * 2**20 + 7, 2**52 + 12_345])
@pytest.mark.parametrize("now_ms", [0, 1_795_000_000_000, 4_200_000_000_000])
def test_the_number_of_an_incarnation_is_above_all_that_is_known_and_the_clock_and_below_2_53(known: int, now_ms: int) -> None:
    assert TIME_BITS + CHANCE_BITS + ANEW_BITS == 53
    low, high = (next_number(known, now_ms, chance) for chance in (0, 2**CHANCE_BITS - 1))
    assert known < low < high < high + 2**ANEW_BITS <= 2**53
    assert (now_ms // 64_000) << CHANCE_BITS + ANEW_BITS <= low
    with pytest.raises(StoreError, match="2106"):
        next_number(known, 2**32 * 1_000, 0)


def test_a_store_that_a_former_version_restored_has_the_incarnation_that_it_had(tmp_path: Path) -> None:
    second = 1_795_000_000
    with closing(store_opener(f"leveldb://{tmp_path}/data")()) as store:
        batch = Batch()
        batch.put(Table.STORE_ID, b"restored", b"%032x" % second)
        store.write([batch])
        assert find_incarnation(store) == (second * 2**20, *[second * 1_000] * 4)
        begun = begin_incarnation(store, 0)
        assert begun.number > second * 2**20
        assert min(begun[1:4]) > second * 1_000
        assert find_incarnation(store) == begun


def test_a_consumer_of_before_is_fenced_and_its_subscription_goes_on_at_the_cursor_of_the_backup(
    lost: Lost, tmp_path: Path
) -> None:
    with lost.served(tmp_path) as client:
        with pytest.raises(ConsumerFenced):
            client.acknowledge("t", "s", Acknowledge(epoch=lost.consumer, generation=lost.generation, offset=8))
        with pytest.raises(ConsumerFenced):
            client.acknowledge("t", "s", Acknowledge(epoch=lost.consumer, generation=client.stats("t").generation, offset=8))
        with Consumer("t", "s", client=client, timeout=5) as again:
            assert next(iter(again)).payload == b"4"


def test_a_topic_that_is_deleted_and_made_anew_after_a_restore_goes_on_rising(lost: Lost, tmp_path: Path) -> None:
    with lost.served(tmp_path) as client:
        epoch, generation = client.open_producer("t", "q").epoch, client.stats("t").generation
        client.delete_topic("t")
        client.create_topic("t")
        assert client.open_producer("t", "q").epoch > epoch
        assert client.stats("t").generation == generation + 1
        client.create_topic("new")
        assert client.open_producer("new", "q").epoch > 2**40, "the store of before may have had such a topic"
        assert client.stats("new").generation > 2**40
        with client.atomic("group", id="one") as batch:
            batch.send("new", b"x")
        assert client.atomic_outcome("one").topics[0].generation == client.stats("new").generation


def test_two_restores_of_one_backup_are_two_incarnations(lost: Lost) -> None:
    found = []
    for store in (f"leveldb://{lost.place}/new", restored(lost.place, "again")):
        with closing(store_opener(store)()) as opened:
            found.append(find_incarnation(opened).number)
            assert begin_incarnation(opened, 0).number > found[-1], "a clock that went back is no reason for the same one"
    assert len({0, *found}) == 3, "also within one second"


def test_an_outbox_is_fenced_once_and_goes_on_behind_what_is_there(lost: Lost, tmp_path: Path) -> None:
    lost.database.put(12)
    with lost.served(tmp_path) as client:
        relay = OutboxRelay(lost.database.outbox, lost.database.engine, client=client, takeover_seconds=1)
        assert until(relay.run_once) == 1
        lost.database.put(13)
        assert relay.run_once() == 1
        with Reader("shop", client=client, timeout=0) as reader:
            assert [int(each.payload) for each in reader] == [12, 13]


def test_who_runs_on_is_told_and_a_relay_opens_its_topics_again(tmp_path: Path) -> None:
    database, settings = Reading(tmp_path), {"port": free_port(), "backup_root": tmp_path}
    with running_service(f"leveldb://{tmp_path}/data", **settings) as service, Client(service.url) as client:
        for topic in ("t", "shop"):
            client.create_topic(topic)
        producers = [Producer[bytes]("t", name=name, url=service.url) for name in ("p", None)]
        consumer, reader = Consumer("t", "s", url=service.url, timeout=5), Reader("t", url=service.url, timeout=5)
        relay = OutboxRelay(database.outbox, database.engine, url=service.url)
        for producer in producers:
            producer.send(b"0")
        assert next(iter(reader)).payload == b"0"
        consumer.ack(next(iter(consumer)))
        back_up(client)
        for producer in producers:
            producer.send(b"1")
        database.put(0)
        assert relay.run_once() == 1
        store = restored(tmp_path)
    with running_service(store, **settings) as service, Client(service.url) as client:
        for producer in producers:
            with pytest.raises(ProducerFenced):
                producer.send(b"2")
        with pytest.raises(StaleMessageId):
            list(reader)
        with pytest.raises(ConsumerFenced):
            list(consumer)
        database.put(1)

        def is_published() -> bool:
            with suppress(OncelogError):
                relay.run_once()
            with Reader("shop", client=client, timeout=0) as shop:
                return [each.payload for each in shop] == [b"1"]

        until(is_published, "the relay has opened the topic again")
        relay.close()
        for producer in producers:
            with suppress(OncelogError):
                producer.close()


@pytest.mark.real
def test_a_copy_that_is_verified_settles_nothing_with_a_transaction_service_that_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServiceProcess(tmp_path / "transactions", "tx-serve") as there, Client(there.url) as decides:
        settings = {"transactions_url": there.url, "backup_root": tmp_path}
        with running_service(f"leveldb://{tmp_path}/data", **settings) as service, Client(service.url) as client:
            client.create_topic("t")
            pointer = decides.start_transaction().write_pointer
            assert Topic(service.url).publish_under(pointer, "undecided").status_code == 200
            back_up(client)
        decides.commit_transaction(pointer)
        monkeypatch.setenv("ONCELOG_TRANSACTIONS_URL", there.url)
        proved = value(run("backup", "verify", str(tmp_path / "archive"), "--json"))
        assert (proved["ok"], proved["messages"]) == (True, 1)
        store = restored(tmp_path)
        waiting = {"storeId": proved["store_id"], "wait": "0"}
        told = requests.get(there.url + "/v1/transactions/unacknowledged", params=waiting, timeout=PATIENCE).json()
        assert [each["writePointer"] for each in told] == [pointer], "the store has not heard of it yet"
        with running_service(store, **settings) as service, Client(service.url) as client:
            until(lambda: client.offsets({"t": TopicAsked()})["t"].stable == 1, "the restored store is told")
