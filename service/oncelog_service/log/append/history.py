"""The originals of a producer's repeated messages, found without an index row per message.

They are looked for in two ways:

* *where they should be*: sequence ids and offsets rise together, so where nobody else publishes beside the producer a message
  lies as far before its newest one as its sequence id does. Reading there costs less than storing did, however old it is: a
  request that comes again as it was is compared with its rows, and no object is made for each message;
* along *the chain* that the producer's requests form (runs.py), from its newest message back. The walk over the newest
  request is always whole, so that an exact retry gets its original ids also after a restart, unless retention or a trim has
  deleted them: then the newest message's alone is known. How much further it goes is bounded.
  What it has not found it does not look for again while the producer stores nothing new.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate, chain, repeat
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog.wire.avro_parts import VALUE_BRANCH, encode_length, encode_long_run, encode_string
from oncelog.wire.requests import PublishRequest
from oncelog_dedup import LastEntry
from oncelog_service.log.groups.stored import latest_stored
from oncelog_service.log.scan import after, earliest_offset, find_offset, is_trimmed, read_back, run_before, run_from, runs_from
from oncelog_service.storage.keys import FIRST_ROW_ID, ROW_ID_SIZE, pointer_key
from oncelog_service.storage.payload_rows import Payload
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import OFFSET_AT, GroupProducer, Row, decode_row, decode_rows
from oncelog_service.storage.runs import GROUP, StoredRun


class Further(NamedTuple):
    """How far beyond the newest request the walk goes."""

    rows: int
    requests: int
    """Each costs a seek."""
    payload_bytes: int = 2**63
    """Of what it has found, all of which is in memory."""


FURTHER = Further(64, 8)
"""A repeat of old messages must not cost more than storing them did; 3,000 rows read in vain made it eight times as much."""
MOST_RECENT = Further(100_000, 100_000)
"""For what may be the most recent request again: all that it repeats is looked up, some tenths of a second at the most."""


_BESIDES = 64 * 2**20
"""Bytes of what lies beside the payloads of one request: keys, properties, heads of rows."""
_LARGEST_PART = 100_000
"""Payloads of a stored group that are looked through."""


class Original(NamedTuple):
    """A stored message of a named producer."""

    sequence_id: int | None
    message_id: bytes
    offset: int
    payload: bytes
    write_pointer: int | None
    erased: bool = False
    """What its payload was is not known any more."""


def differs(stored: Original | Payload, request: PublishRequest, index: int) -> bool:
    """Whether it is known that this message of a request says something else. Of what was erased, there or here, nothing is."""
    return stored.payload != request.payloads[index] and not stored.erased and not request.is_erased(index)


class OriginalRun(Mapping[int, Original]):
    """Stored messages of one producer side by side: their sequence ids and their offsets rise by one. Each is decoded when it is
    looked at."""

    def __init__(self, first_sequence_id: int, first_offset: int, parts: Sequence[tuple[StoredRun, int, int]]) -> None:
        """``parts``: runs that are checked, and neither rolled back nor of stored groups; and which messages of each."""
        self._parts = parts
        self._ends = [*accumulate(end - begin for _, begin, end in parts)]
        self.sequence_ids = range(first_sequence_id, first_sequence_id + self._ends[-1])
        self.first_offset = first_offset

    @property
    def row_ids(self) -> list[bytes]:
        """Their row ids."""
        return [row_id for run, begin, end in self._parts for row_id in run.ids(begin, end)]

    def __getitem__(self, sequence_id: int) -> Original:
        if sequence_id not in self.sequence_ids:
            raise KeyError(sequence_id)
        index = sequence_id - self.sequence_ids[0]
        at = bisect_right(self._ends, index)
        run, _, end = self._parts[at]
        return _original(read_back(decode_row, run, end - (self._ends[at] - index)))

    def __iter__(self) -> Iterator[int]:
        return iter(self.sequence_ids)

    def __len__(self) -> int:
        return len(self.sequence_ids)

    def has_payloads(self, payloads: Sequence[bytes]) -> bool:
        """Whether these are the payloads, all of them."""
        stored: list[bytes] = []
        for run, begin, end in self._parts:
            bodies, places = run.bodies(begin, end), run.payload_places(begin, end)
            if isinstance(places, int):
                stored += [body[places:] for body in bodies]
            else:
                stored += [body[place:] for body, place in zip(bodies, places, strict=True)]
        return stored == [encode_length(len(payload)) + payload for payload in payloads]


def requests_of(store: Store, prefix: bytes, producer: str, newest: bytes) -> Iterator[list[Original]]:
    """The requests of the producer whose newest message is at ``newest``, a row id; the newest first, and so within each.

    Those that were rolled back are passed over. Ends where the log begins or retention has been. Raises TopicDamaged.
    """
    row_id = newest
    while row_id != FIRST_ROW_ID:
        rows = _request_at(store, prefix, row_id)
        if not rows:
            return
        oldest = rows[-1]
        if oldest.write_pointer is None or oldest.write_pointer > 0:
            yield _stored_by(store, prefix, producer, oldest) if oldest.group else [_original(row) for row in rows]
        previous = oldest.previous if oldest.group is None else _part(oldest, producer).previous
        if previous is None:
            return  # its older rows are gone
        row_id = previous


def _request_at(store: Store, prefix: bytes, row_id: bytes) -> list[Row]:
    """The messages of the request whose last one is at ``row_id``, that one first; as far as they are not gone."""
    request: list[Row] = []
    for row in _backwards(store, prefix, row_id):
        if row.fills_a_hole:
            return request  # what stood there is known to be lost
        if row.row_id != row_id if not request else row.offset != request[-1].offset - 1:
            # Retention deletes from the beginning: where an older message is still there, nothing newer may be missing.
            raise TopicDamaged(f"a message is missing between offset {row.offset} and the one at {row_id.hex()}")
        request.append(row)
        if row.previous is not None or row.group is not None:
            break
    return request


def _backwards(store: Store, prefix: bytes, row_id: bytes) -> Iterator[Row]:
    """Messages, decoded, from the one at ``row_id`` back; where it is not there, from what is before it."""
    run = run_from(store, prefix, row_id)
    if run is None:
        run = run_before(store, prefix)
    end = 0 if run is None else run.index_from(after(row_id))
    first = 0
    while run is not None:
        begins, first = run.begins, run.first
        for index in reversed(range(end)):
            yield read_back(decode_row, run, index, begins)
        run = run_before(store, prefix, run.id)
        end = 0 if run is None else len(run)
    if first > earliest_offset(store, prefix):
        raise TopicDamaged(f"offset {first - 1} is missing: nothing is before offset {first}")


def _part(row: Row, producer: str) -> GroupProducer:
    assert row.group is not None
    for part in row.group.producers:
        if part.name == producer:
            return part
    raise TopicDamaged(f"the stored group at {row.row_id.hex()} should hold messages of producer {producer!r}")


def _stored_by(store: Store, prefix: bytes, producer: str, row: Row) -> list[Original]:
    """The producer's messages in a stored group, the newest first; of a large group the latest ones."""
    key, found = pointer_key(prefix, row.payloads_under), list[Original]()
    try:
        for each in latest_stored(store, key, _LARGEST_PART, row.messages):
            if each.producer == producer:
                message_id, offset = row.row_id + each.payload_id, row.offset + each.group_index
                found.append(Original(each.sequence_id, message_id, offset, each.payload, row.write_pointer, each.erased))
    except TopicDamaged:
        if not is_trimmed(store, prefix, row.row_id):
            raise
    return found


