"""What one request of CDAP's own clients may bring, where they are served: what a transaction publishes to a topic goes in one.

CDAP takes 70,000 messages and 12 MiB. Who comes with more messages than others may bring counts as no less than what is written
alone, however few bytes they have: of such requests one is under way at a time (turns.py). Pure.
"""

from __future__ import annotations

from oncelog.wire.avro_parts import decode_long
from oncelog_service.bounds.turns import AHEAD_BYTES

MESSAGES = 100_000
BODY_BYTES = 16 * 2**20


def announced(body: bytes) -> int:
    """How many messages the first block of a PublishRequest of TMS says that it has; 0 where nothing can be read there.

    CDAP's clients, as all that are known, write one block.
    """
    try:
        branch, at = decode_long(body[:32], 0)  # a union, perhaps a write pointer, and the block: 1, 10 and 10 bytes at most
        if branch == 0:
            _, at = decode_long(body[:32], at)
        return abs(decode_long(body[:32], at)[0])
    except IndexError:
        return 0


def weight(body: bytes, messages: int) -> int:
    """As how many bytes a request with that body takes its turn. ``messages``: so many may others bring."""
    return max(len(body), AHEAD_BYTES + 1) if announced(body) > messages else len(body)
