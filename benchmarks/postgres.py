"""PostgreSQL as somebody else's log: rows in the order of their numbers, each statement synced before its answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from struct import Struct

from tests.postgres import PASSWORD, USER, PostgresServer

from benchmarks.measure import processor_seconds
from benchmarks.turns import Calls, Turn

_TABLES = """
CREATE TABLE log (number bigserial PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE named (number bigserial PRIMARY KEY, producer text NOT NULL, sequence_id bigint NOT NULL, value bytea NOT NULL,
    UNIQUE (producer, sequence_id));
"""
_INSERT = "INSERT INTO log (value) VALUES (%b)"
_UNNEST = """INSERT INTO named (producer, sequence_id, value)
SELECT %s, %s + place - 1, value FROM unnest(%b::bytea[]) WITH ORDINALITY AS given (value, place) ON CONFLICT DO NOTHING"""
_COPY = "COPY log (value) FROM STDIN (FORMAT binary)"
_HEAD, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_FIELD = Struct(">hi")
_ROWS_A_TURN = 200
"""Of each connection of pgbench."""


class Postgres:
    """A server with a database of its own for each piece of work, and calls that are measured."""

    def __init__(self) -> None:
        self._server = PostgresServer()
        self._database = "postgres"

    def fresh(self) -> None:
        """Go on with empty tables. Connections that were made before stay where they are."""
        self._database = self._server.fresh_database().rpartition("/")[2]
        with self._server.connect(self._database) as connection:
            connection.execute(_TABLES)

    def remove(self) -> None:
        self._server.remove()

    def processor_seconds(self) -> float:
        """What all processes of the server have used until now, also those that have ended."""
        pid = self._server.pid
        while True:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
            try:
                return ended + sum(map(processor_seconds, [pid, *map(int, children.split())]))
            except (FileNotFoundError, ProcessLookupError):
                pass  # one has just ended, and is with those that have ended now

    def insert(self, payload: bytes) -> Callable[[], object]:
        """One row."""
        connection = self._server.connect(self._database)
        return lambda: connection.execute(_INSERT, (payload,), prepare=True)

    def unnest(self, producer: str, payloads: Sequence[bytes]) -> Callable[[], object]:
        """So many rows, each of them once however often it is sent: the next ones of this producer with each call."""
        connection, numbers, values = self._server.connect(self._database), count(0, len(payloads)), list(payloads)
        return lambda: connection.execute(_UNNEST, (producer, next(numbers), values), prepare=True)

    def copy(self, payloads: Sequence[bytes]) -> Callable[[], object]:
        """So many rows, encoded beforehand; nothing is compared with what is there."""
        connection = self._server.connect(self._database)
        rows = b"".join(_FIELD.pack(1, len(payload)) + payload for payload in payloads)

        def once() -> None:
            with connection.cursor().copy(_COPY) as copy:
                copy.write(_HEAD + rows + _END)

        return once

    def read(self, messages: int) -> Callable[[], object]:
        """Everything in order, in pieces of 10,000 through a cursor of the server. Raises RuntimeError if it is less."""
        connection = self._server.connect(self._database)
        connection.autocommit = False

        def once() -> None:
            with connection.transaction(), connection.cursor("all", binary=True) as cursor:
                cursor.itersize = 10_000
                cursor.execute("SELECT number, value FROM log ORDER BY number")
                if (found := sum(1 for _ in cursor)) != messages:
                    raise RuntimeError(f"{found} rows instead of {messages}")

        return once

    def pgbench(self, connections: int, payload: bytes) -> Turn | None:
        """One row at a time over so many connections, from a client in C; None: it is not installed.

        A turn is a number of rows and not of seconds: to connect may take it longer than that.
        """
        program = shutil.which("pgbench") or shutil.which("pgbench", path=str(self._server.binaries))
        if program is None:
            return None
        database = self._database

        def turn(seconds: float) -> Calls:
            with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as home:
                Path(home, "insert.sql").write_text(f"INSERT INTO log (value) VALUES ('\\x{payload.hex()}');\n")
                command = [program, "-n", "-M", "prepared", "-c", str(connections), "-t", str(_ROWS_A_TURN)]
                command += ["-f", "insert.sql", "-l", "-h", "127.0.0.1", "-p", str(self._server.port), "-U", USER, database]
                environment = {**os.environ, "PGPASSWORD": PASSWORD}
                subprocess.run(command, cwd=home, env=environment, check=True, capture_output=True)
                lines = [line.split() for log in Path(home).glob("pgbench_log.*") for line in log.read_text().splitlines()]
            spans = [int(fields[2]) / 1e6 for fields in lines]
            # It connects anew in each turn, which is nobody's subject; from then on each connection is always in a call.
            return Calls(spans, sum(spans) / connections)

        return turn
