"""`examples/nightly_load/load.py`: whatever stops its loaders, the topic is the file."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from examples.nightly_load.load import OtherContent, lines_of, load

from oncelog import Client, Reader
from oncelog.errors import ConnectionFailed, OffsetMismatch
from oncelog.testing import OncelogService
from oncelog.wire.requests import PublishRequest, ReceiptRun

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
TOPIC = "loaded"
PATIENCE = 60
LINES = [f"line {number}".encode() for number in range(500)]


@pytest.fixture
def client(oncelog_service: OncelogService) -> Iterator[Client]:
    with Client(oncelog_service.url) as client:
        client.create_topic(TOPIC, {"check.expected.offsets": True})
        yield client


def stored(client: Client) -> list[bytes]:
    with Reader(TOPIC, client=client, timeout=0) as reader:
        return [message.payload for message in reader]


class Failing(Client):
    """A client whose publishes fail: "no" before the service has done them, "lost" behind that, "late": it gets through
    just before the next one."""

    def __init__(self, url: str, fates: Iterable[str]) -> None:
        super().__init__(url)
        self._fates = iter(fates)
        self._late: PublishRequest | None = None

    def publish(self, topic: str, request: PublishRequest, namespace: str = "default") -> list[ReceiptRun]:
        if self._late is not None:
            super().publish(topic, self._late, namespace)
            self._late = None
        fate = next(self._fates, "")
        if fate == "late":
            self._late = PublishRequest(list(request.payloads), expected_offset=request.expected_offset)
        runs = [] if fate in ("no", "late") else super().publish(topic, request, namespace)
        if fate:
            raise ConnectionFailed
        return runs


def test_a_load_that_is_stopped_anywhere_and_begun_again_puts_each_line_at_its_place_once(client: Client) -> None:
    random = Random(7)
    runs = 0
    while len(stored(client)) < len(LINES):
        runs += 1
        with closing(load(client, TOPIC, LINES, batch=random.randint(1, 50))) as loader:
            list(islice(loader, random.randint(1, 6)))
        present = stored(client)
        assert present == LINES[: len(present)]
    assert runs > 2
    assert stored(client) == LINES
    assert list(load(client, TOPIC, LINES)) == [len(LINES)], "there is nothing left to do"


@pytest.mark.parametrize("fates", ["no", "lost", "late", "last lost", "at random"])
def test_a_batch_whose_answer_was_lost_is_there_once(client: Client, monkeypatch: pytest.MonkeyPatch, fates: str) -> None:
    monkeypatch.setattr("examples.nightly_load.load.pause", lambda attempt, fraction: 0.0)
    random = Random(7)
    at_random = random.choices(["", "no", "lost"], [7, 1, 2], k=200)
    each = {"at random": at_random, "last lost": [""] * (len(LINES) // 10 - 1) + ["lost"]}.get(fates, [fates])
    with Failing(client.url, each) as failing:
        reached = list(load(failing, TOPIC, LINES, batch=10))
    assert reached == sorted(set(reached))
    assert reached[-1] == len(LINES)
    assert stored(client) == LINES


def test_the_slower_of_two_loaders_stops_and_both_begin_behind_what_the_topic_has(client: Client) -> None:
    client.publish(TOPIC, PublishRequest(head := [b"head", b"of the table"]))
    first, second = load(client, TOPIC, LINES, base=2, batch=10), load(client, TOPIC, LINES, base=2, batch=10)
    assert (next(first), next(second), next(first)) == (2, 2, 12)
    with pytest.raises(OffsetMismatch) as mismatch:
        next(second)
    assert (mismatch.value.expected, mismatch.value.actual) == (2, 12)
    list(first)
    assert stored(client) == [*head, *LINES]


def test_several_loaders_that_follow_each_other_load_every_line_once(client: Client) -> None:
    random = Random(7)
    loaders = [load(client, TOPIC, LINES, batch=size, follow=True) for size in (7, 20, 33)]
    while loaders:
        loader = random.choice(loaders)
        if next(loader, None) is None:
            loaders.remove(loader)
    assert stored(client) == LINES


@pytest.mark.parametrize(
    ("present", "base"),
    [([b"something else"], 0), (LINES[:3], 1), ([], 1), ([*LINES, b"more"], 0)],
    ids=["another file", "a base too high", "a base where nothing is yet", "a longer file"],
)
def test_a_topic_that_does_not_begin_as_the_file_does_is_left_alone(client: Client, present: Sequence[bytes], base: int) -> None:
    if present:
        client.publish(TOPIC, PublishRequest(present))
    with pytest.raises(OtherContent):
        list(load(client, TOPIC, LINES, base=base))
    assert stored(client) == list(present)


def test_the_command_line_loads_a_file_as_it_is(oncelog_service: OncelogService, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(b"a,b\n\n1,2\r\nno end")
    done = _start(oncelog_service.url, file)
    assert (*done.communicate(timeout=PATIENCE), done.returncode) == (b"0\n4\n", b"", 0)
    with Client(oncelog_service.url) as client:
        assert stored(client) == [b"a,b", b"", b"1,2\r", b"no end"]


def test_loaders_and_the_service_killed_at_random_moments_have_loaded_the_file_in_the_end(
    oncelog_service: OncelogService, client: Client, tmp_path: Path
) -> None:
    random, count = Random(7), 3_000
    file = tmp_path / "rows.txt"
    file.write_bytes(b"".join(b"row %d %s\n" % (number, b"." * (number % 90)) for number in range(count)))
    for nth in (20, 60):
        oncelog_service.faults.kill("publish", topic=TOPIC, nth=nth)
    for _ in range(4):
        loaders = _start_two(oncelog_service.url, file)
        assert loaders[0].stdout is not None
        loaders[0].stdout.readline()
        time.sleep(random.uniform(0.0, 0.2))
        for loader in loaders:
            loader.kill()
            loader.communicate()
    for loader in _start_two(oncelog_service.url, file):
        _, said = loader.communicate(timeout=PATIENCE)
        assert loader.returncode == 0, said
    assert stored(client) == list(lines_of(file))


def _start_two(url: str, file: Path) -> list[subprocess.Popen[bytes]]:
    return [_start(url, file, "--follow", "--batch", str(size)) for size in (15, 20)]


def _start(url: str, file: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "examples" / "nightly_load" / "load.py"), str(file), TOPIC, "--url", url, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
