"""What must hold of a log, by what a reader is given and by what is on disk."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from oncelog import Client, Message, Reader, Receipt
from oncelog.wire.models import Verification
from oncelog_service.storage.port import Table
from tests.model.facts import Facts
from tests.model.maps import Entry, Tables, prefix_of, stored


def payload_of(producer: str, sequence_id: int) -> bytes:
    """What this message says: recomputed wherever it turns up, so that no message can pass for another."""
    return f"{producer}:{sequence_id}:".encode() + b"." * (sequence_id * 7919 % 150)


# --- as a reader is given it


def read_log(url: str, topic: str) -> list[Message]:
    """Everything from the oldest message to the end."""
    with Reader(topic, url=url, timeout=0) as reader:
        return list(reader)


def check_dense(log: Sequence[Message], topic: str = "") -> None:
    """Offsets are dense, ids rise, and so do each producer's sequence ids: none is there twice."""
    last_id, last_of = b"", dict[str, int]()
    for offset, message in enumerate(log):
        assert message.offset == offset, f"{topic}: offset {message.offset} stands where {offset} should"
        message_id = bytes(message.message_id)
        assert last_id < message_id, f"{topic}: {message_id.hex()} at {offset} does not rise above {last_id.hex()}"
        last_id = message_id
        producer, sequence_id = message.producer, message.sequence_id
        if producer is not None and sequence_id is not None:
            assert last_of.get(producer, -1) < sequence_id, f"{topic}: {producer} {sequence_id} behind {last_of[producer]}"
            last_of[producer] = sequence_id


def check_order(log: Sequence[Message]) -> None:
    """As :func:`check_dense`, of messages of named producers, each with the payload that it should have."""
    check_dense(log)
    for message in log:
        assert message.producer is not None
        assert message.sequence_id is not None
        assert message.payload == payload_of(message.producer, message.sequence_id), f"not its payload: {message}"


def check_prefix(before: Sequence[Message], after: Sequence[Message]) -> None:
    """What was read before is read again, in the same places, under the same ids."""
    assert len(before) <= len(after), f"{len(before)} messages had been read, now there are {len(after)}"
    for earlier, later in zip(before, after, strict=False):
        assert earlier == later


def check_acknowledged(log: Sequence[Message], producer: str, receipts: Mapping[int, Receipt]) -> None:
    """Every acknowledged message is there, where its receipt says."""
    present = {message.sequence_id for message in log if message.producer == producer}
    missing = sorted(receipts.keys() - present)
    assert not missing, f"acknowledged to {producer} and lost: {missing[:10]} ({len(missing)} in all)"
    check_receipts(log, producer, receipts.values())


def check_receipts(log: Sequence[Message], producer: str, receipts: Iterable[Receipt]) -> None:
    """The id and offset of a receipt are those of the message with its sequence id."""
    for receipt in receipts:
        assert receipt.offset is not None or receipt.status == "duplicate", receipt
        if receipt.offset is not None:
            message = log[receipt.offset]
            assert (message.producer, message.sequence_id) == (producer, receipt.sequence_id), (message, receipt)
            assert message.message_id == receipt.message_id, (message, receipt)


def check_verified(url: str, topics: Iterable[str]) -> None:
    """The service's own check finds that the live maps are the fold of the log."""
    with Client(url) as client:
        for topic in topics:
            *_, verification = client.verify(topic)
            assert isinstance(verification, Verification)
            assert verification.ok, verification.problems


def check_maps(client: Client, topic: str, log: Sequence[Message]) -> None:
    """The service's maps are the fold of the log: by its own check, and by this one."""
    *_, verification = client.verify(topic)
    assert isinstance(verification, Verification)
    assert verification.ok, verification.problems
    assert verification.messages == len(log)
    highest = {message.producer: message for message in log}
    live = {producer.name: producer for producer in client.producers(topic)}
    assert highest.keys() <= live.keys()
    for name, producer in live.items():
        last = highest.get(name)
        expected = (None, None, None) if last is None else (last.sequence_id, last.message_id, last.offset)
        assert (producer.last_persisted, producer.last_message_id, producer.last_offset) == expected
        assert producer.last_pushed == producer.last_persisted


# --- as it is on disk


def check_placed(facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """What was acknowledged is where it was said to be, and so is what was found before."""
    by_id = {each.message_id: each for each in log}
    for (of, message_id), known in facts.placed.items():
        if of == topic:
            assert message_id in by_id, f"{topic}: {known} is gone from {message_id.hex()}"
            assert by_id[message_id].placed == known, f"{topic}: {by_id[message_id]} is not {known}"
    for each in log:
        facts.placed[topic, each.message_id] = each.placed
    for of, message_id in facts.kept:
        assert of != topic or by_id[message_id].counts, f"{topic}: {by_id[message_id]} was answered as a duplicate, and is gone"


def check_once(facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """Each message was sent, was not refused, and counts once; of a request that may have happened all is there or nothing."""
    times, counting = Counter(each.payload for each in log), Counter(each.payload for each in log if each.counts)
    assert not counting or max(counting.values()) == 1, f"{topic}: twice there: {counting.most_common(3)}"
    requests = defaultdict(list)
    for sent in facts.sent:
        if sent.topic == topic:
            for payload in sent.request.payloads:
                requests[payload].append(sent)
    for each in log:
        senders = [sent for sent in requests[each.payload] if sent.request.write_pointer == each.root and sent.possible]
        assert senders, f"{topic}: nobody may have stored {each}"
        assert each.producer == senders[0].request.producer
        assert each.sequence_id is not None or times[each.payload] == 1, f"{topic}: {each} is there twice"
    for sent in facts.sent:
        if sent.topic == topic and not sent.stored:
            present = [times[payload] for payload in sent.request.payloads]
            assert present == sorted(present), f"{topic}: only the beginning of {sent.request} is there: {present}"
            missing = [payload for payload in sent.sure if not times[payload]]
            assert not missing, f"{topic}: acknowledged and not there: {missing} of {sent.request}"


def check_groups(facts: Facts, tables: Tables, topic: str, log: Sequence[Entry]) -> None:
    """A published group has one row and everything that was stored under its pointer; what is not published is not to be seen."""
    lying, seen = stored(tables, topic), {each.payload for each in log}
    for sent in facts.sent:
        if sent.topic == topic and sent.stored and sent.sure:
            group = facts.grouped.get((topic, sent.request.write_pointer or 0))
            missing = [payload for payload in sent.sure if payload not in (lying | seen if group is None else seen)]
            assert not missing, f"{topic}: stored, acknowledged and gone: {missing}; group {group}"
    for (of, pointer), (row_id, messages) in facts.grouped.items():
        if of == topic:
            assert prefix_of(topic) + row_id in tables[Table.MESSAGE], f"the group of {pointer} is gone"
            assert sum(each.row_id == row_id for each in log) == messages
