"""A message is published if and only if the transaction it was added in commits, and then once, in order, whatever happens."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from oncelog import Client, Message, Outbox, OutboxRelay, Producer, Reader
from oncelog.errors import (
    CodecError,
    ConnectionFailed,
    InvalidRequest,
    OutboxBehind,
    OutboxBlocked,
    OutboxBusy,
    TopicNotFound,
)
from oncelog.sql.outbox_lease import LeaseLost, OutboxDatabase
from oncelog.sql.outbox_plan import Planned, decode, encode, number, taken
from oncelog.sql.outbox_relay import RelayStatus
from tests.patience import PATIENCE, until
from tests.postgres import postgres_server
from tests.sdk.fakes import Answer, Request, fake_server, forward
from tests.support import RunningService, free_port, running_service


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database."""
    sqlite = request.param == "sqlite"
    if sqlite:
        made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": PATIENCE})
    else:
        made = create_engine(postgres_server().fresh_schema())
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE orders (n INTEGER)"))
    yield made
    made.dispose()


@pytest.fixture
def postgresql() -> Iterator[Engine]:
    """An empty database with several writers at once."""
    made = create_engine(postgres_server().fresh_schema())
    yield made
    made.dispose()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(f"orders-{uuid4().hex}")


def relay_of(outbox: Outbox, engine: Engine, client: Client, rows: int = 1_000, takeover: float = 60.0) -> OutboxRelay:
    return OutboxRelay(outbox, engine, client=client, rows=rows, poll_seconds=0.01, takeover_seconds=takeover)


def messages(client: Client, topic: str, namespace: str = "default") -> list[Message]:
    with Reader(topic, namespace=namespace, client=client, timeout=0) as reader:
        return list(reader)


def payloads(client: Client, topic: str) -> list[bytes]:
    return [message.payload for message in messages(client, topic)]


def add_all(outbox: Outbox, engine: Engine, topic: str, *values: bytes) -> None:
    """In one transaction."""
    with engine.begin() as connection:
        for value in values:
            outbox.add(connection, topic, value)


def rows_left(outbox: Outbox, engine: Engine) -> int:
    outbox.create_tables(engine)
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(outbox.table).where(outbox.table.c.outbox == outbox.name)) or 0


# --- adding


