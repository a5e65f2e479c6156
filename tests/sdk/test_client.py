"""Topics, producers, policies and status over real HTTP; and answers that are none."""

from __future__ import annotations

from uuid import uuid4

import pytest

from oncelog import Client, Producer
from oncelog.errors import (
    ConnectionFailed,
    InvalidRequest,
    InvalidResponse,
    ProducerFenced,
    ProducerNotFound,
    ResponseTimeout,
    StorageUnavailable,
    TopicExists,
    TopicNotFound,
)
from oncelog.wire.models import NamespacePolicies, Verification
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.support import RunningService, free_port

# --- several instances


@pytest.mark.parametrize(
    ("instances", "retry", "idempotent", "asked"), [(3, 1e-9, True, 3), (1, 1e-9, True, 1), (3, 0, True, 1), (3, 1e-9, False, 1)]
)
def test_one_that_hangs_takes_no_call_with_it_that_others_can_answer(
    instances: int, retry: float, idempotent: bool, asked: int
) -> None:
    """It takes all the time there was: then each of the others is asked once. The first time-out used to be the answer."""
    client = Client(",".join(f"http://127.0.0.{n}:1" for n in range(1, instances + 1)), retry=retry)
    hung: list[str] = []

    def hangs() -> None:
        hung.append(client._transport._bases[0])
        client._transport._gone(hung[-1])
        raise ResponseTimeout("planted")

    with pytest.raises(ResponseTimeout):
        client._trying(hangs, idempotent)
    assert len(set(hung)) == len(hung) == asked
    answers = iter([hangs, lambda: None])
    if asked > 1:
        client._trying(lambda: next(answers)(), idempotent)


# --- topics


def test_a_topic_is_created_once(client: Client) -> None:
    name = f"t-{uuid4().hex}"
    client.create_topic(name, {"ttl": 60})
    with pytest.raises(TopicExists):
        client.create_topic(name)
    client.create_topic(name, {"ttl": 99}, exist_ok=True)
    assert client.topic(name).properties["ttl"] == "60"
    assert name in client.topics()


def test_properties_may_be_numbers_and_truths(client: Client, topic: str) -> None:
    client.update_topic(topic, {"ttl": 3600, "deduplication": False})
    properties = client.topic(topic).properties
    assert (properties["ttl"], properties["deduplication"]) == ("3600", "false")
    assert not client.stats(topic).deduplication
    client.update_topic(topic, {"deduplication": True})
    properties = client.topic(topic).properties
    assert (properties["ttl"], properties["deduplication"]) == ("604800", "true")
    with pytest.raises(InvalidRequest):
        client.update_topic(topic, {"owner": "?"})


def test_a_deleted_topic_is_gone_and_comes_back_empty(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"0")
    client.delete_topic(topic)
    assert topic not in client.topics()
    for call in (client.topic, client.stats, client.delete_topic):
        with pytest.raises(TopicNotFound):
            call(topic)
    with pytest.raises(TopicNotFound):
        client.update_topic(topic, {})
    client.create_topic(topic)
    stats = client.stats(topic)
    assert (stats.generation, stats.upcoming_offset, stats.producers, stats.last_message_id) == (2, 0, 0, None)


def test_stats_say_where_the_log_ends(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        last = producer.send_batch([b"x"] * 7)[-1]
    stats = client.stats(topic)
    assert (stats.name, stats.earliest_offset, stats.upcoming_offset, stats.producers) == (topic, 0, 7, 1)
    assert stats.last_message_id == last.message_id


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "%2e%2e"])
def test_what_is_no_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidRequest):
        client.create_topic(name)
    with pytest.raises(InvalidRequest):
        client.create_topic("t", namespace=name)


def test_namespaces_keep_topics_and_policies_apart(client: Client) -> None:
    one, other = f"a{uuid4().hex}", f"b{uuid4().hex}"
    client.create_topic("t", namespace=one)
    client.create_topic("t", {"ttl": 5}, namespace=other)
    assert client.topics(one) == client.topics(other) == ["t"]
    assert {one, other} <= set(client.namespaces())
    client.set_policies(NamespacePolicies(deduplication=False), one)
    assert client.policies(one) == NamespacePolicies(deduplication=False)
    assert client.policies(other) == NamespacePolicies()
    assert (client.stats("t", one).deduplication, client.stats("t", other).deduplication) == (False, True)
    with Producer("t", client=client, namespace=one, name="p") as producer:
        producer.send(b"0")
    assert [producer.name for producer in client.producers("t", one)] == ["p"]
    assert list(client.producers("t", other)) == []
    client.delete_topic("t", one)
    assert client.topics(other) == ["t"]


# --- producers


