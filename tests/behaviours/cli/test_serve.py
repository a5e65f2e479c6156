"""`oncelog serve`: it says where it is, ends cleanly, and says in one sentence why it cannot begin."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog import Client
from oncelog_service.cli.serve import settings_from
from tests.behaviours.cli.support import payloads, process, run
from tests.patience import PATIENCE
from tests.support import ServiceProcess


def _ready(service: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert service.stdout is not None
    line: dict[str, Any] = json.loads(service.stdout.readline())
    return line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with process("serve", "--port", "0", "--json", cwd=tmp_path) as service:
        ready = _ready(service)
        assert ready["data"] == str(tmp_path / "oncelog-data")
        assert ready["store"] == f"leveldb://{tmp_path}/oncelog-data"
        assert requests.get(ready["url"] + "/healthz", timeout=PATIENCE).status_code == 200
        assert run("topic", "create", "t", url=ready["url"]).exit_code == 0
        assert run("publish", "t", "a", url=ready["url"]).exit_code == 0
        service.send_signal(number)
        out, err = service.communicate(timeout=PATIENCE)
    assert (service.returncode, out) == (0, b"")
    assert b"Traceback" not in err
    with process("serve", "--port", "0", "--json", cwd=tmp_path) as service:
        assert payloads(_ready(service)["url"], "t") == [b"a"]


def test_for_people_it_prints_one_line(tmp_path: Path) -> None:
    with process("serve", "--port", "0", "--store", f"leveldb://{tmp_path}/d") as service:
        assert service.stdout is not None
        line = service.stdout.readline().decode()
        assert line.startswith("oncelog serves http://127.0.0.1:")
        assert line.endswith(f", data in {tmp_path}/d\n")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with process("serve", "--port", str(port), "--store", f"leveldb://{tmp_path}/d") as service:
            out, err = service.communicate(timeout=PATIENCE)
    assert (service.returncode, out) == (1, b"")
    assert err.decode() == f"error: 127.0.0.1:{port} is taken by another process; choose another --port\n"


def test_a_store_in_use_is_named(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "d") as first:
        with process("serve", "--port", "0", "--store", first.store) as service:
            out, err = service.communicate(timeout=PATIENCE)
        assert (service.returncode, out) == (1, b"")
        assert err.decode() == f"error: the store {tmp_path}/d is in use by another process\n"


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "d") as first, Client(first.url) as client:
        client.create_topic("t")
        assert first.stop() == 0
    (tmp_path / "d" / "CURRENT").write_bytes(b"nonsense")
    with process("serve", "--port", "0", "--json", "--store", first.store) as service:
        out, err = service.communicate(timeout=PATIENCE)
    assert (service.returncode, out) == (1, b"")
    assert json.loads(err)["detail"].startswith(f"the store {tmp_path}/d is damaged: ")


def test_a_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with process("serve", "--port", "0", "--store", f"leveldb://{tmp_path}/file/d") as service:
        _, err = service.communicate(timeout=PATIENCE)
    assert service.returncode == 1
    assert err.startswith(f"error: the store {tmp_path}/file/d cannot be opened: ".encode())
    assert err.count(b"\n") == 1


def test_an_option_beats_the_environment_beats_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_PORT", "1")
    monkeypatch.setenv("ONCELOG_DEDUPLICATION", "false")
    settings = settings_from({"port": 2})
    assert (settings.port, settings.deduplication, settings.max_messages) == (2, False, 10_000)


def test_options_and_environment_reach_the_service(tmp_path: Path) -> None:
    arguments = ("serve", "--port", "0", "--json", "--store", "memory://", "--deduplication", "off", "--token", "s3cret")
    with process(*arguments, cwd=tmp_path, ONCELOG_DEDUPLICATION="on", ONCELOG_MAX_REQUEST_BYTES="1024") as service:
        url = _ready(service)["url"]
        assert run("topic", "create", "t", url=url).exit_code == 1
        assert run("topic", "create", "t", "--token", "s3cret", url=url).exit_code == 0
        with Client(url, token="s3cret") as client:
            assert client.stats("t").deduplication is False
        refused = run("publish", "t", "x" * 2_000, "--json", url=url, env={"ONCELOG_TOKEN": "s3cret"})
        assert (refused.exit_code, json.loads(refused.stderr)["code"]) == (1, "request_too_large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "env", "named"),
    [
        (("--port", "70000"), {}, "--port"),
        (("--port", "x"), {}, "--port"),
        (("--store", "mysql://x"), {}, "--store"),
        (("--deduplication", "maybe"), {}, "--deduplication"),
        (("--host", "0.0.0.0"), {}, "--token"),
        ((), {"ONCELOG_MAX_MESSAGES": "none"}, "ONCELOG_MAX_MESSAGES"),
    ],
)
def test_a_setting_that_is_none_is_a_usage_error(arguments: tuple[str, ...], env: dict[str, str], named: str) -> None:
    result = run("serve", *arguments, env=env)
    assert result.exit_code == 2
    assert named in result.stderr
