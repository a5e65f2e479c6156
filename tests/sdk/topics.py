"""What is in a topic, as the tests of this folder look at it."""

from __future__ import annotations

from oncelog import Client, Reader


def stored(client: Client, topic: str) -> list[tuple[int | None, bytes]]:
    """(sequence id, payload) of everything in the topic, in its order; offsets are dense."""
    with Reader(topic, url=client.url, timeout=0) as reader:
        messages = list(reader)
    assert [message.offset for message in messages] == list(range(len(messages)))
    return [(message.sequence_id, message.payload) for message in messages]


def payloads(client: Client, *topics: str) -> list[bytes]:
    """Every payload, topic after topic."""
    return [payload for topic in topics for _, payload in stored(client, topic)]
