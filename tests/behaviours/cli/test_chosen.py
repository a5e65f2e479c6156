"""Which messages are chosen, and how they are written: tables and properties, without a service."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog import Message
from oncelog_service.cli.messages import writers
from oncelog_service.cli.messages.filters import Filter, parse_fields
from oncelog_service.cli.messages.interrupts import Interrupts
from oncelog_service.cli.messages.numbering import Numbering, Numbers
from oncelog_service.cli.messages.rows import Columns
from oncelog_service.cli.messages.sources import Kind, opened
from oncelog_service.cli.messages.template import FIELDS, parse
from oncelog_service.cli.messages.terminal import shown
from oncelog_service.cli.messages.writers import Seen, Written, writing
from oncelog_service.storage.files import directory
from tests.examples import examples


def message(payload: bytes = b"", key: bytes | None = None, **properties: str) -> Message[bytes]:
    return Message(_record(payload, key, properties))


def _record(payload: bytes, key: bytes | None, properties: dict[str, str], offset: int = 17) -> dict[str, Any]:
    id_ = (1_700_000_000_123).to_bytes(8, "big") + offset.to_bytes(2, "big") + bytes(10)
    named = {"producer": "p", "sequenceId": 4, "ttl": None}
    return {"id": id_, "offset": offset, "payload": payload, "key": key, "properties": properties, **named}


# --- filters


@pytest.mark.parametrize(
    ("payload", "field", "chosen"),
    [
        ({"a": {"b": "x"}}, "a.b=x", True),
        ({"a": {"b": "x"}}, "a.b=y", False),
        ({"a": {"b": "x"}}, "a=x", False),
        ({"a": {"b": "x"}}, "a.b.c=x", False),
        ({"a": "x=y"}, "a=x=y", True),
        ({"a": ""}, "a=", True),
        ({}, "a=", False),
        ({"a": None}, "a=", False),
        ({"a": None}, "a=null", True),
        ({}, "a=null", False),
        ({"a": 10}, "a=10", True),
        ({"a": 10}, "a=10.0", True),
        ({"a": "10"}, "a=10", True),
        ({"a": "10"}, "a=10.0", False),
        ({"a": True}, "a=true", True),
        ({"a": True}, "a=1", False),
        ({"a": 1}, "a=true", False),
        ({"a": [5, {"b": 6}]}, "a.1.b=6", True),
        ({"a": [5]}, "a.1=5", False),
        ({"a": [5]}, "a.-1=5", False),
        ({"a": {"0": 5}}, "a.0=5", True),
        ({"a": [1, 2]}, "a=[1,2]", True),
        ([7], "0=7", True),
    ],
)
def test_a_field_equals_what_is_written(payload: object, field: str, chosen: bool) -> None:
    assert Filter(fields=parse_fields([field])).matches(message(json.dumps(payload).encode())) is chosen


def test_all_that_is_asked_for_must_be_there() -> None:
    payload = b'{"a": 1, "b": 2}'
    whole = message(payload, b"k", x="1", y="2")
    fields = parse_fields(["a=1", "b=2"])
    assert Filter(b"k", {"x": "1", "y": "2"}, fields).matches(whole)
    assert Filter().matches(message())
    for without in (
        Filter(b"other"),
        Filter(b""),
        Filter(properties={"x": "1", "y": "1"}),
        Filter(properties={"z": ""}),
        Filter(fields=parse_fields(["a=1", "b=3"])),
    ):
        assert not without.matches(whole)
        assert not without.is_empty
    assert not Filter(b"").matches(message())
    assert Filter(b"").matches(message(key=b""))
    for no_json in (b"", b"\xff", b"{", b"[" * 100_000):
        assert not Filter(fields=fields).matches(message(no_json))
    for bad in ("a", "=1", ""):
        with pytest.raises(typer.BadParameter):
            parse_fields([bad])


# --- format strings


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("{offset} {key} {payload}\\n", b'17 \xfe {"a": ["\xc3\xbc", 1.5]}\n'),
        ("{producer}:{sequence_id}:{bytes}\\0", b"p:4:18\0"),
        ("{publish_timestamp} {publish_time}", b"1700000000123 2023-11-14T22:13:20.123+00:00"),
        ("{field.a.0}{field.a}{field.b}|{property.x}{property.y}|{properties}", 'ü["ü",1.5]|1|{"x": "1"}'.encode()),
        ("{{}}\\\\\\t\\x41ü", "{}\\\tAü".encode()),
        ("line\nbreak", b"line\nbreak"),
        ("", b""),
    ],
)
def test_a_format_string_says_what_is_written(template: str, written: bytes) -> None:
    assert parse(template)(message('{"a": ["ü", 1.5]}'.encode(), b"\xfe", x="1")) == written


def test_what_is_not_there_is_nothing_and_every_field_can_be_written() -> None:
    empty = Message({**_record(b"", None, {}), "producer": None, "sequenceId": None})
    assert parse("[{key}{payload}{producer}{sequence_id}{property.a}{field.a}]")(empty) == b"[]"
    for name in FIELDS:
        assert isinstance(parse("{" + name + "}")(empty), bytes)


@pytest.mark.parametrize(
    "template", ["{", "}", "{a", "{nothing}", "{}", "{property.}", "{field}", "{0}", "\\", "\\q", "\\x1", "{{}"]
)
def test_a_format_string_that_is_none_is_refused(template: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse(template)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_written(text: str) -> None:
    escaped = text.replace("\\", "\\\\").replace("{", "{{").replace("}", "}}")
    assert parse(escaped)(message()) == text.encode()


# --- a terminal


@given(st.binary())
@example(b"\x1b]0;owned\x07\r\x9b31m\xc2\x9b31m\x7f\n\tplain")
@example("a\u202eb\u2066c\u200ed\u2028e".encode())
def test_what_a_terminal_is_given_cannot_drive_it(data: bytes) -> None:
    text = shown(data).decode()
    assert re.fullmatch("[^\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\u2028\u2029]*", text)
    assert shown(text.encode()).decode() == text


def test_a_terminal_is_given_all_that_is_text() -> None:
    text = "Zürich\t\u2708 日本\n\U0001f600"
    assert shown(text.encode()) == text.encode()
    assert shown(b"\x1b[31m\xff\x00\r") == rb"\x1b[31m\xff\x00\r"


# --- what is written can be read

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MESSAGES = st.lists(
    st.tuples(
        st.binary(max_size=8) | TEXT.map(str.encode),
        st.none() | st.binary(min_size=1, max_size=4),
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.text("a,\n\"'", max_size=3), max_size=2
        ),
    ),
    max_size=4,
)


@pytest.mark.parametrize("written", [Written.JSON, Written.CSV, Written.PARQUET])
@examples(12)
@given(MESSAGES)
@example([(b"\r", b"\xff", {"a": '"'}), (b"", None, {}), (b'"', b"\r\n", {}), (b"\xff,", b",", {"": ""})])
def test_what_is_written_is_published_again_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, written: Written, found: list[tuple[bytes, bytes | None, dict[str, str]]]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"written.{written}"
    with writing(written, None, "t", path) as writer:
        for offset, each in enumerate(found):
            writer.write([Seen(Message(_record(*each, offset)))])
    numbers = Numbers(Numbering(column="offset"))
    with opened(Kind(written.value), [], path, Columns(number="offset"), False, Interrupts()) as source:
        rows = [row for rows in source.rows for row in rows]
    assert [(row.payload, row.key, dict(row.properties or {})) for row in rows] == found
    assert [numbers.of(at, row) for at, row in enumerate(rows)] == list(range(len(found)))


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_bytes(b"as it was")

    def fails() -> None:
        with writing(Written.TEXT, None, "t", path) as writer:
            writer.write([Seen(message(b"a"))])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert [each.name for each in tmp_path.iterdir()] == ["messages"]
    assert path.read_bytes() == b"as it was"
    with writing(Written.HEX, None, "t", path) as writer:
        writer.write([Seen(message(b"\xffa")), Seen(message(b""))])
    assert path.read_bytes() == b"ff61\n\n"
    os.mkfifo(tmp_path / "fifo")
    for bad in (tmp_path, Path("/"), Path(), tmp_path / "fifo"):
        with pytest.raises(typer.BadParameter, match="is no file"), writing(Written.RAW, None, "t", bad):
            pass
    with pytest.raises(FileNotFoundError), writing(Written.RAW, None, "t", tmp_path / "nowhere" / "x"):
        pass
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fifo", "messages"]


def test_a_file_that_is_replaced_keeps_its_rights_and_a_link_to_it_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"as it was")
    real.chmod(0o600)
    link.symlink_to(real)
    with writing(Written.RAW, None, "t", link) as writer:
        writer.write([Seen(message(b"new"))])
    assert (link.is_symlink(), real.read_bytes(), stat.S_IMODE(real.stat().st_mode)) == (True, b"new", 0o600)


def test_all_of_a_file_is_on_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, found = tmp_path / "f", directory.sync, []

    def sync(handle: int) -> None:
        found.append((os.pread(handle, 100, 0), path.exists()))
        real(handle)

    monkeypatch.setattr(writers, "sync", sync)
    with writing(Written.RAW, None, "t", path) as writer:
        writer.write([Seen(message(b"all of it"))])
    assert (found, path.read_bytes()) == ([(b"all of it", False)], b"all of it")


@pytest.mark.parametrize(("rows", "size", "groups"), [(3, 10**6, [3, 3, 1]), (10**6, 8, [4, 3]), (10**6, 10**6, [7])])
def test_of_a_parquet_file_no_more_than_a_row_group_is_in_memory(
    rows: int, size: int, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_GROUP_ROWS", rows)
    monkeypatch.setattr(writers, "_GROUP_BYTES", size)
    with writing(Written.PARQUET, None, "t", tmp_path / "f") as writer:
        for number in range(7):
            writer.write([Seen(message(b"%02d" % number))])
    file = pq.ParquetFile(tmp_path / "f")
    assert [file.metadata.row_group(each).num_rows for each in range(file.num_row_groups)] == groups
    assert file.read(["value"]).column(0).to_pylist() == [b"%02d" % number for number in range(7)]


def test_of_two_that_write_a_file_at_once_the_second_is_refused_and_what_a_killed_one_left_is_used_again(tmp_path: Path) -> None:
    path, part = tmp_path / "f", tmp_path / "f.part"
    part.write_bytes(b"left by one that was killed, and longer")
    with writing(Written.RAW, None, "t", path) as writer:
        writer.write([Seen(message(b"first"))])
        with pytest.raises(BlockingIOError, match="another command"), writing(Written.RAW, None, "t", path):
            pass
    assert (path.read_bytes(), part.exists()) == (b"first", False)


def test_who_is_interrupted_behind_the_renaming_leaves_alone_what_another_command_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace = tmp_path / "f", os.replace
    other = writing(Written.RAW, None, "t", path)

    def interrupted(part: Path, real: Path) -> None:
        replace(part, real)
        monkeypatch.undo()
        other.__enter__().write([Seen(message(b"second"))])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), writing(Written.RAW, None, "t", path) as writer:
        writer.write([Seen(message(b"first"))])
    assert path.read_bytes() == b"first"
    other.__exit__(None, None, None)
    assert path.read_bytes() == b"second"


def test_who_waits_for_a_file_that_was_finished_meanwhile_does_not_write_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other command ends between the opening of what it writes and the lock."""
    path, lock, other = tmp_path / "f", fcntl.flock, [True]

    def late(file: Any, how: int) -> None:
        if other and other.pop():
            os.replace(tmp_path / "f.part", path)
            path.write_bytes(b"finished")
            lock(file, how)
            assert path.read_bytes() == b"finished"
            return
        assert path.read_bytes() == b"finished"
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with writing(Written.RAW, None, "t", path) as writer:
        assert path.read_bytes() == b"finished"
        writer.write([Seen(message(b"second"))])
    assert path.read_bytes() == b"second"


def test_a_csv_has_its_head_also_where_there_is_no_message(tmp_path: Path) -> None:
    with writing(Written.CSV, None, "t", tmp_path / "c"):
        pass
    with writing(Written.CSV, None, "t", tmp_path / "d") as writer:
        writer.write([Seen(message(b"x", b"\xff"))])
        writer.write([Seen(message(b"y"))])
    assert (tmp_path / "d").read_text().startswith((tmp_path / "c").read_text())
    first, second = csv.DictReader(io.StringIO((tmp_path / "d").read_text()))
    assert (first["payload"], first["key"], first["key_base64"], first["offset"]) == ("x", "", "/w==", "17")
    assert (second["payload"], second["sequence_id"], second["publish_time"][:10]) == ("y", "4", "2023-11-14")
