"""`oncelog publish`: streams messages in, may be killed at any moment; with --resume the line number is the sequence id."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, cast

import typer
from rich.progress import Progress

from oncelog import Producer, Receipt
from oncelog.api.calls import RETRY_SECONDS
from oncelog.errors import InvalidRequest, OncelogError, ProducerNotFound
from oncelog_service.cli.output import progress_bar
from oncelog_service.cli.session import Session, Topic, command
from oncelog_service.cli.values import parse_properties

_BLOCK = 64 * 1024
"""Bytes read at once. As many lines can be in one block, so the producer's own bound lies that much above ours."""
_MAX_PENDING = 50_000
"""Messages that may be on their way; then reading pauses."""
_MAX_LINE = 64 * 2**20
"""A longer line than any service takes: the file is none of lines, and holding it would fill the memory."""
_LAST_WORDS_SECONDS = 10.0
"""How long Ctrl-C waits for what is on its way, so that it can say how far it came. A second one waits no longer."""


def register(app: typer.Typer) -> None:
    """Add the command. It waits for a service that restarts."""
    command(app, "publish", patience=RETRY_SECONDS)(publish)


def publish(
    session: Session,
    topic: Topic,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE", help="Messages; - or none: one a line from stdin.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="One message a line of this file.", show_default=False)] = None,
    producer: Annotated[str | None, typer.Option("--producer", help="Name to publish under.", show_default=False)] = None,
    sequence_id: Annotated[
        int | None,
        typer.Option("--sequence-id", min=0, help="Sequence id of the first message; the others follow on.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="The line number, from 0, is the sequence id; lines already persisted are skipped.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", help="Key of every message.", show_default=False)] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Property of every message; repeatable.")
    ] = None,
    ttl: Annotated[int | None, typer.Option("--ttl", min=1, help="Seconds that the messages live.", show_default=False)] = None,
    expect_offset: Annotated[
        int | None,
        typer.Option(
            "--expect-offset", min=0, help="Offset that the first message must get; the others follow on.", show_default=False
        ),
    ] = None,
) -> None:
    """Publish messages: arguments, lines of stdin or of a file. Ends when every one of them is on disk, once."""
    if resume and sequence_id is not None:
        raise typer.BadParameter("is one numbering, --resume another; choose", param_hint="--sequence-id")
    if (resume or sequence_id is not None) and producer is None:
        raise typer.BadParameter("a sequence id means something only under a name; give --producer NAME")
    if messages and messages != ["-"] and file is not None:
        raise typer.BadParameter("give messages or --file, not both")
    extras = {
        "key": None if key is None else os.fsencode(key),
        "properties": parse_properties(properties or []) or None,
        "ttl": ttl,
    }
    with Interrupts() as interrupts, _source(messages or [], file, interrupts) as (lines, size):
        with interrupts.let_through():
            run = _opened(session, topic, producer, 0 if resume else sequence_id, resume, expect_offset, extras, interrupts)
        session.so_far = run.so_far
        with progress_bar(session.out.as_json, "{task.fields[counts]}") as bar:
            run.all(lines, resume, bar, size)
        run.report()


def _opened(
    session: Session,
    topic: str,
    name: str | None,
    first: int | None,
    resume: bool,
    expected_offset: int | None,
    extras: Mapping[str, Any],
    interrupts: Interrupts,
) -> Run:
    """A run whose producer is open and numbers from ``first`` on. Where that leaves no gap the service refuses any.

    Without that, a line that is refused by itself would be passed over by those behind it: it could never be sent again, and what
    it expected of the topic might hold for one of them.
    """
    follows_on = resume or (first is None and expected_offset is not None) or _leaves_no_gap(session, topic, name, first)
    producer: Producer[bytes] = Producer(
        topic,
        name=name,
        namespace=session.namespace,
        client=session.client,
        gaps="refuse" if follows_on else "allow",
        max_pending=_MAX_PENDING + 2 * _BLOCK,
    )
    run = Run(session, topic, producer, first, extras, interrupts, expected_offset)
    if expected_offset is not None:
        if first is None:
            last = producer.last_sequence_id
            run.first = 0 if last is None else last + 1
        run.one_by_one = not follows_on or not session.client.stats(topic, session.namespace).deduplication
    return run


