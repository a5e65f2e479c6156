"""gzip, of the bodies that come and of the answers: the coding as bytes, then on a connection, then over HTTP."""

from __future__ import annotations

import asyncio
import gc
import gzip
import random
import zlib
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest
from oncelog.wire.media import AVRO, JSON
from oncelog_service.rest import limits, packing
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.packing import Packer, is_wanted, pack, unpack
from oncelog_service.rest.protocol import Shared
from tests.rest.talk import TIMEOUT, Topic, assert_problem, avro_publish, done, receipts
from tests.rest.test_protocol import LIMIT, Echo, Wire, declared, in_time, run, until
from tests.world.service import RunningService, running_service

PACKED = "content-encoding: gzip"
BODIES = st.binary(max_size=300) | st.builds(lambda part, times: part * times, st.binary(max_size=20), st.integers(0, 4_000))


def lying(packed: bytes, size: int) -> bytes:
    """It says that it has another size."""
    return packed[:-4] + size.to_bytes(4, "little")


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_SLICE_PACKED", 5)
    monkeypatch.setattr(packing, "_SLICE_BYTES", 7)


@pytest.mark.usefixtures("small_slices")
@given(BODIES, st.sampled_from([0, 1, 6, 9]), st.data())
def test_what_is_packed_is_unpacked_and_whatever_else_came_is_refused(body: bytes, level: int, data: st.DataObject) -> None:
    packed = gzip.compress(body, level)
    assert unpack(packed, len(body)) == body
    cut, goes_on = packed[: data.draw(st.integers(1, len(packed) - 1))], packed + data.draw(st.binary(min_size=1, max_size=30))
    lies = lying(packed, data.draw(st.integers(0, 10_000).filter(lambda size: size != len(body))))
    for bad in (cut, goes_on, packed + packed, lies):
        with pytest.raises(InvalidRequest):
            unpack(bad, 10**6)
    if body:
        with pytest.raises(InvalidRequest, match=f"larger than {len(body) - 1} bytes"):
            unpack(packed, len(body) - 1)
    at = data.draw(st.integers(10, len(packed) - 1))
    damaged = packed[:at] + bytes([packed[at] ^ 1 << data.draw(st.integers(0, 7))]) + packed[at + 1 :]
    with suppress(InvalidRequest):
        assert unpack(damaged, 10**6) == body, "bits before a stored block mean nothing"


@given(st.binary(max_size=200))
def test_whatever_comes_instead_is_refused(garbage: bytes) -> None:
    for bad in (garbage + b"\0\0\0\0", b"\x1f\x8b\x08" + garbage + b"\0\0\0\0", zlib.compress(garbage)):
        with pytest.raises(InvalidRequest):
            unpack(bad, 10**6)


def test_a_bomb_is_not_unpacked_beyond_what_it_says_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Watched:
        def __init__(self, form: int) -> None:
            self._real = zlib.decompressobj(form)

        def decompress(self, data: bytes, most: int) -> bytes:
            made.append(self._real.decompress(data, most))
            return made[-1]

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    bomb = gzip.compress(bytes(10**7))
    monkeypatch.setattr(packing, "zlib", SimpleNamespace(decompressobj=Watched, error=zlib.error))
    for lies, most in ((bomb, 0), (lying(bomb, 2**32 - 1), 0), (lying(bomb, 1_000), 1_001), (lying(bomb, 0), 1)):
        made.clear()
        with pytest.raises(InvalidRequest, match="larger than"):
            unpack(lies, 10**6)
        assert sum(map(len, made)) == most


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("gzip", True), ("GZIP", True), ("x-gzip", True), ("deflate, gzip;q=1.0, *;q=0.5", True), ("gzip;q=0.001", True),
        ("br, gzip ; q=0.5", True), ("*", True), ("identity;q=0", False), ("identity;q=0, *", True), ("gzip,identity", True),
        ("gzip;q=0.5, identity;q=0.5", True), ("gzip;q=0.4, identity;q=0.5", False), ("*;q=0.4, identity", False),
        ("", False), ("identity", False), ("br", False), ("gzip;q=0", False), ("gzip;q=0.000, *", False), ("*;q=0", False),
        ("gzip;q=0, x-gzip", True), ("gzip;q=2", False), ("gzip;q=x", False), ("gzip;level=1", False), ("gzipped", False),
        (",;,q=1", False), ("gzip" + 1_020 * ",", True), ("gzip" + 64_000 * ",", False),
    ],
)  # fmt: skip
def test_who_asks_for_an_answer_that_is_packed(accept: str, wanted: bool) -> None:
    assert is_wanted(accept) == wanted


