"""Messages come back from their rows as they were published, by themselves and laid together in any way; damaged rows are
refused, and the bytes on disk never change their meaning (storage/runs.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from zlib import crc32

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.avro_parts import encode_tails
from oncelog.wire.codec import avro_source
from oncelog.wire.media import AVRO, ONCELOG_AVRO
from oncelog_service.storage import bodies, runs
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, generation_key, row_id, topic_key
from oncelog_service.storage.payload_rows import (
    Payload,
    decode_payloads,
    encode_payloads,
    erased_payloads,
    stored_messages_of,
    tails_of,
    tms_stored_messages_of,
)
from oncelog_service.storage.port import RowDamaged, Table
from oncelog_service.storage.rows import (
    GroupProducer,
    GroupSummary,
    Row,
    chain_of,
    decode_row,
    decode_rows,
    encode_group,
    encode_messages,
    erased_run,
    message_id_of,
    own_ttl,
    payloads_under,
    summary_of,
    tms_messages_of,
)
from oncelog_service.storage.runs import GROUP, TTL, Laying, StoredRun, T, decode_run, rolled_back

GOLDEN = Path(__file__).parent.parent / "golden"
ONCELOG_MESSAGE = fastavro.parse_schema(avro_source(ONCELOG_AVRO, "ConsumeResponse")["fields"][0]["type"]["items"])
TMS_MESSAGE = fastavro.parse_schema(avro_source(AVRO, "ConsumeResponse")["items"])
PREFIX = generation_key(topic_key("default", "t"), 1)

MAX = 2**63 - 1
BEGIN = 1_790_000_000_000
row_ids = st.builds(row_id, st.integers(0, 2**62), st.integers(0, 65_535))
names = st.from_regex(r"[A-Za-z0-9_.:@=\-]{1,249}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
payloads = st.binary(max_size=200) | st.integers(100, 9_000).map(bytes)
pointers = st.integers(1, MAX)
producers = st.builds(GroupProducer, names, st.integers(0, MAX), st.integers(0, MAX), row_ids, st.integers(0, 2**32 - 1), row_ids)
summaries = st.builds(GroupSummary, st.integers(0, 2**32 - 1), row_ids, st.lists(producers, max_size=4).map(tuple), st.none())
offsets = st.sampled_from([0, 1, 60, 64, 8_190, 2**40])


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """The messages of a request with any of the columns that a request may have."""
    bodies = draw(st.lists(payloads, min_size=1, max_size=80 if draw(st.booleans()) else 4))
    if draw(st.booleans()):
        bodies = [each[:100].ljust(100) for each in bodies]

    def column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(st.none() | values, min_size=len(bodies), max_size=len(bodies)))

    producer = draw(st.none() | names)
    sequence_ids = previous = None
    if producer is not None:
        begin = draw(st.sampled_from([0, 1, 60, 2**31, MAX - 200]))
        steps = draw(st.just([1] * len(bodies)) | st.lists(st.integers(1, 2), min_size=len(bodies), max_size=len(bodies)))
        sequence_ids = [begin + sum(steps[:number]) for number in range(len(bodies))]
        previous = draw(st.none() | row_ids)
    return Columns(
        payloads=bodies,
        producer=producer,
        sequence_ids=sequence_ids,
        keys=column(st.binary(max_size=20)),
        properties=column(st.dictionaries(texts, texts, max_size=3)),
        ttls=column(st.integers(1, MAX)),
        previous=previous,
    )


def numbered(count: int, first: int = 0, begin: int = BEGIN) -> list[bytes]:
    """Ids that follow on each other, over the ends of milliseconds."""
    return [row_id(begin + each // 65_536, each % 65_536) for each in range(first, first + count)]


def entry(column: Sequence[Any] | None, index: int) -> Any:
    return None if column is None else column[index]


def rows_of(requests: Sequence[Columns], ids: Sequence[bytes], first_offset: int, pointer: int | None = None) -> list[Row]:
    """What the messages of these requests must read as."""
    rows: list[Row] = []
    for columns in requests:
        for index, payload in enumerate(columns.payloads):
            begins = not index and (columns.producer is not None or pointer is not None)
            row = Row(
                row_id=ids[len(rows)],
                offset=first_offset + len(rows),
                producer=columns.producer,
                sequence_id=entry(columns.sequence_ids, index),
                ttl=entry(columns.ttls, index),
                payload=payload,
                write_pointer=pointer,
                previous=(columns.previous or FIRST_ROW_ID) if begins else None,
                key=entry(columns.keys, index),
            )
            rows.append(row)
    return rows


def laid(
    requests: Sequence[Columns], ids: Sequence[bytes], first_offset: int = 0, pointer: int | None = None, before_bytes: int = 0
) -> list[StoredRun]:
    laying, at = Laying(Table.MESSAGE, PREFIX, first_offset, pointer, before_bytes), 0
    for columns in requests:
        columns.write_pointer = pointer
        some = ids[at : at + len(columns.payloads)]
        messages = encode_messages(columns, some, first_offset + at)
        assert messages.total == sum(map(len, messages.bodies))
        laying.add(some, messages, chain_of(columns))
        at += len(some)
    found = [decode_run(PREFIX, end, data) for end, data in laying.rows()]
    assert found[-1].upto_bytes == laying.upto_bytes
    return found


def stored(columns: Columns, ids: Sequence[bytes], first_index: int) -> list[StoredRun]:
    laying = Laying(Table.PAYLOAD, PREFIX, first_index)
    laying.add(ids, encode_payloads(columns))
    return [decode_run(PREFIX, end, data) for end, data in laying.rows()]


def read(schema: Any, data: bytes) -> Any:
    stream = BytesIO(data)
    record = fastavro.schemaless_reader(stream, schema, None)
    assert stream.tell() == len(data), "nothing follows the message"
    return record


@given(
    *(st.lists(columns(), min_size=1, max_size=4), st.integers(65_530, 65_536), offsets, st.sampled_from([1, 300, 2**15])),
    *(st.integers(0, 2**62), st.booleans()),
)
def test_requests_that_are_laid_together_read_back_message_by_message(
    requests: list[Columns], first_seq: int, first_offset: int, run_bytes: int, upto_bytes: int, large: bool
) -> None:
    """``large``: as what is made in pieces, and laid by the write alone."""
    count = sum(len(each.payloads) for each in requests)
    ids = numbered(count, first_seq)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(runs, "RUN_BYTES", run_bytes))
        for module, bound, small in ((runs, "_AT_ONCE_BYTES", 0), (bodies, "_AT_ONCE", 2), (bodies, "_TEMPLATES", 41)):
            if large:
                stack.enter_context(mock.patch.object(module, bound, small))
        found = laid(requests, ids, first_offset, before_bytes=upto_bytes)
    assert [row for run in found for row in decode_rows(run)] == rows_of(requests, ids, first_offset)
    before = first_offset
    for run in found:
        assert run.first == before
        assert run.id == ids[run.end - 1 - first_offset], "it lies under the key of its last message"
        assert len({each[:8] for each in run.ids()}) == 1, "of one millisecond"
        assert len(run) == 1 or run.size <= run_bytes
        assert all(each < len(run) for each in run.begins)
        assert run.flags == (TTL if any(row.ttl is not None for row in decode_rows(run)) else 0)
        upto_bytes += sum(map(len, run.bodies()))
        assert run.upto_bytes == upto_bytes
        before = run.end
    assert before == first_offset + count


@given(columns(), st.none() | pointers, offsets)
def test_a_body_is_what_any_avro_reader_takes_for_the_message(columns: Columns, pointer: int | None, first_offset: int) -> None:
    ids = numbered(len(columns.payloads))
    for run in laid([columns], ids, first_offset, pointer):
        tms = tms_messages_of(run, 0, len(run))
        for index, (body, row) in enumerate(zip(run.bodies(), decode_rows(run), strict=True), run.first - first_offset):
            said = {"offset": row.offset, "producer": row.producer, "sequenceId": row.sequence_id, "key": row.key, "ttl": row.ttl}
            message = {"id": message_id_of(ids[index]), "properties": entry(columns.properties, index), "payload": row.payload}
            assert read(ONCELOG_MESSAGE, body) == {**message, **said}
            assert read(TMS_MESSAGE, tms[row.offset - run.first]) == {"id": message["id"], "payload": row.payload}
        if run.flags & TTL:
            assert [own_ttl(run, at) for at in range(len(run))] == [row.ttl for row in decode_rows(run)]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30) | st.lists(st.just(40), min_size=1, max_size=30), st.data())
def test_a_run_gives_any_part_of_it(sizes: list[int], data: st.DataObject) -> None:
    ids = numbered(len(sizes), 70)
    (run,) = laid([Columns([bytes(each) for each in sizes])], ids)
    bodies = run.bodies()
    begin = data.draw(st.integers(0, len(run) - 1))
    end = data.draw(st.integers(begin, len(run)))
    assert run.ids() == ids
    assert run.ids(begin, end) == ids[begin:end] == [run.id_at(each) for each in range(begin, end)]
    assert run.text(begin, end) == b"".join(run.bodies(begin, end)) == b"".join(bodies[begin:end])
    assert [decode_row(run, each).payload for each in range(begin, end)] == [bytes(each) for each in sizes[begin:end]]
    room = data.draw(st.integers(1, 3_000))
    full = [at for at in range(begin + 1, len(run) + 1) if sum(map(len, bodies[begin:at])) >= room]
    assert run.fitting(begin, end, room) == min([end, *full])
    for at in (*numbered(len(sizes) + 4, 68), row_id(BEGIN - 1, 9), row_id(BEGIN + 1, 9), b"", b"\xff" * 10, ids[0][:8]):
        assert run.index_from(at) == sum(each < at for each in ids)
        assert run.index_from(at + b"\x00") == sum(each < at + b"\x00" for each in ids)


@given(columns(), row_ids, st.sampled_from([0, 1, 2**31]), st.sampled_from([1, 300, 2**15]))
def test_a_payload_reads_back_as_it_was_stored_here_and_by_any_avro_reader(
    columns: Columns, at: bytes, first_index: int, run_bytes: int
) -> None:
    ids = numbered(len(columns.payloads), 65_530)
    with mock.patch.object(runs, "RUN_BYTES", run_bytes):
        found = stored(columns, ids, first_index)
    index = 0
    for run in found:
        messages = stored_messages_of(at, 100 + index, run, 0, len(run))
        tms = tms_stored_messages_of(at, run, 0, len(run))
        end = index + len(run)
        fields = [None if each is None else each[index:end] for each in (columns.keys, columns.properties, columns.ttls)]
        assert tails_of(run) == encode_tails(len(run), *fields)
        for payload, message, short in zip(decode_payloads(run), messages, tms, strict=True):
            ttl, key = entry(columns.ttls, index), entry(columns.keys, index)
            sequence_id, body = entry(columns.sequence_ids, index), columns.payloads[index]
            assert payload == Payload(ids[index], first_index + index, columns.producer, sequence_id, ttl, body, key)
            said = {"offset": 100 + index, "producer": columns.producer, "sequenceId": sequence_id, "key": key, "ttl": ttl}
            said |= {"id": at + ids[index], "properties": entry(columns.properties, index), "payload": body}
            assert read(ONCELOG_MESSAGE, message) == said
            assert read(TMS_MESSAGE, short) == {"id": at + ids[index], "payload": body}
            index += 1
    assert index == len(ids)


@given(row_ids, st.integers(0, 2**50), pointers, summaries, st.booleans())
def test_the_row_of_a_group_says_what_is_in_it_and_that_of_a_branch_is_of_no_transaction(
    at: bytes, offset: int, number: int, summary: GroupSummary, is_branch: bool
) -> None:
    summary = summary._replace(branch=number if is_branch else None)
    pointer = None if is_branch else number
    run = decode_run(PREFIX, at, encode_group(PREFIX, at, offset, pointer, summary).data)
    decoded = decode_row(run, 0)
    assert decoded == Row(at, offset, None, None, None, decoded.payload, pointer, None, summary)
    assert summary_of(run) == summary
    assert (len(run), run.first, run.end, decoded.messages) == (1, offset, offset + summary.messages, summary.messages)
    assert run.flags == (GROUP if is_branch else T | GROUP)
    assert payloads_under(run) == decoded.payloads_under == (-number if is_branch else number)
    assert decoded.message_id == at + bytes(10)


@given(columns(), pointers, summaries)
def test_rolling_back_flips_the_sign_of_the_pointer_and_nothing_else_once(
    columns: Columns, pointer: int, summary: GroupSummary
) -> None:
    ids = numbered(len(columns.payloads) + 1)
    (plain, *_) = laid([columns], ids[:-1], 7)
    for run in (*laid([columns], ids[:-1], 7, pointer), encode_group(PREFIX, ids[-1], 9, pointer, summary)):
        marked = decode_run(PREFIX, run.id, rolled_back(PREFIX, run).data)
        assert [*decode_rows(marked)] == [row._replace(write_pointer=-pointer) for row in decode_rows(run)]
        assert len(marked.data) == len(run.data)
        assert (run.is_rolled_back, marked.is_rolled_back) == (False, True)
        for refused in (marked, plain):  # a second time, and where there is no transaction
            with pytest.raises(AssertionError):
                rolled_back(PREFIX, refused)


def test_requests_that_fill_a_run_are_laid_as_they_come_and_those_that_are_alike_need_no_list_of_ends() -> None:
    laying, ids = Laying(Table.MESSAGE, PREFIX, 10_000), numbered(1_000)
    for at in range(0, 1_000, 250):
        columns = Columns([bytes(100)] * 250, "p", range(1_000 + at, 1_250 + at))
        laying.add(ids[at : at + 250], encode_messages(columns, ids[at : at + 250], 10_000 + at), chain_of(columns))
    with mock.patch.object(Laying, "_lay_parts", side_effect=AssertionError("laid already")):
        found = laying.runs
    assert [len(run) for run in found] == [242, 8] * 4, "at most 32 KiB"
    assert [row.sequence_id for run in found for row in decode_rows(run)] == [*range(1_000, 2_000)]
    assert sum(len(run.data) - run.size for run in found) == 8 * 38 + 4 * 14, "a head and a checksum, and where a request begins"


def test_what_is_large_is_not_joined_before_it_is_written() -> None:
    count = 40_000
    columns, ids, laying = Columns([bytes(100)] * count), numbered(count, 60_000), Laying(Table.MESSAGE, PREFIX, 0)
    messages = encode_messages(columns, ids, 0)
    assert isinstance(messages.bodies, bodies.Joined)
    with mock.patch.object(Laying, "_lay_parts", side_effect=AssertionError("laid already")):
        laying.add(ids, messages)
    assert sum(map(len, laying.runs)) == count
    assert [run.ids() for run in laying.runs] == [ids[run.first : run.end] for run in laying.runs]


@given(st.lists(st.integers(1, 4), max_size=60))
def test_pieces_of_ids_end_where_one_is_left_out_and_with_the_millisecond(steps: list[int]) -> None:
    numbers = [65_500, *accumulate(steps, initial=65_501)]
    ids = [row_id(BEGIN + each // 65_536, each % 65_536) for each in numbers]
    apart = [at for at in range(1, len(ids)) if numbers[at] != numbers[at - 1] + 1 or not numbers[at] % 65_536]
    assert [*runs._rising_by_one(ids)] == [*pairwise([0, *apart, len(ids)])]


@pytest.mark.parametrize(("id_step", "offset_step"), [(1, 0), (0, 1)])
def test_a_body_that_says_another_id_or_offset_than_its_place_is_damage(id_step: int, offset_step: int) -> None:
    ids, said = numbered(3), numbered(3, id_step)
    laying = Laying(Table.MESSAGE, PREFIX, 7)
    laying.add(ids, encode_messages(Columns([b"a"] * 3), said, 7 + offset_step))
    with pytest.raises(RowDamaged, match="says that it is another one"):
        list(decode_rows(laying.runs[0]))


def test_what_is_laid_takes_nothing_more() -> None:
    laying = Laying(Table.MESSAGE, PREFIX, 0)
    messages = encode_messages(PLAIN, numbered(1), 0)
    laying.add(numbered(1), messages)
    rows = [*laying.rows()]
    with pytest.raises(AssertionError):
        laying.add(numbered(1, 1), messages)
    assert [*laying.rows()] == rows


# --- erased


@given(st.lists(columns(), min_size=1, max_size=3), st.none() | pointers, st.booleans(), st.data())
def test_a_message_that_is_erased_keeps_its_place_and_changes_no_other(
    requests: list[Columns], pointer: int | None, is_rolled_back: bool, data: st.DataObject
) -> None:
    requests = requests if pointer is None else requests[:1]
    ids = numbered(sum(len(each.payloads) for each in requests), 65_530)
    for run in laid(requests, ids, 62, pointer):
        run = rolled_back(PREFIX, run) if is_rolled_back and pointer is not None else run
        before, made = [*decode_rows(run)], run
        gone = data.draw(st.lists(st.integers(0, len(run) - 1), min_size=1, max_size=4))
        for number, index in enumerate(gone):
            made, since_ms = erased_run(PREFIX, made, index, BEGIN + number)
            assert since_ms == BEGIN + gone.index(index), "erased twice is erased once"
            made = decode_run(PREFIX, made.id, made.data)
        assert (made.id, made.first, made.count, made.flags, made.begins) == (run.id, run.first, run.count, run.flags, run.begins)
        assert (made.write_pointer, made.upto_bytes) == (run.write_pointer, run.upto_bytes)
        expected = [row._replace(payload=b"", erased=True) if at in gone else row for at, row in enumerate(before)]
        assert [*decode_rows(made)] == expected
        for index, body in enumerate(made.bodies()):
            if index in gone:
                assert read(ONCELOG_MESSAGE, body)["properties"] == {"oncelog.erased": str(BEGIN + gone.index(index))}
                assert read(TMS_MESSAGE, tms_messages_of(made, index, index + 1)[0])["payload"] == b""
            else:
                assert body == run.bodies()[index]
        if run.flags & TTL:
            assert [own_ttl(made, at) for at in range(len(run))] == [row.ttl for row in before]


@given(columns(), st.data())
def test_of_payloads_that_are_stored_apart_too(columns: Columns, data: st.DataObject) -> None:
    for run in stored(columns, numbered(len(columns.payloads)), 62):
        index = data.draw(st.integers(0, len(run) - 1))
        made, _ = erased_payloads(PREFIX, run, index, BEGIN)
        again, since_ms = erased_payloads(PREFIX, decode_run(PREFIX, made.id, made.data), index, BEGIN + 1)
        assert (again.data, since_ms) == (made.data, BEGIN)
        expected = [
            each._replace(payload=b"", erased=True) if at == index else each for at, each in enumerate(decode_payloads(run))
        ]
        assert [*decode_payloads(again)] == expected
        bodies = stored_messages_of(row_id(BEGIN, 0), 5, again, 0, len(again))
        assert read(ONCELOG_MESSAGE, bodies[index])["properties"] == {"oncelog.erased": str(BEGIN)}


# --- golden bytes

P = 1_790_000_000_000_000_001
PLAIN = Columns([b"payload"])


class _Golden(NamedTuple):
    named: Columns = Columns([b"first", b"second", bytes(range(70))], "flights", [0, 1, MAX], previous=row_id(BEGIN, 41))
    everything: Columns = Columns(
        [b"all of it", b"", b"x"],
        "größe:1",
        [62, 63, 64],
        keys=[b"key", None, b""],
        properties=[{"a": "1", "ü": ""}, {}, None],
        ttls=[60, None, 2**40],
    )


SUMMARY = GroupSummary(
    5,
    row_id(1_789_999_999_999, 4),
    (
        GroupProducer("größe:1", 3, MAX, row_id(1_789_999_999_999, 3), 3, row_id(BEGIN, 2)),
        GroupProducer("flights", 0, 0, row_id(1_789_999_999_999, 4), 4, FIRST_ROW_ID),
    ),
)
EMPTY = GroupSummary(0, FIRST_PAYLOAD_ID, ())


def group(pointer: int | None, summary: GroupSummary = SUMMARY) -> StoredRun:
    branch = P if pointer is None else None
    return encode_group(PREFIX, numbered(1)[0], 1_000_000, pointer, summary._replace(branch=branch), 2**40)


RUNS = {
    "run_v1_plain": lambda: laid([PLAIN], numbered(1)),
    "run_v1_of_three_requests": lambda: laid([_Golden().named, PLAIN, _Golden().everything], numbered(7), 63),
    "run_v1_transactional": lambda: laid([_Golden().named], numbered(3), 63, P),
    "run_v1_rolled_back": lambda: [rolled_back(PREFIX, each) for each in laid([_Golden().named], numbered(3), 63, P)],
    "run_v1_erased": lambda: [
        erased_run(PREFIX, each, 3 if len(each) > 3 else 0, BEGIN)[0]
        for each in laid([_Golden().named, _Golden().everything], numbered(6), 63) + laid([PLAIN], numbered(1))
    ],
    "run_v1_group": lambda: [group(P), group(P, EMPTY)],
    "run_v1_branch": lambda: [group(None), group(None, EMPTY)],
    "run_v1_payloads": lambda: [*stored(_Golden().everything, numbered(3), 62), *stored(PLAIN, numbered(1, 3), 65)],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_layout_of_runs_version_1_never_changes(name: str) -> None:
    """What is encoded reads back, as the properties above say: so what is on disk does."""
    assert [each.data.hex() for each in RUNS[name]()] == (GOLDEN / f"{name}.hex").read_text().split()


# --- damage

SAMPLES = [run for name in RUNS for run in RUNS[name]()]


@pytest.mark.parametrize("run", SAMPLES, ids=range(len(SAMPLES)))
def test_damage_to_any_bit_and_every_cut_is_noticed(run: StoredRun) -> None:
    for at in range(len(run.data)):
        for broken in (
            *(run.data[:at] + bytes([run.data[at] ^ 1 << bit]) + run.data[at + 1 :] for bit in range(8)),
            run.data[:at],
        ):
            with pytest.raises(RowDamaged):
                decode_run(PREFIX, run.id, broken)


@pytest.mark.parametrize("run", SAMPLES, ids=range(len(SAMPLES)))
def test_a_row_under_another_key_or_of_a_version_to_come_is_refused_and_not_guessed_at(run: StoredRun) -> None:
    other = (int.from_bytes(run.id, "big") + 1).to_bytes(ROW_ID_SIZE, "big")
    for prefix, at in ((PREFIX, other), (generation_key(topic_key("default", "t"), 2), run.id)):
        with pytest.raises(RowDamaged):
            decode_run(prefix, at, run.data)
    for at, value in ((0, 2), (0, 0), (1, 2), (1, 16), (1, 255)):
        body = bytearray(run.data[:-4])
        body[at] = value
        data = bytes(body) + crc32(body, crc32(PREFIX + run.id)).to_bytes(4, "little")
        with pytest.raises(RowDamaged, match="unknown version"):
            decode_run(PREFIX, run.id, data)
