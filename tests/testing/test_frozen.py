"""Where a test freezes the time (freezegun) all goes by the machine's: nothing stands still, and nothing is over early."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, date, datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from freezegun import freeze_time
from pydantic import BaseModel
from sqlalchemy import create_engine

from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader, Client, Consumer, Producer, Reader, errors
from oncelog.process import clock
from oncelog.sql.outbox.outbox import Outbox
from oncelog.sql.outbox.relay import OutboxRelay
from oncelog.sql.participant import SqlParticipant
from oncelog.testing import OncelogService, service
from oncelog_service.engine import engine
from tests.patience import PATIENCE

pytestmark = pytest.mark.real

FROZEN: dict[str, dict[str, Any]] = {
    "stands": {"time_to_freeze": "2013-01-01"},
    "flies": {"time_to_freeze": "2099-01-01", "auto_tick_seconds": 3_600},  # an hour further each time that it is looked at
}
WAYS = pytest.mark.parametrize("way", FROZEN)
SOON, LATER = 0.1, 0.3
"""Seconds, of the machine's."""


@contextmanager
def frozen(way: str, **options: Any) -> Iterator[OncelogService]:
    """A service with a topic, in a frozen time."""
    with freeze_time(**FROZEN[way], **options), service() as made:
        made.client.create_topic("t")
        yield made


def after(seconds: float, call: Any) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer


@WAYS
def test_what_is_sent_has_its_receipts(way: str) -> None:
    with frozen(way) as kit:
        with Producer("t", name="p", url=kit.url) as producer:
            producer.send(b"0")
            sent = [producer.send_async(b"%d" % at) for at in (1, 2)]
            assert [future.result(timeout=PATIENCE).offset for future in sent] == [1, 2]
            sent = [producer.send_async(b"%d" % at) for at in (3, 4)]
            assert futures.wait(sent, timeout=PATIENCE).not_done == set()
            producer.send_batch([b"5", b"6"])
            producer.send_async(b"7")
            producer.flush(timeout=PATIENCE)
            producer.send_async(b"8")
        kit.check_published("t", [b"%d" % at for at in range(9)])


@WAYS
def test_time_outs_are_over_in_time(way: str) -> None:
    with frozen(way) as kit, Producer("t", name="p", url=kit.url) as producer:
        kit.stop_for(PATIENCE)
        sent = producer.send_async(b"x")
        began = clock.REAL.monotonic()
        for wait in (lambda: sent.result(timeout=SOON), lambda: producer.flush(timeout=SOON)):
            with pytest.raises(TimeoutError):
                wait()
        assert futures.wait([sent], timeout=SOON).not_done == {sent}
        assert clock.REAL.monotonic() - began >= 3 * SOON
        timer = after(LATER, kit.go_on)
        assert sent.result(timeout=PATIENCE).offset == 0
        timer.join()


@WAYS
def test_what_cannot_be_delivered_is_given_up_in_time_and_tried_again_until_then(way: str) -> None:
    with frozen(way) as kit:
        with Producer("t", name="p", url=kit.url, delivery_timeout=PATIENCE) as producer:
            kit.kill(restart=False)
            timer = after(LATER, kit.start)
            assert producer.send(b"x").offset == 0
            timer.join()
        with Producer("t", name="q", url=kit.url, delivery_timeout=LATER) as hasty:
            kit.kill(restart=False)
            with pytest.raises(errors.ConnectionFailed):
                hasty.send(b"y")
            kit.start()


@WAYS
def test_a_reader_waits_as_long_as_it_is_told_to(way: str) -> None:
    with frozen(way) as kit, Producer("t", url=kit.url) as producer:
        producer.send(b"0")
        with Reader("t", url=kit.url, start="earliest", timeout=SOON) as reader:
            assert [message.payload for message in reader.read(10, timeout=SOON)] == [b"0"]
            assert reader.read(10, timeout=SOON) == []
            timer = after(LATER, lambda: producer.send(b"1"))
            assert [message.payload for message in reader.read(10, timeout=PATIENCE)] == [b"1"]
            timer.join()
            producer.send(b"2")
            assert [message.payload for message in reader] == [b"2"]


@WAYS
def test_a_consumer_waits_and_acknowledges(way: str) -> None:
    with frozen(way) as kit, Producer("t", url=kit.url) as producer:
        producer.send_batch([b"0", b"1"])
        with Consumer("t", "s", url=kit.url, timeout=SOON) as consumer:
            for message in consumer:
                consumer.ack_async(message)
            assert consumer.read(10, timeout=SOON) == []
            timer = after(LATER, lambda: producer.send(b"2"))
            (message,) = consumer.read(10, timeout=PATIENCE)
            timer.join()
            consumer.ack_async(message)
        assert kit.client.subscription("t", "s").lag == 0


