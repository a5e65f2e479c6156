"""Outcomes of atomic commits, kept as long as the messages that they brought may live.

A row per transaction under its number, which rises with time, and one per id that leads to the number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from hashlib import blake2b
from typing import NamedTuple

from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest
from oncelog_service.log.append.atomic import said_of
from oncelog_service.log.names.assigned import is_assigned
from oncelog_service.properties import live_from
from oncelog_service.storage.keys import AFTER_NUMBERS, number_key, topic_key
from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table
from oncelog_service.storage.records import TopicRow, decode_record

VERSION = 1
_ABOUT = 500
"""Bytes of an outcome, where it is not made yet."""
LEAST_MS = 24 * 3_600_000
"""Every outcome is kept so long, whatever becomes of its topics."""


class Ended(NamedTuple):
    """A transaction that has ended."""

    outcome: AtomicOutcome
    problem: dict[str, object] | None = None
    """The refusal that ended it; a repeated commit is answered with it again."""
    asked: str | None = None
    """The :func:`fingerprint` of the commit that ended it; None: that carried nothing, or another transaction's did."""

    @property
    def owner(self) -> str | None:
        """Whose it is; None: nobody's with a name."""
        return self.outcome.owner

    @property
    def group(self) -> str:
        """Its group."""
        return self.outcome.group


def fingerprint(request: CommitRequest) -> str | None:
    """Returns a fingerprint of everything that a commit carries itself, whatever media type it came in; None if that is nothing.

    The sequence ids, epochs and expectations of its messages are no part of it: a client that comes again under an id of its own
    has opened its producers anew and read the logs anew, and means the same messages. Nor are names that the service assigned:
    those it has been given anew, too.
    """
    if not request.carries:
        return None
    if request.fingerprint is not None:
        return request.fingerprint
    number = (request.producer, request.sequence_id, request.incarnation, request.checksum)
    digest = blake2b(repr((list(request.branches), number)).encode(), digest_size=16)
    for part in sorted(request.parts, key=lambda each: (each.namespace, each.topic)):
        messages = part.request
        assigned = messages.producer is not None and is_assigned(messages.producer)
        producer = () if assigned else messages.producer
        digest.update(repr((part.namespace, part.topic, producer, said_of(messages))).encode())
        digest.update(b"".join(messages.payloads))
    return digest.hexdigest()


def put_id(batch: Batch, id: str, number: int) -> None:  # noqa: A002  # the field's word
    """Adds to ``batch`` that the transaction of this id has this number."""
    batch.put(Table.ATOMIC_ID, id.encode("ascii"), number_key(number))


def put_outcomes(batch: Batch, ended: Sequence[tuple[int, Callable[[], Ended]]]) -> None:
    """Adds outcomes to ``batch``, by number. They are made when they are written: a commit may have those of 10,000 branches."""
    size = _ABOUT * len(ended)
    batch.put_later(
        Table.ATOMIC_OUTCOME, b"", size, lambda: [(number_key(number), encode_ended(each())) for number, each in ended]
    )


def encode_ended(ended: Ended) -> bytes:
    """Encodes an outcome."""
    outcome = ended.outcome.model_dump_json(by_alias=True)
    problem, asked = json.dumps(ended.problem, separators=(",", ":")), json.dumps(ended.asked)
    return f'{{"version":{VERSION},"outcome":{outcome},"problem":{problem},"asked":{asked}}}'.encode()


def number_of(store: Store, id: str) -> bytes | None:  # noqa: A002  # the field's word
    """Returns the key of the outcome of the transaction of this id; None: there never was one, or it is forgotten."""
    return store.get(Table.ATOMIC_ID, id.encode("ascii"))


def read_ended(store: Store, id: str) -> Ended | None:  # noqa: A002  # the field's word
    """Returns what became of the transaction of this id; None: none is known that has ended. Raises StoreDamaged."""
    number = number_of(store, id)
    data = None if number is None else store.get(Table.ATOMIC_OUTCOME, number)
    return None if data is None else decode_ended(data)


def decode_ended(data: bytes) -> Ended:
    """Reads an outcome back. Raises StoreDamaged."""
    try:
        record = json.loads(data)
        if record["version"] != VERSION:
            raise ValueError("unknown version")
        return Ended(AtomicOutcome.model_validate(record["outcome"]), record["problem"], record["asked"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(f"not the outcome of a transaction: {data[:100]!r}") from error


def forgettable(store: Store, now_ms: int, limit: int, start: bytes = b"") -> tuple[Sequence[tuple[int, str]], bytes]:
    """Returns (number, id) of outcomes that are about no message which lives, and the key at which to look next.

    It looks at ``limit`` of them from ``start`` on. One that is needed, perhaps for ever, holds up none behind it.
    """
    found: list[tuple[int, str]] = []
    gone: set[str] = set()
    """Of which nothing lives."""
    with closing(store.scan(Table.ATOMIC_OUTCOME, start, AFTER_NUMBERS)) as rows:
        for looked, (key, data) in enumerate(rows):
            if looked == limit:
                return found, key
            outcome = decode_ended(data).outcome
            if _is_young(outcome, now_ms):
                break  # as are all behind it: numbers rise with time
            if not _is_needed(store, outcome, now_ms) and not _is_part(store, outcome, now_ms, gone):
                found.append((int.from_bytes(key, "big"), outcome.id))
    return found, b""


def _is_young(outcome: AtomicOutcome, now_ms: int) -> bool:
    return (outcome.began_ms or 0) > now_ms - LEAST_MS


def _is_part(store: Store, outcome: AtomicOutcome, now_ms: int, gone: set[str]) -> bool:
    """Returns whether it ended as a branch of a commit that is still needed: its messages are as young as that, however
    old it is."""
    if outcome.of is None or outcome.state != "committed" or outcome.of in gone:
        return False
    whole = read_ended(store, outcome.of)
    if whole is not None and _is_needed(store, whole.outcome, now_ms):
        return True
    gone.add(outcome.of)
    return False


def _is_needed(store: Store, outcome: AtomicOutcome, now_ms: int) -> bool:
    """Returns whether a message that it brought, or would have brought, may still live on one of its topics; a day at the
    least."""
    if _is_young(outcome, now_ms):
        return True
    began = outcome.began_ms or 0
    for topic in outcome.topics:
        data = store.get(Table.TOPIC, topic_key(topic.namespace, topic.topic))
        row = None if data is None else decode_record(TopicRow, data)
        if row is None or row.deleted or row.generation != topic.generation:
            continue
        published = began if topic.first_message_id is None else topic.first_message_id.publish_timestamp
        if published >= live_from(row, now_ms):
            return True
    return False
