"""Act two's process: books seats. A table and a topic change in one transaction, so that both do or neither.

Each booking is a row of the table ``bookings``, takes its seats from the row of its flight, and is published to the topic
``bookings``. The numbers go on where the table ends. Wherever this process is killed, the next one ends what it left behind, in
the way the database has decided, and goes on.

The producer has a name and the booking's number is its sequence id. So a publish whose answer is lost is repeated and stored
once, where without a name it would cost the transaction; and a process that was thought dead can publish nothing any more once
its successor has opened the producer. The number is the table's, not the producer's own count: the table knows which bookings
there are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sqlalchemy import Engine, MetaData, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from flights.data import names
from flights.database import open_database
from flights.stops import StoppingParticipant
from oncelog import Client, Producer, SqlParticipant
from oncelog.errors import OncelogError

TOPIC = "bookings"
PRODUCER = "counter-1"
RESOURCE = "counter-1"
"""At the transaction service: this process's own use of the database, the same after each restart."""
FLIGHTS = 50
SEATS = 180
"""Of each flight."""
TIMEOUT = 5.0
"""Seconds after which a transaction is given up whose process died before its database could decide."""
FAILURES = 10
"""After so many a process gives up."""


class Base(DeclarativeBase):
    metadata = MetaData()


class Flight(Base):
    """How many seats of a flight are left."""

    __tablename__ = "flights"
    name: Mapped[str] = mapped_column(primary_key=True)
    seats_left: Mapped[int]


class Booking(Base):
    """Seats that a passenger has."""

    __tablename__ = "bookings"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    flight: Mapped[str]
    seats: Mapped[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--bookings", type=int, required=True)
    parser.add_argument("--stop-at", choices=("published", "decided", "committing"))
    parser.add_argument("--stop-in", type=int, default=0)
    args = parser.parse_args()
    engine = open_tables(args.database)
    failures = 0
    with Client(args.url) as client:
        while True:
            try:
                with Session(engine) as session:
                    participant = SqlParticipant(session, RESOURCE)
                    if args.stop_at is not None:
                        participant = StoppingParticipant(session, RESOURCE, args.stop_at, args.stop_in)
                    book_all(client, session, participant, args.bookings)
                return
            except OncelogError as error:
                # Whatever it was, the table says after the next transaction's recovery which booking is the next one.
                failures += 1
                print(json.dumps({"failure": type(error).__name__}), flush=True)
                if failures == FAILURES:
                    raise


def open_tables(path: Path) -> Engine:
    """The database; all seats of a flight that is not in it yet are free."""
    engine = open_database(path, Base.metadata)
    with Session(engine) as session, session.begin():
        if session.scalar(select(func.count()).select_from(Flight)) == 0:
            session.add_all(Flight(name=name, seats_left=SEATS) for name in names(FLIGHTS))
    return engine


def book_all(client: Client, session: Session, database: SqlParticipant, wanted: int) -> None:
    """Book until ``wanted`` bookings are in the table, and report each."""
    flights = names(FLIGHTS)
    database.recover(client)  # first: what an earlier process left prepared keeps the producer from being opened
    with Producer(TOPIC, name=PRODUCER, client=client, codec="json") as producer:
        while (number := book_next(client, session, database, producer, flights, wanted)) is not None:
            print(json.dumps({"booked": number}), flush=True)


def book_next(
    client: Client,
    session: Session,
    database: SqlParticipant,
    producer: Producer[object],
    flights: list[str],
    wanted: int,
) -> int | None:
    """One booking: its number. None when all are there."""
    with client.transaction(database, timeout=TIMEOUT) as tx:
        # Asked inside the transaction: its start has ended what an earlier process left undecided.
        number = (session.scalar(select(func.max(Booking.number))) or 0) + 1
        if number > wanted:
            return None
        flight, seats = flights[number % len(flights)], 1 + number % 3
        session.get_one(Flight, flight).seats_left -= seats
        session.add(Booking(number=number, flight=flight, seats=seats))
        value = {"number": number, "flight": flight, "seats": seats}
        tx.send(TOPIC, value, key=flight, producer=producer, sequence_id=number)
    return number


if __name__ == "__main__":
    main()
