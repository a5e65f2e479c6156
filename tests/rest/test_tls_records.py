"""Records of TLS that cost something and bring nothing: how many one turn of the loop looks at, and who is cut off."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from oncelog_service.rest.bounds.records import AT_ONCE, Records
from oncelog_service.rest.tls import TlsConnection
from tests.world.certificates import Authority, Issued

HANDSHAKE, APPLICATION = 22, 23
KEY_UPDATE = bytes([24, 0, 0, 1, 0])
"""The message (RFC 8446, 4.6.3) that says so and asks for none."""


@pytest.fixture(scope="module")
def issued(ca: Authority) -> Issued:
    return ca.service()


class Below:
    """A transport that keeps what is written, and can be told whether it reads."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reads, self.is_open = True, True

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.is_open = False

    close = abort

    def is_closing(self) -> bool:
        return not self.is_open

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Above(asyncio.Protocol):
    """A protocol that keeps what it is given, turn by turn; ``each``: what it does then."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.each: Callable[[], None] = lambda: None

    def data_received(self, data: bytes) -> None:
        self.given.append(data)
        self.each()


class Talk:
    """A client whose bytes a connection is given by hand, and which makes records that no client library would."""

    def __init__(self, ca: Authority, issued: Issued, place: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*issued.pair)
        self.above, self.below = Above(), Below()
        self.connection = TlsConnection(lambda: server, self.above)
        self.connection.connection_made(cast(asyncio.Transport, self.below))
        context = ca.trusting()
        context.maximum_version = context.minimum_version = version
        context.keylog_filename = str(place / "keys")
        self.come, self.to_go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.come, self.to_go, server_hostname="localhost")
        self._shake_hands()
        secrets = dict(line.split()[::2] for line in (place / "keys").read_text().splitlines() if not line.startswith("#"))
        self._hash = hashes.SHA384() if "SHA384" in str(self.tls.cipher()) else hashes.SHA256()
        self._secret, self._number = bytes.fromhex(secrets.get("CLIENT_TRAFFIC_SECRET_0", "")), 0

    def _shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.connection.data_received(self.to_go.read())
                self.come.write(bytes(self.below.written))
                self.below.written.clear()
                continue
            self.connection.data_received(self.to_go.read())
            return

    def said(self, data: bytes, size: int) -> bytes:
        """The records of this data, so many bytes in each."""
        for at in range(0, len(data), size):
            self.tls.write(data[at : at + size])
        return self.to_go.read()

    def _derived(self, label: bytes, size: int) -> bytes:
        info = size.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)

    def record(self, content: bytes, kind: int) -> bytes:
        """An encrypted record behind which the client says nothing by itself any more (RFC 8446, 5.2)."""
        key = AESGCM(self._derived(b"key", 32 if self._hash.name == "sha384" else 16))
        nonce = int.from_bytes(self._derived(b"iv", 12), "big") ^ self._number
        self._number += 1
        head = bytes([APPLICATION, 3, 3]) + (len(content) + 1 + 16).to_bytes(2, "big")
        return head + key.encrypt(nonce.to_bytes(12, "big"), content + bytes([kind]), head)

    def key_updates(self, count: int) -> bytes:
        """So many, each under the keys that the one before has brought."""
        made = bytearray()
        for _ in range(count):
            made += self.record(KEY_UPDATE, HANDSHAKE)
            self._secret, self._number = self._derived(b"traffic upd", self._hash.digest_size), 0
        return bytes(made)


@pytest.fixture
def talk(ca: Authority, issued: Issued, tmp_path: Path) -> Callable[..., Talk]:
    return lambda **how: Talk(ca, issued, tmp_path, **how)


async def turned(until: Callable[[], bool]) -> int:
    """How many turns of the loop it takes."""
    for turn in range(10_000):
        if until():
            return turn
        await asyncio.sleep(0)
    raise AssertionError("not within 10,000 turns")


async def test_who_sends_nothing_but_key_updates_is_cut_off_within_one_turn(talk: Callable[..., Talk]) -> None:
    """256 kB of them, as one read brings, had the loop to themselves for tenths of a second, and the next read again."""
    client = talk()
    client.connection.data_received(client.key_updates(2_000))
    assert not client.below.is_open
    assert client.above.given == []


async def test_keys_may_be_changed_now_and_then_and_be_paid_for(talk: Callable[..., Talk]) -> None:
    client, body = talk(), b"x" * 16_000
    for _ in range(100):
        client.connection.data_received(client.key_updates(2) + client.record(body, APPLICATION))
    client.connection.data_received(client.key_updates(20) + client.record(b"the end", APPLICATION))
    assert client.below.is_open
    assert b"".join(client.above.given) == body * 100 + b"the end"


async def test_a_byte_now_and_then_does_not_pay_for_key_updates(talk: Callable[..., Talk]) -> None:
    client = talk()
    for _ in range(10):
        client.connection.data_received(client.key_updates(10) + client.record(b"x", APPLICATION))
    assert not client.below.is_open


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_small_records_have_as_many_turns_as_they_need_and_nothing_is_read_meanwhile(
    talk: Callable[..., Talk], version: ssl.TLSVersion
) -> None:
    client, message = talk(version=version), bytes(range(256)) * 20
    client.connection.data_received(client.said(message, size=1))
    assert b"".join(client.above.given) == message[: len(b"".join(client.above.given))]
    assert len(client.above.given[0]) <= AT_ONCE
    assert not client.below.reads
    assert await turned(lambda: client.below.reads) >= len(message) // AT_ONCE - 1
    assert b"".join(client.above.given) == message
    assert max(map(len, client.above.given)) <= AT_ONCE


async def test_what_has_come_waits_while_the_protocol_above_wants_nothing(talk: Callable[..., Talk]) -> None:
    client, message = talk(), bytes(range(256)) * 4
    client.above.each = lambda: client.connection.pause_reading()
    data = client.said(message, size=1)
    client.connection.data_received(data[:-3])
    for turn in range(1, 1 + len(message) // AT_ONCE):
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(client.above.given) == turn
        assert not client.below.reads
        client.connection.resume_reading()
    await turned(lambda: client.below.reads)
    client.connection.data_received(data[-3:])
    assert b"".join(client.above.given) == message


async def test_large_records_are_looked_at_as_they_come(talk: Callable[..., Talk]) -> None:
    client, body = talk(), b"y" * 2**18
    client.connection.data_received(client.said(body, size=2**14))
    assert client.above.given == [body]
    assert client.below.reads


@pytest.mark.parametrize("pieces", [1, 2, 4, 5, 7, 300])
def test_records_end_where_they_do_however_they_come(pieces: int) -> None:
    sizes = [0, 1, 27, 500, 3]
    stream = b"".join(bytes([23, 3, 3]) + size.to_bytes(2, "big") + b"z" * size for size in sizes)
    records, found = Records(), 0
    for at in range(0, len(stream), pieces):
        part = stream[at : at + pieces]
        size, ended = records.cut(part)
        assert size == len(part)
        found += ended
    assert found == len(sizes)


def test_no_more_records_than_that_are_looked_at_in_one_turn() -> None:
    record = bytes([23, 3, 3, 0, 1, 0])
    assert Records().cut(record * 1_000) == (AT_ONCE * len(record), AT_ONCE)


def test_a_handshake_that_goes_on_for_ever_is_too_much() -> None:
    records = Records()
    assert not any(records.count(1, 0, 0) for _ in range(256))
    assert records.count(1, 0, 0)
    records.begins_anew()
    assert not records.count(32, 0, 0)
    assert records.count(1, 0, 0)
