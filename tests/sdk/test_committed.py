"""A reader is given what is committed, unless it asks for more: by a service that knows this, and by one of an older version.

What a poll of it answers is tested in tests/behaviours/test_committed_polls.py; what pages show, in tests/service/test_pages.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog import Client, Consumer, Message, Producer, Reader
from oncelog.errors import NotSupported
from oncelog.reading import position
from oncelog.wire.isolation import Held, headers_of, read_headers
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, FakeServer, Request, fake_server, forward, problem
from tests.world.awaits import of_threads
from tests.world.service import RunningService

pytestmark = pytest.mark.usefixtures("twin")


def publish(client: Client, topic: str, *payloads: bytes, pointer: int | None = None) -> None:
    request = PublishRequest(list(payloads), write_pointer=pointer)
    client.publish(topic, request) if pointer is None else client.publish_transactional(topic, request)


def begun(client: Client) -> int:
    return client.start_transaction("long").write_pointer


def read(reader: Reader[bytes]) -> list[bytes]:
    return [message.payload for message in reader]


def test_from_latest_is_behind_the_last_message_that_is_decided(client: Client, topic: str) -> None:
    pointer = begun(client)
    publish(client, topic, b"0")
    publish(client, topic, b"open", pointer=pointer)
    publish(client, topic, b"1")
    with (
        Reader(topic, client=client, start="latest", timeout=0) as reader,
        Reader(topic, client=client, start="latest", timeout=0, isolation="uncommitted") as everything,
    ):
        client.commit_transaction(pointer)
        assert (read(reader), read(everything)) == ([b"open", b"1"], [])
        publish(client, topic, b"2")
        assert (read(reader), read(everything)) == ([b"2"], [b"2"])


def test_what_it_reads_is_one_of_two(client: Client, topic: str) -> None:
    with pytest.raises(ValueError, match="isolation"):
        Reader(topic, client=client, isolation="serializable")  # type: ignore[arg-type]


# --- who is held up


@pytest.mark.parametrize(
    ("kind", "whose", "remedy"),
    [("reader", "default/{}", 'isolation="uncommitted"'), ("consumer", "subscription 's' of default/{}", "uncommitted")],
)
def test_who_is_held_up_is_told_once_by_which_message_and_how_to_read_on(
    client: Client,
    topic: str,
    kind: str,
    whose: str,
    remedy: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(position, "TELL_SECONDS", 0.0)
    pointer = begun(client)
    publish(client, topic, b"0")
    publish(client, topic, b"open", pointer=pointer)
    made: Any = Reader(topic, client=client) if kind == "reader" else Consumer(topic, "s", client=client)
    with made as stream:
        for _ in range(3):
            stream.read(timeout=0)
        assert stream.held is not None
        assert (stream.held.offset, stream.held.write_pointer) == (1, pointer)
        (said,) = [each.getMessage() for each in caplog.records if each.name == f"oncelog.{kind}"]
        for word in (whose.format(topic), "offset 1", str(pointer), "since 20", remedy, "tx list --state held", "topic settle"):
            assert word in said
        client.abort_transaction(pointer)
        publish(client, topic, b"1")
        assert [message.payload for message in stream.read(timeout=PATIENCE)] == [b"1"]
        assert stream.held is None
    assert len(caplog.records) == 1


@of_threads
def test_headers_that_cannot_be_read_are_not_there() -> None:
    whole = headers_of("committed", Held(1, 2, 3, 4))
    assert read_headers(whole) == ("committed", Held(1, 2, 3, 4))
    for broken in (
        "",
        "offset=1",
        "offset=1, write-pointer=x, since=3, now=4",
        "offset=-1, write-pointer=2, since=3, now=4",
        f"offset=1, write-pointer=2, since={10**15}, now=4",
        "=," * 99,
    ):
        assert read_headers({**whole, "oncelog-held": broken}) == ("committed", None)
    assert read_headers({}) == (None, None)


# --- an older service


@contextmanager
def older(running: RunningService, at_all: Callable[[Request], Answer | None] = lambda _: None) -> Iterator[FakeServer]:
    """The service as of a version that knows no isolation: it passes over the parameter, and its answers do not say any."""

    def handle(request: Request) -> Answer | None:
        request.path = request.address if request.address.endswith("/poll") else request.path
        answer = at_all(request) or forward(running.url, request)
        answer.headers = {name: value for name, value in answer.headers.items() if not name.startswith("oncelog-")}
        return answer

    with fake_server(handle) as fake:
        yield fake


@of_threads
@pytest.mark.parametrize("page_size", [1, 5_000])
def test_an_older_service_is_read_as_a_newer_one_in_other_ways_and_that_is_told_once(
    house: RunningService, client: Client, topic: str, page_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    undone, open_ = begun(client), begun(client)
    with older(house) as fake, Client(fake.url) as old, Reader(topic, client=old, timeout=0, page_size=page_size) as reader:
        assert read(reader) == []
        publish(client, topic, b"0", b"1", b"2")
        publish(client, topic, b"undone", b"undone", pointer=undone)
        publish(client, topic, b"3")
        publish(client, topic, b"open", pointer=open_)
        publish(client, topic, b"4")
        assert read(reader) == [b"0", b"1", b"2"]
        client.abort_transaction(undone)
        house.settled()
        assert read(reader) == [b"3"]
        assert not reader.has_message_available()
        with Reader(topic, client=old, start="latest", timeout=0) as latest:
            client.commit_transaction(open_)
            house.settled()
            assert (read(reader), read(latest)) == ([b"open", b"4"], [b"open", b"4"])
    said = [each.getMessage() for each in caplog.records if each.name == "oncelog.reader"]
    assert len(said) == 2, "once by each reader"
    assert all("older version" in each for each in said)


@of_threads
def test_a_reader_of_an_older_service_waits_until_there_is_something_decided(
    house: RunningService, client: Client, topic: str
) -> None:
    pointer = begun(client)
    publish(client, topic, b"open", pointer=pointer)

    def commits(request: Request) -> None:
        if b'"wait": 5000' in request.body or b'"wait":5000' in request.body:
            client.commit_transaction(pointer)

    with older(house, commits) as fake, Client(fake.url) as old, Reader(topic, client=old) as reader:
        messages: list[Message[bytes]] = reader.read(timeout=PATIENCE)
        assert [message.payload for message in messages] == [b"open"]
        assert len(fake.requests) < 20


@of_threads
def test_a_reader_of_an_older_service_that_may_not_be_told_by_whom_it_is_held_up_reads_on(
    house: RunningService, client: Client, topic: str
) -> None:
    pointer = begun(client)
    publish(client, topic, b"open", pointer=pointer)

    def only_operators(asked: Request) -> Answer | None:
        return problem(403, "not_allowed") if asked.path.partition("?")[0].endswith("/held") else None

    with older(house, only_operators) as fake, Client(fake.url) as old, Reader(topic, client=old, timeout=0) as reader:
        assert (read(reader), reader.held) == ([], None)
        assert any("/held" in each.path for each in fake.requests)
        client.commit_transaction(pointer)
        house.settled()
        assert read(reader) == [b"open"]


@of_threads
def test_a_service_that_cannot_say_what_is_committed_is_refused_and_can_be_read_as_it_is(
    house: RunningService, client: Client, topic: str
) -> None:
    publish(client, topic, b"0")

    def away(asked: Request) -> Answer | None:
        return problem(404, "not_found") if "/offsets" in asked.path else None

    with older(house, away) as fake, Client(fake.url) as old:
        with Reader(topic, client=old, timeout=0) as reader, pytest.raises(NotSupported, match="uncommitted"):
            reader.read()
        with pytest.raises(NotSupported, match="uncommitted"), Reader(topic, client=old, start="latest") as reader:
            pass
        with Reader(topic, client=old, timeout=0, isolation="uncommitted") as reader:
            assert read(reader) == [b"0"]


@of_threads
def test_once_a_newer_service_answers_it_is_asked_as_one(house: RunningService, client: Client, topic: str) -> None:
    publish(client, topic, b"0")
    is_old = [True]

    def handle(request: Request) -> Answer:
        answer = forward(house.url, request)
        if is_old[0]:
            answer.headers = {"content-type": answer.headers["content-type"]}
        return answer

    with fake_server(handle) as fake, Client(fake.url) as old, Reader(topic, client=old, timeout=0) as reader:
        assert read(reader) == [b"0"]
        is_old[0] = False
        assert read(reader) == []
        fake.requests.clear()
        publish(client, topic, b"1")
        assert read(reader) == [b"1"]
        assert {request.path.partition("?")[2] for request in fake.requests} == {"isolation=committed"}


@of_threads
def test_where_a_topic_has_no_transactions_reading_asks_no_more_than_it_did(
    house: RunningService, client: Client, topic: str
) -> None:
    with Producer[bytes](topic, client=client) as producer:
        producer.send_batch([b"%d" % number for number in range(10)])
    counts = []
    for isolation in ("uncommitted", "committed"):
        with fake_server(lambda request: forward(house.url, request)) as fake, Client(fake.url) as there:
            with Reader(topic, client=there, timeout=0, page_size=3, isolation=isolation) as reader:  # type: ignore[call-overload]
                assert len(read(reader)) == 10
            counts.append(len(fake.requests))
    assert counts[0] == counts[1]


# --- two recipes of the quickstart, together
