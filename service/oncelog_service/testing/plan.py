"""Which requests meet which faults, decided by what they are and how many came before. Pure.

A fault counts the requests that it is about from when it is planned, and strikes the ``nth`` and as many behind it as it has
``times``; a request that is tried again is one more. So a plan is the same in every run in which its requests come in the same
order, however long each takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from oncelog_service.rest.routes import (
    ATOMIC_COMMIT,
    ATOMIC_COMMITS,
    NAMESPACE,
    STAGE,
    SUBSCRIPTION,
    TOPIC,
    TRANSACTION,
    TRANSACTIONS,
)

Request: TypeAlias = Literal[
    "publish",
    "poll",
    "receive",
    "acknowledge",
    "open_producer",
    "open_subscription",
    "begin",
    "stage",
    "store",
    "roll_back",
    "checkpoint",
    "commit",
    "abort",
    "offsets",
    "read_columns",
    "stats",
    "create_topic",
    "any",
]
"""What a request is: ``commit``, ``begin`` and ``abort`` are those of transactions and of atomic commits."""

ADDRESSES: Mapping[tuple[str, str], Request] = {
    ("POST", TOPIC + "/publish"): "publish",
    ("POST", TOPIC + "/poll"): "poll",
    ("POST", SUBSCRIPTION + "/receive"): "receive",
    ("POST", SUBSCRIPTION + "/ack"): "acknowledge",
    ("POST", TOPIC + "/producers"): "open_producer",
    ("POST", TOPIC + "/subscriptions"): "open_subscription",
    ("POST", TRANSACTIONS): "begin",
    ("POST", ATOMIC_COMMITS): "begin",
    ("PUT", STAGE): "stage",
    ("POST", TOPIC + "/store"): "store",
    ("POST", TOPIC + "/rollback"): "roll_back",
    ("POST", TRANSACTION + "/checkpoint"): "checkpoint",
    ("POST", TRANSACTION + "/commit"): "commit",
    ("POST", ATOMIC_COMMIT + "/commit"): "commit",
    ("POST", TRANSACTION + "/abort"): "abort",
    ("POST", ATOMIC_COMMIT + "/abort"): "abort",
    ("POST", NAMESPACE + "/offsets"): "offsets",
    ("GET", TOPIC + "/columns"): "read_columns",
    ("GET", TOPIC + "/stats"): "stats",
    ("PUT", TOPIC): "create_topic",
}


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))


_PATTERNS = [(method, _pattern(path), name) for (method, path), name in ADDRESSES.items()]
_ON_A_TOPIC = re.compile(_pattern(TOPIC).pattern + "(/.*)?")
_WITH_TOPIC = {"any", *(name for (_, path), name in ADDRESSES.items() if "{topic}" in path)}
REQUESTS: tuple[Request, ...] = get_args(Request)


class Asked(NamedTuple):
    """A request, by what it is."""

    request: Request
    """"any": none of those that have a name."""
    namespace: str | None = None
    topic: str | None = None


def asked(method: str, path: str) -> Asked:
    """What a request is, by its method and its decoded path."""
    for known, pattern, name in _PATTERNS:
        if known == method and (found := pattern.fullmatch(path)):
            names = found.groupdict()
            return Asked(name, names.get("namespace"), names.get("topic"))
    found = _ON_A_TOPIC.fullmatch(path)
    return Asked("any") if found is None else Asked("any", found["namespace"], found["topic"])


@dataclass(eq=False)
class Fault:
    """One fault that was planned: which requests it strikes, and which it has struck."""

    what: str
    """What it does, in words: "lose the answer to"."""
    request: Request
    topic: str | None = None
    """None: whatever the topic."""
    namespace: str = "default"
    nth: int = 1
    times: int = 1
    optional: bool = False
    """Whether the test is to pass, too, where it strikes nothing."""
    came: int = 0
    """How many requests that it is about came so far."""
    fired: int = 0
    """How many of them it struck."""
    nothing: str = ""
    """Why it last came to nothing where it was to strike."""

    def __post_init__(self) -> None:
        if self.request not in REQUESTS:
            raise ValueError(f"a request is one of {', '.join(REQUESTS)}, not {self.request!r}")
        if self.nth < 1 or self.times < 1:
            raise ValueError(f"nth and times count from 1, and are {self.nth} and {self.times}")
        if self.topic is not None and self.request not in _WITH_TOPIC:
            raise ValueError(f"a request of the kind {self.request} has no topic in its address: leave topic= out")

    def meets(self, asked: Asked) -> bool:
        """Counts a request, if it is one of those that this is about, and tells whether it is struck."""
        if self.request not in ("any", asked.request):
            return False
        if self.topic is not None and (self.namespace, self.topic) != (asked.namespace, asked.topic):
            return False
        self.came += 1
        strikes = self.nth <= self.came < self.nth + self.times
        self.fired += strikes
        return strikes

    def came_to_nothing(self, why: str) -> None:
        """Takes back a strike that changed nothing."""
        self.fired -= 1
        self.nothing = why

    @property
    def is_over(self) -> bool:
        """Whether it has struck as often as it was to."""
        return self.fired == self.times

    def __str__(self) -> str:
        which = f"{self.nth}" if self.times == 1 else f"{self.nth} to {self.nth + self.times - 1}"
        on = "" if self.topic is None else f" on {self.topic!r}"
        kind = "request" if self.request == "any" else self.request
        nothing = f" ({self.nothing})" if self.nothing else ""
        return f"{self.what} {kind} {which}{on}: struck {self.fired} of {self.times}; {self.came} came{nothing}"


class FaultNotMet(AssertionError):
    """Faults that were planned struck nothing, or less than they were to: what was to be tried was not. ``faults`` has them."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        said = "\n".join(f"  {each}" for each in faults)
        super().__init__(f"not all that was planned has happened, so it was not tested:\n{said}")


class Plan:
    """All faults that were planned, in their order."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def meet(self, asked: Asked) -> list[Fault]:
        """Has each fault count a request; those that strike it, in the order in which they were planned."""
        return [each for each in self.faults if each.meets(asked)]

    def verify(self) -> None:
        """Raises FaultNotMet unless every fault has struck as often as it was to, or is optional."""
        unmet = [each for each in self.faults if not each.is_over and not each.optional]
        if unmet:
            raise FaultNotMet(unmet)
