"""oncelog beside PostgreSQL, and beside Redis and NATS where they are installed: the same work in the same run, in turns, and the
processor time of both sides."""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple

import uvloop

from benchmarks.callers import Call, Caller, calling, connected, request
from benchmarks.measure import Beside, Processor, Row, Server, raw_poll, running
from benchmarks.peers import Peer, running_peers
from benchmarks.postgres import Postgres
from benchmarks.transactions import Connection
from benchmarks.turns import TURN_SECONDS, Calls, Turn, Turns, at_once, in_turns, repeat
from oncelog import Client, Producer, Reader
from oncelog.wire.avro_parts import encode_long, encode_string
from oncelog.wire.codec import encode_consume_request, encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import ConsumeRequest, PublishRequest

BATCH = 1_000
CONNECTIONS = 8
READ = 100_000
"""Messages of the topic, and rows of the table, that are read again and again."""
P99_BYTES = 400 * 10**6
BEHIND = 64
"""Requests that are sent without waiting for the answer to the one before."""
BEHIND_HEADER = "oncelog-pipeline: 1\r\n"
"""Has them under way together (docs/http.md)."""
SIZES = {"100 B": 100, "1 KiB": 1024}
OWN, UNNAMED = "oncelog", "without names"
INSERT, UNNEST, COPY, SELECT = "INSERT", "unnest with a unique key", "COPY", "SELECT in order"
_PUBLISH = "/v1/namespaces/default/topics/{}/publish"
_POLL = "/v1/namespaces/default/topics/{}/poll"


class Aim(NamedTuple):
    """What a row should reach."""

    text: str
    limit: float
    most: bool = False
    """Whether the limit is the most that it may be, and not the least."""

    def met(self, value: float) -> bool:
        return value <= self.limit if self.most else value >= self.limit


def at_least(limit: float, unit: str = "×") -> Aim:
    return Aim(f"≥ {limit:,} {unit}".strip(), limit)


def at_most(limit: float, unit: str) -> Aim:
    return Aim(f"≤ {limit:,} {unit}", limit, most=True)


_SINGLES = {16: (at_least(0.55), at_least(6_500, "")), 64: (at_least(0.65), at_least(10_000, ""))}
"""Connections with one message at a time each → the rate, beside INSERT's, and messages a second."""


def rival_rates(seconds: float) -> list[Row]:
    """Each piece of work on a fresh service and in fresh tables of one PostgreSQL."""
    postgres = Postgres()
    try:
        rows: list[Row] = []
        for size, payload_bytes in SIZES.items():
            rows += _batches(postgres, size, payload_bytes, BATCH, seconds)
        for messages in (10, 100):
            rows += _batches(postgres, "100 B", SIZES["100 B"], messages, seconds)
        rows += [_p99(seconds), *_sdk_batches(postgres, seconds), _one_at_a_time(postgres, seconds)]
        for connections in (1, 4, 16, 64):
            rows += _singles(postgres, connections, seconds)
        rows.append(_behind_one_another(seconds))
        return [*rows, *_threads(postgres, seconds), *_reading(postgres, seconds), _long_poll(seconds), *_resend(seconds)]
    finally:
        postgres.remove()


# --- the work


def _batches(postgres: Postgres, size: str, payload_bytes: int, messages: int, seconds: float) -> list[Row]:
    """Requests of so many over 8 connections each."""
    payloads = random_payloads(payload_bytes, messages)
    with _world(postgres) as world:
        names = [f"p{number}" for number in range(CONNECTIONS)]
        peers = world.peers_publishing(names, payloads)
        turns = world.in_turns(
            {
                OWN: world.publishing(names, payloads),
                UNNAMED: world.publishing([None] * CONNECTIONS, payloads),
                COPY: at_once([postgres.copy(payloads) for _ in names]),
                UNNEST: at_once([postgres.unnest(name, payloads) for name in names]),
                **peers,
            },
            seconds,
        )
    what = f"requests of {messages:,} × {size}, {CONNECTIONS} connections"
    aims: Mapping[str, Aim] = {}
    if messages == BATCH:
        aims = {COPY: at_least(1.2)} if payload_bytes > 100 else {COPY: at_least(2), UNNEST: at_least(4), UNNAMED: at_least(0.95)}
    elif messages == 10:
        aims = {COPY: at_least(0.5)}
    return [rate_row(turns, what, rival, messages, aims.get(rival)) for rival in (COPY, UNNEST, UNNAMED, *peers)]


