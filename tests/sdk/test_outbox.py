"""A message is published if and only if the transaction it was added in commits, and then once, in order, whatever happens."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy import Engine, create_engine, delete, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from oncelog import Client, Outbox, OutboxRelay, Reader, telemetry
from oncelog.api.api import surrounded
from oncelog.errors import (
    CodecError,
    ConnectionFailed,
    InvalidRequest,
    OutboxBehind,
    OutboxBlocked,
    OutboxBusy,
    RequestTooLarge,
)
from oncelog.process.clock import Clock
from oncelog.sql.outbox.database import LeaseLost, OutboxDatabase
from oncelog.sql.outbox.plan import Name
from oncelog.sql.outbox.relay import RelayStatus
from tests.patience import PATIENCE, until
from tests.sdk.conftest import IN_BOTH
from tests.sdk.memory_topics import MemoryTopics

T = Name("default", "t")


class Time:
    """A relay's: it goes only when told to, or where the relay sleeps."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.clock = Clock(lambda: self.seconds, lambda: self.seconds, self.sleep)
        self.sleeps = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """What others do while the relay sleeps."""

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.sleeps += 1
        assert self.sleeps < 1_000, "it waits for ever"
        self.meanwhile()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def topics(time: Time) -> MemoryTopics:
    return surrounded(MemoryTopics, clock=time.clock)("t", "u")


class Shop:
    """A database with an outbox, and the topics that its relays publish to."""

    def __init__(self, engine: Engine, client: Client, name: str | None = None) -> None:
        self.outbox = Outbox(name or f"orders-{uuid4().hex}")
        self.engine = engine
        self.client = client

    def relay(self, takeover: float = 60.0, **options: Any) -> OutboxRelay:
        options |= {"client": self.client, "poll_seconds": 0.01, "takeover_seconds": takeover}
        return OutboxRelay(self.outbox, self.engine, **options)

    def database(self, patience: float = 10.0) -> OutboxDatabase:
        return OutboxDatabase(self.outbox, self.engine, patience)

    def add(self, topic: str, *values: bytes) -> None:
        """In one transaction."""
        with self.engine.begin() as connection:
            for value in values:
                self.outbox.add(connection, topic, value)

    def publish(self, relay: OutboxRelay) -> None:
        """Until all is published."""
        while self.left():
            relay._turn()

    def left(self) -> int:
        """Rows that are not published."""
        with self.engine.connect() as connection:
            return self.outbox.waiting(connection).rows

    def got(self, topic: str = "t", namespace: str = "default") -> list[bytes]:
        """What a topic in memory holds."""
        assert isinstance(self.client, MemoryTopics)
        return self.client.payloads(topic, namespace)


@pytest.fixture
def shop(engine: Engine, topics: MemoryTopics) -> Shop:
    return Shop(engine, topics)


@pytest.fixture
def other(shop: Shop, tmp_path: Path) -> Iterator[Shop]:
    """Another database, whose outbox has the same name."""
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    yield Shop(engine, shop.client, shop.outbox.name)
    engine.dispose()


# --- adding


@IN_BOTH
def test_a_message_is_published_if_and_only_if_its_transaction_commits(engine: Engine, client: Client, topic: str) -> None:
    """Against the real service, with all that a message has; what is asked for behind it is answered as anywhere."""
    shop = Shop(engine, client)
    relay = shop.relay()
    with Session(shop.engine) as session:
        shop.outbox.add(session, topic, b"never")
        session.rollback()
        assert relay.run_once() == 0
        shop.outbox.add(session, topic, b"one", key="k", properties={"colour": "grün"}, ttl=1000)
        session.commit()
    assert relay.run_once() == 1
    with Reader(topic, client=client, timeout=0) as reader:
        (message,) = reader
    assert (message.payload, message.key, message.properties, message.ttl) == (b"one", b"k", {"colour": "grün"}, 1000)
    assert (message.producer, message.sequence_id) == (shop.outbox.name, 0)
    assert shop.left() == 0


