"""Random clients of a service that fails and crashes: what they do next, and what they note of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

from oncelog.errors import (
    OncelogError,
    ProducerInTransaction,
    RollbackRefused,
    SequenceReused,
    StorageFailed,
    StorageUnavailable,
    StoredGroupPublished,
    TransactionNotInProgress,
)
from oncelog.wire.models import TransactionState
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, PublishResponse, Rollback
from oncelog.wire.transaction import POINTERS_PER_MS, TransactionType
from oncelog_service.storage.keys import row_id, split_row_id
from tests.simulation.facts import Begun, Facts, Range, Sent
from tests.simulation.judge import check, read_all
from tests.simulation.rows import NAMESPACE, Entry
from tests.simulation.world import FAULTS, LIFETIME_MS, TOPICS, World

PRODUCERS = ("a", "b", "c")
Action: TypeAlias = Callable[[], Awaitable[None]]


class Driver:
    """One simulation. Everything is decided by ``random``."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.world = World(random.choice([1, 3, 8, 25]), random.choice([0, 2**20]))
        self.facts = Facts()
        self.logs: dict[str, list[Entry]] = {topic: [] for topic in TOPICS}
        self.story: list[str] = []
        """What was done, for whoever looks for the reason of a failure."""
        self._serial = 0
        self._armed = False
        self._alone = True
        """Nothing else happens at the same time, nor fails."""

    async def run(self, steps: int) -> None:
        """So many steps, each with everything checked behind it."""
        await self.world.start()
        for topic in TOPICS:
            await self.world.service.topics.create(NAMESPACE, topic, {"ttl": str(10**9)})
        try:
            for _ in range(steps):
                await self.step()
                self.logs = await check(self.world, self.facts, self.random)
        finally:
            self.world.disarm()
            await self.world.service.stop()

    async def step(self) -> None:
        """Mostly some clients at the same time; else time goes by, or the service stops, crashes, or reopens a topic."""
        kind = self.random.choices([self._burst, self._time, self._crash, self._restart, self._reopen], [80, 8, 5, 3, 4])[0]
        await kind()

    # --- what is not a client's doing

    async def _crash(self) -> None:
        self._tell("crash")
        await self.world.crash()

    async def _restart(self) -> None:
        self._tell("restart")
        await self.world.restart()

    async def _reopen(self) -> None:
        topic = self.random.choice(TOPICS)
        self._tell(f"reopen {topic}")
        await self.world.reopen_topic(topic)

    async def _time(self) -> None:
        ms = self.random.choices([1, 2_000, 40_000, LIFETIME_MS + 1], [6, 4, 4, 1])[0]
        self._tell(f"{ms} ms go by")
        self.world.clock.advance(ms)
        late = [each for each in self.facts.begun.values() if each.expires_ms <= self.world.clock.ms]
        for each in late:
            if "in_progress" in each.possible:
                each.possible |= {"invalid"}
        await self.world.service.transactions.expire_due()  # type: ignore[union-attr]
        await self.world.service.retention.once()
        for each in late:
            each.possible -= {"in_progress"}

    # --- clients

    async def _burst(self) -> None:
        count = self.random.choices([1, 2, 4, 6], [6, 2, 1, 1])[0]
        fault = self.random.choice(FAULTS) if self.random.random() < 0.12 else None
        self._alone = count == 1 and fault is None
        actions = [self._planned() for _ in range(count)]
        if fault is not None:
            write = self.random.randrange(count + 2)
            self._tell(f"write {write} {fault}")
            self._armed = True
            self.world.arm(fault, write)
        answers = await asyncio.gather(*(action() for action in actions), return_exceptions=True)
        self._armed = False
        if fault is not None and fault.startswith("crash"):
            await self.world.crash()
        self.world.disarm()
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _planned(self) -> Action:
        plans = [
            (self._publish, 30),
            (self._publish_in_transaction, 26),
            (self._send_again, 12),
            (self._publish_group, 8),
            (self._begin, 14),
            (self._end, 16),
            (self._checkpoint, 4),
            (self._prepare, 2),
            (self._roll_back, 10),
            (self._forge_rollback, 2),
            (self._open_producer, 3),
            (self._look, 4),
            (self._prune, 1),
        ]
        return self.random.choices([plan for plan, _ in plans], [weight for _, weight in plans])[0]()

    async def _ask(self, what: str, call: Callable[[], Awaitable[object]]) -> OncelogError | None:
        """Call; the error that was answered, or None. Only a failing store may be unavailable."""
        try:
            await call()
        except OncelogError as error:
            self._tell(f"{what}: {type(error).__name__} {error}")
            if isinstance(error, (StorageFailed, StorageUnavailable)) and not self._armed:
                raise
            return error
        self._tell(what)
        return None

    def _tell(self, what: str) -> None:
        self.story.append(what)

    # --- publish and store

    def _publish(self) -> Action:
        producer = self.random.choice([None, *PRODUCERS, *PRODUCERS])
        return self._sending(self._new(self.random.choice(TOPICS), producer, None, False))

    def _publish_in_transaction(self) -> Action:
        pointer = self._pointer()
        if pointer is None:
            return self._begin()
        producer = self.random.choice([None, *PRODUCERS, *PRODUCERS])
        return self._sending(self._new(self.random.choice(TOPICS), producer, pointer, self.random.random() < 0.3))

    def _send_again(self) -> Action:
        """The same request, or the same messages in another transaction or in none."""
        named = [sent for sent in self.facts.sent[-25:] if sent.request.producer is not None]
        if not named:
            return self._publish()
        sent = self.random.choice(named)
        if self.random.random() < 0.4:
            pointer = self._pointer()
            sent = Sent(sent.topic, replace(sent.request, write_pointer=pointer), sent.stored and pointer is not None)
            self.facts.sent.append(sent)
        return self._sending(sent)

    def _pointer(self) -> int | None:
        """One to write under, mostly of a transaction in progress, now and then of one that has ended, or a foreign one."""
        if self.random.random() < 0.08:
            self._serial += 1
            self.facts.foreign.append(self.world.clock.ms * POINTERS_PER_MS + 500_000 + self._serial)
        if self.facts.foreign and self.random.random() < 0.15:
            return self.random.choice(self.facts.foreign[-3:])
        begun = list(self.facts.begun.values())[-12:]
        chosen = [each for each in begun if each.certainly_open] if self.random.random() < 0.95 else begun
        return self.random.choice(self.random.choice(chosen).pointers) if chosen else None

    def _new(self, topic: str, producer: str | None, pointer: int | None, stored: bool) -> Sent:
        count = self.random.choice([1, 1, 2, 3, 8])
        self._serial += 1
        request = PublishRequest([f"{producer}:{self._serial}:{each}".encode() for each in range(count)], producer)
        request.write_pointer = pointer
        if producer is not None:
            first = self._next(topic, producer) + self.random.choice([0, 0, 0, 2])
            request.sequence_ids = list(range(first, first + count))
        sent = Sent(topic, request, stored)
        self.facts.sent.append(sent)
        return sent

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

            async def call() -> None:
                log = await self.world.topic(sent.topic)
                sent_before = sent.possible
                sent.possible = True
                try:
                    response.append(await (log.store(request) if sent.stored else log.publish(request)))
                except OncelogError as error:
                    sent.possible = sent_before or not error.definite
                    raise

            error = await self._ask(f"{what} under {request.write_pointer}", call)
            if error is None:
                self._note_answer(sent, response[0], expected_new)
            elif error.definite and not isinstance(error, StorageUnavailable):
                self._check_refusal(sent, error)

        return act

    def _is_new(self, sent: Sent) -> bool:
        ids = sent.request.sequence_ids
        return ids is None or ids[0] >= self._next(sent.topic, sent.request.producer or "")

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

    def _may_have_ended(self, pointer: int) -> bool:
        root = self.facts.roots.get(pointer)
        if root is None:
            return self.facts.outlived(pointer, self.world.clock.ms, LIFETIME_MS)
        return not self.facts.begun[root].certainly_open

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

    # --- transactions

    def _begin(self) -> Action:
        timeout_ms = self.random.choice([5_000, 30_000, 30_000, 3_600_000])
        kind = self.random.choice([TransactionType.SHORT] * 3 + [TransactionType.LONG])

        async def act() -> None:
            seen = self.facts.states() if self._alone else None
            begun: list[Begun] = []

            async def call() -> None:
                asked = timeout_ms if kind is TransactionType.SHORT else None
                transaction = await self.world.service.transactions.start(kind, asked)
                expires_ms = self.world.clock.ms + (LIFETIME_MS if asked is None else asked)
                begun.append(Begun(transaction, expires_ms, seen, pointers=[transaction.transaction_id]))

            await self._ask("begin", call)
            for each in begun:
                self.facts.begun[each.root] = each
                self.facts.roots[each.root] = each.root

        return act

    def _some_transaction(self) -> Begun | None:
        begun = list(self.facts.begun.values())[-12:]
        chosen = [each for each in begun if each.certainly_open] if self.random.random() < 0.85 else begun
        return self.random.choice(chosen) if chosen else None

    def _end(self) -> Action:
        begun = self._some_transaction()
        if begun is None:
            return self._begin()
        state: TransactionState = self.random.choice(["committed", "committed", "committed", "aborted", "aborted", "invalid"])

        async def act() -> None:
            transactions = self.world.service.transactions
            before = set(begun.possible)
            if before & ({"in_progress", "invalid"} if state == "aborted" else {"in_progress"}):
                begun.possible.add(state)
            calls = {"committed": transactions.commit, "aborted": transactions.abort, "invalid": transactions.invalidate}
            error = await self._ask(f"{state} {begun.root}", lambda: calls[state](begun.root))
            if error is None:
                assert begun.possible & {state, "invalid"}, f"{state} is acknowledged of {begun.possible}"
                if state in begun.possible:
                    both = begun.possible & {"aborted", "invalid"}  # an invalid one may be aborted too, or already is
                    begun.possible = {state} | (both if state in both else set())
            elif isinstance(error, TransactionNotInProgress):
                assert before != {"in_progress"} or not self._alone, error

        return act

    def _checkpoint(self) -> Action:
        begun = self._some_transaction()
        if begun is None:
            return self._begin()

        async def act() -> None:
            async def call() -> None:
                begun.transaction = await self.world.service.transactions.checkpoint(begun.root)
                begun.pointers = [begun.root, *begun.transaction.checkpoint_write_pointers]
                self.facts.roots.update(dict.fromkeys(begun.pointers, begun.root))

            await self._ask(f"checkpoint {begun.root}", call)

        return act

    def _prepare(self) -> Action:
        begun = self._some_transaction()
        if begun is None:
            return self._begin()

        async def act() -> None:
            call = self.world.service.transactions.can_commit
            error = await self._ask(f"prepare {begun.root}", lambda: call(begun.root, [], "sql"))
            if error is None or not error.definite:
                begun.prepared = True  # then it may still time out at its old time, and may not
                begun.expires_ms = max(begun.expires_ms, begun.root // POINTERS_PER_MS + LIFETIME_MS)

        return act

    def _prune(self) -> Action:
        async def act() -> None:
            await self._ask("prune", lambda: self.world.service.transactions.prune(None, self.world.clock.ms))

        return act

    def _open_producer(self) -> Action:
        producer, topic = self.random.choice(PRODUCERS), self.random.choice(TOPICS)
        self._serial += 1
        nonce = f"n{self._serial}"

        async def act() -> None:
            answers: list[int | None] = []
            for sent in self.facts.sent:
                begun = self.facts.begun.get(self.facts.roots.get(sent.request.write_pointer or 0, 0))
                mine = (sent.topic, sent.request.producer) == (topic, producer)
                if mine and begun is not None and not begun.prepared and "in_progress" in begun.possible:
                    begun.possible.add("aborted")

            async def call() -> None:
                opened = await (await self.world.topic(topic)).producers.open(producer, nonce, "allow")
                answers.append(opened.last_sequence_id)

            await self._ask(f"open {topic} {producer}", call)
            if self._alone and answers:
                self.facts.opened = (topic, producer, answers[0])

        return act

    # --- roll back

    def _roll_back(self) -> Action:
        """One request, or everything of a pointer on a topic."""
        undone = [
            sent
            for sent in self.facts.sent[-40:]
            if sent.request.write_pointer and not sent.stored and any(r.start_timestamp for r in sent.responses)
        ]
        if not undone:
            return self._publish_in_transaction()
        sent = self.random.choice(undone)
        pointer, responses = sent.request.write_pointer or 0, [self.random.choice(sent.responses)]
        single = self.random.random() < 0.6
        if not single:
            responses = [
                response
                for each in self.facts.sent
                if (each.topic, each.request.write_pointer) == (sent.topic, pointer)
                for response in each.responses
                if response.start_timestamp
            ]
        responses = [each for each in responses if each.start_timestamp]
        if not responses:
            return self._publish_in_transaction()
        exact = single and {run.status for run in responses[0].receipts} == {STORED}
        return self._rolling_back(sent.topic, pointer, responses, exact)

    def _rolling_back(self, topic: str, pointer: int, responses: Sequence[PublishResponse], exact: bool) -> Action:
        start = min((each.start_timestamp, each.start_sequence_id) for each in responses)
        end = max((each.end_timestamp, each.end_sequence_id) for each in responses)
        known = Range(topic, pointer, row_id(*start), row_id(*end))

        async def act() -> None:
            async def call() -> None:
                await (await self.world.topic(topic)).roll_back(Rollback(pointer, start, end))

            self.facts.perhaps_rolled_back.append(known)
            error = await self._ask(f"roll back {topic} {pointer} {start} {end}", call)
            if error is None:
                self.facts.rolled_back.append(known)
            if error is None or error.definite:
                self.facts.perhaps_rolled_back.remove(known)
            if isinstance(error, RollbackRefused):
                outlived = pointer not in self.facts.roots and self._may_have_ended(pointer)
                assert outlived or not (exact and self._alone), error
            elif isinstance(error, TransactionNotInProgress):
                # Not committed is as good, while it ends at the same time.
                assert "committed" in self.facts.begun[self.facts.roots[pointer]].possible or not self._alone, error
                assert self._may_have_ended(pointer), error

        return act

    def _forge_rollback(self) -> Action:
        """Somebody else's rows under a pointer that did not write them: check() finds whatever that changes."""
        topic, pointer = self.random.choice(TOPICS), self._pointer()
        log = self.logs[topic]
        if pointer is None or not log:
            return self._begin()
        first, last = sorted(self.random.choices(log, k=2), key=lambda each: each.row_id)
        if pointer in (abs(first.pointer or 0), abs(last.pointer or 0)):
            return self._look()
        start, end = split_row_id(first.row_id), split_row_id(last.row_id)

        async def act() -> None:
            async def call() -> None:
                await (await self.world.topic(topic)).roll_back(Rollback(pointer, start, end))

            error = await self._ask(f"forge {topic} {pointer} {start} {end}", call)
            assert error is not None

        return act

    # --- readers

    def _look(self) -> Action:
        """A reader in a transaction of its own while others work: what it is given was decided, nothing is left out before it."""
        topic = self.random.choice(TOPICS)

        async def act() -> None:
            found: list[tuple[bytes, int, bytes]] = []

            async def call() -> None:
                transaction = await self.world.service.transactions.start(TransactionType.SHORT)
                found.extend(await read_all(self.world, topic, self.random.choice([1, 5, 100]), transaction))

            if await self._ask(f"look {topic}", call) is None:
                self.facts.looked.append((topic, found))

        return act
