"""Where the messages of `oncelog publish` come from: lines, JSON, CSV, Parquet, whole files. Row after row, none skipped.

Invariant: which row is which number is said by the input up to that row. A row that is no row ends the input with a fault, and
all rows before it have come by then.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import typer

from oncelog.errors import InvalidRequest
from oncelog_service.cli.messages.interrupts import Interrupts
from oncelog_service.cli.messages.rows import MESSAGE_ID, Columns, Row, as_message, as_object, by_columns

_BLOCK = 64 * 1024
"""Bytes read at once."""
_MAX_ROW = 64 * 2**20
"""A longer line than any service takes: the file is none of lines, and holding it would fill the memory."""
_TOGETHER = 5_000
"""Rows at most that are handed over together."""

T = TypeVar("T")


class Kind(StrEnum):
    """What the input is made of."""

    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Source:
    """Messages as they come."""

    rows: Iterator[list[Row]]
    """Raises InvalidRequest for a row that is none, when all before it were handed over."""
    noun: str
    """What a row is called."""
    size: int | None = None
    """Of all of it, where that is known."""
    position: Callable[[], int] = lambda: 0
    """How much of that has been read."""
    names: Sequence[str] = ()
    """Of the rows, where each is a file."""
    said: Callable[[], str] = str
    """What else tells how far it has been read."""

    def called(self, at: int) -> str:
        """Which row is meant."""
        return f"{self.noun} {self.names[at]}" if at < len(self.names) else f"{self.noun} {at} (from 0)"


@contextmanager
def opened(
    kind: Kind, messages: list[str], file: Path | None, columns: Columns, by_name: bool, interrupts: Interrupts
) -> Iterator[Source]:
    """The source that the command line names. Raises BadParameter. ``by_name``: files are in the order of their numbers."""
    given = [] if messages == ["-"] else messages
    if given and file is not None:
        raise typer.BadParameter("give messages or --file, not both")
    if columns.generation is not None and (kind is Kind.FILE or (kind is Kind.LINES and not columns.named)):
        raise typer.BadParameter("is what messages of `oncelog read` say: JSON, CSV, Parquet", param_hint="--source-generation")
    if kind is Kind.FILE:
        if columns.named:
            raise typer.BadParameter("a whole file has no columns", param_hint="--input")
        yield _files(given if file is None else [str(file)], by_name, interrupts)
    elif given:
        if kind is not Kind.LINES or columns.named:
            raise typer.BadParameter("arguments are messages as they stand; it goes with --file or stdin", param_hint="--input")
        yield Source(iter([[Row(os.fsencode(message)) for message in given]]), "message")
    elif kind is Kind.PARQUET:
        if file is None:
            raise typer.BadParameter("Parquet is read from its end: give --file", param_hint="--input")
        with _parquet(file, columns) as source:
            yield source
    elif file is not None:
        try:
            handle = file.open("rb", buffering=0)
        except OSError as error:
            raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None
        with handle:
            rows, noun = _of_lines(kind, _blocks(handle.read, interrupts), columns)
            yield Source(rows, noun, os.fstat(handle.fileno()).st_size or None, handle.tell)
    elif sys.stdin.isatty() and not messages:
        raise typer.BadParameter("no message: give some, or --file, or - to type them here, one a line, Ctrl-D at the end")
    else:
        yield Source(*_of_lines(kind, _stdin(interrupts), columns))


def _stdin(interrupts: Interrupts) -> Iterator[bytes]:
    return _blocks(cast(BufferedReader, sys.stdin.buffer).read1, interrupts)


def _blocks(read: Callable[[int], bytes | None], interrupts: Interrupts) -> Iterator[bytes]:
    while True:
        with interrupts.let_through():
            try:
                block = read(_BLOCK)
            except OSError as error:
                raise InvalidRequest(f"cannot be read: {error.strerror}") from None
        if not block:
            return
        yield block


# --- lines, JSON, CSV


def lines_of(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines in each block as soon as they are complete, without their line feed; empty ones count. Raises InvalidRequest."""
    rest: list[bytes] = []
    size = 0
    for block in blocks:
        head, feed, tail = block.partition(b"\n")
        rest.append(head)
        size += len(head)
        if size > _MAX_ROW:
            raise InvalidRequest(f"a line is longer than {_MAX_ROW} bytes; is this text?")
        if feed:
            lines = tail.split(b"\n")
            last = lines.pop()
            yield [b"".join(rest), *lines]
            rest, size = [last], len(last)
    if size:
        yield [b"".join(rest)]


