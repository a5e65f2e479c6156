"""docs/cli.md: every command and option is in it, nothing that is not there, and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from oncelog_service.cli import app
from oncelog_service.config import Settings
from tests.behaviours.cli.support import run
from tests.support import RunningService

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
_EVERYWHERE, *_SECTIONS = re.split(r"^## `(?=oncelog )", PAGE, flags=re.MULTILINE)
SECTIONS = {section.partition("`")[0]: section for section in _SECTIONS}


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, sub in command.commands.items():
            yield from _commands(sub, f"{path} {name}")
    else:
        yield path, command


def _options(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")}


ROOT = typer.main.get_command(app)
COMMANDS = dict(_commands(ROOT, "oncelog"))


def _named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def test_every_command_has_its_section_and_no_other_has_one() -> None:
    assert SECTIONS.keys() == COMMANDS.keys()
    assert len(COMMANDS) >= 30


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_described_and_no_other(path: str) -> None:
    options, everywhere = _options(COMMANDS[path]), _named(_EVERYWHERE)
    assert options - everywhere <= _named(SECTIONS[path])
    assert _named(SECTIONS[path]) <= options | everywhere
    assert "--json" in options


def test_the_options_of_the_program_itself_are_described() -> None:
    assert _options(ROOT) <= _named(_EVERYWHERE)


def test_every_setting_is_an_option_of_serve() -> None:
    settings = {"--" + name.replace("_", "-") for name in Settings.model_fields}
    assert settings < _options(COMMANDS["oncelog serve"])
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_helps(path: str) -> None:
    result = run(*path.split()[1:], "--help")
    assert result.exit_code == 0
    assert "Usage: " + path in result.stdout


def test_the_examples_run(running: RunningService, tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) > 10
    environment = {
        **os.environ,
        "ONCELOG_URL": running.url,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = "set -e -o pipefail\n" + "".join(blocks)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(1,000 stored, 0 duplicates)" in done.stdout
    assert "(0 stored, 0 duplicates, 1,000 already there and skipped)" in done.stdout
