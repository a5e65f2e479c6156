"""CloudEvents (https://cloudevents.io) on a topic, once each.

    pip install cloudevents

An event is a message in the binary mode of CloudEvents' HTTP binding: its attributes are the message's properties, as they would
be headers (``ce-id``, ``ce-source``, …, ``content-type``), and its data is the payload. So what comes over HTTP, in either mode,
goes to the topic and leaves it again without a translation of our own.

CloudEvents says that ``source`` and ``id`` together tell an event from every other one. They are the message's key, which must be
new: whoever publishes an event again, from wherever, stores nothing (see examples/webhook, where that is explained).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import http

from oncelog import Client, Message, Producer, Reader
from oncelog.errors import OffsetMismatch


def create_topic(client: Client, topic: str) -> None:
    """Creates a topic for events, if there is none."""
    client.create_topic(topic, {"check.expected.offsets": True}, exist_ok=True)


def received(headers: Mapping[str, str], body: bytes) -> BaseCloudEvent:
    """The event of an HTTP request, in binary or in structured mode. Raises cloudevents' errors for what is none."""
    return http.from_http_event(http.HTTPMessage(dict(headers), body))


def publish(producer: Producer[bytes], event: BaseCloudEvent) -> bool:
    """Whether the event was stored; False: it is there already."""
    message = http.to_binary_event(event)
    key = json.dumps([event.get_source(), event.get_id()])
    try:
        producer.send(message.body, key=key, properties=message.headers, expected_key_offset=None)
    except OffsetMismatch:
        return False
    return True


def event_of(message: Message[bytes]) -> BaseCloudEvent:
    """The event that a message is."""
    return http.from_http_event(http.HTTPMessage(dict(message.properties or {}), message.payload))


def events(reader: Reader[bytes]) -> Iterator[BaseCloudEvent]:
    """The events that a reader is given."""
    return map(event_of, reader)
