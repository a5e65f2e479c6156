"""Builds wheel and sdist from a commit, so that whoever builds them again gets the same bytes.

Each build begins with the commit alone, in a directory of its own: what lies about in a checkout is not in it. The time in the
archives is that of the commit. The wheel is built once more from the sdist, which is what others build from.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path


class Differs(Exception):
    """Two builds of one commit are not the same."""


def commit_time(root: Path, commit: str) -> str:
    """The commit's time in seconds since 1970, as builds take it."""
    return _git(root, "show", "-s", "--format=%ct", commit).decode().strip()


def check_out(root: Path, commit: str, place: Path) -> Path:
    """Puts the files of a commit, and no others, into a new directory."""
    place.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(_git(root, "archive", "--format=tar", commit))) as files:
        files.extractall(place, filter="tar")
    return place


def build(source: Path, into: Path, epoch: str, *kinds: str) -> list[Path]:
    """Builds sdist and wheel, or these kinds alone. The back end is this Python's: constraints.txt pins it."""
    wanted = [word for kind in kinds for word in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *wanted, "-d", str(into)]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    return sorted(into.iterdir())


def build_twice(root: Path, commit: str, work: Path, into: Path) -> list[Path]:
    """Builds a commit twice, in different places and with different umasks, and the wheel a third time, from the sdist.

    Returns wheel and sdist, which are in ``into``. Raises Differs.
    """
    epoch = commit_time(root, commit)
    first = build(check_out(root, commit, work / "first"), into, epoch)
    umask = os.umask(0o077)
    try:
        again = build(check_out(root, commit, work / "somewhere" / "else"), work / "again", epoch)
        [sdist] = [each for each in first if each.name.endswith(".tar.gz")]
        with tarfile.open(sdist) as files:
            files.extractall(work / "sdist", filter="data")
        from_sdist = build(next((work / "sdist").iterdir()), work / "from-sdist", epoch, "wheel")
    finally:
        os.umask(umask)
    for other in (again, from_sdist):
        for each in other:
            if each.read_bytes() != (into / each.name).read_bytes():
                raise Differs(f"{each.name} is not the same when it is built again; compare {into / each.name} with {each}")
    if [each.name for each in first] != [each.name for each in again]:
        raise Differs(f"{[each.name for each in again]} were built the second time")
    return first


def hashes(files: list[Path]) -> str:
    """What `sha256sum --check` reads."""
    return "".join(f"{sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True).stdout