def _original(row: Row) -> Original:
    return Original(row.sequence_id, row.message_id, row.offset, row.payload, row.write_pointer, row.erased)


class Walk(NamedTuple):
    """What was found along the chain."""

    found: dict[int, Original]
    seen_from: int | None
    """The lowest sequence id that the walk has come to: below it, it would find nothing the next time either."""


def walk(
    store: Store, prefix: bytes, producer: str, newest: bytes, sequence_ids: Sequence[int], further: Further = FURTHER
) -> Walk:
    """Look for the rising ``sequence_ids`` from the newest message back. Raises TopicDamaged."""
    wanted = set(sequence_ids)
    found: dict[int, Original] = {}
    room, size = further.rows, 0
    oldest = None
    for number, request in enumerate(requests_of(store, prefix, producer, newest)):
        for original in request:
            if original.sequence_id in wanted:
                found.setdefault(original.sequence_id, original)
        room -= len(request) if number else 0
        size += sum(len(original.payload) for original in request if original.sequence_id in wanted)
        oldest = request[-1].sequence_id if request else None
        if room <= 0 or number >= further.requests or size > further.payload_bytes:
            break
        if len(found) == len(wanted) or oldest is None or oldest <= sequence_ids[0]:
            break
    return Walk(found, oldest)


def read_where_expected(
    store: Store,
    prefix: bytes,
    producer: str,
    sequence_ids: Sequence[int],
    offsets: range,
    begin: bytes | None = None,
    most_bytes: int = 2**63,
) -> Mapping[int, Original]:
    """sequence id → the producer's message, for those of the rising ``sequence_ids`` that lie at ``offsets``, in no stored group.

    Args:
        begin: The key to begin at, if it is known; else it is looked for.
        most_bytes: Of messages; where there are more of them the rest is not looked at.

    Raises TopicDamaged.
    """
    if begin is None:
        begin = find_offset(store, prefix, offsets[0])
    if begin is None or len(begin) > ROW_ID_SIZE + 1:
        return {}  # in a stored group
    parts: list[tuple[StoredRun, int, int]] = []
    with closing(runs_from(store, prefix, begin[:ROW_ID_SIZE])) as runs:
        for run in runs:
            first = max(0, offsets[0] - run.first)
            if first >= len(run) and not parts and run.end <= offsets[0]:
                continue  # it ends with the message to begin behind
            if run.flags & GROUP or run.first >= offsets[-1] + 1 or (not parts and run.first > offsets[0]):
                break
            end = min(len(run), offsets[-1] + 1 - run.first)
            parts.append((run, first, end))
            most_bytes -= run.at(end) - run.at(first)
            if most_bytes < 0 or run.end > offsets[-1]:
                break
    named = VALUE_BRANCH + encode_string(producer) + VALUE_BRANCH
    return _as_a_run(named, sequence_ids, offsets[0], parts) or _one_by_one(producer, sequence_ids, parts)


