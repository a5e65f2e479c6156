"""A CA of one's own, a certificate for oneself, a proxy by choice: with real handshakes, and nobody trusted unnamed."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from oncelog import Client, Consumer, Producer, Reader
from oncelog.api.api import surrounded
from oncelog.errors import CertificateRefused, ConnectionFailed, InvalidResponse
from oncelog.http.trust import CA_VARIABLES, Trust
from oncelog.spark.connection import Connection
from tests.sdk.fakes import Answer, FakeServer, fake_server, forward, listening
from tests.sdk.test_process import run
from tests.sdk.test_transport import DRIPS, dripping, each_drip_takes_a_second
from tests.world.certificates import Authority, encrypted
from tests.world.service import RunningService, free_port

pytestmark = pytest.mark.usefixtures("no_trust_of_the_machine")


class Certificates:
    """A CA, what it signed for 127.0.0.1 and for a client, and a CA that signed neither."""

    def __init__(self, place: Path) -> None:
        self.place = place
        ca, _ = Authority(place), Authority(place, "other")
        self._server = ca.service("server")
        client = ca.issue("client", common_names=["client"])
        (place / "both.pem").write_text("".join(Path(each).read_text() for each in client))

    def path(self, name: str) -> str:
        return str(self.place / name)

    def server(self, of_clients: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.path("ca.pem"))
        context.load_cert_chain(*self._server)
        if of_clients:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def topics(url: str, **trust: Any) -> list[str]:
    with Client(url, retry=0, **trust) as client:
        return client.topics()


def listing(context: ssl.SSLContext | None = None) -> AbstractContextManager[FakeServer]:
    """A server that has one topic."""
    return fake_server(lambda _: Answer(body=b'["t"]'), context)


@pytest.mark.real
def test_a_ca_of_ones_own_is_trusted_where_it_is_named_or_the_environment_names_it(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ca = certificates.path("ca.pem")
    with listing(certificates.server()) as fake:
        for verify in (ca, Path(ca), ssl.create_default_context(cafile=ca)):
            assert topics(fake.url, verify=verify) == ["t"]
        assert Connection.chosen(fake.url, None, None, trust=Trust.chosen(ca)).client().topics() == ["t"]
        for use in (
            lambda: Producer("t", url=fake.url, verify=ca),
            lambda: Reader("t", url=fake.url, verify=ca).read(),
            lambda: Consumer("t", "s", url=fake.url, verify=ca),
        ):
            with pytest.raises(InvalidResponse):  # which is an answer
                use()
        monkeypatch.setenv("ONCELOG_CA", ca)
        assert topics(fake.url) == ["t"]
        with pytest.raises(CertificateRefused):
            topics(fake.url, verify=certificates.path("other.pem"))
        monkeypatch.delenv("ONCELOG_CA")
        if shutil.which("openssl") is None:
            return  # who makes such a directory has it
        shutil.copy(ca, tmp_path / "ca.pem")
        subprocess.run(["openssl", "rehash", str(tmp_path)], check=True, capture_output=True)
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        assert topics(fake.url) == ["t"]


def test_certificates_are_checked_and_their_files_are_read_at_once(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    pair = (certificates.path("client.pem"), certificates.path("server.key"))
    locked = (pair[0], str(tmp_path / "locked.key"))
    encrypted(certificates.path("client.key"), locked[1])
    for wrong, says in (
        ({"verify": False}, "always checked"),
        ({"verify": tmp_path / "missing.pem"}, "cannot be read"),
        ({"verify": tmp_path / "empty.pem"}, "cannot be read"),
        ({"cert": pair}, "client's certificate"),
        ({"cert": locked}, "the key is encrypted"),  # nobody is asked at a terminal
    ):
        with pytest.raises(ValueError, match=says):
            Client("https://x", **wrong)  # type: ignore[arg-type]
    Client("http://x", verify=tmp_path / "missing.pem")  # where nothing is under TLS, none is needed


@pytest.mark.real
def test_a_client_shows_its_own_certificate(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, pair = certificates.path("ca.pem"), (certificates.path("client.pem"), certificates.path("client.key"))
    with listing(certificates.server(of_clients=True)) as fake:
        with pytest.raises(CertificateRefused, match="asks for one") as caught:
            topics(fake.url, verify=ca)
        assert caught.value.definite
        assert fake.requests == []
        for cert in (pair, certificates.path("both.pem")):
            assert topics(fake.url, verify=ca, cert=cert) == ["t"]
        monkeypatch.setenv("ONCELOG_CERT", pair[0])
        monkeypatch.setenv("ONCELOG_KEY", pair[1])
        assert topics(fake.url, verify=ca) == ["t"]


def test_who_is_named_is_trusted_and_none_of_the_public_ones(certificates: Certificates) -> None:
    (trusted,) = Trust.chosen(certificates.path("ca.pem")).context.get_ca_certs()
    assert trusted["subject"] == ((("commonName", "ca"),),)
    assert len(Trust.chosen().context.get_ca_certs()) > 50


def test_the_first_of_the_variables_wins() -> None:
    everything = {name: f"/{name}" for name in CA_VARIABLES}
    for name in CA_VARIABLES:
        assert Trust.chosen(environment=everything).ca == f"/{name}"
        everything.pop(name)
    assert Trust.chosen(environment=everything).ca is None


@pytest.mark.real
def test_an_answer_that_drips_under_tls_ends_with_its_time(certificates: Certificates) -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", certificates.server()) as server:
        slow = surrounded(Client, clock=each_drip_takes_a_second(server))
        with pytest.raises(ConnectionFailed):
            slow(server.url, verify=certificates.path("ca.pem"), timeout=30, retry=0).topics()
        assert 0 < server.sent < DRIPS


@pytest.mark.real
def test_encrypted_connections_are_not_shared_with_a_forked_child(
    house: RunningService, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCELOG_CA", certificates.path("ca.pem"))
    with fake_server(lambda request: forward(house.url, request), certificates.server()) as fake:
        run(fake.url, f"t-{uuid4().hex}", "shared_client")


# --- proxies


@contextmanager
def tunnelling_proxy(tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """One that connects where it is told to (CONNECT), as for https; and what it was asked."""
    asked: list[str] = []

    def talk(client: socket.socket) -> None:
        head = client.recv(65_536).decode()
        asked.append(head)
        host, _, port = head.split()[1].rpartition(":")
        with socket.create_connection((host, int(port))) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            other = {client: server, server: client}
            # In one thread: where one receives while another one sends, the same TLS takes what has not come yet for its end.
            while True:
                for source in select.select([*other], [], [])[0]:
                    if not (data := source.recv(65_536)):  # no less than a record: none of it is left where no select sees it
                        return
                    other[source].sendall(data)

    with listening(talk, tls) as url:
        yield url, asked


@pytest.mark.real
def test_a_proxy_is_gone_through_by_choice_only(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = certificates.path("ca.pem")
    with tunnelling_proxy() as (proxy, asked), listing(certificates.server()) as fake:
        for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        assert topics(fake.url, verify=ca) == ["t"]
        assert asked == []
        assert topics(fake.url, verify=ca, proxy=proxy) == ["t"]
        monkeypatch.setenv("ONCELOG_PROXY", proxy)
        assert topics(fake.url, verify=ca) == ["t"]
        assert len(asked) == 2
    with listing() as proxy:  # a service without TLS is asked through it, too
        assert topics("http://service.example:7070", proxy=proxy.url) == ["t"]
        assert [request.path for request in proxy.requests] == ["http://service.example:7070/v1/namespaces/default/topics"]


@pytest.mark.real
def test_a_proxy_may_itself_be_under_tls_and_ask_who_this_is(certificates: Certificates) -> None:
    ca = certificates.path("ca.pem")
    with tunnelling_proxy(certificates.server()) as (proxy, asked), listing(certificates.server()) as fake:
        named = proxy.replace("://", "://user:pass%20word@")
        assert topics(fake.url, verify=ca, proxy=named) == ["t"]
        assert "proxy-authorization: Basic dXNlcjpwYXNzIHdvcmQ=" in asked[0]
        with pytest.raises(CertificateRefused):
            topics(fake.url, verify=certificates.path("other.pem"), proxy=named)
        assert "authorization" not in fake.requests[0].headers
    with listing() as plain:
        topics("http://service.example:7070", proxy=plain.url.replace("://", "://user:x@"))
        assert plain.requests[0].headers["proxy-authorization"] == "Basic dXNlcjp4"


def test_a_proxy_that_cannot_be_reached_has_sent_nothing(certificates: Certificates) -> None:
    for url in ("http://127.0.0.1:1", "https://127.0.0.1:1"):
        with Client(url, proxy=f"http://127.0.0.1:{free_port()}", retry=0) as client, pytest.raises(ConnectionFailed) as caught:
            client.create_topic("t")
        assert caught.value.definite
    for wrong in ("proxy:3128", "socks5://proxy", "http://", "http://proxy:x"):
        with pytest.raises(ValueError, match="proxy"):
            Client("http://x", proxy=wrong)