@given(st.binary(max_size=3_000), st.integers(1, 40))
def test_an_answer_is_packed_only_where_its_beginning_gets_smaller(part: bytes, times: int) -> None:
    packed = pack(part * times)
    assert packed is None or gzip.decompress(packed) == part * times
    assert pack(random.Random(1).randbytes(10_000) + bytes(10_000)) is None


def test_while_a_large_answer_is_packed_others_go_out_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        packer, small, large, release = Packer(), Answer(b"x" * 2_000, JSON), Answer(b"x" * 20_000, JSON), asyncio.Event()
        assert isinstance(small.body, bytes)

        async def packed(body: bytes) -> bytes | None:
            await release.wait()
            return pack(body)

        def on_a_thread(thread: object, call: object, body: bytes) -> asyncio.Future[bytes | None]:
            return asyncio.ensure_future(packed(body))

        monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", on_a_thread)
        gone = asyncio.ensure_future(packer.packed(large, "gzip"))
        await asyncio.sleep(0)
        assert await packer.packed(large, "gzip") == large._replace(headers={"vary": "accept-encoding"})
        assert (await packer.packed(small, "gzip")).headers["content-encoding"] == "gzip"
        gone.cancel()
        await asyncio.wait([gone])
        assert "content-encoding" not in (await packer.packed(large, "gzip")).headers, "the thread is at it still"
        release.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (await packer.packed(large, "gzip")).headers["content-encoding"] == "gzip"

    asyncio.run(check())


# --- on a connection


def test_a_body_that_is_no_gzip_is_answered_400_and_the_next_request_is_obeyed() -> None:
    body = gzip.compress(b"x" * LIMIT)
    bad = [body[:-1], body[:9], body + b"x", body * 2, gzip.compress(bytes(LIMIT + 1)), b"x" * 50, lying(body, 5)]

    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(b"".join(declared(each, PACKED) for each in (*bad, body, b"")))
        await until(lambda: wire.is_done)
        assert [status for status, _ in wire.answers()] == [400] * len(bad) + [200, 200]
        assert echo.seen == [b"x" * LIMIT, b""], "no bytes at all are an empty body"

    run(check)


