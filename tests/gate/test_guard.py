"""Nothing of the gate reaches the real world, and what tries to is told which mark it needs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oncelog.process.clock import REAL as REAL_CLOCK
from tests.gate.guard import Real, check
from tests.gate.sockets import REAL
from tests.gate.time import Stuck
from tests.patience import until

ROOT = Path(__file__).resolve().parents[2]


def _bind() -> None:
    with REAL() as opened:
        opened.bind(("127.0.0.1", 0))


def _connect() -> None:
    with REAL() as opened:
        opened.connect(("127.0.0.1", 1))


@pytest.mark.parametrize(
    "reach",
    [
        _bind,
        _connect,
        os.fork,
        lambda: subprocess.run(["true"]),
        lambda: os.system("true"),
        lambda: os.kill(os.getpid(), signal.SIGUSR1),
    ],
)
def test_whoever_reaches_for_the_real_world_is_told_the_mark(reach: Callable[[], object]) -> None:
    with pytest.raises(Real, match=r"pytest\.mark\.real"):
        reach()
    with pytest.raises(Real):
        check()  # it would have failed this test, had it swallowed the error


def test_time_passes_without_being_waited_for() -> None:
    began, wall = time.monotonic(), time.time()
    time.sleep(3_600)
    assert [time.monotonic() - began, time.time() - wall] == pytest.approx([3_600, 3_600])


def test_clients_live_by_the_same_time() -> None:
    began = REAL_CLOCK.monotonic(), REAL_CLOCK.time()
    REAL_CLOCK.sleep(3_600)
    assert [REAL_CLOCK.monotonic() - began[0], REAL_CLOCK.time() - began[1]] == pytest.approx([3_600, 3_600])
    assert REAL_CLOCK.monotonic() == time.monotonic()


def test_what_a_callback_of_a_loop_raises_fails_the_test() -> None:
    def fails() -> None:
        raise ValueError("nobody hears of it")

    async def schedules() -> None:
        asyncio.get_running_loop().call_soon(fails)
        await asyncio.sleep(1.0)

    asyncio.run(schedules())
    with pytest.raises(ValueError, match="nobody hears"):
        check()


def test_a_task_that_goes_on_when_it_is_cancelled_is_named() -> None:
    async def goes_on() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100.0)

    loop = asyncio.new_event_loop()
    task = loop.create_task(goes_on())
    loop.run_until_complete(asyncio.sleep(1.0))
    with pytest.raises(Stuck, match="goes_on at test_guard"):
        loop.end()  # type: ignore[attr-defined]
    assert not task.done()


def test_loops_and_calls_that_block_share_one_time_and_one_order() -> None:
    told = []

    async def sleeps(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        told.append((name, round(time.monotonic() - began, 9)))

    began = time.monotonic()
    other = asyncio.new_event_loop()
    task = other.create_task(sleeps("other", 2.0))
    asyncio.run(sleeps("own", 3.0))
    until(task.done)
    assert told == [("other", 2.0), ("own", 3.0)]
    other.close()


def test_what_an_executor_was_asked_may_wait_for_the_loop() -> None:
    async def both() -> bool:
        event = threading.Event()
        asyncio.get_running_loop().call_later(5.0, event.set)
        return await asyncio.to_thread(event.wait, 10.0)

    loop = asyncio.new_event_loop()
    assert loop.done(loop.create_task(both()))  # type: ignore[attr-defined]
    loop.close()


def test_threads_run_one_at_a_time_and_wait_in_the_same_time() -> None:
    told = []
    lock = threading.RLock()

    def work(name: str, seconds: float) -> None:
        with lock:
            time.sleep(seconds)
            told.append((name, round(time.monotonic() - began, 9)))

    began = time.monotonic()
    started = [threading.Thread(target=work, args=each) for each in (("first", 3.0), ("second", 1.0))]
    for each in started:
        each.start()
    with ThreadPoolExecutor() as pool:
        told.append(("pool", pool.submit(lambda: time.sleep(2.0) or round(time.monotonic() - began, 9)).result()))
    for each in started:
        each.join()
    assert told == [("pool", 2.0), ("first", 3.0), ("second", 4.0)]


def test_whoever_waits_for_nothing_is_named() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck, match=r"waits_for_nothing at test_guard\.py"):
        asyncio.run(waits_for_nothing())


TESTS = """
import contextlib, os, pytest, time

def test_swallows():
    with contextlib.suppress(RuntimeError):
        os.fork()

@pytest.mark.real
def test_sleeps():
    began = time.monotonic()
    time.sleep(0.01)
    assert time.monotonic() > began
"""


@pytest.mark.real
def test_a_test_that_swallows_it_fails_and_one_that_is_marked_has_the_real_world(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-m", ""]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "the process forks (os.fork)" in done.stdout, done.stdout
