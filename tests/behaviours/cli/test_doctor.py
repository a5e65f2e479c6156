"""`oncelog doctor`: what is wrong as seen from outside, and where the service says nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import Client, Producer
from oncelog_service.cli.health.outside import Mount, mount_of, of_settings, of_store
from oncelog_service.config import Settings
from oncelog_service.storage.files.directory import holder_of
from tests.behaviours.cli.support import run
from tests.behaviours.test_full_disk import small_disk
from tests.world.certificates import Authority
from tests.world.clock import ManualClock
from tests.world.service import RunningService, free_port, running_service

NOBODY = "http://127.0.0.1:1"
SOMEWHERE = Mount("/", "ext4")


@pytest.fixture(autouse=True)
def _on_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests may run in a container's layer, which is a warning of its own; and the settings name no store that is there."""
    monkeypatch.setattr("oncelog_service.cli.health.outside.mount_of", lambda path: SOMEWHERE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def doctor(*arguments: str, url: str, code: int, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """What it says with --json, by code; and that it says the same to people."""
    result = run("doctor", "--json", *arguments, url=url, env=dict(env or {}))
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)["alarms"]
    told = run("doctor", *arguments, url=url, env=dict(env or {}))
    assert told.exit_code == code
    assert [each["subject"] for each in found if f"{each['subject']}  [{each['code']}]" not in told.stdout] == []
    assert [line for each in found for line in each["commands"] if line not in told.stdout] == []
    return {each["code"]: each for each in found}


def stored(path: Path) -> str:
    """The URL of a store with a message in it, which nobody serves."""
    url = f"leveldb://{path}"
    with running_service(url) as service, Client(service.url) as client:
        client.create_topic("t")
        with Producer("t", client=client) as producer:
            producer.send(b"x")
    return url


def test_nothing_is_wrong_with_a_service_that_is_well(running: RunningService) -> None:
    assert doctor(url=running.url, code=0) == {}
    assert "nothing is wrong; looked at the service at" in run("doctor", url=running.url).stdout


def test_a_service_that_does_not_answer_is_critical_and_who_has_its_store_is_said(tmp_path: Path) -> None:
    url = stored(tmp_path / "data")
    found = doctor("--store", url, url=NOBODY, code=12)
    assert found.keys() == {"service_silent"}
    assert "no process that is seen from here" in found["service_silent"]["what"]
    with running_service(url):
        found = doctor("--store", url, url=NOBODY, code=12)
        assert found["service_silent"]["about"] == {"pid": os.getpid()}
        assert "has the store" in found["service_silent"]["what"]
    assert doctor("--store", f"leveldb://{tmp_path}/nothing", url=NOBODY, code=12).keys() == {"service_silent", "store_missing"}
    assert not (tmp_path / "nothing").exists()


def test_why_nothing_answers_is_said(running: RunningService) -> None:
    """Of a service that is there, and is asked as none that speaks TLS."""
    found = doctor(url=running.url.replace("http://", "https://"), code=12)
    assert "it does not speak TLS" in found["service_silent"]["what"]


def test_a_store_that_is_not_whole_is_said_without_opening_it(tmp_path: Path) -> None:
    url = stored(tmp_path / "data")
    (tmp_path / "data" / "CURRENT").unlink()
    before = {each.name: each.stat().st_mtime_ns for each in (tmp_path / "data").iterdir()}
    found = doctor("--store", url, url=NOBODY, code=12)
    assert found.keys() == {"service_silent", "store_not_whole"}
    assert "oncelog salvage" in found["store_not_whole"]["commands"][0]
    assert {each.name: each.stat().st_mtime_ns for each in (tmp_path / "data").iterdir()} == before


def test_the_store_of_the_service_that_answers_is_looked_at(tmp_path: Path) -> None:
    with running_service(f"leveldb://{tmp_path}/data") as service:
        assert doctor(url=service.url, code=0) == {}
        (tmp_path / "data").chmod(0o755)
        found = doctor(url=service.url, code=11)
        assert found.keys() == {"store_open_to_others"}
        [command] = found["store_open_to_others"]["commands"]
        assert shlex.split(command) == ["chmod", "-R", "go=", str(tmp_path / "data")]
        (tmp_path / "data").chmod(0o700)
        assert doctor(url=service.url, code=0) == {}


def test_who_may_not_ask_is_told_which_right_it_takes() -> None:
    with running_service(token="root") as service, Client(service.url, token="root") as client:
        secret = client.create_token("reader", ["read:*/*"]).secret
        assert secret is not None
        for token in (secret, "wrong"):
            found = doctor(url=service.url, code=11, env={"ONCELOG_TOKEN": token})
            assert found.keys() == {"service_refuses"}
            assert "observe" in found["service_refuses"]["mend"]


@pytest.mark.real
def test_a_certificate_that_is_refused_is_said_with_what_is_wrong_and_how_to_see_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = {"ONCELOG_CA": authority.file}
    for which, issued, env, why in (
        ("untrusted", authority.issue("fine", ips=["127.0.0.1"]), {}, "is not trusted"),
        ("elsewhere", authority.issue("elsewhere", dns=["example.org"]), trusted, "is for other hosts"),
        ("expired", authority.issue("expired", ips=["127.0.0.1"], ends=timedelta(seconds=-1)), trusted, "is out of its time"),
    ):
        with running_service(token="root", **issued.tls) as service:
            found = doctor(url=service.url, code=12, env=env)["service_refuses"]
            assert why in found["what"], which
            assert "--ca" in found["mend"]
            assert found["docs"] == "operating.md#tls"
            shown = subprocess.run(found["commands"][0], shell=True, check=True, capture_output=True, text=True).stdout
            assert "notAfter" in shown
            assert "Subject Alternative Name" in shown


def test_clocks_that_differ_are_said() -> None:
    with running_service(clock=ManualClock(round(time.time() * 1000) - 60_000)) as service:
        apart = re.search(r"(\d+) s apart", doctor(url=service.url, code=11)["clocks_apart"]["what"])
        assert apart
        assert int(apart[1]) >= 60  # it stands still meanwhile


def test_settings_that_are_none_or_dangerous_are_said(running: RunningService, tmp_path: Path) -> None:
    found = doctor(url=running.url, code=12, env={"ONCELOG_PORT": "no number"})
    assert "ONCELOG_PORT" in found["settings_wrong"]["what"]
    found = doctor(url=running.url, code=11, env={"ONCELOG_MIN_FREE_BYTES": "0"})
    assert "full disk stops the store" in found["settings_risky"]["what"]
    found = doctor(url=running.url, code=11, env={"ONCELOG_STORE": "memory://"})
    assert "is in memory" in found["settings_risky"]["what"]
    alarms = list(of_settings(Settings(cache_bytes=2**60)))
    assert any("cache_bytes" in each.what for each in alarms)


def test_a_store_that_is_none_is_no_alarm_but_a_mistake() -> None:
    assert run("doctor", "--store", "nothing", url=NOBODY).exit_code == 2
    assert run("doctor", "--store", "postgresql://u:p@127.0.0.1:1/x", url=f"http://127.0.0.1:{free_port()}").exit_code == 12


# --- what the system says


def of(path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch, floor: int = 0, *, answers: bool = True) -> dict[str, str]:
    monkeypatch.setattr("oncelog_service.cli.health.outside.mount_of", lambda path: mount)
    return {each.code: each.severity for each in of_store(path, floor, answers=answers)}


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("nfs4", {"network_file_system": "critical"}),
        ("cifs", {"network_file_system": "critical"}),
        ("fuse.sshfs", {"network_file_system": "critical"}),
        ("tmpfs", {"store_goes_away": "warning"}),
        ("overlay", {"store_goes_away": "warning"}),
        ("ext4", {}),
        ("xfs", {}),
        ("fuse", {}),
        ("", {}),
    ],
)
def test_where_a_store_does_not_belong(kind: str, found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    assert of(tmp_path, Mount("/", kind), monkeypatch) == found


def test_room_is_looked_at_where_the_service_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, store = shutil.disk_usage(tmp_path).free, tmp_path / "data"
    store.mkdir(0o700)
    assert of(store, SOMEWHERE, monkeypatch, 10 * free, answers=False) == {"disk_full": "critical"}
    assert of(store, SOMEWHERE, monkeypatch, free * 2 // 3, answers=False) == {"disk_low": "warning"}
    assert of(store, SOMEWHERE, monkeypatch, free // 10, answers=False) == {}
    assert of(store, SOMEWHERE, monkeypatch, 10 * free, answers=True) == {}


@pytest.mark.parametrize(
    ("left", "found"),
    [(1_000, {}), (999, {"few_inodes": "warning"}), (99, {"few_inodes": "critical"}), (0, {"few_inodes": "critical"})],
)
def test_inodes_end_before_bytes(left: int, found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    real = os.statvfs(tmp_path)
    fields = list(real)
    fields[5], fields[7] = 10_000, left  # f_files, f_favail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    assert of(tmp_path, SOMEWHERE, monkeypatch) == found
    fields[5] = fields[7] = 0  # a file system that counts none, as btrfs
    assert of(tmp_path, SOMEWHERE, monkeypatch) == {}


def test_a_path_lies_on_the_innermost_of_the_mounts(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\nhost:/x /data nfs4 rw 0 0\nnone /data\\040two/x tmpfs rw 0 0\n/dev/b /data/in xfs rw 0 0\n"
    )
    found = {
        path: mount_of(Path(path), mounts).kind for path in ("/", "/data", "/data/x", "/data2", "/data/in/y", "/data two/x/y")
    }
    assert found == {
        "/": "ext4",
        "/data": "nfs4",
        "/data/x": "nfs4",
        "/data2": "ext4",
        "/data/in/y": "xfs",
        "/data two/x/y": "tmpfs",
    }
    assert mount_of(Path("/data"), tmp_path / "nothing").kind == ""


@pytest.mark.real
def test_a_mount_is_found_whatever_characters_its_path_has(tmp_path: Path) -> None:
    with small_disk(tmp_path / "Müller\\040 größe\t日本", 1) as disk:
        assert mount_of(disk / "data") == (str(disk), "tmpfs")


def test_who_holds_a_store_is_found_by_its_file(tmp_path: Path) -> None:
    status = tmp_path.stat()
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = tmp_path / "locks"
    locks.write_text(f"1: POSIX  ADVISORY  WRITE 11 {file} 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 {file}1 0 EOF\n")
    assert holder_of(tmp_path, locks) is None
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 13 {file} 0 EOF\n")
    assert holder_of(tmp_path, locks) == 13
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE -1 {file} 0 EOF\n")
    assert holder_of(tmp_path, locks) == 0
    assert holder_of(tmp_path, tmp_path / "nothing") is None


def test_a_service_of_another_version_is_named_with_how_to_install_the_command_of_it(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "2.0; echo"
    monkeypatch.setattr("oncelog_service.watch.watch.oncelog", SimpleNamespace(__version__=other))
    found = doctor(url=running.url, code=11)
    assert found.keys() == {"versions_differ"}
    (command,) = found["versions_differ"]["commands"]
    assert shlex.split(command) == ["pip", "install", f"oncelog[service]=={other}"], (
        "extras, and whatever a version is, are quoted"
    )
