"""The tables in a SQL database. The rows are those of the port; beside them, who serves what.

::

    oncelog_row       key    the table's byte · the key on disk, as keys.py has it
                      value
    oncelog_instance  id     32 hex digits, drawn at each start
                      url    where it answers
                      expires_ms  by the database's clock; renewed long before
    oncelog_lease     resource
                      epoch  rises with every change of hands, and never falls; the row is never deleted
                      instance  who has it, null: nobody
                      One row, `floor`, is no resource: epochs of those that have no row yet begin above its own
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, Text

METADATA = MetaData()

ROW = Table(
    "oncelog_row",
    METADATA,
    Column("key", LargeBinary, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

INSTANCE = Table(
    "oncelog_instance",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("url", Text, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

LEASE = Table(
    "oncelog_lease",
    METADATA,
    Column("resource", LargeBinary, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("instance", Text, nullable=True),
)
