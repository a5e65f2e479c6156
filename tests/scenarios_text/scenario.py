"""A scenario in its file: sentences, a verdict that says by which page it is right, and lines of deeds and what comes of them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.scenarios_text.stage import Misspelt, Stage
from tests.world.virtual.chance import seeded
from tests.world.virtual.outside import Outside

FOLDER = Path(__file__).parent
ARROW = " -> "
VERDICT = re.compile(r"# right because: (?P<page>[\w/-]+\.md)#(?P<anchor>[\w-]+) (?P<digest>\w+|\?)")


class Scenario(NamedTuple):
    """A file, taken apart."""

    path: Path
    head: list[str]
    """Its comments."""
    deeds: list[str]
    expected: list[str]
    lines: list[int]
    """The number of each deed's line in the file."""

    @property
    def digest(self) -> str:
        """Of what is expected, and of what for."""
        lines = "\n".join(map(ARROW.join, zip(self.deeds, self.expected, strict=True)))
        return hashlib.sha256(lines.encode()).hexdigest()[:8]

    def verdict(self) -> re.Match[str] | None:
        """By which page it is right, and the digest of what that was said of; ``?`` as long as nobody has judged it."""
        return next(filter(None, map(VERDICT.fullmatch, self.head)), None)

    def play(self) -> list[str]:
        """What comes of each line now. Raises Misspelt: a deed has a word that is unknown, or lacks one."""
        outside = Outside()
        with outside.quiet(), seeded(Random(0)):
            stage = Stage(**{each: f"# {each}" in self.head for each in ("locked", "foreign", "silent")})
            try:
                return stage.loop.run_until_complete(stage.play(self.deeds))
            except Misspelt as error:
                at = stage.playing
                raise Misspelt(f"{self.path.name}, line {self.lines[at]}: {error}: {self.deeds[at]}") from error
            finally:
                outside.end(stage.loop)

    def accept(self) -> None:
        """Write what comes of each line now into the file. Its verdict stays until somebody has judged it anew."""
        deeds, answers = self.deeds, self.play()
        width = max(map(len, deeds))
        lines = [*self.head, *(f"{deed:<{width}}{ARROW}{answer}" for deed, answer in zip(deeds, answers, strict=True))]
        self.path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> Scenario:
    """A scenario from its file."""
    lines = path.read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    numbers = [number for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    pairs = [lines[number - 1].partition(ARROW.strip()) for number in numbers]
    return Scenario(path, head, [deed.strip() for deed, *_ in pairs], [expected.strip() for *_, expected in pairs], numbers)


def scenarios() -> list[Scenario]:
    """All of them."""
    return [read(path) for path in sorted(FOLDER.glob("*.txt"))]
