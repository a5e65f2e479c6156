"""A line of the log: on one line whatever it says, with its time and zone, and with the request that it is about."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator

import pytest

from oncelog_service.logs import Asking, JsonLines, TextLines, Unhurried, asking, begin
from tests.patience import until

PATH = {"namespace": "default", "topic": "orders"}


@pytest.fixture
def asked() -> Iterator[Asking]:
    now = Asking("r-1", "ada", PATH)
    token = asking.set(now)
    yield now
    asking.reset(token)


def record(message: str, *args: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("oncelog_service.x", logging.WARNING, "x.py", 1, message, args, None)
    made.created = 1_795_500_000.25
    if fields:
        made.__dict__["fields"] = fields
    return made


def failed() -> logging.LogRecord:
    made = record("it failed")
    try:
        raise ValueError("a\nb")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_a_line_has_its_time_with_its_zone() -> None:
    assert TextLines().format(record("%d bytes", 7)) == "2026-11-24T06:00:00.250+00:00 WARNING oncelog_service.x: 7 bytes"


def test_a_line_names_the_request_that_it_is_about(asked: Asking) -> None:
    assert TextLines().format(record("x")).endswith("x: x [request=r-1 principal=ada topic=default/orders]")
    told = json.loads(JsonLines().format(record("x", ms=1.5)))
    assert told == {
        "time": "2026-11-24T06:00:00.250+00:00", "level": "WARNING", "logger": "oncelog_service.x", "message": "x",
        "request": "r-1", "principal": "ada", "topic": "default/orders", "ms": 1.5,
    }  # fmt: skip


def test_what_is_not_known_is_not_said() -> None:
    token = asking.set(Asking("r-1", "", {}))
    assert TextLines().format(record("x")).endswith("x: x [request=r-1]")
    asking.reset(token)


@pytest.mark.parametrize(
    "end",
    [
        "\n",
        "\r",
        "\x0b",
        "\x0c",
        "\x1b[2J",
        "\x85",
        "\x9b2J",
        "\x90",
        "\u2028",
        "\u2029",
        "\u202e",
        "\u2066",
        "\u200b",
        "\x00",
        "\x7f",
    ],
)
def test_a_clients_words_are_no_line_of_their_own(end: str) -> None:
    token = asking.set(Asking("r-1", f"a{end}b", {"namespace": "default", "topic": f"t{end}"}))
    try:
        lines = TextLines().format(record("said %s", f"a{end}2026-11-24 forged", path=f'/"{end}]'))
    finally:
        asking.reset(token)
    assert len(lines.splitlines()) == 1
    assert end not in lines
    assert json.loads(JsonLines().format(record("said %s", f"a{end}b")))["message"] == f"said a{end}b"


def test_a_word_that_holds_a_space_or_a_bracket_is_quoted(asked: Asking) -> None:
    line = TextLines().format(record("x", path="/a b", empty="", bracket="]", plain="/v1"))
    assert line.endswith('path="/a b" empty="" bracket="]" plain=/v1]')


def test_a_traceback_follows_indented_or_as_one_value() -> None:
    first, *trace = TextLines().format(failed()).split("\n")
    assert first.endswith("it failed")
    assert all(line.startswith("  ") for line in trace)
    assert "ValueError: a" in trace[-2]
    text = JsonLines().format(failed())
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: a\nb")


def test_what_a_request_awaits_inherits_it_and_its_neighbour_does_not() -> None:
    async def answer(name: str) -> str:
        asking.set(Asking(name, "", {}))
        await asyncio.sleep(0)
        return TextLines().format(record("x"))

    async def both() -> list[str]:
        return await asyncio.gather(answer("one"), answer("two"))

    assert [re.findall("request=(.*)]", line) for line in asyncio.run(both())] == [["one"], ["two"]]


def test_what_is_logged_can_be_set_anew(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        begin("warning", "text")
        logging.getLogger("a").info("quiet")
        begin("info", "json")
        logging.getLogger("a").info("loud")
    finally:
        root.handlers[:], root.level = before, level
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "loud"


def test_a_log_that_somebody_else_has_set_up_stays_as_it_is() -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    assert before, "pytest's own"
    begin("error", "json")
    assert (root.handlers, root.level) == (before, level)


def _read(pipe: int) -> list[str]:
    with os.fdopen(pipe, encoding="utf-8") as file:
        return file.read().splitlines()


@pytest.mark.real
def test_a_pipe_that_nobody_reads_stops_nothing_and_it_is_said_how_many_lines_are_missing(asked: Asking) -> None:
    reads, writes = os.pipe()
    handler = Unhurried(writes)
    handler.setFormatter(JsonLines())
    for number in range(6_000):
        handler.handle(record("line %d \ud800", number))  # would wait for ever, were it written here
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(_read(reads)))
    reader.start()
    until(lambda: not handler._lines.unfinished_tasks)
    handler.handle(record("the last"))
    handler.flush()
    os.close(writes)
    reader.join()
    told = [json.loads(line) for line in found]
    kept = [int(each["message"].split()[1]) for each in told if each["message"].startswith("line ")]
    left_out = [each for each in told if "left out" in each["message"]]
    assert kept == sorted(set(kept))
    assert 2_000 <= len(kept) < 6_000
    assert len(kept) + sum(int(each["message"].split()[0]) for each in left_out) == 6_000
    assert not [each for each in left_out if "request" in each], "it is about none"
    assert (told[-1]["message"], told[-1]["request"]) == ("the last", "r-1")


def test_a_reader_that_has_gone_ends_nothing(asked: Asking) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    handler = Unhurried(writes)
    for number in range(3):
        handler.handle(record("line %d", number))
    handler.flush()
    assert not handler._lines.unfinished_tasks
    os.close(writes)