def _as_a_run(
    named: bytes, sequence_ids: Sequence[int], first_offset: int, parts: Sequence[tuple[StoredRun, int, int]]
) -> OriginalRun | None:
    """What was found, if each message is the one that it should be: compared all at once. None: some message is not."""
    count = len(sequence_ids)
    found = sum(end - begin for _, begin, end in parts)
    if not count or found != count or sequence_ids[-1] - sequence_ids[0] != count - 1:
        return None
    if any(run.is_rolled_back for run, _, _ in parts):
        return None
    offsets, numbers = encode_long_run(first_offset, count), encode_long_run(sequence_ids[0], count)
    expected = map(b"".join, zip(offsets, repeat(named), numbers, strict=False))
    bodies = chain.from_iterable(run.bodies(begin, end) for run, begin, end in parts)
    if not all(map(bytes.startswith, bodies, expected, repeat(OFFSET_AT))):
        return None
    return OriginalRun(sequence_ids[0], first_offset, parts)


def _one_by_one(producer: str, sequence_ids: Sequence[int], parts: Sequence[tuple[StoredRun, int, int]]) -> dict[int, Original]:
    wanted = set(sequence_ids)
    return {
        row.sequence_id: _original(row)
        for run, begin, end in parts
        if not run.is_rolled_back
        for row in read_back(list, decode_rows(run, begin, end))
        if row.producer == producer and row.sequence_id in wanted
    }


_REMEMBERED_PRODUCERS = 1_000


