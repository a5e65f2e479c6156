"""A store that hangs: nothing fails, nothing is answered, and everybody who asks is told so."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import requests

from oncelog_service.group_commit import STALLED_SECONDS
from oncelog_service.health import writing_seconds
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Rows, Table
from tests.behaviours.cli.support import run
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, done
from tests.world.clock import ManualClock
from tests.world.service import RunningService, ServiceProcess, running_service

UNDER_WAY = "oncelog_write_under_way_seconds"
READ_UNDER_WAY = "oncelog_read_under_way_seconds"
BLKIO = Path("/sys/fs/cgroup/blkio")


class Hanging(MemoryStore):
    """Hangs, in whatever is asked of it on another thread than the event loop's."""

    goes = threading.Event()
    held: ClassVar[Counter[str]] = Counter()
    """What has begun to wait for that."""

    def write(self, batches: Sequence[Batch]) -> None:
        self.wait()
        super().write(batches)

    def look(self) -> None:
        self.wait()
        super().look()

    def get(self, table: Table, key: bytes) -> bytes | None:
        self.wait()
        return super().get(table, key)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        self.wait()
        yield from super().scan(table, start, stop, reverse=reverse)

    def size_bytes(self) -> int:
        self.wait()
        return 0

    def wait(self) -> None:
        name = threading.current_thread().name
        if name != "oncelog-test-service":
            self.held[name.rpartition("_")[0] or name] += not self.goes.is_set()
            assert self.goes.wait(PATIENCE)


def get(url: str, path: str) -> requests.Response:
    return requests.get(url + path, timeout=TIMEOUT)


def metric(url: str, name: str) -> float:
    (found,) = [line for line in get(url, "/metrics").text.splitlines() if line.startswith(f"{name} ")]
    return float(found.split()[1])


class HangingInReading(Hanging):
    """Hangs in reading alone."""

    def write(self, batches: Sequence[Batch]) -> None:
        MemoryStore.write(self, batches)


@contextmanager
def serving(kind: type[Hanging]) -> Iterator[tuple[RunningService, ManualClock]]:
    disk, clock = Disk(), ManualClock()
    Hanging.goes.set()
    with running_service(open_store=lambda: kind(disk), clock=clock, cache_bytes=0) as service:
        try:
            yield service, clock
        finally:
            Hanging.goes.set()


@pytest.fixture
def hanging() -> Iterator[tuple[RunningService, ManualClock]]:
    with serving(Hanging) as found:
        yield found


def test_a_store_that_hangs_is_said_wherever_one_looks_and_no_more_once_it_answers(
    hanging: tuple[RunningService, ManualClock], caplog: pytest.LogCaptureFixture
) -> None:
    service, clock = hanging
    topic, url = Topic(service.url), service.url
    done(topic.request("POST", "/subscriptions", json={"name": "s", "nonce": "n"}))
    for _ in range(2):
        done(topic.publish(*["x"] * 600))
    clock.advance(600_000)  # a lag, whose first message has to be read
    assert metric(url, UNDER_WAY) == 0
    assert get(url, "/readyz").status_code == 200
    Hanging.goes.clear()
    with ThreadPoolExecutor(40) as pool:
        written = pool.submit(Topic(url, create=False).publish, "held up")
        read = [pool.submit(Topic(url, create=False).poll, limit=1) for _ in range(35)]  # more than there are threads
        until(lambda: writing_seconds(service.service) > STALLED_SECONDS)
        until(lambda: sum(each.name.startswith("asyncio_") for each in threading.enumerate()) >= 6)
        assert_problem(get(url, "/readyz"), 503, "storage_unavailable")
        assert_problem(get(url, "/healthz"), 503, "storage_unavailable")
        assert get(url, "/livez").status_code == 200
        assert metric(url, UNDER_WAY) > STALLED_SECONDS
        assert metric(url, "oncelog_store_open") == 1
        clock.advance(1_001)
        overview = get(url, "/v1/overview").json()
        assert overview["status"] == "stalled"
        [alarm] = [each for each in overview["alarms"] if each["code"] == "store_stalled"]
        assert (alarm["severity"], alarm["about"]["stalledMs"] >= 1_000 * STALLED_SECONDS) == ("critical", True)
        told = run("doctor", url=url)
        assert (told.exit_code, "store_stalled" in told.output) == (12, True), told.output
        until(lambda: "what is written or read waits for it" in caplog.text)
        assert not written.done()
        Hanging.goes.set()
        done(written.result())
        assert {each.result().status_code for each in read} == {200}
    until(lambda: get(url, "/readyz").json() == {"status": "ok"}, "a look that hung has ended, too")
    clock.advance(1_001)
    assert "store_stalled" not in get(url, "/v1/alarms").text
    assert metric(url, UNDER_WAY) == 0
    until(lambda: "the store answers again" in caplog.text)
    assert caplog.text.count("what is written or read waits for it") == 1


