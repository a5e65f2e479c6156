"""Brokers that are started, killed and started again on what they left, on loopback and in a folder of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

from tests.world.service import free_port

from benchmarks.brokers.jars import QUIET, class_path

_START_SECONDS = 300
_MEMORY = ["-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"]


class Broker:
    """A process of one node, and what it keeps."""

    name: ClassVar[str]

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """A fresh one, gone at the end with all it wrote."""
        with tempfile.TemporaryDirectory(prefix="oncelog-bench-", ignore_cleanup_errors=True) as home:
            broker = cls(Path(home))
            try:
                broker.start()
                yield broker
            finally:
                broker.end(signal.SIGKILL)

    def start(self) -> None:
        """And wait until it answers. Raises RuntimeError with the end of what it said if it does not."""
        log = self._home / "log"
        with log.open("ab") as said:
            self._process = subprocess.Popen(self._command(), cwd=self._home, stdout=said, stderr=said)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """SIGKILL too: what it was in the middle of stays as it is."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(60)

    def processor_seconds(self) -> float:
        """What it has used until now, also by threads that have ended."""
        assert self._process is not None
        return used_seconds(self._process.pid)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


def used_seconds(pid: int) -> float:
    """Processor time of a process with all threads that it has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Kafka(Broker):
    """KRaft: broker and controller in one process. Whether a topic is synced is the topic's: see `SYNCED`."""

    name = "Kafka"
    SYNCED: ClassVar[Mapping[str, str]] = {"flush.messages": "1"}
    """Settings of a topic whose messages are synced before they are acknowledged. Without them Kafka leaves it to the kernel."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.address = f"127.0.0.1:{free_port()}"
        self._controller = f"127.0.0.1:{free_port()}"
        self._classes = class_path("kafka")
        self._settings = home / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        # Any cluster's id; `random-uuid` would be another JVM.
        format_it = ["java", "-cp", self._classes, "kafka.tools.StorageTool", "format", "-t", "b25jZWxvZy1iZXNpZGU"]
        subprocess.run([*format_it, "-c", str(self._settings)], check=True, capture_output=True)

    def _properties(self) -> dict[str, object]:
        return {
            **{f"{of}.topic.replication.factor": 1 for of in ("offsets", "share.coordinator.state")},
            "transaction.state.log.replication.factor": 1,
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{self._controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self._home / "data",
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }

    def _command(self) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *_MEMORY, quiet, "-cp", self._classes, "kafka.Kafka", str(self._settings)]

    def _answers(self) -> bool:
        host, _, port = self.address.partition(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
            return True
        except OSError:
            return False


class Pulsar(Broker):
    """Standalone: broker, bookie and metadata in one process. Deduplication is on, the journal is synced before it answers."""

    name = "Pulsar"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        broker, web, self._bookie = free_port(), free_port(), free_port()
        self.address = f"pulsar://127.0.0.1:{broker}"
        self._web = f"http://127.0.0.1:{web}"
        self._classes = class_path("pulsar")
        self._settings = home / "standalone.conf"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in self._properties(broker, web).items()))

    def _properties(self, broker: int, web: int) -> dict[str, object]:
        alone = {f"managedLedgerDefault{of}": 1 for of in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
        return alone | {
            "clusterName": "standalone",
            "brokerServicePort": broker,
            "webServicePort": web,
            "bindAddress": "127.0.0.1",
            "brokerDeduplicationEnabled": "true",
            "transactionCoordinatorEnabled": "true",
            # As in the shipped standalone.conf, which is not in a jar, but for the first two:
            "journalSyncData": "true",  # there it is false
            "listeningInterface": "lo",  # there it is every one
            "allowLoopback": "true",
            "allowEphemeralPorts": "true",  # else another port at each start, and a bookie does not know itself again
            "journalMaxGroupWaitMSec": 1,
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
            "loadBalancerEnabled": "false",
            "subscriptionKeySharedUseConsistentHashing": "true",
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.99,
            # What nobody has subscribed to is kept, as with the others.
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
            "brokerDeleteInactiveTopicsEnabled": "false",
        }

    def _command(self) -> list[str]:
        opened = [f"java.base/{of}" for of in ("java.lang", "java.io", "java.nio", "java.util.zip", "sun.net")]
        opened += [f"java.base/jdk.internal.{of}" for of in ("loader", "misc", "platform")]
        opened += ["java.management/sun.management", "jdk.management/com.sun.management.internal"]
        command = ["java", *QUIET, *_MEMORY, "-Dio.netty.tryReflectionSetAccessible=true"]
        command += [f"--add-opens={each}=ALL-UNNAMED" for each in opened]
        command += ["-cp", self._classes, "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(self._settings)]
        command += ["--metadata-dir", str(self._home / "metadata"), "--bookkeeper-dir", str(self._home / "data")]
        return [*command, "--bookkeeper-port", str(self._bookie), "--no-functions-worker", "--advertised-address", "127.0.0.1"]

    def _answers(self) -> bool:
        """The namespace is made last."""
        try:
            urllib.request.urlopen(f"{self._web}/admin/v2/namespaces/public/default", timeout=1).close()
            return True
        except (OSError, urllib.error.HTTPError):
            return False
