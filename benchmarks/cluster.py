"""Several instances over one PostgreSQL: whether the load of their topics spreads, and how soon another one takes over."""

from __future__ import annotations

import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from tests.postgres import PostgresServer

from benchmarks.measure import PAYLOADS, Row, Server, oncelog_server, wrk
from oncelog import Client, Producer

BATCH = 100
CONNECTIONS = 4
KILLS = 3


def cluster_rates(seconds: float) -> list[Row]:
    """Two busy topics on one instance, then each on one of its own; then an owner is killed."""
    server = PostgresServer()
    try:
        return _spread(server, seconds) + _fail_over(server)
    finally:
        server.remove()


def _instances(store: str, how_many: int) -> list[Server]:
    started = []
    for _ in range(how_many):
        started.append(oncelog_server(store))
        started[-1].start()
    return started


def _spread(server: PostgresServer, seconds: float) -> list[Row]:
    rates = {}
    for how_many in (1, 2):
        instances = _instances(server.fresh_database(), how_many)
        try:
            urls = _one_topic_each(instances)
            with ThreadPoolExecutor(len(urls)) as pool:
                loads = [pool.submit(wrk, url, CONNECTIONS, BATCH, False, seconds) for url in urls]
                rates[how_many] = [load.result().requests_per_second * BATCH for load in loads]
        finally:
            for instance in instances:
                instance.end()
    return [
        Row("two busy topics, one instance", sum(rates[1]), "messages/s"),
        Row("two busy topics, two instances", sum(rates[2]), "messages/s"),
        Row("two instances, of one", sum(rates[2]) / sum(rates[1]), "times"),
        Row("two instances: share of the busier one", max(rates[2]) / sum(rates[2]) * 100, "%"),
    ]


def _one_topic_each(instances: list[Server]) -> list[str]:
    """The addresses to publish to: of two topics, on two instances if there are, else both on the one."""
    client = Client(instances[0].url)
    served: dict[str, list[str]] = {instance.url: [] for instance in instances}
    for name in (f"bench-{number}" for number in count()):
        client.create_topic(name)
        url = next(lease.url for lease in client.cluster().leases if lease.topic == name)
        assert url is not None  # both are alive
        served[url].append(f"{url}/v1/namespaces/default/topics/{name}/publish")
        if all(len(found) >= 2 // len(instances) for found in served.values()):
            return [address for found in served.values() for address in found[: 2 // len(instances)]]
    raise AssertionError


def _fail_over(server: PostgresServer) -> list[Row]:
    """From SIGKILL to the first message that another instance has stored, with default settings."""
    spans = []
    for _ in range(KILLS):
        instances = _instances(server.fresh_database(), 2)
        try:
            with Client(",".join(each.url for each in instances), retry=60) as client:
                client.create_topic("bench")
                with Producer("bench", name="bench", client=client) as producer:
                    producer.send(PAYLOADS[0])
                    url = next(lease.url for lease in client.cluster().leases if lease.topic == "bench")
                    owner = next(each for each in instances if each.url == url)
                    owner.end(signal.SIGKILL)
                    began = time.perf_counter()
                    producer.send(PAYLOADS[1])
                    spans.append(time.perf_counter() - began)
        finally:
            for instance in instances:
                instance.end()
    slowest = max(spans)
    return [
        Row("fail-over after SIGKILL, median", statistics.median(spans), "s"),
        Row(f"fail-over after SIGKILL, slowest of {KILLS}", slowest, "s", "≤ 5", slowest <= 5),
    ]
