"""`oncelog publish`: whatever happens to it, each line is stored once and in order."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Client, Reader
from oncelog.api.calls import RETRY_SECONDS
from oncelog_service.cli import session
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch
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


def test_those_that_run_for_long_wait_for_a_service_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = []

    def client(url: str | None, token: str | None, retry: float) -> Client:
        patience.append(retry)
        raise ValueError

    monkeypatch.setattr("oncelog.api.api.Api", client)
    for arguments in (["publish", "t"], ["read", "t"], ["topic", "list"]):
        assert run(*arguments).exit_code == 2
    assert patience == [RETRY_SECONDS, RETRY_SECONDS, session.PATIENCE_SECONDS]


@pytest.mark.real
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


@pytest.mark.real
def test_ctrl_c_in_the_midst_of_a_file_tells_the_truth_and_can_be_resumed(tmp_path: Path) -> None:
    lines, disk, written = _lines(60_000), Disk(), count()
    arguments = ("publish", "t", "--file", str(_file(tmp_path, lines)), "--producer", "p", "--resume", "--json")
    with running_service(open_store=lambda: MemoryStore(disk)) as service:
        url = service.url
        _create(url)
        with ctrl_c(lambda: last_persisted(url, "t", "p") >= 0) as pressed:

            def hold(batches: Sequence[Batch]) -> None:
                """Else the file might end before anybody comes to press."""
                if any(batch.laid for batch in batches) and next(written):
                    pressed.wait(PATIENCE)

            disk.before_sync = hold
            stopped = run(*arguments, url=url)
        assert stopped.exit_code == 130, stopped.output
        problem = json.loads(stopped.stderr)
        last = last_persisted(url, "t", "p")
        assert (stopped.stdout, problem["code"]) == ("", "interrupted")
        assert problem["last_sequence_id"] == problem["stored"] - 1 == last < len(lines) - 1
        assert value(run(*arguments, url=url))["skipped"] == last + 1
        assert payloads(url, "t") == lines


@pytest.mark.real
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


def test_each_message_gets_the_offset_that_is_expected_over_many_requests_too(running: RunningService, tmp_path: Path) -> None:
    lines = _lines(2_500)
    arguments = ("publish", "t", "--producer", "p", "--resume", "--expect-offset", "0", "--json")
    _create_checked(running.url)
    value(run(*arguments, "--file", str(_file(tmp_path, lines[:500])), url=running.url))
    again = value(run(*arguments, "--file", str(_file(tmp_path, lines)), url=running.url))
    assert (again["skipped"], again["stored"]) == (500, 2_000)
    assert value(run("publish", "t", "a", "b", "--expect-offset", "2500", "--json", url=running.url))["stored"] == 2
    assert payloads(running.url, "t") == [*lines, b"a", b"b"]


@pytest.mark.parametrize(
    ("numbered", "deduplication"),
    [((), "true"), (("--producer", "p", "--sequence-id", "1"), "true"), (("--producer", "p"), "false")],
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
    assert (refused.exit_code, refused.stdout) == (6, "")
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
        ("a", "--gaps", "refuse", "--producer", "p"),
        ("a", "--source-generation", "1"),
        ("-i", "file", "--source-generation", "1"),
        ("a", "--file", str(_file(tmp_path, []))),
        ("--file", str(tmp_path / "missing")),
        ("--file", str(tmp_path)),
        ("a", "--property", "nothing"),
        ("a", "--ttl", "0"),
        ("a", "--expect-offset", "-1"),
    ):
        assert run("publish", "t", *arguments, url=running.url).exit_code == 2, arguments
    assert payloads(running.url, "t") == []


# --- rows of files


def _csv(folder: Path, numbers: Iterable[int], **others: str) -> Path:
    path = folder / "rows.csv"
    rows = [f'{number},"city {number}\nof two lines",{others.get(f"n{number}", "x")}\r\n' for number in numbers]
    path.write_bytes(("id,city,note\r\n" + "".join(rows)).encode())
    return path


def _parquet(folder: Path, numbers: Iterable[int], **others: str) -> Path:
    path = folder / "rows.parquet"
    rows = [{"id": number, "city": f"city {number}", "note": others.get(f"n{number}", "x")} for number in numbers]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def _json(folder: Path, numbers: Iterable[int], **others: str) -> Path:
    path = folder / "rows.json"
    lines = [json.dumps({"id": number, "payload": f"{number}{others.get(f'n{number}', 'x')}"}) for number in numbers]
    path.write_text("\n".join(lines))  # the last one has no end yet
    return path


def _ids(url: str) -> list[int]:
    """Of what lies in the topic, in order."""
    with Reader("t", url=url, timeout=0) as reader:
        return [message.sequence_id for message in reader]


FILES = {"csv": _csv, "parquet": _parquet, "json": _json}


@pytest.mark.parametrize(("kind", "numbers"), [("csv", "line"), ("json", "column=id"), ("parquet", "column=id")])
def test_a_file_that_grows_is_resumed_and_one_that_has_changed_is_refused(
    running: RunningService, tmp_path: Path, kind: str, numbers: str
) -> None:
    _create(running.url)
    ids = [3 * number + 7 for number in range(12)]
    expected = ids if numbers == "column=id" else list(range(12))
    arguments = ("publish", "t", "--producer", "p", "-i", kind, "--sequence-id", numbers, "--resume", "--json", "--file")
    make = FILES[kind]
    for upto, counts in ((5, (0, 5)), (5, (5, 0)), (12, (5, 7)), (12, (12, 0))):
        found = value(run(*arguments, str(make(tmp_path, ids[:upto])), url=running.url))
        assert (found["skipped"], found["stored"], found["duplicates"]) == (*counts, 0)
    assert _ids(running.url) == expected
    with Client(running.url) as client:
        assert client.producer("t", "p").gaps == ("refuse" if numbers == "line" else "allow")
    changed = run(*arguments, str(make(tmp_path, [*ids, 99], **{f"n{ids[-1]}": "changed"})), url=running.url)
    problem = json.loads(changed.stderr)
    assert (changed.exit_code, problem["code"], problem["failed_message"]) == (6, "sequence_reused", 11)
    assert "the input has changed since, or is another one" in problem["detail"]
    moved = run(*arguments, str(make(tmp_path, [*ids[:4], *ids[5:], 99])), url=running.url)
    if numbers == "line":  # every row behind the one that has gone has another number
        assert json.loads(moved.stderr)["code"] == "sequence_reused"
        shorter = run(*arguments, str(make(tmp_path, ids[:11])), url=running.url)
        assert "it is another input, or has become shorter" in json.loads(shorter.stderr)["detail"]
        assert _ids(running.url) == expected
    else:
        assert (value(moved)["stored"], _ids(running.url)) == (1, [*expected, 99])
        assert value(run(*arguments, str(make(tmp_path, ids[:2])), url=running.url))["stored"] == 0


def test_what_a_row_is_as_a_message(running: RunningService, tmp_path: Path) -> None:
    _create(running.url)
    common = ("publish", "t", "--producer", "p", "-k", "all", "-P", "of=all", "-P", "note=none", "--json")
    columns = ("--payload-column", "city", "--key-column", "id", "--property-column", "note", "--sequence-id", "column=id")
    for kind, number in (("csv", 1), ("parquet", 2)):
        value(run(*common, *columns, "-i", kind, "--file", str(FILES[kind](tmp_path, [number])), url=running.url))
    lines = b'{"id": 3, "note": "x", "city": 1}\n'
    value(run(*common, *columns[2:], url=running.url, stdin=lines))
    told = {"payload_base64": "/w==", "key_base64": "/g==", "properties": {"note": "its own"}, "sequence_id": 4, "offset": 0}
    arguments = ("-i", "json", "--sequence-id", "column=sequence_id")
    value(run(*common, *arguments, url=running.url, stdin=json.dumps(told).encode()))
    for name in ("b-6", "a-5"):
        (tmp_path / name).write_bytes(b"\0whole\n" + name.encode())
    files = ("-i", "file", "--sequence-id", "name", str(tmp_path / "b-6"), str(tmp_path / "a-5"))
    value(run(*common, *files, url=running.url))
    value(run(*common, "-i", "file", "--sequence-id", "7", url=running.url, stdin=b"all of\nit"))
    with Reader("t", url=running.url, timeout=0) as reader:
        found = [(each.sequence_id, each.payload, each.key, each.properties) for each in reader]
    everyones = {"of": "all", "note": "none"}
    assert found == [
        (1, b"city 1\nof two lines", b"1", {"of": "all", "note": "x"}),
        (2, b"city 2", b"2", {"of": "all", "note": "x"}),
        (3, lines.strip(), b"3", {"of": "all", "note": "x"}),
        (4, b"\xff", b"\xfe", {"of": "all", "note": "its own"}),
        (5, b"\0whole\na-5", b"all", everyones),
        (6, b"\0whole\nb-6", b"all", everyones),
        (7, b"all of\nit", b"all", everyones),
    ]


@pytest.mark.parametrize("bad", [0, 4])
def test_nothing_passes_a_refused_row_also_where_numbers_are_left_out(tmp_path: Path, bad: int) -> None:
    """A service that sees a gap cannot know that a row was refused there."""
    ids = [10 * number for number in range(9)]
    with running_service(max_request_bytes=2_048) as service:
        _create(service.url)
        arguments = ("publish", "t", "--producer", "p", "-i", "csv", "--sequence-id", "column=id", "--resume", "--json", "--file")
        refused = run(*arguments, str(_csv(tmp_path, ids, **{f"n{ids[bad]}": "x" * 5_000})), url=service.url)
        problem = json.loads(refused.stderr)
        assert (refused.exit_code, problem["code"], problem["failed_message"]) == (1, "request_too_large", bad)
        assert problem["detail"].startswith(f"row {bad} (from 0): ")
        assert _ids(service.url) == ids[:bad]
        value(run(*arguments, str(_csv(tmp_path, ids)), url=service.url))
        assert _ids(service.url) == ids
        unnamed = run("publish", "t", "--json", url=service.url, stdin=b"a\n" + b"x" * 5_000 + b"\nb\n")
        assert (unnamed.exit_code, json.loads(unnamed.stderr)["failed_message"]) == (1, 1)
        assert payloads(service.url, "t")[9:] == [b"a"]


def test_a_row_that_is_none_ends_it_behind_those_before_it(running: RunningService, tmp_path: Path) -> None:
    _create(running.url)
    arguments = ("publish", "t", "--producer", "p", "-i", "csv", "--sequence-id", "column=id", "--json", "--resume")
    for stdin, at, says in (
        (b"id,a\n1,x\n2,y\n3\n4,z\n", 2, "has 1 cells"),
        (b"id,a\n1,x\n2,y\n5,w\n4,z\n", 3, "its sequence id 4 is not above 5"),
        (b"id,a\n5,w\n2,y\n", 1, "its sequence id 2 is not above 5"),
    ):
        ended = run(*arguments, url=running.url, stdin=stdin)
        problem = json.loads(ended.stderr)
        assert (ended.exit_code, problem["code"], problem["failed_message"], problem["definite"]) == (
            1,
            "invalid_request",
            at,
            True,
        )
        assert says in problem["detail"]
    assert _ids(running.url) == [1, 2, 5]


def test_a_dry_run_reads_all_of_it_and_changes_nothing(running: RunningService, tmp_path: Path) -> None:
    _create(running.url)
    arguments = ("publish", "t", "--producer", "p", "-i", "csv", "--sequence-id", "column=id", "--resume", "--json")
    value(run(*arguments, url=running.url, stdin=b"id\n1\n2\n"))
    with Client(running.url) as client:
        epoch = client.producer("t", "p").epoch
        found = value(run(*arguments, "--dry-run", url=running.url, stdin=b"id\n1\n2\n30\n"))
        assert (found["messages"], found["skipped"], found["largest"]) == (1, 2, len('{"id":"30"}'))
        assert run(*arguments, "--dry-run", url=running.url, stdin=b"id\n1\nx\n").exit_code == 1
        assert run("publish", "nowhere", "--dry-run", "--producer", "p", "a", url=running.url).exit_code == 4
        assert client.producer("t", "p").epoch == epoch
    assert _ids(running.url) == [1, 2]


def test_what_is_stored_again_when_it_comes_again_is_not_resumed(running: RunningService) -> None:
    with Client(running.url) as client:
        client.create_topic("t", {"deduplication": False})
    refused = run("publish", "t", "--producer", "p", "--resume", "--json", url=running.url, stdin=b"a\n")
    assert (refused.exit_code, "deduplication off" in json.loads(refused.stderr)["detail"]) == (1, True)
    assert payloads(running.url, "t") == []


@pytest.mark.real
@pytest.mark.parametrize("kind", ["csv", "file"])
def test_rows_whose_publisher_is_killed_again_and_again_and_its_service_too_are_there_once(tmp_path: Path, kind: str) -> None:
    ids = [2 * number for number in range(400 if kind == "file" else 20_000)]
    if kind == "file":
        for number in ids:
            (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
        given, numbers = [str(tmp_path / f"{number}.bin") for number in ids], "name"
    else:
        given, numbers = ["--file", str(FILES[kind](tmp_path, ids))], "column=id"
    arguments = ("publish", "t", "--producer", "p", "-i", kind, "--sequence-id", numbers, "--resume", *given)
    with ServiceProcess(tmp_path / "data") as service:
        _create(service.url)
        for part in range(1, 6):
            with process(*arguments, url=service.url) as publisher:
                target = ids[len(ids) * part // 8]
                until(
                    lambda target=target, publisher=publisher: (
                        publisher.poll() is not None or last_persisted(service.url, "t", "p") >= target
                    )
                )
                publisher.kill()
            if part == 3:
                service.kill()
                service.start()
        value(run(*arguments, "--json", url=service.url))
        assert _ids(service.url) == ids
