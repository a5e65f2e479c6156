"""Room for request bodies: who comes slowly gives way to the others."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from oncelog.errors import OncelogError, Overloaded
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.transaction import Transaction
from oncelog_service.rest.exchange import Arriving, Exchange, Head
from oncelog_service.rest.limits import Bodies, slow_ones
from oncelog_service.traffic import Traffic
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, avro_poll, avro_publish, connected, done, head, read_answer
from tests.rest.test_crowds import assert_told, metric, served

PUBLISH = "/v1/namespaces/default/topics/t/publish"
POLL = "/v1/namespaces/default/topics/t/poll"
GRACE = 2.0


class Room:
    """Bodies over a clock that the test sets: 1 MB for one, 4 MB for all."""

    def __init__(self) -> None:
        self.now = 100.0
        self.traffic = Traffic()
        self.bodies = Bodies(10**6, 4 * 10**6, self.traffic, lambda: self.now)
        self.told: list[Exchange] = []

    def send(self, exchange: Exchange, size: int) -> None:
        self.bodies.take(exchange, b"x" * size)

        def gives_way(error: OncelogError) -> None:
            assert isinstance(error, Overloaded)
            self.told.append(exchange)
            self.bodies.give_back(exchange)

        self.bodies.is_still_arriving(exchange, gives_way)


def request() -> Exchange:
    return Exchange(Head("", "", b"", "", {}), True)


def test_the_slowest_are_those_whose_time_is_over_longest() -> None:
    arriving = {request(): Arriving(lambda _: None, good_until) for good_until in (5.0, 3.0, 9.0, 1.0)}
    first, second, third, fourth = arriving
    assert slow_ones(arriving, request(), 6.0) == [fourth, second, first]
    assert slow_ones(arriving, fourth, 4.0) == [second], "not the one that asks for room"
    assert slow_ones(arriving, request(), 1.0) == []
    assert third in slow_ones(arriving, request(), 10.0)


def test_who_stops_gives_way_once_its_grace_is_over_and_no_more_than_are_needed() -> None:
    room, stalled, new = Room(), [request() for _ in range(3)], request()
    for each in stalled:
        room.send(each, 10**6)
    room.now += GRACE - 0.1
    room.send(new, 1)
    with pytest.raises(Overloaded):
        room.send(new, 1)
    assert room.told == [], "each was fast a moment ago"
    room.now += 0.2
    room.send(new, 1)
    assert room.told == stalled[:1]
    assert room.traffic.body_bytes == 2 * 10**6 + 2
    assert room.traffic.refused == {"slow_body": 1, "bodies": 1}


def test_who_goes_on_fast_enough_keeps_its_room() -> None:
    room, fast, slow, new = Room(), request(), request(), request()
    for each in (fast, slow):
        room.send(each, 10**5)
    for _ in range(10):
        room.now += 1
        room.send(fast, 65_536)
        room.send(slow, 1_000)
    room.send(new, 10**6)
    for size in (900_000, 900_000, 400_000):
        room.send(request(), size)
    assert room.told == [slow]


def test_who_was_kept_waiting_has_its_grace_anew() -> None:
    room, waited = Room(), request()
    room.send(waited, 10**6)
    room.now += 60
    room.bodies.goes_on(waited)
    for _ in range(3):
        room.send(request(), 10**6)
    with pytest.raises(Overloaded):
        room.send(request(), 1)
    assert room.told == []


def test_what_comes_in_one_piece_finds_room_where_those_that_come_in_several_have_all_theirs() -> None:
    room = Room()
    arriving = [request() for _ in range(3)]
    for each in arriving:
        room.send(each, 10**6)
    late = request()
    room.send(late, 10)
    with pytest.raises(Overloaded):
        room.send(late, 10)
    room.bodies.take(request(), b"x" * 900_000)
    head_first = request()
    room.send(head_first, 0)
    room.bodies.take(head_first, b"x" * 100)
    for each in arriving:
        room.bodies.has_arrived(each)
    late = request()
    room.send(late, 10)
    room.send(late, 10)


@pytest.mark.real
def test_20_clients_that_stop_in_the_middle_of_a_body_have_nobody_else_refused_for_long(tmp_path: Path) -> None:
    with served(tmp_path, body_timeout_seconds=600, max_inflight_bytes=64 * 2**20) as service, ExitStack() as stack:
        topic = Topic(service.url)
        begin = head("POST", PUBLISH, "content-type: avro/binary", f"content-length: {8 * 2**20}")
        slow = [stack.enter_context(connected(service.url)) for _ in range(20)]
        for each in slow:
            each.sendall(begin + b"x" * 2**20)
        for each in slow:
            each.settimeout(1)
            with suppress(OSError):  # one of the last, which found no room
                each.sendall(b"x" * 5 * 2**20)
        done(topic.publish("small"))
        large = avro_publish(b"y" * 3_000_000)
        until(lambda: topic.post("/publish", large, "avro/binary").status_code == 200, "the slow ones give way")
        assert metric_of_slow(service.url) >= 1
        for _ in range(5):
            done(topic.post("/publish", large, "avro/binary"))
        stack.close()
        until(lambda: metric(service, "oncelog_body_bytes") == 0, "all is given back")


@pytest.mark.real
def test_polls_that_wait_with_large_transactions_leave_room_for_everybody_else(tmp_path: Path) -> None:
    """32 of them, of which sixteen would fill the room: those that find none to wait in are told so, and some wait on."""
    with served(tmp_path, max_inflight_bytes=64 * 2**20, max_wait_ms=600_000) as service, ExitStack() as stack:
        topic = Topic(service.url)
        done(topic.publish("there"))
        much = Transaction(1, 2**62, in_progress=range(2**40, 2**40 + 500_000)).to_bytes()
        assert 3_900_000 < len(much) < 8 * 2**20
        body = avro_poll(ONCELOG_AVRO, transaction=much, startOffset=1, wait=600_000)
        polls = [stack.enter_context(connected(service.url)) for _ in range(32)]
        cut = set()
        for each in polls:
            try:
                each.sendall(head("POST", POLL, f"content-type: {ONCELOG_AVRO}", f"content-length: {len(body)}") + body)
            except OSError:  # it was told long before it had sent all, and nobody listens any more
                cut.add(each)

        def refused() -> list[socket.socket]:
            found: list[socket.socket] = select.select(polls, [], [], 0)[0]
            return found

        until(lambda: len(refused()) >= 28, "a quarter of the room has place for four")
        until(lambda: metric(service, "oncelog_body_bytes") <= 16 * 2**20, "the others have given theirs back")
        assert len(refused()) < 32
        told = refused()
        large = avro_publish(b"y" * 6_000_000)
        for each in set(told) - cut:
            status, headers, answer = read_answer(each.makefile("rb"))
            assert (status, headers["retry-after"], b'"overloaded"' in answer) == (503, "1", True)
        done(topic.poll(startOffset=1, wait=1))
        for _ in range(5):
            done(topic.post("/publish", large, "avro/binary"))
        for each in set(polls) - set(told):
            assert read_answer(each.makefile("rb"))[0] == 200, "it has waited, and is answered what came"


def metric_of_slow(url: str) -> float:
    lines = Topic(url, create=False).session.get(url + "/metrics", timeout=TIMEOUT).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith('oncelog_refused_total{reason="slow_body"}'))


@pytest.mark.real
def test_a_slow_body_that_gives_way_is_told_so(tmp_path: Path) -> None:
    with served(tmp_path, body_timeout_seconds=600, max_inflight_bytes=2 * 2**20, max_request_bytes=2 * 2**20) as service:
        topic = Topic(service.url)
        with connected(service.url) as slow:
            slow.sendall(head("POST", PUBLISH, "content-type: avro/binary", f"content-length: {2 * 2**20}") + b"x" * 1_500_000)
            until(lambda: metric(service, "oncelog_body_bytes") >= 1_500_000, "it has come")
            assert_problem(topic.publish("x" * 1_000_000), 503, "overloaded")
            until(lambda: topic.publish("x" * 1_000_000).status_code == 200, "it gives way")
            slow.sendall(b"x" * 1_000)
            assert_told(slow)
