"""`oncelog read`"""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated

import typer

from oncelog import Consumer, Message, Reader
from oncelog.client import RETRY_SECONDS
from oncelog.reader import Start
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, Topic, command
from oncelog_service.cli.values import parse_start

_PAGE = 1_000


def register(app: typer.Typer) -> None:
    """Add the command. It waits for a service that restarts: a `--follow` should outlive that."""
    command(app, "read", patience=RETRY_SECONDS)(read)


def read(
    session: Session,
    topic: Topic,
    start: Annotated[
        str,
        typer.Option("--from", metavar="START", help="earliest, latest, a message id (40 hex digits), an offset or an ISO time."),
    ] = "earliest",
    inclusive: Annotated[bool, typer.Option("--inclusive", help="Begin with the message of that id, not after it.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Messages at most.", show_default=False)] = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            metavar="NAME",
            help="Go on where this subscription stands, and acknowledge what is printed; --from says where a new one begins.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="At the end, wait for more.")] = False,
) -> None:
    """Print a topic's messages in order: each payload and a line end; with --json one object a line."""
    begin = parse_start(start, inclusive)
    count, last = 0, None
    session.so_far = lambda: _so_far(count, last)
    form = _as_json if session.out.as_json else _as_line
    with _source(session, topic, begin, inclusive, subscription) as source:
        while limit is None or count < limit:
            wanted = _PAGE if limit is None else min(_PAGE, limit - count)
            timeout = None if follow else 0
            messages = source.read(wanted, timeout) if isinstance(source, Reader) else source.receive(wanted, timeout)
            if not messages:
                return
            sys.stdout.buffer.write(b"".join(map(form, messages)))
            sys.stdout.buffer.flush()
            if isinstance(source, Consumer):
                source.ack(messages[-1])
            count, last = count + len(messages), messages[-1]
            session.facts.update(read=count, last_message_id=str(last.message_id), last_offset=last.offset)


def _source(session: Session, topic: str, start: Start, inclusive: bool, subscription: str | None) -> Reader | Consumer:
    namespace, client = session.namespace, session.client
    if subscription is None:
        return Reader(topic, start=start, inclusive=inclusive, namespace=namespace, client=client)
    return Consumer(topic, subscription, start=start, inclusive=inclusive, namespace=namespace, client=client)


def _so_far(count: int, last: Message | None) -> str:
    if last is None:
        return "no message was read"
    return f"{count} messages were read, the last at offset {last.offset}; go on with --from {last.message_id}"


def _as_line(message: Message) -> bytes:
    return message.payload + b"\n"


def _as_json(message: Message) -> bytes:
    value = {
        "message_id": str(message.message_id),
        "offset": message.offset,
        "publish_timestamp": message.publish_timestamp,
        "publish_time": iso_time(message.publish_timestamp),
        "producer": message.producer,
        "sequence_id": message.sequence_id,
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
