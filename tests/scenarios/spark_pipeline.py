"""A Spark pipeline between two topics, to be killed and started again on the same checkpoint; and what its end must look like."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tests.model.log import read_log
from tests.scenarios.spark_proxy import FaultProxy
from tests.spark.processes import living

SOURCE, TARGET = "source", "target"
BATCH = 50
"""Messages of a micro-batch."""
SECONDS = 600
"""Within which a pipeline must end; starting a session takes up to half a minute on a machine that is busy."""

_UNHEARD = "Python worker failed to connect back"
"""Spark's own limit for that is 10 s and cannot be set."""


class SparkPipeline:
    """Topic ``source`` → Spark → topic ``target``, through a proxy that can do harm. ``run`` starts it and waits for its end."""

    def __init__(self, folder: Path, url: str, proxy: FaultProxy) -> None:
        self.checkpoint = folder / "checkpoint"
        self.proxy = proxy
        self.url = url
        self.sink = "oncelog"
        self.read = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH), "minPartitions": "2"}
        self.write = {"producer": "pipeline", "chunkMessages": "5"}
        self._log = folder / "spark.log"
        self._process: subprocess.Popen[str] | None = None
        self._spared: set[int] = set()

    # --- its life

    def _start(self) -> subprocess.Popen[str]:
        """A session of its own, so that whoever kills it finds all of it."""
        plan = {
            "url": self.proxy.url, "source": SOURCE, "target": TARGET, "checkpoint": str(self.checkpoint),
            "sink": self.sink, "read": self.read, "write": self.write,
        }  # fmt: skip
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.scenarios.spark_driver", json.dumps(plan)],
                env=environment, cwd=root, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip

    def run(self) -> int:
        """Its exit code, -9 when it was killed; anew where Spark waited in vain for a Python process on a machine held up."""
        while True:
            before = len(self.log())
            self._process = self._start()
            code = self._process.wait(SECONDS)
            self.kill()  # what outlived the driver
            if code in (0, -9) or _UNHEARD not in self.log()[before:]:
                return code

    def finish(self) -> None:
        """The same, and it must end by itself and well."""
        code = self.run()
        assert code == 0, f"exit code {code}: {self.log()[-3_000:]}"

    def kill(self) -> None:
        """SIGKILL, all of it at once: driver, JVM, daemons, workers."""
        for pid in self._processes():
            if pid not in self._spared:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def freeze_jvm(self) -> None:
        """SIGSTOP to Spark itself: its Python processes go on, and it learns nothing of what they do."""
        for pid in self._processes():
            if "org.apache.spark.deploy.SparkSubmit" in _command(pid):
                os.kill(pid, signal.SIGSTOP)

    def kill_all_but_workers(self) -> None:
        """As a cluster may: nobody is left to tell the tasks' processes that they work for nothing."""
        processes = self._processes()
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in processes}
        daemons = [
            pid for pid in processes if "pyspark.daemon" in _command(pid) and "pyspark.daemon" not in _command(parents[pid])
        ]
        workers = {pid for pid in processes if parents[pid] in daemons}
        self._spared = workers
        for pid in (*daemons, *(pid for pid in processes if pid not in workers and pid not in daemons)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        threading.Timer(20, self._bury).start()

    def _bury(self) -> None:
        for pid in self._spared:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        """What it wrote to stderr, over all its lives."""
        return self._log.read_text() if self._log.exists() else ""

    def _processes(self) -> list[int]:
        assert self._process is not None
        return living(self._process.pid)

    # --- what it left

    def target(self) -> list[bytes]:
        """What is in the topic that it writes, in order."""
        return [message.payload for message in read_log(self.url, TARGET)]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
