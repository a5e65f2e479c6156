"""Redis and NATS as somebody else's log, where they are installed: each message once, each answer synced before it is given."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import ClassVar

from tests.world.service import free_port

from benchmarks.callers import Call, Caller, calling, connected
from benchmarks.measure import processor_seconds
from benchmarks.turns import Turn

_START_SECONDS = 10


class Peer:
    """A server that runs, with a log of its own for each connection or for all."""

    name: ClassVar[str]

    def __init__(self, port: int, pid: int) -> None:
        self._url = f"tcp://127.0.0.1:{port}"
        self._pid = pid

    @staticmethod
    def command(port: int, home: Path) -> list[str] | None:
        """What starts it; None: it is not installed."""
        raise NotImplementedError

    def processor_seconds(self) -> float:
        """What its threads have used until now."""
        return processor_seconds(self._pid)

    def publishing(self, runner: asyncio.Runner, names: Sequence[str], payloads: Sequence[bytes]) -> Turn:
        """A connection for each named producer; on each, all payloads at once, and again when all are answered."""
        raise NotImplementedError


class _RedisCaller(Caller):
    expected = 0

    def answer(self, received: bytes) -> bytes | None:
        if received.startswith(b"-") or b"\r\n-" in received:
            raise RuntimeError(repr(received[:300]))
        return received if received.count(b"\r\n") == 2 * self.expected else None  # a length and an id for each


class Redis(Peer):
    """A stream for each producer, which refuses an id that does not rise: XADD in a pipeline. Synced before it answers."""

    name = "Redis"

    @staticmethod
    def command(port: int, home: Path) -> list[str] | None:
        program = shutil.which("redis-server")
        if program is None:
            return None
        options = {"--port": str(port), "--bind": "127.0.0.1", "--dir": str(home), "--save": "", "--appendonly": "yes"}
        options |= {"--appendfsync": "always", "--auto-aof-rewrite-percentage": "0", "--loglevel": "warning"}
        return [program, *(word for option in options.items() for word in option)]

    def publishing(self, runner: asyncio.Runner, names: Sequence[str], payloads: Sequence[bytes]) -> Turn:
        callers = runner.run(connected(self._url, len(names), _RedisCaller))
        return calling(runner, [_xadd(caller, name, payloads) for caller, name in zip(callers, names, strict=True)])


def _xadd(caller: _RedisCaller, name: str, payloads: Sequence[bytes]) -> Call:
    caller.expected = len(payloads)
    number = count(1)
    head = f"*5\r\n$4\r\nXADD\r\n${len(name)}\r\n{name}\r\n".encode()
    tails = [b"\r\n$1\r\nv\r\n$%d\r\n%b\r\n" % (len(payload), payload) for payload in payloads]

    def call() -> asyncio.Future[bytes]:
        commands = []
        for tail in tails:
            given = b"%d-1" % next(number)
            commands.append(b"%b$%d\r\n%b%b" % (head, len(given), given, tail))
        return caller.call(b"".join(commands))

    return call


class _NatsCaller(Caller):
    expected, answered_by = 1, b"stream_create_response"

    def data_received(self, data: bytes) -> None:
        if b"PING\r\n" in data:
            self.say(b"PONG\r\n")
        super().data_received(data)

    def answer(self, received: bytes) -> bytes | None:
        if b'"error"' in received or b"-ERR" in received or b" 503" in received:
            raise RuntimeError(repr(received[:300]))
        return received if received.count(self.answered_by) == self.expected else None


class Nats(Peer):
    """A stream in a file that is synced with every write. Each message has an id, which is stored once within two minutes."""

    name = "NATS JetStream"

    @staticmethod
    def command(port: int, home: Path) -> list[str] | None:
        """None also where it is older than 2.10: it cannot sync before it answers then."""
        program = shutil.which("nats-server")
        if program is None:
            return None
        settings = home / "nats.conf"
        store = {"store_dir": str(home / "store"), "sync_interval": "always"}
        settings.write_text(json.dumps({"host": "127.0.0.1", "port": port, "jetstream": store}))
        command = [program, "-c", str(settings)]
        return command if subprocess.run([*command, "-t"], capture_output=True, check=False).returncode == 0 else None

    def publishing(self, runner: asyncio.Runner, names: Sequence[str], payloads: Sequence[bytes]) -> Turn:
        callers = runner.run(connected(self._url, len(names), _NatsCaller))
        return calling(runner, [runner.run(_hpub(*each, payloads)) for each in zip(callers, names, strict=True)])


async def _hpub(caller: _NatsCaller, name: str, payloads: Sequence[bytes]) -> Call:
    hello = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB answers.%b 1\r\n'
    create = b"PUB $JS.API.STREAM.CREATE.bench answers.%b %d\r\n%b\r\n"
    subject, stream = name.encode(), json.dumps({"name": "bench", "subjects": ["bench"], "storage": "file"}).encode()
    await caller.call(hello % subject + create % (subject, len(stream), stream))  # the others find it made
    caller.expected, caller.answered_by = len(payloads), b'"seq":'
    number = count()

    def call() -> asyncio.Future[bytes]:
        messages = []
        for payload in payloads:
            head = b"NATS/1.0\r\nNats-Msg-Id: %b-%d\r\n\r\n" % (subject, next(number))
            sizes = len(head), len(head) + len(payload)
            messages.append(b"HPUB bench answers.%b %d %d\r\n%b%b\r\n" % (subject, *sizes, head, payload))
        return caller.call(b"".join(messages))

    return call


@contextmanager
def running_peers() -> Iterator[list[Peer]]:
    """Those that are installed, fresh, on ports and directories of their own; gone at the end."""
    with ExitStack() as open_ones:
        yield [peer for kind in (Redis, Nats) if (peer := open_ones.enter_context(_running(kind))) is not None]


@contextmanager
def _running(kind: type[Peer]) -> Iterator[Peer | None]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as home:
        command = kind.command(port, Path(home))
        if command is None:
            yield None
            return
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait(port, process)
            yield kind(port, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.02)
