"""What is verified and shown alike, over HTTP and in a store."""

from __future__ import annotations

from rich.progress import Progress, TaskID

from oncelog.errors import TopicDamaged
from oncelog.wire.models import Verification

Name = tuple[str, str]
"""(namespace, topic)."""


def task_of(bar: Progress, name: Name) -> TaskID:
    """A line that shows how far it is."""
    return bar.add_task(f"{name[0]}/{name[1]}", total=None, messages=0)


def damaged(name: Name, damage: TopicDamaged) -> Verification:
    """A log that cannot even be opened: nothing of it could be counted."""
    return Verification(
        namespace=name[0], topic=name[1], generation=0, messages=0, producers=0, duplicates=0, ok=False, problems=[damage.detail]
    )
