"""A flood on one topic: what others send goes past it; who waits for a turn can go, be refused, or find things changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from oncelog_service import group_commit
from oncelog_service.bounds import turns
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch
from tests.access.carrying import Carrying
from tests.patience import PATIENCE, until
from tests.rest.talk import Topic, assert_problem, connected, done, head, read_answer
from tests.rest.test_atomic import AtomicCommits
from tests.world.disk import HeldStore
from tests.world.service import RunningService, running_service

LARGE = "x" * 1_000_000
"""More than half of what may be under way: it is alone."""


class Recorded(HeldStore):
    """Keeps the bytes of each topic's messages in each write that had any."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.written: list[list[int]] = []

    def write(self, batches: Sequence[Batch]) -> None:
        laid = [laid for batch in batches for laid in batch.laid]
        if laid:
            self.written.append([sum(len(value) for _, value in each.rows()) for each in laid])
        super().write(batches)


async def _waiting(service: Service) -> int:
    return service.turns.waiting


async def _handed_over(service: Service) -> int:
    """Messages to the quiet topic, which its first one opens."""
    log = service.opening.topics.logs.opened.get(("default", "quiet"))
    return 0 if log is None else log.topic.stamps.upcoming_offset


def waiting(service: RunningService) -> int:
    return service.on_loop(_waiting)


def waits(service: RunningService, *, at_least: int = 1) -> None:
    until(lambda: waiting(service) >= at_least, f"{at_least} bytes wait")


@contextmanager
def held(service: RunningService) -> Iterator[None]:
    """Somebody else has all there is to have."""

    async def begin(service: Service) -> turns.Turn:
        return service.turns.begin((("somebody", 10**9),))

    turn = service.on_loop(begin)

    async def end(service: Service) -> None:
        service.turns.end(turn)

    try:
        yield
    finally:
        service.on_loop(end)


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as service:
        yield service


def test_a_small_request_is_in_the_next_write_and_a_flood_has_no_more_in_it_than_its_bound() -> None:
    store = Recorded(Disk())
    with running_service(open_store=lambda: store) as service, ThreadPoolExecutor(9) as pool:
        Topic(service.url, "loud")
        quiet = Topic(service.url, "quiet")
        store.may.clear()
        flood = [pool.submit(Topic(service.url, "loud", create=False).publish, LARGE) for _ in range(8)]
        waits(service, at_least=7 * len(LARGE))
        small = pool.submit(quiet.publish, "small")
        until(lambda: service.on_loop(_handed_over) == 1, "nothing keeps it from being handed over")
        store.may.set()
        assert done(small.result(PATIENCE)).json()["receipts"][0]["offset"] == {"long": 0}
        assert [done(each.result(PATIENCE)).status_code for each in flood] == [200] * 8
        assert max(map(sum, store.written)) < 1.1 * len(LARGE)
        [at] = [at for at, sizes in enumerate(store.written) if min(sizes) < len(LARGE)]
        assert at <= 1, "one of the flood was written before it"
        assert waiting(service) == 0


def publish(service: RunningService) -> requests.Response:
    return Topic(service.url).publish(LARGE)


def store(service: RunningService) -> requests.Response:
    pointer = requests.post(service.url + "/v1/transactions", json={}, timeout=PATIENCE).json()["writePointer"]
    return Topic(service.url).store(pointer, LARGE)


def stage(service: RunningService) -> requests.Response:
    commits = AtomicCommits(service.url)
    commits.begin(id="c")
    return commits.stage("c", "t", 0, LARGE)


def commit(service: RunningService) -> requests.Response:
    return AtomicCommits(service.url).commit("c", {"t": {"messages": [LARGE]}, "u": {"messages": ["x"]}}, group="g")


@pytest.mark.parametrize("call", [publish, store, stage, commit])
def test_whatever_brings_messages_takes_its_turn(service: RunningService, call: Callable[..., requests.Response]) -> None:
    for name in "tu":
        Topic(service.url, name)
    with ThreadPoolExecutor(1) as pool:
        with held(service):
            answer = pool.submit(call, service)
            waits(service, at_least=len(LARGE))
            assert done(Topic(service.url, "v").publish("another topic's")).status_code == 200
            assert not answer.done()
        assert done(answer.result(PATIENCE)).status_code == 200
    assert waiting(service) == 0


BODY = json.dumps({"messages": [LARGE]}).encode()
PUBLISH = head(
    "POST", "/v1/namespaces/default/topics/t/publish", "content-type: application/json", f"content-length: {len(BODY)}"
)


def test_who_goes_while_waiting_for_a_turn_is_not_obeyed_and_gives_its_memory_back(service: RunningService) -> None:
    topic = Topic(service.url)
    traffic = service.service.traffic
    with held(service):
        with connected(service.url) as connection:
            connection.sendall(PUBLISH + BODY)
            waits(service)
            assert traffic.body_bytes == len(BODY)
        until(lambda: waiting(service) == 0, "it does not wait any more")
        until(lambda: traffic.body_bytes == 0, "its body is forgotten")
    assert topic.stats()["upcomingOffset"] == 0


