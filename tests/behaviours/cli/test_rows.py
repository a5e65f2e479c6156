"""What rows of files are as messages, and which number each has: tables and properties, without a service."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest, SequenceGap
from oncelog_service.cli.messages import sources
from oncelog_service.cli.messages.interrupts import Interrupts
from oncelog_service.cli.messages.numbering import Gaps, Numbering, Numbers, parse_numbering
from oncelog_service.cli.messages.rows import Columns, Row, as_json, as_message, as_number, by_columns
from oncelog_service.cli.messages.sources import Feed, Kind, csv_rows, lines_of, number_in, opened, together

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def _blocks(data: bytes, ends: Sequence[int]) -> Iterator[bytes]:
    """The data, cut at these places."""
    places = sorted({0, len(data), *(end % (len(data) + 1) for end in ends)})
    return (data[begin:end] for begin, end in pairwise(places))


@given(st.lists(st.binary(max_size=5)))
def test_lines_are_the_same_however_the_bytes_arrive(blocks: list[bytes]) -> None:
    data = b"".join(blocks)
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert [line for lines in lines_of(iter(blocks)) for line in lines] == expected


def test_what_would_fill_the_memory_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_MAX_ROW", 100)
    monkeypatch.setattr(sources, "_BLOCK", 40)
    assert list(lines_of([b"x" * 60, b"x" * 40 + b"\n" + b"y" * 60])) == [[b"x" * 100], [b"y" * 60]]
    with pytest.raises(InvalidRequest, match="a line is longer than 100 bytes"):
        list(lines_of([b"x" * 60, b"x" * 41]))

    def read(size: int) -> list[Row]:
        (tmp_path / "f").write_bytes(b"x" * size)
        with opened(Kind.FILE, [str(tmp_path / "f")], None, Columns(), False, Interrupts()) as source:
            return [row for rows in source.rows for row in rows]

    assert read(100) == [Row(b"x" * 100)]
    with pytest.raises(InvalidRequest, match="more than 100 bytes"):
        read(101)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=6), st.lists(st.integers(0, 200), max_size=5), st.sampled_from(["\n", "\r\n"]))
@example([('quo"ted', "two\nlines"), ("two\r\nlines", "\0,"), ("", "x")], [11, 17, 23], "\r\n")
def test_the_rows_of_a_csv_are_the_same_however_the_bytes_arrive(rows: list[tuple[str, str]], ends: list[int], end: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    data = b"\xef\xbb\xbf" + text.getvalue().encode()
    found = [row for batch in csv_rows(lines_of(_blocks(data, ends)), Columns(payload="a", key="b")) for row in batch]
    assert [(row.payload.decode(), (row.key or b"").decode()) for row in found] == rows


def test_a_row_of_a_csv_is_a_json_object_of_its_texts() -> None:
    data = b'id,city,note\n7,K\xc3\xb6ln,"a ""b"""\n\n8,,\n'
    (found,) = csv_rows(lines_of([data]), Columns(number="id", properties=("city",)))
    assert [json.loads(row.payload) for row in found] == [
        {"id": "7", "city": "Köln", "note": 'a "b"'},
        {"id": "8", "city": "", "note": ""},
    ]
    assert [(row.number, row.properties) for row in found] == [(7, {"city": "Köln"}), (8, {"city": ""})]
    assert found[0].payload == '{"id":"7","city":"Köln","note":"a \\"b\\""}'.encode()


@pytest.mark.parametrize(
    ("data", "columns", "before", "says"),
    [
        (b"a,b\n1,2\n3\n4,5\n", Columns(), 1, "has 1 cells, and there are 2 columns"),
        (b"a,b\n1,2\n3,4,5\n", Columns(), 1, "has 3 cells"),
        (b'a,b\n1,2\n3,4\n5,"6\n7,8', Columns(), 2, "no CSV"),
        (b'a,b\n1,"2"x\n', Columns(), 0, "line 2 of the file is no CSV"),
        (b"a,b\n1,2\n\xff,4\n", Columns(), 1, "line 3 of the file is no UTF-8"),
        (b"a,a\n1,2\n", Columns(), 0, "no two the same"),
        (b"a,\n1,2\n", Columns(), 0, "each has a name"),
        (b"", Columns(), 0, "the first row names the columns"),
        (b"a,b\n1,2\n", Columns(payload="c"), 0, "there is no column c; there are a, b"),
        (b"a,b\n1,2\n2,x\n", Columns(number="b"), 1, "b is no sequence id: 'x'"),
        (b"payload,payload_base64\nx,\n,%\n", Columns(), 1, "its payload_base64 is no base64"),
    ],
)
def test_what_is_no_row_ends_a_csv_when_all_rows_before_it_have_come(
    data: bytes, columns: Columns, before: int, says: str
) -> None:
    found: list[Row] = []

    def read() -> None:
        for rows in csv_rows(lines_of([data]), columns):
            found.extend(rows)

    with pytest.raises(InvalidRequest, match=says):
        read()
    assert len(found) == before


