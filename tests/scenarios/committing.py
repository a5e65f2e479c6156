"""Atomic commits over several topics while services are killed: clients on threads, and what must hold of what they tried."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from itertools import combinations, groupby

from oncelog import Client
from oncelog.errors import OncelogError, TransactionNotFound
from oncelog.wire.models import AtomicOutcome
from tests.model.log import check_dense, check_verified, read_log
from tests.world.crash import Worker, working


class Left(Exception):
    """The client thinks better of it in the middle of a commit."""


class Committer(Worker):
    """One atomic commit after the other, of every kind."""

    def __init__(self, url: str, name: str, topics: Sequence[str], seed: int) -> None:
        super().__init__(url, name, seed)
        self.tried: dict[str, tuple[str, dict[str, list[str]]]] = {}
        """Id → its group, and topic → the payloads that its commit makes appear there."""
        self.answered: dict[str, AtomicOutcome] = {}
        self.refused: dict[str, OncelogError] = {}
        self._topics = topics
        self._number = 0

    def attempt(self, client: Client) -> None:
        group = self.random.choice(("one", "two"))
        # Each number is used twice: the second time it is a duplicate, whatever became of the first.
        for id_ in (f"{self.name}.{self._number}", f"{self.name}.{self._number}.twin"):
            self._commit(client, id_, group, self.random.choice((None, self._number)))
            self.ended = len(self.answered)
        self._number += 1

    def _commit(self, client: Client, id_: str, group: str, sequence_id: int | None) -> None:
        topics = self.random.sample(self._topics, self.random.randint(2, len(self._topics)))
        payloads = {topic: [f"{id_}:{number}" for number in range(self.random.choice([1, 2, 30]))] for topic in topics}
        self.tried[id_] = group, payloads
        named = {} if sequence_id is None else {"producer": f"{self.name}-{group}", "sequence_id": sequence_id}
        staged = self.random.random() < 0.4
        try:
            with suppress(Left), client.atomic(group, id=id_, buffer_bytes=0 if staged else 2**20, **named) as batch:  # type: ignore[arg-type]
                for topic, bodies in payloads.items():
                    for body in bodies:
                        batch.send(topic, body.encode())
                if self.random.random() < 0.1:
                    raise Left
            if batch.outcome is not None:
                self.answered[id_] = batch.outcome
        except OncelogError as error:
            self.refused[id_] = error


def committing(url: str, topics: Sequence[str], seed: int) -> AbstractContextManager[list[Committer]]:
    """Four of them, running."""
    return working([Committer(url, f"p{number}", topics, seed) for number in range(4)])


def check_commits(url: str, topics: Sequence[str], clients: Sequence[Committer]) -> None:
    """Each commit is wholly there on all its topics or on none, once, as its outcome says; those of a group are in one order."""
    assert [each.failure for each in clients] == [None] * len(clients)
    tried = {id_: each for client in clients for id_, each in client.tried.items()}
    answered = {id_: each for client in clients for id_, each in client.answered.items()}
    refused = {id_: each for client in clients for id_, each in client.refused.items()}
    orders = dict[str, list[str]]()
    found = dict[str, dict[str, list[str]]]()
    for topic in topics:
        log = read_log(url, topic)
        check_dense(log, topic)
        runs = [
            (id_, list(run)) for id_, run in groupby((each.payload.decode() for each in log), lambda body: body.partition(":")[0])
        ]
        orders[topic] = [id_ for id_, _ in runs]
        assert len(set(orders[topic])) == len(runs), f"{topic}: a commit is there twice, or in two places"
        for id_, run in runs:
            found.setdefault(id_, {})[topic] = run
    with Client(url) as client:
        for id_, (_, payloads) in tried.items():
            outcome = _outcome(client, id_)
            state = None if outcome is None else outcome.state
            assert found.get(id_, {}) == (payloads if state == "committed" else {}), f"{id_} is {state}"
            assert id_ not in answered or answered[id_] == outcome, f"{id_} was {answered[id_]} and is {outcome}"
            assert id_ not in refused or not refused[id_].definite or state != "committed", f"{id_} was refused"
            if outcome is not None and state == "duplicate":
                assert outcome.original in found, f"{outcome.original}, of which {id_} is a duplicate, is not there"
    for one, other in combinations(orders.values(), 2):
        for group in ("one", "two"):
            first, second = (
                [id_ for id_ in order if id_ in {*one} & {*other} and tried[id_][0] == group] for order in (one, other)
            )
            assert first == second, f"group {group} is in another order"
    check_verified(url, topics)


def _outcome(client: Client, id_: str) -> AtomicOutcome | None:
    try:
        return client.atomic_outcome(id_)
    except TransactionNotFound:
        return None
