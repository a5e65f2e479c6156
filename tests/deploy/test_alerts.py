"""Each alert of deploy/prometheus, judged by a real Prometheus over a real service: quiet before its cause, firing after it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import TypeAlias

import pytest
import requests

from oncelog import Consumer, Producer
from oncelog_service.retention import Retention
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, StoreDamaged, StoreError
from oncelog_service.topics.directory import Directory
from tests.behaviours.test_full_disk import MIB, free_on, small_disk
from tests.cluster.instances import LEASE_SECONDS, Instance, instances
from tests.deploy.prometheus import MISSING, PROMETHEUS, PROMTOOL, RULES, Prometheus, running_prometheus
from tests.patience import PATIENCE, until
from tests.postgres import postgres_server
from tests.rest.talk import TIMEOUT, Topic, done
from tests.rest.test_transactions import Transactions
from tests.world.certificates import Authority
from tests.world.clock import ManualClock
from tests.world.service import RunningService, free_port, running_service

pytestmark = [pytest.mark.real, pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason=MISSING)]

Cause: TypeAlias = Callable[[], None]
"""Brings it about, or brings it about once more."""
Served: TypeAlias = RunningService | Instance
Scene: TypeAlias = Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[tuple[Served, Cause]]]

ALERTS: dict[str, Scene] = {}
"""Alert → what sets its scene."""
ALLOWED = {
    "OncelogStoreClosed": {"OncelogStoreFailed"},
    "OncelogStoreDamaged": {"OncelogStoreFailed", "OncelogStoreClosed"},
    "OncelogStoreFailed": {"OncelogStoreClosed"},
    "OncelogStoreStalled": {"OncelogSlowSync"},
    "OncelogDiskFull": {"OncelogDiskNearlyFull"},
    "OncelogSnapshotTooOld": {"OncelogTopicHeld"},
}
"""What may come with it. A scrape may be late on a busy machine, which looks as if the service were down."""


def sets(alert: str) -> Callable[[Callable[..., Iterator[tuple[Served, Cause]]]], Scene]:
    """The scene of this alert."""

    def noted(scene: Callable[..., Iterator[tuple[Served, Cause]]]) -> Scene:
        ALERTS[alert] = contextmanager(scene)
        return ALERTS[alert]

    return noted


@sets("OncelogDown")
def down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with running_service() as service:
        yield service, service.stop


@sets("OncelogStoreClosed")
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    disk, opens = Disk(), [True]

    def open_store() -> MemoryStore:
        if not opens[0]:
            raise StoreError("no such device")
        return MemoryStore(disk)

    with running_service(open_store=open_store) as service:
        topic = Topic(service.url)

        def cause() -> None:
            opens[0] = False
            disk.before_sync = _fail
            topic.publish("x")

        yield service, cause


@sets("OncelogStoreStalled")
def stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    disk, goes = Disk(), Event()
    with running_service(open_store=lambda: MemoryStore(disk)) as service, ThreadPoolExecutor(1) as pool:
        topic = Topic(service.url)

        def cause() -> None:
            disk.before_sync = lambda _: _ignore(goes.wait(PATIENCE))
            pool.submit(topic.publish, "x")

        try:
            yield service, cause
        finally:
            goes.set()


@sets("OncelogStoreFailed")
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service:
        topic = Topic(service.url)

        def cause() -> None:
            disk.before_sync = _fail
            topic.publish("x")
            disk.before_sync = None

        yield service, cause


@sets("OncelogStoreDamaged")
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    class Damaged(MemoryStore):
        def write(self, batches: Sequence[Batch]) -> None:
            if any(batch.laid for batch in batches):
                raise StoreDamaged("a table is damaged")
            super().write(batches)

    disk = Disk()
    with running_service(open_store=lambda: Damaged(disk)) as service:
        topic = Topic(service.url)
        yield service, lambda: _ignore(topic.publish("x"))


@sets("OncelogBackgroundFailed")
def background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    failing = [False]
    monkeypatch.setattr(Retention, "once", _raising(failing, Retention.once))
    with running_service(retention_seconds=0.1) as service:
        yield service, lambda: failing.__setitem__(0, True)


def _raising(failing: list[bool], real: Callable[..., object]) -> Callable[..., object]:
    async def round_(self: object, *given: object) -> object:
        if failing[0]:
            failing[0] = False
            raise ValueError("nobody thought of this")
        return await real(self, *given)  # type: ignore[misc]

    return round_


@sets("OncelogInternalErrors")
def internal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    async def names(self: Directory, namespace: str) -> list[str]:
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(Directory, "names", names)
    with running_service() as service:
        yield service, lambda: _ignore(requests.get(service.url + "/v1/namespaces/default/topics", timeout=TIMEOUT))


@contextmanager
def on_small_disk(tmp_path: Path, left: float) -> Iterator[tuple[Served, Cause]]:
    """Another program's file fills the disk until so many floors of it are free: what the store gives back moves nothing."""
    floor = 16 * MIB
    with (
        small_disk(tmp_path / "small", 96) as disk,
        running_service(store=f"leveldb://{disk}/data", min_free_bytes=floor) as service,
    ):
        yield service, lambda: _ignore((disk / "ballast").write_bytes(bytes(free_on(disk) - int(left * floor))))


@sets("OncelogDiskNearlyFull")
def nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with on_small_disk(tmp_path, left=1.5) as scene:
        yield scene


