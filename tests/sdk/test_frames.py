"""A mistake shows the line that makes it, one of ours, and what is wrong; a fault of ours all of its lines."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from traceback import walk_tb
from typing import Any

import pytest
from sqlalchemy import create_engine

from oncelog import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    Checkpoint,
    Client,
    Consumer,
    Outbox,
    OutboxRelay,
    Producer,
    Reader,
    SqlParticipant,
)
from oncelog.errors import CodecError, InvalidRequest, OncelogError, TopicNotFound
from tests.world.service import RunningService


def elsewhere(error: BaseException) -> list[str]:
    """The functions that the traceback of an error shows outside of the file of its test, with those of its causes."""
    shown, test = list[str](), error.__traceback__
    assert test is not None
    each: BaseException | None = error
    while each is not None:
        frames = [frame for frame, _ in walk_tb(each.__traceback__)]
        shown += [frame.f_code.co_name for frame in frames if frame.f_code.co_filename != test.tb_frame.f_code.co_filename]
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return shown


async def awaited(call: Callable[[Any], Any], of: Any) -> None:
    came = call(of)
    if isawaitable(came):
        await came


TWINS: dict[str, dict[str, Any]] = {
    "threads": {"Client": Client, "Producer": Producer, "Reader": Reader, "Consumer": Consumer},
    "asyncio": {"Client": AsyncClient, "Producer": AsyncProducer, "Reader": AsyncReader, "Consumer": AsyncConsumer},
}
Call = Callable[[Any], Any]

MADE: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "a client's time-out": lambda twin, _: twin["Client"](timeout=0),
    "a client's URL": lambda twin, _: twin["Client"]("ftp://127.0.0.1"),
    "a client's argument": lambda twin, _: twin["Client"](password="x"),
    "no topic": lambda twin, _: twin["Producer"](),
    "a topic that is no text": lambda twin, _: twin["Producer"](5),
    "a producer's codec": lambda twin, topic: twin["Producer"](topic, codec="xml"),
    "a producer's argument": lambda twin, topic: twin["Producer"](topic, retries=5),
    "a producer's number": lambda twin, topic: twin["Producer"](topic, linger=-1),
    "a reader's start": lambda twin, topic: twin["Reader"](topic, start="yesterday"),
    "a reader's isolation": lambda twin, topic: twin["Reader"](topic, isolation="none"),
    "a consumer's number": lambda twin, topic: twin["Consumer"](topic, "s", ack_interval=0),
    "an outbox's name": lambda _, __: Outbox(5),  # type: ignore[arg-type]
    "an outbox's value": lambda _, __: Outbox("o").row("t", 5),
    "an outbox's session": lambda _, __: Outbox("o").add(5, "t", b""),  # type: ignore[type-var]
    "a relay's number": lambda _, __: OutboxRelay(Outbox("o"), "sqlite://", rows=0),
    "a checkpoint's name": lambda _, __: Checkpoint(5, "t"),  # type: ignore[arg-type]
    "a participant's database": lambda _, __: SqlParticipant(5, "shop"),  # type: ignore[arg-type]
    "a participant's name": lambda _, __: SqlParticipant(create_engine("sqlite://"), ""),
}
"""Where something is made."""

CALLED: dict[str, tuple[str, Call]] = {
    "a name that is two": ("client", lambda client: client.create_topic("a/b")),
    "a name's characters": ("client", lambda client: client.create_topic("a b")),
    "a name that is no text": ("client", lambda client: client.topic(5)),
    "an argument that is missing": ("client", lambda client: client.topic()),
    "an argument too many": ("client", lambda client: client.topic("t", color="red")),
    "a listing's name": ("client", lambda client: client.producers(5)),
    "what travels": ("client", lambda client: client.start_transaction("endless")),
    "an offset": ("client", lambda client: client.trim_topic("t", -1)),
    "a subscription's start": ("client", lambda client: client.open_subscription("t", "s", start="yesterday")),
    "a subscription's name": ("client", lambda client: client.open_subscription("t", "a b")),
    "a transaction's time-out": ("client", lambda client: client.transaction(timeout=-1)),
    "an atomic commit's id": ("client", lambda client: client.atomic(id="a b")),
    "a branch's id": ("client", lambda client: client.atomic_branch(5)),
    "attempts": ("client", lambda client: client.run_in_transaction(print, attempts=0)),
    "a value": ("producer", lambda producer: producer.send(5)),
    "a key": ("producer", lambda producer: producer.send(b"", key=5)),
    "a ttl": ("producer", lambda producer: producer.send(b"", ttl=0)),
    "an argument of a message": ("producer", lambda producer: producer.send(b"", color="red")),
    "a value that is queued": ("producer", lambda producer: producer.send_async(5)),
    "a sequence id that is queued": ("producer", lambda producer: producer.send_async(b"", sequence_id=-1)),
    "values that are one": ("producer", lambda producer: producer.send_batch("abc")),
    "keys of other messages": ("producer", lambda producer: producer.send_batch([b"a"], keys=[])),
    "a flush's time-out": ("producer", lambda producer: producer.flush(-1)),
    "a row's sequence id": ("producer", lambda producer: [*producer.resume([b"row"], sequence_id=len.__name__.join)]),
    "a limit": ("reader", lambda reader: reader.read(0)),
    "a time-out": ("reader", lambda reader: reader.read(timeout=-1)),
    "a place": ("reader", lambda reader: reader.seek("yesterday")),
    "a consumer's limit": ("consumer", lambda consumer: consumer.read(0)),
    "a consumer's place": ("consumer", lambda consumer: consumer.seek("yesterday")),
    "no message": ("consumer", lambda consumer: consumer.ack(5)),
    "no message, later": ("consumer", lambda consumer: consumer.ack_async(5)),
    "a value in a transaction": ("transaction", lambda tx: tx.send("t", 5)),
    "a number in a transaction": ("transaction", lambda tx: tx.send("t", b"", sequence_id=5)),
    "an argument in a transaction": ("transaction", lambda tx: tx.send("t", b"", color="red")),
    "a value in a commit": ("atomic", lambda batch: batch.send("t", 5)),
    "a producer in a commit": ("atomic", lambda batch: batch.send("t", b"", producer="p")),
}
"""What is called, of what."""

REFUSED: dict[str, tuple[str, Call]] = {
    "of a topic": ("client", lambda client: client.stats("none")),
    "of a send": ("gone", lambda producer: producer.send(b"")),
    "of a poll": ("none", lambda reader: reader.read(1)),
}
"""What the service refuses."""


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("mistake", MADE)
def test_a_mistake_where_something_is_made_shows_one_frame_of_ours(topic: str, mistake: str, twin: str) -> None:
    with pytest.raises((TypeError, ValueError, InvalidRequest)) as raised:
        MADE[mistake](TWINS[twin], topic)
    assert len(elsewhere(raised.value)) <= 1, elsewhere(raised.value)


@pytest.mark.parametrize("mistake", [*CALLED, *REFUSED])
def test_a_mistake_in_a_call_shows_one_frame_of_ours(client: Client, topic: str, mistake: str) -> None:
    client.create_topic(gone := topic + "-gone")
    of, call = (CALLED | REFUSED)[mistake]
    with (
        Producer(topic, client=client) as producer,
        Producer(gone, client=client) as unlucky,
        Reader(topic, client=client) as reader,
        Reader("none", client=client) as nothing,
        Consumer(topic, "s", client=client) as consumer,
        client.transaction() as tx,
        client.atomic() as batch,
    ):
        client.delete_topic(gone)
        made = {"client": client, "producer": producer, "gone": unlucky, "reader": reader, "none": nothing}
        made |= {"consumer": consumer, "transaction": tx, "atomic": batch}
        with pytest.raises((TypeError, ValueError, OncelogError)) as raised:
            call(made[of])
    assert len(elsewhere(raised.value)) <= 1, elsewhere(raised.value)


@pytest.mark.parametrize("mistake", [*CALLED, *REFUSED])
async def test_a_mistake_in_a_call_of_asyncio_shows_one_frame_of_ours(
    client: Client, topic: str, house: RunningService, mistake: str
) -> None:
    of, call = (CALLED | REFUSED)[mistake]
    async with (
        AsyncClient(house.url) as of_loop,
        AsyncProducer(topic, client=of_loop) as producer,
        AsyncReader(topic, client=of_loop) as reader,
        AsyncReader("none", client=of_loop) as nothing,
        AsyncConsumer(topic, "s", client=of_loop) as consumer,
        of_loop.transaction() as tx,
        of_loop.atomic() as batch,
    ):
        await of_loop.create_topic(gone := topic + "-gone")
        unlucky = await AsyncProducer(gone, client=of_loop).open()
        await of_loop.delete_topic(gone)
        made = {"client": of_loop, "producer": producer, "gone": unlucky, "reader": reader, "none": nothing}
        made |= {"consumer": consumer, "transaction": tx, "atomic": batch}
        with pytest.raises((TypeError, ValueError, OncelogError)) as raised:
            await awaited(call, made[of])
        await unlucky.close()
    assert len(elsewhere(raised.value)) <= 1, elsewhere(raised.value)


def test_iterating_shows_one_frame_of_ours(client: Client) -> None:
    for each in (Reader("none", client=client), client.verify("none"), client.producers("none")):
        with pytest.raises(TopicNotFound) as raised:
            next(iter(each))
        assert len(elsewhere(raised.value)) == 1


async def test_iterating_in_a_loop_shows_one_frame_of_ours(house: RunningService) -> None:
    async with AsyncReader("none", url=house.url) as reader:
        with pytest.raises(TopicNotFound) as raised:
            await anext(reader)
    assert len(elsewhere(raised.value)) == 1


def test_a_fault_of_ours_is_shown_whole(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.topics.check_long", None)
    with pytest.raises(TypeError, match="not callable") as raised:
        client.trim_topic(topic, 5)
    assert elsewhere(raised.value) == ["method", "drive", "trim_topic"]


def test_what_the_users_own_functions_do_is_shown_whole(client: Client, topic: str) -> None:
    def send(tx: Any) -> None:
        tx.send(topic, 5)

    def frames(error: BaseException) -> list[str]:
        return [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]

    with pytest.raises(TypeError, match="bytes") as raised:
        client.run_in_transaction(send)
    assert "send" in frames(raised.value)

    class Codec:
        def encode(self, value: Any) -> bytes:
            return self.broken(value)

        def broken(self, value: Any) -> bytes:
            raise ValueError(value)

        def decode(self, data: bytes) -> Any: ...

    with Producer(topic, client=client, codec=Codec()) as producer, pytest.raises(CodecError) as refused:
        producer.send(5)
    assert refused.value.__cause__ is not None
    assert frames(refused.value.__cause__)[-2:] == ["encode", "broken"]
    assert len(frames(refused.value)) == 2
