"""Act two's proof: the table and the topic hold the same bookings, and no transaction is left undecided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from flights.book import RESOURCE, SEATS, TOPIC, Booking, Flight
from oncelog import Client, Message, Reader
from oncelog.wire.models import Verification

_SHOWN = 10


class Booked(NamedTuple):
    """A booking, as the table and as the topic have it."""

    number: int
    flight: str
    seats: int


class Look(NamedTuple):
    """The table and the topic, seen from outside."""

    table: list[Booked]
    topic: list[Message]
    """What a transaction sees that starts now."""
    plain: list[Message]
    """All that is in the log."""

    @property
    def published(self) -> list[Booked]:
        return [Booked(**message.value) for message in self.topic]

    @property
    def never_happened(self) -> list[Message]:
        """What only who reads all of the log sees: not decided yet, or rolled back."""
        seen = {message.message_id for message in self.topic}
        return [message for message in self.plain if message.message_id not in seen]


def look(client: Client, engine: Engine) -> Look:
    """Read everything: the topic before the table, so that nothing is in the one that the other cannot have yet."""
    topic = _committed(client)
    with Session(engine) as session:
        rows = session.execute(select(Booking.number, Booking.flight, Booking.seats).order_by(Booking.number))
        table = [Booked(*row) for row in rows]
    with Reader(TOPIC, client=client, timeout=0, codec="json", isolation="uncommitted") as reader:
        return Look(table, topic, list(reader))


def _committed(client: Client) -> list[Message]:
    # A transaction sees what was decided when it began, so that each look needs one of its own.
    with client.transaction() as tx, Reader(TOPIC, client=client, timeout=0, codec="json", transaction=tx) as reader:
        return list(reader)


def check_bookings(table: Sequence[Booked], published: Sequence[Booked], wanted: int) -> list[str]:
    """Each booking once in the table and once in the topic, in the same order."""
    problems = []
    if [booking.number for booking in table] != list(range(1, wanted + 1)):
        problems.append(f"the table has {len(table):,} bookings, not those from 1 to {wanted:,}")
    times = Counter(published)
    problems += [f"{booking}: {count} times in the topic" for booking, count in times.items() if count > 1]
    problems += [f"{booking}: in the table, not in the topic" for booking in table if booking not in times]
    problems += [f"{booking}: in the topic, not in the table" for booking in sorted(times.keys() - set(table))]
    if not problems and list(published) != list(table):
        problems.append("the topic has the bookings in another order")
    return problems[:_SHOWN]


def check_seats(engine: Engine, published: Sequence[Booked]) -> list[str]:
    """The seats left are those that nobody has booked, by what the topic says."""
    taken: Counter[str] = Counter()
    for booking in published:
        taken[booking.flight] += booking.seats
    with Session(engine) as session:
        return [
            f"{flight.name}: {flight.seats_left} seats left of {SEATS}, {taken[flight.name]} booked"
            for flight in session.scalars(select(Flight))
            if flight.seats_left + taken[flight.name] != SEATS
        ]


def check_rolled_back(found: Look, least: int) -> list[str]:
    """What was rolled back lies in the log, who asks for all gets it, and its booking was made again."""
    ghosts = [Booked(**message.value) for message in found.never_happened]
    problems = [f"{booking}: rolled back and not made again" for booking in ghosts if booking not in found.table]
    if len(ghosts) < least or len(found.plain) != len(found.topic) + len(ghosts):
        problems.append(f"the log has {len(found.plain):,} messages, a transaction sees {len(found.topic):,}")
    return problems


def undecided(client: Client) -> list[str]:
    """Every transaction that is in progress, prepared ones named so."""
    return [
        f"transaction {status.write_pointer} is {'prepared by ' + RESOURCE if status.resource else 'in progress'}"
        for status in client.transactions("in_progress")
    ]


def check_service(client: Client) -> list[str]:
    """Let the service refold its log and compare it with its live maps."""
    *_, found = client.verify(TOPIC)
    assert isinstance(found, Verification)
    return found.problems[:_SHOWN] if found.problems or found.ok else ["verify found the log not as it should be"]
