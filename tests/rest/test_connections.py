"""What a connection may cost: time, size, and all of them together. Over bare sockets, as no client library would do it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from oncelog.wire.media import AVRO, JSON
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, avro_publish, connected, head, read_answer
from tests.support import RunningService, ServiceProcess, running_service

PUBLISH = "/v1/namespaces/default/topics/refusals/publish"
POLL = "/v1/namespaces/default/topics/refusals/poll"


@pytest.fixture(scope="module")
def hurried() -> Iterator[RunningService]:
    """One that waits for nobody."""
    with running_service(max_wait_ms=5_000, header_timeout_seconds=0.8, body_timeout_seconds=0.8) as service:
        Topic(service.url, "refusals")
        yield service


def problem_in(answer: tuple[int, dict[str, str], bytes], status: int, code: str) -> None:
    assert answer[0] == status, answer
    assert answer[1]["content-type"] == "application/problem+json"
    problem = json.loads(answer[2])
    assert (problem["code"], problem["status"], problem["definite"]) == (code, status, True)


@pytest.mark.parametrize("start", [b"", b"P", b"POST " + PUBLISH.encode(), head("GET", "/healthz")[:-2]], ids=len)
def test_a_head_that_does_not_arrive_in_time_ends_the_connection(hurried: RunningService, start: bytes) -> None:
    begun = time.monotonic()
    with connected(hurried.url) as connection:
        connection.sendall(start)
        assert connection.recv(1000) == b""
    assert 0.7 < time.monotonic() - begun < TIMEOUT / 2


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


def test_a_half_sent_head_behind_a_whole_request_ends_the_connection_too(hurried: RunningService) -> None:
    with connected(hurried.url) as connection:
        connection.sendall(head("GET", "/healthz") + b"POST ")
        stream = connection.makefile("rb")
        assert read_answer(stream)[0] == 200
        begun = time.monotonic()
        assert stream.read(1) == b""
        assert time.monotonic() - begun < TIMEOUT / 2


@pytest.mark.parametrize("body", [b"", b"{"], ids=["not begun", "begun"])
@pytest.mark.parametrize("framing", ["content-length: 100", "transfer-encoding: chunked"])
def test_a_body_that_does_not_arrive_in_time_is_a_408(hurried: RunningService, body: bytes, framing: str) -> None:
    with connected(hurried.url) as connection:
        sent = b"%x\r\n%b\r\n" % (len(body), body) if body and "chunked" in framing else body
        connection.sendall(head("POST", PUBLISH, framing, "content-type: application/json") + sent)
        stream = connection.makefile("rb")
        problem_in(read_answer(stream), 408, "request_timeout")
        assert stream.read(1) == b"", "what follows can no longer be told from the body"


def test_a_request_whose_body_is_cut_off_is_not_obeyed(shared: RunningService, topic: Topic) -> None:
    path = "/v1/namespaces/default/topics/cut"
    for body in (b"", b"{"):
        with connected(shared.url) as connection:
            connection.sendall(head("PUT", path, "content-length: 2", "content-type: application/json") + body)
        time.sleep(0.1)
        answer = topic.session.get(shared.url + path, timeout=TIMEOUT)
        assert_problem(answer, 404, "topic_not_found")


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(shared: RunningService) -> None:
    for size in (100_001, 10**12, 10**30):
        with connected(shared.url) as connection:
            connection.sendall(head("POST", PUBLISH, f"content-length: {size}"))
            stream = connection.makefile("rb")
            status = read_answer(stream)
            if size < 10**20:
                problem_in(status, 413, "request_too_large")
            else:  # no number that a length can be
                problem_in(status, 400, "invalid_request")


def test_a_body_that_turns_out_too_large_is_refused(topic: Topic) -> None:
    answer = topic.request("POST", "/publish", data=iter([b"x" * 40_000] * 3), headers={"content-type": JSON})
    problem = assert_problem(answer, 413, "request_too_large")
    assert problem["limit"] == 100_000
    answer = topic.post("/publish", b"x" * 100_001)
    assert_problem(answer, 413, "request_too_large")


def test_a_body_of_exactly_the_limit_is_read(topic: Topic) -> None:
    assert_problem(topic.post("/poll", b"{}" + b" " * 99_998 + b"!"), 413, "request_too_large")
    assert topic.post("/poll", b"{}" + b" " * 99_998).status_code == 200


@pytest.mark.parametrize("pause", [0.0, 0.02], ids=["at once", "in pieces"])
def test_a_head_larger_than_64_kib_is_refused(shared: RunningService, pause: float) -> None:
    with connected(shared.url) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: oncelog\r\n")
        for _ in range(7):
            time.sleep(pause)
            connection.sendall(b"x-padding: " + b"x" * 10_000 + b"\r\n")
        connection.sendall(b"\r\n")
        problem_in(read_answer(connection.makefile("rb")), 400, "invalid_request")


def test_a_head_below_64_kib_is_read(shared: RunningService) -> None:
    with connected(shared.url) as connection:
        connection.sendall(head("GET", "/healthz", *["x-padding: " + "x" * 10_000] * 6))
        assert read_answer(connection.makefile("rb"))[0] == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST " + PUBLISH.encode() + b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=lambda garbage: repr(garbage[:12]),
)
def test_what_is_not_http_is_a_problem_too(shared: RunningService, garbage: bytes) -> None:
    with connected(shared.url) as connection:
        connection.sendall(garbage)
        stream = connection.makefile("rb")
        problem_in(read_answer(stream), 400, "invalid_request")
        assert stream.read(1) == b""


def test_pipelined_requests_are_answered_in_order(shared: RunningService) -> None:
    paths = ["/healthz", "/nothing", "/v1/namespaces", "/metrics", "/v1/namespaces/default/topics/missing"]
    with connected(shared.url) as connection:
        connection.sendall(b"".join(head("GET", path) for path in paths * 10))
        stream = connection.makefile("rb")
        answers = [read_answer(stream)[0] for _ in paths * 10]
    assert answers == [200, 404, 200, 200, 404] * 10


def test_publishes_in_one_pipeline_are_stored_in_order(shared: RunningService) -> None:
    topic = Topic(shared.url, "pipeline")
    bodies = [avro_publish(b"%d" % number) for number in range(200)]
    path = "/v1/namespaces/default/topics/pipeline/publish"
    parts = [head("POST", path, f"content-type: {AVRO}", f"content-length: {len(body)}") + body for body in bodies]
    with connected(shared.url) as connection:
        connection.sendall(b"".join(parts))
        stream = connection.makefile("rb")
        assert [read_answer(stream)[0] for _ in parts] == [200] * 200
    assert topic.payloads() == [str(number) for number in range(200)]


def test_a_client_that_hangs_up_leaves_no_error_in_the_log(tmp_path: Path) -> None:
    """In a process of its own, since only uvloop refuses to write to a connection that has ended."""
    service = ServiceProcess(tmp_path / "data")
    service.log_to = log = tmp_path / "log"
    with service:
        for _ in range(30):
            with connected(service.url) as connection:
                connection.sendall(head("GET", "/v1/namespaces") * 20)  # and closed with what came back unread: by a reset
        assert requests.get(service.url + "/healthz", timeout=TIMEOUT).status_code == 200
        assert service.stop() == 0
    logged = log.read_text()
    assert "Traceback" not in logged, logged[-3000:]


def test_garbage_behind_a_request_is_never_its_answer(shared: RunningService) -> None:
    """The 400 for the second must not say "certainly not done" of the first, which may well have been done."""
    Topic(shared.url, "first")
    body = avro_publish(b"x")
    request = (
        head("POST", "/v1/namespaces/default/topics/first/publish", f"content-type: {AVRO}", f"content-length: {len(body)}")
        + body
    )
    for _ in range(5):
        with connected(shared.url) as connection:
            connection.sendall(request + b"\x00\x01garbage\r\n\r\n")
            assert read_answer(connection.makefile("rb"))[0] in (0, 200)


def test_a_long_poll_is_not_cut_by_the_timer_of_the_head(hurried: RunningService) -> None:
    begun = time.monotonic()
    assert Topic(hurried.url, "refusals").read(wait=1_700) == []
    assert time.monotonic() - begun >= 1.65, "twice the time that a head may take"


def poll_for(wait_ms: int, name: str) -> bytes:
    body = b'{"wait": %d, "startFrom": %d}' % (wait_ms, 2**61)
    path = f"/v1/namespaces/default/topics/{name}/poll"
    return head("POST", path, f"content-type: {JSON}", f"content-length: {len(body)}") + body


def test_a_long_poll_is_answered_although_a_half_sent_head_stands_behind_it(hurried: RunningService) -> None:
    with connected(hurried.url) as connection:
        connection.sendall(poll_for(1_700, "refusals") + b"GET /hea")
        assert read_answer(connection.makefile("rb"))[0] == 200


def test_a_body_that_waits_behind_a_long_poll_is_not_called_slow() -> None:
    with running_service(body_timeout_seconds=1.0) as service, ThreadPoolExecutor(1) as pool:
        topic = Topic(service.url)
        body = avro_publish(b"x" * 3_000_000)
        path = "/v1/namespaces/default/topics/t/publish"
        publish = head("POST", path, f"content-type: {AVRO}", f"content-length: {len(body)}") + body
        with connected(service.url) as connection:
            sending = pool.submit(connection.sendall, poll_for(2_100, "t") + publish)
            stream = connection.makefile("rb")
            assert [read_answer(stream)[0], read_answer(stream)[0]] == [200, 200]
            sending.result(TIMEOUT)
        assert topic.stats()["upcomingOffset"] == 1


def test_a_long_poll_that_is_left_is_forgotten(shared: RunningService) -> None:
    topic = Topic(shared.url, "left")
    body = b'{"wait": 300}'
    for _ in range(20):
        with connected(shared.url) as connection:
            request = head(
                "POST", "/v1/namespaces/default/topics/left/poll", f"content-type: {JSON}", f"content-length: {len(body)}"
            )
            connection.sendall(request + body)
    assert topic.publish("x").status_code == 200
    assert topic.payloads() == ["x"]


def test_bodies_beyond_what_may_be_in_hand_are_refused_as_overloaded() -> None:
    with running_service(max_inflight_bytes=50_000, max_request_bytes=40_000) as service:
        topic = Topic(service.url)
        with connected(service.url) as slow:
            slow.sendall(head("POST", "/v1/namespaces/default/topics/t/publish", "content-length: 40000") + b"x" * 30_000)
            service.arrived(1)  # else this one's body may be the one that is refused
            answer = topic.publish("x" * 30_000)
            assert_problem(answer, 503, "overloaded")
            assert answer.headers["retry-after"] == "1"
            assert topic.publish("small").status_code == 200
        until(lambda: topic.publish("x" * 30_000).status_code == 200, "what the broken connection held is given back")


def test_refused_bodies_are_given_back(topic: Topic) -> None:
    with running_service(max_inflight_bytes=50_000, max_request_bytes=20_000) as service:
        own = Topic(service.url)
        for _ in range(10):
            assert (
                own.request("POST", "/publish", data=iter([b"x" * 15_000] * 2), headers={"content-type": JSON}).status_code == 413
            )
            assert_problem(own.post("/publish", b"x" * 19_000), 400, "invalid_request")
        assert own.publish("x" * 19_000).status_code == 200


def test_many_long_polls_at_once_hold_up_nobody(running: RunningService) -> None:
    topic = Topic(running.url, "many")
    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(lambda: Topic(running.url, "many", create=False).payloads(wait=60_000)) for _ in range(30)]
        running.arrived(30)
        assert topic.publish("here").status_code == 200
        assert [each.result(TIMEOUT) for each in waiting] == [["here"]] * 30
