"""`oncelog read`: from anywhere, once or for ever, for people and for programs."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from oncelog import Client, Producer
from tests.behaviours.cli.support import ONCELOG, interrupted, payloads, process, run, value
from tests.patience import PATIENCE
from tests.world.service import RunningService


@pytest.fixture
def topic(running: RunningService) -> str:
    """A topic with ten messages of one producer."""
    with Client(running.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", name="p", client=client) as producer:
            producer.send_batch([b"%d" % number for number in range(9)])
            producer.send(b"\xff\xfe", key=b"\xfe", properties={"a": "b"})
    return running.url


def _read(url: str, *arguments: str) -> list[bytes]:
    result = run("read", "t", *arguments, url=url)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.split(b"\n")[:-1]


def _objects(url: str, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _read(url, "--json", *arguments)]


def test_the_json_of_a_message_says_everything(topic: str) -> None:
    first, *_, last = _objects(topic)
    assert first["payload"] == "0"
    assert (first["offset"], first["producer"], first["sequence_id"], first["key"], first["properties"]) == (0, "p", 0, None, {})
    assert len(first["message_id"]) == 40
    assert datetime.fromisoformat(first["publish_time"]).timestamp() * 1000 == pytest.approx(first["publish_timestamp"])
    assert (last["payload_base64"], last["key_base64"], last["properties"]) == ("//4=", "/g==", {"a": "b"})
    assert "payload" not in last


def test_reading_begins_where_it_is_told_to(topic: str) -> None:
    objects, lines = _objects(topic), [*(b"%d" % number for number in range(9)), b"\xff\xfe"]
    third, at = objects[3]["message_id"], datetime.fromisoformat(objects[-1]["publish_time"])
    for arguments, expected in (
        ((), lines),
        (("--from", "earliest", "--limit", "2"), lines[:2]),
        (("--follow", "--limit", "2"), lines[:2]),
        (("--from", "latest"), []),
        (("--from", "7"), lines[7:]),
        (("--from", third), lines[4:]),
        (("--from", third, "--inclusive"), lines[3:]),
        (("--from", (at + timedelta(seconds=1)).isoformat()), []),
        (("--from", (at - timedelta(hours=1)).isoformat()), lines),
    ):
        assert _read(topic, *arguments) == expected, arguments
    assert _read(topic, "--from", at.isoformat())[-1] == lines[-1]
    beyond = run("read", "t", "--from", "11", "--json", url=topic)
    problem = json.loads(beyond.stderr)
    assert (beyond.exit_code, beyond.stdout, problem["code"], problem["upcoming"]) == (1, "", "offset_out_of_range", 10)
    for wrong in ("--from yesterday", "--from 3 --inclusive", "--inclusive", "--limit 0"):
        assert run("read", "t", *wrong.split(), url=topic).exit_code == 2, wrong


@pytest.mark.real
def test_reading_ends_where_it_is_told_to(topic: str) -> None:
    objects, lines = _objects(topic), [*(b"%d" % number for number in range(9)), b"\xff\xfe"]
    at = datetime.fromisoformat(objects[-1]["publish_time"])
    for arguments, expected in (
        ("--until 3", lines[:3]),
        ("--until 0", []),
        ("--until 99", lines),
        ("--from 4 --until 6", lines[4:6]),
        ("--from 6 --until 6 --follow", []),
        ("--until 6 --follow --committed", lines[:6]),
        ("--until -1h", []),
        ("--from -1h --until 2", lines[:2]),
        (f"--until {(at + timedelta(seconds=1)).isoformat()}", lines),
        ("-n 4 --until 6", lines[:4]),
        ("-f -n 4", lines[:4]),
    ):
        assert _read(topic, *arguments.split()) == expected, arguments
    assert _read(topic, "--until", at.isoformat()) + _read(topic, "--from", at.isoformat()) == lines
    for wrong in ("--until latest", "--until -3", "--until 1x"):
        assert run("read", "t", *wrong.split(), url=topic).exit_code == 2, wrong


def test_the_last_ten_are_ten_whatever_was_rolled_back_before_the_end(topic: str, running: RunningService) -> None:
    lines = [*(b"%d" % number for number in range(9)), b"\xff\xfe"]
    for arguments, expected in (("-3", lines[7:]), ("-10", lines), ("-99", lines), ("-0", []), ("-3 -n 2", lines[7:9])):
        assert _read(topic, "--from", *arguments.split()) == expected, arguments
    with Client(topic) as client:
        transaction = client.transaction()
        transaction.start()
        for number in range(50):
            transaction.send("t", b"rolled back %d" % number)
        transaction.checkpoint()
        transaction.abort()
        running.settled()
        with Producer[bytes]("t", client=client) as producer:
            producer.send(b"last")
        assert client.stats("t").upcoming_offset == 61
    assert _read(topic, "--from", "-2", "--uncommitted") == [b"rolled back 49", b"last"]
    for committed in ((), ("--committed",)):
        assert _read(topic, "--from", "-3", *committed) == [b"8", b"\xff\xfe", b"last"]


@pytest.mark.real
def test_nothing_behind_what_is_undecided_is_taken_for_committed(topic: str) -> None:
    lines = [*(b"%d" % number for number in range(9)), b"\xff\xfe"]
    with Client(topic) as client:
        transaction = client.transaction()
        transaction.start()
        transaction.send("t", b"undecided")
        transaction.checkpoint()
        with Producer[bytes]("t", client=client) as producer:
            producer.send(b"behind it")
        for committed in ((), ("--committed",)):
            once = run("read", "t", *committed, url=topic)
            assert once.stdout_bytes.split(b"\n") == [*lines, b""]
            assert once.stderr == "nothing is decided from offset 10 on\n"
        assert _read(topic, "--uncommitted") == [*lines, b"undecided", b"behind it"]
        assert run("read", "t", "--uncommitted", "--subscription", "s", url=topic).exit_code == 2
        with process("read", "t", "--follow", "-n", "12", url=topic) as reader:
            assert reader.stdout is not None
            assert [reader.stdout.readline() for _ in lines] == [line + b"\n" for line in lines]
            transaction.finish()
            out, err = reader.communicate(timeout=PATIENCE)
            assert (reader.returncode, out, err) == (0, b"undecided\nbehind it\n", b"")


@pytest.mark.real
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk here")
def test_what_could_not_be_printed_is_not_acknowledged(topic: str) -> None:
    command = [*ONCELOG, "read", "t", "--subscription", "s", "--url", topic]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE)
    assert (done.returncode, b"no space is left" in done.stderr) == (1, True)
    with Client(topic) as client:
        assert client.subscription("t", "s").cursor == 0
    assert len(_read(topic, "--subscription", "s")) == 10


def test_of_what_is_not_chosen_nothing_is_printed_or_counted(running: RunningService) -> None:
    with Client(running.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", client=client) as producer:
            producer.send_batch(
                [b'{"n": {"m": %d}}' % number for number in range(2_500)],
                keys=[b"even" if number % 2 == 0 else None for number in range(2_500)],
                properties=[{"third": str(number % 3)} for number in range(2_500)],
            )

    def read(*arguments: str) -> list[int]:
        return [json.loads(line)["n"]["m"] for line in _read(running.url, *arguments)]

    sixes = list(range(0, 2_500, 6))
    assert read("-k", "even", "-P", "third=0") == sixes
    assert read("-k", "even", "-P", "third=0", "-n", "5") == sixes[:5]
    assert read("--field", "n.m=2400") == [2_400]
    assert read("--field", "n.m=2400", "--from", "2401") == []
    assert read("-P", "third=3") == []
    # What was not looked at is not acknowledged, and what was is, whether it is printed or not.
    subscribed = ("--subscription", "s", "-P", "third=0", "-k", "even")
    assert read(*subscribed, "-n", "300") == sixes[:300]
    with Client(running.url) as client:
        assert client.subscription("t", "s").cursor == 6 * 299 + 1
    assert read(*subscribed, "--until", "2000") == [each for each in sixes[300:] if each < 2_000]
    with Client(running.url) as client:
        assert client.subscription("t", "s").cursor == 2_000
    assert read(*subscribed) == [each for each in sixes if each >= 2_000]


def test_messages_are_written_as_one_likes(topic: str, tmp_path: Path) -> None:
    def read(*arguments: str) -> bytes:
        result = run("read", "t", "--from", "8", *arguments, url=topic)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout_bytes

    assert read("-o", "raw") == b"8\xff\xfe"
    assert read("-o", "hex") == b"38\nfffe\n"
    assert read("--format", "{offset}={payload};{property.a}\\n") == b"8=8;\n9=\xff\xfe;b\n"
    assert read("-o", "csv").splitlines()[2].endswith(b',p,9,,/g==,"{""a"": ""b""}",,//4=,')
    assert [json.loads(line)["offset"] for line in read("-o", "json").splitlines()] == [8, 9]
    rows = pq.read_table(io.BytesIO(read("-o", "parquet"))).to_pylist()
    assert [(row["value"], row["key"], row["offset"]) for row in rows] == [(b"8", None, 8), (b"\xff\xfe", b"\xfe", 9)]
    assert read("-o", "raw", "--to", str(tmp_path / "f"), "-n", "1") == b""
    assert (tmp_path / "f").read_bytes() == b"8"
    for wrong in (
        ("-o", "json", "--format", "{offset}"),
        ("--json", "--format", "{offset}"),
        ("--format", "{nothing}"),
        ("-f", "--to", str(tmp_path / "g")),
        ("--subscription", "s", "--to", str(tmp_path / "g")),
        ("--subscription", "s", "-o", "parquet"),
        ("--field", "a"),
        ("-P", "a"),
    ):
        assert run("read", "t", *wrong, url=topic).exit_code == 2, wrong
    missing = run("read", "nowhere", "-o", "csv", "--to", str(tmp_path / "g"), url=topic)
    assert (missing.exit_code, missing.stdout_bytes, (tmp_path / "g").exists()) == (4, b"", False)


@pytest.mark.real
def test_a_payload_does_not_drive_the_terminal_of_who_reads_it(topic: str) -> None:
    hostile = b"\x1b]0;owned\x07\x1b[2J\r\xc2\x9b31mz\xe2\x80\xae"
    with Producer[bytes]("t", url=topic) as producer:
        producer.send(hostile, key=hostile)
    ours, theirs = pty.openpty()
    try:
        for arguments in (("--format", "{key}{payload}\\n"), ("-o", "csv"), ("-o", "text"), ("-o", "raw")):
            command = [*ONCELOG, "read", "t", "--url", topic, "--from", "-1", *arguments]
            done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, timeout=PATIENCE)
            if arguments[1] == "raw":
                assert (done.returncode, b"not for a terminal" in done.stderr) == (2, True)
                continue
            assert (done.returncode, done.stderr) == (0, b"")
            written = os.read(ours, 10_000)
            assert re.fullmatch(rb"[\x20-\x7e\r\n]+", written), written
            assert rb"\x1b]0;owned\x07\x1b[2J\r\x9b31mz\u202e" in written
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.real
def test_following_prints_what_comes_and_ctrl_c_says_where_to_go_on(topic: str, running: RunningService) -> None:
    with process("read", "t", "--from", "8", "--follow", url=topic) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"8\n"
        assert reader.stdout.readline() == b"\xff\xfe\n"
        for payload in ("new", "newer"):
            assert run("publish", "t", payload, url=topic).exit_code == 0
            assert reader.stdout.readline() == payload.encode() + b"\n"
        running.arrived(1)  # it waits again: what it has printed is counted, and would not be printed twice
        assert interrupted(reader) == 130
        _, err = reader.communicate()
    text = err.decode()
    run("publish", "t", "ends the poll that is still held", url=topic)
    assert text.startswith("interrupted: 4 messages were read, the last at offset 11; go on with --from ")
    assert _read(topic, "--from", text.split()[-1]) == [b"ends the poll that is still held"]
    assert _read(topic, "--from", text.split()[-1], "--inclusive")[0] == b"newer"


@pytest.mark.real
def test_a_reader_of_the_output_that_has_enough_may_leave(topic: str) -> None:
    """`oncelog read … | head`: no complaint, no traceback."""
    with Producer[bytes]("t", url=topic) as producer:
        for _ in range(200):
            producer.send_async(b"x" * 10_000)
    for command, first in ((("read", "t"), b"0\n"), (("producer", "list", "t"), b"")):
        with process(*command, url=topic) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            assert not first or reader.stdout.readline() == first
            reader.stdout.close()
            assert reader.stderr.read() == b""
            assert reader.wait(PATIENCE) == 0


def test_what_was_rolled_back_is_in_no_export_and_is_published_only_at_a_word(
    topic: str, running: RunningService, tmp_path: Path
) -> None:
    with Client(topic) as client:
        client.create_topic("copied")
        transaction = client.transaction()
        transaction.start()
        transaction.send("t", b"never happened")
        transaction.checkpoint()
        transaction.abort()
        running.settled()
        with Producer[bytes]("t", client=client) as producer:
            producer.send(b"last")

    def copied(*arguments: str) -> list[bytes]:
        file = tmp_path / "f"
        assert run("read", "t", "-o", "csv", "--to", str(file), *arguments, url=topic).exit_code == 0
        how = ("--producer", "copy", "--sequence-id", "column=offset", "--resume", "--file", str(file), "-i", "csv")
        done = run("publish", "copied", *how, url=topic)
        if arguments:
            assert (done.exit_code, "state is 'rolled_back'" in done.stderr) == (1, True)
            assert run("publish", "copied", *how, "--uncommitted", url=topic).exit_code == 0
        return [line for line in run("read", "copied", url=topic).stdout_bytes.split(b"\n") if line]

    lines = [*(b"%d" % number for number in range(9)), b"\xff\xfe"]
    assert copied() == [*lines, b"last"]
    with Client(topic) as client:
        client.delete_topic("copied")
        client.create_topic("copied")
    assert copied("--uncommitted") == [*lines, b"never happened", b"last"]


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_copy_that_would_have_a_hole_or_whose_source_was_made_anew_is_refused_and_not_taken_for_whole(
    topic: str, tmp_path: Path, form: str
) -> None:
    file = tmp_path / "f"
    copied = ("publish", "copied", "--sequence-id", "column=offset", "--resume", "--json", "-i", form, "--file", str(file))

    def refused(*arguments: str, producer: str = "copy") -> tuple[int, dict[str, Any]]:
        done = run(*copied, "--producer", producer, *arguments, url=topic)
        assert done.stdout == ""
        return done.exit_code, json.loads(done.stderr)

    def taken(*window: str) -> None:
        assert run("read", "t", "-o", form, "--to", str(file), *window, url=topic).exit_code == 0

    def stored(*arguments: str, producer: str = "copy") -> int:
        found: int = value(run(*copied, "--producer", producer, *arguments, url=topic))["stored"]
        return found

    with Client(topic) as client:
        client.create_topic("copied")
        taken("-n", "4")
        assert stored() == 4
        for cut in (False, True):
            if cut:
                client.trim_topic("t", 5)
            taken(*(() if cut else ("--from", "5")))
            for how in ((), ("--dry-run",), ("--gaps", "refuse")):
                code, problem = refused(*how)
                told = (code, problem["code"], problem["producer"], problem["expected"], problem["received"])
                assert told == (6, "sequence_gap", "copy", 4, 5)
                assert (problem["failed_message"], problem["definite"], problem.get("stored", 0)) == (0, True, 0)
        assert stored("--gaps", "allow") == 5
        client.delete_topic("t")
        client.create_topic("t")
        with Producer[bytes]("t", client=client) as producer:
            producer.send_batch([b"anew"] * 3)
        taken()
        named = ("-i", "lines" if form == "json" else form, "--payload-column", "value" if form == "parquet" else "payload")
        for arguments, other in (((), "copy-2"), (named, "copy-3")):
            code, problem = refused(*arguments)
            assert (code, problem["stored"], problem["skipped"], problem["failed_message"]) == (1, 0, 0, 0)
            assert "is of generation 2 of its topic, not 1" in problem["detail"]
            assert stored(*arguments, "--source-generation", "2", producer=other) == 3
    lines = [b"%d" % number for number in range(9)]
    assert payloads(topic, "copied") == [*lines[:4], *lines[5:], b"\xff\xfe", *[b"anew"] * 6]
