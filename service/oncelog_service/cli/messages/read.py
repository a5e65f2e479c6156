"""`oncelog read`: prints a topic's messages in order, from anywhere to anywhere, chosen and written as one likes."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from oncelog import Consumer, Message, Reader
from oncelog.api.calls import RETRY_SECONDS
from oncelog.values.start import Start, start_position
from oncelog.wire.isolation import Isolation
from oncelog.wire.models import InspectedRow
from oncelog_service.cli.frame import completing
from oncelog_service.cli.messages.bars import Tell, telling
from oncelog_service.cli.messages.filters import Filter, parse_fields
from oncelog_service.cli.messages.template import parse as parse_template
from oncelog_service.cli.messages.writers import Seen, Writer, Written, writing
from oncelog_service.cli.output import Output
from oncelog_service.cli.session import Session, Topic, command, said_once
from oncelog_service.cli.values import parse_bound, parse_properties, parse_start

_PAGE = 1_000
_FETCHED = 5_000
_AGO = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def register(app: typer.Typer) -> None:
    """Add the command. It waits for a service that restarts: a `--follow` goes on behind that."""
    command(app, "read", patience=RETRY_SECONDS)(read)


Subscription = Annotated[
    str | None,
    typer.Option(
        "--subscription",
        metavar="NAME",
        help="Go on at the cursor of this subscription, and acknowledge what is printed; --from says where a new one begins.",
        autocompletion=completing.subscriptions,
        show_default=False,
    ),
]
From = Annotated[
    str,
    typer.Option(
        "--from", metavar="START", help="earliest, latest, a message id, an offset, -10 (the last ten), an ISO time or -2h (ago)."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="END", help="End before this offset or time; -2h is two hours ago.", show_default=False),
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="PATH=VALUE", help="Only JSON with this value there; repeatable.", show_default=False),
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-P", metavar="NAME=VALUE", help="Only with this property; repeatable.", show_default=False),
]


def read(
    session: Session,
    topic: Topic,
    *,
    start: From = "earliest",
    inclusive: Annotated[bool, typer.Option("--inclusive", help="Begin with the message of that id, not after it.")] = False,
    until: Until = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Most messages to print.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="At the end, wait for more.")] = False,
    committed: Annotated[
        bool,
        typer.Option(
            "--committed/--uncommitted", help="Only what is committed, and nothing behind what is undecided; or everything."
        ),
    ] = True,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only with this key.", show_default=False)] = None,
    properties: Properties = None,
    fields: Fields = None,
    output: Annotated[Written, typer.Option("--output", "-o", help="What to write.")] = Written.TEXT,
    template: Annotated[
        str | None, typer.Option("--format", help=r"Write this of each: '{offset} {key} {payload}\n'.", show_default=False)
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Write this file, as a whole.", show_default=False)] = None,
    subscription: Subscription = None,
) -> None:
    """Print a topic's messages in order: each payload and a line end; with --json one object a line."""
    session.out = Output(session.out.as_json, reads=subscription is None)
    if session.out.as_json and output is Written.TEXT:
        output = Written.JSON
    if template is not None and output is not Written.TEXT:
        raise typer.BadParameter("it says what is written, and so does --output; choose", param_hint="--format")
    if to is not None and follow and limit is None and until is None:
        raise typer.BadParameter("is there when all is written, which --follow never is; give -n or --until", param_hint="--to")
    if subscription is not None and (to is not None or output is Written.PARQUET):
        raise typer.BadParameter(
            "acknowledges what is printed, and such a file is there only at the end", param_hint="--subscription"
        )
    if subscription is not None and not committed:
        raise typer.BadParameter("is given what is committed, always; leave one of the two out", param_hint="--subscription")
    chosen = Filter(None if key is None else os.fsencode(key), parse_properties(properties or []), parse_fields(fields or []))
    states = not committed and output in (Written.CSV, Written.PARQUET)
    wanted = Wanted(chosen, End.parse(until), limit, follow, committed, states or output is Written.JSON)
    form = None if template is None else parse_template(template)
    begin = _begin(session, topic, start, inclusive, committed)
    with (
        said_once("oncelog.consumer"),
        writing(output, form, topic, to, states) as writer,
        _source(session, topic, begin, inclusive, subscription, wanted) as source,
        telling(to is not None and not session.out.as_json, topic) as tell,
    ):
        reading = Reading(session, topic, source, wanted, writer)
        session.so_far = reading.so_far
        reading.all(tell)


class End(NamedTuple):
    """Where reading ends: before the first message at or behind this."""

    offset: int | None = None
    timestamp: int | None = None
    """In ms."""

    @classmethod
    def parse(cls, text: str | None) -> End:
        """Raises BadParameter."""
        if text is None:
            return cls()
        bound = _ago(text) or parse_bound(text, "--until")
        return cls(bound) if isinstance(bound, int) else cls(None, start_position(bound).timestamp)

    def is_reached(self, message: Message[bytes]) -> bool:
        """Whether the message lies behind the end."""
        if self.offset is not None:
            return message.offset >= self.offset
        return self.timestamp is not None and message.publish_timestamp >= self.timestamp


class Wanted(NamedTuple):
    """Which messages are printed, and when it is enough."""

    chosen: Filter
    end: End
    limit: int | None
    follow: bool
    committed: bool
    says_states: bool
    """Whether what became of transactions is printed, and asked for."""


