"""`oncelog cdap-import`: the messages of a topic of CDAP's, each once and in order, with its id there as a property.

Invariant: how far it has come is known from the topic alone. The newest message of the producer says in :data:`MESSAGE_ID` which
one of CDAP's it was, and beside that how it was read; it is stored with that or not at all. To open the producer fences a run
that is still under way, and comes before the position is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from oncelog import MessageId, Producer, Reader
from oncelog.api.calls import RETRY_SECONDS
from oncelog.errors import InvalidRequest, MessagesExpired, NotFound, PropertiesChanged, RequestTooLarge
from oncelog_service.cli.frame import completing
from oncelog_service.cli.messages.bars import telling
from oncelog_service.cli.messages.cdap_topic import CdapTopic, Message
from oncelog_service.cli.messages.interrupts import Interrupts
from oncelog_service.cli.messages.numbering import Gaps, Numbering
from oncelog_service.cli.messages.publish import MOST_UNDER_WAY, Extras, Run
from oncelog_service.cli.messages.rows import Row
from oncelog_service.cli.messages.sources import Source
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, Topic, command, said_once

MESSAGE_ID = "cdap.message.id"
"""The property that holds a message's id there, as 40 hex digits."""
ISOLATION = "cdap.isolation"
"""The property that says what was asked for there: :data:`COMMITTED`, with a transaction, or :data:`UNCOMMITTED`, everything."""
GENERATION = "cdap.generation"
"""The property that holds the generation of the topic there, where the server says it."""
COMMITTED, UNCOMMITTED = "committed", "uncommitted"


def register(app: typer.Typer) -> None:
    """Add the command. It waits for services that restart."""
    command(app, "cdap-import", patience=RETRY_SECONDS)(cdap_import)


def _as_id(text: str) -> MessageId:
    try:
        return MessageId.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def cdap_import(
    session: Session,
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="Of their topic: http://host:port/v1/namespaces/NS/topics/T.", show_default=False),
    ],
    topic: Topic,
    *,
    producer: Annotated[
        str | None,
        typer.Option(
            "--producer",
            help="Name to publish under; else cdap:NS:T.",
            autocompletion=completing.producers,
            show_default=False,
        ),
    ] = None,
    transaction: Annotated[
        Path | None,
        typer.Option(
            "--transaction",
            metavar="FILE",
            help="Import what this transaction of Tephra's sees, as its codec writes it.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        MessageId | None,
        typer.Option(
            "--after", metavar="ID", parser=_as_id, help="Begin behind this message of CDAP's, 40 hex digits.", show_default=False
        ),
    ] = None,
) -> None:
    """Import the messages of a topic of CDAP's, each once and in order. Run again, it goes on where it stopped."""
    try:
        view = None if transaction is None else transaction.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{transaction}: {error.strerror}", param_hint="--transaction") from None
    with said_once("oncelog.producer"), Interrupts() as interrupts, closing(CdapTopic(address, view, interrupts)) as theirs:
        moved = Import(session, topic, theirs, after)
        name = producer or f"cdap:{theirs.namespace}:{theirs.name}"
        run = Run(session, topic, moved.source, _NUMBERED, Extras(None, {}, None), interrupts, None, True, name)
        session.so_far = run.so_far
        with interrupts.let_through():
            try:
                run.open()
            except NotFound as error:
                error.detail = f"the target is not there: {error.detail}"
                raise
        assert run.producer is not None
        moved.begin(theirs.generation())
        with interrupts.let_through():
            moved.find_position(run.producer)
        try:
            with telling(not session.out.as_json, topic) as tell:
                run.all(tell)
        except RequestTooLarge as error:
            moved.name_too_large(error)
            raise
        run.report()
        if view is None:
            session.out.note("imported with what transactions there rolled back or had not decided: --transaction leaves it out")


_NUMBERED = Numbering(column=MESSAGE_ID, gaps=Gaps.REFUSE)
"""Each row brings its number, and the service refuses a gap."""


