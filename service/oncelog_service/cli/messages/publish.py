"""`oncelog publish`: streams messages in, may be killed at any moment; with --resume each row is published once."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from oncelog import Producer, Receipt
from oncelog.api.calls import RETRY_SECONDS
from oncelog.errors import InvalidRequest, OncelogError, ProducerNotFound, SequenceReused
from oncelog_service.cli.frame import completing
from oncelog_service.cli.messages.bars import Tell, telling
from oncelog_service.cli.messages.interrupts import Interrupts
from oncelog_service.cli.messages.numbering import Gaps, Numbering, Numbers, parse_numbering
from oncelog_service.cli.messages.rows import Columns, Row
from oncelog_service.cli.messages.sources import Kind, Source, opened
from oncelog_service.cli.session import Session, Topic, command, said_once
from oncelog_service.cli.values import parse_properties

_MAX_PENDING = 50_000
"""Messages that may be on their way; then reading pauses."""
_TOGETHER = 128 * 1024
"""As many rows can come at once, so the producer's own bound lies that much above ours."""
MOST_UNDER_WAY = _MAX_PENDING + _TOGETHER
"""Messages that may have no outcome yet."""
_LAST_WORDS_SECONDS = 10.0
"""How long Ctrl-C waits for what is on its way, so that it can say how far it came. A second one waits no longer."""


def register(app: typer.Typer) -> None:
    """Add the command. It waits for a service that restarts."""
    command(app, "publish", patience=RETRY_SECONDS)(publish)


SequenceId = Annotated[
    str | None,
    typer.Option(
        "--sequence-id",
        metavar="N|line|name|column=NAME",
        help="Of the first message, and the others follow on; or where each has its own.",
        show_default=False,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on behind what is persisted; --sequence-id line unless it is said.")]
SequenceGaps = Annotated[
    Gaps | None,
    typer.Option("--gaps", help="Whether sequence ids may be left out; else not where column=offset begins.", show_default=False),
]
SourceGeneration = Annotated[
    int | None,
    typer.Option(
        "--source-generation", min=1, help="Generation of the topic that messages were read from; else 1.", show_default=False
    ),
]
Uncommitted = Annotated[
    bool, typer.Option("--uncommitted", help="Messages whose `state` says that they are undecided or rolled back, too.")
]


def publish(
    session: Session,
    topic: Topic,
    messages: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="Messages, or - for stdin; with --input file: files.", show_default=False),
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="Read from this file.", show_default=False)] = None,
    kind: Annotated[
        Kind, typer.Option("--input", "-i", help="What is read: a message a line, of JSON, a row, or a whole file.")
    ] = Kind.LINES,
    producer: Annotated[
        str | None,
        typer.Option("--producer", help="Name to publish under.", autocompletion=completing.producers, show_default=False),
    ] = None,
    sequence_id: SequenceId = None,
    resume: Resume = False,
    gaps: SequenceGaps = None,
    source_generation: SourceGeneration = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.", show_default=False)] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-P", metavar="NAME=VALUE", help="Property of every message; repeatable.")
    ] = None,
    payload_column: Annotated[
        str | None, typer.Option("--payload-column", help="The payload; else the whole row.", show_default=False)
    ] = None,
    key_column: Annotated[str | None, typer.Option("--key-column", help="The key.", show_default=False)] = None,
    property_columns: Annotated[
        list[str] | None,
        typer.Option("--property-column", help="A property of its name; repeatable.", show_default=False),
    ] = None,
    uncommitted: Uncommitted = False,
    ttl: Annotated[int | None, typer.Option("--ttl", min=1, help="Seconds that the messages live.", show_default=False)] = None,
    expect_offset: Annotated[
        int | None,
        typer.Option(
            "--expect-offset", min=0, help="Offset that the first message must get; the others follow on.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read all of it and say what it is; publish nothing.")] = False,
) -> None:
    """Publish messages: arguments, lines, JSON, CSV, Parquet, files. Ends when every one of them is on disk, once."""
    numbering = parse_numbering(sequence_id, resume, kind is Kind.FILE, gaps)
    if numbering.is_given and producer is None:
        raise typer.BadParameter("a sequence id means something only under a name; give --producer NAME")
    extras = Extras(None if key is None else os.fsencode(key), parse_properties(properties or []), ttl)
    columns = Columns(payload_column, key_column, numbering.column, tuple(property_columns or ()), uncommitted, source_generation)
    with (
        said_once("oncelog.producer"),
        Interrupts() as interrupts,
        opened(kind, messages or [], file, columns, numbering.by_name, interrupts) as source,
    ):
        run = Run(session, topic, source, numbering, extras, interrupts, expect_offset, resume, producer)
        session.so_far = run.so_far
        if dry_run:
            run.persisted = None if producer is None else _persisted(session, topic, producer)
        else:
            with interrupts.let_through():
                run.open()
        with telling(not session.out.as_json, topic, source.size) as tell:
            run.all(tell)
        run.report()


