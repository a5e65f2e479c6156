"""deploy/oncelog.service: systemd takes it, and it is as closed as docs/operating.md says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.patience import PATIENCE

PAGE = ROOT / "docs" / "operating.md"
ANALYZE = shutil.which("systemd-analyze")

CLOSED = """\
Type=notify
WatchdogSec=60
User=oncelog
StateDirectory=oncelog
StateDirectoryMode=0700
UMask=0077
LimitCORE=0
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
RestrictNamespaces=yes
MemoryDenyWriteExecute=yes
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
RestrictSUIDSGID=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
LockPersonality=yes
""".splitlines()


def unit() -> str:
    return (ROOT / "deploy" / "oncelog.service").read_text("utf-8")


def test_the_unit_runs_as_its_own_user_and_is_closed() -> None:
    lines = unit().splitlines()
    assert [each for each in CLOSED if each not in lines] == []
    assert not [line for line in lines if re.match("Environment=.*(TOKEN|PASSWORD)=|.*--token ", line)], "no secret stands in it"


@pytest.mark.real
@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on the PATH")
def test_systemd_takes_the_unit_and_rates_it_as_the_page_says(tmp_path: Path) -> None:
    assert ANALYZE is not None
    file = tmp_path / "oncelog.service"
    file.write_text(unit().replace("/opt/oncelog/bin/oncelog", sys.executable) + "\n")
    verified = subprocess.run([ANALYZE, "verify", file], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (verified.returncode, verified.stderr) == (0, "")
    command = [ANALYZE, "security", "--offline=true", "--no-pager", file]
    rated = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE).stdout
    exposure = re.search(r"Overall exposure level for oncelog.service: ([0-9.]+)", rated)
    said = re.search(r"`systemd-analyze security oncelog` rates it ([0-9.]+) ", PAGE.read_text("utf-8"))
    assert exposure is not None
    assert said is not None
    assert float(exposure[1]) <= float(said[1]) + 0.2, "another version of systemd may count other things"
