"""Where a stream stands, shown on the service: as the position of a subscription, which operators list with its lag.

It decides nothing: a stream goes on where Spark's checkpoint says. What the service cannot be
shown is logged, and the stream goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oncelog.errors import ConsumerFenced, OncelogError
from oncelog.spark.options import logger
from oncelog.wire.models import Acknowledge

if TYPE_CHECKING:
    from oncelog.api.api import Api
    from oncelog.spark.connection import Connection
    from oncelog.spark.reading.offsets import Position, Positions

QUIET_SECONDS = 2.0
"""How long it is tried to show it: no micro-batch waits for it longer."""


class Standing:
    """Of one run of a stream."""

    def __init__(self, connection: Connection, subscription: str) -> None:
        self._connection = replace(connection, retry_seconds=min(QUIET_SECONDS, connection.retry_seconds))
        self._name = subscription
        self._told: dict[str, Position] = {}
        self._epochs: dict[str, int] = {}
        self._is_fenced = False

    def tell(self, positions: Positions) -> None:
        """Everything before these positions is done with."""
        for topic, position in positions.items():
            before = self._told.get(topic)
            if self._is_fenced or (before is not None and before[1:3] == position[1:3]):
                continue
            try:
                self._tell(self._connection.client(), topic, position)
            except ConsumerFenced:
                self._is_fenced = True  # the stream that has come is shown there now
                logger.warning("oncelog source: subscription %s shows another stream from now on", self._name)
            except OncelogError as error:
                logger.warning("oncelog source: subscription %s of %s is not moved: %s", self._name, topic, error.detail)
            self._told[topic] = position

    def _tell(self, client: Api, topic: str, position: Position) -> None:
        namespace, at = self._connection.namespace, position.pos
        epoch = self._epochs.get(topic)
        if epoch is None or at == 0 or self._told[topic].generation != position.generation:
            opened = client.open_subscription(topic, self._name, start=at, namespace=namespace)
            if opened.cursor != at:  # by an earlier run; a checkpoint that was put back is behind it
                opened = client.seek_subscription(topic, self._name, at, epoch=opened.epoch, namespace=namespace)
            self._epochs[topic] = opened.epoch
            return
        done = Acknowledge(epoch=epoch, generation=position.generation, offset=at - 1)
        client.acknowledge(topic, self._name, done, namespace)
