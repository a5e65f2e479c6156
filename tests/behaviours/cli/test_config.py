"""Settings from a file, beside options and environment; `oncelog config show` and `check`."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from oncelog import Client
from oncelog_service.config import SECRETS, Settings, TransactionServiceSettings
from oncelog_service.sources import BadConfigFile
from tests.behaviours.cli.support import process, run, value
from tests.docs.pages import PAGES, blocks, named
from tests.world.certificates import Authority

MARK = "s3cr3t0fmine"


def file_of(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "oncelog.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def of(rows: list[dict[str, Any]], name: str) -> tuple[Any, str, str]:
    (row,) = [each for each in rows if each["setting"] == name]
    return row["value"], row["source"], row["named"]


def found(*arguments: str, code: int = 0, **env: str) -> dict[str, tuple[str, str]]:
    """What a check says of each thing that it looks at."""
    result = run("config", "check", *arguments, "--json", env=env)
    assert result.exit_code == code, result.output
    checks = json.loads(result.stdout)
    assert MARK not in result.output
    return {each["what"]: (each["outcome"], each["detail"]) for each in checks}


# --- the order


def test_an_option_goes_before_the_environment_that_before_the_file_and_that_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, 'port = 1\nmax_messages = 2\ncache_bytes = 3\nstore = "memory://"\n')
    monkeypatch.setenv("ONCELOG_MAX_MESSAGES", "20")
    monkeypatch.setenv("ONCELOG_CACHE_BYTES", "30")
    rows = value(run("config", "show", "--json", "--config", str(path), "--cache-bytes", "300"))
    assert of(rows, "cache_bytes") == (300, "option", "--cache-bytes")
    assert of(rows, "max_messages") == (20, "environment", "ONCELOG_MAX_MESSAGES")
    assert of(rows, "port") == (1, "file", str(path))
    assert of(rows, "header_timeout_seconds") == (10.0, "default", "")
    assert [each["setting"] for each in rows] == list(Settings.model_fields)
    monkeypatch.setenv("ONCELOG_CONFIG", str(path))
    assert (Settings().port, Settings(port=7).port, Settings().max_messages) == (1, 7, 20)
    assert TransactionServiceSettings().store == "memory://"


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_and_its_file_are_one_setting_the_higher_source_wins(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("high", "low"):
        (tmp_path / name).write_text(f"memory://{name}" if secret != "store" else "memory://")
    monkeypatch.setenv("ONCELOG_STORE", "memory://") if secret != "store" else None
    file = file_of(tmp_path, f'{secret} = "sqlite:///of/the/file"\n')
    monkeypatch.setenv("ONCELOG_CONFIG", str(file))
    monkeypatch.setenv(f"ONCELOG_{secret.upper()}_FILE", str(tmp_path / "high"))
    assert getattr(Settings(), secret) == (tmp_path / "high").read_text()
    assert Settings.origins({})[secret] == ("environment", f"ONCELOG_{secret.upper()}_FILE")
    file_of(tmp_path, f'{secret}_file = "{tmp_path / "low"}"\n')
    monkeypatch.delenv(f"ONCELOG_{secret.upper()}_FILE")
    assert getattr(Settings(), secret) == (tmp_path / "low").read_text()
    assert Settings.origins({})[secret] == ("file", str(file))
    assert Settings(**{secret: "sqlite:///of/option"}).model_dump()[f"{secret}_file"] is None
    monkeypatch.setenv(f"ONCELOG_{secret.upper()}", "")  # nothing is no secret, and hides none
    if secret != "store":
        monkeypatch.delenv(f"ONCELOG_{secret.upper()}")
        assert getattr(Settings(**{f"{secret}_file": str(tmp_path / "high")}), secret) == "memory://high"


@pytest.mark.real
def test_a_service_runs_on_a_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, f'port = 0\nstore = "memory://"\ntoken = "{MARK}"\ndeduplication = false\n', mode=0o644)
    with process("serve", "--json", cwd=tmp_path, ONCELOG_CONFIG=str(path)) as service:
        assert service.stdout is not None
        url = json.loads(service.stdout.readline())["url"]
        with Client(url, token=MARK) as client:
            client.create_topic("t")
            assert client.stats("t").deduplication is False
        service.terminate()
        _, log = service.communicate(timeout=60)
    assert f"others on this machine may read it; close it: chmod go= {path}" in log.decode()
    assert MARK not in log.decode()


# --- what is none


def test_what_is_none_is_named_with_the_file_the_key_and_what_is_allowed(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        'max-messages = 5\nhots = "x"\ncache_bytes = true\nsnapshot_seconds = inf\ndeduplication = "maybe"\n'
        'log_level = "loud"\nport = 70000\nx = 1\n',
    )
    result = run("config", "check", str(path), "--json")
    assert result.exit_code == 10
    assert {each["detail"] for each in json.loads(result.stdout)} == {
        f"{path}, max-messages: there is no such setting; is max_messages meant?",
        f"{path}, hots: there is no such setting; is host meant?",
        f"{path}, x: there is no such setting; docs/settings.md lists all",
        f"{path}, cache_bytes: Input should be a number or a text, no truth value",
        f"{path}, snapshot_seconds: Input should be a finite number",
        f"{path}, deduplication: Input should be on or off",
        f"{path}, log_level: Input should be 'debug', 'info', 'warning' or 'error'",
        f"{path}, port: Input should be less than or equal to 65535",
    }
    refused = run("serve", "--config", str(path), "--store", "memory://")
    assert refused.exit_code == 2
    assert "max_messages meant" in refused.stderr
    # An option in its place is fine, and is what is named where it is none.
    one = file_of(tmp_path, 'port = "x"\n')
    assert Settings(config=one, port=1).port == 1
    assert "--port" in run("serve", "--config", str(one), "--port", "70000").stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[tls]\ncertificate = "x"\n', "tls: a file of settings has no tables"),
        ("port = ", "is no TOML: Invalid value (at end of document)"),
        ("port = 1\nport = 2\n", "is no TOML: Cannot overwrite a value (at line 2, column 9)"),
        ('config = "another.toml"\n', "a file of settings names no other one; remove it"),
        ("port = " + "[" * 5_000 + "]" * 5_000, "is no TOML: maximum recursion depth exceeded"),
        ("port = " + "9" * 5_000, "is no TOML: Exceeds the limit"),
        (None, "is not there"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "oncelog.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadConfigFile) as caught:
        Settings(config=path)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    if text is None:
        for command in (("serve",), ("config", "show"), ("tx-serve",)):
            assert run(*command, "--config", str(path)).exit_code == 2
        assert found(str(path), code=10) == {"settings": ("failed", str(caught.value))}


def test_what_names_a_secret_that_is_none_is_one_sentence_and_shows_nothing(tmp_path: Path) -> None:
    path = file_of(tmp_path, f'token = "{MARK}"\ntransactions_url = "ftp://ada:{MARK}@h"\nstore = "nothing:{MARK}@h"\n')
    assert len(found(str(path), code=10)) == 1
    with pytest.raises(ValidationError) as caught:
        Settings(config=path)
    assert MARK not in str(caught.value)
    good = file_of(
        tmp_path, f'token = "{MARK}"\nstore = "postgresql://ada:{MARK}@h/db"\ntransactions_url = "http://ada:{MARK}@h"\n'
    )
    result = run("config", "show", "--config", str(good))
    assert (result.exit_code, MARK in result.output) == (0, False)
    assert f"token\t…\tfile {good}" in result.stdout.splitlines()
    assert f"store\tpostgresql://ada@h/db\tfile {good}" in result.stdout.splitlines()


# --- what a check looks at


def test_a_check_looks_at_what_the_settings_name_and_changes_nothing(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).service()
    (tmp_path / "token").write_text("t0k3n\n")
    path = file_of(
        tmp_path,
        f"""port = 0
