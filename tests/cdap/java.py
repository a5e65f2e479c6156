"""CDAP's jars from Maven Central, and our Java beside them: what the tests here run in a JVM."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE / "java"
MISSING = next(
    (f"no {tool} on the PATH; .ci/run installs it" for tool in ("java", "javac", "mvn") if shutil.which(tool) is None), ""
)
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # what runs for seconds is not worth a better compiler
# What Java has closed since 9: Guice makes classes, and CDAP's LevelDB unmaps files.
OPENED = tuple(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.nio", "sun.nio.ch"))

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>oncelog</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def jars(version: str) -> Path:
    """A folder with the jars that cdap-VERSION.txt names, and with nothing that they depend on; fetched once, and kept."""
    names = (HERE / f"cdap-{version}.txt").read_text().split()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncelog-tests"
    folder = cache / f"cdap-{version}-{hashlib.sha256(repr(names).encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Maven's own folder is not for two at a time
        if not folder.exists():
            _fetch(names, folder)
    return folder


def _fetch(names: list[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        pom, copied = Path(unfinished, "pom.xml"), Path(unfinished, "jars")
        pom.write_text(_POM.format("".join(map(_dependency, names))))
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        command = ["mvn", "-B", "-q", "-C", "-f", str(pom), goal, f"-DoutputDirectory={copied}"]
        environment = {**os.environ, "MAVEN_OPTS": " ".join((*QUICK, os.environ.get("MAVEN_OPTS", "")))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            pytest.skip(f"Maven does not get CDAP's jars: {done.stdout[-500:]}")
        copied.rename(folder)


def _dependency(name: str) -> str:
    group, artifact, version, *classifier = name.split(":")
    names = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    return f"<dependency>{names}{''.join(f'<classifier>{each}</classifier>' for each in classifier)}{_ALONE}</dependency>"


def compiled(version: str, folder: Path, *sources: str) -> str:
    """A class path: these of our sources, compiled into the folder, before CDAP's jars."""
    path = f"{jars(version)}/*"
    options = ("-J-XX:TieredStopAtLevel=1", "-nowarn", "-proc:none")
    subprocess.run(["javac", *options, "-cp", path, "-d", folder, *(SOURCES / each for each in sources)], check=True)
    return f"{folder}:{path}"


def jvm(path: str, *arguments: str) -> list[str]:
    """The command that runs a class with this class path."""
    return ["java", *QUICK, *OPENED, "-cp", path, *arguments]


@contextmanager
def cdap_server(folder: Path) -> Iterator[str]:
    """The URL of CDAP's own messaging server, of 6.10.0, on loopback; its data and our classes for it lie in the folder."""
    path = compiled("6.10.0", folder / "classes", "oncelog/CdapServer.java")
    command = jvm(path, "oncelog.CdapServer", str(folder / "data"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()
