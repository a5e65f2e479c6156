"""A store in a process that forks, exits, is killed, or has children."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from oncelog import Client, Reader
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Table
from tests.patience import PATIENCE
from tests.world.crash import ROOT, seeded

pytestmark = pytest.mark.real


@contextmanager
def process(url: str, function: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.engine.processes", url, function]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as started:
        try:
            yield started
        finally:
            started.kill()


def lines_of(url: str, function: str) -> list[str]:
    with process(url, function) as started:
        out, err = started.communicate(timeout=PATIENCE)
        assert (started.returncode, err) == (0, "")
    return out.splitlines()


def test_a_forked_child_has_nothing_of_its_parents_store(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/store"
    parent, refused, holder, offset = lines_of(url, "forks")
    assert refused == (
        f"True {url} is opened by process {parent}, which this one was forked from, and one process owns a store: "
        "close the client before the fork, and make another one here"
    )
    assert holder == parent
    assert offset == "300"
    with Client(url) as client:
        assert client.stats("t").upcoming_offset == 300


def test_a_forked_child_keeps_no_connection_of_its_parent_open(tmp_path: Path) -> None:
    assert lines_of(f"sqlite://{tmp_path}/store", "cut") == ["True", "[]"]


def test_a_forked_child_that_outlives_its_parent_keeps_nobody_out(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/store"
    with process(url, "outlived") as started:
        child = int(started.stdout.readline())
        try:
            assert started.wait(PATIENCE) == -signal.SIGKILL
            with Client(url, retry=0) as client:
                assert client.topics() == ["t"]
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("scheme", "function"),
    [
        ("leveldb", "exits"),
        ("leveldb", "exits_with_an_engine"),
        ("sqlite", "exits_elsewhere"),
    ],
)
def test_a_process_that_ends_sends_what_waits_and_closes_its_store_then(tmp_path: Path, scheme: str, function: str) -> None:
    url = f"{scheme}://{tmp_path}/store"
    assert lines_of(url, function) == []
    with closing(store_opener(url)()) as store:
        assert list(store.scan(Table.SNAPSHOT, b"", b"\xff" * 64)), "it was closed cleanly"
    with Client(url) as client:
        assert client.stats("t").upcoming_offset == 300


def test_a_store_that_is_opened_first_while_the_process_ends_is_refused_in_one_sentence(tmp_path: Path) -> None:
    asks = f"""
import atexit
from oncelog import Client, errors

@atexit.register
def ask():
    try:
        Client("leveldb://{tmp_path}/store").topics()
    except errors.StoreNotOpened as error:
        print(error.definite, error.detail)
"""
    ended = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, cwd=ROOT, check=True, timeout=PATIENCE)
    assert ended.stderr == ""
    said = r"True a store cannot be opened while the process ends \(.*\): open it before, by a first call\n"
    assert re.fullmatch(said, ended.stdout)


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/store"
    acknowledged = -1
    with seeded() as rng:
        for _ in range(3):
            acknowledged = _killed_behind(url, acknowledged, rng)
            with Client(url) as client, Reader("t", start="earliest", client=client) as reader:
                upcoming = client.stats("t").upcoming_offset
                assert upcoming > acknowledged
                found = [message.payload for _, message in zip(range(upcoming), reader, strict=False)]
                assert found == [b"%d" % number for number in range(upcoming)]


def _killed_behind(url: str, acknowledged: int, rng: random.Random) -> int:
    """Has a process count on, and kills it at some moment; the last number that it has printed."""
    with process(url, "counts") as started:
        for _ in range(rng.randrange(1, 200)):
            acknowledged = int(started.stdout.readline())
        started.kill()
        rest = started.stdout.read().splitlines(keepends=True)
        return max([acknowledged, *(int(line) for line in rest if line.endswith("\n"))])
