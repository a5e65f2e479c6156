"""One hierarchy of errors, as data: class, code, status, definite or not, and the message, which is the class's ``__doc__``.

That is assigned, and no docstring: ``python -OO`` leaves those out, and the words of an error go into every answer.

The service raises these classes and answers them as ``application/problem+json``; the SDK turns such an answer back into the
same class. **definite** is True when the thing asked for was certainly not done, and False when it may have been done: then
repeat it under the same sequence ids. The values one needs to go on are attributes (``SequenceGap.expected``).
The table in docs/errors.md is generated from this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import get_annotations
from typing import Any, ClassVar


class OncelogError(Exception):
    __doc__ = "Something oncelog was asked to do did not happen, or may not have."

    code: ClassVar[str] = "error"
    """The class's name, in small letters; stable; the same word in the answer of the service and in the SDK."""
    status: ClassVar[int | None] = None
    """The HTTP status, or None for an error that only the SDK raises."""
    certain: ClassVar[bool] = True
    """The usual :attr:`definite` of this class."""
    values: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that carry what one needs to go on: those that the class declares."""

    definite: bool
    detail: str
    retry_after: float | None = None
    """Seconds after which whoever answered asks to be asked again, where it says so."""

    def __init_subclass__(cls, *, status: int | None = None, certain: bool | None = None) -> None:
        cls.code = re.sub(r"(?<=.)([A-Z])", r"_\1", cls.__name__).lower()
        cls.status = cls.status if status is None else status
        cls.certain = cls.certain if certain is None else certain
        cls.values = (*cls.values, *get_annotations(cls))

    def __init__(self, detail: str | None = None, *, definite: bool | None = None, **values: Any) -> None:
        self.detail = detail or type(self).__doc__ or ""
        self.definite = self.certain if definite is None else definite
        unknown = values.keys() - set(self.values)
        if unknown:
            raise TypeError(f"{type(self).__name__} carries no {', '.join(sorted(unknown))}")
        for name in self.values:
            setattr(self, name, values.get(name))
        super().__init__(self.detail)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _rebuild, (type(self), self.detail, self.definite, {name: getattr(self, name) for name in self.values})

    def to_problem(self) -> dict[str, Any]:
        """The error as the members of an ``application/problem+json`` object (RFC 9457)."""
        problem: dict[str, Any] = {
            "title": type(self).__doc__ or self.code,
            "status": self.status or 500,
            "code": self.code,
            "detail": self.detail,
            "definite": self.definite,
        }
        problem.update({name: getattr(self, name) for name in self.values if getattr(self, name) is not None})
        return problem


def _rebuild(kind: type[OncelogError], detail: str, definite: bool, values: dict[str, Any]) -> OncelogError:
    return kind(detail, definite=definite, **values)


# --- what the service answers -------------------------------------------------------------------------------------------


class NotServedHere(OncelogError, status=307):
    __doc__ = "Another instance of the service serves this; nothing was done here. The SDK asks there."

    url: str
    """Of the instance that does."""


class InvalidRequest(OncelogError, status=400):
    __doc__ = "The request cannot be understood or contradicts itself; correct it before sending it again."


class InvalidMessageId(InvalidRequest):
    __doc__ = "That is not a message id of this topic."


class StaleMessageId(InvalidRequest):
    __doc__ = (
        "The position belongs to an older generation of the topic, which was deleted or restored; nothing here corresponds to "
        "it: start from the oldest, with a `Checkpoint` by its `reset`."
    )

    generation: int
    last_message_id: str
    """Of an id that was handed out in a time which the store does not know of any more: the last one before that, 40 hex digits;
    None: it knows none, or the position is another one."""


class OffsetOutOfRange(InvalidRequest):
    __doc__ = "The offset lies beyond the upcoming offset of the topic, or a range is not stable yet, or was deleted."

    upcoming: int
    earliest: int
    """Of a refused range: where the topic begins; else None, as ``stable``."""
    stable: int


class CommitGone(OncelogError, status=410):
    __doc__ = (
        "An atomic commit of this number was made, to a topic that was deleted and made anew since: nothing of it is in the "
        "topic of now, and nothing was stored."
    )

    producer: str
    transaction: str
    """That committed the number, where it is known."""
    topic: str
    """`namespace/topic`."""
    generation: int
    """That the commit wrote to, where it is known."""
    current_generation: int


class MessagesExpired(OncelogError, status=410):
    __doc__ = "Messages behind the position have expired by the topic's ttl before they were read; say where to go on."

    first: int
    """Offset of the first of them; None where nobody knows any more."""
    earliest: int
    """Offset of the first message that lives, or will: those before it are gone."""
    upcoming: int
    """Offset that the next message gets."""


class NotSupported(InvalidRequest):
    __doc__ = "The service does not offer this; the request was refused rather than half obeyed."


class InvalidTransaction(InvalidRequest):
    __doc__ = "The bytes of the transaction cannot be read."


class Unauthorized(OncelogError, status=401):
    __doc__ = (
        "The service asks for a token and this request carries none or a wrong one. The SDK and the command line take it from "
        "ONCELOG_TOKEN or ONCELOG_TOKEN_FILE."
    )


class NotAllowed(OncelogError, status=403):
    __doc__ = "Who asks may not do this; nothing was done. The detail says which grant is missing."

    principal: str
    right: str
    """The grant that would do, as one writes it: ``read:default/orders``."""


class ForeignOrigin(OncelogError, status=403):
    __doc__ = "A page of another origin had a browser ask for this; nothing was done. Programs send no Origin."


class HostNotAllowed(OncelogError, status=421):
    __doc__ = (
        "The request is addressed to a name that is none of this service's; nothing was done. Its operator names those that "
        "are (`allowed_hosts`)."
    )


class ProducerFenced(OncelogError, status=403):
    __doc__ = (
        "Another incarnation of this producer holds the name, or the topic was made anew or restored since this one was "
        "opened; it may not publish any more."
    )

    producer: str
    epoch: int
    current_epoch: int
    incarnation: str
    """Of an atomic commit that carries one; then the epochs are None."""
    current_incarnation: str
    generation: int
    """Of the topic now, where that is the reason: what was opened in an older one is refused. Else None."""


class ProducerEnded(OncelogError, status=409):
    __doc__ = (
        "The service assigned this name to a producer that brought none, and it has ended: nothing is stored under it any "
        "more. Open another producer."
    )

    producer: str


class ConsumerFenced(OncelogError, status=403):
    __doc__ = (
        "Another consumer holds this subscription, or it was moved or deleted, or the topic was made anew or restored; this "
        "one may not receive or acknowledge any more."
    )

    subscription: str
    epoch: int
    current_epoch: int
    generation: int
    """Of the topic now, where that is the reason. Else None."""


class NotFound(OncelogError, status=404):
    __doc__ = "There is nothing at this address."


class TopicNotFound(NotFound):
    __doc__ = "There is no such topic: create it first. What was staged for it before it was deleted is gone."


class TokenNotFound(NotFound):
    __doc__ = "There is no token with this id."


class ProducerNotFound(NotFound):
    __doc__ = "No producer of this name is known on the topic."


class SubscriptionNotFound(NotFound):
    __doc__ = "The topic has no subscription of this name; a consumer that is opened makes one."


class TransactionNotFound(NotFound):
    __doc__ = "No such transaction was ever started here, or its outcome is no longer kept."

    write_pointer: int
    transaction: str
    """Of an atomic commit: its id."""
    forgotten: bool
    """True: the number of the write pointer lies among those that were handed out here longer ago than outcomes are kept."""


class GroupProducerNotFound(NotFound):
    __doc__ = "No atomic commit of this group was ever made under that producer's name."


class MethodNotAllowed(OncelogError, status=405):
    __doc__ = "This address does not take that HTTP method."

    allowed: list[str]


class RequestTimeout(OncelogError, status=408):
    __doc__ = "The request did not arrive completely in time; nothing of it was used."


class TopicExists(OncelogError, status=409):
    __doc__ = "A topic of this name exists already; with `exist_ok` (`--exist-ok`) it is left as it is."


class SequenceGap(OncelogError, status=409):
    __doc__ = (
        "A sequence id was left out where gaps are refused: by a producer that was opened so, by atomic commits that say so, or "
        "by `oncelog publish`."
    )

    producer: str
    expected: int
    received: int


class TransactionNotInProgress(OncelogError, status=409):
    __doc__ = "The transaction is not in progress any more; nothing was done. `state` says what became of it."

    write_pointer: int
    state: str
    transaction: str
    """Of an atomic commit: its id."""
    reason: str
    """Why an atomic commit was aborted: an error's code, `timed_out`, `asked`, `not_named`."""


