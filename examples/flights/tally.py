"""The reader's process: keeps a table of departures and delay per airport, in SQLite.

The position in the log is saved in the same transaction as the numbers it led to. Wherever this process is killed, the two agree,
and it goes on behind the last flight that is counted.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

from flights.data import TOPIC, Totals, totals
from flights.database import open_database
from oncelog import Checkpoint, Client, Reader

RESTART_SECONDS = 60.0
"""For so long the service may be away, while it is started again."""
AIRPORTS = Table(
    "airports",
    MetaData(),
    Column("airport", String, primary_key=True),
    Column("flights", Integer, nullable=False),
    Column("departures", Integer, nullable=False),
    Column("delay_minutes", Integer, nullable=False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--page", type=int, required=True)
    args = parser.parse_args()
    engine = open_database(args.database, AIRPORTS.metadata)
    checkpoint = Checkpoint("tally", TOPIC)
    with Session(engine) as session, session.begin():
        start = checkpoint.load(session)
    with Client(args.url, retry=RESTART_SECONDS) as client, Reader(TOPIC, client=client, start=start or "earliest") as reader:
        while True:
            messages = reader.read(args.page)
            with Session(engine) as session, session.begin():
                add(session, totals(message.payload for message in messages))
                checkpoint.save(session, messages[-1])


def add(session: Session, counted: dict[str, Totals]) -> None:
    """Add to the rows of the airports."""
    for airport, numbers in counted.items():
        row = insert(AIRPORTS).values(airport=airport, **asdict(numbers))
        raised = {name: AIRPORTS.c[name] + row.excluded[name] for name in asdict(numbers)}
        session.execute(row.on_conflict_do_update(index_elements=["airport"], set_=raised))


def table(engine: Engine) -> dict[str, Totals]:
    """What the table says now."""
    with Session(engine) as session:
        return {row.airport: Totals(row.flights, row.departures, row.delay_minutes) for row in session.execute(select(AIRPORTS))}


if __name__ == "__main__":
    main()
