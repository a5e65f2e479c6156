"""The brokers' clients for Python, installed when they are first needed: nobody who only tests has to have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.brokers.jars import PLACE

_PINNED = Path(__file__).with_name("constraints.txt")


def install() -> None:
    """Have `confluent_kafka` and `pulsar` at hand in this process, pinned with their hashes, in a folder of their own."""
    ready = PLACE / f"ready-{sys.version_info.major}.{sys.version_info.minor}"
    if not ready.exists() or ready.read_text() != _PINNED.read_text():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "--no-deps"]
        subprocess.run([*command, "--require-hashes", "--target", str(PLACE), "-r", str(_PINNED)], check=True)
        ready.write_text(_PINNED.read_text())
    if str(PLACE) not in sys.path:
        sys.path.append(str(PLACE))
