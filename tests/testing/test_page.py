"""The tour of docs/testing.md: its files are written, its tests run, and what they say is what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from oncelog.testing import Faults
from oncelog.testing.judge import Kind
from oncelog_service.testing.plan import REQUESTS
from tests.docs.pages import ROOT, assert_shown, blocks, file_of
from tests.patience import PATIENCE
from tests.testing.test_plugin import PLUGIN

pytestmark = pytest.mark.real

PAGE = ROOT / "docs" / "testing.md"


def run_pytest(command: str, folder: Path) -> str:
    arguments = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", *shlex.split(command)[1:]]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout + done.stderr


@pytest.mark.real
def test_what_the_tour_shows_is_so(tmp_path: Path) -> None:
    said = ""
    for block in blocks(PAGE):
        if block.language == "python":
            name = file_of(block)
            assert name is not None, f"{block} names no file"
            (tmp_path / name).write_text(block.text)
        elif block.text.startswith("pytest"):
            said = run_pytest(block.text, tmp_path)
        elif block.language == "output":
            assert_shown(block, said)
        else:
            assert block.text.startswith("pip install"), f"{block} is not run"


def test_every_fault_kind_of_request_and_finding_stands_there_and_nothing_else() -> None:
    text = PAGE.read_text("utf-8")
    faults = {name for name in vars(Faults) if not name.startswith("_")} - {"planned", "verify", "looking", "around"}
    first_cells = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(first_cells) == sorted([*faults, *get_args(Kind)])
    kinds = re.search(r"Which requests: their kind \((.*?)\)", text, re.DOTALL)
    assert kinds is not None
    assert tuple(re.findall(r'`"(\w+)"`', kinds[1])) == REQUESTS
