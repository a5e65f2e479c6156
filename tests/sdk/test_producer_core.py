"""A producer without hands: what it sends, retries, divides, gives back and completes, told by tables and one property."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncelog import MessageId, errors
from oncelog.errors import OffsetMismatch, OncelogError
from oncelog.producing.batching import Batch
from oncelog.producing.core import Complete, Core, Open, Opened, Policy, Publish, Wait
from oncelog.producing.cutting import Bounds
from oncelog.values.expectation import Expectation
from oncelog.values.outgoing import ROW_BYTES, outgoing
from oncelog.values.receipt import Receipt, Receipts
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, ReceiptRun

Answer = Callable[[PublishRequest], Sequence[ReceiptRun]]
NAMED, ASSIGNED = Policy(linger=5), Policy(is_assigned=True, linger=5)
STOPPING = Policy(linger=5, stops_on_refusal=True)


def stored(request: PublishRequest, offset: int = 0) -> list[ReceiptRun]:
    assert request.sequence_ids is not None
    return [ReceiptRun(STORED, 1, number, None, offset + at) for at, number in enumerate(request.sequence_ids)]


def raising(error: OncelogError) -> Answer:
    def answer(_: PublishRequest) -> Sequence[ReceiptRun]:
        raise error

    return answer


def lost(definite: bool = False) -> OncelogError:
    return errors.ConnectionFailed("planted", definite=definite)


class Shell:
    """The least that a core needs: it obeys, and remembers. A message is known by its position in the order of sending."""

    def __init__(self, policy: Policy = NAMED, last: int | None = None, initial: int | None = None, **more: Any) -> None:
        kind = more.pop("batch", Batch)
        self.core = Core(policy, Opened("p", 1, last), initial, lambda: kind({}))
        self.now = 0.0
        self.sent = 0
        self.told: dict[int, Receipt | OncelogError] = {}
        self.requests: list[tuple[str, PublishRequest]] = []
        self.names = 0
        self.refuses_names: OncelogError | None = None

    def put(self, payload: bytes = b"", **options: Any) -> int:
        message = outgoing(payload, **options)
        while (at := self.core.put(message, batch := self.core.open)) is None:
            self.core.end_batch(self.now)
        self.core.linger(self.now)
        batch.shared[at] = self.sent
        self.sent += 1
        return self.sent - 1

    def whole(self, payloads: Sequence[bytes], offset: int, numbers: Sequence[int | None] | None = None) -> None:
        batch = Batch(dict(enumerate(range(self.sent, self.sent + len(payloads)))), whole=True)
        batch.extend(payloads, numbers)
        batch.expected = Expectation(offset, None, None, None)
        assert self.core.put_batch(batch, self.now)
        self.sent += len(payloads)

    def batch(self, payloads: Sequence[bytes], numbers: Sequence[int] | None = None) -> None:
        batch = Batch(dict(enumerate(range(self.sent, self.sent + len(payloads)))))
        batch.extend(payloads, numbers)
        for part in (part for rising in batch.rising() for part in rising.parts(self.core.policy.bounds)):
            assert self.core.put_batch(part, self.now)
        self.sent += len(payloads)

    def run(self, *answers: Answer | OncelogError) -> list[Any]:
        """Obey until nothing is left to do, with these answers and then good ones. Return what the messages were told."""
        self.core.end_batch(self.now)
        left = list(answers)
        while self.step(lambda: left.pop(0) if left else stored):
            pass
        return [self.told.get(message) for message in range(self.sent)]

    def step(self, answer: Callable[[], Answer | OncelogError]) -> bool:
        action = self.core.next(self.now)
        if isinstance(action, Wait):
            assert action.seconds > 0
            self.now += action.seconds
        elif isinstance(action, Open):
            if self.refuses_names is None:
                self.names += 1
                self.core.opened(Opened(f"p{self.names}", 1))
            else:
                self.core.not_opened(self.refuses_names)
        elif isinstance(action, Publish):
            self.requests.append((self.core.name, action.request))
            given = answer()
            try:
                runs = raising(given)(action.request) if isinstance(given, OncelogError) else given(action.request)
            except OncelogError as error:
                self.core.failed(error, self.now, 0.5)
            else:
                self.core.answered(runs, self.now)
        elif isinstance(action, Complete):
            self.tell(action)
            self.core.completed()
        return action is not None

    def tell(self, result: Complete) -> None:
        part = result.part
        results: Sequence[Any] = Receipts(result.runs)
        if result.error is not None:
            results = [result.error] * len(part)
            self.core.untold(result.error)
        for at, each in enumerate(results):
            message = part.shared[part.begin + at]
            assert message not in self.told, "told twice"
            self.told[message] = each
        assert len(results) == len(part)

    @property
    def sizes(self) -> list[int]:
        return [len(request.payloads) for _, request in self.requests]


def kinds(told: Sequence[Any]) -> list[str]:
    return [each.status if isinstance(each, Receipt) else type(each).__name__ for each in told]


# --- batches


def test_a_batch_is_complete_at_its_count_at_its_bytes_and_when_it_has_lingered() -> None:
    shell = Shell(Policy(bounds=Bounds(10, 10 * (1 + ROW_BYTES)), linger=5))
    for _ in range(12):
        shell.put(b"x")
    assert (shell.core.tick(0.0), len(shell.core.queue)) == (5.0, 1)
    assert (shell.core.tick(4.0), shell.core.tick(5.0)) == (1.0, None)
    for _ in range(6):
        shell.put(b"x" * 100)
    shell.put(b"x" * 1_000)  # larger than the bound: by itself
    assert (shell.run(), shell.sizes) == ([shell.told[at] for at in range(19)], [10, 2, 5, 1, 1])
    assert shell.core.tick(9.0) is None


def test_the_time_to_linger_is_that_of_the_first_message_and_closing_ends_it() -> None:
    shell = Shell()
    assert not shell.core.lingers()
    shell.put()
    shell.now = 4.0
    shell.put()
    assert (shell.core.lingers(), shell.core.tick(4.5)) == (True, 0.5)
    shell.core.close()
    assert (shell.core.tick(0.0), len(shell.core.queue)) == (None, 1)
    with pytest.raises(errors.ProducerClosed):
        shell.put()


def test_there_is_room_for_a_number_of_messages_and_of_bytes_and_for_one_alone_always() -> None:
    for policy, size in ((Policy(max_pending=3), 1), (Policy(max_pending_bytes=3 * (ROW_BYTES + 1)), ROW_BYTES + 1)):
        shell = Shell(policy)
        assert shell.core.has_room(10**9)
        for expected in (True, True, True, False):
            assert shell.core.has_room(size) is expected
            if expected:
                shell.put(b"x")
        shell.run()
        assert (shell.core.pending, shell.core.pending_bytes, shell.core.has_room(10**9, 10**9)) == (0, 0, True)
        shell.put(b"x")
        assert [shell.core.has_room(size * count, count) for count in (2, 3)] == [True, False]


def test_only_offsets_that_follow_on_share_a_request() -> None:
    shell = Shell()
    for options in (
        {},
        {"expected_offset": 1},
        {"expected_offset": 2},
        {},
        {"expected_offset": 4, "key": b"\xff", "expected_key_offset": 1, "expected_last_id": MessageId.NONE},
    ):
        shell.put(**options)
    shell.run()
    sent = [(len(each.payloads), each.expected_offset, each.expected_key_offsets) for _, each in shell.requests]
    assert sent == [(1, None, None), (2, 1, None), (1, None, None), (1, 4, {"\xff": 1})]
    assert [each.expected_last_message_id for _, each in shell.requests] == [None, None, None, bytes(20)]


# --- numbers


def test_the_sdk_numbers_on_from_what_is_stored_or_from_the_initial_id() -> None:
    cases = ((None, None, 0), (7, None, 8), (None, 0, 0), (None, 5, 5), (7, 100, 100))
    for last, initial, first in cases:
        shell = Shell(last=last, initial=initial)
        shell.put()
        shell.put()
        assert [each.sequence_id for each in shell.run()] == [first, first + 1]
        for number in range(first + 1, first + 4):
            assert shell.core.last_sequence_id == number
            shell.put()
            shell.run()


def test_the_newest_message_is_that_of_the_opening_until_a_later_one_is_stored() -> None:
    known, later = MessageId(5, 1), MessageId(6, 3)
    core = Core(NAMED, Opened("p", 1, 7, known), None, lambda: Batch({}))
    assert core.last_message_id == known
    for sequence_id in (8, 7):  # what is told late of an earlier one changes nothing
        core.advance(Receipt(ReceiptRun(STORED, 1, sequence_id, bytes(MessageId(6, sequence_id - 5)), None), 0))
        assert (core.last_sequence_id, core.last_message_id) == (8, later)


def test_who_numbers_is_decided_once() -> None:
    for first, second in ((None, 7), (7, None)):
        shell = Shell()
        shell.put(sequence_id=first)
        with pytest.raises(errors.MixedSequenceIds):
            shell.put(sequence_id=second)
        with pytest.raises(errors.MixedSequenceIds):
            shell.whole([b""], 0, [second])
    for initial in (0, 7):
        with pytest.raises(errors.MixedSequenceIds):
            Shell(initial=initial).put(sequence_id=7)


def test_an_id_that_was_passed_over_is_refused_and_a_repeated_one_is_sent_again() -> None:
    shell = Shell(last=2)
    for number in (5, 9, 1, 2, 5, 9):
        shell.put(sequence_id=number)
    for late in (3, 4, 6, 8):
        with pytest.raises(errors.SequenceIdNotRising) as caught:
            shell.put(sequence_id=late)
        assert (caught.value.last, caught.value.received) == (9, late)
        assert "nothing was sent, and resume will pass over it" in str(caught.value)
        assert "Send it under a number above 9" in str(caught.value)
    shell.run()
    assert [list(request.sequence_ids or ()) for _, request in shell.requests] == [[5, 9], [1, 2, 5, 9]]


def test_a_whole_batch_takes_all_its_numbers_or_none() -> None:
    shell = Shell()
    shell.whole([b"1", b"5"], 0, [1, 5])
    for bad in ([7, 4], [8, 8], [3, 9]):
        with pytest.raises(errors.SequenceIdNotRising):
            shell.whole([b"", b""], 0, bad)
    shell.put(sequence_id=6)
    assert [each.sequence_id for each in shell.run()] == [1, 5, 6]


# --- what an answer means


def test_what_is_too_large_is_sent_once_more_without_the_context_of_its_trace() -> None:
    shell = Shell()
    batch = Batch({0: 0})
    batch.extend([b"x"], properties=[{"own": "1"}])
    batch.carry({"traceparent": "00-1-1-01"})
    assert shell.core.put_batch(batch, 0.0)
    shell.sent = 1
    assert kinds(shell.run(errors.RequestTooLarge(definite=True, limit=10))) == ["stored"]
    assert [request.properties for _, request in shell.requests] == [[{"traceparent": "00-1-1-01", "own": "1"}], [{"own": "1"}]]


@pytest.mark.parametrize(
    ("error", "policy", "told", "behind"),
    [
        (errors.SequenceReused(definite=True), NAMED, "SequenceReused", "stored"),
        (errors.ExpectationsNotChecked(definite=True), NAMED, "ExpectationsNotChecked", "stored"),
        (errors.SequenceReused(definite=True), STOPPING, "SequenceReused", "ProducerStopped"),
        (errors.ExpectationsNotChecked(definite=True), STOPPING, "ExpectationsNotChecked", "ProducerStopped"),
        (errors.TopicNotFound(definite=True), STOPPING._replace(is_assigned=True), "TopicNotFound", "ProducerStopped"),
        (errors.TopicNotFound(definite=True), NAMED, "TopicNotFound", "ProducerStopped"),
        (errors.TopicNotFound(definite=True), ASSIGNED, "TopicNotFound", "stored"),
        (errors.TopicNotFound(definite=False), ASSIGNED, "TopicNotFound", "ProducerStopped"),
        (errors.TopicNotFound(definite=True), ASSIGNED._replace(refuses_gaps=True), "TopicNotFound", "ProducerStopped"),
        (errors.ProducerFenced(definite=True), ASSIGNED, "ProducerFenced", "ProducerStopped"),
        (errors.SequenceGap(definite=True), NAMED, "SequenceGap", "ProducerStopped"),
        (errors.RequestTooLarge(definite=False), NAMED, "RequestTooLarge", "ProducerStopped"),
    ],
)
def test_a_failure_is_of_one_message_or_of_all_behind_it(error: OncelogError, policy: Policy, told: str, behind: str) -> None:
    shell = Shell(policy)
    shell.put()
    shell.core.end_batch(0.0)
    shell.put()
    assert kinds(shell.run(error)) == [told, behind]
    assert (shell.core.stopped is None) == (behind == "stored")
    if shell.core.stopped is not None:
        with pytest.raises(errors.ProducerStopped) as caught:
            shell.put()
        assert caught.value.__cause__ is error
    assert shell.core.take_failure() is error
    assert shell.core.take_failure() is None


def test_one_that_stops_on_a_refusal_stores_what_came_before_it_in_the_same_request_and_nothing_behind_it() -> None:
    def refuses_the_third(request: PublishRequest) -> Sequence[ReceiptRun]:
        if b"too large" in request.payloads:
            raise errors.RequestTooLarge(definite=True)
        return stored(request)

    shell = Shell(STOPPING)
    for payload in (b"0", b"1", b"too large", b"3", b"4"):
        shell.put(payload)
    found = kinds(shell.run(*[refuses_the_third] * 9))
    assert found == ["stored", "stored", "RequestTooLarge", "ProducerStopped", "ProducerStopped"]
    shell = Shell(STOPPING)
    for at in range(5):
        shell.put(expected_offset=10 + at)
    told = shell.run(mismatch(12, 13), stored, mismatch(12, 13))
    assert kinds(told) == ["stored", "stored", *["OffsetMismatch"] * 3]
    assert [each.expected for each in told[2:]] == [12, 13, 14]
    assert shell.sizes == [5, 2, 3]


def away() -> OncelogError:
    return errors.StorageUnavailable("planted", definite=True)


def unchecked() -> OncelogError:
    return errors.ExpectationsNotChecked(definite=True)


def mismatch(expected: int = 9, actual: int = 1) -> OffsetMismatch:
    return OffsetMismatch(condition="offset", expected=expected, actual=actual, topic="t", definite=True)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([away(), lost(), away()], None),
        ([lost(), errors.SequenceReused(definite=True)], ("SequenceReused", True)),
        ([lost(), unchecked()], ("ExpectationsNotChecked", False)),
        ([away(), unchecked()], ("ExpectationsNotChecked", True)),
        ([lost(), mismatch(0, 2)], ("OffsetMismatch", True)),
        ([lost(), mismatch(1, 0)], ("OffsetMismatch", False)),
        ([lost(), errors.TopicNotFound(definite=True)], ("TopicNotFound", False)),
        ([away() for _ in range(99)], ("StorageUnavailable", True)),
        ([lost(), *(away() for _ in range(99))], ("StorageUnavailable", False)),
        ([lost() for _ in range(99)], ("ConnectionFailed", False)),
    ],
)
def test_a_failure_is_definite_only_if_no_earlier_try_can_have_got_through(
    failures: list[OncelogError], expected: tuple[str, bool] | None
) -> None:
    shell = Shell(Policy(delivery_timeout=10))
    shell.put()
    (told,) = shell.run(*failures)
    if expected is None:
        assert isinstance(told, Receipt)
        assert len(shell.requests) == 4
    else:
        assert (type(told).__name__, told.definite) == expected
        assert shell.now <= 10
        assert len(shell.requests) == 2 if len(failures) == 2 else len(shell.requests) > 5


def test_an_answer_that_names_other_messages_is_no_receipt() -> None:
    for runs in ([], [ReceiptRun(STORED, 1, 5, None, 0)], [ReceiptRun(STORED, 1, 0, None, 0)]):
        shell = Shell()
        shell.put()
        shell.put()
        told = shell.run(lambda _, runs=runs: runs)  # type: ignore[misc]
        assert kinds(told) == ["InvalidResponse"] * 2
        assert not any(each.definite for each in told)
        assert (shell.core.last_sequence_id, shell.core.stopped is None) == (None, False)


def test_without_a_name_the_time_of_a_batch_counts_from_when_it_was_complete() -> None:
    shell = Shell(ASSIGNED._replace(delivery_timeout=10, bounds=Bounds(1, 10**6)))
    shell.put()
    shell.put()
    assert kinds(shell.run(*(away() for _ in range(99)))) == ["StorageUnavailable"] * 2
    assert shell.now <= 10
    late = Shell(NAMED._replace(delivery_timeout=10))
    late.put()
    late.core.end_batch(0.0)
    late.now = 100.0  # it waited for others, and has its time all the same
    assert kinds(late.run(away())) == ["stored"]


def test_what_is_waited_for_is_the_next_request_with_what_comes_before_that_and_its_time_counts_from_when_it_came() -> None:
    shell = Shell(ASSIGNED._replace(delivery_timeout=10, linger=5))

    def put(now: float) -> None:
        shell.now = now
        shell.put()
        shell.core.hurry(now)

    put(0.0)
    assert shell.core.tick(0.0) is None, "it lingers no more"
    for moment in (0.2, 0.5, 1.1):
        put(moment)
    assert (len(shell.core.queue), len(shell.core.open.rows)) == (1, 3)
    put(1.3)  # and what comes behind it has a request of its own: it would have to wait longer for its end
    assert (len(shell.core.queue), len(shell.core.open.rows)) == (2, 0)
    assert [each.queued_at for each in shell.core.queue] == [0.0, 1.2]
    put(1.4)
    shell.now = 9.0
    shell.core.end_batch(9.0)
    assert shell.core.queue[-1].queued_at == pytest.approx(2.4)


@pytest.mark.parametrize("gives", ["hurry", "linger"])
def test_a_batch_that_a_handler_has_ended_leaves_no_time_to_the_next_message(gives: str) -> None:
    """Nobody would be woken for that: it seems to linger already."""
    shell = Shell(NAMED)
    shell.core.put(outgoing(b""), shell.core.open)
    shell.core.end_batch(0.0)  # by a flush in a handler, before the message was given its time
    getattr(shell.core, gives)(0.0)
    assert shell.core.put(outgoing(b""), shell.core.open) == 0
    assert not shell.core.lingers()


def test_of_what_is_waited_for_a_full_batch_is_complete_and_the_next_one_lingers_as_ever() -> None:
    shell = Shell(NAMED._replace(bounds=Bounds(2, 10**6), linger=5))
    for _ in range(2):
        assert shell.core.put(outgoing(b""), shell.core.open) is not None
        shell.core.hurry(0.0)
    assert (len(shell.core.queue), shell.core.due) == (1, None)
    shell.core.put(outgoing(b""), shell.core.open)
    shell.core.linger(0.0)
    assert shell.core.due == 5


def test_at_the_end_of_the_process_nothing_is_tried_beyond_the_last_moment() -> None:
    shell = Shell()
    shell.core.last_moment = 2.0
    shell.put()
    assert kinds(shell.run(*(away() for _ in range(99)))) == ["StorageUnavailable"]
    assert shell.now <= 2.0


IDS = st.lists(st.integers(0, 12), min_size=1, max_size=6)
DENSE = st.builds(lambda first, count: [*range(first, first + count)], st.integers(0, 12), st.integers(1, 6))
SENT = st.lists(st.tuples(st.booleans(), IDS | DENSE), max_size=6)


@given(SENT, st.booleans(), st.none() | st.integers(0, 9))
def test_messages_of_a_batch_are_numbered_sent_and_answered_as_if_they_came_one_by_one(
    sent: list[tuple[bool, list[int]]], by_caller: bool, last: int | None
) -> None:
    together, apart = Shell(NAMED._replace(bounds=Bounds(3, 1 << 20)), last), Shell(last=last)
    for as_batch, numbers in sent:
        refused = False
        for number in numbers:
            try:
                apart.put(b"%d" % number, sequence_id=number if by_caller else None)
            except errors.SequenceIdNotRising:
                refused = True
                break
        payloads = [b"%d" % number for number in numbers]
        try:
            if as_batch:
                together.batch(payloads, numbers if by_caller else None)
            else:
                for at, payload in enumerate(payloads):
                    together.put(payload, sequence_id=numbers[at] if by_caller else None)
        except errors.SequenceIdNotRising:
            assert refused
            return  # of a request that is refused, none is sent
        assert not refused
    assert together.core.numbers.next == apart.core.numbers.next
    assert together.core.numbers.ranges == apart.core.numbers.ranges
    assert together.core.numbers.highest == apart.core.numbers.highest
    assert [(each.status, each.sequence_id) for each in together.run()] == [
        (each.status, each.sequence_id) for each in apart.run()
    ]
    of = [
        [row for _, request in each.requests for row in zip(request.payloads, request.sequence_ids or (), strict=True)]
        for each in (together, apart)
    ]
    assert of[0] == of[1]
    assert all(len(request.payloads) <= 3 for _, request in together.requests)


# --- one message's fault


def faulty(*bad: bytes) -> Answer:
    def answer(request: PublishRequest) -> Sequence[ReceiptRun]:
        if set(bad) & set(request.payloads):
            raise errors.InvalidRequest(definite=True)
        return stored(request)

    return answer


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=3), st.booleans())
def test_faulty_messages_among_many_are_found_with_few_requests_and_the_others_stored_in_order(
    n: int, bad: set[int], together: bool
) -> None:
    shell = Shell()
    if together:
        shell.batch([b"%d" % at for at in range(n)])
    for at in range(n * (not together)):
        shell.put(b"%d" % at)
    told = shell.run(*[faulty(*(b"%d" % at for at in bad))] * 10_000)
    assert kinds(told) == ["InvalidRequest" if at in bad else "stored" for at in range(n)]
    assert len(shell.requests) <= 1 + 2 * 10 * len(bad)


def test_a_batch_that_is_stored_whole_or_not_is_never_divided() -> None:
    shell = Shell()
    shell.whole([b"a", b"bad", b"c"], 0)
    assert kinds(shell.run(faulty(b"bad"))) == ["InvalidRequest"] * 3
    shell.whole([b"a", b"b", b"c"], 0)
    told = shell.run(mismatch(0, 2))
    assert [each.expected for each in told[3:]] == [0, 0, 0]
    assert [each.sequence_id for each in (shell.put(), shell.run()[-1])[1:]] == [0]


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 40))
@example(5, 3, 0)
def test_one_refusal_judges_every_message_and_the_one_that_expects_the_upcoming_offset_wins(
    n: int, actual: int, known: int
) -> None:
    """``known`` of them are there already, from an earlier try of another process."""
    shell, known = Shell(), min(known, n - 1)
    for at in range(n):
        shell.put(expected_offset=at)

    def service(request: PublishRequest) -> Sequence[ReceiptRun]:
        assert request.sequence_ids is not None
        assert request.expected_offset is not None
        first = min(max(0, known - request.sequence_ids[0]), len(request.payloads))
        expected, upcoming = request.expected_offset + first, actual + len(stored_here)
        if first < len(request.payloads) and expected != upcoming:
            raise OffsetMismatch(condition="offset", expected=expected, actual=upcoming, topic="t", definite=True)
        stored_here.extend(request.sequence_ids[first:])
        return [
            ReceiptRun(DUPLICATE if number < known else STORED, 1, number, None, request.expected_offset + at)
            for at, number in enumerate(request.sequence_ids)
        ]

    stored_here: list[int] = []
    told = shell.run(*[service] * 1_000)
    wins = range(max(actual, known), n) if known <= actual else range(0)
    for at, each in enumerate(told):
        if at < known:
            assert each.status == DUPLICATE
        elif at in wins:
            assert (each.status, each.offset) == (STORED, at)
        else:
            assert (each.expected, each.definite) == (at, True)
    assert len(shell.requests) <= 3


def test_the_numbers_of_what_is_refused_stay_empty_where_what_is_behind_it_in_the_request_is_stored() -> None:
    shell = Shell()
    for at in range(3):
        shell.put(expected_offset=at)
    assert kinds(shell.run(mismatch(0, 2))) == ["OffsetMismatch", "OffsetMismatch", "stored"]
    shell.put()
    assert shell.run()[-1].sequence_id == 3, "below it, it would be taken for a duplicate"


# --- numbers of what was refused


def test_the_number_of_what_was_refused_is_the_next_messages() -> None:
    shell = Shell(initial=100)
    for _ in range(2):
        shell.put(expected_offset=9)
        shell.run(mismatch())
    shell.whole([b""] * 3, 9)
    shell.run(mismatch())
    shell.put()
    assert shell.run()[-1].sequence_id == 100


def test_the_number_of_what_was_refused_stays_empty_when_something_was_sent_behind_it() -> None:
    shell = Shell()
    shell.put(expected_offset=9)
    shell.core.end_batch(0.0)
    shell.put()
    assert kinds(shell.run(mismatch())) == ["OffsetMismatch", "stored"]
    shell.put(expected_offset=9)
    shell.core.end_batch(0.0)
    shell.put()  # in the open batch while the refusal comes
    shell.step(mismatch)
    shell.put()
    assert [each.sequence_id for each in shell.run() if isinstance(each, Receipt)] == [1, 3, 4]


def test_a_number_that_is_stored_is_never_given_back() -> None:
    shell = Shell()
    shell.put(sequence_id=3)
    shell.run()
    shell.put(sequence_id=3)
    assert kinds(shell.run(errors.SequenceReused(definite=True)))[-1] == "SequenceReused"
    with pytest.raises(errors.SequenceIdNotRising):
        shell.put(sequence_id=2)
    shell.put(sequence_id=3)


# --- a name that ended


def test_an_assigned_name_that_ended_is_exchanged_once_for_each_request_unless_the_message_may_be_stored() -> None:
    def ended() -> OncelogError:
        return errors.ProducerEnded(definite=True)

    for policy, failures, told, names in (
        (ASSIGNED, [ended], "stored", ["p", "p1"]),
        (ASSIGNED, [away, ended], "stored", ["p", "p", "p1"]),
        (ASSIGNED, [ended, ended], "ProducerEnded", ["p", "p1"]),
        (ASSIGNED, [lost, ended], "ProducerEnded", ["p", "p"]),
        (NAMED, [ended], "ProducerEnded", ["p"]),
    ):
        shell = Shell(policy)
        shell.put()
        (result,) = shell.run(*[each() for each in failures])  # type: ignore[operator]
        assert kinds([result]) == [told]
        assert [name for name, _ in shell.requests] == names
        if isinstance(result, OncelogError):
            assert result.definite is (failures[0] is ended)


def test_a_name_that_cannot_be_had_is_a_definite_failure_of_the_messages() -> None:
    shell = Shell(ASSIGNED)
    shell.refuses_names = lost()
    shell.put()
    (told,) = shell.run(errors.ProducerEnded(definite=True))
    assert (told, told.definite, shell.core.stopped) == (shell.refuses_names, True, None)
    shell.refuses_names = None
    shell.put()
    assert kinds(shell.run(errors.ProducerEnded(definite=True)))[-1] == "stored"


# --- the end


def test_giving_up_completes_everything_and_names_what_has_no_result() -> None:
    shell = Shell(Policy(bounds=Bounds(2, 10**6), linger=5))
    for _ in range(5):
        shell.put()
    shell.step(lambda: lost())
    ids, results = shell.core.give_up(0.0)
    assert ids == [0, 1, 2, 3, 4]
    for each in results:
        shell.tell(each)
    assert kinds([shell.told[at] for at in range(5)]) == ["OncelogError"] * 2 + ["ProducerStopped"] * 3
    assert [each.definite for each in shell.told.values() if isinstance(each, OncelogError)] == [False] * 2 + [True] * 3
    shell.told.clear()
    shell.run()  # the futures are complete: a shell passes them over
    assert (len(shell.requests), shell.core.pending) == (1, 0)
    assert Shell().core.give_up(0.0) == ([], [])
    shell = Shell()
    shell.put()
    shell.core.end_batch(0.0)
    assert isinstance(shell.core.next(0.0), Publish)
    shell.core.give_up(0.0)
    first = shell.core.stopped
    shell.core.failed(errors.ProducerFenced(definite=True), 0.0, 0.0)  # the answer comes late
    assert shell.core.give_up(0.0)[0] == []
    assert shell.core.stopped is first


def test_an_answer_is_not_lost_when_its_messages_are_given_up_before_they_were_told() -> None:
    shell = Shell(Policy(bounds=Bounds(1, 10**6)))
    shell.put()
    shell.put()
    shell.step(lambda: stored)
    ids, results = shell.core.give_up(0.0)
    assert ids == [1]
    assert isinstance(results[0].runs[0], ReceiptRun)


def test_what_breaks_off_fails_the_batch_that_was_under_way_and_stops() -> None:
    shell = Shell(Policy(bounds=Bounds(1, 10**6)))
    shell.put()
    shell.put()
    assert isinstance(shell.core.next(0.0), Publish)
    cause = KeyboardInterrupt()
    shell.core.interrupted(cause)
    told = shell.run()
    assert kinds(told) == ["OncelogError", "ProducerStopped"]
    assert (told[0].definite, told[1].definite, told[0].__cause__) == (False, True, cause)
    idle = Shell()
    idle.core.interrupted(cause)
    assert idle.core.next(0.0) is None
    for late in (
        lambda: idle.core.answered([], 0.0),
        lambda: idle.core.failed(lost(), 0.0, 0.0),
        lambda: idle.core.not_opened(lost()),
    ):
        late()  # of a request of a process that this one was forked from
    idle.core.opened(Opened("q", 2))
    assert idle.core.next(0.0) is None


# --- in a transaction


def test_what_is_rolled_back_gives_its_numbers_back_and_what_is_committed_keeps_them() -> None:
    for sequence_id in (None, 5):
        shell = Shell()
        shell.core.enlist(17)
        assert shell.core.number(sequence_id) == (sequence_id or 0)
        with pytest.raises(errors.ProducerInTransaction) as caught:
            shell.put()
        assert (caught.value.producer, caught.value.write_pointer) == ("p", 17)
        with pytest.raises(errors.ProducerInTransaction):
            shell.whole([b"x"], 0)
        shell.core.roll_back()
        shell.core.roll_back()
        shell.core.enlist("atomic")
        assert shell.core.number(sequence_id) == (sequence_id or 0)
        shell.core.release(Receipt(ReceiptRun(STORED, 1, sequence_id or 0, None, None), 0))
        assert shell.core.last_sequence_id == (sequence_id or 0)
        shell.put(sequence_id=sequence_id and sequence_id + 1)
        assert shell.run()[0].sequence_id == (sequence_id or 0) + 1
        shell.core.release(None)


def test_a_transaction_in_doubt_stops_the_producer() -> None:
    for error in (lost(), ZeroDivisionError()):
        shell = Shell()
        shell.core.enlist("atomic")
        with pytest.raises(errors.ProducerInTransaction):
            shell.put()
        shell.core.stop(error)
        for use in (shell.put, lambda shell=shell: shell.core.number(None)):
            with pytest.raises(errors.ProducerStopped):
                use()


# --- what comes in between


@given(st.lists(st.integers(0, 5), max_size=12))
def test_a_batch_is_cut_where_its_ids_do_not_rise(ids: list[int]) -> None:
    batch = Batch()
    batch.extend([b"%d" % at for at in range(len(ids))], ids)
    parts = list(batch.rising())
    assert [number for part in parts for number in part.sequence_ids] == ids
    assert [part.begin for part in parts] == [sum(len(each) for each in parts[:at]) for at in range(len(parts))]
    of = [part.sequence_ids for part in parts]
    assert all(each == sorted(set(each)) for each in of)  # type: ignore[type-var]  # no None among them
    assert not any(one[-1] < other[0] for one, other in pairwise(of)), "as few as can be"  # type: ignore[operator]


class Interrupted(Batch):
    """A batch in which something happens while a message is looked at, as when a signal handler interrupts that."""

    between: list[Callable[[], object]] = []  # noqa: RUF012  # the tests' own, emptied by them

    def accepts(self, sequence_id: int, expected: Expectation | None) -> bool:
        accepted = super().accepts(sequence_id, expected)
        while self.between:
            self.between.pop()()
        return accepted


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("between", ["put", "flush", "close", "whole", "number"])
def test_what_a_handler_does_in_the_middle_of_a_message_is_before_it_or_behind_it(between: str, numbered: bool) -> None:
    shell = Shell(batch=Interrupted)
    shell.put(b"first", sequence_id=0 if numbered else None)
    does: dict[str, Callable[[], object]] = {
        "put": lambda: shell.put(b"handler", sequence_id=1 if numbered else None),
        "flush": lambda: shell.core.end_batch(0.0),
        "close": shell.core.close,
        "whole": lambda: shell.whole([b"handler"], 0, [1 if numbered else None]),
        "number": lambda: shell.core.number(1 if numbered else None),
    }
    Interrupted.between.append(does[between])
    try:
        shell.put(b"main", sequence_id=2 if numbered else None)
    except errors.ProducerClosed:
        assert between == "close"
    told = shell.run()
    assert {each.status for each in told} == {STORED}
    sent = [payload for _, request in shell.requests for payload in request.payloads]
    assert sent == [b"first"] + [b"handler"] * (between in ("put", "whole")) + [b"main"] * (between != "close")
    ids = [number for _, request in shell.requests for number in request.sequence_ids or ()]
    assert ids == sorted(set(ids))


def test_a_message_that_a_transaction_interrupts_is_refused_and_takes_no_number_of_it() -> None:
    shell = Shell(batch=Interrupted)
    Interrupted.between.append(lambda: shell.core.enlist(1))
    with pytest.raises(errors.ProducerInTransaction):
        shell.put()
    shell.core.roll_back()
    shell.put()
    assert [(each.status, each.sequence_id) for each in shell.run()] == [(STORED, 0)]


def test_what_comes_between_a_whole_batch_and_its_numbers_makes_it_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, batch = Shell(), Batch({0: 1})
    batch.extend([b"x"])
    numbered = type(shell.core.numbers).all

    def interrupted(self: Any, given: Any) -> Any:
        answer = numbered(self, given)
        if not shell.sent:
            shell.put(b"handler")
        return answer

    monkeypatch.setattr(type(shell.core.numbers), "all", interrupted)
    assert not shell.core.put_batch(batch, 0.0)
    assert shell.core.put_batch(batch, 0.0)
    shell.sent += 1
    assert [each.sequence_id for each in shell.run()] == [0, 1]


def test_numbering_for_a_transaction_looks_again_when_something_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    shell.core.enlist(1)
    numbers = shell.core.numbers
    copy = type(numbers).copy
    handlers = [lambda: shell.core.number(None)]

    def interrupted(self: Any) -> Any:
        copied = copy(self)
        if handlers:
            handlers.pop()()
        return copied

    monkeypatch.setattr(type(numbers), "copy", interrupted)
    assert [shell.core.number(None), shell.core.number(None)] == [1, 2]


# --- whatever happens


class Log:
    """A topic of one producer, too simple to be wrong."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes]] = []

    def publish(self, request: PublishRequest) -> list[ReceiptRun]:
        if any(payload.startswith(b"bad") for payload in request.payloads):
            raise errors.InvalidRequest("planted", definite=True)
        runs, known = [], {number: at for at, (number, _) in enumerate(self.rows)}
        last = self.rows[-1][0] if self.rows else -1
        for number, payload in zip(request.sequence_ids or (), request.payloads, strict=True):
            if number > last:
                self.rows.append((number, payload))
                runs.append(ReceiptRun(STORED, 1, number, None, len(self.rows) - 1))
            else:
                runs.append(ReceiptRun(DUPLICATE, 1, number, None, known.get(number)))
        return runs


