"""The service as seen from a Spark process: which one, and a client of it that is made where it is used and never pickled."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from threading import Lock

from oncelog.client import Client
from oncelog.http.credentials import chosen_token, secret_in
from oncelog.http.trust import Trust
from oncelog.wire.media import DEFAULT_NAMESPACE, DEFAULT_URL

RETRY_SECONDS = 120.0
"""How long a task tries again before it fails: a restart of the service must not end a query."""


@dataclass(frozen=True)
class Connection:
    """Address and token of a service. Picklable; its text holds no token."""

    url: str = field(default=DEFAULT_URL, repr=False)
    namespace: str = DEFAULT_NAMESPACE
    token: str | None = field(default=None, repr=False)
    retry_seconds: float = RETRY_SECONDS
    trust: Trust = Trust()  # noqa: RUF009  # it is frozen, too
    token_file: str | None = None
    """Where the token is instead, on each machine; it is read there, and again where it has changed."""

    @classmethod
    def chosen(
        cls,
        url: str | None,
        namespace: str | None,
        token: str | None,
        retry_seconds: float | None = None,
        trust: Trust | None = None,
        token_file: str | None = None,
    ) -> Connection:
        """What the options say, else the variables of the driver's environment that a client reads, else the defaults.

        Executors know nothing of the driver's environment, so it is read here, once. Files lie on every machine.
        """
        return cls(
            url or os.environ.get("ONCELOG_URL") or DEFAULT_URL,
            namespace or DEFAULT_NAMESPACE,
            None if token_file is not None else chosen_token(token),
            RETRY_SECONDS if retry_seconds is None else retry_seconds,
            trust or Trust.chosen(),
            token_file,
        )

    def client(self) -> Client:
        """The client of this process; one for all tasks that run in it one after the other.

        Raises ValueError: the file of the token is of no use. Once it was of use, its token is used on instead.
        """
        key = (os.getpid(), self)  # workers are forked: a connection must not be shared with the parent
        token = self.token if self.token_file is None else _token_in(self.token_file)
        with _lock:
            known, client = _clients.get(key, (None, None))
            if client is None or known != token:
                trust = self.trust
                cert = trust.certificate if trust.certificate is None or trust.key is None else (trust.certificate, trust.key)
                client = Client(self.url, token=token, retry=self.retry_seconds, verify=trust.ca, cert=cert, proxy=trust.proxy)
                _clients[key] = token, client
        return client


def _token_in(path: str) -> str:
    """What the file holds. While it is of no use, what it held: whoever writes it anew may empty it first, and a query that has
    just committed must not end by that."""
    try:
        _tokens[path] = secret_in(path, "option tokenFile")
    except ValueError as error:
        if path not in _tokens:
            raise
        logging.getLogger("oncelog.spark").warning("the token of before is used on: %s", error)
    return _tokens[path]


_tokens: dict[str, str] = {}
"""By file, what it held last."""
_clients: dict[tuple[int, Connection], tuple[str | None, Client]] = {}
"""By process and connection; the token that each was made with."""
_lock = Lock()
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]  # as threading does with its own
