"""`oncelog cdap-import` from CDAP's own messaging server: plain messages and groups, over kills of all three."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncelog import Client, Reader
from oncelog.wire.media import AVRO
from oncelog_service.cli.messages.cdap_import import GENERATION, MESSAGE_ID
from oncelog_service.cli.messages.cdap_topic import Incoming
from tests.behaviours.cli.support import last_persisted, process
from tests.cdap.java import MISSING, cdap_server
from tests.patience import PATIENCE, until
from tests.rest.talk import Topic, avro_poll, avro_publish, done
from tests.world.service import ServiceProcess

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


def fill(theirs: Topic, rounds: int) -> None:
    """Plain messages, and groups that were stored in two requests, of a transaction each."""
    pointer = time.time_ns() // 10**6 * 10**6
    for number in range(rounds):
        done(theirs.post("/publish", avro_publish(*(b"%d.%d\0\xff" % (number, each) for each in range(500))), AVRO))
        for part in b"ab":
            group = (b"%c%d.%d" % (part, number, each) for each in range(50))
            done(theirs.post("/store", avro_publish(*group, transactionWritePointer=pointer + number), AVRO))
        done(theirs.post("/publish", avro_publish(transactionWritePointer=pointer + number), AVRO))


def test_all_of_a_topic_is_imported_once_and_in_order_whoever_is_killed(tmp_path: Path) -> None:
    (tmp_path / "classes").mkdir()
    with ServiceProcess(tmp_path / "store") as ours, Client(ours.url) as client, ExitStack() as first:
        client.create_topic("orders")
        theirs = Topic(first.enter_context(cdap_server(tmp_path)), "orders")
        fill(theirs, 30)

        def come_to(count: int) -> None:
            until(lambda: last_persisted(ours.url, "orders", "cdap:default:orders") >= count)

        with process("cdap-import", theirs.url, "orders", url=ours.url):
            come_to(1_000)
        with process("cdap-import", theirs.url, "orders", url=ours.url):
            come_to(3_000)
            ours.kill()
            ours.start()
            come_to(6_000)
            first.close()
        with cdap_server(tmp_path) as url:
            theirs = Topic(url, "orders")
            fill(theirs, 1)
            for _ in range(2):
                with process("cdap-import", theirs.url, "orders", url=ours.url) as command:
                    assert command.wait(PATIENCE) == 0
            stored = Incoming().feed(done(theirs.post("/poll", avro_poll(), AVRO)).content)
        with Reader("orders", start="earliest", timeout=0, url=ours.url) as reader:
            messages = list(reader)
    found = [(bytes.fromhex(each.properties[MESSAGE_ID]), each.payload) for each in messages]
    assert found == stored
    assert {each.properties[GENERATION] for each in messages} == {"1"}
    assert len(found) == 31 * 600