class TransactionPrepared(OncelogError, status=409):
    __doc__ = (
        "The transaction is prepared, so its database decides about it; it was to be aborted only otherwise. Nothing was done."
    )

    write_pointer: int


class UnknownWritePointer(OncelogError, status=409):
    __doc__ = (
        "The transaction service does not know this write pointer, and no other service's is taken here; nothing was stored."
    )

    write_pointer: int


class TransactionConflict(OncelogError, status=409):
    __doc__ = (
        "Another transaction that committed meanwhile changed the same, or this one is too old for anybody to know, or an "
        "operator has rolled back a part of it; roll back and try the whole transaction again."
    )

    write_pointer: int
    conflicts_with: int
    """The other transaction, where there is one."""


class TransactionalMismatch(OncelogError, status=409):
    __doc__ = "The topic takes transactional messages only, or none of them."

    transactional: str


class ProducerInTransaction(OncelogError, status=409):
    __doc__ = "This producer has messages in another transaction that is not settled yet; try again when it is."

    producer: str
    write_pointer: int


class StoredGroupPublished(OncelogError, status=409):
    __doc__ = (
        "The stored messages of this write pointer are published already (or expired); nothing can be added or published twice."
    )

    write_pointer: int
    message_id: str
    offset: int


class RollbackRefused(OncelogError, status=409):
    __doc__ = "What is to be rolled back is not exactly what this write pointer published here; nothing was changed."

    write_pointer: int


