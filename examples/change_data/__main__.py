"""`python -m examples.change_data TOPIC DATABASE`: follows a topic into a table, or asks the table."""

from __future__ import annotations

import argparse

import sqlalchemy as sa
from examples.change_data.replica import Replica


def main() -> None:
    """Follows, and says how many changes that were; or prints what the SQL finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("database", help="as SQLAlchemy names it: sqlite:///replica.db")
    parser.add_argument("--column", action="append", default=[], help="a member of the records that becomes a column")
    parser.add_argument("--follow", action="store_true", help="go on for ever")
    parser.add_argument("--sql", help="ask, instead of following")
    asked = parser.parse_args()
    engine = sa.create_engine(asked.database)
    if asked.sql:
        with engine.connect() as connection:
            for row in connection.execute(sa.text(asked.sql)):
                print(*row, sep="\t")
        return
    print(Replica(engine, asked.topic, asked.column).follow(None if asked.follow else 0), "changes")


if __name__ == "__main__":
    main()
