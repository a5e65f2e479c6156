"""Services without a database: each reads one topic, and writes what follows to others, by atomic commits.

    oncelog serve &
    python -m examples.saga        # orders come in, services are killed at random, and the books are right in the end

    orders ──▶ stock ◀──▶ shop ◀──▶ payment
                           └──▶ results

An order asks the stock to reserve goods. When they are, the shop asks for the payment; when that is refused, it has the goods put
back: the saga's compensation. An order ends as `done` or `refused` in the topic `results`.

Each step is a function of what a service knows and of one message: what to write, and where. What makes it happen once:

* All that follows from one message is *one atomic commit*: written to all topics or to none, whatever is killed when.
* The commit carries the service's name and the message's offset as its producer and sequence id. So a message that is handled
  again, by a process that began anew or by two at once, is a duplicate: nothing of it is written a second time.
* What a service knows (what is in stock, what has been paid) it knows from its own input: it handles each message from the first,
  in order, and what is written already is passed over. So its input is never to expire: a topic keeps messages for a week unless
  it says otherwise, and where the first ones have gone a service refuses to begin. A long-lived service would keep what it knows
  in a table, with a Checkpoint beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from oncelog import Client, Reader

Step = dict[str, Any]
TOPICS = ("orders", "shop", "stock", "payment", "results")
"""Each is what the service of its name reads; `results` is read by whoever wants to know."""
_FOR_EVER = {"ttl": str(2**31 - 1)}


class State(Protocol):
    """What a service knows."""

    def follow(self, step: Step) -> Iterable[tuple[str, Step]]:
        """Takes in a message of its topic, and says what to write to which topics. It depends on nothing else."""


@dataclass
class Orders:
    """Begins a saga for each order."""

    def follow(self, step: Step) -> Iterable[tuple[str, Step]]:
        """The stock is asked."""
        yield "stock", {**step, "do": "reserve"}


@dataclass
class Stock:
    """How many of each there are."""

    left: dict[str, int]
    reserved: dict[str, tuple[str, int]] = field(default_factory=dict)

    def follow(self, step: Step) -> Iterable[tuple[str, Step]]:
        """Reserves goods, or puts back what was reserved."""
        order, goods, count = step["order"], step["goods"], step["count"]
        if step["do"] == "put back":
            self.left[goods] += count
            del self.reserved[order]
            return
        there = self.left.get(goods, 0) >= count
        if there:
            self.left[goods] -= count
            self.reserved[order] = (goods, count)
        yield "shop", {**step, "did": "reserved" if there else "not there"}


@dataclass
class Payment:
    """What each customer may still spend."""

    credit: dict[str, int]

    def follow(self, step: Step) -> Iterable[tuple[str, Step]]:
        """Takes the money, or refuses."""
        enough = self.credit.get(step["customer"], 0) >= step["price"]
        if enough:
            self.credit[step["customer"]] -= step["price"]
        yield "shop", {**step, "did": "paid" if enough else "not paid"}


@dataclass
class Shop:
    """What comes next, by what was done."""

    def follow(self, step: Step) -> Iterable[tuple[str, Step]]:
        """The payment behind the goods; the compensation behind a payment that is refused."""
        if step["did"] == "reserved":
            yield "payment", step
        elif step["did"] == "paid":
            yield "results", {"order": step["order"], "end": "done"}
        else:
            if step["did"] == "not paid":
                yield "stock", {**step, "do": "put back"}
            yield "results", {"order": step["order"], "end": "refused", "why": step["did"]}


def create_topics(client: Client) -> None:
    """Creates what is missing of the topics."""
    for topic in TOPICS:
        client.create_topic(topic, _FOR_EVER, exist_ok=True)


def serve(
    client: Client, topic: str, state: State, timeout: float | None = None, handled: Callable[[], None] = lambda: None
) -> int:
    """Handles each message of a topic, until none has come for ``timeout`` seconds; how many had been handled already.

    ``handled``: is called between the commit of a message and the next. Raises MessagesExpired: what there is to know is not
    all there.
    """
    before = 0
    with Reader(topic, client=client, start=0, inclusive=True, timeout=timeout, codec="json") as reader:
        for message in reader:
            follows = list(state.follow(message.value))
            if follows:
                with client.atomic(group=topic, producer=f"saga-{topic}", sequence_id=message.offset) as batch:
                    for to, step in follows:
                        batch.send(to, json.dumps(step).encode())
                before += batch.outcome is not None and batch.outcome.state == "duplicate"
            handled()
    return before
