"""Load on Kafka through librdkafka, and on Pulsar through its client for Java: each as fast as its own settings let it be."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from benchmarks.brokers import clients
from benchmarks.brokers.jars import java_program
from benchmarks.brokers.servers import Kafka, Pulsar, used_seconds
from benchmarks.turns import Calls, Turn, at_once, repeat

_BATCH_BYTES = 2 * 2**20
"""Room for one call's messages in one batch, here and at the broker: the shipped 1 MB would cut 1,000 × 1 KiB in two."""
_topics = count()


class KafkaLoad:
    """On topics that are synced before they are acknowledged, or as they are shipped."""

    def __init__(self, broker: Kafka, synced: bool) -> None:
        clients.install()
        self._broker, self._synced = broker, synced

    def processor_seconds(self) -> float:
        return self._broker.processor_seconds()

    def topics(self, how_many: int) -> list[str]:
        """Fresh ones of one partition."""
        from confluent_kafka.admin import AdminClient, NewTopic

        names = [f"bench-{next(_topics)}" for _ in range(how_many)]
        config = {"max.message.bytes": str(_BATCH_BYTES), **(Kafka.SYNCED if self._synced else {})}
        admin = AdminClient(self._settings())  # which must live until all are made
        for each in admin.create_topics([NewTopic(name, 1, 1, config=config) for name in names]).values():
            each.result()
        return names

    def publishing(self, senders: int, payloads: Sequence[bytes], topics: int) -> Turn:
        """A producer and a thread for each sender; on each, all payloads at once, and again when all are acknowledged."""
        names = self.topics(topics)
        return at_once([self._publish(names[sender % topics], payloads) for sender in range(senders)])

    def _publish(self, topic: str, payloads: Sequence[bytes]) -> Callable[[], None]:
        producer = self._producer()
        messages = [{"value": payload} for payload in payloads]

        def call() -> None:
            if producer.produce_batch(topic, messages) != len(messages) or producer.flush(60):
                raise RuntimeError("not acknowledged")

        return call

    def filled(self, payloads: Sequence[bytes], times: int) -> str:
        """A topic with these messages so many times."""
        [topic] = self.topics(1)
        call = self._publish(topic, payloads)
        for _ in range(times):
            call()
        return topic

    def reading(self, payloads: Sequence[bytes], times: int) -> Turn:
        """Everything from the start, by one consumer."""
        import confluent_kafka

        fast = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 2**20, "fetch.queue.backoff.ms": 5}
        topic, wanted = self.filled(payloads, times), len(payloads) * times
        consumer = confluent_kafka.Consumer(self._settings() | fast | {"group.id": "bench", "enable.auto.commit": False})

        def call() -> None:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            found = 0
            while found < wanted:
                found += sum(message.value() is not None for message in consumer.consume(10_000, 0.1))

        return lambda seconds: repeat(call, seconds)

    def transacting(self, payloads: Sequence[bytes]) -> Turn:
        """These on each of two topics, and a commit."""
        topics, producer = self.topics(2), self._producer(**{"transactional.id": f"bench-{next(_topics)}"})
        producer.init_transactions()

        def call() -> None:
            producer.begin_transaction()
            for topic in topics:
                for payload in payloads:
                    producer.produce(topic, payload)
            producer.commit_transaction()

        return lambda seconds: repeat(call, seconds)

    def _producer(self, **options: object) -> Any:
        """With `linger.ms=0` it would send what it has while a batch is still filled; a flush ends the lingering."""
        import confluent_kafka

        settings = {"enable.idempotence": True, "linger.ms": 5, "batch.size": _BATCH_BYTES, "batch.num.messages": 10_000}
        failed = {"delivery.report.only.error": True, "on_delivery": _raise}
        return confluent_kafka.Producer(self._settings() | settings | failed | {"message.max.bytes": _BATCH_BYTES, **options})

    def _settings(self) -> dict[str, object]:
        return {"bootstrap.servers": self._broker.address, "log_level": 0}


def _raise(error: object, _: object) -> None:
    raise RuntimeError(error)


class PulsarLoad:
    """Work that a JVM of its own does when it is told to."""

    def __init__(self, broker: Pulsar, work: str, *arguments: object) -> None:
        command = [*java_program("Load", "pulsar"), broker.address, work, f"bench-{next(_topics)}-", *map(str, arguments)]
        self._broker = broker
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    @contextmanager
    def begun(cls, broker: Pulsar, work: str, *arguments: object) -> Iterator[PulsarLoad]:
        load = cls(broker, work, *arguments)
        try:
            load._said("ready")
            yield load
        finally:
            load._process.kill()
            load._process.wait(60)

    def turn(self, seconds: float) -> Calls:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        took, *spans = map(float, self._said().split())
        return Calls(spans, took)

    def processor_seconds(self) -> float:
        return self._broker.processor_seconds()

    def client_seconds(self) -> float:
        return used_seconds(self._process.pid)

    def _said(self, wanted: str = "") -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if wanted in line:
                return line
        raise RuntimeError(f"Pulsar's client has ended with {self._process.wait(60)}")