def test_rows_are_handed_over_before_the_next_one_has_to_be_waited_for() -> None:
    arrived: list[int] = []

    def lists() -> Iterator[list[int]]:
        for each in ([1, 2], [3], [4, 5, 6]):
            arrived.append(each[-1])
            yield each

    feed = Feed(lists())
    rows = together((Row(b"", number) for number in feed), feed)
    for upto in (2, 3, 6):
        assert next(rows)[-1].number == upto
        assert arrived[-1] == upto


def test_json_of_a_row_is_the_same_each_time_and_says_what_it_cannot() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    row = {
        "n": 1,
        "x": 0.5,
        "none": None,
        "at": at,
        "day": at.date(),
        "sum": Decimal("1.10"),
        "b": b"\xff",
        "deep": {"a": [1]},
    }
    assert json.loads(as_json(row)) == {
        "n": 1, "x": 0.5, "none": None, "at": "2026-01-31T12:00:00+00:00", "day": "2026-01-31", "sum": "1.10", "b": "/w==",
        "deep": {"a": [1]},
    }  # fmt: skip
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match="cannot be JSON"):
            as_json({"x": bad})


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({}, "neither payload nor payload_base64"),
        ({"payload": 1}, "its payload is no text"),
        ({"payload": "\ud800"}, "no text that UTF-8 can say"),
        ({"payload_base64": "?"}, "is no base64"),
        ({"payload": "", "properties": {"a": 1}}, "no object of texts"),
        ({"payload": "", "properties": []}, None),
        ({"payload": "", "properties": ["a"]}, "no object of texts"),
        ({"payload": "", "n": True}, "n is no sequence id"),
        ({"payload": "", "n": -1}, "n is no sequence id"),
        ({"payload": "", "n": 2**63}, "n is no sequence id"),
        ({"payload": "", "n": 1.0}, "n is no sequence id"),
        ({"payload": ""}, "has no n"),
    ],
)
def test_a_message_in_json_says_what_is_wrong_with_it(members: dict[str, object], says: str | None) -> None:
    numbered = says is not None and (says.startswith("n is") or says == "has no n")
    if says is None:
        assert as_message(members, Columns()) == Row(b"")
        return
    with pytest.raises(InvalidRequest, match=says):
        as_message(members, Columns(number="n" if numbered else None))


def test_a_column_may_be_text_bytes_or_a_whole_number_and_nothing_else() -> None:
    members = {"t": "ü", "b": b"\xff", "n": 17, "f": 1.5, "yes": True, "null": None}
    for name, payload in (("t", "ü".encode()), ("b", b"\xff"), ("n", b"17")):
        assert by_columns(members, Columns(payload=name)).payload == payload
    assert by_columns(members, Columns(payload="n", key="null", properties=("null", "t"))) == Row(b"17", None, None, {"t": "ü"})
    for columns in (Columns("f"), Columns("yes"), Columns("null"), Columns("n", key="f"), Columns("n", properties=("b",))):
        with pytest.raises(InvalidRequest):
            by_columns(members, columns)
    assert by_columns({"a": 1}, Columns(key="a"), b'{"a": 1}') == Row(b'{"a": 1}', None, b"1")


@pytest.mark.parametrize(
    ("text", "resume", "are_files", "expected"),
    [
        (None, False, False, Numbering()),
        (None, True, False, Numbering(first=0)),
        ("line", False, False, Numbering(first=0)),
        ("line", True, False, Numbering(first=0)),
        ("7", False, False, Numbering(first=7)),
        ("7", False, True, Numbering(first=7)),
        (str(2**63 - 1), False, False, Numbering(first=2**63 - 1)),
        ("column=a=b", True, False, Numbering(column="a=b")),
        ("name", True, True, Numbering(by_name=True)),
        ("7", True, False, None),
        ("-1", False, False, None),
        (str(2**63), False, False, None),
        ("column=", False, False, None),
        ("column", False, False, None),
        ("name", False, False, None),
        (None, True, True, None),
        ("line", False, True, None),
    ],
)
def test_a_sequence_id_is_counted_or_of_the_row(
    text: str | None, resume: bool, are_files: bool, expected: Numbering | None
) -> None:
    if expected is None:
        with pytest.raises(typer.BadParameter):
            parse_numbering(text, resume, are_files)
    else:
        assert parse_numbering(text, resume, are_files) == expected


