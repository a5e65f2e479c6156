"""Deduplication by producers' names and sequence ids (PIP-6), run beside Kafka and its home, Pulsar: what is stored how often.

`make once` prints the table of docs/pip6.md, and writes it there with `ARGS=--page`. Each one's program does what
its own documents ask of one that must not store twice. Nothing here is about speed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.brokers import clients
from benchmarks.brokers.jars import java_program, missing, version
from benchmarks.brokers.servers import Kafka, Pulsar
from benchmarks.measure import Server, oncelog_server
from oncelog import Client, Producer, Reader
from oncelog.errors import OncelogError

PAGE = Path(__file__).parents[1] / "docs" / "pip6.md"
BEGIN, END = "<!-- outcomes begin, written by `make once ARGS=--page` -->\n", "<!-- outcomes end -->"
SOURCE = 10_000
"""Messages of the source that is published while something is killed."""
PIECE, PIECE_SECONDS = 100, 0.01
"""What the source gives at once, and how often."""
KILLS = 3

Messages = Mapping[int, str]
"""By sequence id."""


class Side:
    """One that stores messages: a server that can be killed, and a client that was written for it."""

    name: str
    version: str
    server: Any
    """With `start` and `end`."""

    def topic(self, name: str) -> str:
        """Of its own, where several clients are tried on one server."""
        return f"{type(self).__name__}-{name}"

    def live(self, topic: str, messages: Messages) -> list[str]:
        """The life of one process: a producer of the always same name is opened, and sends these in one batch.

        What it is told of each message: stored, duplicate, or the name of an error.
        """
        raise NotImplementedError

    def read(self, topic: str) -> list[str]:
        """All payloads, from the first on."""
        raise NotImplementedError

    def publisher(self, topic: str, home: Path) -> list[str]:
        """The command of a process that publishes the source, and goes on where it was when it is started anew."""
        return [sys.executable, "-m", "benchmarks.pip6", "--publish", type(self).__name__, self.address, topic, str(home)]

    @property
    def address(self) -> str:
        address: str = self.server.address
        return address

    def publish(self, topic: str, home: Path) -> None:
        """What this process does."""
        raise NotImplementedError


class OnceLog(Side):
    name = "oncelog"
    version = "this version"

    def __init__(self, server: Server | None, address: str = "") -> None:
        self.server = server
        self._url = address or (server.url if server else "")

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[OnceLog]:
        with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as home:
            server = oncelog_server(f"leveldb://{home}/data", "--log-level", "warning")
            try:
                server.start()
                yield cls(server)
            finally:
                server.end(signal.SIGKILL)

    @property
    def address(self) -> str:
        return self._url

    def live(self, topic: str, messages: Messages) -> list[str]:
        with Client(self._url) as client:
            client.create_topic(topic, exist_ok=True)
            producer = Producer(topic, name="till", client=client)
            try:
                futures = [producer.send_async(payload.encode(), sequence_id=each) for each, payload in messages.items()]
                producer.flush()
            except OncelogError:
                pass  # each future says the same of its message
            finally:
                producer.close()
        return [type(error).__name__ if (error := each.exception()) else each.result().status for each in futures]

    def read(self, topic: str) -> list[str]:
        with Reader(topic, url=self._url, timeout=0) as reader:
            return [message.payload.decode() for message in reader]

    def publish(self, topic: str, home: Path) -> None:
        with Client(self._url) as client, Progress() as progress:
            client.create_topic(topic, exist_ok=True)
            with Producer(topic, name="till", client=client) as producer:
                for number in paced(producer.resume(range(1, SOURCE + 1), sequence_id=lambda number: number)):
                    future = producer.send_async(b"%d" % number, sequence_id=number)
                    future.add_done_callback(lambda future, number=number: progress.reached(number))  # type: ignore[misc]


class KafkaSide(Side):
    """An idempotent producer. It has numbers of its own, so a program notes how far it has come after each answer."""

    name = "Kafka"

    def __init__(self, server: Kafka | None, address: str = "") -> None:
        clients.install()
        self.server, self.version = server, version("kafka")
        self._address = address or (server.address if server else "")

    @property
    def address(self) -> str:
        return self._address

    def _producer(self, **options: object) -> Any:
        import confluent_kafka

        settings = {"bootstrap.servers": self._address, "enable.idempotence": True, "log_level": 0}
        return confluent_kafka.Producer(settings | {name.replace("_", "."): value for name, value in options.items()})

    def live(self, topic: str, messages: Messages) -> list[str]:
        told: list[str] = []

        def delivered(error: Any, _: object) -> None:
            told.append(error.name() if error else "stored")

        producer = self._producer()
        for payload in messages.values():
            producer.produce(topic, payload.encode(), on_delivery=delivered)
        producer.flush()
        return told

    def read(self, topic: str) -> list[str]:
        """Only what is committed, where there are transactions: so is the client's default."""
        import confluent_kafka

        settings = {"bootstrap.servers": self._address, "group.id": "read", "enable.partition.eof": True, "log_level": 0}
        consumer = confluent_kafka.Consumer(settings)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            found: list[str] = []
            while (message := consumer.poll()).error() is None:
                found.append(message.value().decode())
            if message.error().code() != confluent_kafka.KafkaError._PARTITION_EOF:
                raise RuntimeError(message.error())
            return found
        finally:
            consumer.close()

    def publish(self, topic: str, home: Path) -> None:
        noted = home / "noted"
        producer = self._producer()
        with Progress(noted) as progress:

            def delivered(error: object, message: Any) -> None:
                if error is None:
                    progress.reached(int(message.value()))

            for number in paced(range(int(noted.read_text()) + 1 if noted.exists() else 1, SOURCE + 1)):
                producer.produce(topic, b"%d" % number, on_delivery=delivered)
                if number % PIECE == 0:
                    producer.poll(0)
                    progress.note()
            producer.flush()


