"""Clients that end transactions, roll back, reopen producers, and read."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog.errors import RollbackRefused, TransactionNotInProgress
from oncelog.wire.models import TransactionState
from oncelog.wire.requests import STORED, PublishResponse, Rollback
from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.keys import row_id, split_row_id
from tests.model.facts import Range
from tests.simulation.client import PRODUCERS, Action
from tests.simulation.sending import Sending
from tests.simulation.world import LIFETIME_MS, TOPICS


class Transacting(Sending):
    """What they do may fail at the same moment as others end the same transaction."""

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
                begun.asked_to_prepare(LIFETIME_MS, surely=error is None)

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
                found.extend(await self.world.read_all(topic, self.random.choice([1, 5, 100]), transaction))

            if await self._ask(f"look {topic}", call) is None:
                self.facts.looked.append((topic, found))

        return act
