"""TLS in the service: real handshakes, over bare sockets where no client library would do it; what a certificate's name is."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from oncelog import Client, Producer, Reader
from oncelog.errors import Unauthorized
from oncelog.wire.media import JSON
from oncelog_service import app
from oncelog_service.config import Settings
from oncelog_service.rest import certificates, protocol, tls
from oncelog_service.rest.bounds.pace import Pace
from oncelog_service.rest.certificates import name_in
from oncelog_service.rest.exchange import Admitted, Head
from tests.behaviours.cli.support import process, run
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT, connected, head, read_answer
from tests.world.certificates import DAY, Authority, Issued, encrypted
from tests.world.service import RunningService, running_service

pytestmark = pytest.mark.real

SHORT = 2.0
"""Seconds that a head may take, and its handshake."""
STATS = "/v1/namespaces/default/topics/t/stats"


@pytest.fixture(scope="module")
def issued(ca: Authority) -> Issued:
    return ca.service()


@pytest.fixture(scope="module")
def alice(ca: Authority) -> Issued:
    return ca.issue("alice", common_names=["alice"])


@pytest.fixture(scope="module")
def secured(issued: Issued) -> Iterator[RunningService]:
    with running_service(**issued.tls, header_timeout_seconds=SHORT) as service:
        yield service


@pytest.fixture(scope="module")
def asking(ca: Authority, issued: Issued) -> Iterator[RunningService]:
    """Asks clients for a certificate, and takes a token instead."""
    with running_service(**issued.tls, tls_client_ca=ca.file, token="s3cret") as service:
        with Client(service.url, token="s3cret", verify=ca.file) as client:
            client.create_topic("t")
            client.create_token("cert:alice", ["read:default/t"])
            client.create_token("cert:spiffe://example.org/loader", ["read:default/t"])
        yield service


@contextmanager
def under_tls(url: str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """A connection on which an end that was not said under TLS is an error."""
    asked = {"server_hostname": "127.0.0.1", "suppress_ragged_eofs": False}
    with connected(url) as plain, context.wrap_socket(plain, **asked) as connection:
        yield connection


def told(connection: socket.socket, request: bytes = head("GET", "/healthz")) -> tuple[int, dict[str, str], bytes]:
    connection.sendall(request)
    with connection.makefile("rb") as stream:
        return read_answer(stream)


def serial(connection: ssl.SSLSocket) -> str:
    found = connection.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


def serial_now(url: str, ca: Authority) -> str:
    with under_tls(url, ca.trusting()) as connection:
        return serial(connection)


def quiet(caplog: pytest.LogCaptureFixture) -> bool:
    """Nothing is wrong, but for requests that a slow machine took long for."""
    return [each for each in caplog.records if each.levelno > logging.INFO and each.name != "oncelog.requests"] == []


# --- everything works over it


def test_it_speaks_no_old_tls_and_http_1_alone(ca: Authority, secured: RunningService) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ca.trusting()
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with under_tls(secured.url, context) as connection:
            assert connection.version() == version.name.replace("_", ".")
            assert connection.selected_alpn_protocol() == "http/1.1"
            assert [told(connection)[0] for _ in range(3)] == [200] * 3
    old = ca.trusting()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError), under_tls(secured.url, old):
        pass
    certificates = secured.server.certificates
    assert certificates is not None
    assert certificates.context.minimum_version is ssl.TLSVersion.TLSv1_2, "also where OpenSSL itself would do it"


# --- who does not shake hands


def test_a_client_that_is_silent_or_slow_in_the_handshake_does_not_stay(
    ca: Authority, secured: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    hello = first_words(ca)
    begun = time.monotonic()
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(secured.url)) for _ in range(4)]
        for connection, words in zip(connections, (b"", hello[:1], hello[:20], hello), strict=True):
            connection.sendall(words)
        done = stack.enter_context(under_tls(secured.url, ca.trusting()))  # and says nothing then
        for connection in (*connections, done):
            while connection.recv(65_536):
                pass
    assert SHORT - 0.1 < time.monotonic() - begun < TIMEOUT / 2
    until(lambda: not any(each for each in secured.server._shared.connections))
    assert quiet(caplog)


def test_a_handshake_that_trickles_in_is_not_given_more_time(ca: Authority, secured: RunningService) -> None:
    hello, ended = first_words(ca), False
    with connected(secured.url) as connection:
        connection.settimeout(0.05)
        for at in range(len(hello) - 1):
            try:
                connection.sendall(hello[at : at + 1])
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
    assert ended
    assert at < 100


def first_words(ca: Authority) -> bytes:
    """With which a handshake begins."""
    come, to_go = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ca.trusting().wrap_bio(come, to_go, server_hostname="127.0.0.1").do_handshake()
    return to_go.read()


def test_plain_http_is_told_so_and_garbage_ends(secured: RunningService, caplog: pytest.LogCaptureFixture) -> None:
    # What is still on its way when the answer is given must not reset the connection, and take the answer along.
    for request in (head("GET", STATS), head("POST", STATS, "content-length: 8000000") + b"x" * 8_000_000):
        with connected(secured.url) as connection:
            status, headers, body = told(connection, request)
            assert (status, headers["content-type"], headers["connection"]) == (400, "application/problem+json", "close")
            problem = json.loads(body)
            assert (problem["code"], problem["definite"]) == ("invalid_request", True)
            assert "https://" in problem["detail"]
    for garbage in (b"\0" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 70_000, b"\x16GET / HTTP/1.1\r\n\r\n", b"\x80\x2e\x01\x03\x01"):
        with connected(secured.url) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            with suppress(ConnectionResetError):
                while part := connection.recv(65_536):
                    answer += part
            assert answer[:1] in (b"", b"\x15"), "nothing, or an alert"
    assert quiet(caplog)
    assert "Traceback" not in caplog.text


def test_a_connection_that_breaks_off_in_any_phase_leaves_no_error(
    ca: Authority, secured: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    hello = first_words(ca)
    for words in (b"", hello[:50], hello, head("GET", "/")):
        for how in (socket.SHUT_WR, socket.SHUT_RDWR):
            with connected(secured.url) as connection:
                connection.sendall(words)
                connection.shutdown(how)
    with connected(secured.url) as plain:
        connection = ca.trusting().wrap_socket(plain, server_hostname="127.0.0.1")
        connection.sendall(head("GET", "/healthz")[:10])
        os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + b"x" * 32)  # no record that the key made
        with suppress(OSError):
            while connection.recv(100):
                pass
        connection.close()
    until(lambda: not secured.server._shared.connections)
    assert quiet(caplog)
    assert told_over_tls(secured, ca) == 200


def told_over_tls(service: RunningService, ca: Authority) -> int:
    with under_tls(service.url, ca.trusting()) as connection:
        return told(connection)[0]


def test_an_answer_that_is_refused_before_the_handshake_is_heard_after_it(
    ca: Authority, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = protocol.HttpConnection.connection_made

    def refuses(self: protocol.HttpConnection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        self._transport.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        self._transport.close()
        assert self._transport.is_closing()

    with running_service(**issued.tls) as service:
        monkeypatch.setattr(protocol.HttpConnection, "connection_made", refuses)
        with under_tls(service.url, ca.trusting()) as connection, connection.makefile("rb") as stream:
            assert read_answer(stream)[0] == 503
            assert stream.read() == b"", "it ends, and says so under TLS"


def test_a_client_that_does_not_read_is_seen_and_ended(ca: Authority, issued: Issued) -> None:
    with running_service(**issued.tls) as service:
        service.server._shared.unread.pace = Pace(4 * 2**10, SHORT)
        with Client(service.url, verify=ca.file) as client:
            client.create_topic("unread")
            producer = Producer("unread", client=client)
            producer.send(b"x" * 7_000_000)
        path = "/v1/namespaces/default/topics/unread/poll"
        request = head("POST", path, f"content-type: {JSON}", "content-length: 2") + b"{}"
        with under_tls(service.url, ca.trusting()) as connection:
            connection.sendall(request * 4)
            assert connection.recv(1) == b"H"
            until(lambda: service.server.under_way == 0)
            until(lambda: not service.server._shared.connections)
        with under_tls(service.url, ca.trusting()) as connection:  # one that closes has the same time, and reads it all
            connection.sendall(head("POST", path, f"content-type: {JSON}", "content-length: 2", "connection: close") + b"{}")
            with connection.makefile("rb") as stream:
                assert len(read_answer(stream)[2]) > 6_000_000
                assert stream.read() == b""


# --- who the client is


def asked_with(service: RunningService, ca: Authority, cert: Issued | None, token: str | None = None) -> int:
    session = requests.Session()
    session.trust_env = False
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    pair = None if cert is None else cert.pair
    return session.get(service.url + STATS, verify=ca.file, cert=pair, headers=headers, timeout=TIMEOUT).status_code


def test_a_certificate_or_the_token_is_required(ca: Authority, asking: RunningService, alice: Issued) -> None:
    assert asked_with(asking, ca, None) == 401
    assert asked_with(asking, ca, None, "wrong") == 401
    assert asked_with(asking, ca, None, "s3cret") == 200
    assert asked_with(asking, ca, alice) == 200


def test_with_a_client_ca_nobody_is_let_in_who_shows_nothing_even_before_anything_was_granted(
    ca: Authority, issued: Issued, alice: Issued, tmp_path: Path
) -> None:
    store = f"leveldb://{tmp_path}/data"
    with running_service(store, **issued.tls, tls_client_ca=ca.file) as service:
        for cert in (None, alice):
            assert asked_with(service, ca, cert) == 401
    with running_service(store) as unlocked, Client(unlocked.url) as client:
        first = client.create_token("ada", ["admin"])
        with Client(unlocked.url, token=first.secret) as ada:
            ada.create_token("cert:alice", ["admin"])
    with running_service(store, **issued.tls, tls_client_ca=ca.file) as service:
        for token in (None, "x", "None", ""):
            assert asked_with(service, ca, None, token) == 401
        with Client(service.url, verify=ca.file, cert=alice.pair) as client:
            assert client.topics() == []
        assert requests.get(service.url + "/healthz", verify=ca.file, timeout=TIMEOUT).status_code == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_that_is_shown_must_be_good(
    ca: Authority, asking: RunningService, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    of_others = Authority(ca.folder, "strangers")
    for bad in (
        of_others.issue("stranger", common_names=["alice"]),
        ca.issue("expired", common_names=["alice"], ends=timedelta(hours=-1)),
        ca.issue("for_servers", common_names=["alice"], server_only=True),
    ):
        context = ca.trusting()
        context.minimum_version = context.maximum_version = version
        context.load_cert_chain(*bad)
        with pytest.raises(ssl.SSLError), under_tls(asking.url, context) as connection:
            told(connection, head("GET", STATS, "authorization: Bearer s3cret"))  # in 1.3 it is told only now
    assert quiet(caplog)


def test_the_name_in_a_certificate_reaches_each_request_of_its_connection_alone(
    ca: Authority, asking: RunningService, alice: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    admit = asking.server._shared.application.admit

    def noted(head: Head, address: object = None) -> Admitted:
        seen.append(head.certificate)
        return admit(head, address)

    monkeypatch.setattr(asking.server._shared.application, "admit", noted)
    spiffe = ca.issue("spiffe", common_names=["x"], dns=["y"], uris=["spiffe://example.org/loader"])
    contexts = [ca.trusting() for _ in range(3)]
    for context, each in zip(contexts, (alice, spiffe), strict=False):
        context.load_cert_chain(*each)
    with ExitStack() as stack:
        connections = [stack.enter_context(under_tls(asking.url, each)) for each in contexts]
        for connection in (*connections, *reversed(connections)):
            told(connection, head("GET", STATS, "certificate: mallory"))
    names = ["alice", "spiffe://example.org/loader", None]
    assert seen == [*names, *reversed(names)]


def test_a_certificate_of_several_names_is_nobodys_and_its_client_is_told(ca: Authority, asking: RunningService) -> None:
    several = ca.issue("several", dns=["a.example", "b.example"])
    for token in (None, "s3cret"):
        with (
            Client(asking.url, verify=ca.file, cert=several.pair, token=token, retry=0) as client,
            pytest.raises(Unauthorized, match="2 DNS names"),
        ):
            client.create_topic("never")


def certificate(*names: tuple[str, str], common: tuple[str, ...] = (), days: int = 1) -> dict[str, Any]:
    """As Python tells of one that was verified."""
    ends = time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + days * DAY.total_seconds()))
    return {"subject": tuple((("commonName", each),) for each in common), "subjectAltName": names, "notAfter": ends}


def test_a_name_is_the_uri_else_the_dns_name_else_the_common_name() -> None:
    both = (("DNS", "Loader.example"), ("URI", "spiffe://e/l"), ("IP Address", "10.0.0.1"), ("email", "a@b"))
    assert name_in(certificate(*both, common=("c",))) == "spiffe://e/l"
    assert name_in(certificate(both[0], both[2], common=("c", "d"))) == "loader.example"
    assert name_in(certificate(both[0], ("DNS", "loader.EXAMPLE"))) == "loader.example"
    assert name_in(certificate(both[2], both[3], common=("c",))) == "c"


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (certificate(("URI", "a:b"), ("URI", "a:c"), ("DNS", "d")), "2 URIs"),
        (certificate(("DNS", "d"), ("DNS", "e"), common=("c",)), "2 DNS names"),
        (certificate(common=("c", "d")), "2 common names"),
        (certificate(("IP Address", "10.0.0.1")), "no URI"),
        (certificate(common=("a b",)), "1 to 200"),
        (certificate(common=("a\nb",)), "1 to 200"),
        (certificate(common=("ä",)), "1 to 200"),
        (certificate(common=("",)), "1 to 200"),
        (certificate(("DNS", "*.example")), "1 to 200"),
        (certificate(common=("a" * 201,)), "1 to 200"),
    ],
)
def test_a_certificate_that_does_not_say_who_its_owner_is_has_no_name(shown: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        name_in(shown)


# --- other files


def test_a_new_certificate_is_used_by_the_next_handshake_and_the_old_one_until_both_files_are_there(
    ca: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.05)
    live, new = ca.service(f"live-{tmp_path.name}"), ca.service("new")
    with running_service(**live.tls) as service, under_tls(service.url, ca.trusting()) as before:
        first = serial(before)
        Path(live.certificate).write_bytes(Path(new.certificate).read_bytes())
        until(lambda: "another certificate" in caplog.text, "a pair that does not match is named in the log")
        assert serial_now(service.url, ca) == first
        Path(live.key).write_bytes(Path(new.key).read_bytes())
        until(lambda: serial_now(service.url, ca) != first, "the new certificate is shown")
        assert told(before)[0] == 200, "connections go on"
        second = serial_now(service.url, ca)
        for wrong in (b"", b"nonsense", Path(new.key).read_bytes()):
            caplog.clear()
            Path(live.certificate).write_bytes(wrong)
            until(lambda: "old ones are used on" in caplog.text, "a bad file is named in the log")
            assert serial_now(service.url, ca) == second
        caplog.clear()
        Path(live.certificate).unlink()
        until(lambda: "No such file" in caplog.text, "a file that is gone is named in the log")
        third = ca.service("third")
        third.put_in_place_of(live)
        until(lambda: serial_now(service.url, ca) not in (first, second), "it is there again")
        assert service.service.background.failures == 0


def test_another_ca_of_clients_is_asked_by_the_next_handshake(ca: Authority, issued: Issued, tmp_path: Path) -> None:
    new_ca = Authority(tmp_path, "new-ca")
    old, new = ca.issue("old-client", common_names=["old"]), new_ca.issue("new-client", common_names=["new"])
    file = tmp_path / "clients.pem"
    file.write_bytes(Path(ca.file).read_bytes())

    def verified(cert: Issued) -> bool:
        try:
            return asked_with(service, ca, cert) == 401  # nothing is granted to it
        except requests.ConnectionError:
            return False

    with running_service(**issued.tls, tls_client_ca=str(file)) as service:
        assert (verified(old), verified(new)) == (True, False)
        file.write_bytes(Path(new_ca.file).read_bytes())
        until(lambda: verified(new), "the new CA is asked")
        assert not verified(old)


def test_a_signal_has_the_files_read_at_once_under_the_event_loop_of_operators(ca: Authority, tmp_path: Path) -> None:
    live = ca.service(f"signalled-{tmp_path.name}")
    options = ("--tls-certificate", live.certificate, "--tls-key", live.key)
    with process("serve", "--port", "0", "--store", "memory://", "--json", *options, cwd=tmp_path) as service:
        assert service.stdout is not None
        assert service.stderr is not None
        url = json.loads(service.stdout.readline())["url"]
        assert url.startswith("https://127.0.0.1:")
        first = serial_now(url, ca)
        service.send_signal(signal.SIGHUP)
        log = b""
        while b"read anew" not in log:
            log += service.stderr.readline()
        assert serial_now(url, ca) == first
        ca.service("other").put_in_place_of(live)
        until(lambda: serial_now(url, ca) != first)
        with Client(url, verify=ca.file) as client:
            client.create_topic("t")
            with Producer("t", client=client) as producer:
                producer.send(b"x" * 1_000_000)
            with Reader("t", client=client, timeout=0) as reader:
                assert len(next(iter(reader)).payload) == 1_000_000
        with connected(url) as plain:
            assert told(plain)[0] == 400
        service.terminate()
        out, err = service.communicate(timeout=PATIENCE)
    assert (service.returncode, out) == (0, b"")
    assert b"Traceback" not in err


# --- how it begins


def test_files_that_are_of_no_use_are_one_sentence(ca: Authority, issued: Issued, alice: Issued, tmp_path: Path) -> None:
    (tmp_path / "nonsense.pem").write_text("nonsense")
    locked = encrypted(issued.key, str(tmp_path / "locked.key"))
    missing, nonsense = str(tmp_path / "missing.pem"), str(tmp_path / "nonsense.pem")
    certificate, key, client_ca = "--tls-certificate", "--tls-key", "--tls-client-ca"
    for options, says in (
        ((certificate, missing), "No such file"),
        ((certificate, nonsense, key, issued.key), "not in PEM"),
        ((certificate, issued.certificate), "not in PEM"),
        ((certificate, issued.certificate, key, alice.key), "another certificate"),
        ((certificate, issued.certificate, key, locked), "encrypted"),
        ((certificate, issued.certificate, key, issued.key, client_ca, nonsense), "CA of clients"),
        ((certificate, issued.certificate, key, issued.key, client_ca, missing), "CA of clients"),
        ((key, issued.key), "only beside a certificate"),
        ((client_ca, ca.file), "only beside a certificate"),
    ):
        result = run("serve", "--port", "0", "--store", "memory://", *options, env={"COLUMNS": "500"})
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert says in result.stderr
        assert "Traceback" not in result.stderr


def test_others_are_let_in_by_a_token_or_a_certificate_and_without_tls_a_warning_says_what_they_read(
    ca: Authority, issued: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    def begins(**settings: Any) -> str:
        caplog.clear()

        async def begin() -> None:
            serving = asyncio.current_task()
            assert serving is not None
            await app.serve(Settings(host="0.0.0.0", port=0, store="memory://", **settings), lambda _: serving.cancel(), {})

        with suppress(asyncio.CancelledError):
            asyncio.run(begin())
        return caplog.text

    with pytest.raises(ValueError, match="lets others in"):
        begins()
    with pytest.raises(ValueError, match="lets others in"):
        begins(**issued.tls)
    warned = begins(token="s3cret")
    assert "without TLS" in warned
    assert "tokens, messages" in warned
    assert "s3cret" not in warned
    assert "without TLS" not in begins(**issued.tls, token="s3cret")
    assert "without TLS" not in begins(**issued.tls, tls_client_ca=ca.file, token="s3cret")
    proxy = begins(token="s3cret", advertised_url="https://logs.example.org")
    assert "without TLS" not in proxy, "a proxy speaks it"
    assert "without TLS" in begins(token="s3cret", advertised_url="http://logs.example.org")
    with pytest.raises(ValueError, match="none is granted anything"):
        begins(**issued.tls, tls_client_ca=ca.file)
    assert Settings(**issued.tls).url_of("::1", 7) == "https://[::1]:7"
    assert urlsplit(Settings().url_of("127.0.0.1", 7)).scheme == "http"


# --- who is refused reads why


def test_what_is_refused_while_it_is_still_sent_is_told_so(ca: Authority, issued: Issued) -> None:
    with running_service(**issued.tls, max_request_bytes=10_000) as service:
        for length in ("content-length: 8000000", "transfer-encoding: chunked"):
            body = b"x" * 8_000_000 if "length" in length else b"8000\r\n" + b"x" * 0x8000 + b"\r\n" + b"x" * 8_000_000
            with under_tls(service.url, ca.trusting()) as connection:
                path = "/v1/namespaces/default/topics/t/publish"
                status, _, answer = told(connection, head("POST", path, length, f"content-type: {JSON}") + body)
                assert (status, json.loads(answer)["code"]) == (413, "request_too_large")
        until(lambda: not service.server._shared.connections)


def test_who_finds_no_place_is_told_so_under_tls_and_nobody_stays_for_not_listening(
    ca: Authority, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_FAREWELL_SECONDS", 3_600)  # the time of those without a place is held above
    with running_service(**issued.tls, max_connections_per_address=2) as service, ExitStack() as stack:
        path = "/v1/namespaces/default/topics/t/poll"
        with Client(service.url, verify=ca.file) as client:
            client.create_topic("t")
        until(lambda: not service.server._shared.connections)
        body = b'{"wait": 60000}'
        for _ in range(2):  # something is under way on both, so neither gives way
            holder = stack.enter_context(under_tls(service.url, ca.trusting()))
            holder.sendall(head("POST", path, f"content-type: {JSON}", f"content-length: {len(body)}") + body)
        service.arrived(2)
        silent = stack.enter_context(connected(service.url))
        with under_tls(service.url, ca.trusting()) as connection:
            status, headers, answer = told(connection)
            assert (status, json.loads(answer)["code"]) == (503, "overloaded")
            assert "retry-after" in headers
        assert silent.recv(1) == b"", "it has not even begun, and its time is over"
        until(lambda: len(service.server._shared.connections) == 2)
