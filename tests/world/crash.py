"""Services that are killed at random moments, which a seed brings back, and clients that are processes of their own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from oncelog import Client
from tests.patience import PATIENCE, until
from tests.world.service import ServiceProcess

ROOT = Path(__file__).parents[2]


@contextmanager
def seeded() -> Iterator[random.Random]:
    """A source of random numbers, the same ones for the same test, or others each time where SEEDS is "random".

    What fails meanwhile names its seed, which the environment variable KILL_SEED brings back.
    """
    drawn = random.SystemRandom().randrange(10**9) if os.environ.get("SEEDS") == "random" else None
    seed = int(os.environ.get("KILL_SEED") or drawn or zlib.crc32(os.environ.get("PYTEST_CURRENT_TEST", "").encode()))
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"KILL_SEED={seed}")
        raise


def kill_while_starting(service: ServiceProcess, seconds: float) -> None:
    """Start the service and kill it so soon that its recovery may be interrupted."""
    timer = threading.Timer(seconds, service.kill)
    timer.start()
    try:
        service.start()
    except RuntimeError:
        pass  # it was killed before it answered
    finally:
        timer.join()
        service.kill()  # where it was struck before there was any process


@contextmanager
def process(module: str, *arguments: object, unread_bytes: int = -1) -> Iterator[subprocess.Popen[str]]:
    """A client of a scenario as a process of its own; what is left of it at the end is killed.

    ``unread_bytes``: how much it may say that nobody has read yet, before it waits; a multiple of 4096.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, pipesize=unread_bytes) as started:
        try:
            yield started
        finally:
            started.kill()


class Worker(threading.Thread):
    """A client on a thread of its own: one attempt after the other, whatever is killed meanwhile, until told to stop."""

    def __init__(self, url: str, name: str, seed: int) -> None:
        super().__init__(name=name)
        self.failure: BaseException | None = None
        self.ended = 0
        """How many attempts are over."""
        self.random = random.Random(f"{seed}-{name}")
        self._url = url
        self._enough = threading.Event()

    def run(self) -> None:
        try:
            with Client(self._url, retry=PATIENCE) as client:
                while not self._enough.is_set():
                    self.attempt(client)
        except BaseException as error:
            self.failure = error

    def attempt(self, client: Client) -> None:
        """One more, and the note of it."""
        raise NotImplementedError

    def enough(self) -> None:
        """End after what is under way."""
        self._enough.set()


W = TypeVar("W", bound=Worker)


@contextmanager
def working(workers: list[W]) -> Iterator[list[W]]:
    """Have them run; they have ended when this does."""
    for each in workers:
        each.start()
    try:
        yield workers
    finally:
        for each in workers:
            each.enough()
        for each in workers:
            each.join(PATIENCE)


def wait_for_attempts(workers: Sequence[Worker], more: int) -> None:
    """However slow the machine: return when so many more of each are over."""
    wanted = [each.ended + more for each in workers]
    until(lambda: all(each.ended >= enough or each.failure for each, enough in zip(workers, wanted, strict=True)))
