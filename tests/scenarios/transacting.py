"""Transactions on a service that is killed meanwhile: clients on threads, or one as a process of its own that never ends it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from oncelog import Client, Reader
from oncelog.errors import OncelogError
from oncelog.wire.requests import PublishRequest
from tests.model.transactions import Attempt, check_nothing_undecided, check_whole
from tests.patience import PATIENCE
from tests.world.crash import Worker, working


class Left(Exception):
    """The client thinks better of it: its transaction is rolled back."""


class Transactor(Worker):
    """One transaction after the other on one topic, each with some messages."""

    def __init__(self, url: str, topic: str, name: str, seed: int) -> None:
        super().__init__(url, name, seed)
        self.attempts: list[Attempt] = []
        self._topic = topic

    def attempt(self, client: Client) -> None:
        with suppress(OncelogError):  # its state says what became of it
            self._transact(client)
        self.ended = len(self.attempts)

    def _transact(self, client: Client) -> None:
        count, leaves, spills = self.random.choice([1, 20, 300]), self.random.random() < 0.3, self.random.random() < 0.6
        with suppress(Left), client.transaction(buffer_bytes=0 if spills else 2**20, timeout=PATIENCE) as tx:
            attempt = Attempt(tx.transaction_id, self._topic, self.name)
            attempt.payloads = [f"{self.name}:{len(self.attempts)}:{number}" for number in range(count)]
            self.attempts.append(attempt)
            for payload in attempt.payloads:
                tx.send(self._topic, payload.encode())
            if leaves:
                raise Left
            attempt.complete = True
        attempt.answered = "aborted" if leaves else "committed"


def transacting(url: str, topic: str, seed: int) -> AbstractContextManager[list[Transactor]]:
    """Three of them, running."""
    return working([Transactor(url, topic, f"p{number}", seed) for number in range(3)])


def attempts_of(clients: Sequence[Transactor]) -> list[Attempt]:
    """Everything that they have tried."""
    return [attempt for each in clients for attempt in tuple(each.attempts)]


def visible(client: Client, topic: str) -> list[str]:
    """Every payload that a transaction which begins now is given, in order."""
    begun = client.start_transaction()
    with Reader(topic, client=client, timeout=0, transaction=begun) as reader:
        found = [message.payload.decode() for message in reader]
    client.abort_transaction(begun.write_pointer)
    return found


def check_meanwhile(client: Client, topic: str, clients: Sequence[Transactor]) -> None:
    """While they go on: a reader is given nothing of what had not committed, not even a moment later."""
    attempts, seen = attempts_of(clients), visible(client, topic)
    check_nothing_undecided(attempts, seen, states_of(client, attempts))


def check_ended(client: Client, topic: str, clients: Sequence[Transactor]) -> None:
    """Nobody goes on: each is wholly there or wholly not, as its state says. What is in progress is aborted before."""
    assert [each.failure for each in clients] == [None] * len(clients)
    attempts = attempts_of(clients)
    for pointer, state in states_of(client, attempts).items():
        if state == "in_progress":
            client.abort_transaction(pointer)
    check_whole(attempts, visible(client, topic), states_of(client, attempts))


def states_of(client: Client, attempts: Sequence[Attempt]) -> dict[int, str]:
    """Write pointer → state."""
    return {**client.transaction_states([each.pointer for each in attempts])}


def _publish_and_wait(url: str, topic: str, producer: str, timeout: str) -> None:
    """A client that stores and publishes within a transaction, says which, and never ends it."""
    with Client(url) as client:
        client.open_producer(topic, producer)
        pointer = client.start_transaction(timeout=float(timeout)).write_pointer
        payloads = [f"{producer}:lost:{number}".encode() for number in range(300)]
        request = PublishRequest(payloads, producer, sequence_ids=list(range(300)), write_pointer=pointer)
        client.store(topic, request)
        client.publish_transactional(topic, PublishRequest([], producer, write_pointer=pointer))
        print(pointer, flush=True)
        threading.Event().wait(PATIENCE)


if __name__ == "__main__":
    _publish_and_wait(*sys.argv[1:5])
