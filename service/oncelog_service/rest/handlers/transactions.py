"""The transaction service's addresses. A transaction is named by its write pointer, that of a checkpoint does too."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from pydantic import ConfigDict

from oncelog.errors import InvalidRequest, NotAllowed, RequestTooLarge
from oncelog.wire.media import THRIFT, essence
from oncelog.wire.models import (
    AbortTransaction,
    AskUnacknowledged,
    CanCommit,
    Changes,
    Enlisted,
    ParticipantName,
    PruneInvalid,
    Resource,
    Settlement,
    StartTransaction,
    TransactionState,
    TransactionStatus,
)
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.access.grants import Right
from oncelog_service.access.owners import EVERYBODYS, may_touch
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.bodies import AT_ONCE_BYTES, json_answer, query_int, query_limit, taken_in
from oncelog_service.rest.routes import Call
from oncelog_service.transactions.port import MayAppear
from oncelog_service.transactions.wanted import EVERYTHING, Wanted

MAX_POINTERS = 10_000
"""Pointers of one call."""
_LARGEST = 2**63 - 1
_LONGEST_NAME = 1_000
OWNER = "owner"
"""The query parameter in which a service says for whom it asks another one."""
_LISTED: dict[str, TransactionState] = {"in_progress": "in_progress", "invalid": "invalid"}


class WritePointers(Resource):
    """Transactions asked about, by id or by the pointer of a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    write_pointers: list[int]


class Participant(Resource):
    """Who is about to hold messages of a transaction: a topic's generation, on one instance of the service."""

    model_config = ConfigDict(extra="forbid")

    participant: ParticipantName
    """``<store id>:<namespace>/<topic>/<generation>``."""


class Pruned(Resource):
    """How many transactions left the list of invalid ones."""

    pruned: int


class StartedTransaction(Resource):
    """A transaction as of its start or its latest checkpoint: what it sees and what its writes carry."""

    transaction_id: int
    read_pointer: int
    invalids: list[int]
    in_progress: list[int]
    first_short: int
    type: str
    """``short`` or ``long``."""
    write_pointer: int
    checkpoint_write_pointers: list[int]
    visibility_level: str
    """``snapshot``, ``snapshot_exclude_current`` or ``snapshot_all``."""
    transaction: str
    """The same as Thrift bytes, in hex: what a poll takes."""


# --- the life of a transaction


async def start(call: Call, asked: StartTransaction) -> Answer:
    """Begin a transaction: a short one times out after `timeoutMs` and detects conflicts, a long one does neither.

    Answers what the transaction sees: as JSON, or with `Accept: application/vnd.apache.thrift.binary` as the bytes that a poll
    takes.
    """
    kind = TransactionType.LONG if asked.type == "long" else TransactionType.SHORT
    return _transaction_answer(call, await call.service.opening.transactions.start(kind, asked.timeout_ms, _owner(call)))


async def can_commit(call: Call, changes: Changes) -> CanCommit:
    """Hand in the keys that the transaction changed; refused if one that committed meanwhile changed one of them too.

    With `resource` the transaction is prepared: it does not time out before the maximum lifetime, so that
    the recovery of that database can still end it. Answers the id of the store that the transaction is in.
    """
    pointer = pointer_of(call)
    _by(call)
    keys = await _keys(call, changes)
    store_id = await call.service.opening.transactions.can_commit(pointer, keys, changes.resource, _by(call), _may_appear(call))
    return CanCommit(store_id=store_id)


async def commit(call: Call, changes: Changes) -> TransactionStatus:
    """Commit, with the changed keys if they were not handed in before. Idempotent.

    Who asks must be allowed to write to every topic that holds messages of it, at that moment; of a prepared one, when it was.
    """
    pointer = pointer_of(call)
    with of_another(call):
        _by(call)
        if changes.resource is not None:
            raise InvalidRequest("a resource goes with can-commit only")
        keys = await _keys(call, changes)
        await call.service.opening.transactions.commit(pointer, keys, _by(call), _may_appear(call))
    return _ended(call, await call.service.opening.transactions.show(pointer))


async def abort(call: Call, asked: AbortTransaction) -> TransactionStatus:
    """Undo the transaction: its messages are rolled back by the service. Idempotent.

    With `unlessPrepared` one that a database decides is refused, `transaction_prepared`, and one that is invalid stays so: for
    others than its client.
    """
    pointer = pointer_of(call)
    with of_another(call):
        await call.service.opening.transactions.abort(pointer, asked.unless_prepared, _by(call, Right.OPERATE))
    return _ended(call, await call.service.opening.transactions.show(pointer))


