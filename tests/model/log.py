"""What must hold of a log, by what a reader is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oncelog import Client, Message, Reader, Receipt
from oncelog.wire.models import Verification


def payload_of(producer: str, sequence_id: int) -> bytes:
    """What this message says: recomputed wherever it turns up, so that no message can pass for another."""
    return f"{producer}:{sequence_id}:".encode() + b"." * (sequence_id * 7919 % 150)


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
