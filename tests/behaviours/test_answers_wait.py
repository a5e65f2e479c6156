"""CONTRACT §2.2: every answer waits for what it depends on, also where memory alone could give it.

One table: what is being written while the disk stalls, what is asked meanwhile, and what is answered once it is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any, NamedTuple

import pytest

from oncelog.errors import (
    BranchGone,
    ConsumerFenced,
    GroupProducerNotFound,
    InvalidRequest,
    OffsetMismatch,
    OncelogError,
    ProducerEnded,
    ProducerFenced,
    ProducerNotFound,
    SequenceGap,
    SequenceReused,
    StoredGroupPublished,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
    TransactionConflict,
    TransactionNotInProgress,
)
from oncelog.wire.models import Acknowledge, NamespacePolicies, OpenSubscription, ReceiveMessages, SeekSubscription, StartPosition
from oncelog.wire.requests import PublishRequest, Rollback
from oncelog.wire.transaction import TransactionType
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.storage.memory import Disk
from tests.atomic.house import CHECKED, House, Stalling, living, messages
from tests.patience import PATIENCE

Call = Callable[[House, Any], Awaitable[Any]]


class Row(NamedTuple):
    """``moves`` is being written when ``asks`` is asked; ``said`` is the answer's state, or the refusal."""

    name: str
    before: Call
    moves: Call
    asks: Call
    said: Any


async def nothing(house: House, _: Any) -> None:
    return


def one(producer: str = "p", *ids: int, payload: str = "m", epoch: int | None = None, **fields: Any) -> PublishRequest:
    ids = ids or (0,)
    return PublishRequest([payload.encode()] * len(ids), producer, epoch=epoch, sequence_ids=list(ids), **fields)


def publish(request: PublishRequest) -> Call:
    return lambda house, _: house.publish("t", request)


def on_topic(act: Callable[[TopicLog, Any], Awaitable[Any]]) -> Call:
    """A call of the topic's log, with what the row was given before."""

    async def call(house: House, given: Any) -> Any:
        return await act(await house.topic("t"), given)

    return call


def opens(nonce: str, gaps: Any = "allow") -> Call:
    return on_topic(lambda log, _: log.producers.open("p", nonce, gaps))


forget = on_topic(lambda log, _: log.producers.forget("p"))
opens_without_a_name = on_topic(lambda log, _: log.producers.open(None, "n", "allow"))
ends = on_topic(lambda log, opened: log.producers.end(opened.name, opened.epoch))
publishes_late = on_topic(lambda log, opened: log.publish(one(opened.name, epoch=opened.epoch)))
looks = on_topic(lambda log, _: log.producers.shown("p"))


# --- subscriptions


def subscribes(nonce: str) -> Call:
    return on_topic(lambda log, _: log.subscriptions.open(OpenSubscription(name="s", nonce=nonce)))


async def subscribed(house: House, _: Any) -> Any:
    await house.publish("t", messages("0", "1"))
    return await subscribes("n")(house, None)


def about(asked: type[Any], **fields: Any) -> Callable[[Any], Any]:
    """A request of the consumer that was opened before."""
    return lambda opened: asked(epoch=opened.epoch, **fields)


acknowledge, receive = about(Acknowledge, generation=1, offset=0), about(ReceiveMessages)
seek = about(SeekSubscription, to=StartPosition(offset=1), nonce="sought")
acknowledges = on_topic(lambda log, opened: log.subscriptions.acknowledge("s", acknowledge(opened)))
receives = on_topic(lambda log, opened: log.subscriptions.receive("s", receive(opened), AS_ONCELOG))
seeks = on_topic(lambda log, opened: log.subscriptions.seek("s", seek(opened)))
unsubscribes = on_topic(lambda log, _: log.subscriptions.delete("s"))
looks_at = on_topic(lambda log, _: log.subscriptions.show("s"))


# --- atomic commits


def commits(id: str = "a", expected_offset: int | None = None, **fields: Any) -> Call:  # noqa: A002
    return lambda house, _: house.commit(id, {"t": messages("x", expected_offset=expected_offset)}, group="g", **fields)


