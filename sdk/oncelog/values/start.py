"""Where reading begins, as callers say it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from oncelog.message_id import MessageId
from oncelog.values.numbers import MAX_LONG
from oncelog.wire.models import StartPosition

Start = Literal["earliest", "latest"] | MessageId | int | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_latest(start: Start) -> bool:
    """Whether it is behind every message that there is: ``latest``, or an id that sorts behind all that can be handed out."""
    return start == "latest" or (isinstance(start, MessageId) and start.publish_timestamp < 0)


def start_position(start: Start, inclusive: bool = False) -> StartPosition:
    """The start as it travels. Raises ValueError for what is none."""
    if isinstance(start, MessageId):
        return StartPosition(message_id=start, inclusive=inclusive)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"start {start} has no time zone; use datetime.now(UTC) or .astimezone()")
        # The first millisecond that is not before it, exact, as start.timestamp() * 1000 is not.
        return StartPosition(timestamp=max(0, -((_EPOCH - start) // timedelta(milliseconds=1))))
    if start == "earliest" or start == "latest":
        return StartPosition(at=start)
    if type(start) is int and 0 <= start <= MAX_LONG:
        return StartPosition(offset=start)
    raise ValueError(f"start is 'earliest', 'latest', a MessageId, an offset or a datetime, not {start!r}")
