"""Probes, and a stop in which nobody is left without an answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest
import requests

from oncelog.errors import StorageUnavailable
from oncelog.wire.media import JSON
from oncelog_service.bounds import room
from oncelog_service.cluster.leases import Leases
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, connected, head, read_answer
from tests.world.disk import Gate
from tests.world.service import RunningService, running_service

TOPIC = "/v1/namespaces/default/topics/t"


def get(service: RunningService, path: str) -> requests.Response:
    return requests.get(service.url + path, timeout=TIMEOUT)


def post(path: str, **body: object) -> bytes:
    sent = json.dumps(body).encode()
    return head("POST", path, f"content-type: {JSON}", f"content-length: {len(sent)}") + sent


def publish(*messages: str) -> bytes:
    return post(TOPIC + "/publish", messages=list(messages))


POLL = post(TOPIC + "/poll", wait=60_000, startFrom=2**61)


@contextmanager
def draining(service: RunningService) -> Iterator[None]:
    """It was told to stop, and pauses; at the end it is told again, which ends the pause."""
    service.stop()
    until(lambda: service.service.draining)
    yield
    service.stop()


def is_closed(service: RunningService) -> bool:
    parts = urlsplit(service.url)
    try:
        socket.create_connection((parts.hostname, parts.port or 0), timeout=TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was in the kernel's queue when that went; the next is refused
        return False
    return False


# --- probes


def test_the_probes_answer_everybody_also_a_head_and_say_nothing_secret() -> None:
    with running_service(token="t0k3n") as service:
        for path in ("/livez", "/readyz"):
            answer = get(service, path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
            answer = requests.head(service.url + path, timeout=TIMEOUT)
            assert (answer.status_code, answer.content) == (200, b"")
            assert requests.post(service.url + path, timeout=TIMEOUT).status_code == 405


def test_who_was_not_heard_of_for_so_long_that_others_may_serve_everything_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(_: object) -> None:
        raise StorageUnavailable("the database has not been heard of for too long")

    with running_service() as service:
        monkeypatch.setattr(Leases, "check_alive", gone)
        assert_problem(get(service, "/readyz"), 503, "storage_unavailable")
        assert get(service, "/livez").status_code == 200
        monkeypatch.undo()
        assert get(service, "/readyz").status_code == 200


def test_a_full_disk_is_said_and_ends_no_readiness() -> None:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk), min_free_bytes=1_000) as service:

        async def looked(each: Service) -> None:
            await room.look(each.room, disk.free, each.opening.writer.drained)

        disk.free = lambda: 999  # type: ignore[method-assign]
        service.on_loop(looked)
        assert (get(service, "/readyz").status_code, get(service, "/readyz").json()) == (200, {"status": "full"})
        assert get(service, "/livez").json() == {"status": "ok"}


# --- the pause


def test_while_it_pauses_it_is_not_ready_and_answers_on_each_time_with_the_connections_end() -> None:
    with running_service(drain_seconds=3_600) as service, connected(service.url) as before:
        topic = Topic(service.url, "t")
        stream = before.makefile("rb")
        before.sendall(head("GET", "/readyz"))
        status, headers, _ = read_answer(stream)
        assert (status, headers.get("connection")) == (200, None)
        with draining(service):
            problem = assert_problem(get(service, "/readyz"), 503, "storage_unavailable")
            assert problem["detail"] == "the service is stopping; others, or the next one in its place, answer"
            assert get(service, "/livez").status_code == get(service, "/healthz").status_code == 200
            answer = topic.publish("x")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            before.sendall(publish("y"))
            status, headers, _ = read_answer(stream)
            assert (status, headers["connection"]) == (200, "close")
            assert stream.read() == b""
            assert topic.payloads() == ["x", "y"]


@pytest.mark.parametrize("path", ["poll", "offsets", "receive"])
def test_who_waits_for_messages_when_the_stop_begins_has_an_empty_answer_at_once(path: str) -> None:
    with running_service(drain_seconds=3_600) as service, connected(service.url) as connection:
        topic = Topic(service.url, "t")
        topic.publish("x")
        asked = POLL
        if path == "offsets":
            asked = post("/v1/namespaces/default/offsets", topics={"t": {"after": 1}}, wait=60_000)
        if path == "receive":
            opened = topic.request("POST", "/subscriptions", json={"name": "s", "nonce": "n", "start": {"offset": 1}}).json()
            asked = post(TOPIC + "/subscriptions/s/receive", epoch=opened["epoch"], wait=60_000)
        connection.sendall(asked)
        service.arrived(1)
        with draining(service):
            status, headers, body = read_answer(connection.makefile("rb"))
            assert (status, headers["connection"]) == (200, "close"), body
            assert b'"payload"' not in body


# --- the end


def test_what_is_being_written_when_it_stops_is_answered_as_what_it_is() -> None:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service, connected(service.url) as connection:
        Topic(service.url, "t").session.close()
        gate = disk.before_sync = Gate()
        connection.sendall(publish("x"))
        assert gate.entered.wait(PATIENCE)
        service.stop()
        until(lambda: is_closed(service), "it takes no more connections")
        gate.opened.set()
        status, headers, body = read_answer(connection.makefile("rb"))
        assert (status, headers["connection"]) == (200, "close"), body
    with running_service(open_store=lambda: MemoryStore(disk)) as service:
        assert Topic(service.url, "t", create=False).payloads() == ["x"]


@pytest.mark.parametrize("begun", [0, 1, 30, 90])
def test_a_request_that_has_begun_to_arrive_or_whose_connection_has_just_been_taken_is_answered(begun: int) -> None:
    with running_service() as service, connected(service.url) as connection:
        Topic(service.url, "t").session.close()
        asked = publish("x")
        connection.sendall(asked[:begun])
        until(
            lambda: any(each._framing and each._framing.head_bytes == begun for each in service.server._shared.connections),
            "it has arrived",
        )
        service.stop()
        until(lambda: is_closed(service))
        connection.sendall(asked[begun:])
        status, headers, body = read_answer(connection.makefile("rb"))
        assert (status, headers["connection"]) == (200, "close"), body


def test_who_has_connected_and_was_not_taken_yet_when_it_stops_is_answered() -> None:
    with ExitStack() as open_, running_service() as service:
        Topic(service.url, "t").session.close()
        parts = urlsplit(service.url)

        async def crowd(_: Service) -> list[socket.socket]:
            """On the event loop, which takes nobody meanwhile."""
            found = [
                open_.enter_context(socket.create_connection((parts.hostname, parts.port or 0), TIMEOUT)) for _ in range(300)
            ]
            for each in found:
                each.sendall(head("GET", "/livez"))
            service.server.stop()
            return found

        crowded = service.on_loop(crowd)
        assert [read_answer(each.makefile("rb"))[0] for each in crowded] == [200] * 300


def test_nobody_who_is_silent_holds_up_a_stop() -> None:
    with running_service() as service, connected(service.url) as fresh, connected(service.url) as idle:
        idle.sendall(head("GET", "/livez"))
        assert read_answer(idle.makefile("rb"))[0] == 200
        until(lambda: len(service.server._shared.connections) == 2)
        service.stop()
        assert (fresh.recv(1), idle.recv(1)) == (b"", b"")