async def invalidate(call: Call) -> TransactionStatus:
    """Give the transaction up: as abort, and it stays in the list of invalid ones until it is pruned. Idempotent."""
    pointer = pointer_of(call)
    with of_another(call):
        await call.service.opening.transactions.invalidate(pointer, _by(call, Right.OPERATE))
    return _ended(call, await call.service.opening.transactions.show(pointer))


async def checkpoint(call: Call) -> Answer:
    """A further write pointer for a transaction in progress. Answers as the start does."""
    return _transaction_answer(call, await call.service.opening.transactions.checkpoint(pointer_of(call), _by(call)))


async def show(call: Call) -> TransactionStatus:
    """What became of a transaction: `in_progress`, `committed`, `aborted` or `invalid`. What is answered is durable."""
    return await call.service.opening.transactions.show(pointer_of(call), _by(call, Right.OPERATE))


async def list_(call: Call) -> Sequence[TransactionStatus]:
    """Transactions in progress, or invalid ones, by rising write pointer behind `after`, at most `limit`.

    Without `operate` those of the principal that asks.
    """
    state = _LISTED.get(call.query.get("state", "in_progress"))
    if state is None:
        raise InvalidRequest(f"state is {' or '.join(_LISTED)}, not {call.query['state'][:50]!r}")
    after, limit = query_int(call, "after", 0), query_limit(call)
    if not 0 <= after <= _LARGEST:
        raise InvalidRequest(f"after is a write pointer, not {after}")
    return await call.service.opening.transactions.list(state, after, limit, _by(call, Right.OPERATE))


async def prune(call: Call, asked: PruneInvalid) -> Pruned:
    """Take transactions out of the list of invalid ones: those named, or all that began before `beforeMs`.

    Those whose messages are not all rolled back yet stay in it.
    """
    if asked.before_ms is not None and asked.before_ms < 0:
        raise InvalidRequest(f"beforeMs is a time in ms since 1970, not {asked.before_ms}")
    pointers = None if asked.write_pointers is None else _checked(asked.write_pointers)
    return Pruned(pruned=await call.service.opening.transactions.prune(pointers, asked.before_ms))


# --- for services that hold messages of transactions


async def states(call: Call, asked: WritePointers) -> dict[str, TransactionState]:
    """The states of those among the pointers that were handed out here and are still known.

    Without `operate` those of other principals are left out.
    """
    found = await call.service.opening.transactions.states(_checked(asked.write_pointers), _by(call, Right.OPERATE))
    return {str(pointer): state for pointer, state in found.items()}


async def enlist(call: Call, asked: Participant) -> Enlisted:
    """Note that a participant is about to hold messages under the pointer. `enlisted` false: it was never handed out here."""
    transactions = call.service.opening.transactions
    owned = await transactions.enlist(pointer_of(call), asked.participant, _by(call, Right.SERVICE))
    await transactions.synced()  # the participant writes to a store of its own, which knows nothing of this one's order
    return Enlisted(enlisted=owned is not None, owner=None if owned is None else owned.owner)


async def acknowledge(call: Call) -> None:
    """The participant has dealt with the end of the transaction. Idempotent."""
    await call.service.opening.transactions.acknowledge(pointer_of(call), call.path["participant"])


async def unacknowledged(call: Call) -> Sequence[Settlement]:
    """Ended transactions that participants of `storeId` still hold messages of. `wait` (ms) holds an empty answer."""
    store_id, wait_ms = call.query.get("storeId", ""), query_int(call, "wait", 0)
    if not store_id:
        raise InvalidRequest("the query parameter storeId is missing")
    return await _unacknowledged(call, store_id, wait_ms, EVERYTHING)


async def ask_unacknowledged(call: Call, asked: AskUnacknowledged) -> Sequence[Settlement]:
    """Ended transactions that participants served by `member`, one of several instances, still hold messages of.

    These are what belongs to it among those `alive`, by the rule that places topics, and what it serves `also`; `without` some.
    """
    wanted = Wanted(asked.member, tuple(asked.alive), frozenset(asked.also), frozenset(asked.without))
    return await _unacknowledged(call, asked.store_id, asked.wait, wanted)


async def _unacknowledged(call: Call, store_id: str, wait_ms: int, wanted: Wanted) -> Sequence[Settlement]:
    if wait_ms < 0:
        raise InvalidRequest(f"wait is 0 ms or more, not {wait_ms}")
    wait_seconds = min(wait_ms, call.service.settings.max_wait_ms) / 1000
    return await call.service.opening.transactions.unacknowledged(wait_seconds, store_id, wanted)


