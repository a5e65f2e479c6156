"""A durable consumer as a process: ``python -m tests.scenarios.consuming URL TOPIC SUBSCRIPTION SEED``.

It says on stdout, in the order in which it happens, which offsets it was delivered (``d 7``), and up to which it has acknowledged
them for certain (``a 7``): that line is printed after the call has returned. It ends behind the message ``end``.
"""

from __future__ import annotations

import random
import sys

from oncelog import Client, Consumer
from tests.patience import PATIENCE

END = b"end"


def _say(word: str, offset: int) -> None:
    sys.stdout.write(f"{word} {offset}\n")
    sys.stdout.flush()


def consume(url: str, topic: str, subscription: str, seed: int) -> None:
    """Acknowledge some messages at once, some later, some not at all."""
    rng = random.Random(seed)
    with (
        Client(url, retry=PATIENCE) as client,
        Consumer(topic, subscription, client=client, page_size=100, ack_interval=0.02) as consumer,
    ):
        for message in consumer:
            _say("d", message.offset)
            chosen = rng.random()
            if chosen < 0.05 or message.payload == END:
                consumer.ack(message)
                _say("a", message.offset)
            elif chosen < 0.5:
                consumer.ack_async(message)
                if chosen < 0.1:
                    consumer.flush()
                    _say("a", message.offset)
            if message.payload == END:
                return


if __name__ == "__main__":
    consume(*sys.argv[1:4], int(sys.argv[4]))  # type: ignore[call-arg]
