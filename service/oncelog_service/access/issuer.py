"""Tokens that somebody else has signed (JWT): verified with the public keys of their issuer, and what they claim as grants.

The invariants:

* Nothing in a token says how it is verified: no key, no address of one, no algorithm but those that the issuer's key is for. All
  of these are asymmetric; what a public key would verify as a password is refused (RFC 8725, 2.1).
* What is plainly another kind of token is refused, whoever signed it (RFC 8725, 3.11 and 3.12): by `typ` in its header, which
  may be missing, as with many issuers, and by claims that only ID tokens have (OpenID Connect Core, 3.3.2.11).
* Keys are read in the background, never because of what an address in a token says. While they cannot be read the old ones hold.
* A key that is in the newest set no more verifies nothing, nor does what it verified before hold.
* What was verified is remembered by the token's hash until it expires, so that a request costs a look into a dict. What was not
  is not remembered.
* A signature is looked at by :meth:`Issuer.read_token` alone, which changes nothing: it is called on a thread (checks.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import stat
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from oncelog.errors import InvalidRequest, Unauthorized
from oncelog.http.connections import FAILURES, Connections
from oncelog.http.credentials import shown
from oncelog.http.sockets import Awaiting, Deadline
from oncelog.http.trust import Trust
from oncelog_service.access.grants import Grant, Principal
from oncelog_service.access.tokens import SIGNED

_log = logging.getLogger(__name__)

SUBJECT = r"[A-Za-z0-9_.@=:/+|-]{1,200}"
LONGEST = 8_192
"""Bytes of a token. Those of large issuers have 1 to 4 kB."""
LEEWAY_MS = 10_000
"""How far the issuer's clock may be from ours."""
_REQUIRED = ["exp", "iss", "aud", "sub"]
_TYPES = ("jwt", "at+jwt")
"""What `typ` may say: of any token, or of an access token (RFC 9068)."""
_OF_ID_TOKENS = ("at_hash", "c_hash")
_REMEMBERED = 10_000
_LARGEST_SET = 2**20
_READ_SECONDS = 10.0
FILE_SECONDS = 1.0
"""How often a file is read again: as soon as an operator would look."""
SELDOM_SECONDS = 10.0
"""A URL is asked at most so often, whatever keys tokens name; it is asked so soon again when it did not answer."""
OFTEN_SECONDS = 300.0
"""… and at least so often."""
_FOR_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_FOR_CURVE = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}
_SMALLEST_RSA = 2_048


class Key(NamedTuple):
    """A public key of the issuer."""

    id: str | None
    algorithms: tuple[str, ...]
    """What it may have signed with."""
    key: Any
    said: str
    """What the set says of it."""


@dataclass(slots=True)
class Signed:
    """What a token says that was verified."""

    principal: Principal
    """With the grants that it claims."""
    key: Key
    """Which has verified it."""
    not_before_ms: float
    expires_ms: float
    together: tuple[tuple[Principal, ...], Principal] | None = field(default=None)
    """With what rows of its name grant besides; kept by who knows these."""


