"""The measurements. Each returns rows of (what, figure, unit, target) and knows nothing of tables."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import requests
from tests.world.service import free_port

from oncelog import Client, Producer, Reader
from oncelog.wire.codec import encode_consume_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import ConsumeRequest

PAYLOAD_BYTES = 100
PAYLOADS = [os.urandom(PAYLOAD_BYTES) for _ in range(1_000)]
"""Random, so that LevelDB's compression flatters nobody (wrk's payloads are one letter, for both sides alike)."""
_SCRIPT = Path(__file__).with_name("publish.lua")


@dataclass
class Processor:
    """Microseconds of a processor that one message took."""

    server: float
    client: float


@dataclass
class Beside:
    """Somebody else who did the same work in the same run, in turns."""

    rival: str
    value: float
    ratio: float
    """The row's figure as a multiple of the rival's, the median of what each round of turns gives."""
    processor: Processor | None = None


@dataclass
class Row:
    """One line of the table."""

    what: str
    value: float | None
    """None: there is none, and what stands there says why."""
    unit: str
    target: str = ""
    met: bool | None = None
    processor: Processor | None = None
    beside: Beside | None = None


@dataclass
class Load:
    """What wrk reported."""

    requests_per_second: float
    p50_ms: float


class Server:
    """A server process on a port and a directory of its own."""

    def __init__(self, command: list[str], url: str, ready: str) -> None:
        self._command = command
        self.url = url
        self._ready = ready
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                requests.get(self.url + self._ready, timeout=1)
                return
            except requests.RequestException:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)

    def resident_mb(self, what: str = "VmRSS") -> float:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def processor_seconds(self) -> float:
        """What its threads have used until now."""
        assert self.process is not None
        return processor_seconds(self.process.pid)


def processor_seconds(pid: int) -> float:
    """What the threads of this process have used until now."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def oncelog_server(store: str, *options: str) -> Server:
    """A service over the store of this URL."""
    port = free_port()
    command = [sys.executable, "-m", "oncelog_service", "serve", "--port", str(port), "--store", store, *options]
    return Server(command, f"http://127.0.0.1:{port}", "/healthz")


def bare_server(data: Path) -> Server:
    port = free_port()
    return Server([sys.executable, "-m", "benchmarks.bare", str(data), str(port)], f"http://127.0.0.1:{port}", "/")


@contextmanager
def running(kind: str, python: str = sys.executable) -> Iterator[Server]:
    """A fresh server, gone at the end with all it wrote. ``python``: of the environment whose oncelog it is."""
    home = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
    server = oncelog_server(f"leveldb://{home / 'data'}") if kind == "oncelog" else bare_server(home / "data")
    server._command[0] = python
    try:
        server.start()
        yield server
    finally:
        server.end()
        shutil.rmtree(home, ignore_errors=True)