def test_a_message_goes_on_in_the_trace_in_which_it_was_added(engine: Engine, client: Client, topic: str) -> None:
    shop, provider = Shop(engine, client), TracerProvider()
    given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with Session(shop.engine) as session, session.begin():
        shop.outbox.add(session, topic, b"off")
        telemetry.instrument(provider)
        try:
            shop.outbox.add(session, topic, b"in no span")
            with provider.get_tracer("test").start_as_current_span("order") as span:
                shop.outbox.add(session, topic, b"one", properties={"colour": "grün"})
                shop.outbox.add(session, topic, b"given", properties=given)
                shop.outbox.add(session, topic, b"x" * (256 << 10))
        finally:
            telemetry.uninstrument()
    assert shop.relay().run_once() == 5
    with Reader(topic, client=client, timeout=0) as reader:
        off, outside, one, own, large = (message.properties for message in reader)
    context = span.get_span_context()
    assert one == {
        "traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}",
        "colour": "grün",
    }
    assert (off, outside, own, large) == ({}, {}, given, {})


@IN_BOTH
def test_any_payload_arrives_as_it_was_and_a_codec_makes_one(shop: Shop) -> None:
    shop.add("t", b"", large := bytes(range(256)) * 5_000, large)
    other = Outbox(shop.outbox.name, codec="json")
    with shop.engine.begin() as connection:
        other.add(connection, "t", {"order": 17})
        with pytest.raises(CodecError):
            other.add(connection, "t", object())
    shop.relay().run_once()
    assert shop.got() == [b"", large, large, b'{"order":17}']


