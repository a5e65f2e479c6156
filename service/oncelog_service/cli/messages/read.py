"""`oncelog read`"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import typer

from oncelog import Consumer, Message, Reader
from oncelog.api.calls import RETRY_SECONDS
from oncelog.reading.reader import Start
from oncelog.wire.models import InspectedRow, RowState
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, Topic, command
from oncelog_service.cli.values import parse_start

_PAGE = 1_000
_UNDECIDED_SECONDS = 0.5
"""Before what was undecided is looked at again."""


def register(app: typer.Typer) -> None:
    """Add the command. It waits for a service that restarts: a `--follow` goes on behind that."""
    command(app, "read", patience=RETRY_SECONDS)(read)


def read(
    session: Session,
    topic: Topic,
    start: Annotated[
        str,
        typer.Option("--from", metavar="START", help="earliest, latest, a message id (40 hex digits), an offset or an ISO time."),
    ] = "earliest",
    inclusive: Annotated[bool, typer.Option("--inclusive", help="Begin with the message of that id, not after it.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most messages to print.", show_default=False)] = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            metavar="NAME",
            help="Go on at the cursor of this subscription, and acknowledge what is printed; --from says where a new one begins.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="At the end, wait for more.")] = False,
    committed: Annotated[
        bool,
        typer.Option("--committed", help="Only what is committed, and nothing behind what is undecided."),
    ] = False,
) -> None:
    """Print a topic's messages in order: each payload and a line end; with --json one object a line."""
    begin = parse_start(start, inclusive)
    count, last = 0, None
    session.so_far = lambda: _so_far(count, last)
    form: Callable[[Seen], bytes] = _as_json if session.out.as_json else _as_line
    with _source(session, topic, begin, inclusive, subscription) as source:
        while limit is None or count < limit:
            wanted = _PAGE if limit is None else min(_PAGE, limit - count)
            timeout = None if follow else 0
            messages = source.read(wanted, timeout) if isinstance(source, Reader) else source.receive(wanted, timeout)
            if not messages:
                return
            seen = _seen(session, topic, messages) if committed or session.out.as_json else [Seen(each) for each in messages]
            held = next((at for at, each in enumerate(seen) if each.undecided), len(seen)) if committed else len(seen)
            shown = [each for each in seen[:held] if each.counts or not committed]
            sys.stdout.buffer.write(b"".join(map(form, shown)))
            sys.stdout.buffer.flush()
            if isinstance(source, Consumer):
                # Behind the flush: a kill in between prints a page twice, and the other way round would lose it.
                source.ack(messages[-1])
            if shown:
                count, last = count + len(shown), shown[-1].message
            if held < len(seen) and isinstance(source, Reader):  # a consumer is given only what is decided
                if not follow:
                    session.out.note(f"nothing is decided from offset {seen[held].message.offset} on")
                    return
                source.seek(seen[held].message.offset)
                time.sleep(_UNDECIDED_SECONDS)
            if last is None:
                continue
            session.facts.update(read=count, last_message_id=str(last.message_id), last_offset=last.offset)


def _source(
    session: Session, topic: str, start: Start, inclusive: bool, subscription: str | None
) -> Reader[bytes] | Consumer[bytes]:
    namespace, client = session.namespace, session.client
    if subscription is None:
        return Reader(topic, start=start, inclusive=inclusive, namespace=namespace, client=client)
    return Consumer(topic, subscription, start=start, inclusive=inclusive, namespace=namespace, client=client)


def _so_far(count: int, last: Message[bytes] | None) -> str:
    if last is None:
        return "no message was read"
    return f"{count} messages were read, the last at offset {last.offset}; go on with --from {last.message_id}"


class Seen(NamedTuple):
    """A message, and what became of the transaction it is of."""

    message: Message[bytes]
    write_pointer: int | None = None
    state: RowState | None = None

    @property
    def undecided(self) -> bool:
        return self.state in ("in_progress", "unknown")

    @property
    def counts(self) -> bool:
        return self.state in (None, "committed")


def _seen(session: Session, topic: str, messages: Sequence[Message[bytes]]) -> list[Seen]:
    """The messages of a page with what their rows say; one row may stand for many of them."""
    seen: list[Seen] = []
    rows: list[InspectedRow] = []
    for message in messages:
        while not rows or rows[0].offset + rows[0].messages <= message.offset:
            rows = rows[1:] or session.client.inspect_rows(topic, message.offset, _PAGE, session.namespace)
        seen.append(Seen(message, rows[0].write_pointer, rows[0].state))
    return seen


def _as_line(seen: Seen) -> bytes:
    return seen.message.payload + b"\n"


def _as_json(seen: Seen) -> bytes:
    message = seen.message
    value = {
        "message_id": str(message.message_id),
        "offset": message.offset,
        "publish_timestamp": message.publish_timestamp,
        "publish_time": iso_time(message.publish_timestamp),
        "producer": message.producer,
        "sequence_id": message.sequence_id,
        "write_pointer": seen.write_pointer,
        "state": seen.state,
        **_text("key", message.key),
        "properties": message.properties,
        **_text("payload", message.payload),
    }
    return json.dumps(value).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """As text where it is UTF-8, else in base64 under a name that says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
