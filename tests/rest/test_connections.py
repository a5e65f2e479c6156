"""What a connection may cost: time, size, and all of them together. Over bare sockets, as no client library would do it."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from oncelog.wire.media import AVRO, JSON
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, avro_publish, connected, head, read_answer
from tests.world.service import RunningService, running_service

PUBLISH = "/v1/namespaces/default/topics/refusals/publish"
SHORT = 0.6
"""Seconds that a head and a body may take."""


@pytest.fixture(scope="module")
def hurried() -> Iterator[RunningService]:
    """One that waits for nobody."""
    with running_service(max_wait_ms=5_000, header_timeout_seconds=SHORT, body_timeout_seconds=SHORT) as service:
        Topic(service.url, "refusals")
        yield service


def problem_in(answer: tuple[int, dict[str, str], bytes], status: int, code: str) -> None:
    assert answer[0] == status, answer
    assert answer[1]["content-type"] == "application/problem+json"
    problem = json.loads(answer[2])
    assert (problem["code"], problem["status"], problem["definite"]) == (code, status, True)


def test_a_head_that_does_not_arrive_in_time_ends_the_connection(hurried: RunningService) -> None:
    starts = [b"", b"P", b"POST " + PUBLISH.encode(), head("GET", "/healthz")[:-2], head("GET", "/healthz") + b"POST "]
    begun = time.monotonic()
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(hurried.url)) for _ in starts]
        for connection, start in zip(connections, starts, strict=True):
            connection.sendall(start)
        for connection, start in zip(connections, starts, strict=True):
            stream = connection.makefile("rb")
            if start.endswith(b"POST "):
                assert read_answer(stream)[0] == 200
            assert stream.read(1) == b""
    assert SHORT - 0.1 < time.monotonic() - begun < TIMEOUT / 2


def test_a_head_that_trickles_in_is_not_given_more_time(hurried: RunningService) -> None:
    with connected(hurried.url) as connection:
        connection.settimeout(0.05)
        sent, ended = 0, False
        while not ended and sent < 100:
            try:
                connection.sendall((b"GET /" + b"x" * 100)[sent : sent + 1])
                sent += 1
                ended = connection.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                ended = True
    assert ended


def test_a_body_that_does_not_arrive_in_time_is_a_408(hurried: RunningService) -> None:
    with ExitStack() as stack:
        streams = []
        declared, chunked = "content-length: 100", "transfer-encoding: chunked"
        for framing, body in ((declared, b""), (declared, b"{"), (chunked, b""), (chunked, b"1\r\n{")):
            connection = stack.enter_context(connected(hurried.url))
            connection.sendall(head("POST", PUBLISH, framing, "content-type: application/json") + body)
            streams.append(connection.makefile("rb"))
        for stream in streams:
            problem_in(read_answer(stream), 408, "request_timeout")
            assert stream.read(1) == b"", "what follows can no longer be told from the body"


def test_a_client_that_hangs_up_leaves_no_error_in_the_log_and_what_it_asked_for_is_done(
    running: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic(running.url, "gone")
    body = avro_publish(b"x" * 1_000)
    path = "/v1/namespaces/default/topics/gone/publish"
    publish = head("POST", path, f"content-type: {AVRO}", f"content-length: {len(body)}") + body
    for last in range(20):
        with connected(running.url) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset
            connection.sendall(publish + publish[: last * 5])
            if last:
                until(lambda last=last: topic.stats()["upcomingOffset"] >= last, "published")  # type: ignore[misc]
    until(lambda: running.server.under_way == 0)
    assert [each for each in caplog.records if each.levelno > logging.INFO and each.name != "oncelog.requests"] == []


def poll_for(wait_ms: int, name: str) -> bytes:
    body = b'{"wait": %d, "startFrom": %d}' % (wait_ms, 2**61)
    path = f"/v1/namespaces/default/topics/{name}/poll"
    return head("POST", path, f"content-type: {JSON}", f"content-length: {len(body)}") + body


def test_a_long_poll_is_not_cut_by_the_timer_of_the_head_nor_by_a_half_sent_one_behind_it(hurried: RunningService) -> None:
    begun = time.monotonic()
    with connected(hurried.url) as alone, connected(hurried.url) as connection:
        alone.sendall(poll_for(1_300, "refusals"))
        connection.sendall(poll_for(1_300, "refusals") + b"GET /hea")
        for each in (alone, connection):
            assert read_answer(each.makefile("rb"))[0] == 200
    assert time.monotonic() - begun >= 2 * SHORT, "twice the time that a head may take"


def test_a_body_that_waits_behind_a_long_poll_is_not_called_slow() -> None:
    with running_service(body_timeout_seconds=SHORT) as service, ThreadPoolExecutor(1) as pool:
        topic = Topic(service.url)
        body = avro_publish(b"x" * 3_000_000)
        path = "/v1/namespaces/default/topics/t/publish"
        publish = head("POST", path, f"content-type: {AVRO}", f"content-length: {len(body)}") + body
        with connected(service.url) as connection:
            sending = pool.submit(connection.sendall, poll_for(1_300, "t") + publish)
            stream = connection.makefile("rb")
            assert [read_answer(stream)[0], read_answer(stream)[0]] == [200, 200]
            sending.result(TIMEOUT)
        assert topic.stats()["upcomingOffset"] == 1


def test_bodies_beyond_what_may_be_in_hand_are_refused_as_overloaded_and_every_body_is_given_back() -> None:
    with running_service(max_inflight_bytes=50_000, max_request_bytes=40_000) as service:
        topic = Topic(service.url)
        for _ in range(5):
            streamed = topic.request("POST", "/publish", data=iter([b"x" * 15_000] * 3), headers={"content-type": JSON})
            assert assert_problem(streamed, 413, "request_too_large")["limit"] == 40_000
            assert_problem(topic.post("/publish", b"x" * 39_000), 400, "invalid_request")
        with connected(service.url) as slow:
            path = "/v1/namespaces/default/topics/t/publish"
            slow.sendall(head("POST", path, f"content-type: {JSON}", "content-length: 40000") + b"x" * 30_000)
            service.arrived(1)  # else this one's body may be the one that is refused
            answer = topic.publish("x" * 30_000)
            assert_problem(answer, 503, "overloaded")
            assert answer.headers["retry-after"] == "1"
            assert topic.publish("small").status_code == 200
        until(lambda: topic.publish("x" * 30_000).status_code == 200, "what the broken connection held is given back")