@given(st.lists(st.integers(0, 9), max_size=5))
def test_numbers_of_rows_rise_or_end_the_input(numbers: list[int]) -> None:
    given_, found = Numbers(Numbering(column="n")), []
    rises = all(earlier < later for earlier, later in pairwise(numbers))
    try:
        for at, number in enumerate(numbers):
            found.append(given_.of(at, Row(b"", number)))
    except InvalidRequest:
        assert not rises
        assert found == sorted(set(found))
    else:
        assert rises
        assert found == numbers


@pytest.mark.parametrize(
    ("column", "gaps", "persisted", "numbers", "gap"),
    [
        ("offset", None, None, [7, 9], None),
        ("offset", None, 5, [6, 9], None),
        ("offset", None, 5, [5, 9], None),
        ("offset", None, 5, [0, 2, 5, 9], None),  # what was rolled back has an offset, too
        ("offset", None, 5, [0, 3], None),  # the first of several files, once more
        ("offset", None, 5, [7], (6, 7)),
        ("offset", None, 5, [0, 3, 9], (6, 9)),  # what is persisted is another one's
        ("offset", None, 0, [0, 2], None),
        ("offset", None, 0, [2], (1, 2)),
        ("offset", Gaps.ALLOW, 5, [7], None),
        ("id", None, 5, [7, 9], None),
        ("id", Gaps.REFUSE, None, [7, 8], None),
        ("id", Gaps.REFUSE, None, [7, 9], (8, 9)),
        ("id", Gaps.REFUSE, None, [0, 2], (1, 2)),
        ("id", Gaps.REFUSE, 5, [7], (6, 7)),
        ("id", Gaps.REFUSE, 5, [4, 5, 6], None),
        ("id", Gaps.REFUSE, 5, [2, 4], (3, 4)),
    ],
)
def test_no_hole_comes_behind_what_is_persisted_where_offsets_are_the_numbers_and_none_at_all_where_gaps_are_refused(
    column: str, gaps: Gaps | None, persisted: int | None, numbers: list[int], gap: tuple[int, int] | None
) -> None:
    given_ = Numbers(Numbering(column=column, gaps=gaps), persisted)
    for at, number in enumerate(numbers[:-1]):
        assert given_.of(at, Row(b"", number)) == number
    last = Row(b"", numbers[-1])
    if gap is None:
        assert given_.of(len(numbers), last) == numbers[-1]
        return
    with pytest.raises(SequenceGap, match="say --gaps allow") as refused:
        given_.of(len(numbers), last)
    assert (refused.value.expected, refused.value.received) == gap


@pytest.mark.parametrize("rows", [as_message, by_columns])
@pytest.mark.parametrize(
    ("number", "wanted", "found", "says"),
    [
        ("offset", None, {}, None),  # of an archive, or of a service that did not say
        ("offset", None, {"generation": None}, None),
        ("offset", None, {"generation": ""}, None),
        ("offset", None, {"generation": 1}, None),
        ("offset", None, {"generation": "1"}, None),
        ("offset", None, {"generation": 2}, "is of generation 2 of its topic, not 1.*another.*--source-generation 2"),
        ("offset", None, {"generation": "2"}, "of generation 2"),
        ("offset", 2, {"generation": "2"}, None),
        ("offset", 2, {"generation": 1}, "of generation 1 of its topic, not 2"),
        ("offset", 2, {}, "does not say"),
        ("n", None, {"generation": 2}, None),
        ("n", 2, {"generation": 3}, "of generation 3 of its topic, not 2"),
        (None, 2, {"generation": 3}, "of generation 3"),
    ],
)
def test_a_message_numbered_by_its_offset_is_of_the_generation_that_is_copied(
    rows: Callable[[dict[str, Any], Columns], Row],
    number: str | None,
    wanted: int | None,
    found: dict[str, Any],
    says: str | None,
) -> None:
    members: dict[str, Any] = {"message_id": "0a", "payload": "x", "offset": 7, "n": 7, **found}
    columns = Columns("payload", number=number, generation=wanted)
    if says is None:
        assert rows(members, columns).payload == b"x"
        return
    with pytest.raises(InvalidRequest, match=says):
        rows(members, columns)


