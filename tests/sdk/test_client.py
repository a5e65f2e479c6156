"""Topics, policies and status over real HTTP; and answers that are none. Every call is made in behaviours/cli/test_nouns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import wraps
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest

from oncelog import Client, Producer, Reader
from oncelog.errors import (
    ConnectionFailed,
    DiskFull,
    InvalidRequest,
    InvalidResponse,
    PropertiesChanged,
    ResponseTimeout,
    StaleMessageId,
    TopicNotFound,
)
from oncelog.process.procedures import drive
from oncelog.wire.media import JSON
from oncelog.wire.models import NamespacePolicies
from tests.sdk.fakes import Answer, Request, fake_server, problem
from tests.world.awaits import of_threads
from tests.world.service import RunningService, free_port

pytestmark = pytest.mark.usefixtures("twin")

# --- several instances


@of_threads
def test_one_that_hangs_takes_no_call_with_it_that_others_can_answer() -> None:
    """It takes all the time there was: then each of the others is asked once. The first time-out used to be the answer."""
    urls = [f"http://127.0.0.{number}:1" for number in (1, 2, 3)]
    for retry, asked in ((1e-9, urls), (0, urls[:1])):
        client = Client(",".join(urls), retry=retry)
        hung: list[str] = []

        def hangs(client: Client = client, hung: list[str] = hung) -> None:
            hung.append(client._calls._transport._bases[0])
            client._calls._transport._gone(hung[-1])
            raise ResponseTimeout("planted")

        with pytest.raises(ResponseTimeout):
            drive(client._calls._trying(hangs, True))
        assert hung == asked


@pytest.mark.parametrize("begin", [lambda client: client.verify("t"), lambda client: client.backup("b")])
def test_what_comes_bit_by_bit_is_begun_by_an_instance_that_answers(begin: Callable[[Client], Iterable[object]]) -> None:
    """It used to end at the first address that refused a connection; calls with one answer go on."""
    with fake_server(lambda _: Answer(200, b"{}\n")) as fake, Client(f"http://127.0.0.1:{free_port()},{fake.url}") as client:
        with pytest.raises(InvalidResponse):  # that is neither's
            list(begin(client))
        assert len(fake.requests) == 1


def test_a_backup_for_which_there_is_no_room_says_so_at_once() -> None:
    with fake_server(lambda _: problem(507, "disk_full")) as fake, Client(fake.url, retry=1.0) as client:
        with pytest.raises(DiskFull):
            list(client.backup("b"))
        assert len(fake.requests) == 1


# --- what stands in for a call


def noted(call: Callable[..., Any], seen: list[object]) -> Callable[..., Any]:
    """The call, which notes that it is made, as decorators and instrumentation make it: with all of its attributes."""

    @wraps(call)
    def calls(*args: object) -> object:
        seen.append(args)
        return call(*args)

    return calls


@of_threads
@pytest.mark.parametrize("how", ["overridden", "on the object", "on the class", "mocked", "mocked with its signature"])
def test_what_stands_in_for_a_call_of_a_client_is_what_a_producer_calls(
    house: RunningService, topic: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    seen: list[object] = []

    class Noting(Client):
        publish = noted(Client.publish, seen) if how == "overridden" else Client.publish

    with Noting(house.url) as client, Producer[bytes](topic, client=client) as producer:
        if how == "on the class":
            monkeypatch.setattr(Noting, "publish", noted(Client.publish, seen))
        elif how == "on the object":
            monkeypatch.setattr(client, "publish", noted(client.publish, seen))
        elif how == "mocked":
            monkeypatch.setattr(client, "publish", mock.Mock(wraps=noted(client.publish, seen)))
        elif how == "mocked with its signature":
            monkeypatch.setattr(Noting, "publish", mock.create_autospec(Client.publish, side_effect=noted(Client.publish, seen)))
        assert producer.send(b"x").offset == 0
    assert len(seen) == 1


# --- topics, producers


def test_a_topic_is_created_changed_and_deleted_and_comes_back_empty(client: Client) -> None:
    name, namespace = f"t-{uuid4().hex}", f"a{uuid4().hex}"
    client.create_topic(name, {"ttl": 60}, namespace)
    assert client.topic(name, namespace).properties["ttl"] == "60"
    assert (client.topics(namespace), namespace in client.namespaces(), name in client.topics()) == ([name], True, False)
    client.set_policies(NamespacePolicies(deduplication=False), namespace)
    assert (client.policies(namespace), client.policies()) == (NamespacePolicies(deduplication=False), NamespacePolicies())
    client.create_topic(name, {"ttl": 60})
    client.create_topic(name, {"ttl": 99}, exist_ok=True)
    assert client.topic(name).properties["ttl"] == "60"
    client.update_topic(name, {"ttl": 3600, "deduplication": False})
    properties = client.topic(name).properties
    assert (properties["ttl"], properties["deduplication"]) == ("3600", "false"), "properties may be numbers and truths"
    client.update_topic(name, {"ttl": 4000}, expected=properties)
    with pytest.raises(PropertiesChanged) as changed:
        client.update_topic(name, {"deduplication": False}, expected=properties)
    assert (changed.value.properties, changed.value.definite) == (client.topic(name).properties, True)
    assert changed.value.properties == {"ttl": "4000", "generation": "1"}
    client.update_topic(name, {"deduplication": False}, expected=changed.value.properties)
    with Producer(name, client=client, name="p") as producer:
        last = producer.send_batch([b"x"] * 7)[-1]
    stats = client.stats(name)
    assert (stats.name, stats.earliest_offset, stats.upcoming_offset, stats.producers) == (name, 0, 7, 1)
    assert (stats.last_message_id, stats.deduplication) == (last.message_id, False)
    erased = client.erase_message(name, last.message_id)
    assert (erased.offset, erased.message_id) == (6, last.message_id)
    assert client.erase_message(name, 6) == erased
    assert client.trim_topic(name, datetime.fromtimestamp(last.message_id.publish_timestamp / 1000, UTC)) <= 6
    assert client.trim_topic(name, 6) == client.trim_topic(name, 2) == 6
    with Reader(name, client=client, timeout=0) as reader:
        (message,) = reader
    assert (message.offset, message.erased, message.payload, message.value) == (6, True, b"", b"")
    assert message.properties == {"oncelog.erased": str(erased.erased_ms)}
    for wrong_time in (datetime(2026, 1, 1), -1, 2**63):  # noqa: DTZ001
        with pytest.raises((ValueError, InvalidRequest)):
            client.trim_topic(name, wrong_time)
    client.delete_topic(name)
    for call in (client.topic, client.stats, client.delete_topic, lambda name: client.update_topic(name, {}), Producer):
        with pytest.raises(TopicNotFound):
            call(name) if call is not Producer else Producer(name, client=client)
    for bad in ("", ".", "..", "a/b", "a b", "%2e%2e"):  # the first four before anything is sent
        with pytest.raises(InvalidRequest):
            client.create_topic(bad)
    client.create_topic(name)
    for wrong in ({"name": ""}, {"name": "a b"}, {"name": "x" * 250}, {"gaps": "sometimes"}):
        with pytest.raises(InvalidRequest):
            Producer(name, client=client, **wrong)  # type: ignore[call-overload]
    stats = client.stats(name)
    assert (stats.generation, stats.upcoming_offset, stats.producers, stats.last_message_id) == (2, 0, 0, None)


def test_a_listing_goes_on_behind_a_page_of_which_something_has_gone_meanwhile() -> None:
    """A producer that is forgotten while its page is made leaves that shorter than it was asked for."""
    one = {"epoch": 1, "gaps": "allow", "lastPushed": 1, "lastPersisted": 1, "lastMessageId": None, "lastOffset": 0}
    pages = [["a", "b"], ["d"], []]
    answers = iter([Answer(body=json.dumps([{**one, "name": name} for name in names]).encode()) for names in pages])
    with fake_server(lambda _: next(answers)) as fake, Client(fake.url) as client:
        assert [producer.name for producer in client.producers("t")] == ["a", "b", "d"]
        assert [request.path.partition("?")[2] for request in fake.requests] == [
            "limit=1000",
            "limit=1000&after=b",
            "limit=1000&after=d",
        ]


def test_a_repeated_open_is_the_same_open() -> None:
    opened = Answer(body=b'{"name": "p", "epoch": 1, "lastSequenceId": null, "lastMessageId": null}')
    answers = iter([None, None, opened, opened])
    with fake_server(lambda _: next(answers)) as fake, Client(fake.url) as client:
        assert client.open_producer("t", "p").epoch == 1
        assert client.open_producer("t", "p").epoch == 1
        first, again, third, another = (request.body for request in fake.requests)
        assert first == again == third != another, "and another one is another"


# --- checking


def test_a_check_that_was_cut_short_is_no_verdict() -> None:
    begun = b'{"messages": 5, "of": 10}\n'
    for more in (b"", b'{"namespace": "default", "to', b"[1]\n", b"null\n", b'{"ok": true}\n'):
        answer = Answer(200, begun + more)
        with fake_server(lambda _, answer=answer: answer) as fake, Client(fake.url) as client, pytest.raises(InvalidResponse):  # type: ignore[misc]
            list(client.verify("t"))
    broken = Answer(200, begun, claimed_length=500)
    with fake_server(lambda _: broken) as fake, Client(fake.url) as client, pytest.raises(ConnectionFailed):
        list(client.verify("t"))


# --- status and failing


def test_healthy_answers_and_never_raises(client: Client) -> None:
    assert client.healthy()
    assert not Client(f"http://127.0.0.1:{free_port()}").healthy()
    for answer in (problem(503, "storage_unavailable"), None):
        with fake_server(lambda _, answer=answer: answer) as fake:  # type: ignore[misc]
            assert not Client(fake.url).healthy()


def test_what_may_have_been_done_is_not_done_again() -> None:
    with fake_server(lambda _: None) as fake, Client(fake.url) as client:
        for call in (client.create_topic, client.delete_topic, lambda topic: client.forget_producer(topic, "p")):
            with pytest.raises(ConnectionFailed) as caught:
                call("t")
            assert not caught.value.definite
        assert [request.method for request in fake.requests] == ["PUT", "DELETE", "DELETE"]


@pytest.mark.parametrize("take_out", [lambda client: client.trim_topic("t", 5), lambda client: client.erase_message("t", 5)])
def test_what_is_taken_out_again_after_a_lost_answer_is_of_the_same_topic(take_out: Callable[[Client], object]) -> None:
    """It may have been deleted and made anew meanwhile, by somebody whose messages these are."""
    generations: list[int] = []

    def handle(request: Request) -> Answer | None:
        if request.method == "GET":
            stats = {"earliestOffset": 0, "upcomingOffset": 9, "lastMessageId": None, "deduplication": True, "producers": 0}
            more = {"snapshotOffset": None, "replayed": 0, "cachedMessages": 0, "heldMessages": 0, "heldWritePointers": 0}
            return Answer(200, json.dumps({"name": "t", "generation": 7, **stats, **more}).encode(), {"content-type": JSON})
        generations.append(json.loads(request.body)["generation"])
        return None if len(generations) == 1 else problem(400, "stale_message_id", generation=8)

    with fake_server(handle) as server, Client(server.url) as client, pytest.raises(StaleMessageId):
        take_out(client)
    assert generations == [7, 7]