@sets("OncelogDiskFull")
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with on_small_disk(tmp_path, left=0.5) as scene:
        yield scene


@sets("OncelogSlowSync")
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service:
        topic = Topic(service.url)
        for _ in range(3):
            done(topic.publish("x"))

        def cause() -> None:
            disk.before_sync = lambda _: time.sleep(0.4)
            done(topic.publish("x"))

        yield service, cause


@sets("OncelogTopicHeld")
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    clock = ManualClock()
    with running_service(clock=clock) as service:
        topic, pointer = Topic(service.url, transactional="both"), Transactions(service.url).start(type="long")
        topic.publish_under(pointer, "x")
        clock.advance(200_000)
        yield service, lambda: clock.advance(101_000)


@sets("OncelogLagGrows")
def lags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with running_service() as service:
        topic = Topic(service.url)
        with Consumer("t", subscription="slow", start="earliest", url=service.url):
            pass
        done(topic.publish(*["x"] * 990))
        yield service, lambda: _ignore(done(topic.publish(*["x"] * 20)))


@sets("OncelogProducerFenced")
def fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with running_service() as service:
        topic = Topic(service.url)
        old, _ = (topic.good("POST", "/producers", json={"name": "p", "nonce": nonce})["epoch"] for nonce in ("one", "two"))

        def cause() -> None:
            assert topic.publish("x", producer="p", sequenceIds=[0], epoch=old).status_code == 403

        yield service, cause


@sets("OncelogConsumerFenced")
def fenced_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with running_service() as service:
        topic = Topic(service.url)
        for nonce in ("one", "two"):
            topic.good("POST", "/subscriptions", json={"name": "s", "nonce": nonce, "start": {"at": "earliest"}})

        def cause() -> None:
            assert topic.request("POST", "/subscriptions/s/receive", json={"epoch": 1}).status_code == 403

        yield service, cause


@sets("OncelogSequenceGaps")
def gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with running_service() as service:
        topic = Topic(service.url)
        epoch = topic.good("POST", "/producers", json={"name": "p", "nonce": "one", "gaps": "refuse"})["epoch"]
        topic.send("p", 0, epoch=epoch)

        def cause() -> None:
            assert topic.publish("x", producer="p", sequenceIds=[2], epoch=epoch).status_code == 409

        yield service, cause


@sets("OncelogRefuses")
def refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with running_service(max_request_bytes=100_000, max_inflight_bytes=2_000) as service:
        topic = Topic(service.url)

        def cause() -> None:
            assert topic.publish("x" * 50_000).status_code == 503

        yield service, cause


@sets("OncelogSnapshotTooOld")
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    clock = ManualClock()
    with running_service(clock=clock, snapshot_messages=10) as service:
        topic, pointer = Topic(service.url, transactional="both"), Transactions(service.url).start(type="long")
        topic.publish_under(pointer, "x")
        for _ in range(11):
            done(topic.publish(*["x"] * 10_000))
        yield service, lambda: clock.advance(3_601_000)


@sets("OncelogTransactionsUnreachable")
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    port = free_port()
    with (
        running_service(port=port) as alone,
        running_service(transactions_url=f"http://127.0.0.1:{port}") as service,
    ):
        yield service, alone.stop


@sets("OncelogInstanceMissing")
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    with instances(postgres_server().fresh_schema(), tmp_path, 2, lease_seconds=LEASE_SECONDS) as found:
        there, gone = found.all
        found.make_whole()
        with found.client(retry=PATIENCE) as client, Producer(found.topic_at(gone, client), client=client) as producer:
            producer.send(b"x")
        yield there, gone.kill


@sets("OncelogCertificateEnds")
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Cause]]:
    authority, clock = Authority(tmp_path), ManualClock(round(time.time() * 1000))
    issued = authority.issue("short", ips=["127.0.0.1"], ends=timedelta(days=15))
    with running_service(clock=clock, **issued.tls) as service:
        yield service, lambda: clock.advance(86_400_000)


def _fail(_: object) -> None:
    raise OSError(5, "Input/output error")


def _ignore(_: object) -> None:
    pass


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_quiet_before_its_cause_and_fires_after_it(
    alert: str, prometheus: Prometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ALERTS[alert](tmp_path, monkeypatch) as (service, cause):
        prometheus.reads(service.url)
        assert prometheus.firing(service.url).keys() <= {"OncelogDown"} - {alert}, "before anything has happened"
        url = service.url
        again = alert == "OncelogLagGrows"
        cause()

        def fires() -> bool:
            if again:
                cause()
            return alert in prometheus.firing(url)

        until(fires, f"{alert} fires", every=0.1)
        found = prometheus.firing(url)
        assert found.keys() - {alert, "OncelogDown"} <= ALLOWED.get(alert, set())
        assert "<no value>" not in str(found[alert]["annotations"])


def test_every_alert_has_a_scene() -> None:
    assert set(re.findall(r"- alert: (\w+)", RULES.read_text("utf-8"))) == ALERTS.keys()


def test_prometheus_own_checks_find_nothing(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    subprocess.run([PROMTOOL, "check", "rules", "--lint-fatal", str(RULES)], check=True, capture_output=True)
    with running_service() as service:
        Topic(service.url).send("p", 0)
        text = requests.get(service.url + "/metrics", timeout=TIMEOUT).content
    found = subprocess.run([PROMTOOL, "check", "metrics"], input=text, check=False, capture_output=True, text=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
