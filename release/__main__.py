"""`make release VERSION=X.Y.Z`: everything that a release takes, up to the tag. Uploads and pushes nothing. docs/releasing.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from release import building, changelog, sbom, trying
from release.changelog import NotReady

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "release/constraints.txt"
CONSTRAINTS = ROOT / "constraints.txt"


def main(arguments: list[str] | None = None) -> int:
    """Runs the steps; what is not ready is one sentence and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("version", help="the version that is to be released, as oncelog.__version__ says it")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="where wheel, sdist, SBOM and hashes go")
    parser.add_argument("--rehearse", action="store_true", help="from any branch, without the tests and without a tag")
    asked = parser.parse_args(arguments)
    try:
        release(asked.version, asked.into, asked.rehearse, lambda step: print(f"--- {step}", flush=True))
    except (NotReady, building.Differs, trying.Broken) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"error: {error.cmd[0]} ended with {error.returncode}: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    return 0


def release(version: str, into: Path, rehearse: bool, tell: Callable[[str], None]) -> None:
    """Checks, tests, builds and tags. Raises NotReady, Differs, Broken, CalledProcessError."""
    tell("the tree, the version and the changelog")
    check_tree(ROOT, version, rehearse)
    section = changelog.ready_section((ROOT / "CHANGELOG.md").read_text("utf-8"), version, datetime.now(UTC).date())
    if into.exists() and any(into.iterdir()):
        raise NotReady(f"{into} is not empty")
    if not rehearse:
        tell("the tests: make check test-all")
        subprocess.run(["make", "lint", "types", "contracts", "test-all"], cwd=ROOT, check=True)
        check_tree(ROOT, version, rehearse)  # tests write nothing that is not ignored
    with tempfile.TemporaryDirectory(prefix="oncelog-release-") as name:
        work = Path(name)
        tell("wheel and sdist, built three times and compared")
        built = building.build_twice(ROOT, "HEAD", work, into)
        [wheel] = [each for each in built if each.suffix == ".whl"]
        tell("the wheel, tried in places where nothing else is")
        try_wheel(wheel, version, work)
        tell("the bill of materials")
        built.append(write_sbom(wheel, version, work, into))
    (into / "SHA256SUMS").write_text(building.hashes(built))
    if rehearse:
        tell(f"rehearsed: {into} has all files of {version}; nothing was tested, and nothing is tagged")
        return
    subprocess.run(["git", "tag", "-a", f"v{version}", "-m", f"oncelog {version}\n\n{section.text}"], cwd=ROOT, check=True)
    tell(f"v{version} is tagged here, and {into} has its files; docs/releasing.md says how they get out")


def check_tree(root: Path, version: str, rehearse: bool) -> None:
    """Raises NotReady: what is built would not be what is on main, or says another version, or was released before."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    if changed := git("status", "--porcelain"):
        raise NotReady(f"the tree is not clean: {changed.splitlines()[0].strip()}")
    if not rehearse and (branch := git("rev-parse", "--abbrev-ref", "HEAD")) != "main":
        raise NotReady(f"a release is made on main, and this is {branch}")
    if git("tag", "--list", f"v{version}"):
        raise NotReady(f"v{version} is tagged already")
    said = git("grep", "-h", "^__version__ = ", "HEAD", "--", "sdk/oncelog/__init__.py")
    if said != f'__version__ = "{version}"':
        raise NotReady(f"sdk/oncelog/__init__.py says {said}, not {version}")


def try_wheel(wheel: Path, version: str, work: Path) -> None:
    """Raises Broken."""
    alone, service = trying.Installed(work / "alone"), trying.Installed(work / "service")
    alone.install(wheel, CONSTRAINTS)
    trying.try_sdk(alone)
    service.install(wheel, CONSTRAINTS, "service")
    trying.try_service(service, version)
    trying.try_typing(service, [sys.executable, "-m", "mypy"])


def write_sbom(wheel: Path, version: str, work: Path, into: Path) -> Path:
    """Writes the bill of an installation with all extras, in the versions that are pinned."""
    tool, whole = work / "tool", trying.Installed(work / "whole")
    subprocess.run([sys.executable, "-m", "venv", str(tool)], check=True)
    pip = [str(tool / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--require-hashes"]
    subprocess.run([*pip, "-r", str(TOOLS)], check=True)
    whole.install(wheel, CONSTRAINTS, "all")
    written = into / f"oncelog-{version}.cdx.json"
    written.write_text(sbom.text_of(sbom.of_installation(tool / "bin/cyclonedx-py", whole.bin / "python")), "utf-8")
    return written


if __name__ == "__main__":
    sys.exit(main())