class Issuer:
    """Verifies the tokens of one issuer."""

    def __init__(self, issuer: str, audience: str, keys: str, claim: str) -> None:
        """``keys``: file or URL of its key set (JWKS). ``claim``: names the list of grants."""
        self._issuer = issuer
        self._audience = audience
        self._source = keys
        self._is_url = keys.startswith(("http://", "https://"))
        self._claim = claim
        self._document: bytes | None = None
        self._keys: dict[str | None, Key] = {}
        self._known: dict[bytes, Signed] = {}
        self._wanted = asyncio.Event()

    # --- tokens

    def known(self, digest: bytes, now_ms: int) -> Signed | None:
        """Return what a token says that was verified before, if it holds now. ``digest``: its hash. Raises Unauthorized."""
        signed = self._known.get(digest)
        if signed is not None:
            self._check_times(signed, digest, now_ms)
        return signed

    def remember(self, signed: Signed, digest: bytes, now_ms: int) -> None:
        """Take what a token says that was verified just now. Raises Unauthorized: it does not hold."""
        if not self._has(signed.key):
            raise Unauthorized("the token is signed with a key that its issuer does not have any more")
        self._check_times(signed, digest, now_ms)
        while len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[digest] = signed

    def _check_times(self, signed: Signed, digest: bytes, now_ms: int) -> None:
        if now_ms >= signed.expires_ms + LEEWAY_MS:
            self._known.pop(digest, None)
            raise _expired()
        if now_ms < signed.not_before_ms - LEEWAY_MS:
            raise Unauthorized("the token does not hold yet, by this service's clock")

    def read_token(self, token: bytes, algorithm: str, key: Key) -> Signed:
        """Verify a token, and return what it says; its times are not looked at. Raises Unauthorized."""
        import jwt  # an extra: loaded where an issuer is configured

        try:
            jwt.decode(
                token.decode("ascii"),
                key.key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                # The times are judged by the service's clock.
                options={"require": _REQUIRED, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
        except (jwt.MissingRequiredClaimError, jwt.InvalidAudienceError, jwt.InvalidIssuerError) as error:
            raise Unauthorized(f"the token is not for this service: {error}") from error
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise Unauthorized("the token is not signed by its issuer, or is no token") from error
        return self._signed(_part(token, 1), key)

    def check_unexpired(self, token: bytes, now_ms: int) -> None:
        """Refuse a token that says itself that it has expired, whoever has signed it. Raises Unauthorized."""
        expires = _part(token, 1).get("exp")
        if isinstance(expires, int | float) and now_ms >= expires * 1000 + LEEWAY_MS:
            raise _expired()

    def key_of(self, token: bytes) -> tuple[str, Key]:
        """Return the algorithm and the key that a token names, if it may be an access token. Raises Unauthorized."""
        if len(token) > LONGEST:
            raise Unauthorized(f"a signed token has at most {LONGEST} bytes")
        header = _part(token, 0)
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header or "b64" in header or not (kid is None or isinstance(kid, str)):
            raise Unauthorized("the token's header asks for what this service does not know")
        if "typ" in header and str(header["typ"]).lower().removeprefix("application/") not in _TYPES:
            raise Unauthorized("the token is of another kind than an access token: its header's typ says so")
        if not self._keys:
            raise Unauthorized("the keys of the tokens' issuer are not known yet; try again in a moment")
        key = self._keys.get(kid)
        if kid is None and len(self._keys) == 1:
            (key,) = self._keys.values()
        if key is None:
            self._wanted.set()
            raise Unauthorized("the token names a key that its issuer does not have, or had not when it was asked last")
        if not isinstance(algorithm, str) or algorithm not in key.algorithms:
            raise Unauthorized("the token is signed in a way that its key is not for")
        return algorithm, key

    def _has(self, key: Key) -> bool:
        """Tell whether the newest set has this very key under this id."""
        found = self._keys.get(key.id)
        return found is not None and found.said == key.said

    def _signed(self, claims: Mapping[str, Any], key: Key) -> Signed:
        if any(each in claims for each in _OF_ID_TOKENS):
            raise Unauthorized("the token is an ID token, which says who has signed in to a client; show an access token")
        subject, claimed = claims["sub"], claims.get(self._claim, [])
        if not isinstance(subject, str) or not re.fullmatch(SUBJECT, subject, re.ASCII):
            raise Unauthorized("the token's subject has other signs than letters, digits and _.@=:/+|-, or too many")
        if not isinstance(claimed, list) or not all(isinstance(each, str) for each in claimed):
            raise Unauthorized(f"the token's claim {self._claim} is no list of grants")
        try:
            grants = [Grant.parse(each) for each in claimed]
        except InvalidRequest as error:
            raise Unauthorized(f"the token's claim {self._claim} holds what is no grant") from error
        begins = max((_time_ms(claims, each) for each in ("nbf", "iat") if each in claims), default=0.0)
        return Signed(Principal(SIGNED + subject, grants), key, begins, _time_ms(claims, "exp"))

    # --- keys

    def look(self) -> None:
        """Has the keys be read again soon."""
        self._wanted.set()

    async def keep_up(self) -> None:
        """Reads the keys, again and again, until cancelled."""
        while True:
            self._wanted.clear()
            read = await self.read()
            await asyncio.sleep(SELDOM_SECONDS if self._is_url else FILE_SECONDS)
            if read and self._is_url:
                with suppress(TimeoutError):
                    async with asyncio.timeout(OFTEN_SECONDS):
                        await self._wanted.wait()

    async def read(self) -> bool:
        """Reads the keys; those known before stay where that does not work. Tells whether it did."""
        try:
            document = await self._fetched()
            keys = self._keys if document == self._document else keys_of(document)
        except (*FAILURES, ValueError) as error:
            source = shown(self._source) if self._is_url else self._source
            _log.warning("the keys of the tokens' issuer cannot be read from %s and will be tried again: %s", source, error)
            return False
        if document != self._document:
            self._document, self._keys = document, keys
            self._known = {digest: signed for digest, signed in self._known.items() if self._has(signed.key)}
            _log.info("the tokens' issuer has %d keys", len(keys))
        return True

    async def _fetched(self) -> bytes:
        if not self._is_url:
            return await asyncio.to_thread(document_in, Path(self._source))
        trust = await asyncio.to_thread(Trust.chosen)
        with closing(Connections(trust, Awaiting())) as connections:
            answer = await connections.ask("GET", self._source, None, {"accept": "application/json"}, Deadline(_READ_SECONDS))
            try:
                if answer.status != 200:
                    raise ValueError(f"it answers {answer.status}")
                return await answer.content(_LARGEST_SET)
            finally:
                answer.let_go()


def document_in(path: Path) -> bytes:
    """What a file holds that may be a set of keys. Raises OSError; ValueError: it is none that ends, such as a pipe."""
    # Without O_NONBLOCK the opening of a pipe would wait for who writes.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no plain file")
        return file.read()


def keys_of(document: bytes) -> dict[str | None, Key]:
    """Returns the keys of a set (RFC 7517) by their ids; those that cannot verify a signature are left out. Raises ValueError."""
    found = _strict(document)
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise ValueError("that is no set of keys")
    keys: dict[str | None, Key] = {}
    for each in found["keys"]:
        kid = each.get("kid") if isinstance(each, dict) else None
        try:
            if not isinstance(each, dict) or not (kid is None or isinstance(kid, str)):
                raise _OfNoUse("it is no key, or its id is no text")
            key = _key(each)
        except _OfNoUse as reason:
            _log.warning("a key of the tokens' issuer is left out, %s: %s", ascii(kid)[:100], reason)
            continue
        if kid in keys:
            raise ValueError(f"two keys have the id {ascii(kid)[:100]}")
        keys[kid] = key
    if not keys:
        raise ValueError("it has no key that could verify a token")
    return keys


class _OfNoUse(Exception):
    """A key that verifies nothing that is taken here; why, without what it holds."""


def _key(each: Mapping[str, Any]) -> Key:
    """Raises _OfNoUse."""
    import jwt

    kind = each.get("kty")
    algorithms: tuple[str, ...] = (
        _FOR_RSA if kind == "RSA" else _FOR_CURVE.get(str(each.get("crv")), ()) if kind in ("EC", "OKP") else ()
    )
    if "alg" in each:
        algorithms = tuple(name for name in algorithms if name == each["alg"])
    if "d" in each or "k" in each:
        raise _OfNoUse("it is secret, and belongs in no set of public keys")
    if not algorithms:
        raise _OfNoUse("its kind, its curve or its algorithm is not taken here")
    if each.get("use", "sig") != "sig":
        raise _OfNoUse("it is not for signatures")
    try:
        key = jwt.PyJWK(dict(each), algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        raise _OfNoUse("its numbers are missing, or are those of no key") from None
    if kind == "RSA" and key.key_size < _SMALLEST_RSA:
        raise _OfNoUse(f"it has {key.key_size} bits, and RSA needs {_SMALLEST_RSA}")
    return Key(each.get("kid"), algorithms, key, json.dumps(each, sort_keys=True))


def _part(token: bytes, index: int) -> Mapping[str, Any]:
    """A part of a token as the object that it is. Raises Unauthorized."""
    try:
        part = token.split(b".")[index]
        found = _strict(urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except ValueError as error:
        raise Unauthorized("that is no token") from error
    if not isinstance(found, dict):
        raise Unauthorized("that is no token")
    return found


def _strict(document: bytes) -> Any:
    """JSON in which no name stands twice: of two readers each could take another one. Raises ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name stands twice")
        return found

    def no_number(text: str) -> float:
        raise ValueError(f"{text} is no number")

    try:
        return json.loads(document.decode(), object_pairs_hook=once, parse_constant=no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _time_ms(claims: Mapping[str, Any], name: str) -> float:
    seconds = claims[name]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or abs(seconds) > 2**53:
        raise Unauthorized(f"the token's claim {name} is no time in seconds")
    return seconds * 1000


def _expired() -> Unauthorized:
    return Unauthorized("the token has expired; ask its issuer for another one")