@dataclass(slots=True)
class Reading:
    """One run: where it is."""

    session: Session
    topic: str
    source: Reader[bytes] | Consumer[bytes]
    wanted: Wanted
    writer: Writer
    count: int = 0
    """Printed."""
    looked_at: int = 0
    last: Message[bytes] | None = None
    """Of those that were looked at."""

    def all(self, tell: Tell) -> None:
        """Print until it is enough, or there is no more."""
        timeout = None if self.wanted.follow else 0
        limit, source = self.wanted.limit, self.source
        while limit is None or self.count < limit:
            at_most = _PAGE if limit is None or not self.wanted.chosen.is_empty else min(_PAGE, limit - self.count)
            messages = source.read(at_most, timeout)
            if not messages:
                self._say_held()
            if not messages or not self._page(messages):
                return
            tell(None, f"{self.count:,} messages")

    def so_far(self) -> str:
        """What was read, in a sentence."""
        if self.last is None:
            return "no message was read"
        of = "" if self.wanted.chosen.is_empty else f"of {self.looked_at} "
        read = f"{self.count} {of}messages were read, the last at offset {self.last.offset}"
        return f"{read}; go on with --from {self.last.message_id}"

    def _say_held(self) -> None:
        """Why it ends, if that is not the end of the topic."""
        held = self.source.held if isinstance(self.source, Reader) else None
        if held is not None:
            self.session.out.note(f"nothing is decided from offset {held.offset} on")

    def _page(self, messages: Sequence[Message[bytes]]) -> bool:
        """Print what is wanted of these. Whether it goes on."""
        wanted = self.wanted
        seen = _seen(self.session, self.topic, messages) if wanted.says_states else [Seen(each) for each in messages]
        shown: list[Seen] = []
        passed = 0
        for each in seen:
            full = wanted.limit is not None and self.count + len(shown) >= wanted.limit
            if full or wanted.end.is_reached(each.message):
                break
            passed += 1
            if wanted.chosen.matches(each.message):
                shown.append(each)
        self.writer.write(shown)
        if passed:
            self.last = messages[passed - 1]
            self.count, self.looked_at = self.count + len(shown), self.looked_at + passed
            facts = {"read": self.count, "last_message_id": str(self.last.message_id), "last_offset": self.last.offset}
            self.session.facts.update(facts)
        if isinstance(self.source, Consumer) and self.last is not None and passed:
            # Behind the flush: a kill in between prints a page twice, and the other way round would lose it.
            self.source.ack(self.last)
        return passed == len(seen)


# --- where it begins


def _begin(session: Session, topic: str, text: str, inclusive: bool, committed: bool) -> Start:
    """As :func:`parse_start` does; and the last so many, or so long ago. Raises BadParameter."""
    if inclusive or not text.startswith("-"):
        return parse_start(text, inclusive)
    if (ago := _ago(text)) is not None:
        return ago
    if re.fullmatch(r"-[0-9]{1,18}", text):
        return _last(session, topic, int(text[1:]), committed)
    return parse_start(text, inclusive)


def _ago(text: str) -> datetime | None:
    found = re.fullmatch(r"-([0-9]{1,9})([smhd])", text)
    if found is None:
        return None
    try:
        return datetime.now(UTC) - int(found[1]) * _AGO[found[2]]
    except OverflowError:
        return datetime(1970, 1, 1, tzinfo=UTC)


def _last(session: Session, topic: str, count: int, committed: bool) -> int:
    """The offset of the message that is the last but so many of those that are printed.

    Offsets alone do not say it: what has expired left some out, and what was rolled back does not count where only what is
    committed does. So it looks ever further back.
    """
    stats = session.client.stats(topic, session.namespace)
    end, earliest, back = stats.upcoming_offset, stats.earliest_offset, count
    while count:
        first = max(earliest, end - back)
        offsets = deque(_offsets(session, topic, range(first, end), committed), maxlen=count)
        if len(offsets) == count or first == earliest:
            return offsets[0] if offsets else end
        back *= 8
    return end


def _offsets(session: Session, topic: str, within: range, committed: bool) -> Iterator[int]:
    """Of the messages that are there, and count."""
    namespace, client, size = session.namespace, session.client, min(_FETCHED, len(within) or 1)
    isolation: Isolation = "committed" if committed else "uncommitted"
    with Reader(
        topic, start=within.start, page_size=size, on_expired="skip", namespace=namespace, client=client, isolation=isolation
    ) as reader:
        while messages := reader.read(_PAGE, 0):
            for message in messages:
                if message.offset >= within.stop:
                    return
                yield message.offset


def _source(
    session: Session, topic: str, start: Start, inclusive: bool, subscription: str | None, wanted: Wanted
) -> Reader[bytes] | Consumer[bytes]:
    namespace, client = session.namespace, session.client
    # What is not wanted is not fetched, as far as that is known.
    size = _FETCHED if wanted.limit is None or not wanted.chosen.is_empty else min(_FETCHED, wanted.limit)
    if subscription is None:
        isolation: Isolation = "committed" if wanted.committed else "uncommitted"
        return Reader(
            topic, start=start, inclusive=inclusive, page_size=size, namespace=namespace, client=client, isolation=isolation
        )
    return Consumer(topic, subscription, start=start, inclusive=inclusive, page_size=size, namespace=namespace, client=client)


def _seen(session: Session, topic: str, messages: Sequence[Message[bytes]]) -> list[Seen]:
    """The messages of a page with what their rows say; one row may stand for many of them."""
    seen: list[Seen] = []
    rows: list[InspectedRow] = []
    for message in messages:
        while not rows or rows[0].offset + rows[0].messages <= message.offset:
            rows = rows[1:] or session.client.inspect_rows(topic, message.offset, _PAGE, session.namespace)
        seen.append(Seen(message, rows[0].write_pointer, rows[0].state))
    return seen
