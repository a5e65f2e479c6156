"""The real command line in processes of its own, and the same in this process where no signal is at stake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from oncelog import Client, Reader
from oncelog.errors import ProducerNotFound
from oncelog_service.cli import app
from tests.patience import PATIENCE, until

ONCELOG = [sys.executable, "-m", "oncelog_service"]


def run(*arguments: str, url: str | None = None, stdin: str | bytes = b"", env: dict[str, str] | None = None) -> Result:
    """Run in this process."""
    environment = {**({} if url is None else {"ONCELOG_URL": url}), **(env or {})}
    return CliRunner().invoke(app, list(arguments), input=stdin, env=environment, prog_name="oncelog")


def value(result: Result) -> Any:
    """The JSON that a successful run printed, and nothing else."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@contextmanager
def process(*arguments: str, url: str | None = None, cwd: Path | None = None, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run as a process with pipes; killed at the end if it still runs."""
    environment = {**os.environ, **({} if url is None else {"ONCELOG_URL": url}), **env}
    environment.pop("PYTHONUNBUFFERED", None)  # then Python has nothing left to write at the end
    pipe = subprocess.PIPE
    running = subprocess.Popen([*ONCELOG, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=cwd)
    late = threading.Timer(PATIENCE, running.kill)  # else a line that never comes is waited for without end
    late.start()
    try:
        yield running
    finally:
        late.cancel()
        if running.poll() is None:
            running.kill()
        running.communicate()


def interrupted(running: subprocess.Popen[bytes]) -> int:
    """Press Ctrl-C until it is heard, and the exit code: the first may come just before a wait begins, and end none."""
    end = time.monotonic() + PATIENCE
    while True:
        running.send_signal(signal.SIGINT)
        try:
            return running.wait(15)
        except subprocess.TimeoutExpired:
            assert time.monotonic() < end, "it does not hear"


@contextmanager
def ctrl_c(when: Callable[[], bool], times: int = 1) -> Iterator[threading.Event]:
    """In this block Ctrl-C is pressed, this many times, when it is so; one that comes too late does nothing. What is yielded is
    set once it has been pressed."""
    pressed = threading.Event()

    def press() -> None:
        until(when)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            pressed.set()
            time.sleep(1)  # two that come before the first is heard are one

    before = signal.signal(signal.SIGINT, lambda *_: None)
    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        yield pressed
    finally:
        pressing.join(PATIENCE)
        signal.signal(signal.SIGINT, before)


def last_persisted(url: str, topic: str, producer: str) -> int:
    """-1 when there is nothing."""
    with Client(url) as client:
        try:
            last = client.producer(topic, producer).last_persisted
        except ProducerNotFound:
            return -1
        return -1 if last is None else last


def payloads(url: str, topic: str) -> list[bytes]:
    """Everything in the topic, in order."""
    with Reader(topic, url=url, timeout=0) as reader:
        return [message.payload for message in reader]