def test_what_cannot_be_published_anywhere_is_refused_when_it_is_added(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        for topic in ("", ".", "..", "a/b", "x" * 250, "grün"):
            with pytest.raises(ValueError, match="topic"):
                shop.outbox.add(connection, topic, b"")
        with pytest.raises(ValueError, match="namespace"):
            shop.outbox.add(connection, "t", b"", namespace="a.b")
        with pytest.raises(TypeError, match="bytes"):
            shop.outbox.add(connection, "t", "text")
        with pytest.raises(InvalidRequest, match="ttl in seconds"):
            shop.outbox.add(connection, "t", b"", ttl=0)
    assert shop.left() == 0
    with pytest.raises(ValueError, match="name"):
        Outbox("a/b")


def test_what_waits_is_counted_and_how_long(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        Outbox("another").add(connection, "t", b"")
        assert shop.outbox.waiting(connection) == (0, None)
        shop.outbox.add(connection, "t", b"0")
        shop.outbox.add(connection, "t", b"1")
        table = shop.outbox.table
        connection.execute(update(table).values(added_ms=table.c.added_ms - 60_000))
        rows, seconds = shop.outbox.waiting(connection)
    assert (rows, seconds is not None and 60 <= seconds < 90) == (2, True)


# --- order, and nothing passed over


def test_a_row_that_becomes_visible_behind_a_higher_one_is_published_too(postgresql: Engine, topics: MemoryTopics) -> None:
    """The hard one: were the row's id its sequence id, the service would take the late row for a duplicate."""
    shop = Shop(postgresql, topics)
    shop.outbox.create_tables(shop.engine)
    relay = shop.relay()
    with shop.engine.connect() as late:
        shop.outbox.add(late, "t", b"late")
        shop.add("t", b"early")
        assert relay.run_once() == 1, "a transaction that is open holds up nobody"
        late.commit()
    assert relay.run_once() == 1
    assert shop.got() == [b"early", b"late"]


def test_how_ids_compare_says_nothing(shop: Shop) -> None:
    relay = shop.relay()
    for expected, number in enumerate((7, 3, 7, 1), 1):
        with shop.engine.begin() as connection:
            shop.outbox.add(connection, "t", b"%d" % number)
            connection.execute(update(shop.outbox.table).values(id=number))
        assert relay.run_once() == 1
        assert len(shop.got()) == expected


def test_topics_and_namespaces_share_an_outbox_and_outboxes_a_table(shop: Shop, topics: MemoryTopics) -> None:
    topics.logs["other", "t"] = []
    places = [("t", "default"), ("t", "other"), ("u", "default")]
    with shop.engine.begin() as connection:
        for each in range(9):
            name, namespace = places[each % 3]
            shop.outbox.add(connection, name, b"%d" % each, namespace=namespace)
    other = Shop(shop.engine, topics)
    other.add("t", b"of another outbox")
    shop.relay(rows=4).run_once()
    assert [shop.got(*place) for place in places] == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]
    assert (shop.left(), other.left()) == (0, 1)


@IN_BOTH
def test_rows_in_a_table_that_was_emptied_are_not_taken_for_those_numbered_before(shop: Shop, topics: MemoryTopics) -> None:
    """TRUNCATE … RESTART IDENTITY while a plan was under way: the new rows have the ids of the old ones."""
    shop.add("t", b"old 0", b"old 1")
    database = shop.database()
    lease, _ = database.step(database.change(database.lease(), holder="dead"), [], 10, 1_000_000, [], [T])
    database.change(lease, holder=None)
    topics.logs["default", "t"] = [(0, b"old 0"), (1, b"old 1")]
    with shop.engine.begin() as connection:
        if shop.engine.dialect.name == "sqlite":
            connection.execute(delete(shop.outbox.table))
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": shop.outbox.table.name})
        else:
            connection.execute(text(f"TRUNCATE {shop.outbox.table.name} RESTART IDENTITY"))
    shop.add("t", b"new 0", b"new 1")
    with shop.engine.connect() as connection:
        ids = list(connection.scalars(select(shop.outbox.table.c.id)))
    assert ids == [planned.row for planned in lease.plan], "else this proves nothing"
    assert shop.relay().run_once() == 2
    assert shop.got() == [b"old 0", b"old 1", b"new 0", b"new 1"]


# --- two relays


@IN_BOTH
def test_of_many_who_need_the_tables_at_once_none_fails(shop: Shop) -> None:
    together = threading.Barrier(6)

    def create(_: int) -> None:
        together.wait(PATIENCE)
        shop.outbox.create_tables(shop.engine)

    with ThreadPoolExecutor(6) as threads:
        for _ in range(3):
            list(threads.map(create, range(6)))
            shop.outbox.metadata.drop_all(shop.engine)


@IN_BOTH
def test_of_two_relays_one_publishes_and_the_other_follows_a_clean_stop_at_once(shop: Shop) -> None:
    shown: list[RelayStatus] = []
    relays = [shop.relay(rows=3, on_change=shown.append), shop.relay(rows=3)]
    with relays[0], relays[1]:
        for each in range(20):
            shop.add("t", b"%d" % each)
        until(lambda: shop.left() == 0, "all rows are published")
        until(lambda: sorted(relay.status.state for relay in relays) == ["relaying", "standby"], "one of them stands by")
        first, second = sorted(relays, key=lambda relay: relay.status.state)
        first.stop()
        shop.add("t", b"20")
        until(lambda: shop.left() == 0, "the second one has followed")
    assert (first.status.stored, second.status.stored) == (20, 1)
    assert shop.got() == [b"%d" % each for each in range(21)]
    assert shown[-1].state == "stopped"
    assert all(before != after for before, after in pairwise(shown)), "each change is shown once"


@IN_BOTH
def test_a_relay_that_was_overtaken_changes_nothing(shop: Shop) -> None:
    shop.add("t", b"0", b"1")
    old, new = shop.database(), shop.database()
    held, _ = old.step(old.change(old.lease(), holder="old"), [], 1, 1_000, [], [T])
    taken_over = new.change(new.lease(), holder="new")
    for change in (
        lambda: old.step(held, held.plan, 10, 1_000, [], [T]),
        lambda: old.change(held),
        lambda: old.change(held, holder=None),
        lambda: old.change(held._replace(holder="new"), next_number=100),
        lambda: old.change(taken_over._replace(holder="old"), next_number=100),  # as in a database that was put back
    ):
        with pytest.raises(LeaseLost):
            change()
        assert new.lease() == taken_over
        assert shop.left() == 2
    lease, _ = new.step(taken_over, [], 10, 1_000, [], [T])
    assert [planned.number for planned in lease.plan] == [0, 1]
    new.change(lease, holder=None)
    assert shop.relay().renumber() == 2, "no number is given twice"


def test_a_relay_that_hangs_in_the_middle_of_a_change_does_not_hold_up_the_others(
    postgresql: Engine, topics: MemoryTopics
) -> None:
    """Paused, or its machine gone: the lock that it holds would be held for as long as PostgreSQL believes in it."""
    shop = Shop(postgresql, topics)
    shop.add("t", b"0")
    hanging = shop.database(0.5)
    lease = hanging.change(hanging.lease(), holder="hanging")

    def hang() -> None:
        with hanging._changing() as connection:
            hanging._move(connection, lease)
            assert shop.relay(takeover=1.0).run_once() == 1
            connection.execute(text("SELECT 1"))

    with pytest.raises(DBAPIError):
        hang()
    assert shop.got() == [b"0"]


def test_a_relay_that_is_started_is_busy_itself(shop: Shop) -> None:
    with shop.relay() as relay:
        for refused in (relay.run, relay.run_once, relay.renumber):
            with pytest.raises(OutboxBusy, match="this relay"):
                refused()
    assert relay.run_once() == 0


def test_beside_a_relay_that_lives_there_is_no_other_and_a_dead_one_is_followed(shop: Shop, time: Time) -> None:
    first, second = (shop.relay(takeover=8.0) for _ in range(2))
    database = shop.database()
    first._turn()
    time.meanwhile = first._turn
    for refused in (second.run_once, second.renumber):
        with pytest.raises(OutboxBusy) as busy:
            refused()
        assert busy.value.holder == database.lease().holder
    before = database.lease().version
    for _ in range(20):  # it has nothing to do for five times as long as a silent one is waited for
        time.seconds += 2.0
        for _ in range(5):
            first._turn()
            second._turn()
        assert (first.status.state, second.status.state) == ("relaying", "standby")
    assert 10 <= database.lease().version - before <= 20, "it shows itself now and then, not with every look at the table"
    shop.add("t", b"0")
    time.meanwhile = lambda: None
    assert second.run_once() == 1, "the first one does nothing any more"
    shop.add("t", b"1")
    first._turn()
    assert (first.status.state, shop.got()) == ("relaying", [b"0"]), "it notices that it was overtaken"
    first._turn()
    first._turn()
    assert shop.got() == [b"0", b"1"], "and follows, as the second one has let go"


# --- refusals


def test_a_refused_row_holds_up_its_own_topic_only_and_is_not_passed_over(shop: Shop, topics: MemoryTopics) -> None:
    topics.most_bytes = 50_000
    small = [b"%d" % each for each in range(5)]
    shop.add("t", *small[:2], bytes(60_000), *small[2:])
    shop.add("u", b"others go on")
    relay = shop.relay()
    with pytest.raises(OutboxBlocked) as blocked:
        relay.run_once()
    assert (blocked.value.topic, blocked.value.cause, blocked.value.row) == ("default/t", "request_too_large", 3)
    assert isinstance(relay.status.blocked["default/t"], RequestTooLarge)
    assert (shop.got(), shop.got("u"), shop.left()) == (small[:2], [b"others go on"], 4)
    with shop.engine.begin() as connection:  # what the documentation says: mend the service, or delete the row
        connection.execute(delete(shop.outbox.table).where(shop.outbox.table.c.id == blocked.value.row))
    assert relay.run_once() == 3
    assert (shop.got(), relay.status.blocked) == (small, {})


def test_what_may_be_there_is_not_sent_again_while_deduplication_is_switched_off(
    shop: Shop, topics: MemoryTopics, time: Time
) -> None:
    topics.failures = [ConnectionFailed("planted")]
    shop.add("t", b"0")
    relay = shop.relay()
    relay._turn()
    relay._turn()
    assert (relay.status.state, type(relay.status.error)) == ("waiting", ConnectionFailed)
    topics.deduplication["default", "t"] = False
    relay._turn()
    assert "deduplication is off" in str(relay.status.blocked["default/t"])
    topics.deduplication["default", "t"] = True
    time.seconds += 1.0
    relay._turn()
    assert (relay.status.stored, relay.status.duplicates) == (0, 1)
    assert shop.got() == [b"0"]


@pytest.mark.real
def test_a_topic_that_is_deleted_and_created_again_gets_what_comes_then(engine: Engine, client: Client, topic: str) -> None:
    shop = Shop(engine, client)
    relay = shop.relay()
    for payload in (b"old", b"new"):
        shop.add(topic, payload)
        shop.publish(relay)
        with Reader(topic, client=client, timeout=0) as reader:
            assert [message.payload for message in reader] == [payload]
        client.delete_topic(topic)
        client.create_topic(topic)


# --- an older state of the database


def test_a_restored_backup_is_refused_before_anything_is_lost_or_doubled(tmp_path: Path, topics: MemoryTopics) -> None:
    shop = Shop(create_engine(f"sqlite:///{tmp_path / 'shop.db'}"), topics)
    relay = shop.relay()
    shop.add("t", b"0")
    relay.run_once()
    shop.add("t", b"1")
    shop.engine.dispose()
    shutil.copy(tmp_path / "shop.db", tmp_path / "backup.db")
    shop.add("t", b"2")
    relay.run_once()
    shop.engine.dispose()
    shutil.copy(tmp_path / "backup.db", tmp_path / "shop.db")
    shop.add("t", b"after the restore")
    with pytest.raises(OutboxBehind, match="restored backup") as behind:
        relay.run_once()
    assert (behind.value.next_number, behind.value.last_sequence_id) == (1, 2)
    assert shop.database().lease().holder is None, "it lets go of what it may not publish"
    assert shop.got() == [b"0", b"1", b"2"]
    with shop.engine.begin() as connection:  # what the documentation says: delete what is in its topic already, then renumber
        connection.execute(delete(shop.outbox.table).where(shop.outbox.table.c.payload == b"1"))
    topics.logs["elsewhere", "t"] = [(99, b"of a topic in another namespace")]
    assert relay.renumber() == 100
    assert relay.run_once() == 1
    assert topics.logs["default", "t"][2:] == [(2, b"2"), (100, b"after the restore")]
    shop.engine.dispose()


@pytest.mark.parametrize("how", ["restored under a running relay", "table of the relays lost", "another database"])
def test_a_database_that_does_not_know_what_was_published_publishes_nothing(shop: Shop, other: Shop, how: str) -> None:
    relay = shop.relay()
    shop.add("t", b"0")
    shop.publish(relay)
    if how == "table of the relays lost":
        shop.outbox.relays.drop(shop.engine)
        relay = shop.relay()
    elif how == "another database":
        shop, relay = other, other.relay()
    else:
        with shop.engine.begin() as connection:
            connection.execute(update(shop.outbox.relays).values(version=1, next_number=0, plan="[]", holder=None))
    shop.add("t", b"would get the number 0")
    with pytest.raises(OutboxBehind):
        shop.publish(relay)
    assert (shop.got(), shop.left()) == ([b"0"], 1)


def test_a_database_that_does_not_know_what_was_published_is_found_out_where_rows_come_later(shop: Shop, other: Shop) -> None:
    shop.add("u", b"0", b"1", b"2")
    shop.relay().run_once()
    relay = other.relay()
    relay._turn()  # it takes the outbox while that is empty
    other.add("u", b"would get the number 0")
    other.add("t", b"0", b"1", b"2", b"3")  # and by these the next one is above those of the other topic
    with pytest.raises(OutboxBehind):
        other.publish(relay)
    assert shop.got("u") == [b"0", b"1", b"2"]
    relay._holder.let_go()
    assert relay.renumber() == 3
    assert relay.run_once() == 5
    assert shop.got("u")[3:] == [b"would get the number 0"]


def test_a_topic_that_does_not_tell_its_numbers_gets_none_and_holds_up_no_other_until_it_tells_at_last(
    shop: Shop, other: Shop, topics: MemoryTopics, time: Time
) -> None:
    shop.add("u", b"0", b"1", b"2")
    shop.relay().run_once()
    topics.missing.add(("default", "u"))
    other.add("u", b"would get the number 0")
    other.add("t", b"0", b"1", b"2", b"3")  # and by these the next one is above those of the other topic
    relay = other.relay()
    for _ in range(4):
        relay._turn()
    assert (shop.got(), list(relay.status.blocked)) == ([b"0", b"1", b"2", b"3"], ["default/u"])
    topics.missing.clear()
    time.seconds += 60
    with pytest.raises(OutboxBehind):
        other.publish(relay)
    assert (shop.got("u"), other.left(), other.database().lease().plan) == ([b"0", b"1", b"2"], 1, ())
    relay._holder.let_go()
    topics.missing.add(("default", "u"))
    with pytest.raises(OutboxBlocked) as blocked:
        other.relay().run_once()
    assert (blocked.value.topic, blocked.value.cause, blocked.value.row) == ("default/u", "topic_not_found", 1)


def test_a_topic_whose_rows_have_no_numbers_yet_is_free_when_it_tells_them_or_the_rows_are_gone(
    shop: Shop, topics: MemoryTopics, time: Time
) -> None:
    topics.missing |= {("default", "t"), ("default", "u")}
    shop.add("t", b"0")
    shop.add("u", b"1")
    relay = shop.relay()
    relay._turn()
    assert set(relay.status.blocked) == {"default/t", "default/u"}
    topics.missing.remove(("default", "t"))
    with shop.engine.begin() as connection:
        connection.execute(delete(shop.outbox.table).where(shop.outbox.table.c.topic == "u"))
    time.seconds += 60
    shop.publish(relay)
    assert (relay.status.blocked, shop.got()) == ({}, [b"0"])