@WAYS
def test_transactions_and_outboxes_end(way: str, tmp_path: Path) -> None:
    database, outbox = create_engine(f"sqlite:///{tmp_path / 'shop.db'}"), Outbox("orders")
    with frozen(way) as kit:
        with kit.client.transaction(SqlParticipant(database, "shop"), timeout=PATIENCE) as tx:
            tx.send("t", b"0")
        with database.begin() as connection:
            outbox.add(connection, "t", b"1")
        with OutboxRelay(outbox, database, client=kit.client), Reader("t", client=kit.client, start="earliest") as reader:
            assert [reader.read(1, timeout=PATIENCE)[0].payload for _ in range(2)] == [b"0", b"1"]
    database.dispose()


@WAYS
def test_the_clock_of_a_service_for_tests_is_the_machines_and_moves_as_it_is_told(way: str) -> None:
    with frozen(way) as kit, Producer("t", url=kit.url) as producer:
        began = clock.REAL.time()
        stamps = []
        for seconds in (0, 86_400):
            kit.pass_time(seconds)
            (stamp,) = [producer.send(b"x").message_id.publish_timestamp / 1000 - began]
            stamps.append(stamp)
        assert [-1 < stamps[0] < PATIENCE, 86_399 < stamps[1] < 86_400 + PATIENCE] == [True, True]


@WAYS
@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/store", "leveldb:///{}/store"])
def test_a_store_is_opened_and_closed_in_the_process(way: str, store: str, tmp_path: Path) -> None:
    with freeze_time(**FROZEN[way]), Client(store.format(tmp_path)) as client:
        client.create_topic("t")
        with Producer("t", client=client) as producer:
            producer.send(b"x")
        with Reader("t", client=client, start="earliest", timeout=SOON) as reader:
            assert [message.payload for message in reader] == [b"x"]


@WAYS
@pytest.mark.parametrize("has_uvloop", [True, False])
def test_timers_of_an_engine_run(way: str, has_uvloop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_uvloop:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with freeze_time(**FROZEN[way]):
        loop = engine._new_loop()
        try:
            loop.run_until_complete(asyncio.sleep(SOON))
        finally:
            loop.close()


@WAYS
def test_with_asyncios_own_time_its_twins_work(way: str) -> None:
    async def work(url: str) -> list[bytes]:
        async with AsyncClient(url) as client, AsyncProducer("t", name="p", client=client) as producer:
            await asyncio.gather(*(producer.send(b"%d" % at) for at in (0, 1)))
            await producer.send_batch([b"2"])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SOON):
                    await asyncio.Event().wait()
            async with AsyncReader("t", client=client, start="earliest", timeout=SOON) as reader:
                found = [message.payload for message in await reader.read(10, timeout=SOON)]
                assert await reader.read(10, timeout=SOON) == []
                assert [message async for message in reader] == []
            async with AsyncConsumer("t", "s", client=client, timeout=SOON) as consumer:
                async for message in consumer:
                    await consumer.ack(message)
            return found

    with frozen(way, real_asyncio=True) as kit:
        assert sorted(asyncio.run(work(kit.url))) == [b"0", b"1", b"2"]


class Sale(BaseModel):
    at: datetime
    day: date


AVRO = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}


@WAYS
def test_frozen_times_are_values_as_others_and_starts_as_others(way: str) -> None:
    with frozen(way) as kit:
        values = {"at": datetime.now(UTC), "day": datetime.now(UTC).date()}
        for codec, value in ((AVRO, values), (Sale, Sale(**values))):
            with Producer("t", url=kit.url, codec=codec) as producer:  # type: ignore[call-overload]
                producer.send(value)
            with Reader("t", url=kit.url, codec=codec, start="earliest", timeout=0) as reader:  # type: ignore[call-overload]
                assert reader.read(1)[0].value == value
            kit.client.delete_topic("t")
            kit.client.create_topic("t")
        with Producer("t", url=kit.url) as producer:
            producer.send(b"x")
        with Reader("t", url=kit.url, start=datetime.now(UTC), timeout=0) as reader:
            assert len(list(reader)) == (1 if way == "stands" else 0)  # by the stamp of the service


# --- what is loaded in the middle of it


def loaded_anew() -> ModuleType:
    spec = spec_from_file_location("clock_anew", clock.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@WAYS
def test_the_clock_is_the_machines_wherever_it_is_loaded(way: str) -> None:
    before = time.monotonic(), time.time()
    with freeze_time(**FROZEN[way]):
        anew = [clock.REAL, loaded_anew().REAL]
        found = [each() for real in anew for each in (real.monotonic, real.time)]
    after_all = time.monotonic(), time.time()
    for at, each in enumerate(found):
        assert before[at % 2] <= each <= after_all[at % 2]


SCRIPT = """
import oncelog
from freezegun import freeze_time

with freeze_time("2013-01-01"), oncelog.Client("memory://") as client:  # which loads it
    client.create_topic("t")
    with oncelog.Producer("t", client=client) as producer:
        for future in [producer.send_async(b"x") for _ in range(3)]:
            future.result(timeout=60)
    with oncelog.Reader("t", client=client, start="earliest") as reader:
        print(len(reader.read(10)), reader.read(10, timeout=0.1))
"""


def test_a_program_may_load_all_of_it_while_the_time_is_frozen() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("3 []\n", "")