def test_a_message_is_published_when_its_transaction_has_committed(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        outbox.add(connection, topic, b"one", key="k", properties={"colour": "grün"}, ttl=1000)
    assert relay_of(outbox, engine, client).run_once() == 1
    (message,) = messages(client, topic)
    assert (message.payload, message.key, message.properties) == (b"one", b"k", {"colour": "grün"})
    assert (message.producer, message.sequence_id) == (outbox.name, 0)
    assert rows_left(outbox, engine) == 0


def test_a_transaction_that_rolls_back_leaves_neither_its_change_nor_a_message(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        outbox.add(connection, topic, b"never")
        connection.rollback()
        assert connection.scalar(text("SELECT count(*) FROM orders")) == 0
    assert relay_of(outbox, engine, client).run_once() == 0
    assert payloads(client, topic) == []


def test_what_a_savepoint_takes_back_is_not_published(outbox: Outbox, client: Client, topic: str, postgresql: Engine) -> None:
    with postgresql.begin() as connection:
        outbox.add(connection, topic, b"before")
        savepoint = connection.begin_nested()
        outbox.add(connection, topic, b"inside")
        savepoint.rollback()
        outbox.add(connection, topic, b"behind")
    relay_of(outbox, postgresql, client).run_once()
    assert payloads(client, topic) == [b"before", b"behind"]


def test_nothing_is_committed_for_the_caller(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    relay = relay_of(outbox, engine, client)
    with Session(engine) as session:
        outbox.add(session, topic, b"1")
        session.rollback()
        assert relay.run_once() == 0
        outbox.add(session, topic, b"2")
        session.commit()
    assert relay.run_once() == 1
    assert payloads(client, topic) == [b"2"]


def test_session_scoped_session_and_connection_do_the_same(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    with Session(engine) as session, session.begin():
        outbox.add(session, topic, b"session")
    scoped = scoped_session(sessionmaker(engine))
    outbox.add(scoped, topic, b"scoped")
    scoped.commit()
    scoped.remove()
    add_all(outbox, engine, topic, b"connection")
    relay_of(outbox, engine, client).run_once()
    assert payloads(client, topic) == [b"session", b"scoped", b"connection"]


def test_the_tables_are_made_by_whoever_needs_them_first(engine: Engine, client: Client, topic: str) -> None:
    writer_first, relay_first = (Outbox("orders", table) for table in ("a", "b"))
    add_all(writer_first, engine, topic, b"a")
    assert relay_of(writer_first, engine, client).run_once() == 1
    other = f"{topic}-other"
    client.create_topic(other)
    assert relay_of(relay_first, engine, client).run_once() == 0
    add_all(relay_first, engine, other, b"b")
    assert relay_of(relay_first, engine, client).run_once() == 1
    assert (payloads(client, topic), payloads(client, other)) == ([b"a"], [b"b"])


def test_a_codec_makes_the_payload(engine: Engine, client: Client, topic: str) -> None:
    outbox = Outbox("orders", codec="json")
    with engine.begin() as connection:
        outbox.add(connection, topic, {"order": 17})
    with engine.begin() as connection, pytest.raises(CodecError):
        outbox.add(connection, topic, object())
    relay_of(outbox, engine, client).run_once()
    assert payloads(client, topic) == [b'{"order":17}']


@pytest.mark.parametrize("payload", [b"", bytes(range(256)) * 10_000], ids=["empty", "2.5 MB"])
def test_any_payload_arrives_as_it_was(outbox: Outbox, engine: Engine, client: Client, topic: str, payload: bytes) -> None:
    add_all(outbox, engine, topic, b"before", payload, payload, b"behind")
    relay_of(outbox, engine, client).run_once()
    assert payloads(client, topic) == [b"before", payload, payload, b"behind"]


def test_what_cannot_be_published_anywhere_is_refused_when_it_is_added(outbox: Outbox, engine: Engine) -> None:
    with engine.begin() as connection:
        for topic in ("", ".", "..", "a/b", "x" * 250, "grün"):
            with pytest.raises(ValueError, match="topic"):
                outbox.add(connection, topic, b"")
        with pytest.raises(ValueError, match="namespace"):
            outbox.add(connection, "t", b"", namespace="a.b")
        with pytest.raises(TypeError, match="bytes"):
            outbox.add(connection, "t", "text")
        with pytest.raises(InvalidRequest, match="ttl"):
            outbox.add(connection, "t", b"", ttl=0)
    assert rows_left(outbox, engine) == 0
    with pytest.raises(ValueError, match="name"):
        Outbox("a/b")


def test_autocommit_is_refused_there_is_no_transaction_to_share(outbox: Outbox, postgresql: Engine, client: Client) -> None:
    outbox.create_tables(postgresql)
    connection = postgresql.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connection, pytest.raises(ValueError, match="AUTOCOMMIT"):
        outbox.add(connection, "t", b"")
    always = create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    with always.connect() as connection, pytest.raises(ValueError, match="AUTOCOMMIT"):
        outbox.add(connection, "t", b"")
    with pytest.raises(ValueError, match="AUTOCOMMIT"):
        relay_of(outbox, always, client).run_once()
    always.dispose()


# --- order, and nothing passed over


def test_messages_of_a_transaction_keep_their_order_over_many_batches(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    values = [b"%d" % number for number in range(100)]
    add_all(outbox, engine, topic, *values)
    assert relay_of(outbox, engine, client, rows=7).run_once() == 100
    assert payloads(client, topic) == values
    assert [message.sequence_id for message in messages(client, topic)] == list(range(100))


def test_transactions_one_after_the_other_stay_in_that_order(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    for each in range(10):
        add_all(outbox, engine, topic, b"%d" % each)
    relay_of(outbox, engine, client, rows=3).run_once()
    assert payloads(client, topic) == [b"%d" % each for each in range(10)]


def test_a_row_that_becomes_visible_behind_a_higher_one_is_published_too(
    outbox: Outbox, postgresql: Engine, client: Client, topic: str
) -> None:
    """The hard one: were the row's id its sequence id, the service would take the late row for a duplicate."""
    outbox.create_tables(postgresql)
    relay = relay_of(outbox, postgresql, client)
    with postgresql.connect() as late:
        outbox.add(late, topic, b"late")
        add_all(outbox, postgresql, topic, b"early")
        assert relay.run_once() == 1, "a transaction that is open holds up nobody"
        late.commit()
    assert relay.run_once() == 1
    assert payloads(client, topic) == [b"early", b"late"]


def test_ids_handed_out_to_sessions_in_advance_lose_no_row_either(
    outbox: Outbox, postgresql: Engine, client: Client, topic: str
) -> None:
    outbox.create_tables(postgresql)
    with postgresql.begin() as connection:
        connection.execute(text(f"ALTER SEQUENCE {outbox.table.name}_id_seq CACHE 50"))
    relay = relay_of(outbox, postgresql, client)
    with postgresql.connect() as first, postgresql.connect() as second:
        for each in range(5):
            for connection, name in ((first, b"first"), (second, b"second")):
                outbox.add(connection, topic, b"%s %d a" % (name, each))
                outbox.add(connection, topic, b"%s %d b" % (name, each))
            second.commit()
            relay.run_once()
            first.commit()
            relay.run_once()
    got = payloads(client, topic)
    assert sorted(got) == sorted(
        b"%s %d %s" % (name, each, half) for name in (b"first", b"second") for each in range(5) for half in (b"a", b"b")
    )
    for name in (b"first", b"second"):
        of_one = [value for value in got if value.startswith(name)]
        assert of_one == sorted(of_one), "one session's transactions stay in their order"


def test_a_prepared_transaction_is_published_when_it_commits_at_last(
    outbox: Outbox, client: Client, topic: str, request: pytest.FixtureRequest
) -> None:
    server = postgres_server()
    server.restart(max_prepared_transactions="5")
    request.addfinalizer(server.restart)
    engine = create_engine(server.fresh_schema())
    outbox.create_tables(engine)
    relay = relay_of(outbox, engine, client)
    with engine.connect() as connection:
        prepared = connection.begin_twophase("t1")
        outbox.add(connection, topic, b"prepared")
        prepared.prepare()
        add_all(outbox, engine, topic, b"other")
        assert relay.run_once() == 1
        prepared.commit()
    assert relay.run_once() == 1
    assert payloads(client, topic) == [b"other", b"prepared"]
    engine.dispose()


def test_many_topics_and_namespaces_share_an_outbox(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    client.create_topic(topic, namespace="other")
    client.create_topic(f"{topic}-2")
    places = [(topic, "default"), (topic, "other"), (f"{topic}-2", "default")]
    with engine.begin() as connection:
        for each in range(9):
            name, namespace = places[each % 3]
            outbox.add(connection, name, b"%d" % each, namespace=namespace)
    relay_of(outbox, engine, client, rows=4).run_once()
    assert payloads(client, topic) == [b"0", b"3", b"6"]
    assert [message.payload for message in messages(client, topic, "other")] == [b"1", b"4", b"7"]
    assert payloads(client, f"{topic}-2") == [b"2", b"5", b"8"]


def test_outboxes_share_a_table_without_touching_each_other(engine: Engine, client: Client, topic: str) -> None:
    one, two = Outbox("one"), Outbox("two")
    add_all(one, engine, topic, b"of one")
    add_all(two, engine, topic, b"of two")
    assert relay_of(one, engine, client).run_once() == 1
    assert (rows_left(one, engine), rows_left(two, engine)) == (0, 1)
    assert payloads(client, topic) == [b"of one"]


# --- a relay that died


def test_what_a_dead_relay_had_numbered_is_published_under_these_numbers(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    add_all(outbox, engine, topic, b"0", b"1", b"2")
    lease = numbered_by_a_dead_relay(outbox, engine, rows=2)
    add_all(outbox, engine, topic, b"3")
    assert [planned.number for planned in lease] == [0, 1]
    with Producer[bytes](topic, name=outbox.name, client=client) as died_here:
        died_here.send(b"0", sequence_id=0)
    relay = relay_of(outbox, engine, client)
    assert relay.run_once() == 4
    assert (relay.status.stored, relay.status.duplicates) == (3, 1)
    assert payloads(client, topic) == [b"0", b"1", b"2", b"3"]


def test_rows_in_a_table_that_was_emptied_are_not_taken_for_those_numbered_before(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    """TRUNCATE … RESTART IDENTITY while a plan was under way: the new rows have the ids of the old ones."""
    add_all(outbox, engine, topic, b"old 0", b"old 1")
    plan = numbered_by_a_dead_relay(outbox, engine, rows=10)
    with Producer[bytes](topic, name=outbox.name, client=client) as died_here:
        died_here.send(b"old 0", sequence_id=plan[0].number)
        died_here.send(b"old 1", sequence_id=plan[1].number)
    empty_and_restart(outbox, engine)
    add_all(outbox, engine, topic, b"new 0", b"new 1")
    with engine.connect() as connection:
        ids = list(connection.scalars(select(outbox.table.c.id)))
    assert ids == [planned.row for planned in plan], "else this proves nothing"
    assert relay_of(outbox, engine, client).run_once() == 2
    assert payloads(client, topic) == [b"old 0", b"old 1", b"new 0", b"new 1"]


def test_ids_that_begin_anew_lose_nothing(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    relay = relay_of(outbox, engine, client)
    for value in (b"a", b"b", b"c"):
        add_all(outbox, engine, topic, value)
        relay.run_once()
        empty_and_restart(outbox, engine)
    assert payloads(client, topic) == [b"a", b"b", b"c"]


def numbered_by_a_dead_relay(outbox: Outbox, engine: Engine, rows: int) -> tuple[Planned, ...]:
    database = OutboxDatabase(outbox, engine)
    lease = database.step(database.claim(database.lease(), "dead"), [], rows, 1_000_000, [])
    with engine.begin() as connection:  # else each test waited until the dead one has been silent for long enough
        connection.execute(update(outbox.relays).where(outbox.relays.c.outbox == outbox.name).values(holder=None))
    return lease.plan


def empty_and_restart(outbox: Outbox, engine: Engine) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(delete(outbox.table))
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": outbox.table.name})
        else:
            connection.execute(text(f"TRUNCATE {outbox.table.name} RESTART IDENTITY"))


# --- two relays


def test_of_many_who_need_the_tables_at_once_none_fails(outbox: Outbox, engine: Engine) -> None:
    together = threading.Barrier(6)

    def create(_: int) -> None:
        together.wait(PATIENCE)
        outbox.create_tables(engine)

    with ThreadPoolExecutor(6) as threads:
        for _ in range(8):
            list(threads.map(create, range(6)))
            outbox.metadata.drop_all(engine)


def test_of_two_relays_one_publishes_and_nothing_doubles(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    relays = [relay_of(outbox, engine, client, rows=3) for _ in range(2)]
    for relay in relays:
        relay.start()
    try:
        for each in range(40):
            add_all(outbox, engine, topic, b"%d" % each)
        until(lambda: rows_left(outbox, engine) == 0, "all rows are published")
        until(lambda: sorted(relay.status.state for relay in relays) == ["relaying", "standby"], "one of them stands by")
    finally:
        for relay in relays:
            relay.stop()
    assert payloads(client, topic) == [b"%d" % each for each in range(40)]


def test_the_one_that_stands_by_follows_a_clean_stop_at_once(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    first, second = (relay_of(outbox, engine, client) for _ in range(2))
    with first:
        until(lambda: first.status.state == "relaying", "the first one relays")
        with second:
            until(lambda: second.status.state == "standby", "the second one stands by")
            first.stop()
            add_all(outbox, engine, topic, b"for the second")
            until(lambda: rows_left(outbox, engine) == 0, "the second one has followed")
    assert (first.status.stored, second.status.stored) == (0, 1)


def test_a_relay_that_was_overtaken_changes_nothing(outbox: Outbox, engine: Engine, topic: str) -> None:
    add_all(outbox, engine, topic, b"0", b"1")
    old, new = OutboxDatabase(outbox, engine), OutboxDatabase(outbox, engine)
    held = old.step(old.claim(old.lease(), "old"), [], 1, 1_000, [])
    taken_over = new.claim(new.lease(), "new")
    for change in (
        lambda: old.step(held, held.plan, 10, 1_000, []),
        lambda: old.beat(held),
        lambda: old.release(held),
        lambda: old.raise_number(held, 100),
        lambda: old.claim(held, "old"),
    ):
        with pytest.raises(LeaseLost):
            change()
        assert new.lease() == taken_over
        assert rows_left(outbox, engine) == 2
    assert new.step(taken_over, [], 10, 1_000, []).plan == (held.plan[0], Planned(1, 2, new.lease().plan[1].token))


def test_two_relays_that_number_at_the_same_moment_number_no_row_twice(outbox: Outbox, engine: Engine, topic: str) -> None:
    add_all(outbox, engine, topic, *(b"%d" % each for each in range(20)))
    databases = [OutboxDatabase(outbox, engine) for _ in range(2)]
    lease = databases[0].claim(databases[0].lease(), "both")
    barrier, won = threading.Barrier(2), []

    def step(database: OutboxDatabase) -> None:
        database.lease()
        barrier.wait()
        with suppress(LeaseLost):
            won.append(database.step(lease, [], 10, 1_000_000, []))

    threads = [threading.Thread(target=step, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(won) == 1
    assert databases[0].lease() == won[0]
    assert [planned.number for planned in won[0].plan] == list(range(10))


def test_a_relay_that_hangs_in_the_middle_of_a_change_does_not_hold_up_the_others(
    outbox: Outbox, postgresql: Engine, client: Client, topic: str
) -> None:
    """Paused, or its machine gone: the lock that it holds would be held for as long as PostgreSQL believes in it."""
    add_all(outbox, postgresql, topic, b"0")
    hanging = OutboxDatabase(outbox, postgresql, patience_seconds=0.5)
    lease = hanging.claim(hanging.lease(), "hanging")

    def hang() -> None:
        with hanging._changing() as connection:
            hanging._move(connection, lease, lease)
            assert relay_of(outbox, postgresql, client, takeover=4.0).run_once() == 1
            connection.execute(text("SELECT 1"))

    with pytest.raises(DBAPIError):
        hang()
    assert payloads(client, topic) == [b"0"]


def test_run_once_beside_a_running_relay_says_who_is_at_it(outbox: Outbox, engine: Engine, client: Client) -> None:
    with relay_of(outbox, engine, client, takeover=8.0) as running:
        until(lambda: running.status.state == "relaying", "it relays")
        with pytest.raises(OutboxBusy) as busy:
            relay_of(outbox, engine, client).run_once()
        assert busy.value.holder
        assert running.status.state == "relaying"


def test_run_once_follows_a_dead_relay(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    add_all(outbox, engine, topic, b"0")
    database = OutboxDatabase(outbox, engine)
    database.claim(database.lease(), "dead")
    assert relay_of(outbox, engine, client, takeover=4.0).run_once() == 1


def test_a_relay_that_waits_for_long_is_not_thought_dead(outbox: Outbox, engine: Engine, client: Client) -> None:
    first, second = (relay_of(outbox, engine, client, takeover=4.0) for _ in range(2))
    database = OutboxDatabase(outbox, engine)
    with first:
        until(lambda: first.status.state == "relaying", "the first one relays")
        before, began = database.lease(), time.monotonic()
        with second:
            time.sleep(6.0)  # one and a half times as long as a silent one is waited for
            assert (first.status.state, second.status.state) == ("relaying", "standby")
            shown, took = database.lease().version - before.version, time.monotonic() - began
    assert 0 < shown < 2 * took, "it shows itself now and then, not with every look at the table"


# --- refusals


def test_a_missing_topic_holds_up_its_own_rows_only_until_it_is_there(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    missing = f"{topic}-missing"
    with engine.begin() as connection:
        for each in range(6):
            outbox.add(connection, missing if each % 2 else topic, b"%d" % each)
    relay = relay_of(outbox, engine, client, rows=2)
    with pytest.raises(OutboxBlocked) as blocked:
        relay.run_once()
    assert (blocked.value.topic, blocked.value.cause, blocked.value.row) == (f"default/{missing}", "topic_not_found", 2)
    assert payloads(client, topic) == [b"0", b"2", b"4"]
    client.create_topic(missing)
    assert relay.run_once() == 3
    assert payloads(client, missing) == [b"1", b"3", b"5"]


def test_a_running_relay_says_what_is_blocked_and_goes_on_when_that_is_mended(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    missing = f"{topic}-missing"
    with relay_of(outbox, engine, client) as relay:
        add_all(outbox, engine, missing, b"0", b"1")
        until(lambda: bool(relay.status.blocked), "it says so")
        assert isinstance(relay.status.blocked[f"default/{missing}"], TopicNotFound)
        add_all(outbox, engine, topic, b"others go on")
        until(lambda: payloads(client, topic) == [b"others go on"], "other topics go on")
        client.create_topic(missing)
        until(lambda: rows_left(outbox, engine) == 0, "it goes on")
        until(lambda: not relay.status.blocked, "it says that, too")
    assert payloads(client, missing) == [b"0", b"1"]


def test_a_message_that_is_too_large_stops_its_topic_and_is_not_passed_over(outbox: Outbox, engine: Engine) -> None:
    with running_service(max_request_bytes=50_000) as service, Client(service.url) as client:
        client.create_topic("t")
        small = [b"%d" % each for each in range(10)]
        add_all(outbox, engine, "t", *small[:5], bytes(60_000), *small[5:])
        relay = relay_of(outbox, engine, client)
        with pytest.raises(OutboxBlocked) as blocked:
            relay.run_once()
        assert (blocked.value.cause, blocked.value.row) == ("request_too_large", 6)
        assert payloads(client, "t") == small[:5]
        assert rows_left(outbox, engine) == 6
        with engine.begin() as connection:  # what the documentation says: mend the service, or delete the row
            connection.execute(delete(outbox.table).where(outbox.table.c.id == blocked.value.row))
        assert relay.run_once() == 5
        assert payloads(client, "t") == small


def test_more_blocked_topics_than_are_passed_over_lose_nothing(
    outbox: Outbox, engine: Engine, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.sql.outbox_relay._BLOCKED_TOPICS", 3)
    names = [f"{topic}-{each}" for each in range(8)]
    with engine.begin() as connection:
        for name in names:
            outbox.add(connection, name, name.encode())
    relay = relay_of(outbox, engine, client, rows=2)
    for name in names:
        with pytest.raises(OutboxBlocked):
            relay.run_once()
        client.create_topic(name)
    relay.run_once()
    assert [payloads(client, name) for name in names] == [[name.encode()] for name in names]


def test_what_may_be_there_is_not_sent_again_once_deduplication_is_switched_off(
    outbox: Outbox, engine: Engine, house: RunningService, client: Client, topic: str
) -> None:
    lost = []

    def handle(request: Request) -> Answer | None:
        answer = forward(house.url, request)
        if request.path.endswith("/publish") and not lost:
            lost.append(answer)
            client.update_topic(topic, {"deduplication": False})
            return None
        return answer

    add_all(outbox, engine, topic, b"0")
    with (
        fake_server(handle) as fake,
        Client(fake.url, retry=0) as cut_off,
        relay_of(outbox, engine, cut_off) as relay,
    ):
        until(lambda: relay.status.blocked, "it is held up")
        assert payloads(client, topic) == [b"0"]
        client.update_topic(topic, {"deduplication": True})
        until(lambda: rows_left(outbox, engine) == 0, "it goes on")
    assert payloads(client, topic) == [b"0"]


def test_a_topic_without_deduplication_is_refused(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    client.update_topic(topic, {"deduplication": False})
    add_all(outbox, engine, topic, b"0")
    with pytest.raises(OutboxBlocked, match="deduplication is off"):
        relay_of(outbox, engine, client).run_once()
    assert payloads(client, topic) == []


def test_a_topic_that_is_deleted_and_created_again_gets_what_comes_then(
    outbox: Outbox, engine: Engine, client: Client, topic: str
) -> None:
    with relay_of(outbox, engine, client) as relay:
        add_all(outbox, engine, topic, b"old")
        until(lambda: relay.status.stored == 1, "it is published")
        client.delete_topic(topic)
        client.create_topic(topic)
        add_all(outbox, engine, topic, b"new")
        until(lambda: relay.status.stored == 2, "it is published again")
    assert payloads(client, topic) == [b"new"]


def test_a_service_that_is_down_is_waited_for(outbox: Outbox, engine: Engine) -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", retry=0.1) as client:
        add_all(outbox, engine, "t", b"0")
        with pytest.raises(ConnectionFailed):
            relay_of(outbox, engine, client).run_once()
        with relay_of(outbox, engine, client) as relay:
            until(lambda: relay.status.state == "waiting", "it says that it waits")
            assert isinstance(relay.status.error, ConnectionFailed)


# --- an older state of the database


def test_a_restored_backup_is_refused_before_anything_is_lost_or_doubled(tmp_path: Path, client: Client, topic: str) -> None:
    engine, outbox = create_engine(f"sqlite:///{tmp_path / 'shop.db'}"), Outbox(f"orders-{uuid4().hex}")
    relay = relay_of(outbox, engine, client)
    add_all(outbox, engine, topic, b"0")
    relay.run_once()
    add_all(outbox, engine, topic, b"1")
    engine.dispose()
    shutil.copy(tmp_path / "shop.db", tmp_path / "backup.db")
    add_all(outbox, engine, topic, b"2")
    relay.run_once()
    engine.dispose()
    shutil.copy(tmp_path / "backup.db", tmp_path / "shop.db")
    add_all(outbox, engine, topic, b"after the restore")
    with pytest.raises(OutboxBehind, match="restored backup") as behind:
        relay.run_once()
    assert (behind.value.next_number, behind.value.last_sequence_id) == (1, 2)
    assert payloads(client, topic) == [b"0", b"1", b"2"]
    with engine.begin() as connection:  # what the documentation says: delete what is in its topic already, then renumber
        connection.execute(delete(outbox.table).where(outbox.table.c.payload == b"1"))
    assert relay.renumber() == 3
    assert relay.run_once() == 1
    assert payloads(client, topic) == [b"0", b"1", b"2", b"after the restore"]
    engine.dispose()


def test_a_backup_restored_under_a_running_relay_is_noticed(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    with relay_of(outbox, engine, client) as relay:
        add_all(outbox, engine, topic, b"0")
        until(lambda: rows_left(outbox, engine) == 0, "it is published")
        with engine.begin() as connection:
            mine = outbox.relays.c.outbox == outbox.name
            connection.execute(update(outbox.relays).where(mine).values(version=1, next_number=0, plan="[]", holder=None))
            outbox.add(connection, topic, b"would get the number 0")
        until(lambda: relay.status.state == "failed", "it stops")
        assert isinstance(relay.status.error, OutboxBehind)
    assert payloads(client, topic) == [b"0"]
    assert rows_left(outbox, engine) == 1


def test_a_lost_table_of_the_relays_is_refused(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    add_all(outbox, engine, topic, b"0")
    relay_of(outbox, engine, client).run_once()
    outbox.relays.drop(engine)
    add_all(outbox, engine, topic, b"1")
    with pytest.raises(OutboxBehind):
        relay_of(outbox, engine, client).run_once()
    assert payloads(client, topic) == [b"0"]


def test_the_same_outbox_in_a_second_database_is_refused(
    outbox: Outbox, engine: Engine, client: Client, topic: str, tmp_path: Path
) -> None:
    add_all(outbox, engine, topic, b"0")
    relay_of(outbox, engine, client).run_once()
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    add_all(outbox, other, topic, b"of another database")
    with pytest.raises(OutboxBehind):
        relay_of(outbox, other, client).run_once()
    add_all(outbox, engine, topic, b"1")
    assert relay_of(outbox, engine, client).run_once() == 1
    assert payloads(client, topic) == [b"0", b"1"]
    other.dispose()


def test_renumbering_looks_at_every_topic(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    client.create_topic(topic, namespace="elsewhere")
    with Producer[bytes](topic, name=outbox.name, namespace="elsewhere", client=client, initial_sequence_id=99) as foreign:
        foreign.send(b"foreign")
    relay = relay_of(outbox, engine, client)
    assert relay.renumber() == 100
    with relay_of(outbox, engine, client, takeover=8.0) as running:
        until(lambda: running.status.state == "relaying", "it relays")
        with pytest.raises(OutboxBusy):
            relay.renumber()


# --- watching


def test_what_waits_is_counted_and_how_long(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    with engine.begin() as connection:
        assert outbox.waiting(connection) == (0, None)
        outbox.add(connection, topic, b"0")
        outbox.add(connection, topic, b"1")
        table = outbox.table
        connection.execute(update(table).values(added_ms=table.c.added_ms - 60_000))
        rows, seconds = outbox.waiting(connection)
    assert rows == 2
    assert seconds is not None
    assert 60 <= seconds < 90
    relay_of(outbox, engine, client).run_once()
    with Session(engine) as session:
        assert outbox.waiting(session) == (0, None)


def test_whoever_wants_is_told_of_each_change(outbox: Outbox, engine: Engine, client: Client, topic: str) -> None:
    told: list[RelayStatus] = []
    relay = OutboxRelay(outbox, engine, client=client, poll_seconds=0.01, told=told.append)
    with relay:
        until(lambda: bool(told) and told[-1].state == "relaying", "it relays")
        add_all(outbox, engine, topic, b"0")
        until(lambda: told[-1].stored == 1, "it is published")
    assert told[-1].state == "stopped"
    assert all(before != after for before, after in pairwise(told))


# --- the plan


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)), max_size=20))
def test_a_plan_comes_back_as_it_was_written(entries: list[tuple[int, int, int]]) -> None:
    plan = sorted(Planned(*entry) for entry in entries)
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize("damaged", ["", "nonsense", "[[1,2]]", "[[1,2,3,4]]", '{"a":1}', "[1]", '[["x",1,2]]'])
def test_a_plan_that_cannot_be_read_is_refused(damaged: str) -> None:
    with pytest.raises(ValueError, match="not the plan"):
        decode(damaged)


def test_numbers_follow_the_order_of_the_rows() -> None:
    assert number([(7, 70), (3, 30)], 5) == [Planned(5, 7, 70), Planned(6, 3, 30)]


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(0, 300))
def test_as_many_rows_are_taken_as_fit_and_at_least_one(sizes: list[int], limit: int) -> None:
    count = taken(sizes, limit)
    assert count >= min(1, len(sizes))
    assert count <= 1 or sum(sizes[:count]) <= limit
    assert count == len(sizes) or sum(sizes[: count + 1]) > limit


def test_a_damaged_plan_stops_the_relay(outbox: Outbox, engine: Engine, client: Client) -> None:
    outbox.create_tables(engine)
    with engine.begin() as connection:
        values = {"outbox": outbox.name, "version": 0, "next_number": 0, "plan": "nonsense"}
        connection.execute(insert(outbox.relays).values(values))
    with pytest.raises(ValueError, match="not the plan"):
        relay_of(outbox, engine, client).run_once()
