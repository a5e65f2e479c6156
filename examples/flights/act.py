"""What the demo's acts share: telling what happens, killing, waiting, and the words of a proof."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console

from flights.processes import Child, Crew, Unexpected
from oncelog import Client

STALLED_SECONDS = 60.0
"""Without any progress for so long, something is wrong."""


@dataclass
class Story:
    """Prints what happens, as it happens."""

    console: Console
    begun: float = field(default_factory=time.monotonic)
    kills: int = 0

    def tell(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.begun:6.1f} s[/]  {text}", highlight=False, soft_wrap=True)


class Act(ABC):
    """A play with processes that are killed, and a proof at its end."""

    title: str
    proved: str
    """What can be said when there are no problems."""
    failed: str
    """What has to be said otherwise."""
    stalled_seconds = STALLED_SECONDS

    def __init__(self, crew: Crew, client: Client, story: Story) -> None:
        self.crew = crew
        self.client = client
        self.story = story

    @abstractmethod
    def run(self) -> list[str]:
        """The problems found; none if everything is as it should be."""

    @abstractmethod
    def show(self) -> None:
        """The numbers of the run."""

    def kill(self, child: Child) -> bool:
        """SIGKILL. False when it was done before."""
        if child.kill():
            self.story.kills += 1
            self.story.tell(f"[bold red]kill -9[/] {child.name}")
            return True
        child.check()
        self.story.tell(f"{child.name} was done before it could be killed")
        return False

    def wait(self, until: Callable[[], bool], progress: Callable[[], int]) -> None:
        """Until something holds. Raises Unexpected when a process failed, or nothing moves any more."""
        seen, since = -1, time.monotonic()
        while not until():
            self.crew.check()
            now = progress()
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > self.stalled_seconds:
                raise Unexpected(f"nothing has moved for {self.stalled_seconds:.0f} s")
            time.sleep(0.005)

    def tell_proof(self, claim: str, problems: list[str]) -> None:
        """Whether a claim holds."""
        self.story.tell(f"[green]proved:[/] {claim}" if not problems else f"[red]WRONG:[/] not so: {claim}")