def test_who_may_not_any_more_when_the_turn_comes_is_refused(tmp_path: Path) -> None:
    with running_service(audit_log=tmp_path / "audit.jsonl") as service, connected(service.url) as connection:
        ada = Carrying(service.url).holding("ada", "admin")
        ada.good("PUT", "/v1/namespaces/default/topics/t", json={})
        bob = ada.make("bob", "write:default/t")
        with held(service):
            connection.sendall(PUBLISH[:-2] + f"authorization: Bearer {bob['secret']}\r\n\r\n".encode() + BODY)
            waits(service)
            assert ada.revoke(bob["id"]).status_code == 200
        status, _, body = read_answer(connection.makefile("rb"))
        assert (status, json.loads(body)["code"]) == (401, "unauthorized")
        assert ada.good("GET", "/v1/namespaces/default/topics/t/stats")["upcomingOffset"] == 0


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_deleted_while_its_request_waits(service: RunningService, anew: bool) -> None:
    topic = Topic(service.url)
    done(topic.publish("before"))
    with ThreadPoolExecutor(1) as pool:
        with held(service):
            answer = pool.submit(Topic(service.url, create=False).publish, LARGE)
            waits(service)
            done(topic.request("DELETE"))
            if anew:
                done(topic.request("PUT", json={}))
        if not anew:
            assert_problem(answer.result(PATIENCE), 404, "topic_not_found")
            return
        assert done(answer.result(PATIENCE)).json()["receipts"][0]["offset"] == {"long": 0}
        assert topic.payloads() == [LARGE]


def test_who_waits_when_the_service_stops_is_told_that_nothing_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "OVERDUE_SECONDS", 3_600.0)  # longer than a stop waits, as where turn follows on turn
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service, ThreadPoolExecutor(3) as pool:
        Topic(service.url).publish("before")

        async def take_all(service: Service) -> None:
            service.turns.begin((("somebody", 10**9),))

        service.on_loop(take_all)
        answers = [pool.submit(Topic(service.url, create=False).publish, LARGE) for _ in range(3)]
        waits(service, at_least=3 * len(LARGE))
        metrics = requests.get(service.url + "/metrics", timeout=PATIENCE).text
        assert "\noncelog_waiting_requests 3.0\n" in metrics
        [size] = re.findall(r"^oncelog_waiting_bytes (.*)$", metrics, re.MULTILINE)
        assert float(size) == waiting(service) > 3 * len(LARGE)
        service.stop()
        for each in answers:
            refused = assert_problem(each.result(PATIENCE), 503, "storage_unavailable", definite=True)
            assert refused["detail"] == turns.STOPPING, "before it was begun"
    with running_service(open_store=lambda: MemoryStore(disk)) as service:
        assert Topic(service.url, create=False).payloads() == ["before"]


def test_one_topic_is_told_to_come_again_before_it_takes_all_the_room_to_wait() -> None:
    with running_service(max_inflight_bytes=8_000_000) as service, ThreadPoolExecutor(4) as pool:
        topic, other = Topic(service.url), Topic(service.url, "other")
        with held(service):
            flood = [pool.submit(Topic(service.url, create=False).publish, LARGE) for _ in range(3)]
            waits(service, at_least=3 * len(LARGE))
            with connected(service.url) as connection:
                body = json.dumps({"messages": [LARGE, LARGE[:100_000]]}).encode()
                connection.sendall(PUBLISH.replace(str(len(BODY)).encode(), str(len(body)).encode()) + body)
                waits(service, at_least=4 * len(LARGE))
                refused = topic.publish(LARGE)
                assert_problem(refused, 503, "overloaded")
                assert refused.headers["retry-after"] == "1"
                another = pool.submit(other.publish, LARGE)
                waits(service, at_least=5 * len(LARGE))
        assert {each.result(PATIENCE).status_code for each in (*flood, another)} == {200}
        assert service.service.traffic.refused["waiting"] == 1


def test_after_a_failed_write_everybody_is_answered_and_nobody_waits_for_ever() -> None:
    disk, failed = Disk(), []

    def before_sync(batches: Sequence[Batch]) -> None:
        if any(batch.laid for batch in batches) and not failed:
            failed.append(True)
            raise OSError("no")

    with running_service(open_store=lambda: HeldStore(disk)) as service, ThreadPoolExecutor(8) as pool:
        topic = Topic(service.url)
        with held(service):
            flood = [pool.submit(Topic(service.url, create=False).publish, LARGE) for _ in range(8)]
            waits(service, at_least=8 * len(LARGE))
            disk.before_sync = before_sync
        codes = [each.result(PATIENCE).status_code for each in flood]
        assert set(codes) <= {200, 503, 500}
        assert any(code != 200 for code in codes)
        until(lambda: topic.publish(LARGE).status_code == 200, "the store is open again")
        assert waiting(service) == 0
        assert topic.verify()["ok"] is True


def test_a_store_that_falls_behind_holds_up_what_is_large_and_not_what_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    class Behind(HeldStore):
        def behind(self) -> float:
            return seconds.pop() if seconds else 0.0

    monkeypatch.setattr(group_commit, "_BEHIND_SECONDS", 10_000.0)
    seconds: list[float] = []
    with running_service(open_store=lambda: Behind(Disk())) as service, ThreadPoolExecutor(1) as pool:
        topic = Topic(service.url)
        seconds.append(3_600.0)
        done(topic.publish("leaves it behind"))
        answer = pool.submit(Topic(service.url, create=False).publish, LARGE)
        waits(service)
        assert done(topic.poll()).status_code == 200
        assert done(Topic(service.url, "small").publish("s")).status_code == 200
        assert not answer.done()

        async def catch_up(service: Service) -> None:
            service.turns._go_on()

        service.on_loop(catch_up)
        assert done(answer.result(PATIENCE)).status_code == 200
