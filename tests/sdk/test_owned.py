"""The SDK with tokens that may write to their topics and nothing else: a database that decides, and a job of Spark.

What such a token may do is told of each address in tests/rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select, text

from oncelog import Client, SqlParticipant
from oncelog.errors import ConnectionFailed, TransactionInDoubt
from tests.access.carrying import Carrying
from tests.spark.test_sink import Job, rows
from tests.world.service import RunningService, running_service


@pytest.fixture
def locked() -> Iterator[tuple[RunningService, Carrying]]:
    """A service, and who has every right there."""
    with running_service() as service:
        root = Carrying(service.url).holding("root", "admin")
        root.good("PUT", "/v1/namespaces/default/topics/a", json={})
        yield service, root


@pytest.fixture
def writer(locked: tuple[RunningService, Carrying]) -> Iterator[Client]:
    service, root = locked
    with Client(service.url, token=root.make("writer", "write:default/*")["secret"], retry=2) as client:
        yield client


@pytest.fixture
def stranger(locked: tuple[RunningService, Carrying]) -> Iterator[Client]:
    service, root = locked
    with Client(service.url, token=root.make("stranger", "write:default/*")["secret"], retry=2) as client:
        yield client


def stable(root: Carrying) -> list[str]:
    """What is in the topic."""
    found = root.good("POST", "/v1/namespaces/default/topics/a/poll", json={"limit": 2000})
    return [each["payload"] for each in found]


def test_a_database_that_decides_and_recovers(
    writer: Client, stranger: Client, tmp_path: Path, locked: tuple[RunningService, Carrying]
) -> None:
    _, root = locked
    table = Table("numbers", MetaData(), Column("number", Integer))
    engine = create_engine(f"sqlite:///{tmp_path}/db")
    table.metadata.create_all(engine)
    for number, client in enumerate((writer, stranger, writer, stranger)):  # one database, two principals, and old markers
        participant = SqlParticipant(engine, resource="db")
        with client.transaction(participant) as tx:
            participant.connection.execute(insert(table).values(number=number))
            tx.send("a", b"%d" % number)
        assert tx.state == "committed"
    left = writer.start_transaction().transaction_id
    writer.can_commit(left, [], resource="db")
    assert SqlParticipant(engine, resource="db").recover(stranger) == {}
    operator = root.make("operator", "operate")["secret"]
    with Client(writer.url, token=operator) as client:
        assert SqlParticipant(engine, resource="db").recover(client) == {left: "aborted"}
    assert writer.transaction_status(left).state == "aborted"
    with engine.connect() as connection:
        assert list(connection.execute(select(table.c.number)).scalars()) == [0, 1, 2, 3]
    assert stable(root) == ["0", "1", "2", "3"]


def test_who_operates_leaves_to_its_owner_what_a_database_has_committed(
    writer: Client, tmp_path: Path, locked: tuple[RunningService, Carrying]
) -> None:
    _, root = locked
    engine = create_engine(f"sqlite:///{tmp_path}/db")
    participant = SqlParticipant(engine, resource="db")
    tx = writer.transaction(participant)
    tx.__enter__()
    participant.connection.execute(text("SELECT 1"))
    tx.send("a", b"x")
    pointer = tx.transaction_id
    writer.commit_transaction = failing  # type: ignore[method-assign]
    with pytest.raises(TransactionInDoubt):
        tx.__exit__(None, None, None)
    del writer.commit_transaction
    assert writer.transaction_status(pointer).state == "in_progress"
    with Client(writer.url, token=root.make("operator", "operate")["secret"]) as client:
        assert SqlParticipant(engine, resource="db").recover(client) == {pointer: "in_doubt"}
    assert SqlParticipant(engine, resource="db").recover(writer) == {pointer: "committed"}
    assert stable(root) == ["x"]


def failing(*_: object, **__: object) -> None:
    raise ConnectionFailed("cut", definite=False)


def test_a_job_of_spark_writes_sweeps_and_takes_over(writer: Client, locked: tuple[RunningService, Carrying]) -> None:
    _, root = locked
    token = root.make("spark", "write:default/a")["secret"]
    job = Job(writer.url, topic="a", token=token, producer="loader")
    left = job.stage(0, [rows(b"left")])
    job.run(0, rows(b"1"), rows(b"2"))
    job.run(0, rows(b"1"), rows(b"2"))  # again, as after a failure of the driver
    Job(writer.url, topic="a", token=token, producer="loader").run(1, rows(b"3"))  # in a new process, which sweeps
    assert root.good("GET", "/v1/atomic") == []
    Job(writer.url, "query-2", topic="a", token=token, producer="loader", takeOver="query-1").run(0, rows(b"4"))
    assert stable(root) == ["1", "2", "3", "4"]
    assert left[1]
