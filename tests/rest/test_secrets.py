"""Secrets: where they come from, and that nothing that people or programs read shows one.

A marker is planted wherever a secret may be, and looked for in whatever comes out.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oncelog import AsyncClient, Client, OncelogError, Producer
from oncelog.http.connections import Connections
from oncelog.http.credentials import Secret, authorization, checked, chosen_token, secret_in, shown
from oncelog.http.exchange import request_bytes
from oncelog.http.sockets import Blocking
from oncelog.http.trust import Trust
from oncelog.wire.requests import PublishRequest
from oncelog_service.app import build_service
from oncelog_service.config import Settings, TransactionServiceSettings
from oncelog_service.rest.exchange import Head
from oncelog_service.rest.forward import Forwarder
from oncelog_service.storage.open import raw_opener, store_opener
from oncelog_service.storage.port import StoreError
from tests.behaviours.cli.support import run
from tests.patience import PATIENCE
from tests.rest.talk import TIMEOUT, Topic
from tests.world.service import RunningService, running_service

MARK = "s3cr3t0fmine"
TOKEN = f"{MARK}-schlüssel-€"
BY_URL = f"http://ada:{MARK}@127.0.0.1:1"
STORE = f"postgresql+psycopg://ada:{MARK}@127.0.0.1:1/db?application_name={MARK}"


def assert_hidden(*texts: object) -> None:
    for text in map(str, texts):
        for form in (MARK, MARK.encode().hex(), base64.b64encode(f"ada:{MARK}".encode()).decode().rstrip("=")):
            assert form not in text, text
    assert texts


# --- where they come from


def test_a_token_comes_from_what_is_given_or_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(f"{TOKEN}\r\n".encode())
    named = {"ONCELOG_TOKEN_FILE": str(file)}
    assert chosen_token(None, {}) is None
    assert chosen_token(None, named) == TOKEN
    assert chosen_token(None, {"ONCELOG_TOKEN": "other\n", **named}) == "other"
    assert chosen_token("given\n", {"ONCELOG_TOKEN": "other", **named}) == "given"
    assert chosen_token("", named) == TOKEN
    assert chosen_token(None, {"ONCELOG_TOKEN_FILE": ""}) is None
    assert pickle.loads(pickle.dumps(chosen_token(None, named))) == TOKEN


@pytest.mark.parametrize("held", [b"", b"\n", f"{MARK}\nanother".encode(), f"{MARK}\0".encode(), MARK.encode() + b"\xff", None])
def test_a_file_that_holds_no_secret_is_refused_and_not_shown(tmp_path: Path, held: bytes | None) -> None:
    file = tmp_path / "token"
    if held is not None:
        file.write_bytes(held)
    environment = {"ONCELOG_TOKEN_FILE": str(file)}
    calls: list[Callable[[], object]] = [
        lambda: secret_in(file, "X"),
        lambda: chosen_token(None, environment),
        lambda: Settings(store="memory://", token_file=file),
        lambda: Settings(store_file=file),
        lambda: Settings(store="memory://", transactions_token_file=file),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=str(file)) as caught:
            call()
        assert_hidden(caught.value, *told(caught.value, with_locals=False))


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1), st.sampled_from(["", "\n", "\r\n"]))
def test_any_line_of_text_is_a_token_and_arrives_as_it_is(text: str, end: str) -> None:
    token = checked(text + end, "x")
    assert token == text
    head = request_bytes("GET", "h", "/", {"authorization": authorization(token)}, None)
    assert f"\r\nauthorization: Bearer {text}\r\n".encode() in head


def test_settings_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("token", TOKEN), ("transactions_token", "of another"), ("store", STORE)):
        (tmp_path / name).write_text(value + "\n")
        monkeypatch.setenv(f"ONCELOG_{name.upper()}_FILE", str(tmp_path / name))
    for kind in (Settings, TransactionServiceSettings):
        settings = kind()
        assert (settings.token, settings.transactions_token, settings.store) == (TOKEN, "of another", STORE)
        assert kind(token="given\n").token == "given"
        assert_hidden(settings, repr(settings), settings.model_dump_json())
    monkeypatch.setenv("ONCELOG_TOKEN", "of the environment\n")
    assert Settings().token == "of the environment"


def test_a_token_in_utf_8_works_from_file_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    with running_service(token_file=tmp_path / "token") as service:
        monkeypatch.setenv("ONCELOG_URL", service.url)
        with Client() as nobody, pytest.raises(OncelogError) as refused:
            nobody.topics()
        assert refused.value.code == "unauthorized"
        monkeypatch.setenv("ONCELOG_TOKEN_FILE", str(tmp_path / "token"))
        with Client() as client:
            client.create_topic("t")
            with Producer("t", codec="str", name="p") as producer:
                producer.send("one")
            assert client.topics() == ["t"]
        for scheme in ("Bearer", "bearer", "BEARER"):
            headers = {"Authorization": f"{scheme} {TOKEN}".encode()}
            assert requests.get(service.url + "/v1/namespaces", headers=headers, timeout=TIMEOUT).json() == ["default"]
        assert run("topic", "list", "--json").exit_code == 0


# --- that nothing shows them


def test_no_value_of_service_or_sdk_shows_a_secret(running: RunningService) -> None:
    settings = Settings(
        store=STORE, token=TOKEN, transactions_token=TOKEN, transactions_url=BY_URL
    )  # fmt: skip
    local = settings.model_copy(update={"store": "memory://"})
    service = build_service(local)
    trust = Trust(proxy=BY_URL, key=MARK)
    client = Client(BY_URL, token=TOKEN, proxy=BY_URL)
    head = Head("GET", "/", b"", "/", {b"authorization": f"Bearer {TOKEN}".encode()})
    values = [
        settings, local, service, trust, client, client._calls, client._calls._transport, client._calls._transport._token,
        Connections(trust, Blocking()), Forwarder(service.access, 1.0), service.access, store_opener(STORE), raw_opener(STORE),
        head, [head], Secret(MARK), {"authorization": authorization(TOKEN)},
        request_bytes("GET", "h", "/", {"authorization": authorization(TOKEN)}, None),
    ]  # fmt: skip
    client.close()
    for value in values:
        assert_hidden(repr(value), ascii([value]), f"{value!r}")
    assert_hidden(settings, settings.model_dump(), settings.model_dump_json(), json.dumps(settings.model_dump(mode="json")))


@pytest.mark.parametrize(
    "given",
    [
        {"store": STORE + "#x"},
        {"store": f"postgres://ada:{MARK}@h:port/db"},
        {"store": f"nothing:{MARK}@h"},
        {"store": STORE, "port": -1},
        {"store": "memory://", "transactions_url": f"ftp://ada:{MARK}@h"},
        {"store": "memory://", "advertised_url": f"ada:{MARK}@h"},
        {"store": "memory://", "advertised_url": f"http://ada:{MARK}@h"},
        {"store": "memory://", "token": [MARK]},
        {"store": "memory://", "token": TOKEN, "cache_bytes": "x"},
    ],
)
def test_settings_that_are_refused_show_no_secret(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**given)
    assert_hidden(*told(caught.value, with_locals=False))


@pytest.mark.parametrize(
    "url",
    [
        "http://ada:{}@127.0.0.1:1", "http://{}@127.0.0.1:1", "https://ada:{}@localhost:1/below", "http://ada:p@{}@127.0.0.1:1",
        "ada:{}@h", "http://ada:{}/x@h", "ftp://ada:{}@h", "http://ada:{}@h:port", "http://ada:{}@", "http://ada:{}@[::1", "{}@h",
        "http://h?token={}", "http://h/?x=a@b&token={}", "http://h/#{}",
    ],
)  # fmt: skip
def test_a_url_is_shown_without_user_password_and_query(url: str) -> None:
    planted = url.format(MARK)
    assert_hidden(shown(planted))
    with pytest.raises((ValueError, OncelogError)) as caught, Client(planted, timeout=1, retry=0) as client:
        client.topics()
    assert_hidden(caught.value, *told(caught.value, with_locals=False))


@pytest.mark.parametrize("url", ["http://127.0.0.1:7070", "http://h/producers/a@b", "http://h", "x", ""])
def test_a_url_with_neither_is_shown_as_it_is(url: str) -> None:
    assert shown(url) == url


def told(error: BaseException, *, with_locals: bool = True) -> list[str]:
    """Everything that a log, or a service that collects errors, may show of it."""
    lines = list(traceback.TracebackException.from_exception(error, capture_locals=with_locals).format())
    ours = [line for line in lines if "tests/rest/test_secrets.py" not in line.partition("\n")[0]]
    return [repr(error), *map(str, error.args), "".join(ours)]


def refused_everywhere(service: RunningService) -> list[tuple[str, type[Client] | type[AsyncClient]]]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    return [(url, kind) for url in (nobody, service.url, "http://nowhere.invalid") for kind in (Client, AsyncClient)]


def test_an_error_of_a_client_shows_no_token_not_even_in_the_variables_of_its_frames(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running_service(token="another") as service:
        for url, kind in refused_everywhere(service):
            try:
                if kind is Client:
                    with Client(url, token=TOKEN, timeout=5, retry=0) as client:
                        client.topics()
                else:
                    asyncio.run(_ask_async(url))
            except OncelogError as error:
                assert_hidden(error, error.to_problem(), *told(error), pickle.loads(pickle.dumps(error)))
            else:
                raise AssertionError(f"{url} answered")
    assert_hidden(caplog.text, *(vars(record) for record in caplog.records), "nothing else")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
def test_an_error_behind_a_proxy_shows_no_password_not_even_in_the_variables_of_its_frames(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        for proxy in (BY_URL, f"http://ada:{MARK}@127.0.0.1:{never_answers.getsockname()[1]}"):
            with Client(url, proxy=proxy, timeout=0.2, retry=0) as client:
                with pytest.raises(OncelogError) as failure:
                    client.topics()
                assert_hidden(*told(failure.value))


@pytest.mark.parametrize("size", [1, 1 << 18])
def test_an_error_of_what_was_sent_shows_no_token_either(size: int) -> None:
    request = PublishRequest([bytes(size)])
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        url = f"http://127.0.0.1:{never_answers.getsockname()[1]}"
        with Client(url, token=TOKEN, timeout=0.2, retry=0) as client, pytest.raises(OncelogError) as failure:
            client.publish("t", request)
        assert_hidden(*told(failure.value))


async def _ask_async(url: str) -> None:
    async with AsyncClient(url, token=TOKEN, timeout=5, retry=0) as client:
        await client.topics()


def test_what_a_service_answers_and_logs_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running_service(token=TOKEN, transactions_url=BY_URL, transactions_token=TOKEN) as service:
        topic = Topic(service.url, create=False)
        good = {"Authorization": f"Bearer {TOKEN}".encode()}
        for headers in ({}, {"Authorization": f"Bearer {MARK}-wrong"}, {"Authorization": f"Basic {MARK}"}, good):
            topic.session.headers.clear()
            topic.session.headers.update(headers)
            for method, path in (
                ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/healthz"), ("GET", "/v1/cluster"),
                ("GET", "/v1/namespaces"), ("GET", "/nothing"), ("PATCH", "/metrics"), ("POST", "/v1/transactions"),
                ("GET", "/v1/held"), ("GET", "/v1/transactions"),
            ):  # fmt: skip
                answer = topic.session.request(method, service.url + path, timeout=TIMEOUT)
                assert_hidden(answer.text, answer.headers)
    assert caplog.records
    assert_hidden(caplog.text, *(vars(record) for record in caplog.records))


def test_a_store_that_cannot_be_opened_is_named_without_its_password() -> None:
    with pytest.raises(StoreError) as caught:
        store_opener(STORE)()
    assert_hidden(caught.value, *told(caught.value, with_locals=False))


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["status"], {"ONCELOG_URL": BY_URL, "ONCELOG_TOKEN": TOKEN}),
        (["status", "--json"], {"ONCELOG_URL": BY_URL, "ONCELOG_TOKEN": TOKEN}),
        (["topic", "list", "--url", BY_URL, "--token", TOKEN], {}),
        (["topic", "list", "--url", f"ada:{MARK}@h"], {}),
        (["topic", "list"], {"ONCELOG_PROXY": BY_URL, "ONCELOG_URL": "http://h.invalid"}),
        (["topic", "list"], {"ONCELOG_PROXY": f"ada:{MARK}@h"}),
        (["topic", "list"], {"ONCELOG_TOKEN": f"{MARK}\nmore"}),
        (["verify", "--store", STORE], {}),
        (["copy", STORE, f"sqlite:///nowhere/{os.getpid()}"], {}),
        (["outbox", "status", STORE, "x"], {}),
        (["outbox", "status", f"nothing://ada:{MARK}@h", "x"], {}),
        (["outbox", "status", f"no url {MARK}", "x"], {}),
    ],
)
def test_a_command_shows_no_secret_but_in_its_own_arguments(arguments: list[str], environment: dict[str, str]) -> None:
    answer = run(*arguments, env=environment)
    assert answer.exit_code != 0, answer
    assert_hidden(answer.stdout, answer.stderr)
    assert answer.stderr or answer.stdout


@pytest.mark.real
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_service_that_cannot_open_its_store_shows_no_secret(options: list[str]) -> None:
    command = [sys.executable, "-m", "oncelog_service", "serve", *options]
    environment = {**os.environ, "ONCELOG_STORE": STORE}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert answer.returncode != 0, answer
    assert_hidden(answer.stdout, answer.stderr)


@pytest.mark.real
def test_a_service_that_serves_shows_no_secret(tmp_path: Path) -> None:
    for name, value in (("token", TOKEN), ("store", f"sqlite://{tmp_path / 'data'}")):
        (tmp_path / name).write_text(value + "\n")
    command = [sys.executable, "-m", "oncelog_service", "serve", "--port", "0", "--host", "0.0.0.0"]
    environment = {"ONCELOG_TOKEN_FILE": str(tmp_path / "token"), "ONCELOG_STORE_FILE": str(tmp_path / "store")}
    with subprocess.Popen(
        [*command, "--transactions-url", BY_URL],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert MARK not in Path(f"/proc/{process.pid}/environ").read_text()
        process.terminate()
        out, log = process.communicate(timeout=PATIENCE)
    assert str(tmp_path / "data") in line
    assert_hidden(line, out.decode(), log.decode())