def begins(id: str = "a", of: str | None = None) -> Call:  # noqa: A002
    return lambda house, _: house.begin(id, of=of)


def stages(chunk: int = 0, request: PublishRequest | None = None) -> Call:
    return lambda house, _: house.stage("a", "t", chunk, request or messages("x"))


async def begun_with_one(house: House, _: Any) -> None:
    await house.begin("a")
    await house.stage("a", "t", 0, one("p", 5))


def both(*calls: Call) -> Call:
    async def call(house: House, given: Any) -> Any:
        for each in calls:
            await each(house, given)

    return call


def journal(name: str, *arguments: Any) -> Call:
    return lambda house, _: attrgetter(name)(house.atomic)(*arguments)


# --- transactions


def starts(count: int = 1) -> Call:
    async def call(house: House, _: Any) -> Any:
        found = [(await house.service.opening.transactions.start(TransactionType.SHORT)).transaction_id for _ in range(count)]
        return found[0] if count == 1 else found

    return call


def service(name: str, *more: Any, each: int | None = None) -> Call:
    """A call of the transaction service, about the pointer that was started before, or the one of this number among them."""

    async def call(house: House, given: Any) -> Any:
        return await getattr(house.service.opening.transactions, name)(given if each is None else given[each], *more)

    return call


async def all_invalid(house: House, _: Any) -> Any:
    return [each.state for each in await house.service.opening.transactions.list("invalid", 0, 10)]


async def invalidated(house: House, _: Any) -> Any:
    pointer = await starts()(house, None)
    await house.service.opening.transactions.invalidate(pointer)
    return pointer


async def prunes(house: House, pointer: Any) -> Any:
    return await house.service.opening.transactions.prune([pointer], None)


async def states_of(house: House, pointer: Any) -> Any:
    return (await house.service.opening.transactions.states([pointer]))[pointer]


async def snapshot(house: House, pointer: Any) -> Any:
    begun = await house.service.opening.transactions.start(TransactionType.SHORT)
    return pointer <= begun.read_pointer and pointer not in begun.in_progress


stores = on_topic(lambda log, pointer: log.store(one("p", 0, write_pointer=pointer)))


async def stored(house: House, _: Any) -> Any:
    pointer = await starts()(house, None)
    await stores(house, pointer)
    return pointer


publishes_under = on_topic(lambda log, pointer: log.publish(one("p", 1, write_pointer=pointer)))
publishes_stored = on_topic(lambda log, pointer: log.publish(PublishRequest([], "p", write_pointer=pointer)))


async def published(house: House, _: Any) -> Rollback:
    pointer = await starts()(house, None)
    answer = await house.publish("t", one("p", 0, 1, write_pointer=pointer))
    return Rollback(pointer, (answer.start_timestamp, answer.start_sequence_id), (answer.end_timestamp, answer.end_sequence_id))


async def sets_a_policy(house: House, _: Any) -> Any:
    await house.service.opening.topics.policies.set("default", NamespacePolicies(deduplication=True))


async def rolls_back(house: House, given: Any) -> Any:
    return await (await house.topic("t")).roll_back(given)


def topics(name: str, *arguments: Any) -> Call:
    return lambda house, _: getattr(house.service.opening.topics.changes, name)("default", *arguments)


