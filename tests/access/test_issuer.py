"""Signed tokens: taken only if their issuer has signed them, for this service, now. Tried as an attacker would."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="the extra jwt is not installed")
pytest.importorskip("cryptography")

import jwt
from pydantic import ValidationError

from oncelog.errors import Unauthorized
from oncelog_service.access import issuer as issuer_module
from oncelog_service.access.access import Access
from oncelog_service.access.grants import Right
from oncelog_service.access.issuer import LEEWAY_MS, Issuer, keys_of
from oncelog_service.access.tokens import digest_of
from oncelog_service.app import check_exposure
from oncelog_service.config import Settings
from tests.access.carrying import Carrying
from tests.access.signing import AUDIENCE, ISSUER, jwk, key_set, new_key, part, pem, signed
from tests.patience import until
from tests.rest.talk import assert_problem
from tests.world.clock import ManualClock
from tests.world.service import running_service

NOW_MS = 1_790_000_000_000
NOW = NOW_MS // 1000
KEY, OTHER = new_key(), new_key()
RSA = new_key("RS256")
CLAIMS: dict[str, Any] = {
    "iss": ISSUER, "aud": AUDIENCE, "sub": "ci", "exp": NOW + 60, "iat": NOW, "oncelog_grants": ["read:default/*"]
}  # fmt: skip
HEADER = {"alg": "ES256", "typ": "JWT", "kid": "a"}


async def issuer_of(path: Path, *keys: dict[str, Any]) -> Issuer:
    await asyncio.to_thread(path.write_bytes, key_set(*(keys or (jwk(KEY, "a"), jwk(RSA, "r", "RS256")))))
    found = Issuer(ISSUER, AUDIENCE, str(path), "oncelog_grants")
    assert await found.read()
    return found


def token(key: Any = KEY, kid: str | None = "a", algorithm: str = "ES256", **claims: Any) -> str:
    """A good one, but for ``claims``; None leaves one out."""
    said = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return signed(key, {"alg": algorithm, "typ": "JWT", **({} if kid is None else {"kid": kid})}, said, algorithm)


def verified(issuer: Issuer, text: str | bytes, now_ms: int = NOW_MS) -> Any:
    data = text.encode() if isinstance(text, str) else text
    digest = digest_of(data)
    found = issuer.known(digest, now_ms)
    if found is None:
        found = issuer.read_token(data, *issuer.key_of(data))
        issuer.remember(found, digest, now_ms)
    return found


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS512", "ES256", "ES384", "ES512", "EdDSA"])
async def test_a_token_that_its_issuer_has_signed_for_us_is_taken(algorithm: str, tmp_path: Path) -> None:
    key = RSA if algorithm[:2] in ("RS", "PS") else new_key(algorithm)
    issuer = await issuer_of(tmp_path / "keys", jwk(key, "k", algorithm, use="sig"))
    found = verified(issuer, token(key, "k", algorithm))
    assert found.principal.name == "jwt:ci"
    assert found.principal.may(Right.READ, "default", "t")
    assert not found.principal.may(Right.WRITE, "default", "t")
    assert verified(issuer, token(key, None, algorithm, aud=["other", AUDIENCE])).principal.name == "jwt:ci", "it has one key"


@pytest.mark.parametrize("kind", [{}, {"typ": "at+jwt"}, {"typ": "application/at+JWT"}, {"typ": "jwt"}])
async def test_what_may_be_an_access_token_is_taken(kind: dict[str, str], tmp_path: Path) -> None:
    issuer = await issuer_of(tmp_path / "keys")
    assert verified(issuer, signed(KEY, {"alg": "ES256", "kid": "a", **kind}, CLAIMS)).principal.name == "jwt:ci"


WRONG: dict[str, str | bytes] = {
    "empty": "..",
    "no parts": "abc",
    "not base64": "!.!.!",
    "no object": f"{part([1])}.{part(CLAIMS)}.x",
    "alg none": f"{part({**HEADER, 'alg': 'none'})}.{part(CLAIMS)}.",
    "alg None": f"{part({**HEADER, 'alg': 'None'})}.{part(CLAIMS)}.",
    "no alg": f"{part({'kid': 'a'})}.{part(CLAIMS)}.x",
    "alg a list": signed(KEY, {**HEADER, "alg": ["ES256"]}, CLAIMS),
    "alg of another key": signed(KEY, {**HEADER, "kid": "r"}, CLAIMS),
    "alg of another curve": signed(KEY, {**HEADER, "alg": "ES384"}, CLAIMS),
    "the public key as a password": signed(pem(RSA).replace(b"-", b"_"), {"alg": "HS256", "kid": "r"}, CLAIMS, "HS256"),
    "its number as a password": signed(jwk(RSA, "r", "RS256")["n"].encode(), {"alg": "HS256", "kid": "r"}, CLAIMS, "HS256"),
    "another's signature": token(OTHER),
    "signature of another": ".".join([*token().split(".")[:2], token(OTHER).split(".")[2]]),
    "claims of another": ".".join([token().split(".")[0], part({**CLAIMS, "sub": "ada"}), token().split(".")[2]]),
    "no signature": token().rpartition(".")[0] + ".",
    "two parts": token().rpartition(".")[0],
    "four parts": token() + ".x",
    "truncated": token()[:-8],
    "unknown kid": token(kid="b"),
    "kid is a path": token(kid="../../../dev/null"),
    "kid is SQL": token(kid="a' OR '1'='1"),
    "kid is a list": signed(KEY, {**HEADER, "kid": ["a"]}, CLAIMS),
    "no kid where there are two": token(kid=None),
    "its own key": signed(OTHER, {**HEADER, "jwk": jwk(OTHER, "a")}, CLAIMS),
    "its own address": signed(OTHER, {**HEADER, "jku": "http://127.0.0.1:1/keys", "x5u": "http://127.0.0.1:1/x"}, CLAIMS),
    "a logout token": signed(KEY, {**HEADER, "typ": "logout+jwt"}, CLAIMS),
    "a kind that ends alike": signed(KEY, {**HEADER, "typ": "not-at+jwt"}, CLAIMS),
    "its kind is null": signed(KEY, {**HEADER, "typ": None}, CLAIMS),
    "its kind is a list": signed(KEY, {**HEADER, "typ": ["JWT"]}, CLAIMS),
    "an ID token": token(at_hash="77QmUPtjPfzWtF2AnpK9RQ"),
    "an ID token beside a code": token(c_hash="LDktKdoQak3Pk0cnXxCltA"),
    "critical": signed(KEY, {**HEADER, "crit": ["exp"], "exp": 1}, CLAIMS),
    "payload is not encoded": signed(KEY, {**HEADER, "b64": False}, CLAIMS),
    "expired": token(exp=NOW - 3_600),
    "expired by its leeway": token(exp=NOW - LEEWAY_MS // 1000),
    "not yet": token(nbf=NOW + 3_600),
    "of the future": token(iat=NOW + 3_600),
    "another issuer": token(iss="https://login.example.org/other"),
    "issuer's prefix": token(iss=ISSUER[:-1]),
    "issuers": token(iss=[ISSUER]),
    "another audience": token(aud="other"),
    "no audience": token(aud=None),
    "audience in part": token(aud="oncelog2"),
    "audiences": token(aud=[]),
    "no expiry": token(exp=None),
    "no issuer": token(iss=None),
    "no subject": token(sub=None),
    "expiry is text": signed(KEY, HEADER, {**CLAIMS, "exp": str(NOW + 60)}),
    "expiry is true": signed(KEY, HEADER, {**CLAIMS, "exp": True}),
    "expiry is null": signed(KEY, HEADER, {**CLAIMS, "exp": None}),
    "expiry is endless": signed(KEY, HEADER, json.dumps(CLAIMS).replace(str(NOW + 60), "1e999").encode()),
    "expiry is Infinity": signed(KEY, HEADER, json.dumps(CLAIMS).replace(str(NOW + 60), "Infinity").encode()),
    "expiry is NaN": signed(KEY, HEADER, json.dumps(CLAIMS).replace(str(NOW + 60), "NaN").encode()),
    "not before is text": signed(KEY, HEADER, {**CLAIMS, "nbf": "now"}),
    "subject is a number": signed(KEY, HEADER, {**CLAIMS, "sub": 5}),
    "subject is empty": token(sub=""),
    "subject is long": token(sub="a" * 201),
    "subject is unicode": token(sub="аdа"),
    "subject has lines": token(sub="ci\nx-other: 1"),
    "subject has a space": token(sub="ci "),
    "grants are text": token(oncelog_grants="admin"),
    "grants are an object": token(oncelog_grants={"admin": True}),
    "grants are nested": token(oncelog_grants=[["admin"]]),
    "a grant that is none": token(oncelog_grants=["read:default/*", "root"]),
    "claims are a list": signed(KEY, HEADER, [CLAIMS]),
    "claims are nested": signed(KEY, HEADER, part(CLAIMS)),
    "a token in a token": signed(KEY, HEADER, token().encode()),
    "nested deeply": signed(KEY, HEADER, b"[" * 3_000 + b"]" * 3_000),
    "a claim twice": signed(KEY, HEADER, json.dumps(CLAIMS).replace("{", '{"sub": "ada", ', 1).encode()),
    "a header twice": signed(KEY, b'{"alg": "none", "kid": "a", "alg": "ES256"}', CLAIMS),
    "16 kB": token(padding="a" * 16_000),
    "16 kB of dots": "." * 16_000,
    "not ASCII": token().encode() + b"\xff",
    "zero bytes": token().encode() + b"\0",
    "latin": b"\xe9.\xe9.\xe9",
}  # fmt: skip


async def test_what_is_wrong_with_a_token_has_it_refused(tmp_path: Path) -> None:
    issuer = await issuer_of(tmp_path / "keys")

    def told(wrong: str | bytes) -> str | None:
        try:
            verified(issuer, wrong)
        except Unauthorized as refused:
            return refused.detail or "refused"
        return None

    for what, wrong in WRONG.items():
        text = wrong.decode("latin-1") if isinstance(wrong, bytes) else wrong
        for said in (told(wrong), told(wrong)):
            assert said is not None, what
            assert text[:60] not in said or len(text) < 60, what
        assert not issuer._known, what
    assert verified(issuer, token()).principal.name == "jwt:ci"


async def test_a_key_verifies_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    issuer = await issuer_of(tmp_path / "keys", jwk(RSA, "ps", "RS256", alg="PS256"), jwk(RSA, "any", "RS256"))
    verified(issuer, token(RSA, "ps", "PS256"))
    verified(issuer, token(RSA, "any", "RS512"))
    for algorithm in ("RS256", "PS384"):
        with pytest.raises(Unauthorized, match="its key is not for"):
            verified(issuer, token(RSA, "ps", algorithm))


async def test_a_token_holds_while_it_says_so_with_some_leeway(tmp_path: Path) -> None:
    issuer = await issuer_of(tmp_path / "keys")
    text = token(nbf=NOW + 20)
    begins, ends = NOW_MS + 20_000 - LEEWAY_MS, NOW_MS + 60_000 + LEEWAY_MS
    for now_ms, holds in (
        (begins - 1, False),
        (begins, True),
        (ends - 1, True),
        (ends, False),
        (begins, True),
        (begins - 1, False),
    ):
        if holds:
            verified(issuer, text, now_ms)
        else:
            with pytest.raises(Unauthorized):
                verified(issuer, text, now_ms)


async def test_a_token_is_verified_once_and_so_many_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = await issuer_of(tmp_path / "keys")
    first = verified(issuer, token())
    monkeypatch.setattr(issuer_module, "_REMEMBERED", 3)
    texts = [token(sub=f"s{number}") for number in range(5)]
    for text in texts:
        verified(issuer, text)
    assert len(issuer._known) == 3
    last = texts[-1]
    found = verified(issuer, last)
    issuer._keys.clear()  # nothing could be verified any more
    assert verified(issuer, last) is found
    assert verified(issuer, last).principal is found.principal
    with pytest.raises(Unauthorized, match="not known yet"):
        verified(issuer, texts[0])
    assert first.principal.name == "jwt:ci"


async def test_a_key_that_is_gone_verifies_nothing_nor_does_what_it_verified_hold(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    issuer = await issuer_of(path)
    text = token()
    verified(issuer, text)
    path.write_bytes(key_set(jwk(OTHER, "b")))
    assert await issuer.read()
    with pytest.raises(Unauthorized):
        verified(issuer, text)
    path.write_bytes(key_set(jwk(OTHER, "a"), jwk(KEY, "b")))  # the same ids, of other keys
    assert await issuer.read()
    with pytest.raises(Unauthorized):
        verified(issuer, text)
    verified(issuer, token(OTHER))
    for broken in (
        b"",
        b"{}",
        b"<html>",
        b'{"keys": []}',
        b'{"keys": {}}',
        b"[" * 100_000,
        key_set(jwk(KEY, "a"), jwk(OTHER, "a")),
    ):
        path.write_bytes(broken)
        assert not await issuer.read()
        verified(issuer, token(OTHER))  # the old keys hold
    path.unlink()
    os.mkfifo(path)
    assert not await issuer.read(), "a pipe that nobody writes to is not waited for"
    path.unlink()
    assert not await issuer.read()
    verified(issuer, token(OTHER))


def test_keys_that_could_be_misused_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good = jwk(KEY, "good")
    private = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(OTHER)), "kid": "private"}
    left_out = [
        {"kty": "oct", "kid": "password", "k": "c2VjcmV0"},
        {"kty": "oct", "kid": "password2", "k": "c2VjcmV0", "alg": "ES256"},
        private,
        jwk(OTHER, "to encrypt", use="enc"),
        jwk(new_key("RS256", bits=1024), "short", "RS256"),
        jwk(RSA, "not for it", "RS256", alg="HS256"),
        jwk(RSA, "nor for that", "RS256", alg="none"),
        jwk(RSA, "nor for this", "RS256", alg="RSA-OAEP"),
        {"kty": "EC", "crv": "secp256k1", "kid": "coin", "x": good["x"], "y": good["y"]},
        {"kty": "EC", "crv": "P-256", "kid": "off the curve", "x": good["x"], "y": good["x"]},
        {"kty": "EC", "kid": "half"},
        {"kty": "RSA", "kid": "no numbers", "n": "!", "e": 5},
        {"kid": "nothing"},
        {**good, "kid": 5},
        "text",
        None,
    ]
    assert list(keys_of(key_set(good, *left_out))) == ["good"]
    assert keys_of(key_set(jwk(RSA, "one", "RS256", alg="PS256")))["one"].algorithms == ("PS256",)
    assert "'short': it has 1024 bits, and RSA needs 2048" in caplog.text
    assert '"d"' not in caplog.text
    assert str(private["d"]) not in caplog.text
    with pytest.raises(ValueError, match="no key"):
        keys_of(key_set(*left_out))


# --- from a URL


class KeyServer(BaseHTTPRequestHandler):
    answer = (200, b"")
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        KeyServer.asked.append(self.path)
        status, body = KeyServer.answer
        self.send_response(status)
        self.send_header("location", "/elsewhere")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def keys_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), KeyServer) as server:
        KeyServer.asked.clear()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/keys"
        server.shutdown()
        thread.join()


async def test_keys_come_from_a_url_that_may_be_down_and_redirects_nowhere(
    keys_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    by_user = keys_url.replace("//", "//ada:secret@")
    assert "secret" not in repr(Settings(store="memory://", jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_keys=by_user))
    issuer = Issuer(ISSUER, AUDIENCE, by_user, "oncelog_grants")
    for KeyServer.answer in ((500, b""), (200, b"<html>"), (302, b""), (200, b" " * (2**20 + 1))):
        assert not await issuer.read()
    assert set(KeyServer.asked) == {"/keys"}
    KeyServer.answer = 200, key_set(jwk(KEY, "a"))
    assert await issuer.read()
    verified(issuer, token())
    KeyServer.answer = 503, b""
    assert not await issuer.read()
    verified(issuer, token())
    assert "503" in caplog.text
    assert "secret" not in caplog.text


async def test_a_token_of_an_unknown_key_has_the_set_read_again_but_seldom(
    keys_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    let = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await let.acquire()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    KeyServer.answer = 200, key_set(jwk(KEY, "a"))
    issuer = Issuer(ISSUER, AUDIENCE, keys_url, "oncelog_grants")
    keeping = asyncio.ensure_future(issuer.keep_up())

    async def asked(times: int) -> None:
        while len(KeyServer.asked) < times or len(pauses) < times:
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(threading.Event().wait, 0.01))])

    await asked(1)
    for number in range(1_000):  # many tokens of keys that nobody has
        with pytest.raises(Unauthorized):
            verified(issuer, token(kid=f"unknown{number % 7}"))
    assert KeyServer.asked == ["/keys"], "nothing is asked because of a token until the pause is over"
    KeyServer.answer = 200, key_set(jwk(KEY, "a"), jwk(OTHER, "new"))
    let.release()
    await asked(2)
    verified(issuer, token(OTHER, "new"))
    assert KeyServer.asked == ["/keys"] * 2
    assert pauses == [issuer_module.SELDOM_SECONDS] * 2
    let.release()
    await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(threading.Event().wait, 0.2))])
    assert len(KeyServer.asked) == 2, "and without one not before it is due"
    keeping.cancel()


# --- a service


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(jwk(KEY, "a")))
    return path


def settings(keys: Path) -> dict[str, Any]:
    return {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_keys": str(keys)}


def test_a_service_with_an_issuer_is_locked_and_takes_its_tokens_beside_its_own(keys: Path, clock: ManualClock) -> None:
    path = "/v1/namespaces/default/topics/t"
    with running_service(clock=clock, **settings(keys)) as service:
        url = service.url
        assert not Carrying(url).is_let_in
        chief = Carrying(url, token(sub="chief", oncelog_grants=["admin"]))
        until(lambda: chief.is_let_in, "the keys are read")
        chief.good("PUT", path, json={})
        reader = Carrying(url, token())
        assert reader.good("POST", path + "/poll", json={}) == []
        refused = assert_problem(reader.request("POST", path + "/publish", json={"messages": ["m"]}), 403, "not_allowed")
        assert refused["principal"] == "jwt:ci"
        nobody = Carrying(url, token(sub="nobody", oncelog_grants=None))
        assert "nothing is granted to 'jwt:nobody'" in assert_problem(nobody.request("GET", path), 401, "unauthorized")["detail"]
        for what in ("alg none", "the public key as a password", "expired", "another's signature", "16 kB"):
            assert_problem(Carrying(url, str(WRONG[what])).request("GET", path), 401, "unauthorized")
        clock.advance(60_000 + LEEWAY_MS)
        assert not reader.is_let_in
        assert chief.is_let_in is False


def test_rows_of_a_subject_grant_beside_what_its_token_claims(keys: Path, clock: ManualClock) -> None:
    topic = "/v1/namespaces/default/topics/t"

    def may_write(who: Carrying) -> bool:
        return who.request("POST", topic + "/publish", json={"messages": ["m"]}).status_code == 200

    with running_service(clock=clock, **settings(keys)) as service:
        chief = Carrying(service.url, token(sub="chief", oncelog_grants=["admin"]))
        until(lambda: chief.is_let_in)
        chief.good("PUT", topic, json={})
        who = Carrying(service.url, token(sub="auth0|5"))
        bare = Carrying(service.url, token(sub="auth0|5", oncelog_grants=[]))
        assert not may_write(who)
        assert not bare.is_let_in
        made = chief.make("jwt:auth0|5", "write:default/t", expiresInMs=20_000)
        assert made["secret"] is None
        for _ in range(2):
            assert may_write(who)
            assert who.request("POST", topic + "/poll", json={}).status_code == 200
            assert may_write(bare)
            assert bare.request("POST", topic + "/poll", json={}).status_code == 403
        assert not may_write(Carrying(service.url, token(sub="auth0|55")))
        clock.advance(20_000)
        assert not may_write(who)
        assert not bare.is_let_in
        again = chief.make("jwt:auth0|5", "write:default/t")
        assert may_write(who)
        chief.make("jwt:auth0|5", "operate")
        assert may_write(who)
        assert bare.request("GET", "/metrics").status_code == 200
        assert chief.revoke(again["id"]).status_code == 200
        assert not may_write(who), "what was put together is put together anew"
        assert bare.request("GET", "/metrics").status_code == 200
        # A token or a certificate of that name is somebody else.
        for name in ("jwt:", "jwt:a b", "jwt", "JWT:ci"):
            answer = chief.create(name, "admin")
            assert (answer.status_code == 200) is (name == "jwt"), answer.text
        assert chief.make("jwt:chief", "read:*/*")["secret"] is None


def test_keys_that_are_changed_hold_without_a_restart(keys: Path, clock: ManualClock) -> None:
    with running_service(clock=clock, **settings(keys)) as service:
        before, after = Carrying(service.url, token()), Carrying(service.url, token(OTHER, "b"))
        until(lambda: before.is_let_in)
        assert not after.is_let_in
        keys.write_bytes(key_set(jwk(OTHER, "b")))
        until(lambda: after.is_let_in)
        assert not before.is_let_in


def test_no_signed_token_is_in_what_is_logged(keys: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), running_service(clock=clock, **settings(keys)) as service:
        good, bad = token(sub="chief", oncelog_grants=["admin"]), token(OTHER)
        until(lambda: Carrying(service.url, good).is_let_in)
        Carrying(service.url, bad).request("DELETE", "/v1/tokens/ab12")
        Carrying(service.url, good).request("DELETE", "/v1/tokens/ab12")
    for secret in (good, bad):
        assert secret.split(".")[2] not in caplog.text
        assert secret.split(".")[1] not in caplog.text
    assert "jwt:chief" in caplog.text


async def test_what_is_no_signed_token_is_never_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who guesses secrets learns nothing by the time it takes: known or not, it is a look into a dict."""
    issuer = Issuer(ISSUER, AUDIENCE, "keys", "oncelog_grants")
    access = Access("of-the-settings", lambda: NOW_MS, locked=False, issuer=issuer)
    monkeypatch.setattr(issuer, "known", None)
    for secret in (b"oncelog_" + b"A" * 43, b"a.b", b"", b"a.b.c.d"):
        with pytest.raises(Unauthorized):
            access.principal_of(secret)
    assert not access.is_open


def test_an_issuer_is_named_whole_and_its_keys_come_a_safe_way() -> None:
    whole = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_keys": "/etc/keys.json"}
    assert Settings(store="memory://", **whole).is_locked
    check_exposure(Settings(store="memory://", host="192.0.2.1", **whole))
    for name in whole:
        with pytest.raises(ValidationError, match="needs all of"):
            Settings(store="memory://", **{each: value for each, value in whole.items() if each != name})
    for url in ("http://login.example.org/keys", "ftp://x/keys", "https://", "file:///etc/keys.json"):
        with pytest.raises(ValidationError, match="file or an https URL"):
            Settings(store="memory://", **{**whole, "jwt_keys": url})
    for url in ("https://login.example.org/keys", "http://127.0.0.1:8080/keys"):
        Settings(store="memory://", **{**whole, "jwt_keys": url})
