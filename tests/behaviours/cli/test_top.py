"""`oncelog top`: what goes on, on a terminal and without one."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator

import pytest

from oncelog import Client, Producer
from oncelog_service.cli.health.top import bars, line, rate
from tests.behaviours.cli.support import ONCELOG, interrupted, process, run, value
from tests.patience import until
from tests.world.service import RunningService, running_service


@pytest.fixture(scope="module")
def busy() -> Iterator[RunningService]:
    """A service with two samples, and messages between them."""
    with running_service() as service, Client(service.url) as client:
        until(lambda: client.overview().sample)
        client.create_topic("flights")
        with Producer("flights", name="p", client=client) as producer:
            producer.send_batch([b"x" * 100] * 500, sequence_ids=range(500))
            producer.send(b"x" * 100, sequence_id=499)
        number = client.overview().sample.number
        until(lambda: client.overview(after=number, wait=10).history)
        yield service


def test_once_it_shows_numbers_topics_and_alarms(busy: RunningService) -> None:
    shown = run("top", "--once", url=busy.url)
    assert shown.exit_code == 0
    for words in ("ok", "default/flights", "no alarms", "sync", "p99", "connections", "1 open, 0 held"):
        assert words in shown.stdout
    found = value(run("top", "--once", "--json", url=busy.url))
    assert found["topics"][0]["name"] == "flights"
    assert [each["number"] for each in found["history"]] == list(range(1, found["sample"]["number"] + 1))
    rates = [each["messages_in"] for each in found["history"]]
    assert max(each for each in rates if each is not None) > 0
    assert max(each["duplicates"] or 0 for each in found["history"]) > 0


@pytest.mark.real
def test_without_a_terminal_it_prints_lines_until_ctrl_c(busy: RunningService) -> None:
    with process("top", "--interval", "0.5", url=busy.url) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline().decode() for _ in range(3)]
        assert interrupted(running) == 0
        assert b"Traceback" not in running.stderr.read()  # type: ignore[union-attr]
    assert all(" ok in " in each for each in lines)


@pytest.mark.real
def test_on_a_terminal_it_is_shown_in_place_and_ctrl_c_ends_it(busy: RunningService) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "ONCELOG_URL": busy.url, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    running = subprocess.Popen([*ONCELOG, "top", "--interval", "0.5"], stdout=theirs, stderr=theirs, stdin=theirs, env=env)
    os.close(theirs)
    seen = b""
    try:
        while b"default/flights" not in seen:
            seen += os.read(ours, 65_536)
        assert interrupted(running) == 0
    finally:
        running.kill()
        running.wait()
        os.close(ours)
    assert b"\x1b[?1049h" in seen, "the screen is its own, and given back"


def test_without_a_service_it_says_so() -> None:
    assert run("top", "--once", url="http://127.0.0.1:1").exit_code == 3


def test_what_is_not_counted_is_no_zero(busy: RunningService) -> None:
    assert (rate(None), rate(0), rate(0.25), rate(1234.5)) == ("-", "0", "0.25", "1,234")
    assert bars([]) == bars([None, 0]) == ""
    assert bars([0, None, 4, 8]) == "▁ ▅█"
    with Client(busy.url) as client:
        overview = client.overview()
    assert "sync p99 -" in line(overview.model_copy(update={"sample": overview.sample.model_copy(update={"sync_p99_ms": None})}))


@pytest.mark.real
def test_lines_say_which_alarms_come_and_go(busy: RunningService) -> None:
    with process("top", "--interval", "0.5", "--json", url=busy.url) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["alarms"] == []
        assert interrupted(running) == 0
