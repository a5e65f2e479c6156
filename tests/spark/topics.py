"""Topics of one test, filled and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from oncelog import Client
from oncelog.wire.requests import PublishRequest
from tests.model.log import read_log


class Topics:
    """One to begin with, and others; their names are nobody else's."""

    def __init__(self, url: str) -> None:
        self.client = Client(url)
        self.url = url
        self.topic = self.other()

    def other(self) -> str:
        name = f"t-{uuid4().hex[:8]}"
        self.client.create_topic(name)
        return name

    def publish(self, values: int | Sequence[bytes], topic: str | None = None, value: bytes = b"v", **more: Any) -> None:
        """These, or so many times ``value``."""
        payloads = [value] * values if isinstance(values, int) else list(values)
        self.client.publish(topic or self.topic, PublishRequest(payloads, **more))


def values(url: str, topic: str) -> list[bytes]:
    """What its messages say, in order."""
    return [message.payload for message in read_log(url, topic)]
