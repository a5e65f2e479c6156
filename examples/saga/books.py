"""Places orders, runs a service, and looks whether the books are right: of each order all or nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from examples.saga.services import Orders, Payment, Shop, State, Step, Stock, serve

from oncelog import Client, Producer, Reader


def state_of(name: str, stock: Mapping[str, int], credit: Mapping[str, int]) -> State:
    """What the service of this name knows before its first message."""
    states: dict[str, State] = {"orders": Orders(), "shop": Shop(), "stock": Stock(dict(stock)), "payment": Payment(dict(credit))}
    return states[name]


def run(name: str, stock: Mapping[str, int], credit: Mapping[str, int]) -> None:
    """One process of a service, which goes on until it is killed."""
    with Client() as client:
        serve(client, name, state_of(name, stock, credit))


def place_orders(client: Client, count: int, stock: Mapping[str, int], credit: Mapping[str, int]) -> None:
    """The same orders however often: their numbers are their sequence ids."""
    chance = random.Random(count)
    with Producer("orders", name="customers", client=client, codec="json") as producer:
        for number in range(count):
            order = {
                "order": number, "customer": chance.choice(list(credit)), "goods": chance.choice(list(stock)),
                "count": chance.randint(1, 3), "price": chance.randint(5, 40),
            }  # fmt: skip
            producer.send_async(order, sequence_id=number)


def all_of(client: Client, topic: str) -> list[Step]:
    """What a topic holds."""
    with Reader(topic, client=client, timeout=0, codec="json") as reader:
        return [message.value for message in reader]


def balanced(client: Client, stock: Mapping[str, int], credit: Mapping[str, int]) -> str | None:
    """What became of the orders, once each has ended; None before. Raises AssertionError: the books are wrong."""
    orders = {order["order"]: order for order in all_of(client, "orders")}
    ends = all_of(client, "results")
    times = Counter(end["order"] for end in ends)
    assert not times or max(times.values()) == 1, f"ended twice: {[order for order, count in times.items() if count > 1]}"
    if len(times) < len(orders):
        return None
    done = {end["order"] for end in ends if end["end"] == "done"}
    reserved = Counter[int]()
    paid = set()
    for step in all_of(client, "shop"):
        reserved[step["order"]] += step["did"] == "reserved"
        paid |= {step["order"]} if step["did"] == "paid" else set()
    put_back = Counter(step["order"] for step in all_of(client, "stock") if step["do"] == "put back")
    assert paid == done, "what is paid is what is done"
    assert +(reserved - put_back) == Counter(done), "what is reserved and not put back is what is done"
    for customer, limit in credit.items():
        assert sum(orders[order]["price"] for order in done if orders[order]["customer"] == customer) <= limit
    for goods, count in stock.items():
        assert sum(orders[order]["count"] for order in done if orders[order]["goods"] == goods) <= count
    why = Counter(end["why"] for end in ends if end["end"] == "refused")
    return f"{len(done)} orders are done, {', '.join(f'{count} refused ({each})' for each, count in sorted(why.items()))}"
