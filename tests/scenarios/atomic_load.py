"""Atomic commits over several topics, on a service that is killed meanwhile; each client keeps what it was answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import requests

from oncelog.errors import OffsetMismatch, OncelogError, TransactionNotInProgress, from_problem
from oncelog.wire.codec import encode_commit_request, encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from tests.patience import PATIENCE

TOPICS = ("a", "b", "c")
GROUPS = ("one", "two")
KEY = b"k"
"""Of topic "c". Whoever writes a message with it says which one was the newest with it."""
LEFT_MS, LASTING_MS = 1_000, 600_000
"""What a client leaves alone is aborted after the former; none that is to be committed comes near the latter."""


@dataclass
class Chunk:
    """Messages that are staged for one topic, under a transaction or a branch of it."""

    transaction: str
    topic: str
    number: int
    request: PublishRequest


@dataclass
class Attempt:
    """One atomic commit, as the steps that its client takes, and what that knows of it. Any step may be taken again."""

    id: str
    group: str
    begins: Sequence[tuple[str, str | None]] = ()
    """(id, the one that it is a branch of), the transaction itself first; none: the commit begins it."""
    chunks: Sequence[Chunk] = ()
    commit: CommitRequest | None = None
    """None: it is aborted, or left alone."""
    aborts: bool = False
    messages: dict[str, list[str]] = field(default_factory=dict)
    """Topic → what a commit makes appear there, in this order."""
    others: list[str] = field(default_factory=list)
    """What is staged and must never be seen."""
    asked: bool = False
    """Its client asked for the commit, or for the abort."""
    answer: AtomicOutcome | OncelogError | None = None

    @property
    def named(self) -> tuple[str, str, int] | None:
        """Group, producer and sequence id of the commit as a whole."""
        commit = self.commit
        if commit is None or commit.producer is None or commit.sequence_id is None:
            return None
        return self.group, commit.producer, commit.sequence_id


class JournalApi:
    """The addresses used here, over plain HTTP. A problem that is answered raises; no answer is a RequestException."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = requests.Session()
        self._session.trust_env = False

    def call(self, method: str, path: str, body: object = None, data: bytes | None = None) -> Any:
        content = data if body is None else json.dumps(body).encode()
        media = ONCELOG_AVRO if body is None else "application/json"
        answer = self._session.request(
            method, f"{self.url}/v1/{path}", data=content, headers={"content-type": media}, timeout=PATIENCE
        )
        if answer.status_code != 200:
            raise from_problem(answer.json(), answer.status_code)
        return answer.json() if answer.content else None

    def make_topic(self, topic: str) -> None:
        self.call("PUT", f"namespaces/default/topics/{topic}", {"check.expected.offsets": "true"})

    def upcoming(self, topic: str) -> int:
        return int(self.call("GET", f"namespaces/default/topics/{topic}/stats")["upcomingOffset"])

    def begin(self, id_: str, group: str, of: str | None, timeout_ms: int = LASTING_MS) -> AtomicOutcome:
        return _outcome(self.call("POST", "journal", {"id": id_, "group": group, "of": of, "timeoutMs": timeout_ms}))

    def stage(self, chunk: Chunk) -> None:
        path = f"namespaces/default/topics/{chunk.topic}/stage/{chunk.transaction}/{chunk.number}"
        self.call("PUT", path, data=encode_publish_request(chunk.request))

    def commit(self, id_: str, request: CommitRequest) -> AtomicOutcome:
        return _outcome(self.call("POST", f"journal/{id_}/commit", data=encode_commit_request(request)))

    def abort(self, id_: str) -> AtomicOutcome:
        return _outcome(self.call("POST", f"journal/{id_}/abort"))

    def show(self, id_: str) -> AtomicOutcome:
        return _outcome(self.call("GET", f"journal/{id_}"))

    def open(self) -> list[AtomicOutcome]:
        return [_outcome(each) for each in self.call("GET", "journal?limit=2000")]

    def last_of(self, group: str, producer: str) -> int:
        """The newest sequence id, or -1."""
        try:
            return int(self.call("GET", f"journal/groups/{group}/producers/{producer}")["sequenceId"])
        except OncelogError as error:
            if error.code != "group_producer_not_found":
                raise
            return -1


def _outcome(answer: Any) -> AtomicOutcome:
    return AtomicOutcome.model_validate_json(json.dumps(answer))


