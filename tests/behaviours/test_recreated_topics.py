"""CONTRACT §3.5 and §7.3: what belongs to a deleted topic is refused by the topic that was made anew under its name, for ever."""

from __future__ import annotations

import pytest

from oncelog import Client, Producer
from oncelog.errors import ConsumerFenced, ProducerFenced, ProducerStopped
from oncelog_service.storage.port import Table
from tests.behaviours.conftest import Machine
from tests.rest.talk import Topic, assert_problem
from tests.support import RunningService


def made_anew(topic: Topic, times: int = 1, **properties: str) -> None:
    for _ in range(times):
        assert topic.request("DELETE", "").status_code == 200
        assert topic.request("PUT", "", json=properties).status_code == 200


def fenced_by_generation(answer: object, generation: int) -> None:
    body = assert_problem(answer, 403, "producer_fenced")
    assert body["definite"]
    assert body["generation"] == generation
    assert "made anew" in body["detail"]


@pytest.mark.parametrize("opened", [True, False], ids=["opened anew", "never opened anew"])
def test_a_producer_of_a_deleted_topic_is_fenced_in_the_topic_made_anew(running: RunningService, opened: bool) -> None:
    topic = Topic(running.url)
    old = topic.open_producer("p", "old")["epoch"]
    topic.send("p", 0, epoch=old)
    made_anew(topic)
    new = topic.open_producer("p", "new")["epoch"] if opened else old + 1
    fenced_by_generation(topic.publish("old", producer="p", sequenceIds=[1], epoch=old), 2)
    if opened:
        assert new > old
        receipts = topic.send("p", 0, 1, 2, epoch=new)
        assert [each["status"] for each in receipts] == ["stored"] * 3
    assert "old" not in topic.payloads()


def test_epochs_rise_over_many_generations_forgotten_producers_and_restarts(machine: Machine) -> None:
    epochs = []
    with machine.run() as service:
        topic = Topic(service.url)
        for generation in range(4):
            epochs.append(topic.open_producer("p", f"n{generation}")["epoch"])
            if generation == 1:
                assert topic.request("DELETE", "/producers/p").status_code == 200
            if generation == 2:
                made_anew(topic)  # nobody opens anything in this one
            made_anew(topic)
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        for old in range(1, epochs[-1] + 1):
            fenced_by_generation(topic.publish("x", producer="p", sequenceIds=[0], epoch=old), 6)
            fenced_by_generation(topic.publish("x", producer="q", sequenceIds=[0], epoch=old), 6)
        epochs.append(topic.open_producer("p", "after")["epoch"])
    assert epochs == sorted(set(epochs))


def test_a_fence_of_an_older_generation_holds_wherever_a_producer_is_named(running: RunningService) -> None:
    topic = Topic(running.url)
    old = topic.open_producer("p", "old")["epoch"]
    made_anew(topic)
    named = {"producer": "p", "sequenceIds": [0], "epoch": old}
    with Client(running.url) as client, client.transaction() as tx:
        pointer = tx.transaction.write_pointer
        fenced_by_generation(topic.publish("x", transactionWritePointer=pointer, **named), 2)
        fenced_by_generation(topic.store(pointer, "x", **named), 2)
        fenced_by_generation(topic.publish(transactionWritePointer=pointer, producer="p", epoch=old), 2)
    assert topic.session.post(f"{running.url}/v1/journal", json={"id": "tx", "group": "g"}, timeout=60).status_code == 200
    fenced_by_generation(topic.request("PUT", "/stage/tx/0", json={"messages": ["x"], **named}), 2)
    assert topic.payloads() == []


def test_an_open_of_the_older_generation_that_comes_again_is_refused_and_fences_nobody(running: RunningService) -> None:
    topic = Topic(running.url)
    topic.open_producer("p", "old")
    made_anew(topic, 2)
    epoch = topic.open_producer("p", "new")["epoch"]
    fenced_by_generation(topic.request("POST", "/producers", json={"name": "p", "nonce": "old"}), 3)
    topic.send("p", 0, epoch=epoch)


def test_a_consumer_of_a_deleted_topic_is_fenced_in_the_topic_made_anew(running: RunningService) -> None:
    topic = Topic(running.url)
    opening = {"name": "s", "nonce": "old", "start": {"at": "earliest"}}
    old = topic.request("POST", "/subscriptions", json=opening).json()["epoch"]
    topic.publish("a")
    made_anew(topic)
    topic.publish("b")
    new = topic.request("POST", "/subscriptions", json={**opening, "nonce": "new"}).json()["epoch"]
    assert new > old
    asked = {"epoch": old, "offset": 0, "generation": 2}
    assert_problem(topic.request("POST", "/subscriptions/s/ack", json=asked), 403, ConsumerFenced.code)


def test_a_topic_whose_producers_cannot_be_read_can_be_deleted_and_its_epochs_do_not_come_again(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        old = topic.open_producer("p", "old")["epoch"]
    (key,) = machine.disk.tables[Table.PRODUCER]
    machine.disk.tables[Table.PRODUCER][key] = b"damaged"
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        made_anew(topic)
        fenced_by_generation(topic.publish("x", producer="p", sequenceIds=[0], epoch=old), 2)


def test_a_producer_of_the_sdk_that_meets_the_next_generation_stops_and_says_why(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(running.url)
    with Client(running.url) as client:
        producer = Producer[bytes]("t", name="p", client=client)
        producer.send(b"0")
        made_anew(topic)
        sent, publish = [], client.publish
        monkeypatch.setattr(client, "publish", lambda *request: [sent.append(1), publish(*request)][1])
        futures = [producer.send_async(b"x") for _ in range(500)]
        with pytest.raises(ProducerFenced, match="made anew"):
            producer.flush()
        failures = [future.exception() for future in futures]
        assert all(isinstance(each, ProducerFenced | ProducerStopped) and "made anew" in str(each) for each in failures)
        assert None not in failures
        assert len(sent) < 10  # and not 999, looking for the one message whose fault it might be
        assert topic.payloads() == []
