"""How `oncelog read` writes messages: as text, JSON, raw, hex, CSV or Parquet, to stdout or into a file."""

from __future__ import annotations

import base64
import csv
import fcntl
import io
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import typer

from oncelog import Message
from oncelog.wire.models import RowState
from oncelog_service.cli.messages.template import Form
from oncelog_service.cli.messages.terminal import shown
from oncelog_service.cli.output import iso_time
from oncelog_service.storage.files.directory import sync

_GROUP_ROWS, _GROUP_BYTES = 100_000, 32 * 2**20
"""Of a row group of Parquet; what is read until then is in memory."""
_CSV = (
    "offset", "generation", "message_id", "publish_timestamp", "publish_time", "producer", "sequence_id", "key", "key_base64",
    "properties", "payload", "payload_base64", "ttl",
)  # fmt: skip


class Written(StrEnum):
    """What messages are written as."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"
    HEX = "hex"
    CSV = "csv"
    PARQUET = "parquet"


class Seen(NamedTuple):
    """A message, and what became of the transaction it is of."""

    message: Message[bytes]
    write_pointer: int | None = None
    state: RowState | None = None


class Writer(Protocol):
    """Where messages are written."""

    def write(self, messages: Sequence[Seen]) -> None:
        """Write them, and let go of them where that can be."""
        ...

    def close(self) -> None:
        """All is written."""
        ...


@contextmanager
def writing(form: Written, template: Form | None, topic: str, to: Path | None, states: bool = False) -> Iterator[Writer]:
    """A writer. A file has all of what is written in this block, or it is not touched. ``states``: what became of transactions is
    a column of CSV and Parquet. Raises BadParameter, OSError."""
    is_terminal = to is None and sys.stdout.isatty()
    if is_terminal and form in (Written.RAW, Written.PARQUET):
        raise typer.BadParameter(f"{form} is for a pipe or a file, not for a terminal", param_hint="--output")
    if to is None:
        writer = _writer(form, template, topic, sys.stdout.buffer, is_terminal, states)
        yield writer
        writer.close()
        return
    with _replacing(to) as file:
        writer = _writer(form, template, topic, file, False, states)
        yield writer
        writer.close()


@contextmanager
def _replacing(to: Path) -> Iterator[BinaryIO]:
    """A file beside it that takes its place, and its rights, when the block has ended by itself; else it goes.

    It has a name that is known, so that one which a killed command has left is used again, and a lock, so that of two commands at
    once the second is refused. Raises BadParameter: it can be no file. OSError.
    """
    real = Path(os.path.realpath(to))
    if real.is_dir() or (real.exists() and not real.is_file()):
        raise typer.BadParameter(f"{str(to)!r} is no file", param_hint="--to")
    part = real.with_name(real.name + ".part")
    with _locked(part) as file:
        try:
            file.truncate()
            if real.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(real.stat().st_mode))
            yield file
            file.flush()
            sync(file.fileno())
            os.replace(part, real)
        except BaseException as error:
            if _is_named(file, part):  # behind the renaming it is another command's
                part.unlink()
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(part)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file under this name, made where there is none, which nobody else has open like this. Raises OSError."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, "another command is writing it", str(path)) from None
            if _is_named(file, path):
                yield file
                return
        # Whoever had the lock has taken the file from under this name.


def _is_named(file: BinaryIO, path: Path) -> bool:
    """Whether it is this open file that has the name. While it is, and is locked here, nobody else takes it away."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    return False


def _writer(form: Written, template: Form | None, topic: str, out: BinaryIO, is_terminal: bool, states: bool) -> Writer:
    if template is not None:
        return _Bytes(out, lambda seen: template(seen.message), is_terminal)
    match form:
        case Written.PARQUET:
            return _Parquet(out, topic, states)
        case Written.CSV:
            names = (*_CSV, "state") if states else _CSV
            return _Bytes(out, lambda seen: _as_csv(seen, names), is_terminal, ",".join(names).encode() + b"\n")
        case Written.JSON:
            return _Bytes(out, _as_json, is_terminal)
        case Written.HEX:
            return _Bytes(out, lambda seen: seen.message.payload.hex().encode() + b"\n", is_terminal)
        case Written.RAW:
            return _Bytes(out, lambda seen: seen.message.payload, is_terminal)
    return _Bytes(out, lambda seen: seen.message.payload + b"\n", is_terminal)


