"""The pages of the documentation, taken apart: their code blocks, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{named(self.page)}:{self.line}"


def named(page: Path) -> str:
    """The page's path, as one says it."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The page's fenced blocks, in order; what only the generator of the site reads is none."""
    text = page.read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 2, found[1].strip(), found[2].rstrip("\n"))
        for found in _FENCE.finditer(text)
        if not found[1].startswith("{")
    ]


def links(page: Path) -> list[str]:
    """Where the page's links lead; what stands in code is none."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text("utf-8")))
    return _LINK.findall(prose)


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def file_of(block: Block) -> str | None:
    """The name of the file that a block of Python is, if it begins with one."""
    found = re.match(r"# (\w+\.py)\n", block.text)
    return None if found is None else found[1]


def assert_shown(block: Block, said: str) -> None:
    """Each line of the block was said; … is left out, how far it is set in does not count, nor what follows on the line."""
    for line in block.text.splitlines():
        pattern = r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in line.split())
        assert re.search(pattern, said), f"{block}: {line!r} is not in\n{said}"
