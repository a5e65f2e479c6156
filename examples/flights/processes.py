"""The demo's processes: started, watched, killed, and none left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from oncelog import Client

_EXAMPLES = Path(__file__).parent.parent
START_SECONDS = 60.0
GROUP_SECONDS = 10.0
"""How long a JVM may take to end after its Python did."""


class Unexpected(Exception):
    """A process did what it should not."""


class Child:
    """One process. What it says on stdout, as lines of JSON, adds up to :attr:`report`; its stderr is kept in a file."""

    def __init__(self, name: str, command: list[str], logs: Path) -> None:
        self.name = name
        self.report: dict[str, Any] = {}
        self._reported = threading.Condition()
        self._silent = False
        """Whether it has closed its stdout, as it does when it ends."""
        self._stderr = logs / f"{name.replace(' ', '-')}.stderr"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(_EXAMPLES), os.environ.get("PYTHONPATH")]))}
        with self._stderr.open("ab") as stderr:
            # A session of its own: Ctrl-C is for the demo, which then ends its children itself.
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{") and line.endswith(b"}\n"):
                with self._reported:
                    self.report = self.report | json.loads(line)
                    self._reported.notify_all()
        with self._reported:
            self._silent = True
            self._reported.notify_all()

    def await_report(self, wanted: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """The report at once when it is as wanted: to kill at a moment that is over soon. Raises Unexpected if it never is."""
        with self._reported:
            self._reported.wait_for(lambda: wanted(self.report) or self._silent, seconds)
            if wanted(self.report):
                return self.report
        if self._silent:
            self._process.wait(seconds)
            self.check()
        raise Unexpected(f"{self.name} did not get to where it was to be killed; it said {self.report}")

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raises Unexpected if it ended with an error."""
        if self.exit_code:
            raise Unexpected(f"{self.name} ended with {self.exit_code}: {self._last_words()}")

    def kill(self) -> bool:
        """SIGKILL, to it and to what it has started. Whether it was still running."""
        return self._end(signal.SIGKILL) == -signal.SIGKILL

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        # Before it was waited for, no other process has its number. Its group has it until the last one of it has ended.
        if self._process.poll() is None:
            os.killpg(self._process.pid, how)
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        self._end_group()
        self._listener.join(5)
        return code

    def _end_group(self) -> None:
        """What it has started, a JVM, may live on for a moment, and write where files are about to be removed."""
        deadline = time.monotonic() + GROUP_SECONDS
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        return self._stderr.read_text(errors="replace")[-2_000:].strip() or "(it said nothing)"


class Crew:
    """All processes of the demo around one log."""

    def __init__(self, work: Path, store: str | None = None) -> None:
        """``store``: the URL of the service's; without it LevelDB, in ``work``."""
        work.mkdir(exist_ok=True)
        self._store = store or f"leveldb://{work / 'log'}"
        self.work = work
        self.database = work / "tables.db"
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._children: list[Child] = []

    def service(self) -> Child:
        """`oncelog serve`; returns when it answers."""
        child = self._start("service", "oncelog_service", "serve", "--port", str(self._port), "--store", self._store)
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            child.check()
            if time.monotonic() > deadline:
                raise Unexpected(f"the service does not answer at {self.url}")
            time.sleep(0.02)
        return child

    def producer(self, name: str, rows: int, batch: int, from_line: int | None = None) -> Child:
        """A process that publishes: from where the log ends, or from a line on whatever is there."""
        again = [] if from_line is None else ["--from-line", str(from_line)]
        return self._start(name, "flights.publish", "--url", self.url, "--rows", str(rows), "--batch", str(batch), *again)

    def reader(self, name: str, page: int) -> Child:
        """A process that reads and keeps the table."""
        return self._start(name, "flights.tally", "--url", self.url, "--database", str(self.database), "--page", str(page))

    def booker(self, name: str, bookings: int, stop: tuple[str, int] | None = None) -> Child:
        """A process that books, up to so many bookings in all. ``stop``: where it halts, and in which of its own."""
        where = [] if stop is None else ["--stop-at", stop[0], "--stop-in", str(stop[1])]
        database = ["--database", str(self.database)]
        return self._start(name, "flights.book", "--url", self.url, *database, "--bookings", str(bookings), *where)

    def producer_by_hour(self, rows: int) -> Child:
        """A process that publishes flights and weather in the order of their hours."""
        return self._start("producer", "flights.publish_by_hour", "--url", self.url, "--rows", str(rows))

    def streams(self, name: str, results: Path, batch: int, *, to_the_end: bool) -> Child:
        """A process with a Spark of its own. ``to_the_end``: it ends when everything is read, and compares."""
        end = ["--to-the-end"] if to_the_end else []
        return self._start(name, "flights.streams", "--url", self.url, "--to", str(results), "--max-offsets", str(batch), *end)

    def check(self) -> None:
        """Raises Unexpected if any process ended with an error that was not our doing."""
        for child in self._children:
            if child.exit_code not in (-signal.SIGKILL, -signal.SIGTERM):
                child.check()

    def dismiss(self) -> None:
        """End whatever is still running."""
        for child in self._children:
            if child.exit_code is None:
                child.stop()

    def _start(self, name: str, module: str, *arguments: str) -> Child:
        child = Child(name, [sys.executable, "-m", module, *arguments], self.work)
        self._children.append(child)
        return child

    def _healthy(self) -> bool:
        with Client(self.url) as client:
            return client.healthy()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