class ExpectationsNotChecked(OncelogError, status=409):
    __doc__ = (
        "The topic does not check expected offsets, so a request that carries an expectation is refused; nothing was stored."
    )


class KeyInTransaction(OncelogError, status=409):
    __doc__ = (
        "The newest message of a key that an expectation names belongs to another transaction, which is not settled yet; "
        "try again then."
    )

    key: str
    """Each byte one character; its first 249."""
    write_pointer: int


class MessageInTransaction(OncelogError, status=409):
    __doc__ = (
        "The message's transaction is not settled: nothing is erased. Abort the transaction, or try again once it has ended."
    )

    offset: int
    write_pointer: int


class TransactionExists(OncelogError, status=409):
    __doc__ = "An atomic commit of this id was begun differently: in another group, or as a branch of another one."

    transaction: str
    group: str


class BranchGone(OncelogError, status=409):
    __doc__ = (
        "A branch that the commit names is not there any more; nothing was committed, and the transaction is still in progress."
    )

    transaction: str
    branch: str
    state: str


class OffsetMismatch(OncelogError, status=412):
    __doc__ = "What was expected of the topic does not hold; nothing of the request was stored, and this answer is final."

    condition: str
    """`offset`, `last_message_id` or `key_offset`."""
    expected: int | str | None
    """An offset, or a message id in hex; None: no message yet."""
    actual: int | str | None
    key: str
    """Of a key's offset: the key, each byte one character; its first 249."""
    topic: str
    """`namespace/topic`."""


class PropertiesChanged(OncelogError, status=412):
    __doc__ = "The topic's properties are not what was expected any more; nothing was changed: look at them again."

    properties: dict[str, str]
    """As they are now."""


class RequestTooLarge(OncelogError, status=413):
    __doc__ = "The request is larger than the service takes; send less at once."

    limit: int


class UnsupportedMediaType(OncelogError, status=415):
    __doc__ = "The body is of a type this address does not read, or packed in a way that is not read."

    codings: list[str]
    """Content codings that are read, where that of the body is none of them; else None."""


