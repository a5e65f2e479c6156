"""How far a command has come, for who looks on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from oncelog_service.cli.output import progress_bar

Tell: TypeAlias = Callable[[int | None, str], None]
"""Is told how much is done, where that is known, and a text."""


@contextmanager
def telling(is_wanted: bool, what: str, total: int | None = None) -> Iterator[Tell]:
    """Draws a bar on stderr; where that is no terminal nothing is drawn, and nothing loaded that could."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda done, text: None
        return
    with progress_bar(False, "{task.fields[text]}") as bar:
        task = bar.add_task(what, total=total, text="")
        yield lambda done, text: bar.update(task, completed=done, text=text)