def _leaves_no_gap(session: Session, topic: str, producer: str | None, sequence_id: int | None) -> bool:
    """Whether numbering from ``sequence_id`` on leaves none out."""
    if producer is None or sequence_id is None:
        return False
    try:
        last = session.client.producer(topic, producer, session.namespace).last_persisted
    except ProducerNotFound:
        last = None
    return last is None or sequence_id <= last + 1


class Interrupts:
    """Ctrl-C, let through only where nothing can be torn.

    An exception in the middle of queueing a message could leave half of it in the queue.
    """

    def __init__(self) -> None:
        self._pending = False
        self._open = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """In this block, and for what came before it, Ctrl-C raises KeyboardInterrupt."""
        self._open = True
        try:
            if self._pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._open = self._pending = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if self._open:
            raise KeyboardInterrupt


@dataclass(slots=True)
class Run:
    """One publish: what was sent, and what became of it."""

    session: Session
    topic: str
    producer: Producer[bytes]
    first: int | None
    """Sequence id of the first message; None lets the SDK number them."""
    extras: Mapping[str, Any]
    interrupts: Interrupts
    expected_offset: int | None = None
    """Of the first message, also of one that is skipped."""
    one_by_one: bool = False
    """Whether each waits for the outcome of the one before it, because the service would not stop it."""
    skipped: int = 0
    stored: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    failure: OncelogError | None = None
    _next: int = 0
    """Number of the next message, from 0."""
    _outcomes: deque[Future[Receipt]] = field(default_factory=deque)
    _began: float = field(default_factory=time.monotonic)

    def all(self, blocks: Iterable[list[bytes]], resume: bool, bar: Progress, size: int | None) -> None:
        """Send everything and wait for it. Raises the first failure; nothing is read after it."""
        task = bar.add_task(self.topic, total=size, counts="")
        done = self.producer.last_sequence_id if resume else None
        skip = 0 if done is None else done + 1
        try:
            for lines in blocks:
                self._send(lines, skip)
                self._wait(_MAX_PENDING)
                counts = f"{self.stored:,} stored, {self.duplicates:,} duplicates, {self.skipped:,} skipped"
                bar.update(task, advance=sum(map(len, lines)) + len(lines), counts=counts)
            self._wait(0)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt, OncelogError):
                self._wait(0, _LAST_WORDS_SECONDS)
            raise
        finally:
            self._note()
            with suppress(OncelogError, TimeoutError):  # raised here already, or to be said by so_far
                self.producer.close(0 if self._outcomes else None)

    def so_far(self) -> str:
        """What is on disk, in a sentence."""
        last = self.producer.last_sequence_id
        upto = "with nothing persisted" if last is None else f"persisted up to sequence id {last}"
        open_ = f"; {len(self._outcomes)} messages have no outcome yet" if self._outcomes else ""
        return f"producer {self.producer.name} on {self.topic} is {upto} ({self._counts()}){open_}"

    def report(self) -> None:
        """Print the result."""
        rate = (self.stored + self.duplicates) / max(self.seconds, 1e-9)
        self.session.facts["messages_per_second"] = round(rate)
        self.session.out.result(self.session.facts, f"{self.so_far()} in {self.seconds:.1f} s, {rate:,.0f} messages/s")

    def _send(self, lines: list[bytes], skip: int) -> None:
        passed = min(len(lines), max(0, skip - self._next))
        self.skipped += passed
        self._next += passed
        first, expected, extras, send = self.first, self.expected_offset, self.extras, self.producer.send_async
        try:
            for line in lines[passed:]:
                number = None if first is None else first + self._next
                offset = None if expected is None else expected + self._next
                self._outcomes.append(send(line, sequence_id=number, expected_offset=offset, **extras))
                self._next += 1
                if self.one_by_one or (
                    number is not None and self.producer.last_sequence_id is None and len(self._outcomes) == 1
                ):
                    # Nothing comes before a producer's first message, so the service cannot see that it is missing.
                    self._wait(0)
        except OncelogError as error:
            self._wait(0)  # raises what the producer stopped at
            raise self._named(error) from None

    def _wait(self, at_most: int, seconds: float | None = None) -> None:
        """Until no more than so many messages are on their way. Raises the first failure once all have their outcome."""
        end = None if seconds is None else time.monotonic() + seconds
        self._collect()
        with self.interrupts.let_through():
            while self._outcomes and (len(self._outcomes) > at_most or self.failure is not None):
                if end is not None and time.monotonic() > end:
                    return
                time.sleep(0.002)
                self._collect()
        if self.failure is not None:
            raise self.failure

    def _collect(self) -> None:
        """Outcomes come in the order of sending, so the finished ones are in front."""
        outcomes = self._outcomes
        while outcomes and outcomes[0].done():
            error = outcomes[0].exception()
            if isinstance(error, OncelogError):
                self.failure = self.failure or self._named(error)
            elif outcomes[0].result().status == "stored":
                self.stored += 1
            else:
                self.duplicates += 1
            outcomes.popleft()

    def _named(self, error: OncelogError) -> OncelogError:
        """The error with the number of the message that met it."""
        number = self._next - len(self._outcomes)
        self.session.facts["failed_message"] = number
        error.detail = f"message {number} (from 0): {error.detail}"
        return error

    def _counts(self) -> str:
        skipped = f", {self.skipped:,} already there and skipped" if self.skipped else ""
        return f"{self.stored:,} stored, {self.duplicates:,} duplicates{skipped}"

    def _note(self) -> None:
        self.seconds = time.monotonic() - self._began
        self.session.facts.update(
            topic=self.topic,
            namespace=self.session.namespace,
            producer=self.producer.name,
            stored=self.stored,
            duplicates=self.duplicates,
            skipped=self.skipped,
            last_sequence_id=self.producer.last_sequence_id,
            seconds=round(self.seconds, 3),
        )


