"""Sessions of requests whose connections keep a deadline, trust whom they are given, and heed nothing around them."""

from __future__ import annotations

import socket
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from oncelog.http.deadline import TimedTlsSocket, connected
from oncelog.http.trust import Trust

_CONNECTIONS = 4


def new_session(trust: Trust | None = None) -> requests.Session:
    """Connections that read neither ~/.netrc (it would replace the token) nor a proxy or a cookie from anywhere."""
    trust = Trust.chosen() if trust is None else trust
    session = _Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.mount("http://", _Adapter(None))
    session.mount("https://", _Adapter(trust))
    if trust.proxy is not None:
        session.proxies = {"http": trust.proxy, "https": trust.proxy}
    session.headers["user-agent"] = "oncelog"
    session.headers["accept-encoding"] = "identity"
    return session


class _Session(requests.Session):
    """A session that looks at no redirect: requests would read all of its body and stumble over its address before we see it."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


class _TimedConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self)


class _TimedTlsConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self)


def _connected(connection: HTTPConnection) -> socket.socket:
    """Connect as urllib3 does, but with one time-out for all of a host's addresses together."""
    try:
        return connected(connection._dns_host.strip("[]"), connection.port, connection.timeout, connection.socket_options)
    except socket.gaierror as error:
        raise NameResolutionError(connection.host, connection, error) from error
    except TimeoutError as error:
        raise ConnectTimeoutError(connection, f"connecting to {connection.host} timed out") from error
    except OSError as error:
        raise NewConnectionError(connection, f"connecting to {connection.host} failed: {error}") from error


class _TimedPool(HTTPConnectionPool):
    ConnectionCls = _TimedConnection


class _TimedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _TimedTlsConnection


_POOLS = {"http": _TimedPool, "https": _TimedTlsPool}


class _Adapter(HTTPAdapter):
    """``trust`` None: for connections without TLS, so that nobody's certificates need be there."""

    def __init__(self, trust: Trust | None) -> None:
        self._trust = trust
        super().__init__(_CONNECTIONS, _CONNECTIONS)

    def init_poolmanager(self, *given: Any, **named: Any) -> None:
        super().init_poolmanager(*given, **named)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def get_connection_with_tls_context(self, *given: Any, **named: Any) -> Any:
        self.poolmanager.connection_pool_kw.update(self._tls())
        return super().get_connection_with_tls_context(*given, **named)

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **named, **self._tls())
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def cert_verify(self, *_: object) -> None:
        """Do nothing: whom to trust is in the context, and nobody else is; requests would add the public certificates."""

    def _tls(self) -> dict[str, Any]:
        if self._trust is None:
            return {}
        try:
            context = self._trust.context
        except ValueError as error:  # found here only where a redirect is the first to need it
            raise requests.exceptions.SSLError(str(error)) from error
        context.sslsocket_class = TimedTlsSocket
        return {"ssl_context": context}
