"""What it costs to know who asks and what that one may do: an open service beside a locked one, in turns."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from tests.patience import until

from benchmarks.measure import PAYLOADS, Row, Server, oncelog_server, running
from benchmarks.transactions import Connection
from benchmarks.turns import in_turns, repeat
from oncelog import Client
from oncelog.errors import Unauthorized
from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest
from oncelog_service.app import build_service
from oncelog_service.config import Settings
from oncelog_service.rest.application import Application
from oncelog_service.rest.exchange import Head

BATCH = 100
_OPEN, _TOKEN, _SIGNED = "open", "a token with grants", "a signed token with grants"
_TARGETS = {1: 3.0, BATCH: 1.0}
"""Messages of a request → percent of the service's processor time."""
_GRANTS = ("read:other/*", "write:other/*:loader-*", "manage:other/*", "write:default/bench-*:loader-*")
"""The one that counts is the last: each of the others is looked at first."""


def access_rates(seconds: float) -> list[Row]:
    """Named publishes, single and in batches, each kind of service with a connection of its own."""
    rows = []
    with running("oncelog") as open_, locked() as (server, sign):
        admin = sign("admin", ["admin"])
        with Client(server.url, token=admin) as client:
            until(lambda: client.namespaces() is not None, "its keys are read", despite=(Unauthorized,))
            token = client.create_token("loader", _GRANTS).secret
        credentials = {_OPEN: (open_, None), _TOKEN: (server, token), _SIGNED: (server, sign("loader", _GRANTS))}
        for messages in _TARGETS:
            rows += _shape(messages, credentials, {open_.url: None, server.url: admin}, seconds)
    return rows + asyncio.run(_heads())


async def _heads() -> list[Row]:
    """The same by itself, in this process: from a request's head to its handler. What a machine does beside disturbs it less."""
    rows = []
    for kind in (_OPEN, _TOKEN):
        service = build_service(Settings(store="memory://"))
        await service.start()
        headers = {b"host": b"127.0.0.1", b"content-type": ONCELOG_AVRO.encode(), b"content-length": b"200"}
        if kind == _TOKEN:
            await service.access.create("admin", ["admin"], None)
            _, secret = await service.access.create("loader", _GRANTS, None)
            headers[b"authorization"] = f"Bearer {secret}".encode()
        path = "/v1/namespaces/default/topics/bench-1/publish"
        once = partial(Application(service).admit, Head("POST", path, b"", path, headers, "127.0.0.1"))
        micros = min(timeit.repeat(once, number=5_000, repeat=9)) / 5_000 * 1e6
        rows.append(Row(f"from a head to its handler: {kind}", micros, "µs a request"))
        await service.stop()
    return rows


@contextmanager
def locked() -> Iterator[tuple[Server, Callable[[str, Sequence[str]], str]]]:
    """A service with an issuer of tokens, and that issuer."""
    home = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": "a"}
    (home / "keys").write_text(json.dumps({"keys": [public]}))

    def sign(subject: str, grants: Sequence[str]) -> str:
        claims = {"iss": "bench", "aud": "oncelog", "sub": subject, "exp": time.time() + 3_600, "oncelog_grants": list(grants)}
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "a"})

    options = ["--jwt-issuer", "bench", "--jwt-audience", "oncelog", "--jwt-keys", str(home / "keys")]
    options += ["--log-level", "warning", "--audit-log", str(home / "audit")]
    server = oncelog_server(f"leveldb://{home / 'data'}", *options)
    try:
        server.start()
        yield server, sign
    finally:
        server.end()
        shutil.rmtree(home, ignore_errors=True)


class _Publisher:
    """The only one that writes to its topic."""

    def __init__(self, connection: Connection, topic: str, messages: int) -> None:
        self._connection = connection
        self._path = f"/v1/namespaces/default/topics/{topic}/publish"
        self._messages = messages
        self._next = 0

    def publish(self) -> None:
        ids = range(self._next, self._next + self._messages)
        request = PublishRequest(PAYLOADS[: self._messages], producer="loader-1", sequence_ids=ids)
        self._connection.post(self._path, encode_publish_request(request), ONCELOG_AVRO)
        self._next += self._messages


def _shape(
    messages: int, credentials: dict[str, tuple[Server, str | None]], admins: dict[str, str | None], seconds: float
) -> list[Row]:
    turns, servers = {}, {}
    for number, (kind, (server, token)) in enumerate(credentials.items()):
        topic = f"bench-{messages}-{number}"
        with Client(server.url, token=admins[server.url], retry=30) as client:
            client.create_topic(topic)
        publisher = _Publisher(Connection(server.url, token), topic, messages)
        turns[kind], servers[kind] = partial(repeat, publisher.publish), server.processor_seconds
    reached = in_turns(turns, servers, seconds)
    what = "single publishes" if messages == 1 else f"requests of {messages}"
    rows = [Row(f"{what}: {kind}: the service's processor", reached.processor_ms(kind), "ms a request") for kind in turns]
    for kind in list(turns)[1:]:
        more = (reached.times_as_much(kind, _OPEN) - 1) * 100
        rows.append(
            Row(f"{what}: {kind}: more than open", more, "%", f"≤ {_TARGETS[messages]:.0f} %", more <= _TARGETS[messages])
        )
    return rows