def _p99(seconds: float) -> Row:
    """The slowest of 100 answers while more is written than the store holds in memory."""
    payloads, size = random_payloads(SIZES["1 KiB"]), SIZES["1 KiB"] * BATCH
    with _world() as world:
        turn = world.publishing([f"p{number}" for number in range(CONNECTIONS)], payloads)
        spans: list[float] = []
        while len(spans) * size < min(P99_BYTES, seconds * P99_BYTES / 5):
            spans += turn(TURN_SECONDS).spans
    what = f"requests of {BATCH:,} × 1 KiB, {CONNECTIONS} connections: p99 over {len(spans) * size / 1e6:,.0f} MB"
    return _absolute(what, statistics.quantiles(spans, n=100)[-1] * 1000, "ms", at_most(150, "ms"))


def _sdk_batches(postgres: Postgres, seconds: float) -> list[Row]:
    """What a Python program gets on one connection."""
    payloads = random_payloads(100)
    with (
        _world(postgres) as world,
        Producer("bench", name="batches", client=world.client) as one,
        Producer("bench", name="asynchronous", client=world.client) as other,
    ):

        def asynchronous(seconds: float) -> Calls:
            began = time.perf_counter()
            calls = repeat(lambda: [other.send_async(payload) for payload in payloads], seconds)
            other.flush()
            return Calls(calls.spans, time.perf_counter() - began)

        copy, unnest = postgres.copy(payloads), postgres.unnest("p", payloads)
        kinds = {
            "send_batch": lambda seconds: repeat(lambda: one.send_batch(payloads), seconds),
            "send_async": asynchronous,
            COPY: lambda seconds: repeat(copy, seconds),
            UNNEST: lambda seconds: repeat(unnest, seconds),
        }
        turns = world.in_turns(kinds, seconds)
    aims = {COPY: at_least(1.2), UNNEST: at_least(2.5)}
    return [
        rate_row(turns, f"Producer.{kind}, {BATCH:,} × 100 B", rival, BATCH, aim, kind)
        for kind in ("send_batch", "send_async")
        for rival, aim in aims.items()
    ]


def _one_at_a_time(postgres: Postgres, seconds: float) -> Row:
    [payload] = random_payloads(100, 1)
    with _world(postgres) as world, Producer("bench", name="one", client=world.client) as producer:
        insert = postgres.insert(payload)
        kinds: dict[str, Turn] = {
            OWN: lambda seconds: repeat(lambda: producer.send(payload), seconds),
            INSERT: lambda seconds: repeat(insert, seconds),
        }
        turns = world.in_turns(kinds, seconds)
    return p50_row(turns, "Producer.send, one at a time", INSERT, at_most(2, "×"))


def _singles(postgres: Postgres, connections: int, seconds: float) -> list[Row]:
    """One message at a time over many connections, from a client that is hardly there."""
    [payload] = random_payloads(100, 1)
    with _world(postgres) as world:
        program = postgres.pgbench(connections, payload)
        rival = f"{INSERT} by pgbench" if program else f"{INSERT} by psycopg"
        names = [f"p{number}" for number in range(connections)]
        peers = world.peers_publishing(names, [payload])
        kinds = {
            OWN: world.publishing(names, [payload]),
            rival: program or at_once([postgres.insert(payload) for _ in range(connections)]),
            **peers,
        }
        turns = world.in_turns(kinds, seconds)
    what = f"one message at a time, {connections} connection" + ("s" if connections > 1 else "")
    share, rate = _SINGLES.get(connections, (None, None))
    row = rate_row(turns, what, rival, 1, share)
    absolute = [] if rate is None else [_absolute(f"{what}: rate", row.value, "messages/s", rate)]
    median = p50_row(turns, what, rival, at_most(2.4, "×") if connections == 1 else None)
    beside = [each for peer in peers for each in (rate_row(turns, what, peer, 1, None), p50_row(turns, what, peer, None))]
    return [row, *absolute, median, *beside]


