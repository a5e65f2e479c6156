"""docs/cli.md: every command and option is in it, nothing that is not there, and its examples run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from oncelog_service.cli import app
from oncelog_service.cli.frame.lazy import Later
from oncelog_service.config import Settings
from tests.behaviours.cli.support import run

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "cli.md").read_text()
_EVERYWHERE, *_SECTIONS = re.split(r"^## `(?=oncelog )", PAGE, flags=re.MULTILINE)
SECTIONS = {section.partition("`")[0]: section for section in _SECTIONS}
for each in ("oncelog serve", "oncelog config show"):
    SECTIONS[each] += (DOCS / "settings.md").read_text()  # which has its options


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, Later):
        command = command.real()
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
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*|(?<=`)-[a-zA-Z](?=`)", text))


def test_every_command_has_its_section_and_no_other_has_one() -> None:
    assert SECTIONS.keys() == COMMANDS.keys()
    assert len(COMMANDS) >= 30


def test_every_option_is_described_and_no_other() -> None:
    everywhere = _named(_EVERYWHERE)
    assert _options(ROOT) <= everywhere
    for path, command in COMMANDS.items():
        options = _options(command)
        assert options - everywhere <= _named(SECTIONS[path]) <= options | everywhere, path
        assert "--json" in options, path


def test_every_setting_is_an_option_of_serve() -> None:
    settings = {"--" + name.replace("_", "-") for name in Settings.model_fields}
    assert settings < _options(COMMANDS["oncelog serve"])
    assert all(field.description for field in Settings.model_fields.values())


def test_every_group_of_commands_helps() -> None:
    for path in {path.rpartition(" ")[0] for path in COMMANDS}:
        result = run(*path.split()[1:], "--help")
        assert (result.exit_code, f"Usage: {path}" in result.stdout) == (0, True), path
    assert "--expect-offset" in run("publish", "--help").stdout


def test_every_option_of_serve_that_a_page_shows_is_there() -> None:
    known = _options(COMMANDS["oncelog serve"]) | _options(ROOT)
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        for shown in re.findall(r"(?:^|`)oncelog serve([^`\n]*)", page.read_text("utf-8"), re.MULTILINE):
            assert _named(shown) <= known, page
