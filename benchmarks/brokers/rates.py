"""oncelog beside Kafka and Pulsar, where Java and Maven are: the same work in the same run, in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

import uvloop

from benchmarks.atomic import MESSAGES as OF_A_TOPIC
from benchmarks.atomic import TOPICS, atomically
from benchmarks.brokers.jars import missing
from benchmarks.brokers.loads import KafkaLoad, PulsarLoad
from benchmarks.brokers.servers import Kafka, Pulsar
from benchmarks.callers import calling, connected
from benchmarks.measure import Row, Server, raw_poll, running
from benchmarks.page import KAFKA, PULSAR, UNSYNCED
from benchmarks.rivals import (
    BATCH,
    CONNECTIONS,
    OWN,
    READ,
    SIZES,
    Aim,
    at_least,
    expect,
    p50_row,
    publish,
    random_payloads,
    rate_row,
)
from benchmarks.transactions import Connection
from benchmarks.turns import Turn, Turns, in_turns, repeat
from oncelog import Client, Producer, Reader

WARM_SECONDS = 3
"""A JVM compiles what it does often; a first turn is as long as that takes it for the most part."""


def broker_rates(seconds: float) -> list[Row]:
    """Each piece of work on a fresh service, and on fresh topics of one broker of each kind; or why there are none."""
    if (why := missing()) is not None:
        return [Row(why, None, "")]
    with Kafka.running() as kafka, Pulsar.running() as pulsar:
        beside = _Beside(kafka, pulsar, seconds)
        rows: list[Row] = []
        for size, messages in (("100 B", BATCH), ("1 KiB", BATCH), ("100 B", 10)):
            rows += beside.batches(size, messages)
        rows += beside.singles(1, 1)
        for senders in (16, 64):
            rows += beside.singles(senders, 1) + beside.singles(senders, senders)
        return [*rows, *beside.reading(), *beside.transactions()]


class _Beside:
    """The pieces of work."""

    def __init__(self, kafka: Kafka, pulsar: Pulsar, seconds: float) -> None:
        self._pulsar, self._seconds = pulsar, seconds
        self._loads = {KAFKA: KafkaLoad(kafka, synced=True), UNSYNCED: KafkaLoad(kafka, synced=False)}

    def batches(self, size: str, messages: int) -> list[Row]:
        """Requests of so many over 8 connections each, on one topic."""
        turns = self._publishing(CONNECTIONS, random_payloads(SIZES[size], messages), 1)
        return _rates(turns, f"requests of {messages:,} × {size}, {CONNECTIONS} senders", messages)

    def singles(self, senders: int, topics: int) -> list[Row]:
        """One message at a time of each sender."""
        turns = self._publishing(senders, random_payloads(100, 1), topics)
        where = "one sender" if senders == 1 else f"{senders} senders on {'one topic' if topics == 1 else 'topics of their own'}"
        what = f"one message at a time, {where}"
        return _rates(turns, what, 1, {PULSAR: at_least(0.7)} if senders == 64 else {}) + (
            [p50_row(turns, what, rival, None) for rival in (KAFKA, UNSYNCED, PULSAR)] if senders == 1 else []
        )

    def _publishing(self, senders: int, payloads: Sequence[bytes], topics: int) -> Turns:
        names = [f"p{number}" for number in range(senders)]
        arguments = (senders, len(payloads), len(payloads[0]), topics)
        with _world(topics) as (server, _, runner), PulsarLoad.begun(self._pulsar, "publish", *arguments) as pulsar:
            callers = runner.run(connected(server.url, senders))
            own = [
                publish(caller, f"bench{at % topics or ''}", name, payloads)
                for at, (caller, name) in enumerate(zip(callers, names, strict=True))
            ]
            kafka = {kind: load.publishing(senders, payloads, topics) for kind, load in self._loads.items()}
            return self._turns({OWN: calling(runner, own), **kafka}, server, pulsar)

    def reading(self) -> list[Row]:
        """Everything from the start, by one reader."""
        payloads, times = random_payloads(100), READ // BATCH
        with _world() as (server, client, _), PulsarLoad.begun(self._pulsar, "read", BATCH, 100, times) as pulsar:
            with Producer("bench", name="p", client=client) as producer:
                for _ in range(times):
                    producer.send_batch(payloads)

            def objects() -> None:
                with Reader("bench", client=client, timeout=0) as reader:
                    expect(READ, sum(1 for _ in reader))

            own: dict[str, Turn] = {
                "Reader": lambda seconds: repeat(objects, seconds),
                "raw poll": lambda seconds: repeat(lambda: expect(READ, raw_poll(server.url)), seconds),
            }
            turns = self._turns({**own, KAFKA: self._loads[KAFKA].reading(payloads, times)}, server, pulsar)
        rivals = (KAFKA, PULSAR)
        return [rate_row(turns, f"{kind} from the start", rival, READ, None, kind) for kind in own for rival in rivals]

    def transactions(self) -> list[Row]:
        """So many messages on each of two topics, all or none, one transaction after the other."""
        payloads = random_payloads(100, OF_A_TOPIC)
        with _world() as (server, client, runner), PulsarLoad.begun(self._pulsar, "transact", OF_A_TOPIC) as pulsar:
            for topic in TOPICS:
                client.create_topic(topic)
            connection, commit = Connection(server.url), atomically()
            [caller] = runner.run(connected(server.url, 1))

            def transaction() -> None:
                pointer = connection.start().write_pointer
                for topic in TOPICS:
                    connection.publish(topic, pointer, OF_A_TOPIC)
                connection.end(pointer, "commit")

            own = {
                "transactions": lambda seconds: repeat(transaction, seconds),
                "atomic commits": calling(runner, [partial(commit, caller)]),
            }
            kafka = {kind: load.transacting(payloads) for kind, load in self._loads.items()}
            turns = self._turns({**own, **kafka}, server, pulsar)
            connection.close()
        what = f"of 2 × {OF_A_TOPIC} messages over two topics"
        return [_each(rate_row(turns, f"{kind} {what}", rival, 1, None, kind)) for kind in own for rival in (*kafka, PULSAR)]

    def _turns(self, kinds: Mapping[str, Turn], server: Server, pulsar: PulsarLoad) -> Turns:
        used: dict[str, Callable[[], float]] = {kind: self._loads.get(kind, server).processor_seconds for kind in kinds}
        return in_turns(
            {**kinds, PULSAR: pulsar.turn},
            {**used, PULSAR: pulsar.processor_seconds},
            self._seconds,
            client_seconds={PULSAR: pulsar.client_seconds},
            first_seconds=WARM_SECONDS,
        )


@contextmanager
def _world(topics: int = 1) -> Iterator[tuple[Server, Client, asyncio.Runner]]:
    """A fresh service with the topics bench, bench1, bench2, …"""
    with (
        running("oncelog") as server,
        Client(server.url) as client,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        for number in range(topics):
            client.create_topic(f"bench{number or ''}")
        yield server, client, runner


def _rates(turns: Turns, what: str, messages: int, aims: Mapping[str, Aim] = MappingProxyType({})) -> list[Row]:
    return [rate_row(turns, what, rival, messages, aims.get(rival)) for rival in (KAFKA, UNSYNCED, PULSAR)]


def _each(row: Row) -> Row:
    row.unit = "a second"
    return row
