"""A Python that has what oncelog needs, and not oncelog: as on executors where nobody has installed it."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from pathlib import Path


def stranger(directory: Path) -> Path:
    """A command like ``python``. Without ``site`` nothing reads the .pth file by which this checkout is found."""
    script = directory / "python-without-oncelog"
    installed = shlex.quote(sysconfig.get_path("purelib"))
    python = shlex.quote(sys.executable)
    script.write_text(f'#!/bin/sh\nPYTHONPATH={installed}"${{PYTHONPATH:+:$PYTHONPATH}}" exec {python} -S "$@"\n')
    script.chmod(0o755)
    return script