store = "leveldb://{tmp_path}/deep/below/data"
token_file = "{tmp_path}/token"
tls_certificate = "{certificate.certificate}"
tls_key = "{certificate.key}"
backup_root = "{tmp_path}/backups"
audit_log = "{tmp_path}/audit.jsonl"
""",
    )
    before = sorted(tmp_path.rglob("*"))
    checks = found(str(path))
    assert {each: outcome for each, (outcome, _) in checks.items()} == dict.fromkeys(
        ("settings", "token_file", "tls_certificate", "store", "audit_log", "backup_root", "port"), "ok"
    )
    assert sorted(tmp_path.rglob("*")) == before
    assert found(ONCELOG_CONFIG=str(path)) == checks


@pytest.mark.parametrize(
    ("line", "what", "outcome"),
    [
        ('tls_certificate = "/nowhere.pem"', "tls_certificate", "failed"),
        ('token_file = "/nowhere"', "settings", "failed"),
        ('store = "leveldb:///dev/null/data"', "store", "failed"),
        ('store = "postgresql://h/db"', "store", "not checked"),
        ('backup_root = "/dev/null"', "backup_root", "failed"),
        ('audit_log = "/dev/null/audit"', "audit_log", "failed"),
        pytest.param('host = "192.0.2.1"', "port", "failed", marks=pytest.mark.real),
        ('host = "0.0.0.0"', "host", "warning"),
    ],
)
def test_what_would_not_work_is_found(line: str, what: str, outcome: str, tmp_path: Path) -> None:
    store = "" if line.startswith("store") else 'store = "memory://"'
    path = file_of(tmp_path, f"{line}\nport = 0\n{store}\n")
    checks = found(str(path), code=10 if outcome == "failed" else 0)
    assert checks[what][0] == outcome, checks


def test_keys_of_an_issuer_are_read_and_a_port_that_is_taken_is_a_warning(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    lines = f'store = "memory://"\njwt_issuer = "i"\njwt_audience = "a"\njwt_keys = "{keys}"\n'
    keys.write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        checks = found(str(file_of(tmp_path, f"{lines}port = {listener.getsockname()[1]}\n")), code=10)
    assert (checks["jwt_keys"], checks["port"][0]) == (("failed", f"{keys}: that is no set of keys"), "warning")
    url = lines.replace(str(keys), "https://login.example.org/keys")
    assert found(str(file_of(tmp_path, f"{url}port = 0\n")))["jwt_keys"][0] == "not checked"


def test_secrets_in_a_file_that_others_may_read_are_a_warning(tmp_path: Path) -> None:
    for line in (f'token = "{MARK}"', f'transactions_url = "http://ada:{MARK}@h"'):
        path = file_of(tmp_path, f'{line}\nport = 0\nstore = "memory://"\n', mode=0o640)
        assert found(str(path))["config"][0] == "warning", line
    path.chmod(0o600)
    assert "config" not in found(str(path))
    path = file_of(tmp_path, 'port = 0\nstore = "memory://"\n', mode=0o644)
    assert "config" not in found(str(path)), "there is nothing secret in it"


# --- the documentation's


def test_every_file_of_settings_in_the_documentation_is_one(tmp_path: Path) -> None:
    shown = [block for page in PAGES for block in blocks(page) if block.language == "toml"]
    assert shown
    for block in shown:
        text = "\n".join(line for line in block.text.splitlines() if not line.startswith(("token_file", "store_file")))
        Settings(config=file_of(tmp_path, text + "\n")), named(block.page)
