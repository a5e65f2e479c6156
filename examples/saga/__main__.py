"""`python -m examples.saga`: orders come in while services are killed, and the books are right in the end."""

from __future__ import annotations

import argparse
import random
from multiprocessing import get_context

from examples.saga.books import balanced, place_orders, run
from examples.saga.services import TOPICS, create_topics

from oncelog import Client

CREDIT = {f"customer-{number}": 120 for number in range(10)}
STOCK = {"figs": 40, "pears": 15}


def main() -> None:
    """Runs until every order has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    asked = parser.parse_args()
    with Client() as client:
        create_topics(client)
        place_orders(client, asked.orders, STOCK, CREDIT)
        context = get_context("spawn")
        services = {name: context.Process(target=run, args=(name, STOCK, CREDIT)) for name in TOPICS[:-1]}
        for each in services.values():
            each.start()
        kills = 0
        while (ended := balanced(client, STOCK, CREDIT)) is None:
            if kills < asked.kills:
                name = random.choice(list(services))
                services[name].kill()
                services[name].join()
                services[name] = context.Process(target=run, args=(name, STOCK, CREDIT))
                services[name].start()
                kills += 1
        for each in services.values():
            each.kill()
            each.join()
    print(f"{kills} services were killed; {ended}")


if __name__ == "__main__":
    main()
