"""docs/securing.md, each set-up as it stands there: what comes before the service begins, how it begins, what its clients do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from tests.docs.pages import ROOT, Block, blocks
from tests.patience import PATIENCE
from tests.world.service import ServiceProcess

PAGE = ROOT / "docs" / "securing.md"
SECRET = re.compile(rb"oncelog_[A-Za-z0-9_-]{40,}")

pytestmark = pytest.mark.real


def set_ups() -> dict[str, list[Block]]:
    """The blocks of each section that begins a service."""
    found: dict[str, list[Block]] = {}
    lines = PAGE.read_text("utf-8").splitlines()
    for block in blocks(PAGE):
        heading = next(line for line in reversed(lines[: block.line]) if line.startswith("## "))
        found.setdefault(heading.removeprefix("## "), []).append(block)
    return found


class SetUp:
    """A directory in which one of them is tried."""

    def __init__(self, work: Path, found: list[Block]) -> None:
        self.work = work
        self.before, self.config, *self.after = found
        self.set = dict(line.split("=", 1) for line in self.config.text.splitlines())
        self.said = b""

    def run(self, block: Block, url: str = "") -> str:
        """As it stands there, but for the port; ``url``: of the service that the test has begun."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "ONCELOG_URL": url}
        text = block.text.replace("https://localhost:7070", url)
        done = subprocess.run(
            ["sh", "-eu", "-c", text], cwd=self.work, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        self.said += (done.stdout + done.stderr).encode()
        return done.stdout

    def service(self) -> ServiceProcess:
        """With the settings of the page, their files where they are."""
        names = {"ONCELOG_AUDIT_LOG", "ONCELOG_TLS_CERTIFICATE", "ONCELOG_TLS_KEY", "ONCELOG_TLS_CLIENT_CA"}
        settings = {
            name.removeprefix("ONCELOG_").lower(): str(self.work / value) if name in names else value
            for name, value in self.set.items()
            if name != "ONCELOG_STORE"
        }
        service = ServiceProcess(self.work / "data", **settings)
        service.verify = str(self.work / "ca.pem") if "tls_certificate" in settings else True
        service.log_to = self.work / "service.log"
        return service


@pytest.mark.parametrize("name", [name for name, found in set_ups().items() if len(found) > 2])
def test_a_set_up_is_as_it_is_described(name: str, tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed here")
    tried = SetUp(tmp_path, set_ups()[name])
    tried.run(tried.before)
    open_to_others = [
        path.name for path in tmp_path.iterdir() if path.suffix in (".token", ".key") and path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
    service = tried.service()
    if "ONCELOG_TLS_CERTIFICATE" in tried.set:
        service.url = service.url.replace("127.0.0.1", "localhost")
    with service:
        if "ONCELOG_TLS_CERTIFICATE" in tried.set:
            assert "ONCELOG_URL=https://localhost:7070" in tried.after[0].text, "who follows the page alone asks http"
        printed = [tried.run(block, service.url) for block in tried.after]
        assert any('{"id": 1}' in each for each in printed) or "read" not in tried.after[-1].text
        assert requests.get(f"{service.url}/v1/namespaces", verify=service.verify, timeout=60).status_code == 401
        if service.url.startswith("https"):
            plain = requests.get(f"http://localhost:{service.port}/healthz", timeout=60)
            assert plain.status_code == 400
    secrets = {found for token in tmp_path.glob("*.token") for found in SECRET.findall(token.read_bytes())}
    assert len(secrets) >= 1
    for path in [*(tmp_path / "data").rglob("*"), tmp_path / "service.log", *tmp_path.glob("*.jsonl")]:
        if path.is_file():
            assert not any(secret in path.read_bytes() for secret in secrets), path
    assert not any(secret in tried.said for secret in secrets)


def test_the_page_has_three() -> None:
    assert sum(len(found) > 2 for found in set_ups().values()) == 3
