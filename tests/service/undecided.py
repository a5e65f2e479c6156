"""What a model of a log knows of transactions, and how one ends in the log and in the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tests.service.house import House


class Written(Protocol):
    """A message of the log."""

    @property
    def pointer(self) -> int | None: ...


W = TypeVar("W", bound=Written)


@dataclass
class Undecided(Generic[W]):
    """The messages, and the write pointers that are not decided or were rolled back."""

    log: list[W] = field(default_factory=list)
    undecided: set[int] = field(default_factory=set)
    rolled_back: set[int] = field(default_factory=set)

    @property
    def stable(self) -> int:
        return next((offset for offset, each in enumerate(self.log) if each.pointer in self.undecided), len(self.log))

    async def end(self, house: House, at: int, commit: bool) -> None:
        """End one of the transactions, if there is any, there and here."""
        if not self.undecided:
            return
        pointer = sorted(self.undecided)[at % len(self.undecided)]
        await (house.transactions.commit(pointer) if commit else house.transactions.abort(pointer))
        await house.log.settle(pointer, commit)
        self.undecided.discard(pointer)
        if not commit:
            self.rolled_back.add(pointer)
