"""SIGHUP: settings, secrets and certificates are read again, all of it or nothing; and what the supervisor is told."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog import Client
from oncelog.errors import TransactionsUnavailable, Unauthorized
from oncelog_service import app
from oncelog_service.config import Settings
from oncelog_service.process.reloading import CHANGES, Reloading, Running
from oncelog_service.process.supervisor import Supervisor
from oncelog_service.rest.certificates import LOOK_SECONDS
from tests.behaviours.cli.support import process
from tests.patience import PATIENCE, until
from tests.rest.talk import TIMEOUT
from tests.world.certificates import Authority
from tests.world.service import RunningService, running_service

NOBODY = Supervisor({})


def let_in(url: str, token: str | None) -> bool:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = requests.get(url + "/v1/namespaces", headers=headers, timeout=TIMEOUT)
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


class Served:
    """`oncelog serve` on a file of settings, and what it logs."""

    def __init__(self, folder: Path, service: subprocess.Popen[bytes]) -> None:
        self.file, self.service = folder / "oncelog.toml", service
        assert service.stdout is not None
        self.url: str = json.loads(service.stdout.readline())["url"]
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.service.stderr is not None
        for line in self.service.stderr:
            self.lines.append(line.decode())

    def reload(self, says: str, text: str | None = None) -> str:
        """SIGHUP, with another file; the line that says so."""
        if text is not None:
            self.file.write_text(text)
        seen = len(self.lines)
        self.service.send_signal(signal.SIGHUP)

        def found() -> str | None:
            return next((line for line in self.lines[seen:] if says in line), None)

        line = until(found, says)
        assert line is not None
        return line


@contextmanager
def served(folder: Path, text: str, **environment: str) -> Iterator[Served]:
    (folder / "oncelog.toml").write_text(text)
    with process("serve", "--json", cwd=folder, ONCELOG_CONFIG=str(folder / "oncelog.toml"), **environment) as service:
        yield Served(folder, service)


@pytest.mark.real
def test_a_signal_has_settings_and_secrets_read_again_and_what_cannot_change_stays_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    text = f'port = 0\nstore = "memory://"\ntoken_file = "{tmp_path}/token"\nlog_level = "info"\n'
    with served(tmp_path, text) as found:
        assert (let_in(found.url, "first"), let_in(found.url, "second")) == (True, False)
        found.reload("the settings were read again; none has changed")
        (tmp_path / "token").write_text("second\n")
        changed = text.replace('"info"', '"warning"') + "max_messages = 5\ncache_bytes = 7\ndrain_seconds = 3600.0\n"
        warned = found.reload("do not change while the service runs", changed)
        assert warned.endswith("begin it anew for them: cache_bytes, max_messages\n")
        until(lambda: let_in(found.url, "second"))
        assert not let_in(found.url, "first")
        body = {"messages": ["x"] * 6}
        with requests.Session() as session:
            session.headers["Authorization"] = "Bearer second"
            address = found.url + "/v1/namespaces/default/topics/t"
            assert session.put(address, json={}, timeout=TIMEOUT).status_code == 200
            assert session.post(address + "/publish", json=body, timeout=TIMEOUT).status_code == 200, "max_messages stays"
        # INFO is not logged any more; a warning is.
        found.reload("do not change while the service runs")
        assert "none has changed" not in "".join(found.lines[-1:])
        # The pause that it has learnt of: a first signal does not end it, a second one does.
        found.service.terminate()
        until(lambda: requests.get(found.url + "/readyz", timeout=TIMEOUT).status_code == 503)
        assert let_in(found.url, "second")
        found.service.terminate()
        assert found.service.wait(PATIENCE) == 0


@pytest.mark.real
def test_a_signal_has_the_log_in_another_form_and_all_requests_in_it(tmp_path: Path) -> None:
    text = 'port = 0\nstore = "memory://"\n'
    with served(tmp_path, text) as found:
        found.reload("the settings were read again; none has changed")
        found.reload('"message": "the settings were read again', text + 'log_format = "json"\nlog_requests = true\n')
        requests.get(found.url + "/healthz", headers={"x-request-id": "mine"}, timeout=TIMEOUT)
        until(lambda: '"request": "mine"' in "".join(found.lines))


@pytest.mark.real
def test_files_that_are_of_no_use_leave_everything_as_it_was(tmp_path: Path) -> None:
    text = 'port = 0\nstore = "memory://"\ntoken = "first"\n'
    second = text.replace("first", "second")
    useless = [f"{line}\n{second}" for line in ("log_level = 'loud'", "max-messages = 1", "tls_key = 'x'")]
    useless += [f'{line}\nstore = "memory://"\n' for line in ("port = ", "token_file = '/nowhere'")]
    with served(tmp_path, text) as found:
        for other in (*useless, None):
            if other is None:
                found.file.unlink()
            assert "Traceback" not in found.reload("so everything stays as it was: ", other)
            assert (let_in(found.url, "first"), let_in(found.url, "second")) == (True, False), other
        found.reload("the settings were read again; changed: token", second)
        assert let_in(found.url, "second")


# --- in this process


@contextmanager
def reloading(service: RunningService, **given: Any) -> Iterator[Reloading]:
    async def made(_: object) -> Reloading:
        return Reloading(Running(service.service, service.server), given, NOBODY, asyncio.Event())

    root = logging.getLogger()
    before = root.level
    try:
        yield service.on_loop(made)
    finally:
        root.setLevel(before)


def test_a_certificate_that_does_not_go_with_its_key_changes_no_setting_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = Authority(tmp_path)
    issued, other = ca.service("service"), ca.service("other")
    (tmp_path / "token").write_text("first")
    given = {"port": 0, "store": "memory://", "token_file": tmp_path / "token", **issued.tls}
    monkeypatch.setattr("oncelog_service.rest.certificates.LOOK_SECONDS", 3_600.0)
    assert LOOK_SECONDS < 3_600
    with running_service(**given) as service, reloading(service, **given) as again:
        context = service.server.certificates.context  # type: ignore[union-attr]
        (tmp_path / "token").write_text("second")
        Path(issued.key).write_bytes(Path(other.key).read_bytes())
        assert service.on_loop(lambda _: again.reload()) is False
        assert "everything stays as it was" in caplog.text
        assert service.service.settings.token == "first"
        assert service.server.certificates.context is context  # type: ignore[union-attr]
        other.put_in_place_of(issued)
        assert service.on_loop(lambda _: again.reload()) is True
        assert service.service.settings.token == "second"
        assert service.server.certificates.context is not context  # type: ignore[union-attr]


def test_a_token_may_come_and_does_not_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "oncelog.toml"
    file.write_text("")
    given = {"port": 0, "store": "memory://", "config": file}
    with running_service(**given) as service, reloading(service, **given) as again:
        assert let_in(service.url, None)
        file.write_text('token = "first"')
        assert service.on_loop(lambda _: again.reload())
        assert (let_in(service.url, None), let_in(service.url, "first")) == (False, True)
        file.write_text("")
        assert service.on_loop(lambda _: again.reload())
        assert "what was locked would open" in caplog.text
        assert (let_in(service.url, None), let_in(service.url, "first")) == (False, True)


@pytest.mark.parametrize("by", ["token", "transactions_token"])
def test_another_token_for_the_transaction_service_is_carried_from_then_on(tmp_path: Path, by: str) -> None:
    (tmp_path / "token").write_text("t1")
    with running_service(token="t2") as alone:
        given = {"port": 0, "store": "memory://", "transactions_url": alone.url, f"{by}_file": tmp_path / "token"}
        with running_service(**given) as service, reloading(service, **given) as again:
            with Client(service.url, token="t1", retry=0) as client, pytest.raises(TransactionsUnavailable):
                client.start_transaction()
            (tmp_path / "token").write_text("t2")
            assert service.on_loop(lambda _: again.reload())
            with Client(service.url, token="t2", retry=PATIENCE) as client:
                assert client.start_transaction().write_pointer
            if by == "token":
                with Client(service.url, token="t1", retry=0) as client, pytest.raises(Unauthorized):
                    client.start_transaction()


def test_the_keys_of_an_issuer_are_read_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    given = {"port": 0, "store": "memory://", "jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": str(keys)}
    with running_service(**given) as service, reloading(service, **given) as again:
        issuer = service.service.access.issuer
        assert issuer is not None
        looked: list[bool] = []
        issuer.look = lambda: looked.append(True)  # type: ignore[method-assign]
        assert service.on_loop(lambda _: again.reload())
        assert looked == [True]


def test_what_changes_is_a_setting_and_so_is_what_the_table_of_settings_says() -> None:
    told = {name for name, field in Settings.model_fields.items() if "SIGHUP" in (field.description or "")}
    assert CHANGES.keys() <= Settings.model_fields.keys()
    assert {"config", "tls_certificate", *CHANGES} == told


# --- what the supervisor is told


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(address)
        told.settimeout(PATIENCE)
        yield told


def heard(told: socket.socket, first: str) -> dict[str, str]:
    """The next one that begins so; signs of life between are passed over."""
    while True:
        lines = told.recv(4_096).decode().splitlines()
        if lines[0] == first:
            return dict(line.split("=", 1) for line in lines)
        assert lines == ["WATCHDOG=1"], lines


@pytest.mark.real
@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_it_is_ready_lives_reads_again_and_stops(tmp_path: Path, abstract: bool) -> None:
    name = f"@oncelog-{tmp_path.name}-{time.time_ns()}" if abstract else str(tmp_path / "notify")
    with listening(name.replace("@", "\0")) as told:
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"}
        with served(tmp_path, 'port = 0\nstore = "memory://"\n', **environment) as found:
            assert heard(told, "READY=1")["STATUS"] == f"serves {found.url}"
            for _ in range(3):
                assert heard(told, "WATCHDOG=1")
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
            found.service.send_signal(signal.SIGHUP)
            assert int(heard(told, "RELOADING=1")["MONOTONIC_USEC"]) >= before
            assert heard(told, "READY=1")
            found.service.terminate()
            assert heard(told, "STOPPING=1")
            assert found.service.wait(PATIENCE) == 0


@pytest.mark.real
def test_nobody_who_listens_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    with served(tmp_path, 'port = 0\nstore = "memory://"\n', NOTIFY_SOCKET=str(tmp_path / "nobody")) as found:
        assert let_in(found.url, None)
        until(lambda: any("the supervisor cannot be told READY=1" in line for line in found.lines))
        found.service.terminate()
        assert found.service.wait(PATIENCE) == 0


def test_a_sign_of_life_is_given_only_where_one_is_wanted_of_this_process() -> None:
    assert Supervisor({"WATCHDOG_USEC": "3000000"}).watchdog_seconds == 3.0
    for environment in ({}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}):
        assert Supervisor(environment).watchdog_seconds is None


@pytest.mark.real
def test_no_signal_ends_a_service_that_starts_or_stops_and_one_at_the_start_is_heeded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stray: list[int] = []
    settings = {"host": "127.0.0.1", "port": 0, "store": "memory://"}

    async def run() -> None:
        serving = asyncio.ensure_future(app.serve(Settings(**settings), lambda _: stopped(), settings))

        def stopped() -> None:
            until_read.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))

        until_read = asyncio.ensure_future(asyncio.to_thread(until, lambda: "the settings were read again" in caplog.text))
        await asyncio.sleep(0)  # it has begun
        os.kill(os.getpid(), signal.SIGHUP)
        assert "the settings were read again" not in caplog.text
        await until_read
        while not serving.done():  # while it stops, in every turn of the event loop
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
        await serving

    before = signal.signal(signal.SIGHUP, lambda number, _: stray.append(number))
    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stray == []