class SequenceReused(OncelogError, status=422):
    __doc__ = "A sequence id that is already stored came again with another payload; the whole request was refused."

    producer: str
    sequence_id: int
    message_id: str
    offset: int


class ChunkReused(OncelogError, status=422):
    __doc__ = "A chunk of this number is staged already with other content; nothing was changed."

    transaction: str
    topic: str
    chunk: int


class QuotaExceeded(OncelogError, status=429):
    __doc__ = "A topic, or who asks, has a quota, and this would be more; nothing was done. Try again when it says."

    quota: str
    """`messages` or `bytes`, of a second; else what there is too much of: `transactions`, `topics`, `producers`, `subscriptions`,
    `keys`, `max.bytes`."""
    limit: int
    """So many a second, or at the same time."""
    retry_after_ms: int
    """None: no time makes room, only deleting does."""


class InternalError(OncelogError, status=500, certain=False):
    __doc__ = "The service failed in a way it should not; its log says more."


class TopicDamaged(OncelogError, status=500):
    __doc__ = (
        "The stored log of the topic is damaged or incomplete; it is refused rather than answered as if nothing were missing."
    )


class StorageUnavailable(OncelogError, status=503):
    __doc__ = "The store is closed after a failure or still being opened; nothing was written. Try again later."


class StorageFailed(OncelogError, status=503, certain=False):
    __doc__ = "The store failed while this was being written; it may or may not be there. Repeat it under the same sequence ids."


class BackupFailed(OncelogError, status=409):
    __doc__ = "The backup was not made; those that were there before are as they were."


class TransactionsUnavailable(OncelogError, status=503):
    __doc__ = "The transaction service does not answer; nothing was done. What is not transactional goes on."


class DiskFull(OncelogError, status=507):
    __doc__ = (
        "The service's disk has no more room than it needs to free some; nothing was done. Try again later: reading goes on."
    )


class Overloaded(OncelogError, status=503):
    __doc__ = "The service has as many requests in hand as it takes; nothing was done. Try again later."


# --- what only the SDK raises -------------------------------------------------------------------------------------------


class ConnectionFailed(OncelogError, certain=False):
    __doc__ = "The service could not be reached, or the connection broke before the answer came."


class ResponseTimeout(ConnectionFailed):
    __doc__ = "No answer came in time."


class GatewayUnavailable(ConnectionFailed):
    __doc__ = "A gateway or proxy in front of the service says that the service is away, or that it was asked too often."

    http_status: int
    """That it answered."""


class CertificateRefused(OncelogError):
    __doc__ = (
        "The certificate of the service is not trusted, or the service does not take that of this client; nothing was done. "
        "Name the CA that signed the one (`verify=`, `ONCELOG_CA`), or show another (`cert=`, `ONCELOG_CERT`)."
    )


class StoreNotOpened(OncelogError):
    __doc__ = "The store cannot be opened in this process; nothing was done. The detail says why, and what to do."


class StoreInUse(StoreNotOpened):
    __doc__ = "Another process has the store open, and one process owns a store: use it through that one, or end that one."

    pid: int
    """Of that process; None where the system does not say."""
    holder: str
    """What it is: its command line; None where the system does not say."""


class InvalidResponse(OncelogError, certain=False):
    __doc__ = "What answered does not speak as an oncelog service does."


class ClientClosed(OncelogError):
    __doc__ = "The client is closed; open a new one."


class Forked(OncelogError):
    __doc__ = "This was made before the process was forked and belongs to the other side; make another one in this process."


class ProducerClosed(OncelogError):
    __doc__ = "The producer is closed; open a new one."


class ProducerStopped(OncelogError):
    __doc__ = (
        "An earlier message of this producer failed without a definite outcome, so nothing later may overtake it; reopen it."
    )


class ReaderClosed(OncelogError):
    __doc__ = "The reader is closed; open a new one."


class ConsumerClosed(OncelogError):
    __doc__ = "The consumer is closed; open a new one."