FATES = st.sampled_from(["answered", "answered", "request lost", "answer lost", "refused for now", "away", "garbled"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.booleans()), st.tuples(st.just("serve"), FATES), st.tuples(st.just("time"), st.floats(0, 3))
    ),
    max_size=80,
)


@settings(max_examples=max(100, settings().max_examples))  # the longest histories, and the cheapest
@given(STEPS, st.booleans(), st.integers(1, 4), st.sampled_from([1.0, 30.0]))
def test_whatever_is_lost_each_message_is_sent_in_order_completed_once_and_stored_once(
    steps: list[tuple[str, Any]], assigned: bool, most: int, delivery: float
) -> None:
    log = Log()
    shell = Shell(Policy(assigned, False, Bounds(most, 10**6), 1.0, 6, 10**6, delivery))
    payloads: list[bytes] = []

    def answer(fate: str) -> Answer | OncelogError:
        def served(request: PublishRequest) -> Sequence[ReceiptRun]:
            if fate == "refused for now":
                raise errors.StorageUnavailable("planted", definite=True)
            if fate == "away":
                raise errors.TopicNotFound("planted", definite=True)
            runs = [] if fate == "request lost" else log.publish(request)
            if fate in ("request lost", "answer lost"):
                raise lost()
            return runs[:-1] if fate == "garbled" else runs

        return served

    for kind, value in steps:
        if kind == "put":
            if shell.core.is_usable() and shell.core.has_room(ROW_BYTES + 5):
                payloads.append(b"%s %d" % (b"bad" if value else b"ok", len(payloads)))
                shell.put(payloads[-1])
        elif kind == "time":
            shell.now += value
            shell.core.tick(shell.now)
        else:
            shell.step(lambda value=value: answer(value))  # type: ignore[misc]
        assert shell.core.pending <= 6
        assert shell.core.pending == len(payloads) - len(shell.told) or shell.core.next(shell.now) is not None
    told = shell.run(*[log.publish] * 1_000)

    rows = [payload for _, payload in log.rows]
    assert rows == [payload for payload in payloads if payload in set(rows)], "in the order of sending"
    assert len(set(rows)) == len(rows), "each once"
    assert len(told) == len(payloads) == len(shell.told)
    for payload, result in zip(payloads, told, strict=True):
        if isinstance(result, Receipt):
            assert result.offset is not None
            assert log.rows[result.offset] == (result.sequence_id, payload)
        elif result.definite:
            assert payload not in rows
    if not assigned and shell.core.stopped is not None:
        first = next(at for at, each in enumerate(told) if each is shell.core.stopped)
        assert not any(isinstance(each, Receipt) for each in told[first:]), "nothing is skipped"
    assert (shell.core.pending, shell.core.pending_bytes) == (0, 0)