class _Looked(NamedTuple):
    """Where one has been looking for a producer's messages. True as long as its newest row is this one."""

    newest: bytes
    seen_from: int | None = None
    """Of the walk with the narrower bounds."""
    next_offset: int | None = None
    behind: bytes | None = None
    """Where reading ended: a producer that sends everything again goes on there."""
    elsewhere: bool = False
    """Nothing was where it should have been: others publish beside the producer, or its sequence ids have gaps."""


class History:
    """What producers of one open topic have stored. May be asked by several threads."""

    __slots__ = ("_looked", "_prefix", "_store")

    def __init__(self, store: Store, prefix: bytes) -> None:
        self._store = store
        self._prefix = prefix
        self._looked: dict[str, _Looked] = {}

    def originals(
        self,
        producer: str,
        newest: LastEntry,
        sequence_ids: Sequence[int],
        counts_from: int,
        payload_bytes: int = 2**62,
    ) -> Mapping[int, Original]:
        """sequence id → stored message, for those of the rising ``sequence_ids`` that are cheaply found.

        All that an exact retry of the most recent request repeats are, as far as their rows are there; the newest message is
        always. An operator may have forgotten the producer: what lies
        below the offset ``counts_from`` is no original then. ``payload_bytes``: the request's own. Where the stored messages have
        more, one of those that are found is another message, and the rest stays on disk: small messages that come under the
        numbers of large ones would fill the memory. Raises TopicDamaged.
        """
        most_bytes = payload_bytes + _BESIDES
        row_id = newest.message_id[:ROW_ID_SIZE]
        # Up to the newest message: this may be the most recent request again, which always gets its original ids.
        recent = sequence_ids[-1] == newest.sequence_id
        found: Mapping[int, Original] = {}
        if recent or not self._looked_for(producer, row_id).elsewhere:
            found = self._where_expected(producer, newest, sequence_ids, counts_from, most_bytes)
        looked = self._looked_for(producer, row_id)
        in_vain = not recent and looked.seen_from is not None and sequence_ids[-1] < looked.seen_from
        if in_vain or len(found) == len(sequence_ids):
            return found
        further = MOST_RECENT._replace(payload_bytes=most_bytes) if recent else FURTHER
        came = walk(self._store, self._prefix, producer, row_id, sequence_ids, further)
        if not recent and came.seen_from is not None and came.seen_from > sequence_ids[0]:  # it ended at its bounds
            self._remember(producer, looked._replace(seen_from=came.seen_from))
        found = {**found, **came.found}
        if recent and newest.sequence_id not in found:  # its row is gone, and the producers' map knows for ever where it was
            found[newest.sequence_id] = Original(*newest, payload=b"", write_pointer=None, erased=True)
        return found

    def _where_expected(
        self, producer: str, newest: LastEntry, sequence_ids: Sequence[int], counts_from: int, most_bytes: int
    ) -> Mapping[int, Original]:
        end = newest.offset + 1 - (newest.sequence_id - sequence_ids[-1])
        first = max(end - len(sequence_ids), counts_from)
        if end <= first or any(newest.message_id[ROW_ID_SIZE:]):
            return {}
        looked = self._looked_for(producer, newest.message_id[:ROW_ID_SIZE])
        begin = looked.behind if looked.next_offset == first else None
        found = read_where_expected(self._store, self._prefix, producer, sequence_ids, range(first, end), begin, most_bytes)
        last = found.get(sequence_ids[-1])
        if last is not None and last.offset == end - 1:
            looked = looked._replace(next_offset=end, behind=after(last.message_id[:ROW_ID_SIZE]))
        self._remember(producer, looked._replace(elsewhere=not found))
        return found

    def _looked_for(self, producer: str, newest: bytes) -> _Looked:
        looked = self._looked.get(producer)
        return looked if looked is not None and looked.newest == newest else _Looked(newest)

    def _remember(self, producer: str, looked: _Looked) -> None:
        if len(self._looked) >= _REMEMBERED_PRODUCERS:
            self._looked.clear()
        self._looked[producer] = looked