def _of_lines(kind: Kind, blocks: Iterator[bytes], columns: Columns) -> tuple[Iterator[list[Row]], str]:
    """Rows, and what each is called."""
    lines = lines_of(blocks)
    if kind is Kind.CSV:
        return csv_rows(lines, columns), "row"
    if kind is Kind.LINES and not columns.named:
        return ([Row(line) for line in found] for found in lines), "line"
    feed = Feed(lines)
    if kind is Kind.LINES:
        return together((by_columns(as_object(line), columns, line) for line in feed), feed), "line"
    if columns.named and columns.named != [columns.number]:
        raise typer.BadParameter("JSON says itself what is payload, key and properties", param_hint="--input")
    return together((as_message(as_object(line), columns) for line in feed), feed), "line"


class Feed(Generic[T]):
    """Hands out one by one what comes in lists, and knows whether the next one has come already."""

    def __init__(self, lists: Iterable[list[T]]) -> None:
        self._lists = lists
        self.left: deque[T] = deque()

    def __iter__(self) -> Iterator[T]:
        for found in self._lists:
            self.left.extend(found)
            while self.left:
                yield self.left.popleft()


def together(rows: Iterator[Row], feed: Feed[Any]) -> Iterator[list[Row]]:
    """The rows in lists: each ends where the next row has still to come. Those before a fault come before it."""
    found: list[Row] = []
    try:
        for row in rows:
            found.append(row)
            if not feed.left or len(found) >= _TOGETHER:
                yield found
                found = []
    except InvalidRequest as error:
        fault: InvalidRequest | None = error
    else:
        fault = None
    if found:
        yield found
    if fault is not None:
        raise fault


def csv_rows(lines: Iterable[list[bytes]], columns: Columns) -> Iterator[list[Row]]:
    """The rows behind the first one, which names the columns. Raises InvalidRequest, also at once where that has a fault."""
    csv.field_size_limit(_MAX_ROW)
    feed = Feed(lines)
    records = _records(feed)
    names = next(records, [])
    wanted = set(columns.named)
    if not all(names) or len(set(names)) < len(names) or not names:
        raise InvalidRequest("the first row names the columns: each has a name, and no two the same")
    if lacking := wanted - set(names):
        raise InvalidRequest(f"there is no column {', '.join(sorted(lacking))}; there are {', '.join(names)}")
    are_messages = {"payload", "payload_base64"} <= set(names) and columns.named in ([], [columns.number])

    def row(record: Sequence[str]) -> Row:
        if len(record) != len(names):
            raise InvalidRequest(f"has {len(record)} cells, and there are {len(names)} columns")
        members = dict(zip(names, record, strict=True))
        if are_messages:
            return as_message(_told(members), columns)
        if columns.key is not None and not members[columns.key]:
            return by_columns(members, columns._replace(key=None))
        return by_columns(members, columns)

    return together(map(row, records), feed)


