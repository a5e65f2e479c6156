"""Every block of code in the documentation runs, against a real service, in the order of its page."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelog import telemetry
from oncelog_service.storage.open import default_store
from tests.docs.pages import PAGES, ROOT, Block, assert_shown, blocks, file_of, named
from tests.docs.quick_command import quick_command
from tests.patience import PATIENCE
from tests.world.service import running_service

pytestmark = pytest.mark.real

DEFAULT_URL = "http://127.0.0.1:7070"
NOT_RUN = {
    "make ": "makes a virtual environment, or runs these tests",
    "pip install ": "installs",
    "oncelog serve": "runs until it is stopped; the test has a service of its own",
    "oncelog pipeline ": "starts a Spark of its own, which takes long; tests/spark runs the pipelines, and how they are called",
}
"""Commands of shell blocks that are not run, by how they begin, and why."""
SHOWN_ONLY = {"text", "json", "ini", "toml", "py"}
"""Languages of blocks that show something. TOML is a file of settings, read in tests/behaviours/cli/test_config.py. JSON right
behind a command is held against what the command prints. "py" is Python for other systems."""
RUN_ELSEWHERE = {
    "docs/benchmarks.md": "benchmarks",
    "docs/securing.md": "tests/scenarios/test_securing.py",
    "docs/spark.md": "tests/spark/test_pages.py",
    "docs/testing.md": "tests/testing/test_page.py",
}
"""Pages that are kept true by something else, and by what."""

SETTINGS = {"docs/coming/cdap.md": {"cdap_clients": True}}
"""What the service of a page is told beside its defaults."""
STORES_OF_THEIR_OWN = {"docs/embedded.md", "docs/proof.md", "docs/securing.md", "docs/testing.md"}
"""Pages whose code begins its own, and meets none of what other pages make."""
_MAKES = re.compile(
    r'create_topic\((".+?")|^oncelog topic create (\S+)|-X PUT \S+/topics/([\w-]+)(?: |$)|for topic in \((.+)\):'
    r"|(sqlite:///\w+\.db)|(--store leveldb://\w\S+)",
    re.MULTILINE,
)
_SAID = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)


def is_run(block: Block) -> bool:
    """Whether a shell block is run; a block is run as a whole or not at all."""
    commands = [line for line in block.text.splitlines() if line and not line.startswith((" ", "#"))]
    left_out = [command for command in commands if command.startswith(tuple(NOT_RUN))]
    assert not left_out or left_out == commands, f"{block} mixes commands that are run with such that are not"
    return not left_out


def run_python(block: Block, variables: dict[str, Any], url: str) -> None:
    """Run the block; what it prints is what its comments say."""
    code = compile("\n" * (block.line - 1) + block.text.replace(DEFAULT_URL, url), str(block.page), "exec")
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, variables)
    said = _SAID.findall(block.text)
    if said:
        assert printed.getvalue().splitlines() == said, f"{block} prints something else than its comments say"


def run_shell(block: Block, url: str) -> str:
    """Run the block; what it prints."""
    path = os.pathsep.join([str(quick_command()), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-eu", "-c", block.text.replace(DEFAULT_URL, url)],
        env={**os.environ, "PATH": path, "ONCELOG_URL": url, "XDG_CONFIG_HOME": str(Path("config").absolute())},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{block} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def shape(value: Any) -> Any:
    """The members of a JSON value, without what differs from run to run."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else None


RUNNABLE = [page for page in PAGES if named(page) not in RUN_ELSEWHERE and blocks(page)]


@pytest.fixture
def switched() -> Iterator[None]:
    """What a page switches for its whole process, is switched back: other tests come behind it."""
    level = logging.getLogger("oncelog").level
    yield
    telemetry.uninstrument()
    logging.getLogger("oncelog").setLevel(level)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("page", RUNNABLE, ids=named)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch)


def run_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: Sequence[str] = ()) -> None:
    """Every block of a page in its order, in an empty directory, against a service of its own.

    Python that begins with its file's name is written there. An output is what the command before it prints.

    ``relative``: names of directories that are made absolute, for processes that began in another one.
    """
    found = blocks(page)
    if any(block.language == "sh" and "curl" in block.text and is_run(block) for block in found) and not shutil.which("curl"):
        pytest.skip("this page uses curl, which is not installed here")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    variables: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    with running_service(
        default_store(tmp_path / "data"), backup_root=work / "backups", **SETTINGS.get(named(page), {})
    ) as service:
        monkeypatch.setenv("ONCELOG_URL", service.url)
        for block in found:
            if block.language == "json" and printed is not None:
                expected, actual = json.loads(block.text), json.loads(printed.splitlines()[-1])
                assert shape(actual) == shape(expected), f"{block} is not what the command prints: {printed}"
            if block.language == "output":
                assert printed is not None, f"{block} has no command before it that is run"
                assert_shown(block, printed)
            printed = None
            if block.language == "python" and (name := file_of(block)) is not None:
                (work / name).write_text(block.text + "\n", "utf-8")
            elif block.language == "python":
                for name in relative:
                    block = replace(block, text=block.text.replace(f'"{name}"', f'"{work / name}"'))
                run_python(block, variables, service.url)
            elif block.language == "sh":
                printed = run_shell(block, service.url) if is_run(block) else None
            elif block.language != "output":
                assert block.language in SHOWN_ONLY, f"{block}: what is {block.language!r}?"


def test_pages_that_are_worked_through_on_one_service_make_nothing_of_one_name() -> None:
    pages: defaultdict[str, set[str]] = defaultdict(set)
    for page in PAGES:
        for found in _MAKES.finditer("\n".join(block.text for block in blocks(page))):
            made = "".join(filter(None, found.groups()))
            for name in re.findall(r'"(.+?)"', made) or [made]:
                # Those who come from elsewhere come from one place: their pages are one program.
                pages[name].add("docs/coming/" if page.parent.name == "coming" else named(page))
    assert {"orders", "flights", "sales", "sqlite:///shop.db"} < pages.keys(), "it finds what is made"
    shared = {name: made - STORES_OF_THEIR_OWN for name, made in pages.items()}
    assert {name: made for name, made in shared.items() if len(made) > 1} == {}


def test_programs_for_other_systems_compile() -> None:
    others = [block for page in PAGES for block in blocks(page) if block.language == "py"]
    assert len(others) > 8
    for block in others:
        compile(block.text, str(block), "exec")


def test_a_command_that_is_not_run_is_there_to_be_left_out() -> None:
    commands = [line for page in PAGES for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    unused = [begin for begin in NOT_RUN if not any(command.startswith(begin) for command in commands)]
    assert not unused, f"no page has a command that begins with {unused}"


def test_what_runs_a_page_elsewhere_is_there() -> None:
    assert [what for what in RUN_ELSEWHERE.values() if not (ROOT / what).exists()] == []


def test_every_make_target_in_the_documentation_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in PAGES:
        named_targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE))
        assert named_targets <= targets, f"{named(page)} names targets that do not exist"