TABLE = [
    Row("a message again", nothing, publish(one()), publish(one()), "duplicate"),
    Row("part of a request again", nothing, publish(one("p", 0, 1, 2)), publish(one("p", 1)), "duplicate"),
    Row("a sequence id with another payload", nothing, publish(one()), publish(one(payload="x")), SequenceReused),
    Row("a gap", opens("n", "refuse"), publish(one()), publish(one("p", 5)), SequenceGap),
    Row("an expected offset", nothing, publish(one()), publish(messages("x", expected_offset=0)), OffsetMismatch),
    Row("an open, again", nothing, opens("n"), opens("n"), None),
    Row("an open behind a message", nothing, publish(one()), opens("n"), None),
    Row("an older epoch", opens("n"), opens("m"), publish(one(epoch=1)), ProducerFenced),
    Row("a batch under an older epoch", opens("n"), opens("m"), publish(one("p", 0, 1, epoch=1)), ProducerFenced),
    Row("an epoch that was forgotten", opens("n"), forget, publish(one(epoch=1)), ProducerFenced),
    Row("a producer that was forgotten", publish(one()), forget, forget, ProducerNotFound),
    Row("a publish under a name that has ended", opens_without_a_name, ends, publishes_late, ProducerEnded),
    Row("a name that has ended already", opens_without_a_name, ends, ends, None),
    Row("a look at one that was forgotten", publish(one()), forget, looks, ProducerNotFound),
    Row("a subscription, again", nothing, subscribes("n"), subscribes("n"), None),
    Row("an acknowledgement, again", subscribed, acknowledges, acknowledges, None),
    Row("an older consumer that receives", subscribed, subscribes("m"), receives, ConsumerFenced),
    Row("an older consumer that acknowledges", subscribed, subscribes("m"), acknowledges, ConsumerFenced),
    Row("a seek, again", subscribed, seeks, seeks, None),
    Row("the consumer of a deleted subscription", subscribed, unsubscribes, receives, ConsumerFenced),
    Row("a deleted subscription, again", subscribed, unsubscribes, unsubscribes, SubscriptionNotFound),
    Row("a look at a deleted subscription", subscribed, unsubscribes, looks_at, SubscriptionNotFound),
    Row("a begin, again", nothing, begins(), begins(), "in_progress"),
    Row("what was begun", nothing, begins(), journal("show", "a"), "in_progress"),
    Row("a chunk, again", begins(), stages(), stages(), None),
    Row("a chunk whose ids do not rise", begins(), stages(0, one("p", 5)), stages(1, one("p", 4)), InvalidRequest),
    Row("a chunk for what is committed", begun_with_one, commits(), stages(1), TransactionNotInProgress),
    Row("a commit, again", nothing, commits(), commits(), "committed"),
    Row("the outcome of a commit", nothing, commits(), journal("show", "a"), "committed"),
    Row("an abort of what is committed", nothing, commits(), journal("abort", "a"), TransactionNotInProgress),
    Row("an abort, again", begins(), journal("abort", "a"), journal("abort", "a"), "aborted"),
    Row("a commit of what is aborted", begins(), journal("abort", "a"), commits(), TransactionNotInProgress),
    Row("a branch that is gone", both(begins(), begins("b")), journal("abort", "b"), commits("a", branches=["b"]), BranchGone),
    Row("a branch that was begun", begins(), begins("b", "a"), commits("a", branches=["b"]), "committed"),
    Row("a commit's expected offset", nothing, publish(one()), commits(expected_offset=0), OffsetMismatch),
    Row(
        "how far a group's producer has come",
        nothing,
        commits(producer="p", sequence_id=1),
        journal("producers.show", "g", "p"),
        None,
    ),
    Row(
        "another incarnation of a group's producer",
        nothing,
        commits(producer="p", sequence_id=1, incarnation="i"),
        commits("b", producer="p", sequence_id=1, incarnation="j"),
        ProducerFenced,
    ),
    Row(
        "a group's producer that was forgotten",
        commits(producer="p", sequence_id=1),
        journal("producers.forget", "g", "p"),
        journal("producers.show", "g", "p"),
        GroupProducerNotFound,
    ),
    Row("a transaction's commit, again", starts(), service("commit"), service("commit"), None),
    Row("a transaction that is committed", starts(), service("commit"), service("show"), "committed"),
    Row("the state of one that is committed", starts(), service("commit"), states_of, "committed"),
    Row("a transaction's abort, again", starts(), service("abort"), service("abort"), None),
    Row("an abort after the commit", starts(), service("commit"), service("abort"), TransactionNotInProgress),
    Row("a participant of one that is committed", starts(), service("commit"), service("enlist", "x"), TransactionNotInProgress),
    Row("a message under one that is committed", starts(), service("commit"), publishes_under, TransactionNotInProgress),
    Row("a message stored under one that is aborted", stored, service("abort"), stores, TransactionNotInProgress),
    Row("a stored group of one that is invalid", stored, service("invalidate"), publishes_stored, TransactionNotInProgress),
    Row("a snapshot behind a commit", starts(), service("commit"), snapshot, True),
    Row("the invalid ones", starts(), service("invalidate"), all_invalid, ["invalid"]),
    Row("nothing to prune", starts(), service("commit"), lambda house, _: house.service.opening.transactions.prune([1], None), 0),
    Row(
        "a conflict",
        starts(2),
        service("commit", [b"k"], each=0),
        service("can_commit", [b"k"], each=1),
        TransactionConflict,
    ),
    Row("a stored message, again", starts(), stores, stores, "duplicate"),
    Row("a stored group, published again", stored, publishes_stored, publishes_stored, "duplicate"),
    Row("a store behind its publish", stored, publishes_stored, stores, StoredGroupPublished),
    Row("a checkpoint, and another", starts(), service("checkpoint"), service("checkpoint"), None),
    Row("invalid ones that are pruned", invalidated, prunes, prunes, 0),
    Row("two begins without an id", nothing, journal("begin", None, "g", None, None), begins(), "in_progress"),
    Row("a rollback, again", published, rolls_back, rolls_back, None),
    Row("a policy, again", nothing, sets_a_policy, sets_a_policy, None),
    # Of the topics themselves nothing is in memory: they are read from the disk, under a lock.
    Row("a topic, again", nothing, topics("create", "u", {}), topics("create", "u", {}), TopicExists),
    Row("a topic that is deleted", nothing, topics("delete", "t"), topics("delete", "t"), TopicNotFound),
]


