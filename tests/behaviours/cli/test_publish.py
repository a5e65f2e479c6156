"""`oncelog publish`: whatever happens to it, each line is stored once and in order."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client, Reader
from oncelog_service.cli.publish import lines_of
from tests.behaviours.cli.support import interrupted, last_persisted, payloads, process, run, value
from tests.patience import PATIENCE, until
from tests.support import RunningService, ServiceProcess, running_service


def _lines(count: int) -> list[bytes]:
    return [b"line %d" % number for number in range(count)]


def _file(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "lines.txt"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def _create(url: str, topic: str = "t") -> None:
    with Client(url) as client:
        client.create_topic(topic)


def test_a_file_whose_publisher_and_service_are_killed_half_way_is_resumed_without_a_line_lost_or_doubled(tmp_path: Path) -> None:
    lines = _lines(20_000)
    path = _file(tmp_path, lines)
    half = b"".join(line + b"\n" for line in lines[:10_000])
    with ServiceProcess(tmp_path / "data") as service:
        _create(service.url)
        with process("publish", "t", "-", "--producer", "p", "--resume", url=service.url) as publisher:
            assert publisher.stdin is not None
            publisher.stdin.write(half)
            publisher.stdin.flush()
            until(lambda: last_persisted(service.url, "t", "p") >= 2_500)
            publisher.kill()
            assert publisher.wait(PATIENCE) == -signal.SIGKILL
        service.kill()
        service.start()
        before = last_persisted(service.url, "t", "p")
        assert 2_500 <= before < 10_000
        with process("publish", "t", "--file", str(path), "--producer", "p", "--resume", "--json", url=service.url) as publisher:
            out, err = publisher.communicate(timeout=PATIENCE)
        assert publisher.returncode == 0, err
        result = json.loads(out)
        assert (result["skipped"], result["stored"], result["duplicates"]) == (before + 1, 20_000 - before - 1, 0)
        assert payloads(service.url, "t") == lines


def test_a_publisher_outlives_the_restart_of_its_service(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        _create(service.url)
        with process("publish", "t", "--producer", "p", "--resume", "--json", url=service.url) as publisher:
            assert publisher.stdin is not None
            publisher.stdin.write(b"a\nb\n")
            publisher.stdin.flush()
            until(lambda: last_persisted(service.url, "t", "p") == 1)
            service.kill()
            publisher.stdin.write(b"c\n")
            publisher.stdin.flush()
            time.sleep(0.2)
            service.start()
            out, err = publisher.communicate(timeout=PATIENCE)
        assert publisher.returncode == 0, err
        assert json.loads(out)["stored"] == 3
        assert payloads(service.url, "t") == [b"a", b"b", b"c"]


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
    lines = _lines(100_000)
    arguments = ("publish", "t", "--file", str(_file(tmp_path, lines)), "--producer", "p", "--resume", "--json")
    _create(running.url)
    with process(*arguments, url=running.url) as publisher:
        until(lambda: last_persisted(running.url, "t", "p") > 0)
        publisher.send_signal(signal.SIGINT)
        out, err = publisher.communicate(timeout=PATIENCE)
    assert publisher.returncode == 130, err
    problem = json.loads(err)
    assert (out, problem["code"]) == (b"", "interrupted")
    last = last_persisted(running.url, "t", "p")
    assert problem["last_sequence_id"] == last < len(lines) - 1
    assert problem["stored"] == last + 1
    result = value(run(*arguments, url=running.url))
    assert result["skipped"] == last + 1
    assert payloads(running.url, "t") == lines


def test_ctrl_c_with_the_service_gone_ends_and_admits_what_is_not_known(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        _create(service.url)
        with process("publish", "t", "--producer", "p", "--resume", url=service.url) as publisher:
            assert publisher.stdin is not None
            publisher.stdin.write(b"a\n")
            publisher.stdin.flush()
            until(lambda: last_persisted(service.url, "t", "p") == 0)
            service.kill()
            publisher.stdin.write(b"b\n")
            publisher.stdin.flush()
            time.sleep(1)  # until it has read that
            publisher.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert interrupted(publisher) == 130  # the second one does not wait for the outcome
            _, err = publisher.communicate(timeout=PATIENCE)
        assert b"persisted up to sequence id 0" in err
        assert b"1 messages have no outcome yet" in err


def test_a_line_sent_again_under_its_sequence_id_is_a_duplicate(running: RunningService) -> None:
    _create(running.url)
    arguments = ("publish", "t", "--producer", "p", "--json")
    first = value(run(*arguments, "--sequence-id", "0", "a", "b", "c", url=running.url))
    again = value(run(*arguments, "--sequence-id", "1", "b", "c", "d", url=running.url))
    assert (first["stored"], first["duplicates"]) == (3, 0)
    assert (again["stored"], again["duplicates"], again["last_sequence_id"]) == (1, 2, 3)
    assert payloads(running.url, "t") == [b"a", b"b", b"c", b"d"]


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


def test_numbering_may_begin_anywhere(running: RunningService) -> None:
    _create(running.url)
    for start in (5, 100):
        value(run("publish", "t", "a", "--producer", "p", "--sequence-id", str(start), "--json", url=running.url))
    assert payloads(running.url, "t") == [b"a", b"a"]
    assert last_persisted(running.url, "t", "p") == 100


def _create_checked(url: str, **properties: str) -> None:
    with Client(url) as client:
        client.create_topic("t", {"check.expected.offsets": True, **properties})


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
    "numbered", [(), ("--producer", "p"), ("--producer", "p", "--sequence-id", "1"), ("--producer", "p", "--sequence-id", "9")]
)
@pytest.mark.parametrize("deduplication", ["true", "false"])
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


def test_what_is_there_already_is_a_duplicate_whatever_offset_is_expected(running: RunningService) -> None:
    _create_checked(running.url)
    arguments = ("publish", "t", "--producer", "p", "--sequence-id", "0", "--expect-offset", "0", "--json")
    value(run(*arguments, "a", "b", url=running.url))
    again = value(run(*arguments, "a", "b", "c", url=running.url))
    assert (again["stored"], again["duplicates"]) == (1, 2)
    assert payloads(running.url, "t") == [b"a", b"b", b"c"]


def test_an_expectation_on_a_topic_that_checks_none_is_a_definite_error(running: RunningService) -> None:
    _create(running.url)
    refused = run("publish", "t", "a", "b", "--expect-offset", "0", url=running.url)
    assert refused.exit_code == 1
    assert "expectations_not_checked" in refused.stderr
    assert payloads(running.url, "t") == []


def test_lines_are_bytes_without_their_line_feed_and_empty_ones_count(running: RunningService) -> None:
    _create(running.url)
    result = value(run("publish", "t", "--json", url=running.url, stdin=b"a\n\n\xff\r\nlast"))
    assert result["stored"] == 4
    assert payloads(running.url, "t") == [b"a", b"", b"\xff\r", b"last"]


def test_a_publish_without_a_name_leaves_no_producer_behind(running: RunningService) -> None:
    with Client(running.url) as client:
        client.create_topic("t")
        for number in range(100):
            assert run("publish", "t", f"hello {number}", url=running.url).exit_code == 0
        assert run("publish", "t", "named", "--producer", "p", url=running.url).exit_code == 0
        assert [each.name for each in client.producers("t")] == ["p"]
        assert client.stats("t").upcoming_offset == 101


def test_nothing_to_publish_is_no_error(running: RunningService) -> None:
    _create(running.url)
    result = value(run("publish", "t", "--json", url=running.url))
    assert (result["stored"], result["last_sequence_id"]) == (0, None)


def test_key_properties_and_ttl_go_with_every_message(running: RunningService) -> None:
    _create(running.url)
    extras = ("--key", "k", "--property", "a=1", "--property", "b=x=y", "--ttl", "60")
    value(run("publish", "t", "one", "two\nlines", *extras, "--json", url=running.url))
    with Reader("t", url=running.url, timeout=0) as reader:
        messages = list(reader)
    assert [message.payload for message in messages] == [b"one", b"two\nlines"]
    assert {(message.key, message.properties["a"], message.properties["b"], message.ttl) for message in messages} == {
        (b"k", "1", "x=y", 60)
    }


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


def test_a_topic_that_is_not_there_is_a_definite_error(running: RunningService) -> None:
    result = run("publish", "nowhere", "a", url=running.url)
    assert result.exit_code == 1
    assert "topic_not_found" in result.stderr
    assert "definite: it was not done" in result.stderr


@given(st.lists(st.binary(max_size=5)))
def test_lines_are_the_same_however_the_bytes_arrive(blocks: list[bytes]) -> None:
    data = b"".join(blocks)
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert [line for lines in lines_of(iter(blocks)) for line in lines] == expected
