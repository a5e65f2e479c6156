"""Pages of other sites: what a browser may ask for them. The rules as a table, and then over real HTTP."""

from __future__ import annotations

import json
from itertools import cycle
from typing import Any

import pytest
import requests
from pydantic import ValidationError

from oncelog.errors import ForeignOrigin, HostNotAllowed, OncelogError, UnsupportedMediaType
from oncelog_service.config import Settings
from oncelog_service.rest.foreign import Names, check
from oncelog_service.rest.table import ROUTES
from tests.rest.talk import ANY, TIMEOUT, Topic, assert_problem, connected, read_answer
from tests.world.service import RunningService, running_service

LOCAL = b"127.0.0.1:7070"

HERE: dict[str, Any] = {}
NAMED = {"allowed_hosts": "Logs.example.org, logs:8080"}
ADVERTISED = {"advertised_url": "https://log-1.example.org:443/below"}
BEYOND = {"host": "0.0.0.0", "token": "t"}
BOTH = {**BEYOND, **NAMED}
AT_A_NAME = {"host": "db1.internal", "token": "t", "allowed_hosts": "x"}

HOSTS = [
    (HERE, "127.0.0.1:7070 127.0.0.1 127.0.0.1:1 127.1.2.3 localhost localhost:7070 LOCALHOST localhost. [::1]:7070 [::1]", True),
    (HERE, "evil.example evil.example:7070 127.0.0.1.evil.example localhost.evil.example 1.2.3.4 0.0.0.0:7070 [::2] logs", False),
    (HERE, "localhost@evil.example localhost:x localhost:7070:1 [localhost] ::1 127.0.0.1, x/localhost localhost/ 127.1", False),
    (NAMED, "logs.example.org logs.example.org:443 LOGS.example.org. logs logs:8080 logs:1 localhost 127.0.0.1", True),
    (NAMED, "example.org a.logs.example.org logs2 1.2.3.4", False),
    (ADVERTISED, "log-1.example.org log-1.example.org:7070 localhost", True),
    (ADVERTISED, "who@log-1.example.org log-2.example.org 1.2.3.4", False),
    (BEYOND, "1.2.3.4 1.2.3.4:7070 [2001:db8::1]:7070 localhost any.example any.example:1", True),
    (BOTH, "1.2.3.4 [2001:db8::1]:7070 localhost logs logs.example.org", True),
    (BOTH, "any.example 1.2.3.4.example", False),
    (AT_A_NAME, "db1.internal:7070 x", True),
    (AT_A_NAME, "db2.internal", False),
]


@pytest.mark.parametrize(("settings", "hosts", "known"), HOSTS)
def test_a_request_is_taken_only_under_a_name_of_the_service(settings: dict[str, Any], hosts: str, known: bool) -> None:
    names = Names.of(Settings(store="memory://", **settings))
    for host in [*hosts.split(" ")] * 2:  # the second answer comes from what is remembered
        assert judged("GET", {"host": host}, names) is (None if known else HostNotAllowed), host
    assert judged("GET", {"host": ""}) is HostNotAllowed, "an empty name is none"


OWN = {"host": "127.0.0.1:7070", "origin": "http://127.0.0.1:7070"}
READS, ALL = ("GET", "HEAD"), ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
FROM = {"host": "127.0.0.1:7070"}
FORM = "application/x-www-form-urlencoded"
TYPED = {"content-type": "application/json", "content-length": "2"}

