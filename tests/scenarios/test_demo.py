"""`make demo` itself, on fewer flights: its own proof decides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog import Message, MessageId
from tests.patience import PATIENCE, until

pytestmark = pytest.mark.real

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
ONE = ("--act", "1", "--rows", "20000")
TWO = ("--act", "2", "--bookings", "50")


def demo(*options: str) -> str:
    """What it says when all of it is proved."""
    done = subprocess.run([sys.executable, DEMO, *options], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo_proves_that_every_flight_is_there_once_although_everything_is_killed() -> None:
    said = demo(*ONE)
    assert "Each of the 20,000 flights is there exactly once, in order." in said
    assert said.count("proved:") == 3
    assert "kill -9 service" in said


def test_the_demo_proves_that_a_table_and_a_topic_change_together_although_everything_is_killed() -> None:
    said = demo(*TWO)
    assert "Each of the 50 bookings is in the table and in the topic, exactly once" in said
    counts = {"proved:": 5, "kill -9 booker": 4, "is aborted: neither": 1, "is committed: both": 3}
    assert {each: said.count(each) for each in counts} == counts
    assert "kill -9 service" in said


@pytest.mark.slow
@pytest.mark.parametrize("act", [ONE, TWO], ids=["one", "two"])
def test_the_demo_proves_the_same_on_postgresql(act: tuple[str, ...]) -> None:
    assert "exactly once" in demo("--store", "postgresql", *act)


@pytest.mark.parametrize(
    ("lines", "found"),
    [([0, 1, 2, 3, 4], 0), ([0, 1, 2, 3], 1), ([0, 1, 2, 3, 4, 4], 1), ([0, 1, 1, 2, 3, 4], 4), ([0, 2, 1, 3, 4], 2)],
    ids=["as it should be", "one lost", "the last twice", "one twice", "two swapped"],
)
def test_the_proof_sees_what_is_lost_double_or_out_of_order(
    monkeypatch: pytest.MonkeyPatch, lines: list[int], found: int
) -> None:
    monkeypatch.syspath_prepend(DEMO.parent)
    from flights import proof
    from flights.data import PRODUCER, flights

    source = list(flights(5))
    log = []
    for offset, line in enumerate(lines):
        row = {"payload": source[line].payload, "key": source[line].airport.encode(), "sequenceId": line}
        log.append(Message({"id": bytes(MessageId(1, offset)), "offset": offset, "producer": PRODUCER, **row}))
    assert len(list(proof.differences(log, source))) == found


@pytest.mark.parametrize(
    ("table", "topic", "found"),
    [("123", "123", 0), ("123", "12", 1), ("12", "123", 2), ("13", "13", 1), ("123", "1223", 1), ("123", "213", 1)],
    ids=["as it should be", "only in the table", "only in the topic", "in neither", "twice in the topic", "in another order"],
)
def test_the_proof_sees_what_is_in_one_of_table_and_topic_only(
    monkeypatch: pytest.MonkeyPatch, table: str, topic: str, found: int
) -> None:
    monkeypatch.syspath_prepend(DEMO.parent)
    from flights.booking_proof import Booked, check_bookings

    rows, published = ([Booked(int(number), "UA1545 EWR-IAH", 1) for number in numbers] for numbers in (table, topic))
    assert len(check_bookings(rows, published, 3)) == found


def test_an_interrupted_demo_leaves_no_process_and_no_files_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, DEMO], env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if "kill -9 reader" in line)
        children = [Path(f"/proc/{pid}") for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]
        assert len(children) >= 2, "the service and a producer should be running"
        demo.send_signal(signal.SIGINT)
        assert demo.wait(PATIENCE) == 130
    until(lambda: not any(child.exists() for child in children), "all processes have ended")
    assert list(tmp_path.iterdir()) == []