class KafkaTransactions(KafkaSide):
    """How far it has come is noted in Kafka too, in a transaction with what it published."""

    name = "Kafka, with transactions"

    def live(self, topic: str, messages: Messages) -> list[str]:
        producer = self._begun(topic)
        self._commit(producer, topic, list(messages.values()))
        return ["stored"]

    def publish(self, topic: str, home: Path) -> None:
        producer = self._begun(topic)
        self._commit(producer, f"{topic}-noted", ["0"])  # so that there is one to read
        start = max(map(int, self.read(f"{topic}-noted"))) + 1
        with Progress() as progress:
            for first in range(start, SOURCE + 1, PIECE):
                piece = [str(number) for number in range(first, min(first + PIECE, SOURCE + 1))]
                self._commit(producer, topic, piece, f"{topic}-noted")
                progress.reached(first + PIECE - 1)
                time.sleep(PIECE_SECONDS)

    def _begun(self, topic: str) -> Any:
        """Its name ends what a life before it has left open."""
        producer = self._producer(transactional_id=topic, transaction_timeout_ms=300_000)
        producer.init_transactions()
        return producer

    def _commit(self, producer: Any, topic: str, payloads: Sequence[str], noted: str = "") -> None:
        import confluent_kafka

        while True:
            producer.begin_transaction()
            try:
                for payload in payloads:
                    producer.produce(topic, payload.encode())
                if noted:
                    producer.produce(noted, payloads[-1].encode())
                return producer.commit_transaction()
            except confluent_kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction()


class PulsarSide(Side):
    """A producer with a name and sequence ids of the program's own, and no time-out, as Pulsar's documents ask of one."""

    name = "Pulsar, from Python"
    batching = True

    def __init__(self, server: Pulsar | None, address: str = "") -> None:
        clients.install()
        self.server, self.version = server, version("pulsar")
        self._address = address or (server.address if server else "")

    @property
    def address(self) -> str:
        return self._address

    @contextmanager
    def _client(self) -> Iterator[Any]:
        import pulsar

        client = pulsar.Client(self._address, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
        try:
            yield client
        finally:
            client.close()

    def _producer(self, client: Any, topic: str) -> Any:
        options = {"batching_enabled": self.batching, "batching_max_messages": 1000, "batching_max_publish_delay_ms": 5}
        return client.create_producer(topic, "till", send_timeout_millis=0, block_if_queue_full=True, **options)

    def live(self, topic: str, messages: Messages) -> list[str]:
        told: list[str] = []

        def answered(result: Any, message_id: Any) -> None:
            told.append(result.name if result.value else "duplicate" if message_id.ledger_id() < 0 else "stored")

        with self._client() as client:
            producer = self._producer(client, topic)
            for each, payload in messages.items():
                producer.send_async(payload.encode(), answered, sequence_id=each)
            producer.flush()
            producer.close()
        return told

    def read(self, topic: str) -> list[str]:
        import pulsar

        found = []
        with self._client() as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next().data().decode())
        return found

    def publish(self, topic: str, home: Path) -> None:
        with self._client() as client, Progress() as progress:
            producer = self._producer(client, topic)
            for number in paced(range(max(producer.last_sequence_id(), 0) + 1, SOURCE + 1)):
                reached = partial(progress.reached, number)
                producer.send_async(b"%d" % number, lambda *_, reached=reached: reached(), sequence_id=number)
            producer.flush()