class _Bytes:
    """Writes each message as bytes; on a terminal only such as cannot drive it."""

    def __init__(self, out: BinaryIO, form: Callable[[Seen], bytes], is_terminal: bool, head: bytes = b"") -> None:
        self._out, self._form, self._is_terminal = out, form, is_terminal
        self._head = head

    def write(self, messages: Sequence[Seen]) -> None:
        """Write them, and have them be gone from here."""
        data, self._head = self._head + b"".join(map(self._form, messages)), b""
        self._out.write(shown(data) if self._is_terminal else data)
        self._out.flush()

    def close(self) -> None:
        """All is written."""
        self.write([])


def as_members(seen: Seen) -> dict[str, Any]:
    """A message as JSON has it."""
    message = seen.message
    return {
        "message_id": str(message.message_id),
        "offset": message.offset,
        "generation": message.generation,
        "publish_timestamp": message.publish_timestamp,
        "publish_time": iso_time(message.publish_timestamp),
        "producer": message.producer,
        "sequence_id": message.sequence_id,
        "write_pointer": seen.write_pointer,
        "state": seen.state,
        **_text("key", message.key),
        "properties": message.properties,
        "ttl": message.ttl,
        **_text("payload", message.payload),
    }


def _as_json(seen: Seen) -> bytes:
    return json.dumps(as_members(seen)).encode() + b"\n"


def _as_csv(seen: Seen, names: Sequence[str]) -> bytes:
    members = as_members(seen)
    members["properties"] = json.dumps(members["properties"]) if members["properties"] else None
    line = io.StringIO()
    # A carriage return alone is quoted only where it is part of the line end.
    csv.writer(line, lineterminator="\r\n").writerow([members.get(name) for name in names])
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """As text where it is UTF-8, else in base64 under a name that says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


class _Parquet:
    """Writes rows with columns as Spark's source names them."""

    def __init__(self, out: BinaryIO, topic: str, states: bool) -> None:
        try:
            import pyarrow as pa
            from pyarrow.parquet import ParquetWriter
        except ImportError:
            raise typer.BadParameter("Parquet needs pyarrow: pip install pyarrow", param_hint="--output") from None
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        columns = [("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("offset", pa.int64())]
        columns += [("timestamp", pa.timestamp("us", "UTC")), ("headers", pa.list_(header)), ("message_id", pa.binary())]
        columns += [("producer", pa.string()), ("sequence_id", pa.int64()), ("generation", pa.int64())]
        columns += [("state", pa.string())] if states else []
        self._schema = pa.schema(columns)
        self._batch, self._topic = pa.RecordBatch, topic
        self._writer: Any = ParquetWriter(out, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, messages: Sequence[Seen]) -> None:
        """Keep them, until there are enough of them for a row group."""
        for message, _, state in messages:
            self._rows.append(
                {
                    "key": message.key,
                    "value": message.payload,
                    "topic": self._topic,
                    "offset": message.offset,
                    "timestamp": message.publish_timestamp * 1000,
                    "headers": [{"key": name, "value": value.encode()} for name, value in message.properties.items()],
                    "message_id": bytes(message.message_id),
                    "producer": message.producer,
                    "sequence_id": message.sequence_id,
                    "generation": message.generation,
                    "state": state,
                }
            )
            self._bytes += len(message.payload)
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write()

    def close(self) -> None:
        """Write the rest, and what makes it a file."""
        if self._rows:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        self._writer.write_batch(self._batch.from_pylist(self._rows, self._schema))
        self._rows, self._bytes = [], 0
