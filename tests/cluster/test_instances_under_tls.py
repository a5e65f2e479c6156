"""Instances that speak TLS, with a CA of their own: they ask each other, and whoever shows a certificate is nobody else there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Client, Producer, Reader
from tests.cluster.instances import LEASE_SECONDS, Instances, instances, until
from tests.patience import PATIENCE
from tests.postgres import postgres_server
from tests.world.certificates import Authority, Issued

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def secured(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    own = ca.service()
    told = {**own.tls, "tls_client_ca": ca.file, "ca": ca.file, "cert": own.certificate, "key": own.key, "token": "s3cret"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCELOG_CA", ca.file)
        folder = tmp_path_factory.mktemp("secured")
        with instances(postgres_server().fresh_schema(), folder, 2, lease_seconds=LEASE_SECONDS, **told) as found:
            yield found


def test_they_find_each_other_forward_redirect_and_hand_over(ca: Authority, secured: Instances) -> None:
    owner, other = secured.all
    with secured.client(retry=PATIENCE) as client:
        assert {each.url for each in client.cluster().instances} == {owner.url, other.url}
        assert owner.url.startswith("https://")
        topic = secured.topic_at(owner, client)
        bearer = {"authorization": "Bearer s3cret"}
        path = f"/v1/namespaces/default/topics/{topic}"
        sent = other.ask("POST", f"{path}/publish", json={"messages": ["forwarded"]}, proxy=True, headers=bearer)
        assert sent.status_code == 200, sent.text
        redirected = other.ask("GET", f"{path}/stats", headers=bearer)
        assert (redirected.status_code, redirected.headers["location"]) == (307, f"{owner.url}{path}/stats")
        with Client(other.url, token="s3cret", retry=PATIENCE) as there:
            with Producer(topic, client=there) as producer:
                producer.send(b"redirected")
            with there.transaction() as transaction:  # one of the two has the transactions; both settle it
                transaction.send(topic, b"in a transaction")
        with Reader(topic, client=client, timeout=0) as reader:
            assert [each.payload for each in reader] == [b"forwarded", b"redirected", b"in a transaction"]


def test_who_shows_a_certificate_has_its_own_rights_at_an_instance_that_passes_the_request_on(
    ca: Authority, secured: Instances
) -> None:
    owner, other = secured.all
    alice = ca.issue("alice", uris=["spiffe://example.org/alice"])
    with secured.client(retry=PATIENCE) as client:
        topic = secured.topic_at(owner, client)
        client.create_token("cert:spiffe://example.org/alice", [f"read:default/{topic}"])

    def asked(what: str, cert: Issued) -> int:
        path, body = f"/v1/namespaces/default/topics/{topic}/{what}", {"messages": ["m"]} if what == "publish" else {}
        return other.ask("POST", path, json=body, proxy=True, cert=cert.pair).status_code

    until(lambda: asked("poll", alice) == 200)  # both instances have heard of it
    assert asked("publish", alice) == 403
    assert asked("poll", ca.issue("bob", common_names=["bob"])) == 401