class PulsarOneByOne(PulsarSide):
    """Without batches, so that the broker is told each message's sequence id."""

    name = "Pulsar, without batches"
    batching = False


class PulsarJava(PulsarSide):
    """The same with Pulsar's client for Java."""

    name = "Pulsar, from Java"

    def live(self, topic: str, messages: Messages) -> list[str]:
        line = "\t".join([topic, "till", *(f"{each}={payload}" for each, payload in messages.items())])
        done = subprocess.run(self._command(), input=line + "\n", capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1].split("\t")

    def publisher(self, topic: str, home: Path) -> list[str]:
        return [*self._command(), topic, "till", str(SOURCE), str(PIECE), str(round(PIECE_SECONDS * 1000))]

    def _command(self) -> list[str]:
        return [*java_program("Sender", "pulsar"), self._address]


SIDES = {side.__name__: side for side in (OnceLog, KafkaSide, KafkaTransactions, PulsarSide, PulsarOneByOne, PulsarJava)}


# --- the process that publishes a source


def paced(numbers: Any) -> Iterator[int]:
    """A piece at a time, so that there is a middle in which to be killed."""
    for at, number in enumerate(numbers):
        if at and at % PIECE == 0:
            time.sleep(PIECE_SECONDS)
        yield number


class Progress:
    """Says every so often how far it has come, for who kills; and can note it in a file for the next life."""

    def __init__(self, noted: Path | None = None) -> None:
        self._noted = noted
        self._number: int | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        print("end", flush=True)

    def reached(self, number: int) -> None:
        self._number = number
        if number % PIECE == 0:
            print(number, flush=True)

    def note(self) -> None:
        if self._noted is not None and self._number is not None:
            new = self._noted.with_suffix(".new")
            new.write_text(str(self._number))
            new.replace(self._noted)


# --- what is tried


def numbers(first: int, last: int, word: str = "") -> dict[int, str]:
    return {each: f"{each}{word}" for each in range(first, last + 1)}


def cut_differently(side: Side) -> str:
    """The answer to the first batch is lost, and the next process cuts its own otherwise."""
    topic = side.topic("cut")
    side.live(topic, numbers(1, 10))
    told = side.live(topic, numbers(5, 15))
    return f"{stored(numbers(1, 15), side.read(topic))}; answered: {in_words(told)}"


def numbered_anew(side: Side) -> str:
    """A process that has lost its position begins with 1 again, and what it has are new messages."""
    return second_life(side, "anew", numbers(1, 10), numbers(1, 4, " new"))


def another_payload(side: Side) -> str:
    """The last message once more, and now it says something else."""
    return second_life(side, "other", numbers(1, 10), numbers(10, 10, " corrected"))


def passed_over(side: Side) -> str:
    """A message that was late, under an id below what is stored, which nothing has."""
    return second_life(side, "late", {1: "1", 2: "2", 4: "4"}, {3: "3"})


def second_life(side: Side, name: str, first: Messages, second: Messages) -> str:
    topic = side.topic(name)
    side.live(topic, first)
    told = side.live(topic, second)
    kept = set(side.read(topic)).issuperset(second.values())
    return f"{'stored' if kept else 'not stored'}; answered: {in_words(told)}"


def in_words(told: Sequence[str]) -> str:
    """What all were told, or how many were told what."""
    counts = Counter(told)
    return ", ".join(each if len(counts) == 1 else f"{count} {each}" for each, count in counts.items())


def publisher_killed(side: Side) -> str:
    """kill -9 of the process that publishes, three times; each time it is begun anew and goes on."""
    return under_kills(side, "publisher", lambda process: process.kill())


def service_killed(side: Side) -> str:
    """kill -9 of the service, three times, while the process that publishes lives on."""

    def kill(_: object) -> None:
        side.server.end(signal.SIGKILL)
        side.server.start()

    return under_kills(side, "service", kill)


