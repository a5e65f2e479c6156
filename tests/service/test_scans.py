"""Long scans: in slices, on threads of their own, and ended by a store that closes or by whoever asked having gone."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from oncelog.wire.requests import PublishRequest
from oncelog_service import reading
from oncelog_service.log import verify
from oncelog_service.log.verify import verify_log
from oncelog_service.reading import Scans, read
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Rows
from oncelog_service.workers import ThreadWorkers
from tests.patience import PATIENCE, until
from tests.service.house import opened
from tests.world.service import RunningService, running_service


async def test_scans_take_no_thread_from_other_reads() -> None:
    scans, let_go = Scans(ThreadWorkers()), threading.Event()
    held = [asyncio.ensure_future(scans.read(let_go.wait, PATIENCE)) for _ in range(50)]
    assert await asyncio.wait_for(read(lambda: "read"), PATIENCE) == "read"
    never = asyncio.ensure_future(scans.read(pytest.fail, "nobody waits for it any more"))
    await asyncio.sleep(0)
    never.cancel()
    let_go.set()
    assert await asyncio.gather(*held) == [True] * 50
    assert await scans.read(threading.active_count) > reading._SCANNING - 1


async def test_a_verification_holds_no_scan_open_between_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads its progress slowly, or not at all any more, would keep the store from being closed."""
    monkeypatch.setattr(verify, "_SLICE_ROWS", 10)
    running = 0

    class Counting(MemoryStore):
        def scan(self, *args: Any, **kwargs: Any) -> Rows:
            nonlocal running
            running += 1
            try:
                yield from super().scan(*args, **kwargs)
            finally:
                running -= 1

    disk = Disk()
    async with opened(disk) as house:
        for begin in range(0, 100, 4):
            await house.log.publish(PublishRequest([b""] * 4, "p", sequence_ids=list(range(begin, begin + 4))))
        steps = 0
        for findings in verify_log(Counting(disk), house.log):
            assert running == 0
            assert findings.messages <= 10 * (steps := steps + 1)
        assert (findings.messages, findings.problems) == (100, [])
        assert steps > 10


async def test_a_verification_that_is_given_up_before_its_first_step_watches_nothing_any_more() -> None:
    async with opened(Disk(), keyed=True) as house:
        verify_log(house.store, house.log).close()
        assert house.log.topic.keys is not None
        assert house.log.topic.watchers == house.log.topic.keys.watchers == []


def _reading(running: RunningService, request: bytes) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(request)
    return connection


def test_who_hangs_up_stops_what_only_it_waits_for() -> None:
    async def create(service: Service) -> None:
        await service.opening.topics.changes.create("default", "t", {})
        await (await service.opening.topics.logs.open("default", "t")).publish(PublishRequest([b"x"] * 100))

    with running_service() as running:
        running.on_loop(create)
        body = b'{"startOffset": 100, "wait": 60000}'
        head = (
            b"POST /v1/namespaces/default/topics/t/%s HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        )
        poll = _reading(running, head % (b"poll", len(body), body))
        begun, let_go = threading.Event(), threading.Event()
        steps = 0

        def hold() -> None:
            nonlocal steps
            steps += 1
            begun.set()
            let_go.wait(PATIENCE)

        folded = verify._fold_slice

        def slow(*args: Any) -> bytes | None:
            hold()
            folded(*args)
            return b"\x00" * 10  # from the beginning, again and again

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verify, "_fold_slice", slow)
            verifying = _reading(running, head % (b"verify", 0, b""))
            begun.wait(PATIENCE)
            running.arrived(2)
            verifying.close()
            poll.close()
            until(lambda: running.server.under_way == 0, "both are stopped")
            before = steps
            let_go.set()
            running.on_loop(lambda service: service.scans.read(int))
            assert steps == before == 1