@pytest.mark.parametrize("at_once", [False, True])
def test_what_is_refused_is_not_held_while_its_connection_is_silent(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr(limits, "is_unpacked_at_once", lambda packed, size: at_once)
    unpackers, body = WeakSet[Any](), gzip.compress(b"x" * LIMIT)

    class Watched:
        def __init__(self, form: int) -> None:
            self._real = zlib.decompressobj(form)
            unpackers.add(self)

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    monkeypatch.setattr(packing, "zlib", SimpleNamespace(decompressobj=Watched, error=zlib.error))

    async def check(echo: Echo, shared: Shared) -> None:
        for bad in (lying(body[:-5] + b"xxxxx", LIMIT), body[:40] + b"x" + body[-4:], lying(body, 5), body[:-9] + body[-4:]):
            wire = Wire(shared)
            await wire.send(declared(bad, PACKED))
            await in_time(lambda: not shared.exchanges)
            assert ([status for status, _ in wire.answers()], len(unpackers)) == ([400], 0)

    gc.disable()  # else it might come just now
    try:
        run(check)
    finally:
        gc.enable()


@pytest.mark.parametrize("refused", [False, True])
def test_what_is_unpacked_on_a_thread_counts_meanwhile_and_is_judged_anew(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    monkeypatch.setattr(limits, "is_unpacked_at_once", lambda packed, size: False)
    body = gzip.compress(b"x" * LIMIT)

    async def check(echo: Echo, shared: Shared) -> None:
        judged, admit, wire = [0], echo.admit, Wire(shared)

        def again(head: object, address: object = None) -> object:
            judged[0] += 1
            if refused and judged[0] == 2:
                raise InvalidRequest("not any more")
            return admit(head)  # type: ignore[arg-type]

        monkeypatch.setattr(echo, "admit", again)
        await wire.send(declared(body, PACKED), turns=2)
        assert shared.traffic.body_bytes == len(body) + LIMIT
        await in_time(lambda: not shared.exchanges)
        assert (judged, [status for status, _ in wire.answers()]) == ([2], [400 if refused else 200])

    run(check)


def test_what_finds_no_room_to_be_unpacked_is_told_to_come_again() -> None:
    async def check(echo: Echo, shared: Shared) -> None:
        echo.gate.clear()
        first, second, body = Wire(shared), Wire(shared), gzip.compress(bytes(LIMIT))
        await first.send(declared(body, PACKED), turns=5)
        assert shared.traffic.body_bytes == LIMIT, "what it came as is gone"
        await second.send(declared(body, PACKED), turns=5)
        assert [status for status, _ in second.answers()] == [503]
        echo.gate.set()
        await until(lambda: not shared.exchanges)
        assert echo.seen == [bytes(LIMIT)]

    run(check, LIMIT + LIMIT // 2)


def test_what_is_being_unpacked_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "is_unpacked_at_once", lambda packed, size: False)

    async def check(echo: Echo, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(declared(gzip.compress(bytes(LIMIT)), PACKED), turns=2)
        wire.protocol.connection_lost(None)
        wire.closed = True
        await in_time(lambda: not shared.exchanges)
        assert echo.seen == []

    run(check)


# --- over HTTP


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service() as found:
        yield found


@pytest.fixture
def topic(service: RunningService) -> Topic:
    return Topic(service.url)


def packed(topic: Topic, path: str, body: bytes, media: str, **headers: str) -> requests.Response:
    headers = {"content-type": media, "content-encoding": "gzip", **headers}
    return topic.request("POST", path, data=gzip.compress(body), headers=headers)


def test_a_packed_body_is_read_at_every_address_whole_or_in_chunks(topic: Topic) -> None:
    upcoming = topic.stats()["upcomingOffset"]
    stored = packed(topic, "/publish", b'{"messages": ["%b"]}' % (b"x" * 200_000), JSON, **{"content-encoding": "X-GZIP"})
    assert receipts(done(stored))[0]["offset"] == upcoming
    done(packed(topic, "/publish", avro_publish(b"y"), AVRO))
    pieces = iter([gzip.compress(b'{"messages": ["z"]}')[at : at + 7] for at in range(0, 60, 7)])
    done(topic.request("POST", "/publish", data=pieces, headers={"content-type": JSON, "content-encoding": "gzip"}))
    found = done(packed(topic, "/poll", b'{"startOffset": {"long": %d}}' % upcoming, JSON)).json()
    assert [each["payload"][0] for each in found] == ["x", "y", "z"]
    headers = {"content-type": JSON, "content-encoding": "gzip"}
    done(topic.request("PUT", "/properties", data=gzip.compress(b'{"ttl": "100"}'), headers=headers))
    assert topic.good("GET", "")["properties"]["ttl"] == "100"


def test_another_coding_is_refused_and_told_which_is_read(topic: Topic) -> None:
    for coding in ("br", "gzip, gzip", "gzip, identity", "deflate", ""):
        answer = packed(topic, "/publish", b"{}", JSON, **{"content-encoding": coding})
        assert_problem(answer, 415, "unsupported_media_type")
        assert answer.headers["accept-encoding"] == "gzip"
    wrong_type = packed(topic, "/publish", b"{}", "application/x-www-form-urlencoded")
    assert_problem(wrong_type, 415, "unsupported_media_type")
    assert "accept-encoding" not in wrong_type.headers


def test_an_answer_is_packed_for_whoever_asks_and_says_so(topic: Topic) -> None:
    done(topic.publish(*(f"message {number}" for number in range(5_000))))
    last = topic.stats()["upcomingOffset"]

    def polled(accept: str, limit: int) -> requests.Response:
        request = {"startOffset": {"long": last - 5_000}, "limit": {"int": limit}}
        return done(topic.request("POST", "/poll", json=request, headers={"accept-encoding": accept}))

    for limit, size in ((100, 16_000), (5_000, 10**5)):  # on the event loop, and on a thread
        plain, answer = polled("identity", limit), polled("gzip", limit)
        assert answer.content == plain.content
        assert len(plain.content) > size
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) < len(plain.content) // 4
        assert "content-encoding" not in plain.headers
        assert (plain.headers["vary"], answer.headers["vary"]) == ("accept-encoding",) * 2
    for small in (polled("gzip", 1), topic.request("POST", "/verify", headers={"accept-encoding": "gzip"})):
        assert "content-encoding" not in small.headers


@pytest.mark.parametrize("accept", ["gzip", "identity"])
def test_a_head_is_answered_as_a_get_and_a_file_that_is_known_is_not_sent(service: RunningService, accept: str) -> None:
    url, headers = service.url + "/console/app.js", {"accept-encoding": accept}
    found, head = (requests.request(method, url, headers=headers, timeout=TIMEOUT) for method in ("GET", "HEAD"))
    assert found.headers.get("content-encoding") == (accept if accept == "gzip" else None)
    assert {**head.headers, "date": ""} == {**found.headers, "date": ""}
    assert head.content == b""
    known = requests.get(url, headers={**headers, "if-none-match": found.headers["etag"]}, timeout=TIMEOUT)
    assert (known.status_code, known.headers["etag"], known.headers["vary"]) == (304, found.headers["etag"], "accept-encoding")
