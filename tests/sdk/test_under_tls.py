"""Clients of a service that speaks TLS: SDK, its asyncio twin, command line, other instances; what they are told if it fails."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader, Client, Consumer, Producer, Reader
from oncelog.errors import (
    CertificateRefused,
    ConnectionFailed,
    InvalidRequest,
    NotServedHere,
    OncelogError,
    StorageUnavailable,
)
from oncelog.http.trust import Trust
from oncelog_service.access.access import Access
from oncelog_service.access.grants import EVERYBODY
from oncelog_service.clock import SystemClock
from oncelog_service.rest.forward import Forwarder
from oncelog_service.transactions.remote import RemoteTransactions
from tests.behaviours.cli.support import run, value
from tests.sdk.fakes import Answer, fake_server
from tests.world.certificates import Authority, Issued
from tests.world.service import RunningService, ServiceProcess, running_service

pytestmark = pytest.mark.usefixtures("no_trust_of_the_machine")


@pytest.fixture(scope="module")
def stranger(ca: Authority) -> Authority:
    return Authority(ca.folder, "stranger")


@pytest.fixture(scope="module")
def alice(ca: Authority) -> Issued:
    return ca.issue("alice", common_names=["alice"])


@pytest.fixture(scope="module")
def asking(ca: Authority) -> Iterator[RunningService]:
    """Asks clients for a certificate; alice may do everything."""
    with running_service(**ca.service().tls, tls_client_ca=ca.file, token="s3cret") as service:
        with Client(service.url, token="s3cret", verify=ca.file) as client:
            client.create_token("cert:alice", ["admin"])
        yield service


# --- everybody gets there


def test_sdk_and_twin_publish_and_read_by_certificate(ca: Authority, asking: RunningService, alice: Issued) -> None:
    trust: dict[str, Any] = {"url": asking.url, "verify": ca.file, "cert": alice.pair}
    with Client(**trust) as client:
        client.create_topic("sdk")
        with client.transaction() as transaction:
            transaction.send("sdk", b"in a transaction")
        with client.atomic() as batch:
            batch.send("sdk", b"together")
    with Producer("sdk", name="p", **trust) as producer:
        producer.send(b"alone")
    whole = [b"in a transaction", b"together", b"alone"]
    with Reader("sdk", timeout=0, **trust) as reader:
        assert [each.payload for each in reader] == whole
    with Consumer("sdk", "s", start="earliest", **trust) as consumer:
        assert consumer.read(timeout=5)[0].payload == whole[0]

    async def twin() -> list[bytes]:
        async with AsyncProducer("sdk", name="q", **trust) as producer:
            await producer.send(b"awaited")
        async with AsyncConsumer("sdk", "t", start="earliest", **trust) as consumer:
            assert (await consumer.read(timeout=5))[0].payload == whole[0]
        async with AsyncClient(**trust) as client, AsyncReader("sdk", client=client, timeout=0) as reader:
            return [each.payload async for each in reader]

    assert asyncio.run(twin()) == [*whole, b"awaited"]


def test_the_command_line_takes_options_and_the_environment(
    ca: Authority, asking: RunningService, alice: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = asking.url
    options = ("--ca", ca.file, "--cert", alice.certificate, "--cert-key", alice.key)
    assert run("topic", "create", "cli", *options, url=url).exit_code == 0
    both = ca.folder / "both.pem"
    both.write_bytes(Path(alice.certificate).read_bytes() + Path(alice.key).read_bytes())
    environment = {"ONCELOG_CA": ca.file, "ONCELOG_CERT": alice.certificate, "ONCELOG_KEY": alice.key}
    assert run("publish", "cli", "one", url=url, env=environment).exit_code == 0
    wrong_key = environment | {"ONCELOG_KEY": "/nowhere"}
    found = run("read", "cli", "--json", "--ca", ca.file, "--cert", str(both), url=url, env=wrong_key)
    assert value(found)["payload"] == "one"
    refused = run("topic", "list", "--json", url=url, env={"ONCELOG_TOKEN": "s3cret"})
    problem = json.loads(refused.stderr)
    assert (refused.exit_code, problem["code"], problem["definite"]) == (5, "certificate_refused", True)
    assert "name the CA that signed it" in problem["detail"]
    for bad, says in (
        (("--ca", "/nowhere"), "to trust cannot be read"),
        (("--ca", ca.file, "--cert", "/nowhere"), "certificate cannot be read"),
        (("--cert-key", alice.key), "only with its certificate"),
    ):
        ended = run("topic", "list", *bad, url=url, env={"COLUMNS": "500"})
        assert ended.exit_code == 2
        assert says in ended.stderr
        assert "Traceback" not in ended.output


def test_another_instance_is_asked_over_tls(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access("s3cret", lambda: 0, locked=True)

    async def status(service: RunningService) -> int:
        target = "/v1/namespaces/default/topics"
        headers = {b"authorization": b"Bearer s3cret"}
        return (await Forwarder(access, 10).send(service.url, "GET", target, headers, b"", EVERYBODY)).status

    with running_service(**ca.service("instance").tls, token="s3cret") as service:
        with pytest.raises(StorageUnavailable, match="is not trusted"):
            asyncio.run(status(service))
        monkeypatch.setenv("ONCELOG_CA", ca.file)
        assert asyncio.run(status(service)) == 200


@pytest.mark.real
def test_a_transaction_service_alone_speaks_tls(ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = ca.service("alone")
    monkeypatch.setenv("ONCELOG_CA", ca.file)
    there = ServiceProcess(tmp_path / "transactions", "tx-serve", **certificate.tls, ca=ca.file, token="s3cret")
    with there:
        assert there.url.startswith("https://")
        with running_service(transactions_url=there.url, transactions_token="s3cret") as service, Client(service.url) as client:
            client.create_topic("t")
            with client.transaction() as transaction:
                transaction.send("t", b"m")
            with Reader("t", client=client, timeout=0) as reader:
                assert [each.payload for each in reader] == [b"m"]
    monkeypatch.delenv("ONCELOG_CA")


def test_a_transaction_service_that_is_not_trusted_is_not_available(ca: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async def ask(url: str) -> None:
        transactions = RemoteTransactions(url, "s3cret", "here", SystemClock())
        try:
            with pytest.raises(OncelogError) as caught:
                await transactions.show(1)
            assert (caught.value.code, caught.value.definite) == ("transactions_unavailable", True)
        finally:
            await transactions.close()

    with running_service(**ca.service("untrusted").tls, token="s3cret") as service:
        asyncio.run(ask(service.url))
    assert "name the CA that signed it" in caplog.text


# --- and if not, it is told why


def failing(call: Callable[[], object], kind: type[OncelogError], says: str) -> None:
    """It fails so, for certain."""
    with pytest.raises(kind, match=says) as caught:
        call()
    assert caught.value.definite
    assert "\n" not in caught.value.detail


def creating(url: str, **trust: Any) -> Callable[[], object]:
    def create() -> None:
        with Client(url, retry=0, **trust) as client:
            client.create_topic("never")

    return create


def awaiting(url: str, **trust: Any) -> Callable[[], object]:
    async def create() -> None:
        async with AsyncClient(url, retry=0, **trust) as client:
            await client.create_topic("never")

    return lambda: asyncio.run(create())


@pytest.mark.parametrize("call", [creating, awaiting])
def test_why_a_service_is_not_trusted_is_one_sentence(
    ca: Authority, stranger: Authority, call: Callable[..., Callable[[], object]]
) -> None:
    for certificate, url, says in (
        (ca.service("expired", ends=timedelta(hours=-1)), "127.0.0.1", "is out of its time.*expired"),
        (ca.issue("elsewhere", dns=["elsewhere.example"]), "127.0.0.1", "is for other hosts.*127.0.0.1"),
        (ca.issue("by_address", ips=["127.0.0.1"]), "localhost", "is for other hosts.*localhost"),
        (stranger.service("strange"), "127.0.0.1", "is not trusted; name the CA"),
    ):
        with running_service(**certificate.tls, token="s3cret") as service:
            there = service.url.replace("127.0.0.1", url)
            failing(call(there, verify=ca.file, token="s3cret"), CertificateRefused, says)
            assert service.server.under_way == 0


@pytest.mark.parametrize("call", [creating, awaiting])
def test_a_plain_service_and_one_under_tls_are_not_mistaken_for_each_other(
    ca: Authority, asking: RunningService, running: RunningService, call: Callable[..., Callable[[], object]]
) -> None:
    failing(call(running.url.replace("http:", "https:"), verify=ca.file), ConnectionFailed, "does not speak TLS.*http://")
    failing(call(asking.url.replace("https:", "http:"), token="s3cret"), InvalidRequest, "speaks TLS.*https://")


@pytest.mark.parametrize("call", [creating, awaiting])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_service_that_does_not_take_the_certificate_of_a_client_has_done_nothing(
    ca: Authority,
    stranger: Authority,
    asking: RunningService,
    version: ssl.TLSVersion,
    call: Callable[..., Callable[[], object]],
) -> None:
    for cert in (
        stranger.issue("alice-strange", common_names=["alice"]),
        ca.issue("alice-expired", common_names=["alice"], ends=timedelta(hours=-1)),
    ):
        context = ca.trusting()
        context.minimum_version = context.maximum_version = version
        failing(call(asking.url, verify=context, cert=cert.pair, token="s3cret"), CertificateRefused, "of this client")
    with Client(asking.url, verify=ca.file, token="s3cret") as client:
        assert "never" not in client.topics()


def test_an_alert_behind_an_answer_says_nothing_about_what_was_done(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service(**ca.service("later").tls) as service, Client(service.url, verify=ca.file, retry=0) as client:
        client.topics()  # the connection is kept
        error = ssl.SSLError(1, "alert")
        error.reason = "TLSV1_ALERT_UNKNOWN_CA"

        async def breaks(*_: object) -> bytes:
            raise error

        monkeypatch.setattr("oncelog.http.sockets.Tls.receive", breaks)
        with pytest.raises(ConnectionFailed) as caught:
            client.create_topic("perhaps")
        assert not caught.value.definite


# --- files that are renewed


def test_a_client_shows_its_new_certificate_and_keeps_the_old_one_while_the_new_is_of_no_use(
    ca: Authority, asking: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    live = ca.issue("live", common_names=["alice"], ends=timedelta(seconds=-1))  # the service refuses it
    trust = Trust.chosen(ca.file, live.pair)
    with Client(asking.url, verify=ca.file, cert=live.pair, retry=0) as client:
        with pytest.raises(CertificateRefused):
            client.topics()
        ca.issue("renewed", common_names=["alice"]).put_in_place_of(live)
        client.topics()
    first = trust.context
    assert trust.context is first, "they are read once"
    Path(live.certificate).write_text("half a cert")
    assert trust.context is first
    assert "used on" in caplog.text
    ca.issue("again", common_names=["alice"]).put_in_place_of(live)
    assert trust.context is not first


def test_a_client_trusts_the_new_ca_that_was_put_in_the_place_of_the_old(ca: Authority, tmp_path: Path) -> None:
    file = tmp_path / "trusted.pem"
    new = Authority(tmp_path, "new")
    file.write_bytes(Path(ca.file).read_bytes())
    with running_service(**new.service().tls) as service, Client(service.url, verify=file, retry=0) as client:
        with pytest.raises(CertificateRefused):
            client.topics()
        file.write_bytes(Path(new.file).read_bytes())
        assert client.topics() == []


def test_a_token_does_not_leave_tls_whichever_instance_is_named(
    ca: Authority, asking: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_server(lambda _: Answer(200, b"{}", {"content-type": "application/json"})) as bare:

        async def named(*_: object) -> None:
            raise NotServedHere(url=bare.url)

        monkeypatch.setattr(asking.service.opening.topics.changes, "create", named)
        with Client(asking.url, token="s3cret", verify=ca.file, retry=0) as client:
            for _ in range(2):
                client.create_topic("t")
        assert [request.headers.get("authorization") for request in bare.requests] == [None, None]
