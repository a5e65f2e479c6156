"""Clients of before against a restored store: each goes on rightly or is told; nothing is skipped or doubled without a word."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from pathlib import Path

import pytest
import requests
from sqlalchemy import create_engine

from oncelog import Checkpoint, Client, Consumer, Outbox, OutboxRelay, Producer, Reader
from oncelog.errors import ConsumerFenced, OncelogError, ProducerFenced, StaleMessageId, TransactionNotFound
from oncelog.wire.models import Acknowledge, TopicAsked
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


class Before:
    """A service of which a backup was taken, and clients that went on behind it."""

    def __init__(self, client: Client, archive: Path) -> None:
        self.client, self.archive = client, archive

    def restored(self, path: Path) -> str:
        store = f"leveldb://{path}"
        assert value(run("restore", str(self.archive), "--store", store, "--json"))["ok"]
        return store


@contextmanager
def backed_up(tmp_path: Path) -> Iterator[Before]:
    """Topic t with 10 messages of producer p in the backup."""
    with running_service(f"leveldb://{tmp_path}/data", backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", name="p", client=client) as producer:
            producer.send_batch([b"%d" % number for number in range(10)])
        assert value(run("backup", "create", "archive", "--json", url=service.url))["number"] == 1
        yield Before(client, tmp_path / "archive")


def published(client: Client, numbers: range, name: str = "p") -> None:
    with Producer[bytes]("t", name=name, client=client) as producer:
        producer.send_batch([b"%d" % number for number in numbers])


def test_a_producer_that_went_on_behind_the_backup_is_fenced_and_resumes_at_what_is_there(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        epoch = before.client.open_producer("t", "p").epoch
        of_after = before.client.open_producer("t", "later").epoch
        store = before.restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        for name, known in (("p", epoch), ("p", 1), ("later", of_after)):
            with pytest.raises(ProducerFenced) as fenced:
                client.publish("t", PublishRequest([b"x"], producer=name, epoch=known, sequence_ids=[15]))
            assert fenced.value.generation == client.stats("t").generation
        with Producer[bytes]("t", name="p", client=client) as producer:
            assert producer.last_sequence_id == 9
            assert [each.sequence_id for each in producer.send_batch([b"10", b"11"])] == [10, 11]
        assert client.open_producer("t", "p").epoch > epoch
        assert client.open_producer("t", "later").epoch > of_after
        with Reader("t", client=client, timeout=0) as reader:
            assert [int(each.payload) for each in reader] == list(range(12))


def test_a_reader_beyond_the_backup_is_told_and_never_passes_over_what_took_the_place(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        published(before.client, range(10, 20))
        with Reader("t", client=before.client, timeout=0) as reader:
            seen = list(reader)
            generation = reader.generation
        store = before.restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        published(client, range(100, 120))
        start = seen[-1].offset + 1
        with Reader("t", client=client, start=start, generation=generation, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)
        with Reader("t", client=client, start=seen[9].message_id, timeout=0) as reader:
            assert [int(each.payload) for each in reader] == list(range(100, 120))


def test_an_id_that_was_handed_out_in_the_lost_time_is_refused_wherever_one_starts_from_it(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        known = before.client.stats("t").last_message_id
        published(before.client, range(10, 20))
        before.client.create_topic("later")
        before.client.publish("later", PublishRequest([b"x"]))
        lost = before.client.stats("t").last_message_id
        of_later = before.client.stats("later").last_message_id
        store = before.restored(tmp_path / "new")
    assert known is not None
    assert lost is not None
    assert of_later is not None
    with running_service(store) as service, Client(service.url) as client:
        published(client, range(100, 120))
        with (
            Reader("t", client=client, start=lost, timeout=0) as reader,
            pytest.raises(StaleMessageId, match=r"reset\(\)") as refused,
        ):
            list(reader)
        assert refused.value.last_message_id == str(known)
        polled = Topic(service.url).poll(startFrom=bytes(lost).decode("latin-1"))
        assert (polled.status_code, polled.json()["code"]) == (400, "stale_message_id")
        with pytest.raises(StaleMessageId):
            Consumer("t", "new", client=client, start=lost)
        with Consumer("t", "s", client=client) as consumer, pytest.raises(StaleMessageId):
            consumer.seek(lost)
        newest = client.stats("t").last_message_id
        assert newest is not None
        for start, left in ((known, 20), (newest, 0)):
            with Reader("t", client=client, start=start, timeout=0) as reader:
                assert len(list(reader)) == left
        client.create_topic("later")  # its name was in use in the lost time, and nothing is known of it
        client.publish("later", PublishRequest([b"y"]))
        with Reader("later", client=client, start=of_later, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)


def test_a_checkpoint_behind_the_backup_is_told_that_its_effects_are_those_of_lost_messages(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/sums.db")
    checkpoint = Checkpoint("sums", "t")

    def read_on(client: Client) -> list[int]:
        found = []
        with (
            engine.begin() as connection,
            Reader("t", client=client, start=checkpoint.load(connection) or "earliest", timeout=0) as reader,
        ):
            for message in reader:
                found.append(int(message.payload))
                checkpoint.save(connection, message)
        return found

    with backed_up(tmp_path) as before:
        published(before.client, range(10, 20))
        assert read_on(before.client) == list(range(20))
        store = before.restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        published(client, range(10, 20))
        with pytest.raises(StaleMessageId):
            read_on(client)


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


def test_ids_go_on_behind_those_of_before_whatever_the_clock_says(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        published(before.client, range(10, 20))
        last = before.client.stats("t").last_message_id
        store = before.restored(tmp_path / "new")
    clock = ManualClock(1_000)
    with running_service(store, clock) as service, Client(service.url) as client:
        there = client.stats("t").last_message_id
        assert there is not None
        assert last is not None
        assert bytes(there) < bytes(last)
        published(client, range(100, 101))
        newest = client.stats("t").last_message_id
        assert newest is not None
        assert bytes(newest) > bytes(last)


@contextmanager
def backed_up_ahead(tmp_path: Path) -> Iterator[tuple[Client, str]]:
    """The same; but the clock was an hour ahead when something was published, and was set right before the backup. ``str``: the
    id of the last message, which is not in it."""
    right = time.time_ns() // 1_000_000 - 1_000
    clock = ManualClock(right + 3_600_000)
    with running_service(f"leveldb://{tmp_path}/data", clock, backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        published(client, range(10))
        clock.ms = right
        assert run("backup", "create", "archive", url=service.url).exit_code == 0
        published(client, range(10, 20))
        yield client, str(client.stats("t").last_message_id)


def test_no_message_id_comes_again_where_the_stores_own_times_are_ahead_of_the_clock(tmp_path: Path) -> None:
    with backed_up_ahead(tmp_path) as (client, last):
        store = Before(client, tmp_path / "archive").restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        published(client, range(100, 106))
        with Reader("t", client=client, start=10, timeout=0) as reader:
            ids = [str(each.message_id) for each in reader]
        assert len(ids) == 6
        assert min(ids) > last, "a reader behind it is given all that is new"


def test_no_write_pointer_comes_again_where_the_stores_own_are_ahead_of_the_clock(tmp_path: Path) -> None:
    right = time.time_ns() // 1_000_000 - 1_000
    clock = ManualClock(right + 3_600_000)
    with running_service(f"leveldb://{tmp_path}/data", clock, backup_root=tmp_path) as service, Client(service.url) as client:
        client.start_transaction()
        clock.ms = right
        assert run("backup", "create", "archive", url=service.url).exit_code == 0
        behind = [client.start_transaction().write_pointer for _ in range(10)]
        store = Before(client, tmp_path / "archive").restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        assert client.start_transaction().write_pointer > max(behind)


def test_a_restore_by_a_clock_that_lags_behind_the_backup_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000 + 3_600_000)
    with running_service(f"leveldb://{tmp_path}/data", clock, backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        assert run("backup", "create", "archive", url=service.url).exit_code == 0
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


def test_a_reader_that_runs_on_is_told(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        with Reader("t", client=before.client, timeout=0) as reader:
            assert len(list(reader)) == 10
            position, generation = reader.generation, before.client.stats("t").generation
        assert position == generation
        store = before.restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        assert client.stats("t").generation != generation
        assert client.topic("t").properties["generation"] == str(client.stats("t").generation)
        client.update_topic("t", {**client.topic("t").properties, "ttl": "1000"})
        with pytest.raises(StaleMessageId):
            client.read_columns("t", 0, 5, generation=generation)
        assert client.read_columns("t", 0, 5, generation=client.stats("t").generation).next == 5


def test_a_consumer_of_before_is_fenced_and_its_subscription_goes_on_at_the_cursor_of_the_backup(tmp_path: Path) -> None:
    with running_service(f"leveldb://{tmp_path}/data", backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        published(client, range(10))
        consumer = Consumer("t", "s", client=client, timeout=5)
        for _, message in zip(range(4), consumer, strict=False):
            consumer.ack(message)
        assert run("backup", "create", "archive", url=service.url).exit_code == 0
        for _, message in zip(range(4), consumer, strict=False):
            consumer.ack(message)
        epoch, generation = client.subscription("t", "s").epoch, client.stats("t").generation
        store = Before(client, tmp_path / "archive").restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        with pytest.raises((ConsumerFenced, StaleMessageId)):
            client.acknowledge("t", "s", Acknowledge(epoch=epoch, generation=generation, offset=8))
        with pytest.raises(ConsumerFenced):
            client.acknowledge("t", "s", Acknowledge(epoch=epoch, generation=client.stats("t").generation, offset=8))
        with Consumer("t", "s", client=client, timeout=5) as again:
            assert next(iter(again)).payload == b"4"


def test_a_transaction_of_behind_the_backup_is_not_known_and_its_pointer_is_never_handed_out_again(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        pointers = {before.client.start_transaction().write_pointer for _ in range(5)}
        store = before.restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        for pointer in pointers:
            with pytest.raises(TransactionNotFound):
                client.commit_transaction(pointer)
        assert not pointers & {client.start_transaction().write_pointer for _ in range(20)}


@pytest.mark.real
def test_no_write_pointer_and_no_number_comes_again_where_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = ManualClock()

    def begun(client: Client) -> tuple[int, str]:
        answer = requests.post(f"{client.url}/v1/atomic", json={"group": "g"}, timeout=PATIENCE)
        return client.start_transaction().write_pointer, answer.json()["id"]

    with running_service(f"leveldb://{tmp_path}/data", clock, backup_root=tmp_path) as service, Client(service.url) as client:
        first = begun(client)
        assert run("backup", "create", "archive", url=service.url).exit_code == 0
        clock.advance(60_000)
        behind = begun(client)
        store = Before(client, tmp_path / "archive").restored(tmp_path / "new")
    with running_service(store, clock) as service, Client(service.url) as client:
        for _ in range(2):
            pointer, id_ = begun(client)
            assert pointer > behind[0] > first[0]
            assert int(id_) > int(behind[1]) > int(first[1])
            assert client.checkpoint_transaction(pointer).write_pointer > pointer


def test_a_topic_that_is_deleted_and_made_anew_after_a_restore_goes_on_rising(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        store = before.restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
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


def test_two_restores_of_one_backup_are_two_incarnations(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        stores = [before.restored(tmp_path / name) for name in ("one", "two")]
    found = []
    for store in stores:
        with closing(store_opener(store)()) as opened:
            found.append(find_incarnation(opened).number)
            assert begin_incarnation(opened, 0).number > found[-1], "a clock that went back is no reason for the same one"
    assert len({0, *found}) == 3, "also within one second"


def test_a_producer_without_a_name_is_told_too(tmp_path: Path) -> None:
    with backed_up(tmp_path) as before:
        opened = before.client.open_producer("t")
        store = before.restored(tmp_path / "new")
    with running_service(store) as service, Client(service.url) as client:
        with pytest.raises(OncelogError) as refused:
            client.publish("t", PublishRequest([b"x"], producer=opened.name, epoch=opened.epoch, sequence_ids=[0]))
        assert refused.value.code in ("producer_fenced", "producer_ended")


def test_an_outbox_is_fenced_once_and_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox("orders")
    outbox.create_tables(engine)

    def put(*numbers: int) -> None:
        with engine.begin() as connection:
            for number in numbers:
                outbox.add(connection, "t", b"%d" % number)

    with backed_up(tmp_path) as before:
        put(10, 11)
        assert OutboxRelay(outbox, engine, client=before.client, takeover_seconds=1).run_once() == 2
        store = before.restored(tmp_path / "new")
    put(12)
    with running_service(store) as service, Client(service.url) as client:
        relay = OutboxRelay(outbox, engine, client=client, takeover_seconds=1)
        assert until(relay.run_once) == 1
        put(13)
        assert relay.run_once() == 1
        with Reader("t", client=client, timeout=0) as reader:
            assert [int(each.payload) for each in reader] == [*range(10), 12, 13]


def test_a_relay_that_runs_on_is_fenced_and_opens_its_topics_again(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox("orders")
    outbox.create_tables(engine)
    port = free_port()
    settings = {"port": port, "backup_root": tmp_path}
    with running_service(f"leveldb://{tmp_path}/data", **settings) as service, Client(service.url) as client:
        client.create_topic("t")
        assert run("backup", "create", "archive", url=service.url).exit_code == 0
        relay = OutboxRelay(outbox, engine, url=service.url)
        with engine.begin() as connection:
            outbox.add(connection, "t", b"0")
        assert relay.run_once() == 1
        store = Before(client, tmp_path / "archive").restored(tmp_path / "new")
    with running_service(store, **settings) as service, Client(service.url) as client:
        with engine.begin() as connection:
            outbox.add(connection, "t", b"1")

        def published() -> bool:
            with suppress(OncelogError):
                relay.run_once()
            with Reader("t", client=client, timeout=0) as reader:
                return [each.payload for each in reader] == [b"1"]

        until(published, "the relay has opened the topic again")
        relay.close()


def test_a_producer_and_a_consumer_that_run_on_are_told(tmp_path: Path) -> None:
    settings = {"port": free_port(), "backup_root": tmp_path}
    with running_service(f"leveldb://{tmp_path}/data", **settings) as service, Client(service.url) as client:
        client.create_topic("t")
        producers = [Producer[bytes]("t", name=name, url=service.url) for name in ("p", None)]
        consumer, reader = Consumer("t", "s", url=service.url, timeout=5), Reader("t", url=service.url, timeout=5)
        for producer in producers:
            producer.send(b"0")
        assert next(iter(reader)).payload == b"0"
        consumer.ack(next(iter(consumer)))
        assert run("backup", "create", "archive", url=service.url).exit_code == 0
        for producer in producers:
            producer.send(b"1")
        store = Before(client, tmp_path / "archive").restored(tmp_path / "new")
    with running_service(store, **settings):
        for producer in producers:
            with pytest.raises(ProducerFenced):
                producer.send(b"2")
        with pytest.raises(StaleMessageId):
            list(reader)
        with pytest.raises((ConsumerFenced, StaleMessageId)):
            list(consumer)
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
            assert run("backup", "create", "archive", url=service.url).exit_code == 0
        decides.commit_transaction(pointer)
        monkeypatch.setenv("ONCELOG_TRANSACTIONS_URL", there.url)
        proved = value(run("backup", "verify", str(tmp_path / "archive"), "--json"))
        assert (proved["ok"], proved["messages"]) == (True, 1)
        store = f"leveldb://{tmp_path}/new"
        assert value(run("restore", str(tmp_path / "archive"), "--store", store, "--json"))["ok"]
        waiting = {"storeId": proved["store_id"], "wait": "0"}
        told = requests.get(there.url + "/v1/transactions/unacknowledged", params=waiting, timeout=PATIENCE).json()
        assert [each["writePointer"] for each in told] == [pointer], "the store has not heard of it yet"
        with running_service(store, **settings) as service, Client(service.url) as client:
            until(lambda: client.offsets({"t": TopicAsked()})["t"].stable == 1, "the restored store is told")
