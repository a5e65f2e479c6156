"""Answers that are not read: bounded in bytes and in time, and cut so that nobody takes them for whole."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncelog_service.rest.bounds.pace import Pace
from oncelog_service.rest.bounds.unread import Noted, Unread, slowest
from oncelog_service.traffic import Traffic
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, avro_poll, avro_publish, done, head, read_answer
from tests.rest.test_crowds import answered_to, metric, served
from tests.world.service import ServiceProcess

POLL = "/v1/namespaces/default/topics/t/poll"


class Client:
    """One that reads when it is told to."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ended = False

    def unread(self) -> int:
        return self.size

    def abort(self) -> None:
        self.ended = True


def test_the_slowest_reader_is_the_one_whose_time_is_over_first_and_that_waits_longest() -> None:
    a, b, c = Client(1), Client(1), Client(1)
    assert slowest({a: Noted(1, 5), b: Noted(1, 4), c: Noted(1, 4)}) is b


async def test_beyond_the_bound_who_reads_nothing_ends_before_who_reads_and_nobody_more_than_is_needed() -> None:
    traffic = Traffic()
    unread = Unread(100, traffic)
    unread.pace = Pace(1, 60)
    reading, stuck, new = Client(50), Client(40), Client(45)
    unread.begins(reading)
    unread.begins(stuck)
    await asyncio.sleep(0.01)
    reading.size = 30
    unread.begins(new)
    assert (reading.ended, stuck.ended, new.ended) == (False, True, False)
    assert traffic.unread_bytes == 75
    assert traffic.refused == {"unread": 1}
    for each in (reading, new, stuck):
        unread.ends(each)
        unread.ends(each)
    assert traffic.unread_bytes == 0


async def test_one_answer_alone_may_be_larger_than_the_bound() -> None:
    unread = Unread(100, Traffic())
    large = Client(1_000)
    unread.begins(large)
    assert not large.ended
    unread.begins(small := Client(1))
    assert (large.ended, small.ended) == (True, False)
    unread.ends(small)


async def test_a_byte_now_and_then_does_not_hold_on_and_a_steady_reader_does() -> None:
    unread = Unread(10_000, Traffic())
    unread.pace = Pace(100, 0.5)
    trickle, steady = Client(1_000), Client(4_000)
    unread.begins(trickle)
    unread.begins(steady)
    for _ in range(1_000):
        trickle.size -= 1
        steady.size = max(1, steady.size - 100)
        await asyncio.sleep(0.02)
        if trickle.ended:
            break
    assert (trickle.ended, steady.ended) == (True, False)
    unread.ends(steady)


async def test_what_only_reads_waits_until_there_is_room() -> None:
    unread = Unread(100, Traffic())
    full = Client(80)
    unread.begins(full)
    waiting = asyncio.ensure_future(unread.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    unread.ends(full)
    await asyncio.wait_for(waiting, TIMEOUT)


def asking(service: ServiceProcess, request: bytes) -> socket.socket:
    """A client that asks and does not read, with little room in the system's buffers."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(TIMEOUT)
    connection.connect(("127.0.0.1", service.port))
    connection.sendall(request)
    return connection


def resident(service: ServiceProcess) -> int:
    """Bytes of its own. Tables of LevelDB it has looked at are mapped, 45 MB of them here: they are the system's to drop."""
    lines = Path(f"/proc/{service.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def post(path: str, body: bytes, media: str = "avro/binary") -> bytes:
    return head("POST", path, f"content-type: {media}", f"content-length: {len(body)}") + body


BASE = "/v1/namespaces/default/topics/t"
MUCH = [
    post(POLL, avro_poll(limit=100_000)),
    post(POLL.replace("/t/", "/large/"), avro_poll(limit=500)),
    post(POLL, b'{"limit": 100000}', "application/json") * 4,
    head("GET", BASE + "/columns?first=0&upto=100000"),
]
"""Requests for much: in Avro, of few that are large, in JSON, in columns."""


@pytest.mark.real
def test_100_clients_that_never_read_cost_less_than_100_mb_and_end(tmp_path: Path) -> None:
    """It is 60 to 80 MB."""
    with served(tmp_path, cache_bytes=0) as service, ExitStack() as stack:
        topic = Topic(service.url)
        for _ in range(100):
            done(topic.post("/publish", avro_publish(*([b"x" * 100] * 1_000)), "avro/binary"))
        large = Topic(service.url, "large")
        for _ in range(60):
            done(large.post("/publish", avro_publish(*([b"x" * 16_384] * 50)), "avro/binary"))
        before = most = resident(service)
        clients = [stack.enter_context(asking(service, MUCH[each % len(MUCH)] * 3)) for each in range(100)]
        assert len(clients) == 100

        def settled() -> bool:
            nonlocal most
            most = max(most, resident(service))
            return metric(service, "oncelog_unread_bytes") == 0 and metric(service, "oncelog_connections") < 60

        until(lambda: metric(service, "oncelog_unread_bytes") > 0, "answers are not read")
        done(topic.publish("meanwhile"))
        until(settled, "those who do not read have ended")
        assert most - before < 100 * 10**6, f"{(most - before) / 10**6:.0f} MB"
        assert topic.payloads(limit=1) == ["x" * 100]


@pytest.mark.real
def test_an_answer_that_is_cut_off_passes_for_none(tmp_path: Path) -> None:
    with served(tmp_path, max_unread_bytes=2**16, max_poll_bytes=8 * 2**20) as service, ExitStack() as stack:
        topic = Topic(service.url)
        for _ in range(8):
            done(topic.post("/publish", avro_publish(b"x" * 1_000_000), "avro/binary"))
        first, second = (stack.enter_context(asking(service, post(POLL, avro_poll()))) for _ in range(2))
        until(lambda: metric(service, "oncelog_connections") <= 3 and ended(service) >= 1, "one is ended for the other")
        whole = []
        for each in (first, second):
            stream = each.makefile("rb")
            try:
                status, headers, body = read_answer(stream)
                whole.append(status == 200 and len(body) == int(headers["content-length"]))
            except OSError:
                whole.append(False)
        assert sorted(whole) == [False, True]


@pytest.mark.real
def test_who_reads_too_slowly_gives_its_place_to_another(tmp_path: Path) -> None:
    with served(tmp_path, max_connections=4, max_unread_bytes=2**30) as service, ExitStack() as stack:
        topic = Topic(service.url)
        for _ in range(8):
            done(topic.post("/publish", avro_publish(b"x" * 1_000_000), "avro/binary"))
        topic.session.close()
        until(lambda: metric(service, "oncelog_connections") == 1, "this one alone")
        for _ in range(4):
            stack.enter_context(asking(service, post(POLL, avro_poll()) * 2))
        # Where there is room for all that is unread, and a place for others, they have 60 s.
        until(lambda: answered_to(service, "127.0.0.2") == 200, "another one is served", seconds=40)
        counted = 'oncelog_refused_total{reason="slow_reader"}'
        until(lambda: metric(service, counted) > 0, "it is counted", despite=(AssertionError,))


def ended(service: ServiceProcess) -> float:
    lines = Topic(service.url, create=False).session.get(service.url + "/metrics", timeout=TIMEOUT).text.splitlines()
    return sum(
        float(line.split()[1])
        for line in lines
        if line.startswith(('oncelog_refused_total{reason="unread"', 'oncelog_refused_total{reason="slow_reader"'))
    )
