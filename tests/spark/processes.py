"""`oncelog pipeline …` in a session of its own, as on a terminal: what interrupts or kills it reaches driver, JVM and workers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oncelog.spark.session import SMALL
from tests.behaviours.cli.support import ONCELOG

SMALL_SPARK = [text for name, value in SMALL.items() for text in ("--conf", f"{name}={value}")]
SECONDS = 600
"""Within which a pipeline of a test has come some way further, with a Spark of its own, on a machine that is busy."""


def living(session: int) -> list[int]:
    """The processes of a session; of those that have ended and nobody has waited for yet, none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state not in "ZX":
                    found.append(int(entry.name))
    return found


class Command:
    """One that runs. ``log`` gets what it says on stderr."""

    def __init__(self, url: str, log: Path, *arguments: str | Path) -> None:
        whole = [*ONCELOG, "pipeline", *map(str, arguments), "--url", url, *SMALL_SPARK]
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True)

    def said(self) -> str:
        return self._log.read_text()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def result(self, code: int = 0) -> str:
        """What it prints when it ends by itself, with this code."""
        stdout, _ = self._process.communicate(timeout=SECONDS)
        assert self._process.returncode == code, self.said()[-3_000:]
        return stdout

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self._process.pid, signal.SIGINT)

    def processes(self) -> list[int]:
        return living(self._process.pid)

    def kill(self) -> None:
        """SIGKILL, until nothing of it is left."""
        while pids := self.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)
        self._process.wait(SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def command(url: str, log: Path, *arguments: str | Path) -> Iterator[Command]:
    """Killed at the end if it still runs."""
    running = Command(url, log, *arguments)
    try:
        yield running
    finally:
        running.kill()
