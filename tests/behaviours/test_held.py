"""What a topic holds back is visible wherever it stops somebody, and an operator can end it."""

from __future__ import annotations

import re

import pytest
import requests

from oncelog import Client
from oncelog.errors import TransactionNotFound, TransactionNotInProgress, UnknownWritePointer
from oncelog.wire.columns import unpack
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import POINTERS_PER_MS
from tests.behaviours.conftest import Machine

OTHERS = {"foreign_write_pointers": True}


def foreign(machine: Machine, number: int = 0) -> int:
    """A write pointer of another transaction service."""
    return machine.clock.ms * POINTERS_PER_MS + number


def publish(client: Client, pointer: int | None, *payloads: bytes, producer: str | None = None) -> None:
    ids = None if producer is None else list(range(len(payloads)))
    client.publish("t", PublishRequest(list(payloads), producer, sequence_ids=ids, write_pointer=pointer))


def test_a_pointer_that_was_never_handed_out_stops_nobody_also_after_a_restart(machine: Machine) -> None:
    made_up = foreign(machine)
    with machine.run() as service, Client(service.url) as client:
        client.create_topic("t")
        ours = client.start_transaction().write_pointer
        for pointer in (made_up + 5 * POINTERS_PER_MS, ours + 1, 7):
            with pytest.raises(UnknownWritePointer):
                publish(client, pointer, b"never")
        publish(client, ours, b"ours")
        client.commit_transaction(ours)
    with machine.run() as service, Client(service.url) as client:
        with pytest.raises(TransactionNotInProgress):  # it was handed out, and has ended
            publish(client, ours, b"late")
        with pytest.raises(UnknownWritePointer):
            publish(client, ours + 1, b"never")
        with pytest.raises(UnknownWritePointer):
            client.store("t", PublishRequest([b"never"], write_pointer=ours + 1))
        assert client.held() == []
        assert client.stats("t").upcoming_offset == 1


def test_what_a_topic_holds_back_is_seen_wherever_it_stops_somebody(machine: Machine) -> None:
    pointer = foreign(machine)
    with machine.run(**OTHERS) as service, Client(service.url) as client:
        client.create_topic("t")
        client.open_subscription("t", "s")
        publish(client, None, b"before")
        publish(client, pointer, b"1", b"2", producer="writer")
        since = machine.clock.ms
        machine.clock.advance(60_000)
        ours = client.start_transaction(timeout=600).write_pointer
        publish(client, ours, b"3")

        (first, second) = client.held_on("t")
        assert (first.write_pointer, first.first_offset, first.messages, first.producers) == (pointer, 1, 2, ["writer"])
        assert (first.since_ms, first.state) == (since, None)
        assert (second.write_pointer, second.messages, second.state) == (ours, 1, "in_progress")
        assert [(each.topic, each.write_pointer) for each in client.held()] == [("t", pointer), ("t", ours)]
        stats = client.stats("t")
        assert (stats.held_messages, stats.held_write_pointers) == (3, 2)
        (shown,) = client.subscriptions("t")
        assert (shown.settled_offset, shown.held_by, shown.held_since_ms) == (1, pointer, since)
        metrics = requests.get(service.url + "/metrics", timeout=10).text
        assert re.search(r"^oncelog_held_topics 1\.0$", metrics, re.M)
        assert re.search(r"^oncelog_held_seconds 60\.0$", metrics, re.M)


def settled_payloads(client: Client) -> list[bytes | None]:
    upto = client.offsets({"t": TopicAsked()})["t"].settled
    return list(unpack(client.read_columns("t", 0, upto).values))


@pytest.mark.parametrize("committed", [True, False])
def test_an_operator_ends_a_foreign_pointer_and_nothing_comes_under_it_any_more(machine: Machine, committed: bool) -> None:
    pointer = foreign(machine)
    with machine.run(**OTHERS) as service, Client(service.url) as client:
        client.create_topic("t")
        publish(client, pointer, b"held")
        publish(client, None, b"behind")
        client.end_held("t", pointer, committed=committed)
        assert client.held() == []
        assert client.stats("t").held_messages == 0
        assert settled_payloads(client) == ([b"held", b"behind"] if committed else [b"behind"])
        with pytest.raises(TransactionNotInProgress):
            publish(client, pointer, b"zombie")
        with pytest.raises(TransactionNotFound):
            client.end_held("t", pointer, committed=committed)


def test_a_transaction_of_our_own_is_not_ended_topic_by_topic(machine: Machine) -> None:
    with machine.run(**OTHERS) as service, Client(service.url) as client:
        client.create_topic("t")
        ours = client.start_transaction().write_pointer
        publish(client, ours, b"ours")
        with pytest.raises(TransactionNotInProgress) as refusal:
            client.end_held("t", ours, committed=True)
        assert refusal.value.state == "in_progress"
        client.abort_transaction(ours)