TABLE: list[tuple[tuple[str, ...], dict[str, str], type[OncelogError] | None]] = [
    (ALL, {}, None),
    (ALL, FROM, None),
    (ALL, {**FROM, **TYPED}, None),
    # Origin
    (ALL, OWN, None),
    (ALL, {**OWN, "origin": "HTTPS://127.0.0.1:7070"}, None),
    (ALL, {**OWN, "sec-fetch-site": "cross-site"}, None),
    *(
        (ALL, {**FROM, "origin": origin}, ForeignOrigin)
        for origin in (
            "http://127.0.0.1:3000", "http://127.0.0.1", "http://localhost:7070", "https://evil.example", "null", "", "file://",
            "http://127.0.0.1:7070.evil.example", "http://127.0.0.1:70700", "x-http://127.0.0.1:7070", "127.0.0.1:7070",
            "http://127.0.0.1:7070/", "http://u@127.0.0.1:7070", "http://127.0.0.1:7070 http://evil.example",
        )
    ),
    (ALL, {**FROM, "origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-origin"}, ForeignOrigin),
    (ALL, {"origin": "http://"}, ForeignOrigin),
    (ALL, {"host": "evil.example:7070", "origin": "http://evil.example:7070"}, HostNotAllowed),
    (ALL, {"host": "evil.example:7070", "sec-fetch-site": "same-origin"}, HostNotAllowed),
    # Sec-Fetch-Site
    *((ALL, {**FROM, "sec-fetch-site": site}, None) for site in ("none", "same-origin")),
    *((ALL, {**FROM, "sec-fetch-site": site}, ForeignOrigin) for site in ("cross-site", "same-site", "", "Same-Origin", "x")),
    *(
        (methods, {**FROM, "sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "sec-fetch-dest": dest}, refused)
        for mode, dest, methods, refused in (
            ("navigate", "document", READS, None), ("navigate", "document", ALL[2:], ForeignOrigin),
            ("navigate", "iframe", ALL, ForeignOrigin), ("navigate", "object", ALL, ForeignOrigin),
            ("no-cors", "document", ALL, ForeignOrigin), ("no-cors", "script", ALL, ForeignOrigin),
        )
    ),
    # Content-Type
    *(
        (ALL[2:], {**FROM, "content-type": media, **length}, UnsupportedMediaType)
        for media in ("text/plain", "Text/Plain;charset=UTF-8", "multipart/form-data; boundary=x", FORM)
        for length in ({}, {"content-length": "0"}, {"content-length": "7"}, {"transfer-encoding": "chunked"})
    ),
    (READS, {**FROM, "content-type": "text/plain"}, None),
    *((ALL[2:], {**FROM, **TYPED, "content-encoding": as_}, UnsupportedMediaType) for as_ in ("br", "", "gzip, br")),
    *((ALL, {**FROM, **TYPED, "content-encoding": as_}, None) for as_ in ("Identity", "gzip", "X-Gzip")),
    (ALL[2:], {**FROM, "content-type": FORM, "content-encoding": "gzip"}, UnsupportedMediaType),
    (ALL[2:], {**FROM, "content-length": "20", "content-encoding": "gzip"}, UnsupportedMediaType),
    (ALL[2:], {**FROM, "content-length": "0"}, None),
    (ALL[2:], {**FROM, "content-length": "1"}, UnsupportedMediaType),
    (ALL[2:], {**FROM, "transfer-encoding": "chunked"}, UnsupportedMediaType),
]  # fmt: skip


@pytest.mark.parametrize(("methods", "headers", "refused"), TABLE)
def test_a_request_is_judged_by_what_a_browser_says_of_its_page(
    methods: tuple[str, ...], headers: dict[str, str], refused: type[OncelogError] | None
) -> None:
    names = Names.of(Settings(store="memory://"))
    assert [judged(method, headers, names) for method in methods] == [refused] * len(methods)


def test_what_is_put_may_say_nothing_of_its_body_where_cdaps_clients_are_served() -> None:
    names = Names.of(Settings(store="memory://", cdap_clients=True))
    for head in ({"content-length": "1"}, {"transfer-encoding": "chunked"}):
        refused = [method for method in ALL[2:] if judged(method, {**FROM, **head}, names) is not None]
        assert refused == [method for method in ALL[2:] if method != "PUT"]
        for site in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
            assert judged("PUT", {**FROM, **head, **site}, names) is ForeignOrigin
    assert judged("PUT", {**FROM, "content-length": "1", "content-type": "text/plain"}, names) is UnsupportedMediaType


def test_a_proxy_may_give_the_service_another_name_than_its_pages_have() -> None:
    asked = {"host": "127.0.0.1:7070"}
    for settings, own, foreign in (
        (NAMED, ("https://logs.example.org", "http://logs:8080"), ("http://logs", "https://logs.example.org:444")),
        (ADVERTISED, ("https://log-1.example.org",), ("https://log-1.example.org:7070", "https://who@log-1.example.org")),
        (BEYOND, (), ("https://logs.example.org",)),
    ):
        names = Names.of(Settings(store="memory://", **settings))
        assert [judged("POST", {**asked, "origin": each}, names) for each in own] == [None] * len(own)
        assert [judged("POST", {**asked, "origin": each}, names) for each in foreign] == [ForeignOrigin] * len(foreign)


@pytest.mark.parametrize("named", ["http://logs", "logs/x", "a b", "logs:x", "*", "[::1", "ü.example", "u@logs", ".logs"])
def test_what_is_no_name_of_a_host_is_refused_as_a_setting(named: str) -> None:
    with pytest.raises(ValidationError, match="not the name of a host"):
        Settings(store="memory://", allowed_hosts=f"fine.example,{named}")


def judged(method: str, headers: dict[str, str], names: Names | None = None) -> type[OncelogError] | None:
    given = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    try:
        check(method, given, names or Names.of(Settings(store="memory://")))
    except OncelogError as error:
        return type(error)
    return None


# --- over HTTP


def test_at_every_address_a_foreign_page_is_refused_before_anything_else(topic: Topic) -> None:
    foreign = cycle(
        [
            ({"Host": "evil.example"}, 421, "host_not_allowed"),
            ({"Origin": "http://evil.example"}, 403, "foreign_origin"),
            ({"Sec-Fetch-Site": "same-site"}, 403, "foreign_origin"),
            ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ]
    )
    for route in ROUTES:
        for method in ("POST" if route.method == "GET" else route.method, "OPTIONS"):
            headers, status, code = next(foreign)
            url = topic.base + route.path.format(**ANY)
            assert_problem(topic.session.request(method, url, data=b"", headers=headers, timeout=TIMEOUT), status, code)


def test_it_is_refused_before_its_token_is_looked_at() -> None:
    with running_service(token="s3cret") as service:
        for path in ("/v1/namespaces", "/healthz", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer s3cret"}):
                assert_problem(sent("GET", service.url + path, b"", {**headers, "Host": "x"}), 421, "host_not_allowed")
                assert_problem(sent("GET", service.url + path, b"", {**headers, "Origin": "null"}), 403, "foreign_origin")


def test_every_answer_is_no_part_of_another_site(shared: RunningService) -> None:
    for method, path in (
        ("GET", "/healthz"),
        ("GET", "/docs"),
        ("GET", "/nothing"),
        ("POST", "/v1/transactions"),
        ("OPTIONS", "/"),
    ):
        headers = sent(method, shared.url + path, b"", {}).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert policy.endswith("base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
        assert ("style-src 'sha256-" in policy) == (path == "/docs")
        assert policy.count("default-src") == 1
        assert not [name for name in headers if name.lower().startswith("access-control-")]


HEAD = b"GET /healthz HTTP/1.%d\r\nconnection: close\r\n"

RAW = [
    (HEAD % 1 + b"host: %b\r\n\r\n" % LOCAL, 200),
    (HEAD % 1 + b"\r\n", 400),
    (HEAD % 0 + b"\r\n", 200),  # no browser of this century, but many a load balancer
    (HEAD % 0 + b"host: evil.example\r\n\r\n", 421),
    (HEAD % 1 + b"host: %b\r\nhost: %b\r\n\r\n" % (LOCAL, LOCAL), 400),
    (HEAD % 1 + b"host: %b\r\nx: 1\r\nHost: evil.example\r\n\r\n" % LOCAL, 400),
    (HEAD % 1 + b"host: %b\r\norigin: http://%b\r\norigin: null\r\n\r\n" % (LOCAL, LOCAL), 400),
    (HEAD % 1 + b"host: %b\r\nsec-fetch-site: none\r\nsec-fetch-site: cross-site\r\n\r\n" % LOCAL, 400),
    (HEAD % 1 + b"host: %b\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n" % LOCAL, 400),
    (HEAD % 1 + b"host: %b\r\nx: 1\r\nx: 2\r\n\r\n" % LOCAL, 200),
    (b"GET http://evil.example/healthz HTTP/1.1\r\nconnection: close\r\nhost: %b\r\n\r\n" % LOCAL, 421),
    (b"GET http://localhost:1/healthz HTTP/1.1\r\nconnection: close\r\nhost: evil.example\r\n\r\n", 200),
    (b"GET http://[::1]:1/healthz HTTP/1.1\r\nconnection: close\r\nhost: evil.example\r\n\r\n", 200),
    (b"GET http://localhost/healthz HTTP/1.1\r\nconnection: close\r\n\r\n", 400),
    (HEAD % 1 + b"host: evil.example\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", 421),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "status"), RAW)
def test_a_request_names_its_host_once(shared: RunningService, raw: bytes, status: int) -> None:
    with connected(shared.url) as connection:
        connection.sendall(raw)
        answered, headers, body = read_answer(connection.makefile("rb"))
    assert answered == status, body
    assert headers["x-content-type-options"] == "nosniff"


def test_a_page_of_the_service_itself_may_ask(shared: RunningService) -> None:
    topic = Topic(shared.url, "own")
    headers = {"Origin": shared.url, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
    assert sent("POST", topic.url + "/publish", json.dumps({"messages": ["one"]}).encode(), headers).status_code == 200
    assert topic.payloads() == ["one"]


def sent(method: str, url: str, body: bytes, headers: dict[str, str]) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.request(method, url, data=body, headers=headers, timeout=TIMEOUT)