class MixedSequenceIds(OncelogError):
    __doc__ = "A producer either numbers its messages itself or lets the SDK do it, not both."


class SequenceIdNotRising(OncelogError):
    __doc__ = "Sequence ids must strictly rise from one message of a producer to the next; nothing was sent."

    last: int
    received: int


class InitialSequenceIdTaken(OncelogError):
    __doc__ = "The initial sequence id is at or below one that this producer has already published."

    initial: int
    last_sequence_id: int


class CodecError(OncelogError):
    __doc__ = "A value cannot be encoded, or not so that it is read back equal; or bytes cannot be decoded."


class CheckpointConflict(OncelogError):
    __doc__ = "Another process moved this checkpoint; this one no longer owns it and its transaction must be rolled back."

    name: str
    expected: str
    actual: str


class OutboxBehind(OncelogError):
    __doc__ = "More was published under the outbox's name than its database knows of: an older state, or another of that name."

    outbox: str
    topic: str
    """`namespace/topic`."""
    next_number: int
    """The lowest that the database has not given to a row."""
    last_sequence_id: int


class OutboxBlocked(OncelogError):
    __doc__ = "A row of the outbox cannot be published; it and those behind it for its topic wait until that is mended."

    outbox: str
    topic: str
    """`namespace/topic`."""
    row: int
    """Its id in the table."""
    cause: str
    """The code of the error that it was refused with."""


class OutboxBusy(OncelogError):
    __doc__ = "Another relay publishes this outbox; nothing was done here."

    outbox: str
    holder: str


class DataLost(OncelogError):
    __doc__ = "Messages that were to be read are not there any more, and this reader may not pass over them."

    topic: str
    first: int
    """The offset to go on at."""
    earliest: int
    """The oldest one that is left."""


class RepeatDiffers(OncelogError):
    __doc__ = (
        "A batch of Spark came again under a number that is committed, and is not the one of then; nothing of it was written."
    )

    producer: str
    sequence_id: int
    """The number it came under."""
    newest: int
    """The producer's highest number."""


class TransactionClosed(OncelogError):
    __doc__ = "The transaction has ended; start a new one."


class TransactionFailed(OncelogError):
    __doc__ = "A participant of the transaction failed; it was rolled back everywhere. The first cause is attached."


class TransactionInDoubt(OncelogError, certain=False):
    __doc__ = "Whether the transaction was committed is not known yet; ask for its state before doing it again."

    write_pointer: int
    transaction: str
    """Of an atomic commit: its id."""


def all_errors() -> list[type[OncelogError]]:
    """Every class of the hierarchy, the root first, each once."""
    found: list[type[OncelogError]] = [OncelogError]
    for kind in found:
        found.extend(sub for sub in kind.__subclasses__() if sub not in found)
    return found


def from_problem(problem: Mapping[str, Any], status: int) -> OncelogError:
    """The error that an ``application/problem+json`` answer stands for.

    An unknown code becomes :class:`InternalError` (5xx) or :class:`InvalidRequest` with the detail kept; ``definite`` is
    taken from the answer, and where it is missing, only a 4xx is definite.
    """
    kinds = {kind.code: kind for kind in all_errors() if kind.status is not None}
    fallback = InternalError if status >= 500 else InvalidRequest
    kind = kinds.get(str(problem.get("code")), fallback)
    definite, detail = problem.get("definite"), problem.get("detail")
    return kind(
        detail if isinstance(detail, str) and detail else f"HTTP status {status}",
        definite=definite if isinstance(definite, bool) else 400 <= status < 500,
        **{name: _checked(kind, name, problem.get(name)) for name in kind.values},
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "list[str]": lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    "dict[str, str]": lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
    "None": lambda value: value is None,
}


def _checked(kind: type[OncelogError], name: str, value: Any) -> Any:
    """The value, or None where it is not what the class says: whoever goes on from it relies on that."""
    if name == "message_id" and not (isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{40}", value)):
        return None
    wanted = next(found[name] for each in kind.__mro__ if name in (found := get_annotations(each)))
    return value if any(_KINDS[each](value) for each in wanted.split(" | ")) else None