# --- in and out


def pointer_of(call: Call) -> int:
    """The write pointer in the address. Raises InvalidRequest."""
    text = call.path["writePointer"]
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidRequest(f"a write pointer is a whole number above 0, not {text[:50]!r}")
    return _checked([int(text)])[0]


def _by(call: Call, right: Right = Right.ADMIN) -> str | None:
    """Whose the transaction must be; None: whoever's, since who asks has the right to touch those of others.

    A service that asks for a client of its own says whose. Raises NotAllowed, InvalidRequest.
    """
    return call.principal.whose(right) if OWNER not in call.query else _named(call)


def _owner(call: Call) -> str | None:
    """Whose the transaction becomes. Raises as :func:`_by`."""
    return call.principal.owner if OWNER not in call.query else _named(call)


def _named(call: Call) -> str | None:
    owner = call.query[OWNER]
    call.principal.check(Right.SERVICE)  # else somebody else's name would be how who operates commits what others began
    if len(owner) > _LONGEST_NAME:
        raise InvalidRequest(f"a principal's name has at most {_LONGEST_NAME} characters, not {len(owner)}")
    return None if owner == EVERYBODYS else owner


def _may_appear(call: Call) -> MayAppear | None:
    """What judges whether messages of a transaction may appear; None: nothing speaks against it, or it was judged where a client
    asked for it."""
    if OWNER in call.query or call.service.settings.only_transactions:
        return None
    topics, anywhere = call.service.opening.topics, call.principal.may(Right.ADMIN)
    if anywhere and not topics.rolled_back.keys:
        return None

    def check(participants: Collection[str], pointers: Collection[int]) -> None:
        for namespace, topic, generation in topics.participants.named(participants):
            if not anywhere:
                call.may_write(namespace, topic)
            topics.rolled_back.check(namespace, topic, generation, pointers)

    return check


@contextmanager
def of_another(call: Call) -> Iterator[None]:
    """While somebody ends what another principal began: that this was refused is kept."""
    try:
        yield
    except NotAllowed:
        call.audited = not _keeps_it_itself(call)
        raise


def _ended(call: Call, status: TransactionStatus) -> TransactionStatus:
    """That somebody has ended what another principal began is kept; as above."""
    call.audited = not _keeps_it_itself(call) and not may_touch(status.owner, call.principal.name)
    call.subject = {"owner": status.owner}
    return status


def _keeps_it_itself(call: Call) -> bool:
    """Whether a service asks for a client of its own, or another instance does, and audits that where its client asked."""
    between_instances = call.principal.is_instance and call.principal.owner is None
    return OWNER in call.query and (call.service.settings.only_transactions or between_instances)


def _checked(pointers: list[int]) -> list[int]:
    if len(pointers) > MAX_POINTERS:
        raise RequestTooLarge(f"{len(pointers)} write pointers are more than {MAX_POINTERS}", limit=MAX_POINTERS)
    for pointer in pointers:
        if not 0 < pointer <= _LARGEST:
            raise InvalidRequest(f"a write pointer is 1 to 2^63-1, not {pointer}")
    return pointers


async def _keys(call: Call, changes: Changes) -> list[bytes]:
    return await taken_in(call, len(call.body) > AT_ONCE_BYTES, False, _encoded_keys, changes)


def _encoded_keys(changes: Changes) -> list[bytes]:
    try:
        return [key.encode("latin-1") for key in changes.changes]
    except UnicodeEncodeError as error:
        raise InvalidRequest("a changed key is bytes, each a character U+0000 to U+00FF") from error


def _transaction_answer(call: Call, transaction: Transaction) -> Answer:
    data = transaction.to_bytes()
    if THRIFT in (essence(each) for each in call.accept.split(",")):
        return Answer(data, THRIFT)
    shown = StartedTransaction(
        transaction_id=transaction.transaction_id,
        read_pointer=transaction.read_pointer,
        invalids=list(transaction.invalids),
        in_progress=list(transaction.in_progress),
        first_short=transaction.first_short,
        type=transaction.type.name.lower(),
        write_pointer=transaction.write_pointer,
        checkpoint_write_pointers=list(transaction.checkpoint_write_pointers),
        visibility_level=transaction.visibility_level.name.lower(),
        transaction=data.hex(),
    )
    return json_answer(shown)