class _BehindCaller(Caller):
    """One write of requests behind one another, and their answers."""

    def answer(self, received: bytes) -> bytes | None:
        if received.count(b"HTTP/1.1 200 ") < min(BEHIND, received.count(b"HTTP/1.1 ")):
            raise RuntimeError(repr(received[-300:]))
        last = received.rfind(b"HTTP/1.1 ")
        return super().answer(received[last:]) if received.count(b"HTTP/1.1 ") == BEHIND else None


def _behind_one_another(seconds: float) -> Row:
    """One message each, on one connection, beside waiting for each answer."""
    [payload] = random_payloads(100, 1)
    with _world() as world:
        [one] = world.runner.run(connected(world.server.url, 1))
        [behind] = world.runner.run(connected(world.server.url, 1, _BehindCaller))
        each = publishes("bench", "p", [payload], header=BEHIND_HEADER)

        async def burst() -> None:
            await behind.call(b"".join(each() for _ in range(BEHIND)))

        kinds = {"behind": calling(world.runner, [burst]), OWN: calling(world.runner, [publish(one, "bench", "q", [payload])])}
        turns = world.in_turns(kinds, seconds)
    what = f"{BEHIND} requests behind one another, 1 connection"
    share, used = turns.share("behind", OWN) * BEHIND, _processor(turns, OWN, 1)
    beside = Beside("one after the other", turns.rate(OWN), share, used)
    rate, aim = turns.rate("behind") * BEHIND, at_least(12_000, "")
    return Row(what, rate, "messages/s", aim.text, aim.met(rate), _processor(turns, "behind", BEHIND), beside)


def _threads(postgres: Postgres, seconds: float) -> list[Row]:
    """A producer each, and one that all share; they share its requests, too."""
    [payload], shared = random_payloads(100, 1), "a producer that all share"
    rows: list[Row] = []
    for threads in (16, 64):
        with _world(postgres) as world, ExitStack() as open_ones:
            producers = [open_ones.enter_context(Producer("bench", name=f"p{at}", client=world.client)) for at in range(threads)]
            kinds = {
                OWN: at_once([partial(producer.send, payload) for producer in producers]),
                shared: at_once([partial(producers[0].send, payload) for _ in producers]),
                INSERT: at_once([postgres.insert(payload) for _ in producers]),
            }
            turns = world.in_turns(kinds, seconds)
        what = f"Producer.send, {threads} threads"
        each = f"{what}, {shared}"
        rows += [rate_row(turns, what, INSERT, 1, at_least(0.45)), rate_row(turns, each, INSERT, 1, None, shared)]
        rows.append(rate_row(turns, f"{each}: beside a producer each", OWN, 1, at_least(1), shared))
    rows.append(_absolute("Producer.send, 16 threads: rate", rows[0].value, "messages/s", at_least(3_000, "")))
    return rows


