"""Rights, grants and principals. Pure.

The invariant: what no grant names is denied. A grant is one right, for reading, writing and managing with a pattern of topics:
`read:orders/*`, `write:default/payments`, `write:default/load-*:loader-*` (the last part: names of producers), `manage:*/*`,
`observe`, `operate`, `admin`, `service`. In a pattern `*` stands for any characters of one name. A namespace itself is managed by
who may manage each of its topics. Whoever has `admin` may do everything that somebody may: what services say to each other is
nobody's word but theirs, since whoever told it wrongly had what was aborted appear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from oncelog.errors import InvalidRequest, NotAllowed

EVERY_TOPIC = "*"
"""Stands for all topics of a namespace where one of them is asked for."""

_NAME = r"[A-Za-z0-9_.*-]{1,249}"
_GRANT = re.compile(
    rf"(?P<right>read|write|manage):(?P<namespace>[A-Za-z0-9_*]{{1,249}})/(?P<topic>{_NAME})"
    r"(?::(?P<producers>[A-Za-z0-9_.:@=*-]{1,249}))?"
)
NAMELESS = ("anonymous", "oncelog")
"""The principals that nobody is alone: everybody who reaches an open service, and the instances over one store."""
_REMEMBERED = 4_096
"""Answers that a principal keeps; then it begins anew."""


class Right(Enum):
    """What one may be allowed to do."""

    READ = "read"
    """Poll, read columns, subscribe."""
    WRITE = "write"
    """Publish, under the producers' names that the grant allows."""
    MANAGE = "manage"
    """Create, change, trim and delete topics, and set what holds for a namespace."""
    OBSERVE = "observe"
    """See how the service and its topics are doing: metrics, alarms, the overview, which instances there are."""
    OPERATE = "operate"
    """Verify, backup, hand topics over, and other principals' transactions."""
    ADMIN = "admin"
    """Everything, tokens too."""
    SERVICE = "service"
    """Be a service whose topics hold messages of the transactions here: enlist, acknowledge ends, ask for its own clients."""
    DESCRIBE = "describe"
    """See that a topic is there, and how it is doing. Granted to nobody: whoever has a right on the topic, or observes, may."""

    __hash__ = object.__hash__  # asked for with each request; the members are singletons


SERVICE_WIDE: Mapping[Right, frozenset[Right]] = {
    Right.OBSERVE: frozenset((Right.OBSERVE, Right.OPERATE, Right.SERVICE, Right.ADMIN)),
    Right.OPERATE: frozenset((Right.OPERATE, Right.SERVICE, Right.ADMIN)),
    Right.ADMIN: frozenset((Right.ADMIN,)),
    Right.SERVICE: frozenset((Right.SERVICE,)),
}
"""Those that are not of topics, and which grants give each. A service hands on what its own operators ask for."""
_BY_WORD = {right.value: right for right in SERVICE_WIDE}


class Grant(NamedTuple):
    """One right, and on what."""

    right: Right
    topics: re.Pattern[str] | None = None
    """Matches `namespace/topic`; None: the right is not of topics."""
    namespace: re.Pattern[str] | None = None
    """Matches the namespaces of these topics."""
    producers: re.Pattern[str] | None = None
    """Matches the names that may be published under; None: any, and without one."""

    @classmethod
    def parse(cls, text: str) -> Grant:
        """Reads one as it is written. Raises InvalidRequest."""
        if text in _BY_WORD:
            return cls(_BY_WORD[text])
        found = _GRANT.fullmatch(text)
        if found is None or (found["producers"] is not None and found["right"] != "write"):
            raise InvalidRequest(
                f"not a grant: {text[:100]!r}; one looks like read:orders/*, write:default/payments, "
                "write:default/load-*:loader-* (names of producers), manage:*/*, observe, operate, admin or service"
            )
        topics = _pattern(f"{found['namespace']}/{found['topic']}", within="[^/]*")
        producers = None if found["producers"] is None else _pattern(found["producers"], within=".*")
        namespace = _pattern(found["namespace"], within=".*")
        return cls(Right(found["right"]), topics, namespace, producers)

    def covers(self, right: Right, topic: str) -> bool:
        """Tells whether it gives the right on `namespace/topic`."""
        if self.right is not right:
            return False
        return self.topics is None or self.topics.fullmatch(topic) is not None

    def lets(self, producer: str | None) -> bool:
        """Tells whether it lets one publish under this name; None: without one."""
        return self.producers is None or (producer is not None and self.producers.fullmatch(producer) is not None)


