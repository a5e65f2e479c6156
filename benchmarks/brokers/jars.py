"""What Maven brings: the class path of a broker, kept in ~/.m2 as for everybody."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
PLACE = _HERE.parents[1] / ".venv-brokers"
"""For what is made of it here, and for the clients for Python."""
QUIET = [f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}", "-Djava.util.logging.config.file=/dev/null"]
"""Pulsar's jars bring a configuration that says everything, and on stdout."""
_JAVA = 17
"""Kafka 4's brokers need it."""


def missing() -> str | None:
    """Why no broker can run here, in a sentence; None: they can."""
    absent = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if absent:
        return f"Kafka and Pulsar are left out: there is no {' and no '.join(absent)} on the PATH."
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < _JAVA:
        return f"Kafka and Pulsar are left out: they need Java {_JAVA} or later, and this one is {found[1] if found else 'none'}."
    return None


@cache
def class_path(broker: str) -> str:
    """All jars of this broker, downloaded the first time. Raises RuntimeError with Maven's own words if they cannot be."""
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as home:
        file = Path(home, "class-path")
        command = ["mvn", "-q", "-B", "-ntp", "-f", str(_HERE / f"{broker}.xml"), "dependency:build-classpath"]
        done = subprocess.run([*command, f"-Dmdep.outputFile={file}"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Maven does not bring {broker}'s jars:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return file.read_text()


@cache
def java_program(name: str, broker: str) -> list[str]:
    """The command that runs the program of this name in this folder, with this broker's jars."""
    source, classes = _HERE / f"{name}.java", PLACE / "classes"
    made = classes / f"{name}.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["javac", "-cp", class_path(broker), "-d", str(classes), str(source)], check=True)
    return ["java", *QUIET, "-cp", f"{classes}:{class_path(broker)}", name]


def version(broker: str) -> str:
    """That of the broker that is run, from its pom."""
    artifact = {"kafka": "kafka_2.13", "pulsar": "pulsar-broker"}[broker]
    found = re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>(.+?)<", (_HERE / f"{broker}.xml").read_text())
    assert found is not None
    return found[1]
