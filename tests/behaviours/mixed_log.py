"""A topic with everything in it that a log can hold, written at random from a seed, beside a naive model of who sees what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import requests

from oncelog import Client
from oncelog.wire.transaction import Transaction
from tests.rest.talk import Topic, hex_id
from tests.support import ManualClock, RunningService

TTL = 100
"""Seconds, of the topic."""
SHORT_TTL = 1
"""Of messages that say so themselves."""


@dataclass
class Written:
    """One message, in the order of the log; or a stored group without any, which holds up readers while it is undecided."""

    payload: str | None
    at_ms: int
    ttl: int | None
    pointer: int | None = None
    rolled_back: bool = False
    id: str = ""
    offset: int = -1

    def expired(self, now_ms: int) -> bool:
        return now_ms >= self.at_ms + 1000 * min(TTL, self.ttl or TTL)


@dataclass
class Begun:
    """A transaction in progress."""

    root: int
    pointers: list[int]
    stored: dict[int, list[tuple[str, int | None]]] = field(default_factory=dict)
    grouped: set[int] = field(default_factory=set)
    published: list[tuple[requests.Response, list[Written]]] = field(default_factory=list)


class MixedLog:
    """Writes over HTTP and notes what everybody should be delivered."""

    def __init__(self, clock: ManualClock, seed: int, largest_group: int = 250) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.largest_group = largest_group
        self.rows: list[Written] = []
        self._numbers = count()
        self._begun: list[Begun] = []
        self._hidden: set[int] = set()

    def attach(self, service: RunningService) -> None:
        """Write to this service from now on."""
        self.topic = Topic(service.url, ttl=str(TTL))
        self.client = Client(service.url)

    def write(self, steps: int) -> None:
        """Some messages that are old when this returns, and many that are not; some of their transactions are undecided."""
        self._steps(steps // 4)
        self.finish()
        self._learn_ids()
        self.clock.advance(1000 * TTL + 1)
        self._steps(steps)
        self._group_of_many()
        self.finish()
        self._steps(steps // 2)
        self._learn_ids()
        self.clock.advance(1000 * SHORT_TTL)

    def finish(self) -> None:
        """End every transaction."""
        while self._begun:
            self._end()

    # --- the model

    def delivered(self, transaction: Transaction | None, rows: Sequence[Written] | None = None) -> list[Written]:
        """What a reader is delivered now of ``rows``, by default all, in order."""
        return list(self._delivered(transaction, self.rows if rows is None else rows))

    def _delivered(self, transaction: Transaction | None, rows: Sequence[Written]) -> Iterator[Written]:
        undecided = {pointer for each in self._begun for pointer in each.pointers}
        own = set() if transaction is None else {transaction.transaction_id, *transaction.checkpoint_write_pointers}
        for message in rows:
            if transaction is not None and message.pointer is not None and message.pointer not in own:
                if message.rolled_back or message.pointer in self._hidden:
                    continue
                if message.pointer in undecided and message.at_ms > self.clock.ms - 1000 * TTL:
                    return
            if message.payload is not None and not message.expired(self.clock.ms):
                yield message

    # --- what happens

    def _steps(self, steps: int) -> None:
        happenings = [self._plain, self._publish, self._store, self._group, self._undo, self._foreign, self._checkpoint]
        for _ in range(steps):
            self.clock.advance(self.random.choice((0, 0, 1, 7)))
            if len(self._begun) < 2 or (len(self._begun) < 5 and self.random.random() < 0.2):
                root = self.client.start_transaction("long").write_pointer
                self._begun.append(Begun(root, [root]))
            elif self.random.random() < 0.15:
                self._end()
            self.random.choice(happenings)()

    def _payloads(self, most: int) -> tuple[list[str], list[int | None]]:
        made = [f"m{next(self._numbers)}" for _ in range(self.random.randint(1, most))]
        short = self.random.random() < 0.15
        return made, [SHORT_TTL if short or self.random.random() < 0.1 else None for _ in made]

    def _named(self, name: str, payloads: list[str]) -> dict[str, Any]:
        """Half of the time under a producer, with the number in each payload as its sequence id."""
        if self.random.random() < 0.5:
            return {}
        return {"producer": name, "sequenceIds": [int(each[1:]) for each in payloads]}

    def _add(self, payloads: Sequence[str | None], ttls: Sequence[int | None], pointer: int | None) -> list[Written]:
        added = [Written(payload, self.clock.ms, ttl, pointer) for payload, ttl in zip(payloads, ttls, strict=True)]
        self.rows += added
        return added

    def _plain(self) -> None:
        payloads, ttls = self._payloads(6)
        assert self.topic.publish(*payloads, ttls=ttls, **self._named("plain", payloads)).status_code == 200
        self._add(payloads, ttls, None)

    def _publish(self) -> None:
        begun = self.random.choice(self._begun)
        pointer = begun.pointers[-1]
        payloads, ttls = self._payloads(6)
        answer = self.topic.publish_under(pointer, *payloads, ttls=ttls, **self._named(f"p{begun.root}", payloads))
        begun.published.append((answer, self._add(payloads, ttls, pointer)))

    def _store(self, most: int = 8) -> None:
        begun = self.random.choice(self._begun)
        pointer = begun.pointers[-1]
        if pointer not in begun.grouped:
            payloads, ttls = self._payloads(most)
            self.topic.store_under(pointer, *payloads, ttls=ttls, **self._named(f"s{pointer}", payloads))
            begun.stored.setdefault(pointer, []).extend(zip(payloads, ttls, strict=True))

    def _group(self) -> None:
        """Empty where nothing was stored."""
        begun = self.random.choice(self._begun)
        pointer = begun.pointers[-1]
        if pointer not in begun.grouped:
            begun.grouped.add(pointer)
            answer = self.topic.publish_under(pointer)
            stored = begun.stored.pop(pointer, [(None, None)])
            begun.published.append((answer, self._add([each for each, _ in stored], [ttl for _, ttl in stored], pointer)))

    def _group_of_many(self) -> None:
        pointer = self.client.start_transaction("long").write_pointer
        payloads = [f"m{next(self._numbers)}" for _ in range(self.largest_group)]
        for at in range(0, len(payloads), 100):
            self.topic.store_under(pointer, *payloads[at : at + 100])
            self.clock.advance(1)
        self.topic.publish_under(pointer)
        self._add(payloads, [None] * len(payloads), pointer)
        self.client.commit_transaction(pointer)

    def _undo(self) -> None:
        begun = self.random.choice(self._begun)
        if begun.published:
            answer, written = begun.published.pop(self.random.randrange(len(begun.published)))
            assert self.topic.roll_back(answer).status_code == 200
            for message in written:
                message.rolled_back = True

    def _foreign(self) -> None:
        """A pointer of another transaction service: nobody says that it is undecided, so it counts unless it is rolled back."""
        payloads, ttls = self._payloads(4)
        foreign = self._begun[0].root - 500_000_000 - next(self._numbers)
        answer = self.topic.publish_under(foreign, *payloads, ttls=ttls)
        written = self._add(payloads, ttls, foreign)
        if self.random.random() < 0.5:
            assert self.topic.roll_back(answer).status_code == 200
            for message in written:
                message.rolled_back = True

    def _checkpoint(self) -> None:
        begun = self.random.choice(self._begun)
        begun.pointers.append(self.client.checkpoint_transaction(begun.root).write_pointer)

    def _end(self) -> None:
        begun = self._begun.pop(self.random.randrange(len(self._begun)))
        how = self.random.choice(["commit", "commit", "abort", "invalidate"])
        getattr(self.client, f"{how}_transaction")(begun.root)
        if how != "commit":
            self._hidden.update(begun.pointers)

    def _learn_ids(self) -> None:
        """A poll without a transaction has them all, in this order; expired ones keep theirs."""
        known = {each["payload"]: each for each in self.topic.read(limit=100_000)}
        for message in self.rows:
            if message.payload in known:
                message.id, message.offset = hex_id(known[message.payload]["id"]), known[message.payload]["offset"]
