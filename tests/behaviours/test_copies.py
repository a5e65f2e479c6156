"""What lies in a topic arrives as it is, whoever takes it out and whoever puts it in: one table of them all.

A copy of an erased message is an erased message. It says nothing, so it differs from nothing that was stored under its number.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructType
from sqlalchemy import create_engine

from oncelog import AsyncProducer, Client, Consumer, Message, Outbox, OutboxRelay, Producer
from oncelog.spark.reading.read_options import ReadOptions
from oncelog.spark.reading.source import BatchReader
from oncelog.spark.writing.sink import BatchWriter
from oncelog.spark.writing.write_options import WriteOptions
from oncelog.testing.committed import committed
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import PublishRequest
from tests.behaviours.cli.support import run, value
from tests.patience import until
from tests.world.service import running_service

ERASED = "oncelog.erased"


class Said(NamedTuple):
    """All of a message that its copy has, too."""

    payload: bytes
    key: bytes | None
    properties: dict[str, str]
    ttl: int | None
    erased: bool


def said(messages: Sequence[Message[bytes]]) -> list[Said]:
    return [Said(each.payload, each.key, each.properties, each.ttl, each.erased) for each in messages]


def settled(client: Client, topic: str) -> None:
    """A topic is told of the end of a transaction a moment after whoever has ended it."""
    until(lambda: client.offsets({topic: TopicAsked()})[topic].stable == client.stats(topic).upcoming_offset)


def read(url: str, topic: str) -> list[Message[bytes]]:
    """All that is committed, where no transaction is in progress."""
    with Client(url) as client:
        settled(client, topic)
    with Consumer(topic, f"s{random.getrandbits(40)}", start="earliest", url=url) as consumer:
        return [message for page in iter(lambda: consumer.read(timeout=0), []) for message in page]


def fill(client: Client) -> None:
    """A topic with one of everything. What is to be erased says so."""
    client.create_topic("source")
    with Producer("source", name="p", client=client) as producer:
        producer.send(b"plain")
        producer.send(b"keyed", key="k")
        producer.send(b"empty key", key=b"")
        producer.send(b"properties", properties={"größe": "XL \N{SNOWMAN}", "empty": "", "quoted": '"a", b\r\n'})
        producer.send(b"traced", properties={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
        producer.send(b"own ttl", ttl=86_400)
        producer.send(b"")
        producer.send(b"", key="k", properties={"only": "this"})
        producer.send('größer, \N{SNOWMAN}\r\n"quoted"'.encode(), key="größe")
        producer.send(bytes(range(256)), key=b"\xff\0")
        producer.send(random.Random(1).randbytes(1 << 18))
        producer.send(b"secret")
        producer.send(b"secret", key="k", properties={"also": "secret"}, ttl=86_400)
    with client.transaction() as tx:
        tx.send("source", b"committed")
        tx.send("source", b"secret")
    with client.transaction(buffer_bytes=0) as tx:
        tx.send("source", b"stored", key="k", properties={"a": "b"})
        tx.send("source", b"secret", properties={"a": "b"})
    tx = client.transaction()
    tx.start()
    tx.send("source", b"rolled back")
    tx.checkpoint()
    tx.abort()
    with client.atomic(group="g") as batch:
        batch.send("source", b"atomic")
        batch.send("source", b"secret", key="k")
    settled(client, "source")
    for message in committed(client, "source", "default"):
        if message.payload == b"secret":
            client.erase_message("source", message.offset)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running_service() as service, Client(service.url) as client:
        fill(client)
        yield client


# --- who takes out and who puts in

Messages = list[Message[bytes]]
Copy = Callable[[Client, str, Path], object]
"""Copies the topic `source` into that topic; everything under numbers, so that it can be done again."""


def published(client: Client, topic: str, form: str, file: Path) -> object:
    options = ("-i", form, "--file", str(file), "--producer", "copier", "--sequence-id", "line")
    return value(run("publish", topic, *options, "--json", url=client.url))


def by_command(form: str) -> Copy:
    """`oncelog read` into a file, and `oncelog publish` of it."""

    def copy(client: Client, topic: str, folder: Path) -> object:
        file = folder / f"{topic}.{form}"
        assert run("read", "source", "--committed", "-o", form, "--to", str(file), url=client.url).exit_code == 0
        return published(client, topic, form, file)

    return copy


def by_messages(put: Callable[[Client, str, Messages], object]) -> Copy:
    """What a reader delivers is sent with all that it has."""
    return lambda client, topic, folder: put(client, topic, read(client.url, "source"))


def more(message: Message[bytes]) -> dict[str, Any]:
    return {"key": message.key, "properties": message.properties, "ttl": message.ttl}


def send_async(client: Client, topic: str, messages: Messages) -> None:
    with Producer(topic, name="copier", client=client) as producer:
        futures = [producer.send_async(each.payload, sequence_id=each.offset, **more(each)) for each in messages]
        for future in futures:
            future.result()


def send_batch(client: Client, topic: str, messages: Messages) -> None:
    with Producer(topic, name="copier", client=client) as producer:
        producer.send_batch(
            [each.payload for each in messages],
            sequence_ids=[each.offset for each in messages],
            keys=[each.key for each in messages],
            properties=[each.properties for each in messages],
        )


def send_awaited(client: Client, topic: str, messages: Messages) -> None:
    async def sent() -> None:
        async with AsyncProducer(topic, name="copier", url=client.url) as producer:
            for each in messages:
                await producer.send(each.payload, sequence_id=each.offset, **more(each))

    asyncio.run(sent())


def send_atomic(client: Client, topic: str, messages: Messages) -> None:
    with client.atomic(group="copies", producer=f"of-{topic}", sequence_id=0) as batch:
        for each in messages:
            batch.send(topic, each.payload, **more(each))


def send_atomic_as_named(client: Client, topic: str, messages: Messages) -> None:
    with client.atomic(group="copies") as batch:
        for each in messages:
            batch.send(topic, each.payload, producer="copier", sequence_id=each.offset, **more(each))


def send_in_a_transaction(client: Client, topic: str, messages: Messages, buffer_bytes: int = 64 << 20) -> None:
    with (
        Producer(topic, name="copier", client=client) as producer,
        client.transaction(buffer_bytes=buffer_bytes) as tx,
    ):
        for each in messages:
            tx.send(topic, each.payload, producer=producer, sequence_id=each.offset, **more(each))


def store(client: Client, topic: str, messages: Messages) -> None:
    if committed(client, topic, "default"):
        return  # a group is stored once
    send_in_a_transaction(client, topic, messages, 0)


def relay(client: Client, topic: str, folder: Path) -> None:
    if committed(client, topic, "default"):
        return  # rows are numbered as they are seen
    engine = create_engine(f"sqlite:///{folder}/outbox.db")
    outbox = Outbox(f"copier-{topic}")
    with engine.begin() as connection:
        for each in read(client.url, "source"):
            outbox.add(connection, topic, each.payload, **more(each))
    OutboxRelay(outbox, engine, client=client).run_once()
    engine.dispose()


# --- Spark's source and sink, called as Spark calls them


HEADER = StructType().add("key", StringType()).add("value", BinaryType())


def from_spark(client: Client, source: str = "source") -> pa.Table:
    reader = BatchReader(ReadOptions.parse({"url": client.url, "subscribe": source, "includeHeaders": "true"}))
    return pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])


def into_spark(client: Client, topic: str, table: pa.Table, **options: str) -> None:
    given = {"url": client.url, "topic": topic, "producer": f"spark-{topic}", "sequenceId": "0", **options}
    schema = StructType().add("key", BinaryType()).add("value", BinaryType()).add("headers", ArrayType(HEADER))
    if "keepProducers" in options:
        schema = schema.add("producer", StringType()).add("sequence_id", LongType())
    writer = BatchWriter(WriteOptions.parse(given), schema, False)
    writer.commit([writer.write(iter(table.select(schema.names).to_batches()))])


def archived(client: Client, file: Path) -> pa.Table:
    """As `archive` keeps it: all columns of the source, in Parquet."""
    pq.write_table(from_spark(client), file)
    return pq.read_table(file)


def backfill(client: Client, topic: str, folder: Path) -> None:
    into_spark(client, topic, archived(client, folder / "a"), keepProducers="true")


def publish_archived(client: Client, topic: str, folder: Path) -> object:
    file = folder / f"{topic}.parquet"
    archived(client, file)
    return published(client, topic, "parquet", file)


def spark_reads_what_the_command_wrote(client: Client, topic: str, folder: Path) -> None:
    file = folder / f"{topic}.parquet"
    assert run("read", "source", "--committed", "-o", "parquet", "--to", str(file), url=client.url).exit_code == 0
    into_spark(client, topic, pq.read_table(file))


LOST_TTL, LOST_EMPTY_KEY = "ttl", "empty key"
"""What a form has no place for: then a copy lives as its topic says; an empty key is none."""
COPIES: dict[str, tuple[Copy, tuple[str, ...]]] = {
    "read and publish as JSON": (by_command("json"), ()),
    "read and publish as CSV": (by_command("csv"), (LOST_EMPTY_KEY,)),
    "read and publish as Parquet": (by_command("parquet"), (LOST_TTL,)),
    "Producer.send_async": (by_messages(send_async), ()),
    "Producer.send_batch": (by_messages(send_batch), (LOST_TTL,)),
    "AsyncProducer.send": (by_messages(send_awaited), ()),
    "an atomic commit": (by_messages(send_atomic), ()),
    "an atomic commit under the name of a producer": (by_messages(send_atomic_as_named), ()),
    "a transaction": (by_messages(send_in_a_transaction), ()),
    "a transaction that stores": (by_messages(store), ()),
    "an outbox": (relay, ()),
    "archive to backfill with its producers": (backfill, (LOST_TTL,)),
    "archive to publish": (publish_archived, (LOST_TTL,)),
    "read to backfill": (spark_reads_what_the_command_wrote, (LOST_TTL,)),
}


def wanted(messages: Messages, lost: tuple[str, ...]) -> list[Said]:
    found = said(messages)
    if LOST_TTL in lost:
        found = [each._replace(ttl=None) for each in found]
    return [each._replace(key=each.key or None) for each in found] if LOST_EMPTY_KEY in lost else found


@pytest.mark.parametrize("pair", COPIES)
def test_a_topic_is_copied_with_all_that_lies_in_it(client: Client, tmp_path: Path, pair: str) -> None:
    copy, lost = COPIES[pair]
    topic = pair.replace(" ", "-")
    client.create_topic(topic)
    source = read(client.url, "source")
    assert [each.payload for each in source].count(b"secret") == 0
    assert sum(each.erased for each in source) == 5
    for times in ("once", "again"):
        copy(client, topic, tmp_path)
        assert said(read(client.url, topic)) == wanted(source, lost), times


# --- once more, when something was erased meanwhile

RESENT: dict[str, Callable[[Client, str, str, str], object]] = {
    "Producer.send_batch": lambda client, source, to, _: send_batch(client, to, read(client.url, source)),
    "an atomic commit": lambda client, source, to, _: send_atomic_as_named(client, to, read(client.url, source)),
    "a transaction": lambda client, source, to, _: send_in_a_transaction(client, to, read(client.url, source)),
    "Spark with its producers": lambda client, source, to, times: into_spark(
        client, to, from_spark(client, source), keepProducers="true", sequenceId=times
    ),
}


@pytest.mark.parametrize("way", RESENT)
def test_what_was_erased_at_its_source_comes_again_as_a_duplicate_and_not_as_another_message(client: Client, way: str) -> None:
    """It says nothing any more, so nothing says that it differs. In the target it is to be erased by itself."""
    source, target = (f"{each}-{way.replace(' ', '-')}" for each in ("from", "to"))
    for topic in (source, target):
        client.create_topic(topic)
    with Producer(source, name="p", client=client) as producer:
        producer.send_batch([b"a", b"secret", b"c"])
    RESENT[way](client, source, target, "0")
    client.erase_message(source, 1)
    RESENT[way](client, source, target, "1")
    assert [each.payload for each in read(client.url, target)] == [b"a", b"secret", b"c"]
    client.erase_message(target, 1)
    RESENT[way](client, source, target, "2")
    assert [(each.payload, each.erased) for each in read(client.url, target)] == [(b"a", False), (b"", True), (b"c", False)]


@pytest.mark.parametrize("name", [None, "p"])
@pytest.mark.parametrize("stored", [False, True], ids=["published", "stored apart"])
def test_so_it_is_within_a_transaction(client: Client, stored: bool, name: str | None) -> None:
    topic = f"within-{name}-{stored}"
    client.create_topic(topic)
    transaction = client.start_transaction()
    send = client.store if stored else client.publish_transactional
    for payload, properties in ((b"secret", None), (b"", [{ERASED: "17"}])):
        send(
            topic,
            PublishRequest([payload], name, sequence_ids=[0], properties=properties, write_pointer=transaction.write_pointer),
        )
    if stored:
        client.publish_transactional(topic, PublishRequest([], write_pointer=transaction.write_pointer))
    client.commit_transaction(transaction.write_pointer)
    assert [each.payload for each in read(client.url, topic)] == [b"secret"]


def test_a_store_is_copied_with_what_is_erased_in_it(tmp_path: Path) -> None:
    there, here = (f"sqlite://{tmp_path}/{name}" for name in ("there", "here"))
    with running_service(there) as service, Client(service.url) as client:
        fill(client)
        source = read(client.url, "source")
    assert run("copy", there, here).exit_code == 0
    with running_service(here) as service:
        assert read(service.url, "source") == source
