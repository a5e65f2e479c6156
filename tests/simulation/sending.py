"""Clients that publish and store: new messages, the same ones again, and what is stored under a pointer."""

from __future__ import annotations

from dataclasses import replace

from oncelog.errors import (
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    ProducerInTransaction,
    SequenceReused,
    StorageUnavailable,
    StoredGroupPublished,
    TransactionNotInProgress,
)
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, PublishResponse
from oncelog_service.storage.keys import row_id
from tests.model.facts import Sent
from tests.model.maps import newest_of_key
from tests.model.transactions import settled
from tests.simulation.client import PRODUCERS, Action, Client
from tests.simulation.world import LIFETIME_MS, TOPICS

KEYS = ("a", "b", "c")


class Sending(Client):
    """Each refusal must have its reason in what was asked before."""

    def _publish(self) -> Action:
        producer = self.random.choice([None, None, *PRODUCERS, *PRODUCERS])
        return self._sending(self._new(self.random.choice(TOPICS), producer, None, False))

    def _publish_in_transaction(self) -> Action:
        pointer = self._pointer()
        if pointer is None:
            return self._begin()
        producer = self.random.choice([None, None, *PRODUCERS, *PRODUCERS])
        return self._sending(self._new(self.random.choice(TOPICS), producer, pointer, self.random.random() < 0.3))

    def _send_again(self) -> Action:
        """The same request, or a producer's same messages in another transaction or in none."""
        numbered = [sent for sent in self.facts.sent[-25:] if sent.request.sequence_ids is not None]
        if not numbered:
            return self._publish()
        sent = self.random.choice(numbered)
        if sent.request.producer is not None and self.random.random() < 0.4:
            pointer = self._pointer()
            sent = Sent(sent.topic, replace(sent.request, write_pointer=pointer), sent.stored and pointer is not None)
            self.facts.sent.append(sent)
        return self._sending(sent)

    def _new(self, topic: str, producer: str | None, pointer: int | None, stored: bool) -> Sent:
        count = self.random.choice([1, 1, 2, 3, 8])
        self._serial += 1
        request = PublishRequest([f"{producer}:{self._serial}:{each}".encode() for each in range(count)], producer)
        request.write_pointer = pointer
        if producer is not None:
            first = self._next(topic, producer) + self.random.choice([0, 0, 0, 2])
            request.sequence_ids = list(range(first, first + count))
        elif pointer is not None and self.random.random() < 0.7:
            first = self.random.choice([0, 10**6]) + 10 * self._serial  # as of two processes that share the pointer
            request.sequence_ids = range(first, first + count)
        if self.random.random() < 0.8:
            request.keys = [self.random.choice([None, *map(str.encode, KEYS)]) for _ in range(count)]
        if not stored and self.random.random() < (0.9 if self._alone else 0.1):
            self._expect(topic, request)
        sent = Sent(topic, request, stored)
        self.facts.sent.append(sent)
        return sent

    def _expect(self, topic: str, request: PublishRequest) -> None:
        """What is so, mostly, where nobody else publishes meanwhile."""
        log = self.logs[topic]
        if self.random.random() < 0.3:
            request.expected_offset = len(log) + self.random.choice([0, 0, 0, 1])
        request.expected_key_offsets = {}
        for key in self.random.sample(KEYS, self.random.randint(1, 2)):
            newest = newest_of_key(log, key.encode())
            offset = None if newest is None else newest.offset
            request.expected_key_offsets[key] = self.random.choice([offset, offset, offset, 1, None])

    def _holds(self, sent: Sent) -> bool | int:
        """Whether what it expects holds; or the transaction that this is up to."""
        log, request, roots = self.logs[sent.topic], sent.request, self.facts.roots
        if request.expected_offset not in (None, len(log)):
            return False
        for key, offset in (request.expected_key_offsets or {}).items():
            newest = newest_of_key(log, key.encode())
            if newest is not None and not settled(self.facts, newest, self.world.clock.ms, LIFETIME_MS):
                pointer = newest.pointer or 0
                if roots.get(pointer, pointer) != roots.get(request.write_pointer or 0, request.write_pointer):
                    return pointer
            if offset != (None if newest is None else newest.offset):
                return False
        return True

    def _next(self, topic: str, producer: str) -> int:
        """The id behind everything that counts or lies stored in a transaction that may go on."""
        ids = [each.sequence_id or 0 for each in self.logs[topic] if each.counts and each.producer == producer]
        states = self.facts.states()
        for sent in self.facts.sent:
            mine = sent.stored and sent.possible and (sent.topic, sent.request.producer) == (topic, producer)
            if mine and states.get(sent.request.write_pointer or 0, "in_progress") == "in_progress":
                ids += sent.request.sequence_ids or []
        return max(ids, default=-1) + 1

    def _sending(self, sent: Sent) -> Action:
        async def act() -> None:
            request, response = sent.request, list[PublishResponse]()
            what = f"{'store' if sent.stored else 'publish'} {sent.topic} {request.producer} {request.sequence_ids}"
            expected_new = self._alone and not sent.possible and self._is_new(sent)
            holds = self._holds(sent) if expected_new else None

            async def call() -> None:
                log = await self.world.topic(sent.topic)
                sent.possible += 1
                try:
                    response.append(await (log.store(request) if sent.stored else log.publish(request)))
                except OncelogError as error:
                    sent.possible -= error.definite
                    raise

            error = await self._ask(f"{what} under {request.write_pointer}", call)
            if error is None:
                assert holds is None or holds is True, f"{request} is stored, although {holds}"
                self._note_answer(sent, response[0], expected_new)
            elif isinstance(error, OffsetMismatch):
                assert holds is None or holds is False, error
            elif isinstance(error, KeyInTransaction):
                assert holds is None or holds == error.write_pointer, error
            elif error.definite and not isinstance(error, StorageUnavailable):
                self._check_refusal(sent, error)

        return act

    def _is_new(self, sent: Sent) -> bool:
        ids = sent.request.sequence_ids
        producer = sent.request.producer
        return ids is None or producer is None or ids[0] >= self._next(sent.topic, producer)

    def _note_answer(self, sent: Sent, response: PublishResponse, expected_new: bool) -> None:
        sent.responses.append(response)
        at, request = 0, sent.request
        for run in response.receipts:
            assert not expected_new or run.status == STORED, f"{request} is new, and was answered {response}"
            for step in range(run.count):
                if run.status == STORED or run.message_id is not None:
                    sent.sure.add(request.payloads[at + step])
                self._note_receipt(sent, at + step, run.status, run.message_id, run.offset, step)
            at += run.count
        assert at == len(request.payloads), f"{request} was answered {response}"

    def _note_receipt(self, sent: Sent, at: int, status: str, first_id: bytes | None, offset: int | None, step: int) -> None:
        if first_id is None or offset is None:
            return
        request, key = sent.request, (sent.topic, (int.from_bytes(first_id, "big") + (step << 80)).to_bytes(20, "big"))
        sequence_id = None if request.sequence_ids is None else request.sequence_ids[at]
        if status == STORED:
            place = offset + step, request.producer, sequence_id, request.payloads[at], request.write_pointer
            assert self.facts.placed.setdefault(key, place) == place, f"{place} is said to lie at {key}"
        elif request.write_pointer is None:
            self.facts.kept.add(key)

    def _check_refusal(self, sent: Sent, error: OncelogError) -> None:
        """Each refusal has its reason."""
        request, others = sent.request, [each for each in self.facts.sent if each is not sent and each.topic == sent.topic]
        if isinstance(error, TransactionNotInProgress):
            assert self._may_have_ended(request.write_pointer or 0), error
        elif isinstance(error, ProducerInTransaction):
            pointer = error.write_pointer
            assert any(each.request.write_pointer == pointer and each.request.producer == request.producer for each in others)
            assert self.facts.roots.get(pointer, pointer) != self.facts.roots.get(request.write_pointer or 0), error
        elif isinstance(error, StoredGroupPublished):
            assert sent.stored, error
        else:
            assert isinstance(error, SequenceReused), error
            assert any(each.request.producer == request.producer for each in others), error

    def _publish_group(self) -> Action:
        stored = [sent for sent in self.facts.sent[-40:] if sent.stored]
        pointers = [(sent.topic, sent.request.write_pointer or 0) for sent in stored]
        empty = [(topic, pointer) for topic in TOPICS if (pointer := self._pointer()) is not None]
        if not pointers + empty:
            return self._begin()
        topic, pointer = self.random.choice(pointers * 5 + empty)
        producer = self.random.choice([None, *PRODUCERS])

        async def act() -> None:
            async def call() -> None:
                request = PublishRequest([], producer, write_pointer=pointer)
                response = await (await self.world.topic(topic)).publish(request)
                at, count = row_id(response.start_timestamp, response.start_sequence_id), sum(r.count for r in response.receipts)
                assert self.facts.grouped.setdefault((topic, pointer), (at, count)) == (at, count)
                assert all(run.status in (STORED, DUPLICATE) for run in response.receipts)

            error = await self._ask(f"publish what is stored {topic} {pointer}", call)
            if isinstance(error, TransactionNotInProgress):
                assert self._may_have_ended(pointer), error
            elif error is not None and error.definite and not isinstance(error, StorageUnavailable):
                assert isinstance(error, (StoredGroupPublished, SequenceReused)), error

        return act
