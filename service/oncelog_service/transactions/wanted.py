"""Says of which participants of ended transactions one instance wants to be notified: those that it serves. Pure.

Where several instances share a store, each asks the transaction service for itself. An instance that was handed what another one
serves could only try, fail and wait, and would fall behind by all that the others have to do. So each says which instances
there are, and the one that answers works out what belongs to it by the same rule that places topics.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog_service.cluster.leases import topic_resource
from oncelog_service.cluster.placement import preferred
from oncelog_service.storage.keys import topic_key


def participant(store_id: str, namespace: str, topic: str, generation: int) -> str:
    """What a generation of a topic is called by the transaction service."""
    return f"{store_id}:{namespace}/{topic}/{generation}"


def topic_of_participant(participant: str) -> tuple[str, str, int]:
    """Returns namespace, topic and generation of what :func:`participant` made. Raises ValueError."""
    namespace, topic, generation = participant.partition(":")[2].split("/")
    return namespace, topic, int(generation)


class Wanted(NamedTuple):
    """The participants of which one instance wants to be notified."""

    member: str | None = None
    """Its id among the instances; None: it has its store for itself and wants everything."""
    alive: tuple[str, ...] = ()
    """The ids of all instances, its own included."""
    also: frozenset[str] = frozenset()
    """Participants that it serves although they belong elsewhere."""
    without: frozenset[str] = frozenset()
    """Participants that it could not settle a moment ago, or that another instance still serves."""

    def wants(self, participant: str) -> bool:
        """Returns whether the instance is to be notified of this participant."""
        if participant in self.without:
            return False
        if self.member is None or participant in self.also:
            return True
        try:
            namespace, topic, _ = topic_of_participant(participant)
        except ValueError:
            return True  # no name of ours: the asker knows it
        return preferred(topic_resource(topic_key(namespace, topic)), self.alive) == self.member


EVERYTHING = Wanted()
