"""What a strict type checker makes of the SDK: the first lines of the README, and values typed by their codec."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

_VALUES = """
from datetime import datetime
from typing import Any, assert_type

from pydantic import BaseModel

from oncelog import Consumer, Message, Producer, Reader


class Flight(BaseModel):
    number: str


class Times:
    def encode(self, value: datetime) -> bytes:
        return value.isoformat().encode()

    def decode(self, data: bytes) -> datetime:
        return datetime.fromisoformat(data.decode())


assert_type(Producer("t"), Producer[bytes])
assert_type(Producer("t", name="p", gaps="refuse", codec="str"), Producer[str])
assert_type(Producer("t", codec=Flight, linger=0.1), Producer[Flight])
assert_type(Producer("t", codec=Times()), Producer[datetime])
assert_type(Producer("t", codec="json"), Producer[Any])
assert_type(next(iter(Reader("t", codec=Flight, timeout=0))).value, Flight)
assert_type(Reader("t", codec="str").read(), list[Message[str]])
assert_type(Consumer("t", "s", codec=Times(), ack_interval=2).receive()[0].value, datetime)
with Producer("t", codec=Flight) as producer:
    producer.send(Flight(number="UA 1545"))
    producer.send("UA 1545")  # type: ignore[arg-type]
Producer("t", lingr=1)  # type: ignore[call-overload]
"""


def test_mypy_strict_knows_the_values_and_accepts_the_readme(tmp_path: Path) -> None:
    blocks = (ROOT / "README.md").read_text("utf-8").split("```python\n")[1:]
    (tmp_path / "readme.py").write_text("\n".join(block.split("```")[0] for block in blocks), "utf-8")
    (tmp_path / "values.py").write_text(_VALUES, "utf-8")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nwarn_unused_ignores = true\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "mypy.ini",
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "of_users"),
        "readme.py",
        "values.py",
    ]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