def _pattern(text: str, within: str) -> re.Pattern[str]:
    """Each part between two stars is looked for once, from the left, which finds what there is (as `fnmatch` does): tried at
    every place that it has, a pattern of thirty stars would take a name of 249 characters years.
    """
    first, *others = map(re.escape, re.split(r"\*+", text))
    if not others:
        return re.compile(first)
    return re.compile(first + "".join(f"(?>{within}?{part})" for part in others[:-1]) + within + others[-1])


class Principal:
    """Who asks, and what that one may do."""

    __slots__ = ("_answers", "grants", "is_instance", "name")

    def __init__(self, name: str, grants: Iterable[Grant], *, is_instance: bool = False) -> None:
        """``is_instance``: it is another instance over the same store, and may ask for somebody else."""
        self.name = name
        self.grants = (*grants,)
        self.is_instance = is_instance
        self._answers: dict[tuple[Right | str | None, str, str], bool] = {}
        """By right, or by the name of a producer, and topic."""

    def __repr__(self) -> str:
        return f"<Principal {self.name}>"

    def may(self, right: Right, namespace: str = "", topic: str = "") -> bool:
        """Tells whether a grant gives the right, for reading, writing and managing on this topic."""
        key = right, namespace, topic
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers_anew(key, self._judged(right, f"{namespace}/{topic}"))
        return answer

    def _answers_anew(self, key: tuple[Right | str | None, str, str], answer: bool) -> bool:
        if len(self._answers) >= _REMEMBERED:
            self._answers.clear()
        self._answers[key] = answer
        return answer

    def _judged(self, right: Right, topic: str) -> bool:
        held = {grant.right for grant in self.grants}
        if right in SERVICE_WIDE:
            return not held.isdisjoint(SERVICE_WIDE[right])
        if Right.ADMIN in held:
            return True
        if right is Right.DESCRIBE:
            return self.may(Right.OBSERVE) or any(grant.covers(grant.right, topic) for grant in self.grants)
        return any(grant.covers(right, topic) for grant in self.grants)

    def knows(self, namespace: str) -> bool:
        """Tells whether a grant may be on a topic of the namespace."""
        if self.may(Right.OBSERVE):
            return True
        return any(grant.namespace is not None and grant.namespace.fullmatch(namespace) for grant in self.grants)

    def check(self, right: Right, namespace: str = "", topic: str = "") -> None:
        """Raises NotAllowed, which says what is missing."""
        if not self.may(right, namespace, topic):
            raise self._refused(right, f"{namespace}/{topic}" if namespace else "")

    def check_anywhere(self, *rights: Right) -> None:
        """Raises NotAllowed unless a grant gives one of the rights: of those of topics, on some topic."""
        if not (self.may(Right.ADMIN) or any(grant.right in rights for grant in self.grants)):
            missing = " nor ".join(f"{right.value}:…" for right in rights if right not in SERVICE_WIDE)
            raise NotAllowed(
                f"{self.name} may not do this: it has no grant {missing}", principal=self.name, right=rights[0].value
            )

    def check_producer(self, namespace: str, topic: str, producer: str | None) -> None:
        """Raises NotAllowed unless it may publish to the topic under this name; None: without one."""
        key = producer, namespace, topic
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers_anew(key, self._lets(f"{namespace}/{topic}", producer))
        if not answer:
            raise self._refused(Right.WRITE, f"{namespace}/{topic}", producer)

    def _lets(self, topic: str, producer: str | None) -> bool:
        allowing = any(grant.covers(Right.WRITE, topic) and grant.lets(producer) for grant in self.grants)
        return allowing or self.may(Right.ADMIN)

    @property
    def owner(self) -> str | None:
        """Who owns what this one begins; None: nobody, as it has no name of its own."""
        return None if self.name in NAMELESS else self.name

    def whose(self, right: Right = Right.ADMIN) -> str | None:
        """Whose things it may touch (owners.py): those of this name; None: with this right those of everybody."""
        return None if self.may(right) else self.name

    def _refused(self, right: Right, topic: str, producer: str | None = None) -> NotAllowed:
        missing = right.value if right in SERVICE_WIDE else f"{'read' if right is Right.DESCRIBE else right.value}:{topic}"
        if producer is not None:
            missing += f":{producer}"
        return NotAllowed(f"{self.name} may not do this: the grant {missing} is missing", principal=self.name, right=missing)


EVERYTHING = Grant(Right.ADMIN), Grant(Right.SERVICE)
"""Of whoever cannot be told from a service, or is one."""
EVERYBODY = Principal(NAMELESS[0], EVERYTHING)
"""Who asks a service that listens to this machine alone and has no tokens."""