# --- where messages come from


@contextmanager
def _source(messages: list[str], file: Path | None, interrupts: Interrupts) -> Iterator[tuple[Iterator[list[bytes]], int | None]]:
    """The messages as they come, and how many bytes they are where that is known."""
    if file is not None:
        try:
            handle = file.open("rb", buffering=0)
        except OSError as error:
            raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None
        with handle:
            yield lines_of(_blocks(handle.read, interrupts)), os.fstat(handle.fileno()).st_size or None
    elif messages and messages != ["-"]:
        yield iter([[os.fsencode(message) for message in messages]]), None
    elif sys.stdin.isatty() and not messages:
        raise typer.BadParameter("no message: give some, or --file, or - to type them here, one a line, Ctrl-D at the end")
    else:
        yield lines_of(_blocks(cast(BufferedReader, sys.stdin.buffer).read1, interrupts)), None


def _blocks(read: Callable[[int], bytes | None], interrupts: Interrupts) -> Iterator[bytes]:
    while True:
        with interrupts.let_through():
            block = read(_BLOCK)
        if not block:
            return
        yield block


def lines_of(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines in each block as soon as they are complete, without their line feed; empty ones count. Raises InvalidRequest."""
    rest: list[bytes] = []
    size = 0
    for block in blocks:
        head, feed, tail = block.partition(b"\n")
        rest.append(head)
        size += len(head)
        if size > _MAX_LINE:
            raise InvalidRequest(f"a line is longer than {_MAX_LINE} bytes; is this text?")
        if feed:
            lines = tail.split(b"\n")
            last = lines.pop()
            yield [b"".join(rest), *lines]
            rest, size = [last], len(last)
    if size:
        yield [b"".join(rest)]
