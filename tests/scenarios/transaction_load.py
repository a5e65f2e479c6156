"""Transactions on a service that is killed meanwhile: named producers on threads, or one as a process of its own."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import requests

from tests.patience import PATIENCE

Stage = Literal["stored", "published", "rolling back", "committing"]
STAGES: tuple[Stage, ...] = ("stored", "published", "rolling back", "committing")
"""Where a transaction is when the service is killed: what has been done, or what is being done."""


class Interrupted(Exception):
    """The service is being killed; nothing more may be asked until it is back."""


@dataclass
class Attempt:
    """One transaction and what its client knows of it."""

    pointer: int
    topic: str
    producer: str
    payloads: list[str] = field(default_factory=list)
    """What it publishes and does not roll back by itself."""
    answered: Literal["committed", "aborted"] | None = None
    complete: bool = False
    """Every publish was acknowledged."""


class Api:
    """The addresses used here, over plain HTTP. Whatever is not answered with 200 raises."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self._session.request(method, f"{self._url}/v1/{path}", json=body, timeout=PATIENCE)
        if answer.status_code != 200:
            raise requests.RequestException(f"{method} {path}: {answer.status_code} {answer.text}", response=answer)
        return answer.json() if answer.content else None

    def start(self, timeout_ms: int) -> int:
        pointer: int = self.call("POST", "transactions", {"timeoutMs": timeout_ms})["writePointer"]
        return pointer

    def state(self, pointer: int) -> str:
        state: str = self.call("GET", f"transactions/{pointer}")["state"]
        return state

    def topic(self, topic: str, path: str, body: object) -> Any:
        return self.call("POST", f"namespaces/default/topics/{topic}/{path}", body)

    def next_id(self, topic: str, producer: str) -> int:
        """Open the producer, which ends its older transactions; the id behind what is settled."""
        body = {"name": producer, "nonce": uuid.uuid4().hex, "gaps": "allow"}
        last = self.topic(topic, "producers", body)["lastSequenceId"]
        return 0 if last is None else last + 1

    def send(self, topic: str, path: str, producer: str, first: int, payloads: Sequence[str], pointer: int) -> Any:
        ids = list(range(first, first + len(payloads)))
        body = {"messages": list(payloads), "producer": producer, "sequenceIds": ids, "transactionWritePointer": pointer}
        return self.topic(topic, path, body)


class Transactor(threading.Thread):
    """One transaction after the other, each with a few messages on one topic, until told to stop."""

    def __init__(self, url: str, topic: str, name: str, seed: int) -> None:
        super().__init__(name=f"transactor-{name}")
        self.attempts: list[Attempt] = []
        self.failure: BaseException | None = None
        self.refused: list[str] = []
        """Messages of a producer without anything settled behind them that were not answered as stored."""
        self.parked = threading.Event()
        self.gate = threading.Event()
        self.stage: Stage | None = None
        self._api = Api(url)
        self._topic = topic
        self._name = name
        self._random = Random(f"{seed}-{name}")
        self._enough = False
        self._serial = 0

    def enough(self) -> None:
        """End after the transaction that is under way."""
        self._enough = True
        self.gate.set()

    def run(self) -> None:
        try:
            while not self._enough:
                if not self.gate.is_set():
                    self.parked.set()
                    self.gate.wait()
                    self.parked.clear()
                    continue
                try:
                    self._transact()
                except (requests.RequestException, Interrupted):
                    if self.gate.wait(0) and not self._enough and self._alive():
                        raise
                    self.gate.wait(0.05)
        except BaseException as error:
            self.failure = error
        finally:
            self.parked.set()

    def _alive(self) -> bool:
        """Whether the service answers: then a failure was no kill's. A kill closes the gate first."""
        if not self.gate.is_set():
            return False
        try:
            self._api.call("GET", "transactions?state=in_progress")
        except requests.RequestException:
            return False
        return self.gate.is_set()

    def _at(self, stage: Stage | None) -> None:
        self.stage = stage
        if not self.gate.is_set():
            raise Interrupted

    def _transact(self) -> None:
        self._at(None)
        first = self._api.next_id(self._topic, self._name)
        self._at(None)
        attempt = Attempt(self._api.start(30_000), self._topic, self._name)
        self.attempts.append(attempt)
        kind = self._random.choice(["group", "group", "inline", "inline", "roll back", "abort"])
        if kind == "group":
            self._store_and_publish(attempt, first)
        else:
            self._publish(attempt, first, self._random.choice([1, 20, 300]), roll_back=kind == "roll back")
        attempt.complete = True
        self._at("rolling back" if kind == "abort" else "committing")
        self._api.call("POST", f"transactions/{attempt.pointer}/{'abort' if kind == 'abort' else 'commit'}")
        attempt.answered = "aborted" if kind == "abort" else "committed"
        self.stage = None

    def _new(self, count: int) -> list[str]:
        self._serial += 1
        return [f"{self._name}:{self._serial}:{number}" for number in range(count)]

    def _store_and_publish(self, attempt: Attempt, first: int) -> None:
        for _ in range(2):
            payloads = self._new(self._random.choice([1, 20, 250]))
            self._at(None)
            attempt.payloads += payloads
            self._check(self._api.send(self._topic, "store", self._name, first, payloads, attempt.pointer))
            first += len(payloads)
        self._at("stored")
        body = {"messages": [], "producer": self._name, "transactionWritePointer": attempt.pointer}
        self._check(self._api.topic(self._topic, "publish", body))
        self._at("published")

    def _publish(self, attempt: Attempt, first: int, count: int, roll_back: bool) -> None:
        payloads = self._new(count)
        self._at(None)
        attempt.payloads += payloads
        self._check(self._api.send(self._topic, "publish", self._name, first, payloads, attempt.pointer))
        self._at("published")
        more = self._new(self._random.choice([1, 1_000]))
        if roll_back:
            answer = self._api.send(self._topic, "publish", self._name, first + count, more, attempt.pointer)
            self._check(answer)
            self._at("rolling back")
            self._api.topic(self._topic, "rollback", answer)

    def _check(self, answer: Any) -> None:
        """Every id here lies behind what is settled, so each message is new, whatever was lost before it."""
        self.refused += [run["status"] for run in answer["receipts"] if run["status"] != "stored"]


def _publish_and_wait(url: str, topic: str, producer: str, stored: str, timeout_ms: str) -> None:
    """A client that publishes within a transaction, says which, and never ends it."""
    api = Api(url)
    pointer, first = api.start(int(timeout_ms)), api.next_id(topic, producer)
    payloads = [f"{producer}:lost:{number}" for number in range(300)]
    api.send(topic, "store" if stored == "stored" else "publish", producer, first, payloads, pointer)
    if stored == "stored":
        api.topic(topic, "publish", {"messages": [], "producer": producer, "transactionWritePointer": pointer})
    print(pointer, flush=True)
    threading.Event().wait(PATIENCE)


if __name__ == "__main__":
    _publish_and_wait(*sys.argv[1:6])
