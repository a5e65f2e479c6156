"""`make demo` itself, on fewer flights: its own proof decides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncelog import Message, MessageId
from tests.patience import PATIENCE

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_proves_that_every_flight_is_there_once_although_everything_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, DEMO, "--act", "1", "--rows", "20000"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Each of the 20,000 flights is there exactly once, in order." in done.stdout
    assert done.stdout.count("proved:") == 3
    assert "kill -9 service" in done.stdout


def test_the_demo_proves_that_a_table_and_a_topic_change_together_although_everything_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, DEMO, "--act", "2", "--bookings", "50"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Each of the 50 bookings is in the table and in the topic, exactly once" in done.stdout
    assert done.stdout.count("proved:") == 5
    assert done.stdout.count("kill -9 booker") == 4
    assert done.stdout.count("is aborted: neither") == 1
    assert done.stdout.count("is committed: both") == 3
    assert "kill -9 service" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("act", [("--act", "1", "--rows", "20000"), ("--act", "2", "--bookings", "50")], ids=["one", "two"])
def test_the_demo_proves_the_same_on_postgresql(act: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, DEMO, "--store", "postgresql", *act], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactly once" in done.stdout


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([0, 1, 2, 3, 4], 0),
        ([0, 1, 2, 3], 1),
        ([0, 1, 2, 3, 4, 4], 1),
        ([0, 1, 1, 2, 3, 4], 4),
        ([0, 2, 1, 3, 4], 2),
    ],
    ids=["as it should be", "one lost", "the last twice", "one twice", "two swapped"],
)
def test_the_proof_sees_what_is_lost_double_or_out_of_order(
    monkeypatch: pytest.MonkeyPatch, lines: list[int], found: int
) -> None:
    monkeypatch.syspath_prepend(DEMO.parent)
    from flights import proof
    from flights.data import PRODUCER, flights

    source = list(flights(5))
    log = [
        Message(
            {
                "id": bytes(MessageId(1, offset)),
                "offset": offset,
                "payload": source[line].payload,
                "key": source[line].airport.encode(),
                "producer": PRODUCER,
                "sequenceId": line,
            }
        )
        for offset, line in enumerate(lines)
    ]
    assert len(list(proof.differences(log, source))) == found


@pytest.mark.parametrize(
    ("table", "topic", "found"),
    [
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 2, 3], [1, 2], 1),
        ([1, 2], [1, 2, 3], 2),
        ([1, 3], [1, 3], 1),
        ([1, 2, 3], [1, 2, 2, 3], 1),
        ([1, 2, 3], [2, 1, 3], 1),
    ],
    ids=["as it should be", "only in the table", "only in the topic", "in neither", "twice in the topic", "in another order"],
)
def test_the_proof_sees_what_is_in_one_of_table_and_topic_only(
    monkeypatch: pytest.MonkeyPatch, table: list[int], topic: list[int], found: int
) -> None:
    monkeypatch.syspath_prepend(DEMO.parent)
    from flights.booking_proof import Booked, check_bookings

    rows, published = ([Booked(number, "UA1545 EWR-IAH", 1) for number in numbers] for numbers in (table, topic))
    assert len(check_bookings(rows, published, 3)) == found


def test_an_interrupted_demo_leaves_no_process_and_no_files_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, DEMO], env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "kill -9 reader" in line:
                break
        children = _children(demo.pid)
        assert len(children) >= 2, "the service and a producer should be running"
        demo.send_signal(signal.SIGINT)
        assert demo.wait(PATIENCE) == 130
    assert [pid for pid in children if _runs(pid)] == []
    assert list(tmp_path.iterdir()) == []


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _runs(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True
