"""Writers of an outbox: business transactions that take their time, roll back, and remember what they committed."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Engine, text

from oncelog import Message, Outbox


class Committed(NamedTuple):
    """A transaction that has committed."""

    began: float
    """Before its first statement."""
    committed: float
    """After its commit was acknowledged."""
    messages: tuple[tuple[str, bytes], ...]
    """Topic and payload, in the order in which they were added."""


class Writer(threading.Thread):
    """Begins a transaction, adds messages and rows of its own business, waits, and commits or rolls back; again and again."""

    def __init__(self, number: int, outbox: Outbox, engine: Engine, topics: Sequence[str], seed: int, longest: float) -> None:
        """``longest``: seconds that a transaction may stay open."""
        super().__init__(name=f"writer-{number}")
        self._number = number
        self._outbox = outbox
        self._engine = engine
        self._topics = topics
        self._rng = random.Random(seed)
        self._longest = longest
        self._enough = threading.Event()
        self.committed: list[Committed] = []
        self.rolled_back: list[bytes] = []
        self.failure: BaseException | None = None

    def enough(self) -> None:
        """No further transaction."""
        self._enough.set()

    def run(self) -> None:
        try:
            count = 0
            while not self._enough.is_set():
                self._transact(count)
                count += 1
        except BaseException as error:
            self.failure = error

    def _transact(self, count: int) -> None:
        rng = self._rng
        began = time.monotonic()
        added = []
        with self._engine.connect() as connection:
            for each in range(rng.randint(1, 4)):
                payload = b"%d.%d.%d" % (self._number, count, each)
                topic = rng.choice(self._topics)
                self._outbox.add(connection, topic, payload, key=str(self._number))
                added.append((topic, payload))
                connection.execute(text("INSERT INTO orders VALUES (:p)"), {"p": payload.decode()})
                if rng.random() < 0.3:
                    time.sleep(rng.uniform(0, self._longest / 4))
            time.sleep(rng.choice((0.0, rng.uniform(0, self._longest / 4), rng.uniform(0, self._longest))))
            if rng.random() < 0.2:
                connection.rollback()
                self.rolled_back += [payload for _, payload in added]
                return
            connection.commit()
        self.committed.append(Committed(began, time.monotonic(), tuple(added)))
        time.sleep(rng.uniform(0, 0.2))


def check_topics(committed: Iterable[Committed], logs: Mapping[str, Sequence[Message]]) -> None:
    """The topics hold what was committed, once each, and in the order that is promised."""
    expected: dict[str, list[bytes]] = defaultdict(list)
    transactions = list(committed)
    for transaction in transactions:
        for topic, payload in transaction.messages:
            expected[topic].append(payload)
    for topic, log in logs.items():
        got = [message.payload for message in log]
        lost = set(expected[topic]).difference(got)
        assert not lost, f"{len(lost)} committed messages are not in {topic}: {sorted(lost)[:5]}"
        more = set(got).difference(expected[topic])
        assert not more, f"{len(more)} messages in {topic} were never committed: {sorted(more)[:5]}"
        assert len(got) == len(expected[topic]), f"{len(got) - len(expected[topic])} messages of {topic} are there twice"
        numbers = [message.sequence_id for message in log if message.sequence_id is not None]
        assert len(numbers) == len(log)
        assert numbers == sorted(set(numbers)), "sequence ids do not rise"
        _check_order(transactions, topic, {payload: place for place, payload in enumerate(got)})


def _check_order(transactions: Sequence[Committed], topic: str, places: Mapping[bytes, int]) -> None:
    """Within each transaction, and of two transactions one of which began when the other had committed."""
    spans = []
    for transaction in transactions:
        mine = [places[payload] for name, payload in transaction.messages if name == topic]
        assert mine == sorted(mine), f"a transaction's messages changed places: {transaction.messages}"
        if mine:
            spans.append((transaction.began, transaction.committed, mine[0], mine[-1]))
    by_commit = sorted(spans, key=lambda span: span[1])
    at, highest = 0, -1
    for began, _, first, _ in sorted(spans):
        while at < len(by_commit) and by_commit[at][1] < began:
            highest = max(highest, by_commit[at][3])
            at += 1
        assert first > highest, "a transaction came before one that had committed before it began"
