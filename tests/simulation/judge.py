"""Holds the service against the disk and the disk against what was answered. Nothing is under way meanwhile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

from oncelog.wire.codec import decode_consume_response, encode_consume_response
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import TransactionState
from oncelog.wire.requests import ConsumeRequest
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_dedup import Mark
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import Findings, verify_log
from oncelog_service.storage.port import Table
from tests.simulation.facts import Begun, Facts
from tests.simulation.rows import Entry, Tables, copied, empty_groups, entries, fold, prefix_of, snapshots, stored
from tests.simulation.world import LIFETIME_MS, TOPICS, World

_ROLLED_BACK = ("aborted", "invalid")


async def check(world: World, facts: Facts, random: Random) -> dict[str, list[Entry]]:
    """Everything that must hold after a step; the messages of each topic."""
    await world.ready()
    logs = {topic: await world.topic(topic) for topic in TOPICS}
    await world.ready()  # opening them may have ended what they found
    await check_states(world, facts)
    tables = copied(world.disk)
    found: dict[str, list[Entry]] = {}
    for topic, log in logs.items():
        found[topic] = entries(tables, topic)
        check_placed(facts, topic, found[topic])
        check_once(facts, topic, found[topic])
        check_groups(facts, tables, topic, found[topic])
        check_signs(facts, topic, found[topic])
        check_looks(facts, topic, found[topic])
        check_opened(world, facts, topic, found[topic])
        check_map(topic, log, found[topic])
        check_snapshots(world, facts, tables, topic, found[topic])
        await check_reading(world, facts, topic, found[topic], empty_groups(tables, topic), random)
        check_verification(topic, log, world)
    return found


async def check_states(world: World, facts: Facts) -> None:
    """The state of each transaction is what was answered. From now on it is what is answered here."""
    states = await world.service.transactions.states(list(facts.roots))
    for pointer, root in facts.roots.items():
        assert pointer in states, f"the transaction {root} is forgotten"
        facts.begun[root].answered(states[pointer])


# --- the disk and what was answered


def check_placed(facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """What was acknowledged is where it was said to be, and so is what was found before."""
    by_id = {each.message_id: each for each in log}
    for (of, message_id), known in facts.placed.items():
        if of == topic:
            assert message_id in by_id, f"{topic}: {known} is gone from {message_id.hex()}"
            assert _place(by_id[message_id]) == known, f"{topic}: {by_id[message_id]} is not {known}"
    for each in log:
        facts.placed[topic, each.message_id] = _place(each)
    for of, message_id in facts.kept:
        assert of != topic or by_id[message_id].counts, f"{topic}: {by_id[message_id]} was answered as a duplicate, and is gone"


def _place(entry: Entry) -> tuple[int, str | None, int | None, bytes, int | None]:
    pointer = None if entry.pointer is None else abs(entry.pointer)
    return entry.offset, entry.producer, entry.sequence_id, entry.payload, pointer


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
        pointer = None if each.pointer is None else abs(each.pointer)
        senders = [sent for sent in requests[each.payload] if sent.request.write_pointer == pointer and sent.possible]
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


def check_signs(facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """All rows of an ended transaction count, or all are marked; but for those whose roll-back was asked for alone."""
    for each in log:
        if each.pointer is None:
            continue
        pointer = abs(each.pointer)
        state = facts.state(pointer)
        asked = any(known.holds(topic, pointer, each.row_id) for known in facts.rolled_back)
        perhaps = any(known.holds(topic, pointer, each.row_id) for known in facts.perhaps_rolled_back)
        if each.counts:
            assert state not in _ROLLED_BACK, f"{topic}: {each} of a transaction that is {state} is not marked"
            assert not asked, f"{topic}: the roll-back of {each} was acknowledged"
        else:
            assert asked or perhaps or state in _ROLLED_BACK, f"{topic}: {each} was rolled back, the transaction is {state}"


def check_looks(facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """Whoever read meanwhile was given the beginning of what is decided by now, and nothing that was not decided then."""
    decided = [each for each in log if each.counts and _is_decided(facts, each)]
    for of, given in facts.looked:
        if of == topic:
            ours = [each for each in given if facts.placed[topic, each[0]][4] not in facts.foreign]
            assert ours == [_delivered(each) for each in decided[: len(ours)]], f"{topic}: {ours} was given"
    facts.looked = [each for each in facts.looked if each[0] != topic]


def _is_decided(facts: Facts, entry: Entry) -> bool:
    return entry.pointer is None or facts.state(entry.pointer) == "committed"


# --- the service and the disk


def check_map(topic: str, log: TopicLog, found: Sequence[Entry]) -> None:
    """The live map is the fold of the whole log, and nothing is in flight."""
    expected = fold(found)
    live = dict(log.dedup.fold.items())
    assert live == expected, f"{topic}: live {_shown(live)}, the log says {_shown(expected)}"
    assert not any(log.dedup.in_flight(producer) for producer in live)
    assert log.position.upcoming_offset == (found[-1].offset + 1 if found else 0)


def _shown(marks: dict[str, Mark]) -> dict[str, tuple[int, int]]:
    return {producer: (mark.sequence_id, mark.offset) for producer, mark in marks.items()}


def settled(world: World, facts: Facts, entry: Entry) -> bool:
    """Whether nothing can change any more about whether the message counts."""
    if entry.pointer is None or entry.pointer < 0:
        return True
    state = facts.state(entry.pointer)
    return state == "committed" or (state is None and facts.outlived(entry.pointer, world.clock.ms, LIFETIME_MS))


def check_opened(world: World, facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """A producer resumes behind what is settled, and so behind nothing that may yet be rolled back."""
    if facts.opened is not None and facts.opened[0] == topic:
        _, producer, answered = facts.opened
        mark = fold([each for each in log if settled(world, facts, each)]).get(producer)
        assert answered == (None if mark is None else mark.sequence_id), f"{topic}: {producer} was opened behind {answered}"
        facts.opened = None


def check_snapshots(world: World, facts: Facts, tables: Tables, topic: str, log: Sequence[Entry]) -> None:
    """A snapshot on disk is the fold of the log up to its position, and nothing there is undecided."""
    for snapshot in snapshots(tables, topic):
        below = [each for each in log if each.offset < snapshot.position.upcoming_offset]
        undecided = [each for each in below if not settled(world, facts, each)]
        assert not undecided, f"{topic}: a snapshot at {snapshot.position.upcoming_offset} has passed {undecided[0]}"
        expected, held = fold(below), dict(snapshot.marks.items())
        assert held == expected, f"{topic}: a snapshot holds {_shown(held)}, the log up to it {_shown(expected)}"


def check_verification(topic: str, log: TopicLog, world: World) -> None:
    """The service's own check agrees."""
    findings = Findings()
    for step in verify_log(world.service.store, log):
        findings = step
    assert not findings.problems, f"{topic}: {findings.problems}"


