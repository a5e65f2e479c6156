"""What every call to the service has in common: its address, its being tried again, its answer being read."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from oncelog.api.retry import may_retry, wait_before_retry
from oncelog.errors import InvalidRequest, InvalidResponse, OncelogError, ResponseTimeout
from oncelog.http.transport import MAX_JSON_BYTES, READ_SECONDS, Transport
from oncelog.http.trust import Certificate, Trust, Verify
from oncelog.wire.media import JSON

T = TypeVar("T")

RETRY_SECONDS = 15.0
"""How long a call is tried again before its error is raised: as long as a service needs to restart."""


class Calls:
    """The transport, and how long to insist. The base of :class:`oncelog.Client`, which has the calls themselves."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = READ_SECONDS,
        retry: float = RETRY_SECONDS,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
    ) -> None:
        """``url``: else ONCELOG_URL, else http://127.0.0.1:7070; ``token``: else ONCELOG_TOKEN.

        ``timeout``: seconds until an answer must have come, to its last byte. ``retry``: seconds that a call is tried again, so
        that it has ended after both together. Of several instances one that hangs takes no call with it: what may be done
        twice is asked of the others too, for ``timeout`` each, unless ``retry`` is 0.

        ``verify``: the certificates to trust, a file, a directory or an ssl.SSLContext, else ONCELOG_CA, REQUESTS_CA_BUNDLE,
        CURL_CA_BUNDLE, SSL_CERT_FILE or SSL_CERT_DIR, else the public ones. ``cert``: the client's own, a file that has its key
        too, or a pair of files; else ONCELOG_CERT and ONCELOG_KEY. ``proxy``: URL of the one to go through, else ONCELOG_PROXY,
        else none.

        Raises ValueError for what is no http(s) URL, and for certificates that cannot be read.
        """
        self._transport = Transport(url, token, timeout, Trust.chosen(verify, cert, proxy))
        self._timeout = timeout
        self._retry = retry
        self._unconfirmed: dict[int, bool] = {}
        """Transactions that were rolled back here, and whose service may not have heard of it → whether they were given up."""

    @property
    def url(self) -> str:
        """Of the service."""
        return self._transport.url

    def _trying(self, call: Callable[[], T], idempotent: bool, seconds: float | None = None) -> T:
        """What ``call`` answers, tried again while that is safe and of use; see :func:`oncelog.api.retry.may_retry`.

        ``seconds``: for how long, else as the client was told.

        Raises:
            OncelogError: the last try's; ``definite`` only if no earlier try may have got through either.
        """
        seconds = self._retry if seconds is None else seconds
        end = time.monotonic() + seconds
        others = self._transport.others if seconds else 0
        attempt = 0
        perhaps_done = False
        while True:
            try:
                return call()
            except OncelogError as error:
                wait = wait_before_retry(error, attempt, random.random(), end - time.monotonic())
                if isinstance(error, ResponseTimeout) and others:  # that took all the time; another one may answer at once
                    others, wait = others - 1, wait or 0.0
                if wait is None or not may_retry(error, idempotent):
                    error.definite = error.definite and not perhaps_done  # an earlier try may have got through
                    raise
                perhaps_done = perhaps_done or not error.definite
            time.sleep(wait)
            attempt += 1

    def _get(self, path: str, params: dict[str, str] | None = None, most: int = MAX_JSON_BYTES) -> bytes:
        return self._trying(lambda: self._transport.call("GET", path, params=params, most=most), idempotent=True)

    def _put(self, path: str, value: object) -> None:
        body = json.dumps(value).encode()
        self._trying(lambda: self._transport.call("PUT", path, body, JSON), idempotent=False)

    def _post(
        self,
        path: str,
        value: object = None,
        *,
        idempotent: bool,
        accept: str | None = None,
        timeout: float | None = None,
        most: int = MAX_JSON_BYTES,
        within: float | None = None,
    ) -> bytes:
        """``timeout``: seconds until an answer must have come, else the client's; ``most``: bytes that it may have; ``within``:
        seconds for all tries together."""
        body, media = (None, None) if value is None else (json.dumps(value).encode(), JSON)
        end = None if within is None else time.monotonic() + within

        def once() -> bytes:
            most_seconds = self._timeout if timeout is None else timeout
            if end is not None:
                most_seconds = max(0.001, min(most_seconds, end - time.monotonic()))
            return self._transport.call("POST", path, body, media, accept=accept, timeout=most_seconds, most=most)

        return self._trying(once, idempotent, within)


def quoted(name: str) -> str:
    """A name as one segment of a path. Raises InvalidRequest for what would be none or several."""
    if name in ("", ".", "..") or "/" in name:
        raise InvalidRequest(f"not a name: {name!r}")
    return quote(name, safe="")


def topic_path(namespace: str, topic: str) -> str:
    """The address of a topic."""
    return f"/v1/namespaces/{quoted(namespace)}/topics/{quoted(topic)}"


def receipts_bytes(messages: int) -> int:
    """That the receipts of so many messages take at most, and then some."""
    return (1 << 16) + 128 * messages


def parse(kind: TypeAdapter[T], body: bytes) -> T:
    """The resource in a JSON answer. Raises InvalidResponse."""
    try:
        return kind.validate_json(body)
    except (ValidationError, RecursionError) as error:
        raise InvalidResponse(f"the answer is not what was expected: {str(error)[:1000]}") from error


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """What ``decode`` reads in an answer. Raises InvalidResponse."""
    try:
        return decode(body)
    except (InvalidRequest, ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        raise InvalidResponse(f"the answer cannot be read: {error}") from error
