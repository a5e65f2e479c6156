"""`oncelog publish`: whatever happens to it, each line is stored once and in order."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client, Reader
from oncelog.api.calls import RETRY_SECONDS
from oncelog_service.cli import session
from oncelog_service.cli.messages.publish import lines_of
from oncelog_service.storage.memory import Disk, MemoryStore
from tests.behaviours.cli.support import ctrl_c, last_persisted, payloads, process, run, value
from tests.patience import PATIENCE, until
from tests.world.service import RunningService, ServiceProcess, running_service


def _lines(count: int) -> list[bytes]:
    return [b"line %d" % number for number in range(count)]


def _file(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "lines.txt"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def _create(url: str, topic: str = "t") -> None:
    with Client(url) as client:
        client.create_topic(topic)


def _create_checked(url: str, **properties: str) -> None:
    with Client(url) as client:
        client.create_topic("t", {"check.expected.offsets": True, **properties})


def test_a_file_whose_publisher_and_service_are_killed_half_way_is_resumed_without_a_line_lost_or_doubled(tmp_path: Path) -> None:
    lines = _lines(6_000)
    path = _file(tmp_path, lines)
    half = b"".join(line + b"\n" for line in lines[:3_000])
    with ServiceProcess(tmp_path / "data") as service:
        _create(service.url)
        with process("publish", "t", "-", "--producer", "p", "--resume", url=service.url) as publisher:
            assert publisher.stdin is not None
            publisher.stdin.write(half)
            publisher.stdin.flush()
            until(lambda: last_persisted(service.url, "t", "p") >= 1_000)
            publisher.kill()
            assert publisher.wait(PATIENCE) == -signal.SIGKILL
        service.kill()
        service.start()
        before = last_persisted(service.url, "t", "p")
        assert 1_000 <= before < 3_000
        result = value(run("publish", "t", "--file", str(path), "--producer", "p", "--resume", "--json", url=service.url))
        assert (result["skipped"], result["stored"], result["duplicates"]) == (before + 1, 6_000 - before - 1, 0)
        assert payloads(service.url, "t") == lines


def test_those_that_run_for_long_wait_for_a_service_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = []

    def client(url: str | None, token: str | None, retry: float) -> Client:
        patience.append(retry)
        raise ValueError

    monkeypatch.setattr(session, "Client", client)
    for arguments in (["publish", "t"], ["read", "t"], ["topic", "list"]):
        assert run(*arguments).exit_code == 2
    assert patience == [RETRY_SECONDS, RETRY_SECONDS, session.PATIENCE_SECONDS]


def test_ctrl_c_while_waiting_for_input_says_how_far_it_is_persisted(running: RunningService) -> None:
    _create(running.url)
    with process("publish", "t", "--producer", "p", "--resume", url=running.url) as publisher:
        assert publisher.stdin is not None
        publisher.stdin.write(b"".join(b"%d\n" % number for number in range(1_000)))
        publisher.stdin.flush()
        until(lambda: last_persisted(running.url, "t", "p") == 999)
        publisher.send_signal(signal.SIGINT)
        out, err = publisher.communicate(timeout=PATIENCE)
    assert publisher.returncode == 130
    assert b"persisted up to sequence id 999 (1,000 stored, 0 duplicates)" in err
    assert b"Traceback" not in err
    assert out == b""


def test_ctrl_c_in_the_midst_of_a_file_tells_the_truth_and_can_be_resumed(running: RunningService, tmp_path: Path) -> None:
    lines = _lines(60_000)
    arguments = ("publish", "t", "--file", str(_file(tmp_path, lines)), "--producer", "p", "--resume", "--json")
    _create(running.url)
    with ctrl_c(lambda: last_persisted(running.url, "t", "p") > 0):
        stopped = run(*arguments, url=running.url)
    assert stopped.exit_code == 130, stopped.output
    problem = json.loads(stopped.stderr)
    last = last_persisted(running.url, "t", "p")
    assert (stopped.stdout, problem["code"]) == ("", "interrupted")
    assert problem["last_sequence_id"] == problem["stored"] - 1 == last < len(lines) - 1
    assert value(run(*arguments, url=running.url))["skipped"] == last + 1
    assert payloads(running.url, "t") == lines


def test_a_second_ctrl_c_waits_for_no_outcome_and_admits_what_is_not_known() -> None:
    disk, stalled, goes_on, opened = Disk(), Event(), Event(), []

    def stall(_: object) -> None:
        if not opened:
            opened.append(True)  # the producer, by the first write
            return
        stalled.set()
        goes_on.wait(PATIENCE)

    with running_service(open_store=lambda: MemoryStore(disk)) as service:
        _create(service.url)
        assert run("publish", "t", "a", "--producer", "p", "--sequence-id", "0", url=service.url).exit_code == 0
        disk.before_sync = stall
        try:
            with ctrl_c(stalled.is_set, times=2):
                stopped = run("publish", "t", "--producer", "p", "--sequence-id", "1", "b", url=service.url)
        finally:
            goes_on.set()
    assert stopped.exit_code == 130
    assert "persisted up to sequence id 0" in stopped.stderr
    assert "1 messages have no outcome yet" in stopped.stderr


def test_a_line_sent_again_under_its_sequence_id_is_a_duplicate_and_one_that_is_resumed_is_skipped(
    running: RunningService, tmp_path: Path
) -> None:
    _create_checked(running.url)
    for number, messages, expected in (
        (5, "abc", (3, 0, 7)),
        (6, "bcd", (1, 2, 8)),
        (100, "e", (1, 0, 100)),
    ):
        arguments = ("--producer", "p", "--sequence-id", str(number), "--expect-offset", str(number - 5), "--json")
        found = value(run("publish", "t", *(arguments if number < 100 else arguments[:4]), "--json", *messages, url=running.url))
        assert (found["stored"], found["duplicates"], found["last_sequence_id"]) == expected
    assert payloads(running.url, "t") == [b"a", b"b", b"c", b"d", b"e"]
    for lines in (1, 2):  # also of a producer whose only message has the number 0
        path = str(_file(tmp_path, _lines(lines)))
        found = value(run("publish", "t", "--file", path, "--producer", "q", "--resume", "--json", url=running.url))
        assert (found["skipped"], found["stored"], found["duplicates"]) == (lines - 1, 1, 0)


def test_nothing_passes_a_refused_line_so_that_it_is_not_lost_when_the_file_is_mended(tmp_path: Path) -> None:
    for bad in (0, 3):
        lines = _lines(10)
        broken = [*lines[:bad], b"x" * 5_000, *lines[bad + 1 :]]
        with running_service(max_request_bytes=2_048) as service:
            _create(service.url)
            arguments = ("publish", "t", "--producer", "p", "--resume", "--json")
            refused = run(*arguments, "--file", str(_file(tmp_path, broken)), url=service.url)
            assert refused.exit_code == 1
            problem = json.loads(refused.stderr)
            assert (problem["code"], problem["failed_message"], problem["definite"]) == ("request_too_large", bad, True)
            assert payloads(service.url, "t") == lines[:bad]
            assert run(*arguments, "--file", str(_file(tmp_path, lines)), url=service.url).exit_code == 0
            assert payloads(service.url, "t") == lines


def test_each_message_gets_the_offset_that_is_expected_over_many_requests_too(running: RunningService, tmp_path: Path) -> None:
    lines = _lines(6_500)
    arguments = ("publish", "t", "--producer", "p", "--resume", "--expect-offset", "0", "--json")
    _create_checked(running.url)
    value(run(*arguments, "--file", str(_file(tmp_path, lines[:1_000])), url=running.url))
    again = value(run(*arguments, "--file", str(_file(tmp_path, lines)), url=running.url))
    assert (again["skipped"], again["stored"]) == (1_000, 5_500)
    assert value(run("publish", "t", "a", "b", "--expect-offset", "6500", "--json", url=running.url))["stored"] == 2
    assert payloads(running.url, "t") == [*lines, b"a", b"b"]


@pytest.mark.parametrize(
    ("numbered", "deduplication"),
    [
        ((), "true"),
        (("--producer", "p"), "true"),
        (("--producer", "p", "--sequence-id", "1"), "true"),
        (("--producer", "p", "--sequence-id", "9"), "true"),
        (("--producer", "p"), "false"),
    ],
)
def test_what_does_not_get_the_expected_offset_is_not_stored_nor_is_anything_after_it(
    running: RunningService, numbered: tuple[str, ...], deduplication: str
) -> None:
    """The offset that is free now is what one of the messages behind it expects."""
    _create_checked(running.url, deduplication=deduplication)
    value(run("publish", "t", "0", "--producer", "p", "--json", url=running.url))
    value(run("publish", "t", "1", "2", "--json", url=running.url))
    refused = run("publish", "t", *"abcdef", "--expect-offset", "1", *numbered, "--json", url=running.url)
    problem = json.loads(refused.stderr)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert (problem["code"], problem["expected"], problem["actual"], problem["failed_message"]) == ("offset_mismatch", 1, 3, 0)
    assert (problem["stored"], problem["definite"]) == (0, True)
    assert payloads(running.url, "t") == [b"0", b"1", b"2"]
    text = run("publish", "t", "a", "--expect-offset", "4", url=running.url)
    assert "message 0 (from 0): topic default/t: expected the upcoming offset to be 4, it is 3" in text.stderr
    assert "definite: it was not done" in text.stderr
    value(run("publish", "t", "a", "b", "--expect-offset", "3", *numbered, "--json", url=running.url))
    assert payloads(running.url, "t") == [b"0", b"1", b"2", b"a", b"b"]


def test_what_is_given_is_what_is_published(running: RunningService) -> None:
    _create(running.url)
    assert value(run("publish", "t", "--json", url=running.url, stdin=b"a\n\n\xff\r\nlast"))["stored"] == 4
    extras = ("--key", "k", "--property", "a=1", "--property", "b=x=y", "--ttl", "60")
    value(run("publish", "t", "two\nlines", *extras, "--json", url=running.url))
    nothing = value(run("publish", "t", "--json", url=running.url))
    assert (nothing["stored"], nothing["last_sequence_id"]) == (0, None)
    with Client(running.url) as client:
        assert list(client.producers("t")) == [], "one without a name leaves none behind"
        with Reader("t", client=client, timeout=0) as reader:
            *plain, last = reader
    assert [message.payload for message in plain] == [b"a", b"", b"\xff\r", b"last"]
    assert (last.payload, last.key, last.properties, last.ttl) == (b"two\nlines", b"k", {"a": "1", "b": "x=y"}, 60)


def test_what_contradicts_itself_is_refused_before_anything_is_sent(running: RunningService, tmp_path: Path) -> None:
    _create(running.url)
    for arguments in (
        ("a", "--resume"),
        ("a", "--sequence-id", "3"),
        ("a", "--sequence-id", "-1", "--producer", "p"),
        ("a", "--resume", "--sequence-id", "0", "--producer", "p"),
        ("a", "--file", str(_file(tmp_path, []))),
        ("--file", str(tmp_path / "missing")),
        ("--file", str(tmp_path)),
        ("a", "--property", "nothing"),
        ("a", "--ttl", "0"),
        ("a", "--expect-offset", "-1"),
    ):
        assert run("publish", "t", *arguments, url=running.url).exit_code == 2, arguments
    assert payloads(running.url, "t") == []


@given(st.lists(st.binary(max_size=5)))
def test_lines_are_the_same_however_the_bytes_arrive(blocks: list[bytes]) -> None:
    data = b"".join(blocks)
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert [line for lines in lines_of(iter(blocks)) for line in lines] == expected
