"""Each order that was taken is told once, and none that was not, whatever happens to the relay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import django
import pytest
from django.db import connections
from django.test import Client as Browser
from sqlalchemy import create_engine

from oncelog import OutboxRelay, Reader
from oncelog.errors import ConnectionFailed
from oncelog.testing import OncelogService

pytestmark = pytest.mark.real

os.environ["DJANGO_SETTINGS_MODULE"] = "examples.django_shop.settings"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    django.setup()
    from examples.django_shop.shop import make_tables

    found = tmp_path / "shop.db"
    connections["default"].close()
    connections["default"].settings_dict["NAME"] = str(found)
    make_tables()
    yield found
    connections["default"].close()


def test_each_order_that_was_taken_is_told_once(oncelog_service: OncelogService, database: Path) -> None:
    from examples.django_shop.models import Order, Waiting, outbox

    oncelog_service.client.create_topic("orders")
    browser = Browser()
    for number in range(20):
        assert browser.post("/order", {"customer": f"c{number % 3}", "goods": "figs"}).status_code == 201
    assert browser.post("/order", {"customer": "c", "goods": "nothing"}).status_code == 422
    assert (Order.objects.count(), Waiting.objects.count()) == (20, 20)
    oncelog_service.faults.lose_answer("publish", topic="orders")
    oncelog_service.faults.kill("publish", topic="orders", nth=2)
    engine = create_engine(f"sqlite:///{database}")
    while Waiting.objects.exists():
        with suppress(ConnectionFailed):
            OutboxRelay(outbox, engine, rows=5).run_once()
    with Reader("orders", timeout=0, codec="json") as reader:
        assert [message.value["order"] for message in reader] == [each.pk for each in Order.objects.order_by("pk")]
