"""A service that kills itself at a chosen write of its journal.

``python -m tests.scenarios.crashing STORE POINT``: the real service over LevelDB, except that each batch is written by itself, in
the order of the writer's, so that there is a moment between any two of them. At the point, JSON of a :class:`CrashPoint`, the
process is gone by SIGKILL. It prints its URL, and last of all what it died at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Literal, NamedTuple

from oncelog_service.atomic.records import Begin, Record, decode
from oncelog_service.storage.keys import FIRST_ROW_ID, number_key
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Rows, Store, Table
from tests.support import running_service

When = Literal["before", "after"]
CHUNK = "chunk"


class CrashPoint(NamedTuple):
    """The ``nth`` batch that holds a record of this ``kind``."""

    kind: str
    """The name of a record's class; "chunk": a chunk of a topic that has chunks already, or what a commit brings."""
    when: When
    """Before the batch is written, or after that and before anybody is told."""
    nth: int = 1
    topics: int = 0
    """Only with rows for at least so many topics."""
    numbered: bool = False
    """Only with the note that a producer's sequence id is committed."""


class Fallen(NamedTuple):
    """What a service died at."""

    kind: str
    transaction: str | None
    """Its id; None: what a commit brings, or has staged anew without the messages that were there already."""


class CrashingStore:
    """A store whose process is killed at the point. See :class:`~oncelog_service.storage.port.Store`."""

    def __init__(self, store: Store, point: CrashPoint) -> None:
        self._store = store
        self._point = point
        self._found = 0

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._store.get(table, key)

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        return self._store.scan(table, start, stop, reverse=reverse)

    def lease_table(self) -> None:
        return None

    def close(self) -> None:
        self._store.close()

    def write(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            fallen = self._fallen(batch)
            if fallen is not None and self._point.when == "before":
                _die(fallen)
            self._store.write([batch])
            if fallen is not None:
                _die(fallen)

    def _fallen(self, batch: Batch) -> Fallen | None:
        """What it dies at, if this is the batch."""
        records = [decode(int.from_bytes(key[2:], "big"), value) for table, key, value in batch.puts if table is Table.JOURNAL]
        chunks = [key for table, key, _ in batch.puts if table is Table.CHUNK]
        if self._point.kind == CHUNK and chunks and not records:
            return self._counted(CHUNK, int.from_bytes(chunks[0][-12:-4], "big", signed=True) * -1, records)
        topics = {key[: -len(FIRST_ROW_ID)] for table, key, _ in batch.puts if table is Table.MESSAGE}
        numbered = any(table is Table.GROUP_PRODUCER for table, _, _ in batch.puts)
        if len(topics) < self._point.topics or numbered < self._point.numbered:
            return None
        hit = [record for record in records if type(record).__name__ == self._point.kind]
        return self._counted(type(hit[0]).__name__, hit[0].number, records) if hit else None

    def _counted(self, kind: str, number: int, records: Sequence[Record]) -> Fallen | None:
        self._found += 1
        return Fallen(kind, self._id_of(number, records)) if self._found == self._point.nth else None

    def _id_of(self, number: int, records: Sequence[Record]) -> str | None:
        begun = [record.id for record in records if isinstance(record, Begin) and record.number == number]
        with closing(self._store.scan(Table.ATOMIC_ID, b"", b"\xff")) as rows:
            begun += (key.decode() for key, value in rows if value == number_key(number))
        return begun[0] if begun else None


def _die(fallen: Fallen) -> None:
    print(json.dumps(fallen), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


class CrashingService:
    """Such a service as a process, seen from the test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def url(self) -> str:
        """Where it answers."""
        line = self._line()
        assert line.startswith("http"), f"it does not come to answer: {line!r}"
        return line

    def fallen(self, seconds: float = 30) -> Fallen:
        """What it died at. Raises AssertionError if it does not come there, or ends otherwise."""
        try:
            ended = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("the service never comes to the point where it should die") from None
        line = self._line()
        assert ended == -signal.SIGKILL, f"it ended by itself: {ended}"
        return Fallen(*json.loads(line))

    def _line(self) -> str:
        output: IO[str] | None = self._process.stdout
        assert output is not None
        return output.readline().strip()


@contextmanager
def crashing_service(store: str, point: CrashPoint) -> Iterator[CrashingService]:
    """Start one; what is left of it at the end is killed."""
    command = [sys.executable, "-m", "tests.scenarios.crashing", store, json.dumps(point)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            yield CrashingService(process)
        finally:
            process.kill()


def _main(store: str, point: str) -> None:
    opener, chosen = store_opener(store), CrashPoint(*json.loads(point))
    with running_service(store, open_store=lambda: CrashingStore(opener(), chosen)) as running:
        print(running.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