def test_a_store_that_hangs_in_reading_alone_is_said_too_and_no_thread_is_spent_on_saying_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(HangingInReading) as (service, clock):
        topic, url = Topic(service.url), service.url
        done(topic.request("POST", "/subscriptions", json={"name": "s", "nonce": "n"}))
        for _ in range(2):
            done(topic.publish(*["x"] * 600))
        clock.advance(600_000)  # a lag, whose first message has to be read
        Hanging.goes.clear()
        until(lambda: service.service.looking.seconds > STALLED_SECONDS)
        done(topic.publish("written all the same"))
        Hanging.held.clear()
        for _ in range(3):
            clock.advance(1_001)
            overview = get(url, "/v1/overview").json()
            assert overview["status"] == "stalled"
            assert [
                each["about"]["stalledMs"] >= 1_000 * STALLED_SECONDS
                for each in overview["alarms"]
                if each["code"] == "store_stalled"
            ] == [True]
            assert metric(url, READ_UNDER_WAY) > STALLED_SECONDS
            assert_problem(get(url, "/readyz"), 503, "storage_unavailable")
        assert Hanging.held == {}
        until(lambda: "what is written or read waits for it" in caplog.text)
        Hanging.goes.set()
        until(lambda: get(url, "/readyz").status_code == 200)
        clock.advance(1_001)
        assert "store_stalled" not in get(url, "/v1/alarms").text


@contextmanager
def freezable(path: Path) -> Iterator[Path]:
    """A file system of its own, on which `fsfreeze` has writes hang. Skips where none may be mounted."""
    image, there = path / "image", path / "there"
    there.mkdir()
    image.write_bytes(bytes(32 * 2**20))
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, there]):
        try:
            subprocess.run([str(each) for each in command], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no file system may be made and mounted here")
    try:
        yield there
    finally:
        subprocess.run(["umount", "-l", there], check=True)


@pytest.mark.real
def test_a_disk_that_hangs_under_a_service_is_an_alarm_after_ten_seconds(tmp_path: Path) -> None:
    with freezable(tmp_path) as disk, ServiceProcess(disk / "data", min_free_bytes=0) as service:
        topic = Topic(service.url)
        done(topic.publish("x"))
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        try:
            with ThreadPoolExecutor(1) as pool:
                written = pool.submit(topic.publish, "held up")
                until(lambda: metric(service.url, UNDER_WAY) > 5, every=0.2)
                assert get(service.url, "/readyz").status_code == 200 or metric(service.url, UNDER_WAY) > 10
                until(lambda: metric(service.url, UNDER_WAY) > 10, every=0.2)
                assert_problem(get(service.url, "/readyz"), 503, "storage_unavailable")
                assert "store_stalled" in get(service.url, "/v1/alarms").text
                subprocess.run(["fsfreeze", "-u", disk], check=True)
                done(written.result())
        finally:
            subprocess.run(["fsfreeze", "-u", disk], check=False, capture_output=True)
        assert get(service.url, "/readyz").status_code == 200
        assert topic.payloads() == ["x", "held up"]
        assert service.stop() == 0


@contextmanager
def held_up(pid: int, disk: Path) -> Iterator[Callable[[], None]]:
    """Reads from this disk hang for a process, until what is given is called. Skips where that cannot be arranged."""
    group, device = BLKIO / f"oncelog-test-{pid}", subprocess.check_output(["findmnt", "-no", "MAJ:MIN", disk], text=True).strip()
    slow = group / "blkio.throttle.read_bps_device"

    def goes() -> None:
        slow.write_text(f"{device} 0")

    try:
        group.mkdir()
    except OSError:
        pytest.skip("no group of processes may be slowed down here")
    try:
        slow.write_text(f"{device} 1")  # a byte a second
        (group / "cgroup.procs").write_text(str(pid))
        yield goes
    finally:
        goes()
        (BLKIO / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@pytest.mark.real
def test_a_disk_that_hangs_in_reading_under_an_idle_service_is_an_alarm_too(tmp_path: Path) -> None:
    with freezable(tmp_path) as disk, ServiceProcess(disk / "data", min_free_bytes=0) as service:
        topic = Topic(service.url)
        done(topic.publish("x"))
        subprocess.run(["sync", "-f", disk], check=True)
        with held_up(service.pid, disk) as goes:
            until(lambda: metric(service.url, READ_UNDER_WAY) > 10, every=0.2)
            assert metric(service.url, UNDER_WAY) == 0
            assert_problem(get(service.url, "/readyz"), 503, "storage_unavailable")
            assert "store_stalled" in get(service.url, "/v1/alarms").text
            goes()
            until(lambda: get(service.url, "/readyz").status_code == 200)
        done(topic.publish("y"))
        assert topic.payloads() == ["x", "y"]
        assert service.stop() == 0