def under_kills(side: Side, name: str, kill: Callable[[subprocess.Popen[str]], None]) -> str:
    """Publish the source, and kill at a quarter of it, at a half and at three quarters."""
    chance, topic = random.Random(6), side.topic(name)
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as home:
        at = [SOURCE * each // (KILLS + 1) for each in range(1, KILLS + 1)]
        while True:
            with subprocess.Popen(side.publisher(topic, Path(home)), stdout=subprocess.PIPE, text=True) as process:
                try:
                    ended = _follow(process, at, chance, kill)
                finally:
                    process.kill()
            if ended:
                return stored(numbers(1, SOURCE), side.read(topic))
            if process.returncode != -signal.SIGKILL:
                raise RuntimeError(f"{side.name}: the process that publishes ended with {process.returncode}")


def _follow(process: subprocess.Popen[str], at: list[int], chance: random.Random, kill: Callable[..., None]) -> bool:
    """Whether it came to its end; it is killed when it is past the next of these places, or the service is."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == "end\n":
            return True
        if at and int(line) >= at[0]:
            at.pop(0)
            time.sleep(chance.uniform(0, 2 * PIECE_SECONDS))
            kill(process)
    return False


TRIED: Mapping[str, Callable[[Side], str]] = {
    "a batch of 1..10; its answer is lost, and the next one is 5..15": cut_differently,
    "numbered anew: new messages under 1..4": numbered_anew,
    "another payload under the last id": another_payload,
    "a late message under an id that was passed over": passed_over,
    "kill -9 of the publisher, three times": publisher_killed,
    "kill -9 of the service, three times": service_killed,
}


def stored(expected: Messages, found: Sequence[str]) -> str:
    """What of these is there how often, in words."""
    wanted, counts = list(expected.values()), Counter(found)
    if counts.keys() - set(wanted):
        raise RuntimeError(f"what nobody sent: {sorted(counts.keys() - set(wanted))[:5]}")
    lost = [each for each, payload in expected.items() if not counts[payload]]
    again = [each for each, payload in expected.items() if counts[payload] > 1]
    times = "twice" if max(counts.values(), default=0) == 2 else f"up to {max(counts.values(), default=0)} times"
    said = [f"{what(places)} {how}" for places, how in ((lost, "lost"), (again, times)) if places]
    if not said and list(found) != wanted:
        return "each once, in another order"
    return "; ".join(said) or "each once"


def what(places: Sequence[int]) -> str:
    """A few as they are, more as their number."""
    runs = [[at for _, at in run] for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0])]
    if len(places) > 20:
        return f"{len(places):,} messages"
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


# --- the table


def outcomes(side: Side) -> dict[str, str]:
    """Of everything that is tried."""
    return {name: tried(side) for name, tried in TRIED.items()}


def table(found: Mapping[str, Mapping[str, str]]) -> str:
    lines = [["what happens", *found], ["---"] * (len(found) + 1)]
    lines += [[name, *(each.get(name, "") for each in found.values())] for name in TRIED]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text: str, written: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE} has no place for what was found")
    return f"{before}{BEGIN}\n{written}\n{END}{after}"


@contextmanager
def sides() -> Iterator[list[Side]]:
    """All that can run here, oncelog first."""
    with ExitStack() as running:
        found: list[Side] = [running.enter_context(OnceLog.running())]
        if (why := missing()) is not None:
            print(why)
        else:
            kafka = running.enter_context(Kafka.running())
            found += [KafkaSide(kafka), KafkaTransactions(kafka)]
            pulsar = running.enter_context(Pulsar.running())
            found += [PulsarSide(pulsar), PulsarOneByOne(pulsar), PulsarJava(pulsar)]
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(prog="make once", description=__doc__)
    parser.add_argument("--page", action="store_true", help="write what was found into docs/pip6.md")
    parser.add_argument("--publish", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.publish:
        side, address, topic, home = arguments.publish
        SIDES[side](None, address).publish(topic, Path(home))
        return
    with sides() as all_of_them:
        written = table({f"{side.name} ({side.version})": outcomes(side) for side in all_of_them})
    print(written)
    if arguments.page:
        PAGE.write_text(page(PAGE.read_text(), written))


if __name__ == "__main__":
    main()