def _persisted(session: Session, topic: str, producer: str) -> int | None:
    with suppress(ProducerNotFound):
        return session.client.producer(topic, producer, session.namespace).last_persisted
    session.client.topic(topic, session.namespace)  # raises where it is that which is not there
    return None


class Extras:
    """What every message is given; what its row says itself comes first."""

    def __init__(self, key: bytes | None, properties: Mapping[str, str], ttl: int | None) -> None:
        self._key, self._properties, self._ttl = key, properties, ttl
        self._all = {"key": key, "properties": properties or None, "ttl": ttl}

    def of(self, row: Row) -> Mapping[str, Any]:
        """Of one message."""
        if row.key is None and row.properties is None and row.ttl is None:
            return self._all
        key, ttl = self._key if row.key is None else row.key, self._ttl if row.ttl is None else row.ttl
        return {"key": key, "properties": {**self._properties, **(row.properties or {})} or None, "ttl": ttl}


@dataclass(slots=True)
class Run:
    """One publish: what was sent, and what became of it."""

    session: Session
    topic: str
    source: Source
    numbering: Numbering
    extras: Extras
    interrupts: Interrupts
    expected_offset: int | None
    """Of the first message, also of one that is passed over."""
    resume: bool
    name: str | None
    """Of the producer; None: it has none, or the service assigns one."""
    producer: Producer[bytes] | None = None
    """None: it is a dry run."""
    persisted: int | None = None
    """The last sequence id that the producer had when the command began."""
    skipped: int = 0
    stored: int = 0
    duplicates: int = 0
    bytes: int = 0
    """Of payloads, in a dry run."""
    largest: int = 0
    seconds: float = 0.0
    failure: OncelogError | None = None
    _numbers: Numbers = field(init=False)
    _next: int = 0
    """Place of the next row, from 0."""
    _outcomes: deque[Future[Receipt]] = field(default_factory=deque)
    _began: float = field(default_factory=time.monotonic)

    def open(self) -> None:
        """Open the producer. It stops at the first row that is refused: one that others went past could never be sent again.

        Raises OncelogError; also where the topic would store again what comes again.
        """
        client, namespace = self.session.client, self.session.namespace
        if self.resume and not client.stats(self.topic, namespace).deduplication:
            raise InvalidRequest(f"topic {namespace}/{self.topic} has deduplication off: what is resumed might be stored twice")
        producer: Producer[bytes] = Producer(
            self.topic,
            name=self.name,
            namespace=namespace,
            client=client,
            gaps="refuse" if self.numbering.is_dense(self.resume) else "allow",
            stop_on_refusal=True,
            max_pending=MOST_UNDER_WAY,
        )
        self.producer, self.persisted = producer, producer.last_sequence_id

    def all(self, tell: Tell) -> None:
        """Send everything and wait for it. Raises the first failure; nothing is read after it."""
        self._numbers = Numbers(self.numbering, self.persisted, self.name)
        send = self._look if self.producer is None else self._send
        try:
            while (rows := self._read()) is not None:
                send(rows)
                self._wait(_MAX_PENDING)
                done = f"{self.stored:,} stored, {self.duplicates:,} duplicates, {self.skipped:,} skipped"
                tell(self.source.position(), done + self.source.said())
            self._wait(0)
            self._check_whole()
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt, OncelogError):
                self._wait(0, _LAST_WORDS_SECONDS)
            raise
        finally:
            self._note()
            if self.producer is not None:
                with suppress(OncelogError, TimeoutError):  # raised here already, or to be said by so_far
                    self.producer.close(0 if self._outcomes else None)

    def so_far(self) -> str:
        """What is on disk, in a sentence."""
        if self.producer is None:
            return "nothing was published"
        last = self.producer.last_sequence_id
        upto = "has nothing persisted" if last is None else f"is persisted up to sequence id {last}"
        open_ = f"; {len(self._outcomes)} messages have no outcome yet" if self._outcomes else ""
        return f"producer {self.producer.name} on {self.topic} {upto} ({self._counts()}){open_}"

    def report(self) -> None:
        """Print the result."""
        if self.producer is None:
            left = f"{self._next - self.skipped:,} messages of {self.bytes:,} bytes, the largest of {self.largest:,}"
            behind = f"; {self.skipped:,} are persisted already" if self.skipped else ""
            self.session.out.result(self.session.facts, f"{left}, would be published to {self.topic}{behind}")
            return
        rate = (self.stored + self.duplicates) / max(self.seconds, 1e-9)
        self.session.facts["messages_per_second"] = round(rate)
        self.session.out.result(self.session.facts, f"{self.so_far()} in {self.seconds:.1f} s, {rate:,.0f} messages/s")

    def _read(self) -> list[Row] | None:
        """The next rows; None: there are no more. Raises what the source does, when all before have their outcome."""
        try:
            return next(self.source.rows, None)
        except OncelogError as error:
            self._wait(0)
            raise self._named(error) if isinstance(error, InvalidRequest) else error from None

    def _is_behind(self, number: int | None) -> bool:
        """Whether a row is passed over: what is persisted, but for the last. That one is sent again, and compared."""
        return self.resume and self.persisted is not None and number is not None and number < self.persisted

    def _send(self, rows: list[Row]) -> None:
        assert self.producer is not None
        expected, extras, send, numbers = self.expected_offset, self.extras, self.producer.send_async, self._numbers
        try:
            for row in rows:
                number = numbers.of(self._next, row)
                if self._is_behind(number):
                    self.skipped += 1
                else:
                    offset = None if expected is None else expected + self._next
                    self._outcomes.append(send(row.payload, sequence_id=number, expected_offset=offset, **extras.of(row)))
                self._next += 1
        except OncelogError as error:
            self._wait(0)  # raises what the producer stopped at
            raise self._named(error) from None

    def _look(self, rows: list[Row]) -> None:
        try:
            for row in rows:
                number = self._numbers.of(self._next, row)
                if self._is_behind(number) or (self.resume and number == self.persisted):
                    self.skipped += 1
                else:
                    self.bytes += len(row.payload)
                    self.largest = max(self.largest, len(row.payload))
                self._next += 1
        except OncelogError as error:
            raise self._named(error) from None

    def _check_whole(self) -> None:
        """Raises InvalidRequest if more was published under the name than the input has: it is another one, or was cut."""
        persisted = self.persisted
        if self.resume and self.numbering.first is not None and persisted is not None and self._next <= persisted:
            raise InvalidRequest(
                f"the input has {self._next} {self.source.noun}s, and the producer has published up to sequence id {persisted}: "
                "it is another input, or has become shorter"
            )

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
            else:
                self._count(outcomes[0].result())
            outcomes.popleft()

    def _count(self, receipt: Receipt) -> None:
        if receipt.status == "stored":
            self.stored += 1
        elif self.resume and receipt.sequence_id == self.persisted:
            self.skipped += 1
        else:
            self.duplicates += 1

    def _named(self, error: OncelogError) -> OncelogError:
        """The error with the row that met it."""
        at = self._next - len(self._outcomes)
        self.session.facts["failed_message"] = at
        if self.resume and isinstance(error, SequenceReused):
            error.detail += "; the input has changed since, or is another one"
        error.detail = f"{self.source.called(at)}: {error.detail}"
        return error

    def _counts(self) -> str:
        skipped = f", {self.skipped:,} already there and skipped" if self.skipped else ""
        return f"{self.stored:,} stored, {self.duplicates:,} duplicates{skipped}"

    def _note(self) -> None:
        self.seconds = time.monotonic() - self._began
        facts: dict[str, object] = {"topic": self.topic, "namespace": self.session.namespace, "skipped": self.skipped}
        if self.producer is None:
            facts |= {"messages": self._next - self.skipped, "bytes": self.bytes, "largest": self.largest}
        else:
            facts |= {
                "producer": self.producer.name,
                "stored": self.stored,
                "duplicates": self.duplicates,
                "last_sequence_id": self.producer.last_sequence_id,
                "seconds": round(self.seconds, 3),
            }
        self.session.facts.update(facts)