def test_a_generation_of_any_row_is_its_own_unless_it_stands_beside_a_message_id_or_is_asked_for() -> None:
    members: dict[str, Any] = {"payload": "x", "offset": 7, "generation": "baby boomers"}
    assert by_columns(members, Columns("payload", number="offset")).number == 7
    for beside, wanted in (({"message_id": "0a"}, None), ({}, 2)):
        with pytest.raises(InvalidRequest, match="is of generation baby boomers"):
            by_columns(members | beside, Columns("payload", number="offset", generation=wanted))


def test_a_payload_that_is_taken_out_of_a_message_is_no_fact_either_where_that_was_rolled_back() -> None:
    members = {"payload": "x", "state": "rolled_back"}
    with pytest.raises(InvalidRequest, match="state is 'rolled_back'"):
        by_columns(members | {"message_id": "0a"}, Columns("payload"))
    for beside, columns in (
        ({}, Columns("payload")),
        ({"message_id": "0a"}, Columns("payload", uncommitted=True)),
        ({"message_id": "0a"}, Columns()),  # the whole row says it itself
        ({"message_id": "0a", "state": ""}, Columns("payload")),  # of a CSV: it was of no transaction
    ):
        assert by_columns(members | beside, columns).payload


def test_the_number_of_a_file_is_the_last_in_its_name(tmp_path: Path) -> None:
    for name, number in (("17.json", 17), ("2026-01-31-flight-017.csv", 17), ("v1.2-00017.json", 17), ("a7b", 7), ("/x9/y0", 0)):
        assert number_in(name) == number
    for name in ("flight.json", "flight.json.7", "1" * 19, "9/x"):
        with pytest.raises(typer.BadParameter):
            number_in(name)
    for name in ("b-10", "a-9", "c-2"):
        (tmp_path / name).write_text(name)
    names = [str(tmp_path / name) for name in ("b-10", "a-9", "c-2")]
    for by_name, expected in ((True, ["c-2", "a-9", "b-10"]), (False, ["b-10", "a-9", "c-2"])):
        with opened(Kind.FILE, names, None, Columns(), by_name, Interrupts()) as source:
            assert [row.payload.decode() for rows in source.rows for row in rows] == expected
            assert source.called(0) == f"file {tmp_path / expected[0]}"
    (tmp_path / "z-09").write_text("the same number")
    with (
        pytest.raises(typer.BadParameter, match="have the same number: 9"),
        opened(Kind.FILE, [*names, str(tmp_path / "z-09")], None, Columns(), True, Interrupts()),
    ):
        pass


@pytest.mark.parametrize(
    ("headers", "properties"),
    [
        (None, None),
        ([], None),
        ([{"key": "a", "value": b"b"}, {"key": "c", "value": None}], {"a": "b", "c": ""}),
        ([{"key": None, "value": b"b"}], ...),
        ([{"key": b"a", "value": b"b"}], ...),
        ([{"key": "a", "value": "b"}], ...),
        ([{"key": "a"}], ...),
        ([{"key": "a", "value": 7}], ...),
        (["a"], ...),
        (7, ...),
    ],
)
def test_the_headers_of_an_archive_are_properties_or_it_says_that_they_are_none(
    headers: Any, properties: Any, tmp_path: Path
) -> None:
    pq.write_table(pa.Table.from_pylist([{"value": b"x", "headers": headers}]), tmp_path / "f")

    def read() -> list[Row]:
        with opened(Kind.PARQUET, [], tmp_path / "f", Columns(), False, Interrupts()) as source:
            return [row for rows in source.rows for row in rows]

    if properties is ...:
        with pytest.raises(InvalidRequest, match="its headers are no list"):
            read()
    else:
        assert read() == [Row(b"x", properties=properties)]


def test_a_number_may_be_text() -> None:
    assert (as_number("n", "007"), as_number("n", 0)) == (7, 0)
    for bad in ("", "٣", "1e3", " 1", None, "9" * 20):
        with pytest.raises(InvalidRequest):
            as_number("n", bad)
