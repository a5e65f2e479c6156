"""HTTP to one service: no redirect followed blindly, no ~/.netrc, always a time-out, every failure one of our errors.

A service may be several instances over one store. Any of them says who serves what (``not_served_here``, 307); that is
remembered, and forgotten when it cannot be reached any more. Then the others are asked, named or heard of.
"""

from __future__ import annotations

import os
import threading
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError, ReadTimeoutError

from oncelog.errors import (
    ConnectionFailed,
    InvalidResponse,
    NotServedHere,
    OncelogError,
    ResponseTimeout,
    StorageFailed,
    StorageUnavailable,
    from_problem,
)
from oncelog.wire.media import DEFAULT_URL, PROBLEM, essence

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""Default time-outs; requests itself has none."""
_MAX_REDIRECTS = 5
_REMEMBERED = 10_000
"""Topics of which is remembered who serves them."""


class Transport:
    """Connections to a service. Thread-safe: each thread keeps its own, alive between requests."""

    def __init__(self, url: str | None = None, token: str | None = None, timeout: float = READ_SECONDS) -> None:
        """``url`` and ``token`` default to ONCELOG_URL and ONCELOG_TOKEN; ``url``: several instances of one service by commas.

        Raises ValueError for what is no http(s) URL.
        """
        named = (url or os.environ.get("ONCELOG_URL") or DEFAULT_URL).split(",")
        self._bases = [each.strip().rstrip("/") for each in named]
        """Of every instance that is known, the one to ask first in front."""
        for each in self._bases:
            if not _is_base(each):
                raise ValueError(f"not the URL of a service: {each!r}; it looks like {DEFAULT_URL}")
        self.url = self._bases[0]
        self._served: dict[str, str] = {}
        """What begins a path → who serves it."""
        self._token = token or os.environ.get("ONCELOG_TOKEN")
        self._timeout = timeout
        self._local = threading.local()
        self._sessions: WeakSet[requests.Session] = WeakSet()  # those of threads that have ended go with them
        self._lock = threading.Lock()

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        media: str | None = None,
        params: dict[str, str] | None = None,
        timeout: float | None = None,
        accept: str | None = None,
    ) -> bytes:
        """The body of a 2xx answer; ``accept``: the media type that it should have, where there is a choice.

        Raises:
            OncelogError: what the service answered otherwise. ConnectionFailed, ResponseTimeout, InvalidResponse: no proper
            answer; ``definite`` is True only if the request cannot have arrived.
        """
        response = self._send(method, path, body, media, params, timeout, stream=False, accept=accept)
        return response.content

    def lines(self, method: str, path: str) -> Any:
        """The lines of a 2xx answer as they arrive. Raises as :meth:`call` does, also between two lines."""
        response = self._send(method, path, None, None, None, None, stream=True)
        try:
            yield from response.iter_lines()
        except requests.RequestException as error:
            raise connection_error(self.url, error) from error
        finally:
            response.close()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            sessions = list(self._sessions)
            self._sessions.clear()
        for session in sessions:
            session.close()
        self._local = threading.local()

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        media: str | None,
        params: dict[str, str] | None,
        timeout: float | None,
        stream: bool,
        accept: str | None = None,
    ) -> requests.Response:
        headers = {name: value for name, value in (("content-type", media), ("accept", accept)) if value is not None}
        part = _part(path)
        base = self._served.get(part) or self._bases[0]
        url, trusted, named = base + path, True, False
        for _ in range(_MAX_REDIRECTS + 1):
            if self._token is not None and trusted:
                headers["authorization"] = f"Bearer {self._token}"
            else:
                headers.pop("authorization", None)  # a token is for the service it was given for
            try:
                response = self._session().request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    params=params,
                    timeout=(CONNECT_SECONDS, timeout or self._timeout),
                    allow_redirects=False,
                    stream=stream,
                )
                if stream and not 200 <= response.status_code < 300:
                    _ = response.content  # read here, where its failing is ours to name
            except requests.RequestException as error:
                self._gone(_base(url))
                raise connection_error(_base(url), error) from error
            if response.status_code in (307, 308) and "location" in response.headers:
                here, url = url, urljoin(url, response.headers["location"])  # the same method, the same body
                if not _is_http(urlsplit(url)):
                    raise InvalidResponse(f"{here} redirects to {url!r}, which is no http(s) address")
                params = None  # they are in the new address
                elsewhere = _elsewhere(response) if trusted else None
                if elsewhere is not None and url.startswith(elsewhere + "/"):
                    self._serves(part, elsewhere)
                    named = True
                else:
                    trusted = trusted and urlsplit(url)[:2] == urlsplit(here)[:2]
                continue
            if 200 <= response.status_code < 300:
                return response
            refusal = _refusal(response)
            if isinstance(refusal, StorageUnavailable | StorageFailed):
                self._gone(_base(url))  # it may be cut off from the database; if it is not, the others will say so
            raise refusal
        self._served.pop(part, None)
        if named:  # each names another one: who serves this is changing
            raise ConnectionFailed(f"nobody of {', '.join(self._bases)} serves this at this moment", definite=True)
        raise InvalidResponse(f"{self.url} redirects more than {_MAX_REDIRECTS} times")

    def _serves(self, part: str, base: str) -> None:
        with self._lock:
            self._served[part] = base
            if base not in self._bases:
                self._bases.append(base)
            while len(self._served) > _REMEMBERED:
                del self._served[next(iter(self._served))]

    def _gone(self, base: str) -> None:
        """It could not be reached, or cannot serve: ask another one first."""
        with self._lock:
            for part in [part for part, served in self._served.items() if served == base]:
                del self._served[part]
            if base in self._bases:
                self._bases.remove(base)
                self._bases.append(base)

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = new_session()
            self._local.session = session
            with self._lock:
                self._sessions.add(session)
        return session


def new_session() -> requests.Session:
    """Connections that read nothing from their surroundings: neither ~/.netrc (it would replace the token) nor proxies."""
    session = requests.Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.mount("http://", HTTPAdapter(pool_connections=4, pool_maxsize=4))
    session.mount("https://", HTTPAdapter(pool_connections=4, pool_maxsize=4))
    session.headers["user-agent"] = "oncelog"
    session.headers["accept-encoding"] = "identity"
    return session


def _part(path: str) -> str:
    """What is served as a whole: a topic, all transactions, the journal (in which chunks are staged, too)."""
    parts = path.split("/")
    if path.startswith("/v1/namespaces/") and len(parts) > 5 and parts[4] == "topics":
        return "/v1/journal" if len(parts) > 6 and parts[6] == "stage" else "/".join(parts[:6])
    return "/".join(parts[:3])


def _base(url: str) -> str:
    at = url.find("/v1/")
    return url if at < 0 else url[:at]


def _elsewhere(response: requests.Response) -> str | None:
    """The instance that a refusal names as the one that serves this."""
    try:
        problem = response.json()
    except ValueError:
        return None
    if not isinstance(problem, dict) or problem.get("code") != NotServedHere.code or not isinstance(problem.get("url"), str):
        return None
    url = str(problem["url"]).rstrip("/")
    return url if _is_base(url) else None


def _is_base(url: str) -> bool:
    """Whether paths can be appended to it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return _is_http(parts) and not parts.query and not parts.fragment


def _is_http(parts: SplitResult) -> bool:
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def connection_error(url: str, error: requests.RequestException) -> OncelogError:
    """What is raised where no answer came."""
    cause = error.args[0] if error.args else None
    if isinstance(error, requests.ReadTimeout) or isinstance(cause, ReadTimeoutError):
        return ResponseTimeout(f"{url} did not answer in time: {error}")
    reason = cause.reason if isinstance(cause, MaxRetryError) else cause
    never_arrived = isinstance(reason, NewConnectionError | ConnectTimeoutError)
    return ConnectionFailed(f"{url} cannot be reached: {error}", definite=never_arrived)


def _refusal(response: requests.Response) -> OncelogError:
    status = response.status_code
    if essence(response.headers.get("content-type", "")) == PROBLEM:
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if isinstance(problem, dict):
            return from_problem(problem, status)
    text = response.text[:200]
    return InvalidResponse(f"{response.url} answered {status}, which is no oncelog service's answer: {text!r}")