class Import:
    """Where one import stands, and the rows that are still to come."""

    def __init__(self, session: Session, topic: str, theirs: CdapTopic, after: MessageId | None) -> None:
        self._session, self._topic, self._theirs, self._position = session, topic, theirs, after
        self._next = 0
        """The sequence id of the message behind the position."""
        self._stored: Mapping[str, str] | None = None
        """Our properties of the newest message of the producer, if it is the one at the position."""
        self._origin = {ISOLATION: UNCOMMITTED if theirs.transaction is None else COMMITTED}
        """The properties beside the id that all messages are given."""
        self._newest_ids = deque[bytes](maxlen=MOST_UNDER_WAY)
        """Of the messages that were handed over last: of all that may have no outcome yet."""
        self._handed = 0
        session.facts["isolation"] = self._origin[ISOLATION]
        self.source = Source(self._rows(), "message", said=self._said)

    def begin(self, generation: str | None) -> None:
        """``generation``: of the topic there, if that is known."""
        if generation is not None:
            self._origin[GENERATION] = generation

    def find_position(self, producer: Producer[bytes]) -> None:
        """Ask the topic where the producer has stopped; --after counts where it cannot say.

        Raises InvalidRequest; PropertiesChanged: it is another topic.
        """
        if producer.last_sequence_id is None:
            return
        self._next = producer.last_sequence_id + 1
        stored = self._newest(producer.last_message_id)
        found = None if stored is None else MessageId.parse(stored[MESSAGE_ID])
        if found is None and self._position is None:
            raise InvalidRequest(
                f"message {producer.last_sequence_id} of {producer.name} on {self._topic}, at which the import stopped, is "
                f"gone, or was not imported: say with --after behind which message of {self._theirs.shown} it is to go on"
            )
        if found is not None and self._position is not None and self._position > found:
            raise InvalidRequest(
                f"the import has come to message {found} of {self._theirs.shown} only: --after would leave some out"
            )
        if stored is not None:
            self._check_same(stored)
        self._position, self._stored = found or self._position, stored

    def _check_same(self, stored: Mapping[str, str]) -> None:
        """Raises InvalidRequest: the other messages were read in another way; PropertiesChanged: from another topic."""
        theirs, again = self._theirs.shown, f"or delete {self._topic} here, create it, and begin anew"
        if stored.get(ISOLATION, self._origin[ISOLATION]) != self._origin[ISOLATION]:
            before = "without" if stored[ISOLATION] == UNCOMMITTED else "with"
            raise InvalidRequest(
                f"what is in {self._topic} of {theirs} was imported {before} --transaction: go on {before} it, {again}"
            )
        if GENERATION in stored and self._origin.setdefault(GENERATION, stored[GENERATION]) != stored[GENERATION]:
            raise PropertiesChanged(
                f"{theirs} was deleted and made anew: it is of generation {self._origin[GENERATION]}, and generation "
                f"{stored[GENERATION]} was imported. Import it into another topic, {again}"
            )

    def name_too_large(self, error: RequestTooLarge) -> None:
        """Have the error name the message that met it, and say what to do."""
        at = self._session.facts["failed_message"]
        assert isinstance(at, int)
        id_ = self._session.facts["cdap_message_id"] = self._newest_ids[at - self._handed].hex()
        too_large = error.detail if error.limit is None else f"with its properties it has more than {error.limit} bytes"
        error.detail = (
            f"message {id_} of {self._theirs.shown} alone is too large for the target, {self._topic}: {too_large}; "
            "give its service a larger --max-request-bytes, and run this again"
        )

    def _newest(self, message_id: MessageId | None) -> Mapping[str, str] | None:
        """Our properties of the message with this id; None: it is gone, or none of an import."""
        if message_id is None:
            return None
        here = Reader(
            self._topic,
            start=message_id,
            inclusive=True,
            isolation="uncommitted",
            namespace=self._session.namespace,
            client=self._session.client,
        )
        with suppress(MessagesExpired, ValueError), here:
            for message in here.read(1, timeout=0):
                if message.message_id == message_id:
                    MessageId.parse(message.properties.get(MESSAGE_ID, ""))
                    ours = (MESSAGE_ID, ISOLATION, GENERATION)
                    return {name: text for name, text in message.properties.items() if name in ours}
        return None

    def _rows(self) -> Iterator[list[Row]]:
        """Where the message at the position is stored, it comes first, for the service to compare; the others are new."""
        for found in self._theirs.messages(self._position, self._note_gone):
            if self._position is not None and found[0].id == bytes(self._position):
                if self._stored is not None:
                    self._hand_over(found[:1])
                    yield [Row(found[0].payload, self._next - 1, properties=self._stored)]
                found = found[1:]
            if found:
                self._hand_over(found)
                rows = [self._row(each, number) for number, each in enumerate(found, self._next)]
                self._next += len(rows)
                self._position = MessageId.from_bytes(found[-1].id)
                yield rows

    def _hand_over(self, found: list[Message]) -> None:
        self._newest_ids.extend(each.id for each in found)
        self._handed += len(found)

    def _note_gone(self) -> None:
        self._session.facts["expired"] = True
        self._session.out.note(
            f"{self._theirs.shown} has message {self._position} no more, behind which the import goes on: what has expired there "
            "since that one is not imported"
        )

    def _said(self) -> str:
        return "" if self._position is None else f", up to {iso_time(self._position.publish_timestamp)}"

    def _row(self, message: Message, number: int) -> Row:
        return Row(message.payload, number, properties={MESSAGE_ID: message.id.hex(), **self._origin})
