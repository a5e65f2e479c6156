"""Services end anywhere and two of each run at once, answers are lost and the log is killed: of each order all or nothing."""

from __future__ import annotations

import random
from threading import Thread

import pytest
from examples.saga.books import all_of, balanced, place_orders, state_of
from examples.saga.services import TOPICS, create_topics, serve

from oncelog import Client, Producer, errors
from oncelog.testing import OncelogService

pytestmark = pytest.mark.real

STOCK = {"figs": 20, "pears": 8}
CREDIT = {f"customer-{number}": 60 for number in range(5)}


class Killed(Exception):
    """Stands for a process that ends here."""


def test_of_each_order_there_is_all_or_nothing(oncelog_service: OncelogService) -> None:
    for nth in (5, 30):
        oncelog_service.faults.lose_answer("commit", nth=nth)
        oncelog_service.faults.deliver_twice("commit", nth=nth + 4)
    oncelog_service.faults.kill("commit", nth=50)
    client = oncelog_service.client
    create_topics(client)
    place_orders(client, 60, STOCK, CREDIT)
    died: list[str] = []
    over: list[str] = []

    def keeps_running(name: str, seed: int) -> None:
        chance = random.Random(seed)

        def handled() -> None:
            if chance.random() < 0.05:
                raise Killed

        with Client(oncelog_service.url) as mine:
            while not over:
                try:
                    serve(mine, name, state_of(name, STOCK, CREDIT), 0.1, handled)
                except Killed:
                    died.append(name)

    services = [Thread(target=keeps_running, args=(name, seed)) for name in TOPICS[:-1] for seed in (1, 2)]
    for each in services:
        each.start()
    try:
        while (said := balanced(client, STOCK, CREDIT)) is None:
            pass
    finally:
        over.append("")
        for each in services:
            each.join()
    assert len(died) > 5
    assert "refused (not paid)" in said
    assert "refused (not there)" in said


def test_a_step_that_is_made_again_is_told_apart(oncelog_service: OncelogService) -> None:
    client = oncelog_service.client
    create_topics(client)
    place_orders(client, 3, STOCK, CREDIT)
    place_orders(client, 3, STOCK, CREDIT)
    assert [serve(client, "orders", state_of("orders", STOCK, CREDIT), 0) for _ in range(2)] == [0, 3]
    assert len(all_of(client, "stock")) == 3
    with pytest.raises(KeyError):
        state_of("results", STOCK, CREDIT)


def test_what_a_service_knows_does_not_expire_and_it_does_not_begin_where_that_has(oncelog_service: OncelogService) -> None:
    client = oncelog_service.client
    create_topics(client)
    for month in range(2):
        with Producer("orders", name="customers", client=client, codec="json") as producer:
            for number in range(6 * month, 6 * month + 6):
                producer.send({"order": number, "customer": "ann", "goods": "pears", "count": 1, "price": 1}, sequence_id=number)
        for name in ("orders", "stock"):
            serve(client, name, state_of(name, STOCK, CREDIT), 0)
        oncelog_service.pass_time(30 * 86_400)
    assert [step["did"] for step in all_of(client, "shop")] == ["reserved"] * 8 + ["not there"] * 4
    client.trim_topic("stock", 5)
    with pytest.raises(errors.MessagesExpired):
        serve(client, "stock", state_of("stock", STOCK, CREDIT), 0)
