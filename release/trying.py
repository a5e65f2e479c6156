"""Installs a wheel where nothing of the checkout is, and uses it as somebody would who has just installed it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 300
ALONE = {"oncelog", "httptools", "certifi", "fastavro", "pydantic"}
"""What the SDK asks for, and itself."""
_BENEATH_PYDANTIC = {"annotated-types", "pydantic-core", "typing-extensions", "typing-inspection"}
_TRIED = """
import sys
from oncelog import Client, Producer, Reader
url = sys.argv[1]
with Client(url) as client:
    client.create_topic("tried")
for _ in range(2):
    with Producer("tried", name="p", codec="str", url=url) as producer:
        print(producer.send("once", sequence_id=0).status)
with Reader("tried", start="earliest", timeout=0, codec="str", url=url) as reader:
    print([message.value for message in reader])
"""


_WHEELS = ("--only-binary=:all:", "--no-binary=pyspark")
"""Nothing is compiled; PySpark, which is Python alone, has no wheel."""


class Broken(Exception):
    """What was installed does not do what it should."""


class Installed:
    """A virtual environment with a wheel in it."""

    def __init__(self, place: Path, python: str = sys.executable) -> None:
        """Makes the environment, without pip: nothing is in it but what is installed."""
        self.place = place
        self.bin = place / "venv" / "bin"
        subprocess.run([python, "-m", "venv", "--without-pip", str(place / "venv")], check=True)

    def install(self, wheel: Path, constraints: Path, *extras: str) -> None:
        """Installs the wheel with these extras, all else in the versions that are pinned there, built by nobody here."""
        versions = self.place / "versions.txt"
        versions.write_text(versions_of(constraints.read_text()))
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check", "--quiet"]
        named = f"{wheel.resolve()}[{','.join(extras)}]" if extras else str(wheel.resolve())
        subprocess.run([*pip, "install", *_WHEELS, "--constraint", str(versions), named], check=True)

    def run(self, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, in a directory where nothing is. Raises Broken: another exit code."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self._empty(), env=_nothing_of_ours(), capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != code:
            raise Broken(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def packages(self) -> set[str]:
        """The names of all that is installed."""
        listed = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
        return {re.sub("[-_.]+", "-", name).lower() for name in json.loads(self.run("python", "-c", listed).stdout)}

    @contextmanager
    def serving(self) -> Any:
        """Serves on a free port; yields what it says when it is ready, and stops it at the end. Raises Broken."""
        command = [str(self.bin / "oncelog"), "serve", "--port", "0", "--json"]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command, cwd=self._empty(), env=_nothing_of_ours(), stdout=subprocess.PIPE, stderr=errors
            ) as service,
        ):
            try:
                assert service.stdout is not None
                line = service.stdout.readline()
                if not line:
                    errors.seek(0)
                    raise Broken(f"oncelog serve: {errors.read().decode()}")
                yield json.loads(line)
            finally:
                service.terminate()
                service.wait(SECONDS)
        if service.returncode:
            raise Broken(f"oncelog serve ended with {service.returncode}")

    def _empty(self) -> Path:
        place = self.place / "empty"
        place.mkdir(exist_ok=True)
        return place


def versions_of(constraints: str) -> str:
    """Pinned versions as pip takes them for constraints beside a file: without hashes and extras."""
    lines = [line.removesuffix("\\").strip() for line in constraints.splitlines() if not line.startswith((" ", "#"))]
    return "".join(re.sub(r"\[[^]]*\]", "", line) + "\n" for line in lines if line)


def try_sdk(installed: Installed) -> None:
    """Looks whether the wheel alone brings the SDK and no more, and the command says what it lacks in a line. Raises Broken."""
    found = installed.packages()
    if found != ALONE | _BENEATH_PYDANTIC:
        raise Broken(f"the SDK alone brings {sorted(found)}")
    installed.run("python", "-c", "from oncelog import Client, Producer, Reader, AsyncClient; Client('http://127.0.0.1:9')")
    said = installed.run("oncelog", "--version", code=1).stderr
    if "pip install 'oncelog[service]'" not in said or said.count("\n") != 1:
        raise Broken(f"without its extra the command says: {said}")


def try_service(installed: Installed, version: str) -> str:
    """Serves, publishes twice, reads once; returns the URL of the store that it chose. Raises Broken."""
    said = installed.run("oncelog", "--version").stdout.strip()
    if said != f"oncelog {version}":
        raise Broken(f"oncelog --version says {said!r}")
    with installed.serving() as ready:
        told = installed.run("python", "-c", _TRIED, ready["url"]).stdout.split("\n")
        if told[:3] != ["stored", "duplicate", "['once']"]:
            raise Broken(f"publishing twice and reading gave {told}")
        read = installed.run("oncelog", "read", "tried", "--url", ready["url"]).stdout
        if read != "once\n":
            raise Broken(f"oncelog read printed {read!r}")
        page = f"import urllib.request as r; print(b'<html' in r.urlopen({ready['url'] + '/console'!r}).read().lower())"
        if installed.run("python", "-c", page).stdout.strip() != "True":
            raise Broken("there is no page at /console")
    return str(ready["store"])


def try_typing(installed: Installed, mypy: Sequence[str]) -> None:
    """Looks whether a strict type checker believes the types of all four packages. Raises Broken."""
    names = "oncelog, oncelog_dedup, oncelog_service, pyspark_oncelog"
    program = installed.place / "typed.py"
    program.write_text(f"import {names}\nfrom oncelog import Producer\nreveal_type(Producer.send)\n")
    command = [*mypy, "--strict", "--python-executable", str(installed.bin / "python"), str(program)]
    done = subprocess.run(command, cwd=installed.place, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode or "untyped" in done.stdout:
        raise Broken(f"types: {done.stdout}{done.stderr}")


def _nothing_of_ours() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ONCELOG_", "VIRTUAL_ENV"))}