def test_a_producer_shows_what_it_has_published(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p@host:1=a.b", gaps="refuse") as producer:
        receipt = producer.send_batch([b"0", b"1"])[-1]
    shown = client.producer(topic, producer.name)
    assert (shown.name, shown.epoch, shown.gaps) == (producer.name, producer.epoch, "refuse")
    assert (shown.last_pushed, shown.last_persisted) == (1, 1)
    assert (shown.last_message_id, shown.last_offset) == (receipt.message_id, receipt.offset)
    with pytest.raises(ProducerNotFound):
        client.producer(topic, "nobody")


def test_producers_are_listed_beyond_one_page_each_once(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{i:02}" for i in range(12)]
    for name in reversed(names):
        client.open_producer(topic, name)
    for size in (1, 3, 4, 12, 100):
        monkeypatch.setattr("oncelog.api.api._PAGE", size)
        assert [producer.name for producer in client.producers(topic)] == names, size


def test_a_forgotten_producer_is_fenced_and_begins_anew(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as old:
        old.send(b"0")
        client.forget_producer(topic, "p")
        with pytest.raises(ProducerFenced):
            old.send(b"1")
    with pytest.raises(ProducerNotFound):
        client.forget_producer(topic, "nobody")
    with Producer(topic, client=client, name="p") as new:
        assert new.last_sequence_id is None
        assert new.send(b"0").status == "stored"


def test_why_tells_new_from_duplicate_and_where_the_original_lies(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        receipt = producer.send(b"0", sequence_id=5)
    old, new = client.why(topic, "p", 5), client.why(topic, "p", 6)
    assert (old.verdict, old.message_id, old.offset) == ("duplicate", receipt.message_id, receipt.offset)
    assert new.verdict == "new"
    assert old.reason
    with pytest.raises(InvalidRequest):
        client.why(topic, "p", -1)


def test_a_repeated_open_whose_answer_was_lost_fences_nobody(house: RunningService, topic: str) -> None:
    lost = iter([True, True])

    def lose(request: Request) -> Answer | None:
        answer = forward(house.url, request)
        return None if request.path.endswith("/producers") and next(lost, False) else answer

    with fake_server(lose) as fake, Producer(topic, url=fake.url, name="p") as producer:
        assert len(fake.requests) == 3
        assert producer.epoch == 1
        assert producer.send(b"0").status == "stored"


# --- checking


def test_verify_shows_progress_and_ends_with_the_verdict(client: Client, topic: str) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send_batch([b"%d" % i for i in range(2_500)])
    *progress, verdict = client.verify(topic)
    assert isinstance(verdict, Verification)
    assert (verdict.ok, verdict.messages, verdict.producers, verdict.duplicates, verdict.problems) == (True, 2_500, 1, 0, [])
    assert all(isinstance(step, tuple) and step[1] == 2_500 for step in progress)
    assert progress == sorted(progress)  # type: ignore[type-var]
    with pytest.raises(TopicNotFound):
        list(client.verify("no-such-topic"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"messages": 5, "of": 10}\n',
        b'{"messages": 5, "of": 10}\n{"namespace": "default", "to',
        b'{"messages": 5, "of": 10}\n[1]\n',
        b'{"messages": 5, "of": 10}\nnull\n',
        b'{"messages": 5, "of": 10}\n{"ok": true}\n',
    ],
)
def test_a_check_that_was_cut_short_is_no_verdict(body: bytes) -> None:
    with fake_server(lambda _: Answer(200, body)) as fake, Client(fake.url) as client, pytest.raises(InvalidResponse):
        list(client.verify("t"))


def test_a_check_whose_connection_breaks_is_no_verdict() -> None:
    body = b'{"messages": 5, "of": 10}\n'
    with fake_server(lambda _: Answer(200, body, claimed_length=500)) as fake, Client(fake.url) as client:
        steps = client.verify("t")
        with pytest.raises(ConnectionFailed):
            list(steps)


# --- status and failing


def test_healthy_answers_and_never_raises(house: RunningService, client: Client) -> None:
    assert client.healthy()
    assert not Client(f"http://127.0.0.1:{free_port()}").healthy()
    with fake_server(lambda _: Answer(200 if _.path == "/healthz" else 500)) as fake:
        assert Client(fake.url).healthy()
    with fake_server(lambda _: problem(503, "storage_unavailable")) as fake:
        assert not Client(fake.url).healthy()
    with fake_server(lambda _: None) as fake:
        assert not Client(fake.url).healthy()


def test_a_call_is_tried_again_while_the_store_is_opened() -> None:
    answers = iter([problem(503, "storage_unavailable")] * 2)
    with fake_server(lambda _: next(answers, Answer(200, b'["t"]'))) as fake, Client(fake.url) as client:
        assert client.topics() == ["t"]
        assert len(fake.requests) == 3


def test_a_call_gives_up_after_its_retry_time() -> None:
    with fake_server(lambda _: problem(503, "storage_unavailable")) as fake, Client(fake.url, retry=0.2) as client:
        with pytest.raises(StorageUnavailable) as caught:
            client.topics()
        assert caught.value.definite
        assert len(fake.requests) >= 2


def test_what_may_have_been_done_is_not_done_again() -> None:
    with fake_server(lambda _: None) as fake, Client(fake.url) as client:
        for call in (client.create_topic, client.delete_topic):
            with pytest.raises(ConnectionFailed) as caught:
                call("t")
            assert not caught.value.definite
        with pytest.raises(ConnectionFailed):
            client.forget_producer("t", "p")
        assert [request.method for request in fake.requests] == ["PUT", "DELETE", "DELETE"]


def test_an_open_is_definitely_not_done_only_if_no_try_got_through() -> None:
    answers = iter([None])
    with fake_server(lambda _: next(answers, problem(503, "storage_unavailable"))) as fake, Client(fake.url, retry=0.2) as client:
        with pytest.raises(StorageUnavailable) as caught:
            client.open_producer("t", "p")
        assert not caught.value.definite


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b"null", b"[1]", b'{"name": 5}', b"\xff"])
def test_an_answer_that_is_not_what_was_asked_for_is_invalid(body: bytes) -> None:
    with fake_server(lambda _: Answer(200, body)) as fake, Client(fake.url) as client:
        for call in (client.topics, client.namespaces, lambda: client.topic("t"), lambda: client.stats("t")):
            with pytest.raises(InvalidResponse):
                call()
