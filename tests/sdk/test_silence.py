"""Who waits in silence asks another instance who serves this, and sends again what may be sent twice, if that is another one."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client, Producer, Reader
from oncelog.errors import ConnectionFailed, ResponseTimeout
from oncelog.http import silence, transport
from oncelog.http.silence import Again, Silence
from oncelog.http.sockets import Deadline, Plain
from oncelog.http.sockets import _Awaited as Awaited
from oncelog.http.transport import Transport
from oncelog.http.trust import Trust
from oncelog.process.procedures import drive
from oncelog.wire.codec import decode_publish_request
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE, until
from tests.sdk.fakes import Answer, Request, fake_server, forward, listening, problem
from tests.world.certificates import Authority
from tests.world.service import RunningService

SERVED = Answer(body=b"{}", headers={"content-type": "application/json"})
TOPIC = "/v1/namespaces/default/topics/t"
STOPPED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"
"""An answer of which the rest does not come."""


@given(held=st.floats(0, 1e6), steps=st.lists(st.tuples(st.floats(0, 1e3), st.booleans())))
def test_somebody_is_asked_after_so_long_without_a_byte_and_then_now_and_then(
    held: float, steps: list[tuple[float, bool]]
) -> None:
    """Against the rule itself, looked up in all that has happened."""
    watched, now, due = Silence(0.0, held), 0.0, held + silence.SILENT_SECONDS
    for pause, asks in steps:
        now += pause
        if asks:
            watched.asked(now)
            due = now + silence.AGAIN_SECONDS
        else:
            watched.heard(now)
            due = max(due, now + silence.SILENT_SECONDS)
        assert watched.left(now) == due - now


@pytest.mark.parametrize(
    ("path", "question"),
    [
        (f"{TOPIC}/publish", f"{TOPIC}/stats"),
        (f"{TOPIC}/subscriptions/s/ack", f"{TOPIC}/stats"),
        (f"{TOPIC}/stage/x/0", "/v1/atomic?limit=1"),
        ("/v1/atomic/x/commit", "/v1/atomic?limit=1"),
        ("/v1/transactions/5/abort", "/v1/transactions?limit=1"),
        ("/v1/namespaces/default/topics", None),  # whoever is asked answers
        ("/v1/cluster", None),
    ],
)
def test_what_is_asked_of_another_is_answered_by_who_serves_it(path: str, question: str | None) -> None:
    found = transport._question(transport._part(path))
    assert (found and found[1]) == question


# --- over connections


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(silence, "AGAIN_SECONDS", 0.1)


@dataclass
class Two:
    """Two instances over one service: one that stands still, and another, which says who serves a topic."""

    service: str
    says: Callable[[], Answer | None] = lambda: None
    """What is said of it; None: it is served there."""
    asked: list[str] = field(default_factory=list)
    came: list[Request] = field(default_factory=list)
    """What came to the one that stands still, in its order, once that went on or not."""
    goes_on: threading.Event = field(default_factory=threading.Event)
    urls: list[str] = field(default_factory=list)

    def stands_still(self, request: Request) -> Answer | None:
        if request.path.endswith("/producers"):
            return forward(self.service, request)
        if request.path.endswith("/stats"):  # by who is kept waiting by the other one, on a busy machine
            return self.elsewhere(self.urls[1])
        self.came.append(request)
        assert self.goes_on.wait(PATIENCE)
        return forward(self.service, request)

    def other(self, request: Request) -> Answer | None:
        if request.path.endswith("/stats"):
            self.asked.append(request.path)
            if (said := self.says()) is not None:
                return said
        return forward(self.service, request)

    def elsewhere(self, base: str) -> Answer:
        """It is served there."""
        said = problem(307, "not_served_here", url=base)
        return Answer(307, said.body, {**said.headers, "location": f"{base}/x"})


@pytest.fixture
def two(house: RunningService) -> Iterator[Two]:
    found = Two(house.url)
    with fake_server(found.stands_still) as silent, fake_server(found.other) as other:
        found.urls = [silent.url, other.url]
        try:
            yield found
        finally:
            found.goes_on.set()


@pytest.fixture
def name(house: RunningService) -> str:
    with Client(house.url) as direct:
        direct.create_topic(topic := f"t-{uuid4().hex}")
    return topic


def stored(house: RunningService, topic: str) -> list[bytes]:
    with Client(house.url) as direct, Reader(topic, client=direct, timeout=0) as reader:
        return [each.payload for each in reader]


def test_who_serves_it_and_is_slow_is_waited_for(house: RunningService, two: Two, name: str) -> None:
    """Also where another one cannot say."""
    for said in (
        two.elsewhere(two.urls[0]),
        Answer(502, b"<html>"),
        problem(403, "not_allowed"),
    ):
        two.asked.clear()
        two.came.clear()
        two.goes_on.clear()
        two.says = lambda said=said: said  # type: ignore[misc]
        with Client(",".join(two.urls), timeout=PATIENCE) as client, Producer(name, client=client) as producer:
            sent = threading.Thread(
                target=lambda: (until(lambda: len(two.asked) >= 3, "it is asked again and again"), two.goes_on.set())
            )
            sent.start()
            producer.send(b"once")
            sent.join()
            assert len(two.came) == 1
    assert stored(house, name) == [b"once"] * 3


def test_who_is_slow_is_waited_for_where_another_address_leads_there_too(house: RunningService, name: str) -> None:
    """A balancer before the instances, another name of a host: it answers, since that is the same instance."""
    came, asked, goes_on = list[str](), list[str](), threading.Event()

    def slow(request: Request) -> Answer | None:
        if request.path.endswith("/stats"):
            asked.append(request.path)
            if len(asked) == 6:
                goes_on.set()
        elif request.path.endswith("/publish"):
            came.append(request.path)
            assert goes_on.wait(PATIENCE)
        return forward(house.url, request)

    with (
        fake_server(slow) as here,
        fake_server(slow) as there,
        Client(f"{here.url},{there.url}", timeout=PATIENCE) as client,
        Producer(name, client=client) as producer,
    ):
        assert producer.send(b"once").status == "stored"
    assert len(came) == 1


def test_nobody_is_asked_with_a_token_who_was_not_to_have_it(name: str) -> None:
    """Whoever a gateway redirects to without being an instance gets none, also not when that one is silent."""
    ended = threading.Event()

    def stranger(_: Request) -> Answer:
        assert ended.wait(PATIENCE)
        return SERVED

    def gateway(request: Request) -> Answer:
        return SERVED if request.path.endswith("/stats") else Answer(307, headers={"location": away.url + request.path})

    with fake_server(stranger) as away, fake_server(gateway) as here:
        asking = Transport(f"{here.url},http://127.0.0.1:1", token="secret", timeout=PATIENCE)
        with pytest.raises(ResponseTimeout):
            asking.call("POST", f"{TOPIC}/publish", b"small", "avro/binary", timeout=Again())
        ended.set()
        assert away.requests
        assert not any("authorization" in each.headers for each in away.requests)


def test_what_has_no_number_is_sent_to_nobody_else(house: RunningService, two: Two, name: str) -> None:
    with Client(",".join(two.urls), timeout=1.0) as client, pytest.raises(ResponseTimeout):
        client.publish(name, PublishRequest([b"unnumbered"]))
    assert two.asked == []
    assert decode_publish_request(two.came[0].headers["content-type"], two.came[0].body).producer is None


def test_who_is_not_to_try_again_asks_nobody(two: Two, name: str) -> None:
    with Client(",".join(two.urls), timeout=1.0, retry=0) as client, pytest.raises(ResponseTimeout):
        client.producer(name, "p")
    assert two.asked == []


def test_one_publish_is_sent_once_and_ends_when_another_one_serves_the_topic(two: Two, name: str) -> None:
    numbered = PublishRequest([b"numbered"], producer="p", sequence_ids=[0], epoch=1)
    told = pytest.raises(ResponseTimeout, match=f"{two.urls[1]} serves this by now")
    with Client(",".join(two.urls), timeout=PATIENCE, retry=0) as client, told as caught:
        client.publish(name, numbered)
    assert not caught.value.definite
    assert (len(two.came), len(two.asked)) == (1, 1)


def test_a_poll_is_silent_only_when_its_wait_is_over(two: Two, name: str) -> None:
    with Client(",".join(two.urls), timeout=PATIENCE) as client:
        begun = time.monotonic()
        assert Reader(name, client=client).read(timeout=1.0) == []
        assert two.asked == [f"/v1/namespaces/default/topics/{name}/stats"]
        assert time.monotonic() - begun > 1.09


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(
    ("begun", "secured"),
    [
        *[(None, False), (b"", False), (b"HTTP/1.1 200 OK\r\nconte", False), (STOPPED, False)],
        *[pytest.param(begun, True, marks=pytest.mark.real) for begun in (None, STOPPED)],
    ],
)
def test_wherever_it_stops_its_client_goes_on(begun: bytes | None, secured: bool, ca: Authority) -> None:
    """None: not even what is sent to it is read."""
    server = None
    if secured:
        issued, server = ca.service(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(issued.certificate, issued.key)
    ended = threading.Event()

    def stops(connection: socket.socket) -> None:
        if begun is not None:
            while b"\r\n\r\n" not in connection.recv(1 << 16):
                pass
            connection.sendall(begun)
        ended.wait(PATIENCE)

    body = bytes(16 << 20) if begun is None else b"small"
    with listening(stops, server) as silent, fake_server(lambda _: SERVED, server) as other:
        asking = Transport(f"{silent},{other.url}", timeout=PATIENCE, trust=Trust.chosen(ca.file, None, None))
        with pytest.raises(ResponseTimeout, match=f"{other.url} serves this by now") as caught:
            asking.call("POST", f"{TOPIC}/publish", body, "avro/binary", timeout=Again())
        assert not caught.value.definite
        assert asking.call("POST", f"{TOPIC}/publish", b"small", "avro/binary", timeout=Again()) == b"{}"
        ended.set()


class Counting:
    """A watch that never looks."""

    def __init__(self) -> None:
        self.times_heard = 0

    def left(self) -> float:
        return PATIENCE

    def heard(self) -> None:
        self.times_heard += 1

    async def look(self, seconds: float) -> None:
        raise AssertionError(f"it looked, {seconds} s before its end")


@pytest.mark.real
@pytest.mark.parametrize("kind", [Plain, Awaited])
def test_whatever_comes_or_goes_is_heard(kind: type[Plain]) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    sent, size = Counting(), 32 << 20

    async def talk() -> int:
        stream = kind(here)
        reading = threading.Thread(target=lambda: [there.recv(1 << 20, socket.MSG_WAITALL) for _ in range(32)])
        reading.start()
        await stream.send(bytes(size), Deadline(PATIENCE, sent))
        for each in b"abc":
            there.sendall(bytes([each]))
            assert await stream.receive(1, Deadline(PATIENCE, come)) == bytes([each])
        reading.join()
        return come.times_heard

    come = Counting()
    assert (drive(talk()) if kind is Plain else asyncio.run(talk())) == 3
    assert sent.times_heard > 0, "it did not go at once"
    here.close()
    there.close()


def test_one_address_waits_as_it_did() -> None:
    ended = threading.Event()
    with listening(lambda _: ended.wait(PATIENCE)) as silent:
        with pytest.raises(ConnectionFailed, match="did not answer in time"):
            Transport(silent, timeout=1.0).call("POST", f"{TOPIC}/publish", b"{}", "avro/binary", timeout=Again())
        ended.set()
