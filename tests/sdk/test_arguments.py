"""Arguments that are no numbers are judged where they are given, by their names, before the service is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine

from oncelog import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    AtomicBatch,
    Checkpoint,
    Client,
    Consumer,
    MessageId,
    Outbox,
    OutboxRelay,
    Producer,
    Reader,
    SqlParticipant,
    TransactionContext,
)
from oncelog.errors import InvalidRequest
from tests.sdk.test_frames import elsewhere

AWAY = "http://127.0.0.1:9"
ENGINE = create_engine("sqlite://")
STREAMS: dict[str, tuple[Callable[..., Any], type, type]] = {
    "Producer": (lambda topic="t", **given: Producer(topic, **given), Client, AsyncClient),
    "Reader": (lambda topic="t", **given: Reader(topic, **given), Client, AsyncClient),
    "Consumer": (lambda topic="t", **given: Consumer(topic, "s", **given), Client, AsyncClient),
    "AsyncProducer": (lambda topic="t", **given: AsyncProducer(topic, **given), AsyncClient, Client),
    "AsyncReader": (lambda topic="t", **given: AsyncReader(topic, **given), AsyncClient, Client),
    "AsyncConsumer": (lambda topic="t", **given: AsyncConsumer(topic, "s", **given), AsyncClient, Client),
    "OutboxRelay": (lambda topic="t", **given: OutboxRelay(Outbox(topic), ENGINE, **given), Client, AsyncClient),
}
"""What works through a client; its client; that of the other twin."""


@pytest.mark.parametrize("stream", STREAMS)
def test_a_client_is_of_its_twin_and_stands_alone(stream: str) -> None:
    make, own, other = STREAMS[stream]
    for client in (other(AWAY), AWAY, own):
        with pytest.raises(TypeError, match=rf"client is an? {own.__name__}, not "):
            make(client=client)
    for name in ("url", "verify", "cert", "proxy"):
        with pytest.raises(TypeError, match=f"give client or {name}, not both"):
            make(client=own(AWAY), **{name: AWAY})


@pytest.mark.parametrize("stream", [each for each in STREAMS if each != "OutboxRelay"])
@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"topic": ""}, InvalidRequest, "a topic is 1 to 249 of the characters"),
        ({"topic": "a/b"}, InvalidRequest, "a topic is 1 to 249 of the characters.*'a/b'"),
        ({"topic": 5}, TypeError, "topic"),
        ({"namespace": None}, TypeError, "a namespace is a str, not NoneType"),
        ({"namespace": "a b"}, InvalidRequest, "a namespace is 1 to 249 of the characters"),
        ({"url": 5}, TypeError, "url is a str"),
    ],
)
def test_a_name_is_one_before_anything_is_asked_for(
    stream: str, given: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        STREAMS[stream][0](**given)


WRONG: dict[str, tuple[Callable[[Client], object], type[Exception], str]] = {
    "a flag of a producer": (
        lambda _: Producer("t", stop_on_refusal="no"),
        TypeError,
        "stop_on_refusal is True or False, not 'no'",
    ),
    "a subscription": (lambda _: Consumer("t", 5), TypeError, "a subscription is a str, not int"),
    "no token": (lambda _: Client(AWAY, token=5), TypeError, "token is a str, not of type int"),
    "no URL": (lambda client: Client(client), TypeError, "url is a str, as 'http://127.0.0.1:7070', not of type Client"),
    "a topic of a call": (lambda client: client.topic(5), TypeError, "a topic is a str, not int"),
    "a list of topics": (lambda client: client.create_topic(["a", "b"]), TypeError, "a topic is a str, not list"),
    "what names no topic": (lambda client: client.stats("a/b"), InvalidRequest, "a topic is 1 to 249 of the characters"),
    "a namespace for properties": (
        lambda client: client.create_topic("u", "default"),
        TypeError,
        "properties is a dict, not of type",
    ),
    "policies": (lambda client: client.set_policies({"ttl": 5}), TypeError, "policies is a NamespacePolicies of"),
    "an argument of a request": (
        lambda client: client.open_producer("t", gaps="no"),
        InvalidRequest,
        "^not a producer: gaps is 'no': ",
    ),
    "a flag of a transaction": (lambda client: client.transaction(long="yes"), TypeError, "long is True or False, not 'yes'"),
    "an engine as participant": (lambda client: client.transaction(ENGINE), TypeError, r"TransactionAware; .*SqlParticipant\("),
    "a class as participant": (lambda client: client.transaction(SqlParticipant), TypeError, "SqlParticipant takes no part"),
    "a number as participant": (lambda client: client.transaction(5), TypeError, "type int takes no part in transactions"),
    "a topic for a namespace": (
        lambda _: Checkpoint("ck", "t", ENGINE),
        TypeError,
        "a checkpoint's namespace is a str, not Engine",
    ),
    "no outbox": (lambda _: OutboxRelay("o", ENGINE), TypeError, "outbox is an Outbox, not of type str"),
    "an id's text": (lambda _: MessageId.parse(5), TypeError, "a message id is a str, not 5"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_of_another_kind_is_told_by_its_name(wrong: str) -> None:
    call, error, said = WRONG[wrong]
    with Client(AWAY, retry=0) as client, pytest.raises(error, match=said) as caught:
        call(client)
    assert "pydantic" not in str(caught.value)
    assert len(elsewhere(caught.value)) <= 2


def test_a_producer_of_a_message_is_one(client: Client, topic: str) -> None:
    begun: list[TransactionContext | AtomicBatch] = [client.transaction(), client.atomic()]
    for each in begun:
        with pytest.raises(TypeError, match="producer is an open Producer"), each:
            each.send(topic, b"x", producer=5)  # type: ignore[arg-type]
    with client.transaction() as tx, pytest.raises(TypeError, match="producer is an open Producer, not of type str"):
        tx.send(topic, b"x", producer="p")  # type: ignore[arg-type]


def test_what_resume_and_properties_take_is_of_their_kind(client: Client, topic: str) -> None:
    with Producer[bytes](topic, name="p", client=client) as producer:
        with pytest.raises(TypeError, match="sequence_id is a function, not 0"):
            next(producer.resume([b"x"], sequence_id=0))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="properties is a dict, not of type list"):
            producer.send(b"x", properties=[("a", "b")])  # type: ignore[arg-type]
