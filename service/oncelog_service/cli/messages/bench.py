"""`oncelog bench`: how fast this service is for a client here: rates, and how latencies are spread. On a topic of its own."""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil, log
from threading import Barrier, BrokenBarrierError, Event, Thread
from typing import Annotated, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import typer

from oncelog import Producer, Reader
from oncelog.api.api import Api
from oncelog.errors import OncelogError, TopicNotFound
from oncelog_service.cli.messages.bars import telling
from oncelog_service.cli.session import Session, command, said_once

_PAGE = 1_000
_PATIENCE_SECONDS = 10.0
"""How long a message is tried again."""
_STAMP = struct.Struct(">d")
_BUSY = 0.85
"""Of one processor. Python code runs on one at a time: with more than that, the client is what is measured."""
_BARS = " ▁▂▃▄▅▆▇█"
_CLOCK = 1e-9
"""Seconds; what is shorter is not told apart."""
_BUCKETS = 20
_PERCENTILES = (("p50", 0.5, 1), ("p90", 0.9, 10), ("p99", 0.99, 100), ("p99.9", 0.999, 1_000), ("max", 1.0, 1))
"""Names, shares, and how many latencies there must be for one of them to lie beyond."""


Begin: TypeAlias = Callable[[], float]
"""Waits until all that is measured together is ready; when it ends."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "bench")(bench)


def bench(
    session: Session,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="How long each of five measurements takes.")
    ] = 2.0,
    size: Annotated[int, typer.Option("--size", min=_STAMP.size, help="Bytes of each payload.")] = 1_000,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Messages of a batch.")] = 500,
    connections: Annotated[int, typer.Option("--connections", min=1, max=256, help="Producers that publish side by side.")] = 8,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Name of the topic to make; one that is there is refused.", show_default=False)
    ] = None,
) -> None:
    """Measure the service: publishing one by one, side by side and in batches, reading, and from end to end.

    It makes a topic of its own, and deletes that at its end, also after Ctrl-C.
    """
    name = f"bench-{uuid4().hex[:12]}" if topic is None else topic
    run = Bench(session.client, name, session.namespace, seconds, size, topic is None)
    measurements: list[tuple[str, Callable[[], Measured]]] = [
        ("publish, one by one", partial(run.publish, 1)),
        (f"publish, {connections} side by side", partial(run.publish, connections)),
        (f"publish, batches of {batch:,}", partial(run.batches, batch)),
        (f"read, pages of {_PAGE:,}", run.read),
        ("end to end", run.end_to_end),
    ]
    found: list[tuple[str, Measured]] = []
    session.so_far = lambda: f"{len(found)} of {len(measurements)} measurements were made, and {run.left}"
    with said_once("oncelog.producer"), run.topic(), telling(not session.out.as_json, "measuring", len(measurements)) as tell:
        for what, measure in measurements:
            tell(len(found), what)
            found.append((what, measure()))
    notes = [*_notes(session.client.url, found)]
    value = {
        "url": session.client.url,
        "payload_bytes": size,
        "seconds": seconds,
        "batch": batch,
        "connections": connections,
        "measured": [{"what": what, **measured.members()} for what, measured in found],
        "notes": notes,
    }
    head = ("", "messages", "seconds", "messages/s", "MB/s", *(f"{name} ms" for name, *_ in _PERCENTILES), "latencies")
    session.out.table(value, head, [(what, *measured.row()) for what, measured in found])
    for note in [f"payloads of {size:,} bytes; a latency is that of a message, a batch or a page", *notes]:
        session.out.note(note)


class Measured(NamedTuple):
    """What was measured."""

    messages: int
    bytes: int
    seconds: float
    latencies: Sequence[float]
    """In seconds, sorted."""
    busy: float
    """Which share of one processor this process took."""

    def percentile(self, share: float, least: int) -> float | None:
        """A latency in ms that so many are not above; None: too few were measured to say that."""
        if len(self.latencies) < least:
            return None
        return round(self.latencies[max(0, ceil(share * len(self.latencies)) - 1)] * 1000, 3)

    def members(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / self.seconds),
            "bytes_per_second": round(self.bytes / self.seconds),
            "latencies": len(self.latencies),
            "latency_ms": {name: self.percentile(share, least) for name, share, least in _PERCENTILES},
            "client_busy": round(self.busy, 2),
        }

    def row(self) -> list[object]:
        """As a row of a table."""
        rates = (f"{self.messages / self.seconds:,.0f}", f"{self.bytes / self.seconds / 1e6:,.1f}")
        latencies = (self.percentile(share, least) for _, share, least in _PERCENTILES)
        shown = ["-" if each is None else f"{each:,.2f}" for each in latencies]
        return [f"{self.messages:,}", f"{self.seconds:.1f}", *rates, *shown, histogram(self.latencies)]


def histogram(latencies: Sequence[float]) -> str:
    """How sorted latencies are spread, from the least on the left to the largest on the right; each bar is as much longer."""
    if not latencies or latencies[-1] <= latencies[0]:
        return _BARS[-1] if latencies else ""
    least, most = log(max(latencies[0], _CLOCK)), log(max(latencies[-1], _CLOCK))
    counts = [0] * _BUCKETS
    for each in latencies:
        share = (log(max(each, _CLOCK)) - least) / (most - least) if most > least else 0
        counts[_BUCKETS - 1 if each == latencies[-1] else min(_BUCKETS - 1, int(share * _BUCKETS))] += 1
    # What is there at all is seen: the slow ones are few.
    return "".join(_BARS[ceil(count / max(counts) * (len(_BARS) - 1))] for count in counts)


def _notes(url: str, found: Sequence[tuple[str, Measured]]) -> Iterator[str]:
    busy = [what for what, measured in found if measured.busy >= _BUSY]
    if busy:
        yield f"the client was the bottleneck, not the service: {'; '.join(busy)}; several of them on several machines see more"
    if urlsplit(url.partition(",")[0]).hostname in ("127.0.0.1", "localhost", "::1"):
        yield "service and client share the processors of this machine"


@dataclass
class Bench:
    """The measurements, on one topic."""

    client: Api
    name: str
    namespace: str
    seconds: float
    size: int
    is_drawn: bool
    """Whether the name was drawn for this."""
    left: str = "there is no topic of it"
    _stop: Event = field(default_factory=Event)

    @contextmanager
    def topic(self) -> Iterator[None]:
        """Make the topic, and delete it however it ends. Raises TopicExists: it is somebody's, and stays as it is."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        is_ours = self.is_drawn  # nobody else's has that name, whatever became of the request to make it
        try:
            try:
                self.client.create_topic(self.name, namespace=self.namespace, exist_ok=self.is_drawn)
            except OncelogError as error:
                is_ours = is_ours and not error.definite
                raise
            is_ours = True
            yield
        finally:
            self._stop.set()
            if is_ours:
                self._delete()
            signal.signal(signal.SIGTERM, before)

    def _delete(self) -> None:
        delete = f"oncelog topic delete {self.name} -N {self.namespace}"
        self.left = f"topic {self.namespace}/{self.name} is left: `{delete}` deletes it"
        try:
            self.client.delete_topic(self.name, self.namespace)
        except TopicNotFound:
            pass
        except OncelogError as error:
            error.detail += f"; {self.left}"
            raise
        self.left = "the topic is deleted"

    def publish(self, connections: int) -> Measured:
        """Producers side by side, each of which waits for every message."""
        payload = bytes(self.size)
        return self._measured([partial(self._send, lambda producer: producer.send(payload), 1)] * connections)

    def batches(self, count: int) -> Measured:
        """One producer, and a batch each time."""
        payloads = [bytes(self.size)] * count
        return self._measured([partial(self._send, lambda producer: producer.send_batch(payloads), count)])

    def read(self) -> Measured:
        """All that was published, again from its beginning where the time is not over."""
        return self._measured([self._read])

    def end_to_end(self) -> Measured:
        """From a send to when a reader that waits has it."""
        padding = bytes(self.size - _STAMP.size)
        send = partial(self._send, lambda producer: producer.send(_STAMP.pack(time.perf_counter()) + padding), 0)
        # The latencies of sending are not what is looked for.
        return self._measured([self._receive, lambda begin, _: send(begin, [])])

    def _send(self, send: Callable[[Producer[bytes]], object], each: int, begin: Begin, latencies: list[float]) -> int:
        options: dict[str, Any] = {"namespace": self.namespace, "client": self.client, "linger": 0}
        with Producer[bytes](self.name, delivery_timeout=_PATIENCE_SECONDS, **options) as producer:
            send(producer)  # the connection is there then
            end, count, last = begin(), 0, time.perf_counter()
            while last < end and not self._stop.is_set():
                send(producer)
                now = time.perf_counter()
                latencies.append(now - last)
                count, last = count + each, now
            return count

    def _read(self, begin: Begin, latencies: list[float]) -> int:
        with Reader(self.name, page_size=_PAGE, namespace=self.namespace, client=self.client) as reader:
            end, count, last = begin(), 0, time.perf_counter()
            while last < end and not self._stop.is_set():
                found = reader.read(_PAGE, 0)
                if not found:
                    reader.seek("earliest")
                    continue
                now = time.perf_counter()
                latencies.append(now - last)
                count, last = count + len(found), now
            return count

    def _receive(self, begin: Begin, latencies: list[float]) -> int:
        with Reader(self.name, start="latest", namespace=self.namespace, client=self.client) as reader:
            end = begin()
            while time.perf_counter() < end and not self._stop.is_set():
                found = reader.read(_PAGE, min(0.2, self.seconds))
                now = time.perf_counter()
                latencies += [now - _STAMP.unpack_from(each.payload)[0] for each in found]
            return len(latencies)

    def _measured(self, work: Sequence[Callable[[Begin, list[float]], int]]) -> Measured:
        """Do this side by side, each from when all are ready. Raises what the first of them raised."""
        began, failures, counts, latencies = [0.0, 0.0], list[BaseException](), list[int](), list[float]()
        ready = Barrier(len(work), lambda: began.__setitem__(slice(2), (time.perf_counter(), time.process_time())))

        def begin() -> float:
            ready.wait()
            return began[0] + self.seconds

        def run(job: Callable[[Begin, list[float]], int]) -> None:
            own: list[float] = []
            try:
                counts.append(job(begin, own))
                latencies.extend(own)
            except BrokenBarrierError:
                pass
            except BaseException as error:
                failures.append(error)
                ready.abort()

        threads = [Thread(target=run, args=(job,), daemon=True) for job in work]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stop.set()
            ready.abort()
            for thread in threads:
                thread.join(_PATIENCE_SECONDS)
            raise
        seconds, busy = time.perf_counter() - began[0], time.process_time() - began[1]
        if failures:
            raise failures[0]
        return Measured(sum(counts), sum(counts) * self.size, seconds, sorted(latencies), busy / seconds)