# --- readers


async def read_all(
    world: World, topic: str, limit: int, transaction: Transaction | None = None
) -> list[tuple[bytes, int, bytes]]:
    """(message id, offset, payload) of everything that polls deliver, page after page."""
    log, found, position = await world.topic(topic), list[tuple[bytes, int, bytes]](), None
    while True:
        request = ConsumeRequest(position, inclusive=position is None, limit=limit)
        request.transaction = None if transaction is None else transaction.to_bytes()
        page = await log.poll(request, AS_ONCELOG)
        messages, last = decode_consume_response(encode_consume_response(ONCELOG_AVRO, page.messages, page.last_id))
        found += [(each["id"], each["offset"], each["payload"]) for each in messages]
        if last is None:
            return found
        assert position is None or position < last, f"{topic}: a poll after {position!r} answers {last!r}"
        position = last


def visible(
    rows: Sequence[Entry], transaction: Transaction, seen: dict[int, TransactionState], own: Sequence[int]
) -> list[Entry]:
    """What a transaction must be given that found the others in these states when it began."""
    found = []
    for each in rows:
        pointer = each.pointer
        if pointer is not None and pointer < 0:
            continue
        if pointer is not None and pointer not in own:
            foreign = pointer not in seen and pointer <= transaction.read_pointer
            if seen.get(pointer) != "committed" and not foreign:
                break
        found.append(each)
    return found


async def check_reading(
    world: World, facts: Facts, topic: str, log: Sequence[Entry], empty: Sequence[Entry], random: Random
) -> None:
    """A plain reader is given everything; a new transaction and one that began earlier exactly what they may see."""
    limit = random.choice([2, 7, 1_000, 1_000])
    assert await read_all(world, topic, limit) == [_delivered(each) for each in log], f"{topic}: the plain poll, limit {limit}"
    seen = facts.states()
    transaction = await world.service.transactions.start(TransactionType.SHORT)
    await world.service.transactions.abort(transaction.transaction_id)
    rows = sorted([*log, *empty], key=lambda each: each.message_id)
    await _check_transaction(world, topic, rows, transaction, seen, [], limit)
    older = [each for each in facts.begun.values() if each.certainly_open and each.seen is not None]
    if older:
        chosen: Begun = random.choice(older)
        assert chosen.seen is not None
        await _check_transaction(world, topic, rows, chosen.transaction, chosen.seen, chosen.pointers, limit)


async def _check_transaction(
    world: World,
    topic: str,
    rows: Sequence[Entry],
    transaction: Transaction,
    seen: dict[int, TransactionState],
    own: Sequence[int],
    limit: int,
) -> None:
    expected = [_delivered(each) for each in visible(rows, transaction, seen, own) if each.payload]
    given = await read_all(world, topic, limit, transaction)
    if given != expected:  # the cache passes over the row of an empty group, which holds no message to stop before
        rows = [each for each in rows if each.payload]
        expected = [_delivered(each) for each in visible(rows, transaction, seen, own)]
    assert given == expected, (
        f"{topic}, limit {limit}: {transaction} was given {_payloads(given)}, expected {_payloads(expected)} of "
        f"{[(each.offset, each.payload, each.pointer) for each in rows]}"
    )


def _payloads(found: Sequence[tuple[bytes, int, bytes]]) -> list[tuple[int, bytes]]:
    return [(offset, payload) for _, offset, payload in found]


def _delivered(entry: Entry) -> tuple[bytes, int, bytes]:
    return entry.message_id, entry.offset, entry.payload