def wrk(url: str, connections: int, messages: int, named: bool, seconds: float) -> Load:
    """Publish load from wrk. Raises RuntimeError if an answer was not 2xx."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency", "-s", str(_SCRIPT), url, "--"]
    command += [str(messages), str(PAYLOAD_BYTES), "named" if named else "unnamed", str(connections)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in out:
        raise RuntimeError(out)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", out)
    p50 = re.search(r"50%\s+([\d.]+)(us|ms|s)", out)
    assert rate is not None
    assert p50 is not None
    return Load(float(rate[1]), float(p50[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[p50[2]])


def publish_rates(seconds: float) -> list[Row]:
    """Single and batched publishes, oncelog with everything on against the bare baseline, in turns."""
    shapes = [
        ("single publishes, 1 connection", 1, 1),
        ("single publishes, 64 connections", 64, 1),
        ("requests of 1,000, 8 connections", 8, 1000),
    ]
    rows: list[Row] = []
    for what, connections, messages in shapes:
        found: dict[str, list[Load]] = {"bare": [], "oncelog": [], "oncelog without names": []}
        for _ in range(2):
            for kind, loads in found.items():
                with running("bare" if kind == "bare" else "oncelog") as server:
                    url = server.url + "/publish"
                    if kind != "bare":
                        Client(server.url).create_topic("bench")
                        url = server.url + "/v1/namespaces/default/topics/bench/publish"
                    loads.append(wrk(url, connections, messages, kind != "oncelog without names", seconds))
        best = {kind: max(loads, key=lambda load: load.requests_per_second) for kind, loads in found.items()}
        for kind, load in best.items():
            rows.append(Row(f"{what}: {kind}", load.requests_per_second * messages, "messages/s"))
        rows.append(Row(f"{what}: oncelog p50", best["oncelog"].p50_ms, "ms"))
        share = best["oncelog"].requests_per_second / best["bare"].requests_per_second
        rows.append(Row(f"{what}: share of bare", share * 100, "%", "≥ 50 %", share >= 0.5))
        if messages > 1:
            cost = 1 - best["oncelog"].requests_per_second / best["oncelog without names"].requests_per_second
            rows.append(Row("deduplication costs of batched throughput", cost * 100, "%", "≤ 5 %", cost <= 0.05))
    return rows


def sdk_rates(messages: int) -> list[Row]:
    """What a Python program gets: send_async, send, Reader, raw poll."""
    with running("oncelog") as server, Client(server.url) as client:
        client.create_topic("bench")
        with Producer("bench", name="bench", client=client) as producer:
            began = time.perf_counter()
            for payload in islice(cycle(PAYLOADS), messages):
                producer.send_async(payload)
            producer.flush()
            asynchronous = messages / (time.perf_counter() - began)
            spans = []
            for payload in PAYLOADS:
                began = time.perf_counter()
                producer.send(payload)
                spans.append(time.perf_counter() - began)
        p50 = statistics.median(spans) * 1000
        began = time.perf_counter()
        with Reader("bench", client=client, timeout=0) as reader:
            count = sum(1 for _ in reader)
        read = count / (time.perf_counter() - began)
        began = time.perf_counter()
        raw = raw_poll(server.url) / (time.perf_counter() - began)
    return [
        Row("Producer.send_async", asynchronous, "messages/s", "≥ 150,000", asynchronous >= 150_000),
        Row("Producer.send, one at a time, p50", p50, "ms", "< 1.5", p50 < 1.5),
        Row("Reader", read, "messages/s", "≥ 300,000", read >= 300_000),
        Row("poll, raw body from the store", raw, "messages/s", "≥ 400,000", raw >= 400_000),
    ]


def raw_poll(url: str) -> int:
    """Read pages of 10,000 from the oldest on, bodies not decoded but for the count at their beginning; how many messages."""
    session = requests.Session()
    messages = 0
    while True:
        answer = session.post(
            url + "/v1/namespaces/default/topics/bench/poll",
            data=encode_consume_request(ConsumeRequest(start_offset=messages, limit=10_000)),
            headers={"content-type": ONCELOG_AVRO},
            timeout=30,
        )
        if answer.content[:1] == b"\x00":
            return messages
        messages += _count(answer.content)


def _count(body: bytes) -> int:
    value = shift = 0
    for byte in body:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 128:
            return value >> 1
    raise ValueError("no count")


def ten_million(messages: int) -> list[Row]:
    """Opening a large topic after SIGKILL, and the memory of a service that holds it."""
    home = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
    server = oncelog_server(f"leveldb://{home / 'data'}")
    try:
        server.start()
        with Client(server.url) as client:
            client.create_topic("bench")
            with Producer("bench", name="bench", client=client) as producer:
                for payload in islice(cycle(PAYLOADS), messages):
                    producer.send_async(payload)
            peak = server.resident_mb("VmHWM")
            server.end(signal.SIGKILL)
            began = time.perf_counter()
            server.start()
            started = time.perf_counter() - began
            began = time.perf_counter()
            stats = client.stats("bench")
            opened = time.perf_counter() - began
            if stats.upcoming_offset != messages:
                raise RuntimeError(f"{stats.upcoming_offset} messages instead of {messages}")
            with Reader("bench", client=client, timeout=0) as reader:
                for _ in reader:
                    pass
            resident = server.resident_mb()
        size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) / 2**20
    finally:
        server.end(signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)
    label = f"{messages:,} messages"
    return [
        Row(f"{label}: opening the topic after SIGKILL", opened, "s", "< 2", opened < 2),
        Row(f"{label}: start of the service after SIGKILL", started, "s"),
        Row(f"{label}: resident after reading all", resident, "MB", "< 250", resident < 250),
        Row(f"{label}: peak while they were published", peak, "MB", "< 300", peak < 300),
        Row(f"{label}: on disk", size, "MB"),
    ]


def machine() -> dict[str, str]:
    """What this ran on."""
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu[1] if cpu else "unknown",
        "cores": str(os.cpu_count()),
        "python": sys.version.split()[0],
        "load at the start": load(),
    }


def load() -> str:
    """Of the last minute, also what this one makes of it."""
    return f"{os.getloadavg()[0]:.2f}"
