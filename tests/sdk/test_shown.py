"""What a log line, a debugger and a notebook show of an object: what it is, no secret, and a list as a list."""

from __future__ import annotations

import pytest
from IPython.lib.pretty import pretty

from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader, Client, Consumer, Message, Producer, Reader
from oncelog.values.receipt import Receipts
from oncelog.wire.requests import STORED, ReceiptRun
from tests.world.service import RunningService


def test_what_is_open_says_what_it_is(client: Client, topic: str) -> None:
    with Producer[bytes](topic, name="p", client=client) as producer:
        assert repr(producer) == f"Producer({topic!r}, name='p', epoch=1, last_sequence_id=None)"
        receipt = producer.send(b"x")
        assert repr(producer) == f"Producer({topic!r}, name='p', epoch=1, last_sequence_id=0)"
    with Reader[bytes](topic, client=client) as reader, Consumer[bytes](topic, "s", client=client) as consumer:
        assert repr(reader) == f"Reader({topic!r}, position=None)"
        reader.read(timeout=0)
        assert repr(reader) == f"Reader({topic!r}, position={receipt.message_id!r})"
        assert repr(consumer) == f"Consumer({topic!r}, 's', position=None)"
    assert repr(client) == f"Client({client.url!r})"


def test_what_is_not_open_yet_says_what_it_will_be(house: RunningService) -> None:
    client = AsyncClient(house.url)
    assert repr(client) == f"AsyncClient({house.url!r})"
    assert repr(AsyncProducer("t", name="p", client=client)) == "AsyncProducer('t', name='p')"
    assert repr(AsyncReader("t", namespace="n", client=client)) == "AsyncReader('t', namespace='n', position=None)"
    assert repr(AsyncConsumer("t", "s", client=client)) == "AsyncConsumer('t', 's', position=None)"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_shows_no_password(kind: type[Client | AsyncClient]) -> None:
    assert "secret" not in repr(kind("http://user:secret@host:7070", token="s3cret"))


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, ""),
        (b"UA", "key='UA', "),
        ("größe".encode(), "key='größe', "),
        (b"\xff\x00", "key=b'\\xff\\x00', "),
        (b"\x00", "key=b'\\x00', "),
        ("ß".encode() * 41, f"key='{'ß' * 37}...', "),
    ],
)
def test_a_key_is_shown_as_text_where_it_is_text(key: bytes | None, shown: str) -> None:
    message = Message[bytes]({"id": bytes(20), "offset": 0, "payload": b"x", "key": key})
    assert repr(message) == f"Message(offset=0, message_id='{'0' * 40}', {shown}payload=b'x')"


def test_a_notebook_shows_lists_as_lists(client: Client, topic: str) -> None:
    with Producer[bytes](topic, name="p", client=client), Producer[bytes](topic, name="q", client=client):
        listed = client.producers(topic)
        assert pretty(listed) == pretty([*client.producers(topic)])
        assert [each.name for each in listed] == ["p", "q"], "which the showing has not used up"
        assert list(listed) == []
    receipts = Receipts([ReceiptRun(STORED, 2_000, 0, bytes(20), 0)])
    assert pretty(receipts) == pretty([*receipts])
    assert len(pretty(receipts).splitlines()) == 1_001