def _records(feed: Feed[bytes]) -> Iterator[list[str]]:
    """The records of a CSV; an empty line is none. Raises InvalidRequest."""

    def texts() -> Iterator[str]:
        codec = "utf-8-sig"  # a mark at the beginning is no part of the first name
        for line in feed:
            yield line.decode(codec) + "\n"
            codec = "utf-8"

    reader = csv.reader(texts(), strict=True)
    try:
        yield from filter(None, reader)
    except csv.Error as error:
        raise InvalidRequest(f"line {reader.line_num} of the file is no CSV: {error}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"line {reader.line_num + 1} of the file is no UTF-8") from None


def _told(members: Mapping[str, str]) -> dict[str, Any]:
    """The members of a message as `oncelog read -o csv` writes them: what is empty is not there, but for an empty payload."""
    told: dict[str, Any] = {name: text for name, text in members.items() if text}
    if "payload_base64" not in told:
        told.setdefault("payload", "")
    if "properties" in told:
        told["properties"] = as_object(told["properties"].encode())
    return told


# --- Parquet


@contextmanager
def _parquet(file: Path, columns: Columns) -> Iterator[Source]:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise typer.BadParameter("Parquet needs pyarrow: pip install pyarrow", param_hint="--input") from None
    try:
        opened = ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise typer.BadParameter(f"{file}: {getattr(error, 'strerror', None) or error}", param_hint="--file") from None
    with opened:
        names = opened.schema_arrow.names
        if len(set(names)) < len(names):
            raise typer.BadParameter("two of its columns have the same name", param_hint="--file")
        if lacking := set(columns.named) - set(names):
            lacks = f"there is no column {', '.join(sorted(lacking))}; there are {', '.join(names)}"
            raise typer.BadParameter(lacks, param_hint="--file")
        are_messages = columns.named in ([], [columns.number]) and "value" in names
        if are_messages:
            kind = opened.schema_arrow.field("value").type
            are_messages = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        said = {MESSAGE_ID, "generation", "state"}.intersection(names)
        needed = sorted({*columns.named, *said} if columns.payload else {*names})
        if are_messages:
            needed = [name for name in ("value", "key", "headers", *said, columns.number) if name in names]
        read = [0]

        def lists() -> Iterator[list[dict[str, Any]]]:
            try:
                for batch in opened.iter_batches(1_000, columns=needed):
                    yield batch.to_pylist()
                    read[0] += batch.num_rows
            except (OSError, ValueError, pa.ArrowException) as error:
                raise InvalidRequest(f"cannot be read: {error}") from None

        feed = Feed(lists())
        make = _archived if are_messages else by_columns
        yield Source(together((make(each, columns) for each in feed), feed), "row", opened.metadata.num_rows, lambda: read[0])


def _archived(members: Mapping[str, Any], columns: Columns) -> Row:
    """A row of an archive, or of `oncelog read -o parquet`: named as Kafka's source of Spark names them."""
    properties = _properties(members.get("headers"))
    names = columns._replace(payload="value", key="key" if members.get("key") is not None else None)
    row = by_columns(members, names)
    return row._replace(properties=properties or None)


def _properties(headers: Any) -> dict[str, str]:
    found = {}
    for each in [] if headers is None else headers if isinstance(headers, list) else [headers]:
        match each:
            case {"key": str() as key, "value": bytes() | None as value}:
                found[key] = (value or b"").decode("utf-8", "replace")
            case _:
                raise InvalidRequest("its headers are no list of keys that are texts, and values that are bytes")
    return found


# --- whole files


def _files(names: Sequence[str], by_name: bool, interrupts: Interrupts) -> Source:
    if not names:
        whole = b"".join(_bounded(_stdin(interrupts)))
        return Source(iter([[Row(whole)]]), "message")
    numbered: list[tuple[int | None, str]] = [(number_in(name) if by_name else None, name) for name in names]
    if by_name:
        numbered.sort()
        for (number, name), (next_number, other) in pairwise(numbered):
            if number == next_number:
                raise typer.BadParameter(f"{name} and {other} have the same number: {number}", param_hint="--sequence-id")
    for name in names:
        if not Path(name).is_file():
            raise typer.BadParameter(f"{name} is no file", param_hint="--input")

    def rows() -> Iterator[list[Row]]:
        for number, name in numbered:
            try:
                with open(name, "rb", buffering=0) as file:
                    yield [Row(b"".join(_bounded(_blocks(file.read, interrupts))), number)]
            except OSError as error:
                raise InvalidRequest(f"cannot be read: {error.strerror}") from None

    done = [0]

    def counted() -> Iterator[list[Row]]:
        for found in rows():
            yield found
            done[0] += 1

    return Source(counted(), "file", len(names), lambda: done[0], [name for _, name in numbered])


def number_in(name: str) -> int:
    """The number in a file's name: the last one before its ending. Raises BadParameter."""
    found = re.findall(r"[0-9]+", Path(name).stem)
    if not found or len(found[-1]) > 18:
        raise typer.BadParameter(f"no sequence id is in the name {Path(name).name}", param_hint="--sequence-id")
    return int(found[-1])


def _bounded(blocks: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for block in blocks:
        size += len(block)
        if size > _MAX_ROW:
            raise InvalidRequest(f"it has more than {_MAX_ROW} bytes")
        yield block