def _reading(postgres: Postgres, seconds: float) -> list[Row]:
    """Everything from the start."""
    payloads = random_payloads(100)
    with _world(postgres) as world:
        copy = postgres.copy(payloads)
        with Producer("bench", name="p", client=world.client) as producer:
            for _ in range(READ // BATCH):
                copy()
                producer.send_batch(payloads)

        def objects() -> None:
            with Reader("bench", client=world.client, timeout=0) as reader:
                expect(READ, sum(1 for _ in reader))

        select = postgres.read(READ)
        kinds: dict[str, Turn] = {
            "Reader": lambda seconds: repeat(objects, seconds),
            "raw poll": lambda seconds: repeat(lambda: expect(READ, raw_poll(world.server.url)), seconds),
            SELECT: lambda seconds: repeat(select, seconds),
        }
        turns = world.in_turns(kinds, seconds)
    rows = [rate_row(turns, f"{kind} from the start", SELECT, READ, None, kind) for kind in ("Reader", "raw poll")]
    return [*rows, _absolute("Reader from the start: rate", rows[0].value, "messages/s", at_least(300_000, ""))]


def _long_poll(seconds: float) -> Row:
    """From the publisher's receipt to the delivery to one who waits; below 0: the delivery came first."""
    [payload] = random_payloads(100, 1)
    with _world() as world:
        delivered: list[float] = []
        spans: list[float] = []
        arrived, polls = threading.Event(), Connection(world.server.url)
        rounds = max(20, round(seconds * 100))

        def follow() -> None:
            for offset in range(rounds):
                body = encode_consume_request(ConsumeRequest(start_offset=offset, limit=1, wait=30_000))
                polls.post(_POLL.format("bench"), body, ONCELOG_AVRO)
                delivered.append(time.perf_counter())
                arrived.set()

        follower, publishes = threading.Thread(target=follow), Connection(world.server.url)
        follower.start()
        for _ in range(rounds):
            time.sleep(0.005)  # until the next poll waits
            publishes.post(_PUBLISH.format("bench"), encode_publish_request(PublishRequest([payload])), ONCELOG_AVRO)
            received = time.perf_counter()
            arrived.wait()
            arrived.clear()
            spans.append((delivered[-1] - received) * 1000)
        follower.join()
        polls.close()
        publishes.close()
    return _absolute("long poll: receipt to delivery, p50", statistics.median(spans), "ms", at_most(0.15, "ms"))


def _resend(seconds: float) -> list[Row]:
    """The same messages once more, which is answered with what the first time was."""
    payloads = random_payloads(100)
    with _world() as world:
        [caller] = world.runner.run(connected(world.server.url, 1))
        first, sent = publish(caller, "bench", "p", payloads), 0
        again = publish(caller, "bench", "p", payloads, lambda: next(repeated) % sent)
        repeated = count()

        async def store() -> None:
            nonlocal sent
            await first()
            sent += 1

        world.runner.run(store())
        turns = world.in_turns({"again": calling(world.runner, [again]), OWN: calling(world.runner, [store])}, seconds)
        expect(sent * BATCH, world.client.stats("bench").upcoming_offset)
    return [rate_row(turns, f"resend of requests of {BATCH:,} × 100 B", "the first time", BATCH, at_least(1), "again", OWN)]


# --- how it is done


class _World:
    """A fresh service with a topic, and perhaps fresh tables."""

    def __init__(
        self, server: Server, client: Client, runner: asyncio.Runner, postgres: Postgres | None, peers: Sequence[Peer]
    ) -> None:
        self.server, self.client, self.runner, self._postgres = server, client, runner, postgres
        self._peers = {peer.name: peer for peer in peers}

    def publishing(self, names: Sequence[str | None], payloads: Sequence[bytes]) -> Turn:
        """A connection for each named producer, and one request of these payloads after the other on each."""
        callers = self.runner.run(connected(self.server.url, len(names)))
        return calling(
            self.runner, [publish(caller, "bench", name, payloads) for caller, name in zip(callers, names, strict=True)]
        )

    def peers_publishing(self, names: Sequence[str], payloads: Sequence[bytes]) -> dict[str, Turn]:
        """The same on each of the others that are installed."""
        return {name: peer.publishing(self.runner, names, payloads) for name, peer in self._peers.items()}

    def in_turns(self, kinds: Mapping[str, Turn], seconds: float) -> Turns:
        rivals = (INSERT, UNNEST, COPY, SELECT)
        used: dict[str, Callable[[], float]] = {}
        for kind in kinds:
            if kind.startswith(rivals):
                assert self._postgres is not None
                used[kind] = self._postgres.processor_seconds
            else:
                used[kind] = self._peers.get(kind, self.server).processor_seconds
        return in_turns(kinds, used, seconds)


@contextmanager
def _world(postgres: Postgres | None = None) -> Iterator[_World]:
    if postgres is not None:
        postgres.fresh()
    with (
        running("oncelog") as server,
        Client(server.url) as client,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        running_peers() as peers,
    ):
        client.create_topic("bench")
        yield _World(server, client, runner, postgres, peers)


def publish(
    caller: Caller, topic: str, name: str | None, payloads: Sequence[bytes], number: Callable[[], int] | None = None
) -> Call:
    """Sends the next of these requests."""
    each = publishes(topic, name, payloads, number)
    return lambda: caller.call(each())


def publishes(
    topic: str, name: str | None, payloads: Sequence[bytes], number: Callable[[], int] | None = None, *, header: str = ""
) -> Callable[[], bytes]:
    """Requests of these payloads. Those of a producer have the ids that follow on those of the one before; what stays the same
    is encoded once.

    ``number``: which request of the producer comes next; without it the next one.
    """
    nothing = b"\x00" * 4  # write pointer, producer, epoch, sequence ids
    plain = encode_publish_request(PublishRequest(payloads))
    assert plain.startswith(nothing)
    if name is None:
        unnamed = b"".join(request(_PUBLISH.format(topic), plain, header))
        return lambda: unnamed
    chosen = number or count().__next__

    def each() -> bytes:
        # Branch 2 of the sequence ids: the first of ids that rise by one, as the SDK sends them.
        head = b"\x00\x02" + encode_string(name) + b"\x00\x04" + encode_long(chosen() * len(payloads))
        return b"".join(request(_PUBLISH.format(topic), head + plain[len(nothing) :], header))

    return each


def random_payloads(payload_bytes: int, how_many: int = BATCH) -> list[bytes]:
    """Random, so that compression flatters nobody."""
    return [os.urandom(payload_bytes) for _ in range(how_many)]


def expect(wanted: int, found: int) -> None:
    if wanted != found:
        raise RuntimeError(f"{found:,} messages instead of {wanted:,}")


# --- rows


def rate_row(turns: Turns, what: str, rival: str, messages: int, aim: Aim | None, kind: str = OWN, base: str = "") -> Row:
    """Messages a second. ``base``: the rival's turns, if it is not called as they are."""
    base = base or rival
    share = turns.share(kind, base)
    beside = Beside(rival, turns.rate(base) * messages, share, _processor(turns, base, messages))
    return _row(what, turns.rate(kind) * messages, "messages/s", aim, share, _processor(turns, kind, messages), beside)


def p50_row(turns: Turns, what: str, rival: str, aim: Aim | None) -> Row:
    """Of one message."""
    ratio = turns.times_as_long(OWN, rival)
    beside = Beside(rival, turns.p50_ms(rival), ratio, _processor(turns, rival, 1))
    return _row(f"{what}: p50", turns.p50_ms(OWN), "ms", aim, ratio, _processor(turns, OWN, 1), beside)


def _absolute(what: str, value: float, unit: str, aim: Aim) -> Row:
    return Row(what, value, unit, aim.text, aim.met(value))


def _row(what: str, value: float, unit: str, aim: Aim | None, ratio: float, processor: Processor, beside: Beside) -> Row:
    return Row(what, value, unit, aim.text if aim else "", aim.met(ratio) if aim else None, processor, beside)


def _processor(turns: Turns, kind: str, messages: int) -> Processor:
    return Processor(turns.processor_ms(kind) * 1000 / messages, turns.client_ms(kind) * 1000 / messages)
