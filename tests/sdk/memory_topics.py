"""Topics in memory behind the calls that a relay makes: for tests of what it does with their answers."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from oncelog import Client
from oncelog.errors import ProducerFenced, ProducerNotFound, RequestTooLarge, TopicNotFound
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, ReceiptRun

Place = tuple[str, str]
"""A topic's namespace and name."""


class MemoryTopics(Client):
    """A client of such topics; tests of the calls, and the kills, hold the real service against the same rules."""

    def __init__(self, *topics: str) -> None:
        super().__init__("http://127.0.0.1:9", retry=0)
        self.logs: dict[Place, list[tuple[int, bytes]]] = {("default", topic): [] for topic in topics}
        """By topic (sequence id, payload): all of one producer."""
        self.deduplication: dict[Place, bool] = defaultdict(lambda: True)
        self.missing: set[Place] = set()
        """Topics that are not there for now."""
        self.most_bytes = 1 << 30
        self.failures: list[Exception] = []
        """Of the next publishes: raised after it was done."""
        self._epochs: dict[Place, int] = defaultdict(int)

    def payloads(self, topic: str, namespace: str = "default") -> list[bytes]:
        return [payload for _, payload in self.logs[namespace, topic]]

    def namespaces(self) -> Any:
        return sorted({namespace for namespace, _ in self.logs})

    def topics(self, namespace: str = "default") -> Any:
        return [topic for space, topic in self.logs if space == namespace]

    def producer(self, topic: str, name: str, namespace: str = "default") -> Any:
        if not self._log(topic, namespace):
            raise ProducerNotFound
        return SimpleNamespace(last_persisted=self.logs[namespace, topic][-1][0])

    def stats(self, topic: str, namespace: str = "default") -> Any:
        return SimpleNamespace(deduplication=self.deduplication[namespace, topic])

    def open_producer(self, topic: str, name: str | None = None, **options: Any) -> Any:
        place = options["namespace"], topic
        log = self._log(topic, place[0])
        self._epochs[place] += 1
        return SimpleNamespace(epoch=self._epochs[place], last_sequence_id=log[-1][0] if log else None)

    def publish(self, topic: str, request: PublishRequest, namespace: str = "default") -> list[ReceiptRun]:
        log, ids = self._log(topic, namespace), list(request.sequence_ids or ())
        if request.epoch != self._epochs[namespace, topic]:
            raise ProducerFenced
        if sum(map(len, request.payloads)) > self.most_bytes:
            raise RequestTooLarge
        last = log[-1][0] if log else -1
        known = self.deduplication[namespace, topic]
        runs = [ReceiptRun(DUPLICATE if known and each <= last else STORED, 1, each, None, None) for each in ids]
        log += [row for row, run in zip(zip(ids, request.payloads, strict=True), runs, strict=True) if run.status == STORED]
        if self.failures:
            raise self.failures.pop(0)
        return runs

    def _log(self, topic: str, namespace: str) -> list[tuple[int, bytes]]:
        if (namespace, topic) not in self.logs or (namespace, topic) in self.missing:
            raise TopicNotFound
        return self.logs[namespace, topic]