async def answered(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except OncelogError as refusal:
        return refusal


def told(answer: Any) -> Any:
    """What of an answer the table names."""
    if isinstance(answer, OncelogError):
        return type(answer)
    if getattr(answer, "receipts", None):
        return answer.receipts[0].status
    return getattr(answer, "state", answer if isinstance(answer, bool | int | str | list) else None)


ALSO_WITHOUT_A_LOCK = {
    *("a message again", "an open, again", "an epoch that was forgotten", "a name that has ended already"),
    *("an acknowledgement, again", "a seek, again", "a deleted subscription, again", "a chunk, again", "a commit, again"),
    *("an abort, again", "a group's producer that was forgotten", "a transaction's commit, again", "a checkpoint, and another"),
    *("a stored message, again", "a stored group, published again", "a rollback, again", "a policy, again"),
}
"""One of each call. Calls of one transaction or topic take turns; the turn ends early where the caller gives up, and the write
does not."""
CASES = [pytest.param(row, False, id=row.name) for row in TABLE] + [
    pytest.param(row, True, id=f"{row.name}, whose writer has gone") for row in TABLE if row.name in ALSO_WITHOUT_A_LOCK
]


@pytest.mark.parametrize(("row", "gave_up"), CASES)
async def test_an_answer_waits_until_what_it_depends_on_is_on_disk(row: Row, gave_up: bool) -> None:
    store = Stalling(Disk())
    async with living(None, store=store) as house:
        await house.create("t", **CHECKED)
        given = await row.before(house, None)
        store.stall()
        try:
            moving = asyncio.ensure_future(row.moves(house, given))  # type: ignore[arg-type]
            assert await asyncio.to_thread(store.entered.wait, PATIENCE)
            if gave_up:
                moving.cancel()
                await asyncio.wait([moving])
            asking = asyncio.ensure_future(answered(row.asks(house, given)))
            await asyncio.wait([asking], timeout=0.05)
            early = asking.done()
            assert gave_up or not moving.done(), "nor is what it depends on answered before it is on disk"
        finally:
            store.goes.set()
        await asyncio.wait([moving])
        answer = await asyncio.wait_for(asking, PATIENCE)
        assert told(answer) == row.said
        assert not early, f"answered before it was synced: {answer!r}"
