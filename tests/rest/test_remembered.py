"""What outlives a request in a service's memory: each container of it is listed here, under what docs/operating.md says of it.

The service is walked while it has everything under way that there is, so that a container that nobody has listed is found, also
while it is empty.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.access.carrying import Carrying
from tests.access.signing import jwk, key_set, new_key
from tests.cluster.instances import in_place
from tests.rest.talk import done
from tests.world.memory import containers, of_modules, unbounded_caches
from tests.world.service import running_service

FIXED = "(as many as the code or the settings have)"
HELD: dict[str, str] = {
    "the producers of a topic": """
        _Segment.last_entries Fold._live Fold._settled Deduplicator._pushed OpenTopic.producers Producers._rows
        Producers._sorted Producers._opened ProducerRow.opens""",
    "the subscriptions of a topic": "Subscriptions._rows Subscriptions._heard SubscriptionRow.opens",
    "the keys of a topic that checks expectations": "KeyIndex._pushed KeyIndex._pushed_under",
    "topics": """
        Logs.opened Policies._of Changes._held TopicRow.properties TopicsCounted._counted Watch._published Retention._old
        LevelDBStore._gone LevelDBStore._deleted Snapshots._offsets
        Snapshots._key_offsets OpenTopic.lost Size._missing Quota._buckets""",
    "messages of transactions that have not ended": """
        Fold._segments Fold._unsettled OpenTopic.numbers LogEnd._numbers Unnamed._numbers Numbers._taken Size._undecided
        Groups._open StoredGroup._first_ids StoredGroup.keys AtomicOnTopic._staged Staged.chunks ChunkRow.key_indexes""",
    "transactions": """
        TransactionsState.open TransactionsState.ended TransactionsState.late TransactionsState.roots TransactionsState.pointers
        TransactionsState.waiting TransactionsState._hidden TransactionsState._shorts TransactionsState.judged
        TransactionsState.unjudged
        TransactionManager._openings Lifetimes._open Lifetimes._began Held._of SettlementTask._later""",
    "keys that transactions have changed": """
        TransactionsState.committed TransactionsState._committers TransactionsState._newest TransactionsState._reserved""",
    "atomic commits": """
        Ledger._partition_of Ledger.open Plan._branches Plan._ids Plan.transactions Transaction.topics Endings._dropping""",
    "producers' names in groups of atomic commits": "GroupProducers.newest GroupNoteRow.topics GroupNoteRow.earlier",
    "outcomes": "TransactionManager._recent RemoteTransactions._ended Ledger.ended",
    "answers that are remembered": """
        Principal._answers WritePointers._own Expectations._relatives History._looked SqliteDatabase._known""",
    "what operators have said": "OpenTopic.rolled_back_by_hand RolledBack.keys WritePointers.ended_by_hand",
    "tokens": "Access._tokens Access._by_name Access._by_digest",
    "signed tokens": "Issuer._known Checks._failed Checks._known Checks._queues",
    "recent messages": "RecentMessages._order TopicCache._blocks",
    "connections": """
        Shared.connections Shared.told Shared.patience Shared.exchanges Shared._of_one Shared._long_of_one
        Places.held Places._found Places._barren
        HttpConnection._together Framing._events Rounds._waiting Acceptor._beginning Bodies._arriving Unread._readers""",
    "heads of requests": "Heads.known Heads._once",
    "requests under way": """
        Exchange.parts Call.path Call.query Call.subject Turns._queues Turns._order Turns._lights Logs._opening
        Logs._settling Logs._locks WritePointers._using WritePointers._closing WritePointers._over WritePointers._locks
        Ledger._locks SettlementTask._under_way Threads._calls Size.shrinking Size.watchers OpenTopic.watchers
        Shares._waiting KeyIndex.watchers _State.queue _State.newest _State.lazy""",
    "principals with a quota": "Quotas._held",
    "how long whose work took lately": "Shares._used",
    "what was refused, sampled and found wrong lately": """
        Refusals._found Samples._kept Watch._shed_at Watch._topics _SeenFirst._since Audit._lines Audit._nameless _State.times""",
    "instances of the service": """
        Membership._alive Membership._kept Membership._locks Membership._mine Membership._seen Membership.vanished
        _State.fallen""",
    FIXED: """
        Application._addresses Background._failed Counts.transactions EditLog._snapshots EventLog._read EventLog._written
        Engines._shared Histogram._counts Issuer._keys Ledger._begins Ledger.plans Route._said Route.gives Route.query Route.takes
        Service._running Opening._abandons Threads._begun Threads._threads Times.by_status TopicsCounted._series
        Traffic.broken_off
        Traffic.problems Traffic.refused Traffic.routes _Stores.begun _Stores.made""",
    "(memory://, which is a store)": "Disk.epochs Disk.scrubbed Disk.tables MemoryStore.ordered",
}
"""What is remembered, as docs/operating.md says it → the containers that hold it."""

LISTED = {container: what for what, held in HELD.items() for container in held.split()}
OURS = ("oncelog_service", "oncelog_dedup")
TOPIC = "/v1/namespaces/default/topics/t"
OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


class Walked(NamedTuple):
    """What was met."""

    alive: set[str]
    """Containers, but for those that nobody has listed and some other test has left."""
    grown: set[str]
    """Containers of modules that have more in them than before."""


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walked]:
    """Of a service alone, with an issuer of tokens and over stores in files, one with a transaction service that runs alone, and
    two over one store."""
    folder = tmp_path_factory.mktemp("remembered")
    keys = folder / "keys.json"
    keys.write_bytes(key_set(jwk(new_key(), "a")))
    issuer = {"jwt_issuer": "https://login.example.org", "jwt_audience": "logs", "jwt_keys": str(keys)}
    left = {name for name, _ in containers(*OURS)} - LISTED.keys()
    sizes = dict(of_modules(*OURS))
    with ExitStack() as services:
        alone = services.enter_context(running_service(max_principal_messages_per_second=10**6, token="t", **issuer))
        files = services.enter_context(running_service(f"leveldb://{folder}/leveldb", token="t"))
        database = services.enter_context(running_service(f"sqlite://{folder}/sqlite", token="t"))
        transactions = services.enter_context(running_service(alone=True, token="t"))
        far = services.enter_context(running_service(transactions_url=transactions.url, transactions_token="t", token="t"))
        cluster = services.enter_context(in_place(2, token="t"))
        clients = [Carrying(url, "t") for url in (alone.url, files.url, database.url, far.url, cluster.all[0].url)]
        for client in clients:
            keep_busy(client)
        grown = {name for name, size in of_modules(*OURS) if size > sizes.get(name, size)}
        yield Walked({name for name, _ in containers(*OURS)} - left, grown)
        for client in clients:
            client.session.close()


def keep_busy(admin: Carrying) -> None:
    """Everything that a service may have under way when nobody asks anything."""
    properties = {"check.expected.offsets": True, "max.messages.per.second": "100000"}
    done(admin.request("PUT", TOPIC, json=properties))
    named: dict[str, Any] = {"messages": ["x"], "producer": "p", "sequenceIds": [0]}
    ended, pointer = (admin.good("POST", "/v1/transactions", json={})["writePointer"] for _ in range(2))
    for path, body in (
        ("/publish", {**named, "keys": ["k"]}),
        ("/publish", {**named, "transactionWritePointer": ended, "sequenceIds": [1]}),
        ("/publish", {"messages": ["x"], "transactionWritePointer": pointer, "sequenceIds": [0]}),
        ("/store", {"messages": ["x"], "transactionWritePointer": pointer}),
        ("/producers", {"name": "opened", "nonce": "n"}),
        ("/subscriptions", {"name": "s", "nonce": "n"}),
    ):
        done(admin.request("POST", TOPIC + path, json=body))
    admin.good("POST", f"/v1/transactions/{ended}/commit", json={"changes": ["k"]})
    admin.good("POST", f"/v1/transactions/{pointer}/can-commit", json={"changes": ["k2"]})
    part = {"namespace": "default", "topic": "t", "request": {"messages": ["x"]}}
    admin.good("POST", "/v1/atomic/whole/commit", json={"group": "g", "producer": "p", "sequenceId": 0, "parts": [part]})
    admin.good("POST", "/v1/atomic", json={"id": "open", "group": "g"})
    done(admin.request("PUT", f"{TOPIC}/stage/open/0", json=named))
    reader = admin.holding("ada", "read:*/*")
    assert reader.request("POST", f"{TOPIC}/publish", json=named).status_code == 403
    for path in (f"{TOPIC}/producers", "/v1/alarms", "/v1/overview"):
        admin.good("GET", path)


def test_each_container_that_outlives_a_request_is_listed(walked: Walked) -> None:
    unlisted = sorted(walked.alive - LISTED.keys())
    assert not unlisted, (
        f"say of {unlisted}, here and in docs/operating.md, whose it is, what bounds it, what happens beyond that"
    )
    gone = sorted(LISTED.keys() - set(HELD["requests under way"].split()) - walked.alive)
    assert not gone, f"{gone} are gone, or were not met: then nobody sees whether they are"


def test_no_module_remembers_anything(walked: Walked) -> None:
    assert walked.grown <= {"oncelog_service.storage.files.directory.._locked"}, "a handle for each directory that is open"
    assert {name for name, _ in unbounded_caches(*OURS)} <= {"console_files", "_statement"}, "of no argument, and of six truths"


def test_operators_are_told_of_all_that_is_remembered() -> None:
    text = OPERATING.read_text()
    table = text[text.index("### What is remembered") :].split("\n#")[0]
    told = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| [^|]+ \|$", table, re.MULTILINE)
    assert sorted(told[1:]) == sorted(each for each in HELD if not each.startswith("("))


def test_one_that_nobody_has_listed_is_found() -> None:
    class Planted:
        __module__ = "oncelog_service.planted"
        __slots__ = ("_answers",)

        def __init__(self) -> None:
            self._answers = defaultdict[str, int](int)

    planted = Planted()
    assert [(name, value) for name, value in containers(*OURS) if "Planted" in name] == [
        (f"{Planted.__qualname__}._answers", planted._answers)
    ]
