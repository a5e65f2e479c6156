"""Run the tests that were changed again and again beside busy processors: what passes there waits for no moment.

``make calm`` takes what has changed since the branch left main, with what is not committed; on main, since the commit before.
``ARGS`` names tests instead.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNS = 20
BUSY_PER_PROCESSOR = 2


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def base() -> str:
    """The commit since which tests have changed."""
    left = _git("merge-base", "HEAD", "main").strip()
    return "HEAD~" if left == _git("rev-parse", "HEAD").strip() and not _git("status", "--porcelain", "tests") else left


def changed(diff: str) -> dict[str, set[int]]:
    """File → lines that a diff without context has put there, of modules of tests."""
    found: dict[str, set[int]] = {}
    name = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            begin, count = int(hunk[1]), int(hunk[2] or 1)
            if re.search(r"(^|/)test_\w+\.py$", name):
                found.setdefault(name, set()).update(range(begin, begin + max(count, 1)))
    return found


def cases(name: str, text: str, lines: set[int]) -> list[str]:
    """The tests of a module in which such a line lies; the module, where one lies outside of them all."""
    inside: dict[int, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            inside.update(dict.fromkeys(range(begin, (node.end_lineno or begin) + 1), node.name))
    blank = {at for at, line in enumerate(text.splitlines(), 1) if not line.strip()}
    told = lines - blank
    return [name] if told - inside.keys() else sorted({f"{name}::{inside[at]}" for at in told})


@contextmanager
def busy() -> Iterator[None]:
    """Keep all processors busy, several times."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(BUSY_PER_PROCESSOR * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them, and return the status: 1 where one failed once."""
    parser = argparse.ArgumentParser(prog="python -m tests.calm", description="Run tests again and again beside busy processors.")
    parser.add_argument("tests", nargs="*", help="as pytest names them; else those that have changed")
    chosen: list[str] = parser.parse_args(arguments).tests
    if not chosen:
        lines = changed(_git("diff", "--unified=0", "--diff-filter=d", base(), "--", "tests"))
        new = _git("ls-files", "--others", "--exclude-standard", "--", "tests/test_*.py", "tests/**/test_*.py").split()
        chosen = [*new, *(each for name, some in lines.items() for each in cases(name, (ROOT / name).read_text("utf-8"), some))]
    if not chosen:
        print("no test has changed")
        return 0
    print(*chosen, sep="\n", flush=True)
    with busy():
        for run in range(1, RUNS + 1):
            print(f"run {run} of {RUNS}", flush=True)
            done = subprocess.run([sys.executable, "-m", "pytest", "-x", "-m", "not slow", *chosen], cwd=ROOT)
            if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
                print("only slow tests have changed")
                return 0
            if done.returncode:
                print(f"RED: in run {run} of {RUNS}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