class Committer(threading.Thread):
    """One atomic commit after the other, of every kind, until told to stop.

    When the service is gone the client waits at its gate, and then takes all steps of the commit under way once more.
    """

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name=f"committer-{name}")
        self.attempts: list[Attempt] = []
        self.failure: BaseException | None = None
        self.parked = threading.Event()
        self.gate = threading.Event()
        self.resumed = 0
        self.ended = 0
        self._api = JournalApi("")
        self._name = name
        self._random = Random(f"{seed}-{name}")
        self._enough = False
        self._serial = 0
        self._under_way: Attempt | None = None
        self._next: Attempt | None = None
        """What is to be tried when the present one has an answer."""
        self._loads: dict[str, int] = {}
        """Group → the next sequence id of the commits under this client's own name."""
        self._known: dict[str, list[str]] = {}
        """Topic → payloads of the messages under this client's own name, by sequence id."""
        self._newest_of_key: int | None = None

    def let_go(self, url: str) -> None:
        """Go on with the service at this address."""
        if self._api.url != url:
            self._api = JournalApi(url)
        self.gate.set()

    @property
    def at_work(self) -> bool:
        """Whether a commit is begun that has no answer yet."""
        return self._under_way is not None

    def enough(self) -> None:
        """End after the commit that is under way."""
        self._enough = True
        self.gate.set()

    def run(self) -> None:
        try:
            while not self._enough:
                if not self.gate.is_set():
                    self.parked.set()
                    self.gate.wait()
                    self.parked.clear()
                    continue
                try:
                    self._commit_one()
                except requests.RequestException:
                    self.parked.set()  # the service is gone, or will be in a moment
                    self.gate.wait(0.01)
        except BaseException as error:
            self.failure = error
        finally:
            self.parked.set()

    def _commit_one(self) -> None:
        attempt, resumed = self._under_way, self._under_way is not None
        self.resumed += resumed
        if attempt is None:
            planned, self._next = self._next, None
            attempt = planned or self._make()
            self.attempts.append(attempt)
            self._under_way = attempt
        try:
            self._take_steps(attempt, resumed)
        except OffsetMismatch as refusal:
            attempt.answer = refusal
            if refusal.condition == "key_offset":
                self._newest_of_key = None if refusal.actual is None else int(refusal.actual)
        else:
            self._learn(attempt)
        self._under_way = None
        self.ended += 1

    def _take_steps(self, attempt: Attempt, resumed: bool) -> None:
        if self._stage(attempt, resumed) and attempt.commit is None and not attempt.aborts:
            return
        attempt.asked = attempt.asked or attempt.aborts or attempt.commit is not None
        if attempt.commit is not None:
            attempt.answer = self._api.commit(attempt.id, attempt.commit)
        elif attempt.aborts:
            attempt.answer = self._api.abort(attempt.id)

    def _stage(self, attempt: Attempt, resumed: bool) -> bool:
        """Whether everything is staged; False: it had ended, which only a client that comes back may find."""
        lasting = attempt.commit is not None or attempt.aborts
        try:
            for id_, of in attempt.begins:
                begun = self._api.begin(id_, attempt.group, of, LASTING_MS if lasting else LEFT_MS)
                if id_ == attempt.id and begun.state != "in_progress":
                    assert resumed, f"{attempt.id} was only begun and is {begun.state}"
                    return False
            for chunk in attempt.chunks:
                self._api.stage(chunk)
        except TransactionNotInProgress:
            if resumed or not lasting:
                return False
            raise
        return True

    def _learn(self, attempt: Attempt) -> None:
        outcome, commit = attempt.answer, attempt.commit
        if not isinstance(outcome, AtomicOutcome) or commit is None or not outcome.committed:
            return
        if outcome.state != "duplicate":
            for part in commit.parts:
                if part.request.producer is not None:
                    self._known.setdefault(part.topic, []).extend(attempt.messages[part.topic])
                if part.request.expected_key_offsets is not None:
                    (topic,) = outcome.topics
                    self._newest_of_key = topic.first_offset

    # --- kinds of commits

    def _make(self) -> Attempt:
        kinds = [self._small, self._small, self._staged, self._branched, self._numbered, self._shared]
        kinds += [self._fought_for, self._fought_for, self._of_a_key, self._partly_known, self._aborted, self._left]
        self._serial += 1
        return self._random.choice(kinds)(f"{self._name}.{self._serial}")

    def _group(self) -> str:
        return self._random.choice(GROUPS)

    def _payloads(self, id_: str, topic: str) -> list[str]:
        return [f"{id_}:{topic}:{self._random.getrandbits(48):x}" for _ in range(self._random.choice([1, 2, 30]))]

    def _parts(self, attempt: Attempt, topics: Sequence[str]) -> list[Part]:
        parts = []
        for topic in topics:
            payloads = self._payloads(attempt.id, topic)
            attempt.messages.setdefault(topic, []).extend(payloads)
            parts.append(Part("default", topic, _request(payloads)))
        return parts

    def _chunks(self, transaction: str, topics: Sequence[str], into: dict[str, list[str]]) -> list[Chunk]:
        chunks = []
        for topic in topics:
            for number in range(self._random.choice([1, 1, 3])):
                payloads = self._payloads(transaction, topic)
                into.setdefault(topic, []).extend(payloads)
                chunks.append(Chunk(transaction, topic, number, _request(payloads)))
        return chunks

    def _topics(self, least: int = 2) -> list[str]:
        return self._random.sample(TOPICS, self._random.randint(least, len(TOPICS)))

    def _small(self, id_: str) -> Attempt:
        attempt = Attempt(id_, self._group())
        attempt.commit = CommitRequest(attempt.group, self._parts(attempt, self._topics()))
        return attempt

    def _staged(self, id_: str) -> Attempt:
        attempt = Attempt(id_, self._group(), begins=[(id_, None)])
        attempt.chunks = self._chunks(id_, self._topics(), attempt.messages)
        attempt.commit = CommitRequest(None, self._parts(attempt, self._topics(0)))
        return attempt

    def _branched(self, id_: str) -> Attempt:
        """Four branches, of which it names three, in an order of its own."""
        attempt = self._staged(id_)
        branches = [f"{id_}.branch{number}" for number in range(4)]
        attempt.begins = [*attempt.begins, *((branch, id_) for branch in branches)]
        staged: dict[str, dict[str, list[str]]] = {branch: {} for branch in branches}
        for branch in branches:
            attempt.chunks = [*attempt.chunks, *self._chunks(branch, self._topics(1), staged[branch])]
        named = self._random.sample(branches, 3)
        for branch in named:
            for topic, payloads in staged.pop(branch).items():
                attempt.messages.setdefault(topic, []).extend(payloads)
        attempt.others = [payload for left in staged.values() for payloads in left.values() for payload in payloads]
        assert attempt.commit is not None
        attempt.commit.branches = named
        return attempt

    def _numbered(self, id_: str) -> Attempt:
        """Under a sequence id that is this client's next."""
        attempt = self._random.choice([self._small, self._branched])(id_)
        number = self._loads.get(attempt.group, 0)
        self._loads[attempt.group] = number + 1
        return self._with_twin(attempt, self._name, number)

    def _shared(self, id_: str) -> Attempt:
        """Under a sequence id that others may be taking."""
        attempt = self._small(id_)
        return self._with_twin(attempt, "shared", self._api.last_of(attempt.group, "shared") + 1)

    def _with_twin(self, attempt: Attempt, producer: str, sequence_id: int) -> Attempt:
        """Whatever becomes of it, another one is tried next with the same number, and is a duplicate."""
        twin = self._small(f"{attempt.id}.twin")
        twin.group = attempt.group
        for each in (attempt, twin):
            assert each.commit is not None
            each.commit.group, each.commit.producer, each.commit.sequence_id = each.group, producer, sequence_id
            each.commit.incarnation, each.commit.checksum = "first", each.id
        self._next = twin
        return attempt

    def _fought_for(self, id_: str) -> Attempt:
        """On two topics, at offsets that others may be taking."""
        attempt = Attempt(id_, self._group())
        parts = self._parts(attempt, self._random.sample(TOPICS, 2))
        for part in parts:
            part.request.expected_offset = self._api.upcoming(part.topic)
        attempt.commit = CommitRequest(attempt.group, parts)
        return attempt

    def _of_a_key(self, id_: str) -> Attempt:
        attempt = Attempt(id_, self._group(), messages={"c": [f"{id_}:key"]})
        request = _request(attempt.messages["c"])
        request.keys, request.expected_key_offsets = [KEY], {KEY.decode(): self._newest_of_key}
        attempt.commit = CommitRequest(attempt.group, [Part("default", "c", request)])
        return attempt

    def _partly_known(self, id_: str) -> Attempt:
        """Messages of this client's own name: the last ones that are there already, and new ones behind them."""
        attempt = Attempt(id_, self._group())
        parts = self._parts(attempt, ["a", "b"])
        for part in parts:
            known = self._known.get(part.topic, [])
            again = known[-self._random.choice([1, 3, 40]) :]
            payloads = [*again, *attempt.messages[part.topic]]
            part.request.payloads = [payload.encode() for payload in payloads]
            part.request.producer = self._name
            part.request.sequence_ids = list(range(len(known) - len(again), len(known) - len(again) + len(payloads)))
        attempt.commit = CommitRequest(attempt.group, parts)
        return attempt

    def _aborted(self, id_: str) -> Attempt:
        return self._never_committed(id_, aborts=True)

    def _left(self, id_: str) -> Attempt:
        """Staged and left alone, until it times out."""
        return self._never_committed(id_, aborts=False)

    def _never_committed(self, id_: str, aborts: bool) -> Attempt:
        staged: dict[str, list[str]] = {}
        attempt = Attempt(id_, self._group(), begins=[(id_, None)], aborts=aborts)
        attempt.chunks = self._chunks(id_, self._topics(), staged)
        attempt.others = [payload for payloads in staged.values() for payload in payloads]
        return attempt


def _request(payloads: Sequence[str]) -> PublishRequest:
    return PublishRequest([payload.encode() for payload in payloads])
