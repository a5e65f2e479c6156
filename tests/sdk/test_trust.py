"""A CA of one's own, a certificate for oneself, a proxy by choice: with real handshakes, and nobody trusted unnamed."""

from __future__ import annotations

import os
import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from oncelog import Client, Consumer, Producer, Reader
from oncelog.errors import CertificateRefused, ConnectionFailed, OncelogError
from oncelog.http.trust import CA_VARIABLES, Trust
from oncelog.spark.connection import Connection
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, FakeServer, Request, fake_server, forward
from tests.sdk.test_process import run
from tests.support import RunningService, free_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the test makes its certificates with openssl")


class Certificates:
    """A CA, what it signed for 127.0.0.1 and for a client, and a CA that signed neither."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("ca", "other"):
            self._openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        for name in ("server", "client"):
            self._openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            (place / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
            signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
            self._openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
        (place / "both.pem").write_text((place / "client.pem").read_text() + (place / "client.key").read_text())

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.place, check=True, capture_output=True)

    def path(self, name: str) -> str:
        return str(self.place / name)

    def server(self, of_clients: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.path("ca.pem"))
        context.load_cert_chain(self.path("server.pem"), self.path("server.key"))
        if of_clients:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def no_trust_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CA_VARIABLES, "ONCELOG_CERT", "ONCELOG_KEY", "ONCELOG_PROXY"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def behind_tls(house: RunningService, context: ssl.SSLContext) -> Iterator[FakeServer]:
    with fake_server(lambda request: forward(house.url, request), context) as fake:
        yield fake


def test_a_ca_of_ones_own_is_trusted_where_it_is_named(house: RunningService, certificates: Certificates) -> None:
    topic, ca = f"t-{uuid4().hex}", certificates.path("ca.pem")
    with behind_tls(house, certificates.server()) as fake:
        with Client(fake.url, verify=ca) as client:
            client.create_topic(topic)
        with Producer(topic, url=fake.url, verify=ca) as producer:
            producer.send(b"x")
        with Reader(topic, url=fake.url, verify=Path(ca), timeout=0) as reader:
            assert [message.payload for message in reader] == [b"x"]
        with Consumer(topic, "s", url=fake.url, verify=ssl.create_default_context(cafile=ca), timeout=0) as consumer:
            assert [message.payload for message in consumer] == [b"x"]
        assert Connection.chosen(fake.url, None, None, ca=ca).client().topics()


def test_who_is_named_is_trusted_and_none_of_the_public_ones(certificates: Certificates) -> None:
    (trusted,) = Trust.chosen(certificates.path("ca.pem")).context.get_ca_certs()
    assert trusted["subject"] == ((("commonName", "ca"),),)
    assert len(Trust.chosen().context.get_ca_certs()) > 50


@pytest.mark.parametrize("name", CA_VARIABLES)
def test_the_environment_may_name_it(
    house: RunningService, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    ca = certificates.path("ca.pem")
    if name == "SSL_CERT_DIR":
        shutil.copy(ca, tmp_path / "ca.pem")
        subprocess.run(["openssl", "rehash", str(tmp_path)], check=True, capture_output=True)
        ca = str(tmp_path)
    monkeypatch.setenv(name, ca)
    with behind_tls(house, certificates.server()) as fake:
        with Client(fake.url) as client:
            assert client.healthy()
        with Client(fake.url, verify=certificates.path("other.pem"), retry=0) as client, pytest.raises(CertificateRefused):
            client.topics()


def test_the_first_of_the_variables_wins() -> None:
    everything = {name: f"/{name}" for name in CA_VARIABLES}
    for name in CA_VARIABLES:
        assert Trust.chosen(environment=everything).ca == f"/{name}"
        everything.pop(name)
    assert Trust.chosen(environment=everything).ca is None


def test_whoever_is_not_trusted_is_sent_nothing(house: RunningService, certificates: Certificates) -> None:
    with behind_tls(house, certificates.server()) as fake:
        for verify in (None, certificates.path("other.pem")):
            with Client(fake.url, token="x", verify=verify) as client, pytest.raises(CertificateRefused, match="CA") as caught:
                client.create_topic("t")
            assert caught.value.definite
        there = fake.url.replace("127.0.0.1", "[::ffff:127.0.0.1]")  # an address that is not in the certificate
        with Client(there, verify=certificates.path("ca.pem"), retry=0) as client, pytest.raises(CertificateRefused):
            client.topics()
        assert fake.requests == []


def test_certificates_are_checked_and_their_files_are_read_at_once(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="always checked"):
        Client("https://x", verify=False)
    with pytest.raises(ValueError, match="cannot be read"):
        Client("https://x", verify=tmp_path / "missing.pem")
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        Client("https://x", verify=tmp_path / "empty.pem")
    with pytest.raises(ValueError, match="client's certificate"):
        Client("https://x", cert=(certificates.path("client.pem"), certificates.path("server.key")))
    Client("http://x", verify=tmp_path / "missing.pem")  # where nothing is under TLS, none is needed


def test_a_client_shows_its_own_certificate(
    house: RunningService, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, pair = certificates.path("ca.pem"), (certificates.path("client.pem"), certificates.path("client.key"))
    with behind_tls(house, certificates.server(of_clients=True)) as fake:
        with Client(fake.url, verify=ca, retry=0) as client, pytest.raises(OncelogError):
            client.topics()
        for cert in (pair, certificates.path("both.pem")):
            with Client(fake.url, verify=ca, cert=cert) as client:
                assert client.healthy()
        monkeypatch.setenv("ONCELOG_CERT", pair[0])
        monkeypatch.setenv("ONCELOG_KEY", pair[1])
        with Client(fake.url, verify=ca) as client:
            assert client.healthy()


def test_the_command_line_trusts_whom_the_environment_names(house: RunningService, certificates: Certificates) -> None:
    with behind_tls(house, certificates.server()) as fake:
        run = [sys.executable, "-m", "oncelog_service", "topic", "list", "--url", fake.url]
        trusting = {**os.environ, "ONCELOG_CA": certificates.path("ca.pem")}
        assert subprocess.run(run, env=trusting, capture_output=True, timeout=PATIENCE, check=False).returncode == 0


def test_an_answer_that_drips_under_tls_ends_with_its_time(certificates: Certificates) -> None:
    ended = threading.Event()

    def drip(connection: ssl.SSLSocket) -> None:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(1_500):
            if ended.wait(0.02):
                return
            connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                plain, _ = listener.accept()
                with certificates.server().wrap_socket(plain, server_side=True) as connection:
                    drip(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, verify=certificates.path("ca.pem"), timeout=1.0, retry=0) as client:
            with pytest.raises(ConnectionFailed):
                client.topics()
            assert thread.is_alive()  # it would have gone on for half a minute
        ended.set()
        thread.join(PATIENCE)


# --- proxies


class Proxy:
    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []


@contextmanager
def tunnelling_proxy() -> Iterator[Proxy]:
    """One that connects where it is told to (CONNECT), as for https."""

    def talk(client: socket.socket) -> None:
        with client, suppress(OSError):
            head = client.recv(65_536).decode()
            proxy.asked.append(head.splitlines()[0])
            host, _, port = head.split()[1].rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                other = {client: server, server: client}
                while True:
                    for ready in select.select([client, server], [], [], PATIENCE)[0]:
                        data = ready.recv(65_536)
                        if not data:
                            return
                        other[ready].sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def test_a_proxy_is_gone_through_by_choice_only(
    house: RunningService, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = certificates.path("ca.pem")
    with tunnelling_proxy() as proxy, behind_tls(house, certificates.server()) as fake:
        for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with Client(fake.url, verify=ca) as client:
            assert client.healthy()
        assert proxy.asked == []
        with Client(fake.url, verify=ca, proxy=proxy.url) as client:
            assert client.healthy()
        monkeypatch.setenv("ONCELOG_PROXY", proxy.url)
        with Client(fake.url, verify=ca) as client:
            assert client.healthy()
        assert len(proxy.asked) == 2


def test_a_service_without_tls_is_asked_through_a_proxy_too(house: RunningService) -> None:
    def pass_on(request: Request) -> Answer:
        assert request.path.startswith(house.url)
        return forward(house.url, Request(request.method, request.path.removeprefix(house.url), request.headers, request.body))

    with fake_server(pass_on) as proxy, Client(house.url, proxy=proxy.url) as client:
        assert client.healthy()
        assert len(proxy.requests) == 1


def test_a_proxy_that_cannot_be_reached_has_sent_nothing(certificates: Certificates) -> None:
    for url in ("http://127.0.0.1:1", "https://127.0.0.1:1"):
        with Client(url, proxy=f"http://127.0.0.1:{free_port()}", retry=0) as client, pytest.raises(ConnectionFailed) as caught:
            client.create_topic("t")
        assert caught.value.definite
    for wrong in ("proxy:3128", "socks5://proxy", "http://", "http://proxy:x"):
        with pytest.raises(ValueError, match="proxy"):
            Client("http://x", proxy=wrong)


def test_encrypted_connections_are_not_shared_with_a_forked_child(house: RunningService, certificates: Certificates) -> None:
    with behind_tls(house, certificates.server(of_clients=True)) as fake:
        run("tls", fake.url, str(certificates.place))
