"""Writes a topic into Parquet files, each message once, without a database or a position of its own.

    pip install pyarrow
    python -m examples.to_parquet readings archive/ --follow &
    python -m examples.to_parquet readings archive/ --page readings.html

A file is named by the offsets that it has, `00000000000000000000-00000000000000000999.parquet`, and appears whole, by a rename.
So the folder itself says where to go on: behind the last file. Two at once do no harm: files begin at multiples of their length,
or behind a file that is there, and of two that begin alike the longer one has all that the other has. The shorter one is deleted
then, by whoever is killed in between at its next start; who reads the folder meanwhile takes the longer (`parts`).

Where producers write in transactions, what is archived is what they have committed. For terabytes and for many machines take
Spark (docs/spark.md), which has a commit log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from oncelog import Message, Reader

LENGTH = 1_000
"""Messages of a full file."""
SCHEMA = pa.schema(
    {"offset": pa.int64(), "time": pa.timestamp("ms", "UTC"), "key": pa.string(), "payload": pa.binary()},
)
_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")


class Part(NamedTuple):
    """One file: the offsets of its first message and of its last."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.first:020}-{self.last:020}.parquet"


def parts(folder: Path) -> list[Part]:
    """Those that are there, in order; of two that begin alike only the longer."""
    found = [Part(int(name[1]), int(name[2])) for each in folder.iterdir() if (name := _NAME.fullmatch(each.name))]
    return sorted({each.first: each for each in sorted(found)}.values())


class Archive:
    """A folder, and the topic that goes into it."""

    def __init__(self, topic: str, folder: Path) -> None:
        self.topic = topic
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def follow(self, timeout: float | None = 0) -> int:
        """Archives what there is, and what comes within ``timeout`` seconds of it (None: for ever); how many messages."""
        archived = 0
        self._tidy()
        last = self._last()
        with Reader(self.topic, start=0 if last is None else last.last + 1, inclusive=True, on_expired="skip") as reader:
            while messages := reader.read(LENGTH, timeout=timeout):
                while messages:
                    block = messages[0].offset // LENGTH
                    file = [*takewhile(lambda each, block=block: each.offset // LENGTH == block, messages)]
                    del messages[: len(file)]
                    last = self._write(file, last)
                    archived += len(file)
        return archived

    def table(self) -> pa.Table:
        """All that is archived."""
        while True:
            try:
                files = [pq.read_table(self.folder / each.name) for each in parts(self.folder)]
            except FileNotFoundError:  # there is a longer one by now
                continue
            return pa.concat_tables([SCHEMA.empty_table(), *files])

    def _write(self, messages: Sequence[Message[bytes]], last: Part | None) -> Part:
        """Writes messages behind the last file: into it, if they belong there."""
        if last is not None:
            messages = [each for each in messages if each.offset > last.last]
            if not messages:
                return last
        table = pa.Table.from_pylist([row_of(each) for each in messages], SCHEMA)
        first = messages[0].offset
        if last is not None and last.last // LENGTH == first // LENGTH:
            try:
                before = pq.read_table(self.folder / last.name)
            except FileNotFoundError:  # somebody else has written more
                return self._write(messages, self._last())
            table, first = pa.concat_tables([before, table]), last.first
        part = Part(first, messages[-1].offset)
        temporary = self.folder / f".{part.name}.{os.getpid()}"
        pq.write_table(table, temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.rename(self.folder / part.name)
        self._tidy()
        return part

    def _last(self) -> Part | None:
        return next(reversed(parts(self.folder)), None)

    def _tidy(self) -> None:
        """Deletes the files of which a longer one has everything, once that is there for good."""
        directory = os.open(self.folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        there = {each.name for each in parts(self.folder)}
        for each in self.folder.iterdir():
            if _NAME.fullmatch(each.name) and each.name not in there:
                each.unlink(missing_ok=True)


def row_of(message: Message[bytes]) -> dict[str, object]:
    """A message as a row of SCHEMA. One that was erased has no payload."""
    key, payload = None if message.key is None else message.key.decode(), None if message.erased else message.payload
    return {"offset": message.offset, "time": message.publish_timestamp, "key": key, "payload": payload}
