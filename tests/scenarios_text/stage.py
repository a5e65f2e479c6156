"""Plays a scenario: a service, a topic `t` and whoever is named, in one event loop of virtual time; nothing is left to chance."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from oncelog import AsyncClient
from oncelog.api.api import surrounded
from oncelog.errors import ConnectionFailed, OncelogError, StorageUnavailable
from oncelog.values.receipt import Receipts
from oncelog.wire.models import Acknowledge, ReceiveMessages
from oncelog.wire.requests import CommitRequest, ConsumeRequest, Part, PublishRequest, PublishResponse
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.renewal import begin_incarnation
from oncelog_service.storage.memory import MemoryStore
from tests.world.disk import arm, crashed, disarm
from tests.world.virtual.instance import PORT, Instance, Machine
from tests.world.virtual.loop import BEGAN_MS, Process, VirtualLoop
from tests.world.virtual.network import STILL, Loss, Network
from tests.world.virtual.trace import Trace

PATIENCE_SECONDS = 10
"""Who is not answered within so long is left waiting; its answer is told with the first line behind which it is there."""
MOMENT_SECONDS = 0.1
MOST_TRIES = 5
AWAY = (ConnectionFailed, StorageUnavailable)
"""After these it is tried again, as after all that is not definite."""
OPERATORS = "operators-token"
SILENT = "10.0.0.9", PORT
"""Where a process stands still."""
SHOWN = (
    "expected",
    "received",
    "actual",
    "earliest_offset",
    "upcoming_offset",
    "state",
    "reason",
    "first",
    "last",
    "incarnation",
)
"""What is shown of an error."""


class Misspelt(ValueError):
    """A deed says what the language does not know."""


class Actor:
    """Whoever is named: a program with a client of its own, and what it remembers."""

    def __init__(self, stage: Stage, name: str, token: str | None = None) -> None:
        self.process = Process(name, f"10.0.1.{len(stage.actors) + 1}")
        clients = surrounded(AsyncClient, network=stage.network.reach(self.process), clock=stage.loop.clock)
        self.retrying: Callable[..., AsyncClient] = partial(clients, stage.url_for(name), timeout=60, token=token)
        self.client = self.retrying(retry=0)
        self.name = name
        self.token = token
        self.epoch: int | None = None
        self.generation: int | None = None
        """Of the topic whose subscription it has opened."""
        self.position: bytes | None = None
        self.answer: PublishResponse | None = None
        """Of its last publish under a write pointer: what it could roll back."""
        self.pointer = 0


class Stage:
    """All of one scenario."""

    def __init__(self, locked: bool = False, foreign: bool = False, silent: bool = False) -> None:
        """``locked``: nobody may do anything but the operator, and who is granted it. ``foreign``: write pointers of another
        transaction service are taken, too. ``silent``: everybody but the operator asks an instance first that stands still."""
        self.trace = Trace()
        self.loop = VirtualLoop(Random(0), self.trace, 0.0)
        self.network = Network(self.loop, STILL)
        self.network.strike = self._strike
        self.silent = f"http://{SILENT[0]}:{SILENT[1]}," if silent else ""
        standing = Process("silent", SILENT[0])
        standing.runs = False
        self.network.listening[SILENT] = standing, lambda client: asyncio.Protocol()
        self.instance = self._instance(foreign_write_pointers=foreign, **({"token": OPERATORS} if locked else {}))
        self.saved = crashed(self.instance.machine.disk)
        self.losses: list[Loss] = []
        """What becomes of the next requests."""
        self.actors: dict[str, Actor] = {}
        self.actors["operator"] = Actor(self, "operator", OPERATORS if locked else None)
        self.pending: dict[str, asyncio.Task[str]] = {}
        self.atomic: set[str] = set()
        """Names under which something was staged or committed."""
        self.playing = 0
        """Index of the line that is played."""

    def _instance(self, **settings: Any) -> Instance:
        found = {"snapshot_messages": 3, "retention_seconds": 30, **settings}
        return Instance("service", Machine(self.loop, "10.0.0.1"), self.network, found)

    def url_for(self, name: str) -> str:
        """Where somebody asks."""
        return ("" if name == "operator" else self.silent) + self.instance.url

    def actor(self, name: str) -> Actor:
        """The one of this name."""
        return self.actors.setdefault(name, Actor(self, name))

    def _strike(self, process: Process, data: bytes) -> Loss | None:
        return self.losses.pop(0) if self.losses else None

    async def play(self, lines: Sequence[str]) -> list[str]:
        """What comes of each line."""
        await self.instance.start()
        operator = self.actor("operator")
        await self.loop.begin(operator.process, operator.client.create_topic("t", {"check.expected.offsets": True}))
        answers = []
        for self.playing, line in enumerate(lines):
            answers.append(await self._line(line))
        await self.instance.restore()
        return answers

    @property
    def now_ms(self) -> int:
        """What the clock of the service's machine says."""
        return BEGAN_MS + self.instance.machine.ahead_ms + round(self.loop.now * 1000)

    async def _line(self, line: str) -> str:
        told = []
        for deed in map(str.strip, line.split(";")):
            said = await self._deed(deed)
            told += [said] if said else []
        if self.pending:  # an answer is on its way to each as well, which is behind the one that was waited for
            await asyncio.wait(self.pending.values(), timeout=MOMENT_SECONDS)
        for deed, task in list(self.pending.items()):
            if task.done():
                del self.pending[deed]
                told.append(f"{deed}: {task.result()}")
        return "; ".join(told) or "ok"

    async def _deed(self, deed: str) -> str:
        words = deed.removesuffix("&").split()
        if words[0] in WORLD:
            happens = WORLD[words[0]]
            rest, _ = happens.parse(words[1:])
            return await happens.act(self, rest)
        if len(words) < 2 or words[1] not in ACTORS:
            raise Misspelt(f"the word {words[min(1, len(words) - 1)]!r} is unknown")
        does = ACTORS[words[1]]
        rest, found = does.parse(words[2:])
        actor = self.actor(words[0])
        task = self.loop.begin(actor.process, told(does.act(self, actor, rest, found)))
        at_once = deed.endswith("&")
        await asyncio.wait([task], timeout=0 if at_once else PATIENCE_SECONDS)
        if task.done():
            return task.result()
        self.pending[" ".join(words)] = task
        return "" if at_once else f"nothing for {PATIENCE_SECONDS} s"


async def told(answer: Awaitable[str]) -> str:
    """An answer, or the error in its place."""
    try:
        return await answer
    except OncelogError as error:
        return refused(error)


def refused(error: OncelogError) -> str:
    """An error, in a line: its status and code, and what one needs to go on."""
    values = [f"{name} {value}" for name in SHOWN if (value := getattr(error, name, None)) is not None]
    status = [str(error.status)] if error.status is not None else []
    return " ".join([*status, error.code, *values, *([] if error.definite else ["(not definite)"])])


# --- the words for what happens to the service: `verb arguments`

World: TypeAlias = Callable[[Stage, list[str]], Awaitable[str]]
Act: TypeAlias = Callable[[Stage, Actor, list[str], dict[str, str]], Awaitable[str]]
ActT = TypeVar("ActT", World, Act)


class Verb(NamedTuple, Generic[ActT]):
    """What a verb does, and which words may stand behind it."""

    act: ActT
    plain: str = ""
    """The pattern of each word that is no option."""
    least: int = 0
    """How many of them there are at least."""
    options: str = ""
    """Words that are followed by a value each."""

    def parse(self, words: list[str]) -> tuple[list[str], dict[str, str]]:
        """Words apart from options. Raises Misspelt: one is unknown, or missing."""
        rest, found = [], {}
        each = iter(words)
        for word in each:
            if word in self.options.split():
                found[word] = next(each, "")
                if not found[word]:
                    raise Misspelt(f"nothing stands behind the word {word!r}")
            elif not re.fullmatch(self.plain, word):
                raise Misspelt(f"the word {word!r} is unknown")
            else:
                rest.append(word)
        if len(rest) < self.least:
            raise Misspelt("a word is missing")
        return rest, found


NAME = r"[\w-]+"
NUMBER = r"-?\d+"


async def _kill(stage: Stage, words: list[str]) -> str:
    stage.instance.kill()
    return ""


async def _start(stage: Stage, words: list[str]) -> str:
    await stage.instance.start()
    return ""


async def _stop(stage: Stage, words: list[str]) -> str:
    await stage.instance.stop()
    return ""


async def _lose(stage: Stage, words: list[str]) -> str:
    stage.losses.append({"answer": "answer lost", "request": "request lost"}[words[0]])  # type: ignore[arg-type]
    return ""


async def _disk(stage: Stage, words: list[str]) -> str:
    machine = stage.instance.machine
    if words[0] == "hangs":
        machine.disk_hangs = True
    elif words[0] == "fails":
        arm(machine.disk, "fails but is on disk" if words[1:] else "fails", 0)
    else:
        machine.disk_hangs = False
        disarm(machine.disk)
    return ""


async def _wait(stage: Stage, words: list[str]) -> str:
    await asyncio.sleep(float(words[0]))
    return ""


async def _clock(stage: Stage, words: list[str]) -> str:
    stage.instance.set_clock(int(words[0]) * 1000)
    return ""


async def _save(stage: Stage, words: list[str]) -> str:
    stage.saved = crashed(stage.instance.machine.disk)
    return ""


async def _renew(stage: Stage, words: list[str]) -> str:
    """The service is killed, what was saved is put back, and another incarnation of it begins."""
    stage.instance.kill()
    stage.instance.machine.disk = crashed(stage.saved)
    begin_incarnation(MemoryStore(stage.instance.machine.disk), stage.now_ms)
    await stage.instance.start()
    return ""


WORLD: dict[str, Verb[World]] = {
    "kill": Verb(_kill),
    "start": Verb(_start),
    "stop": Verb(_stop),
    "lose": Verb(_lose, "answer|request", 1),
    "disk": Verb(_disk, "hangs|fails|works|there", 1),
    "wait": Verb(_wait, r"[\d.]+", 1),
    "clock": Verb(_clock, NUMBER, 1),
    "save": Verb(_save),
    "renew": Verb(_renew),
}


# --- the words for what somebody does: `who verb arguments`


def _numbers(words: list[str]) -> Iterator[int]:
    for word in words:
        first, _, last = word.partition("=")[0].partition("..")
        yield from range(int(first), int(last or first) + 1)


async def _opens(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    opened = await actor.client.open_producer(found.get("on", "t"), actor.name, gaps="refuse" if words else "allow")
    actor.epoch = opened.epoch
    return "behind nothing" if opened.last_sequence_id is None else f"behind {opened.last_sequence_id}"


async def _sends(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    """Sends messages under sequence ids in one request, again where the answer is not definite."""
    numbers = list(_numbers(words))
    texts = dict(word.split("=") for word in words if "=" in word)
    said = [texts.get(str(number), f"{actor.name}{number}").encode() for number in numbers]
    request = PublishRequest(said, actor.name, int(found.get("epoch", actor.epoch or 0)) or None, sequence_ids=numbers)
    return await _publish(stage, actor, request, found, numbered=True)


async def _publishes(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    request = PublishRequest([word.encode() for word in words])
    if "ttl" in found:
        request.ttls = [int(found["ttl"])] * len(words)
    return await _publish(stage, actor, request, found, numbered=False)


async def _publish(stage: Stage, actor: Actor, request: PublishRequest, found: dict[str, str], numbered: bool) -> str:
    topic = found.get("on", "t")
    if "at" in found:
        request.expected_offset = int(found["at"])
    if "key" in found:
        key, _, offset = found["key"].partition(":")
        request.keys = [key.encode()] * len(request.payloads)
        if offset:
            request.expected_key_offsets = {key: None if offset == "none" else int(offset)}
    if "in" in found:
        owner = stage.actor(found["in"])
        request.write_pointer = owner.pointer
        call = actor.client.publish_transactional
    retries = 0
    while True:
        try:
            if "in" in found:
                owner.answer = await call(topic, request)
                runs = owner.answer.receipts
            else:
                runs = await actor.client.publish(topic, request)
            break
        except OncelogError as error:
            if not numbered or retries == MOST_TRIES or (error.definite and not isinstance(error, AWAY)):
                return "; ".join([*([f"retry {retries}"] if retries else []), refused(error)])
            retries += 1
            await asyncio.sleep(0.1)
    numbers = [f"{number} " for number in request.sequence_ids or ()] or [""] * len(request.payloads)
    said = [
        f"{each.status} {number}at {'?' if each.offset is None else each.offset}"
        for number, each in zip(numbers, Receipts(runs), strict=True)
    ]
    return "; ".join([*([f"retry {retries}"] if retries else []), ", ".join(said)])


async def _begins(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    if words == ["elsewhere"]:
        actor.pointer = stage.now_ms * POINTERS_PER_MS  # as Tephra counts
    else:
        actor.pointer = (await actor.client.start_transaction("short", float(words[0]) if words else None)).transaction_id
    return ""


async def _stores(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    await actor.client.store(found.get("on", "t"), PublishRequest([word.encode() for word in words], write_pointer=actor.pointer))
    return "stored"


async def _appears(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    """What is stored under its pointer is published."""
    await actor.client.publish_transactional(found.get("on", "t"), PublishRequest([], write_pointer=actor.pointer))
    return "published"


async def _ends(how: str, stage: Stage, actor: Actor, *_: object) -> str:
    return str((await getattr(actor.client, f"{how}_transaction")(actor.pointer)).state)


async def _aborts(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    """A transaction; or, where it has none, the atomic commit of its name."""
    if not actor.pointer and actor.name in stage.atomic:
        return (await actor.client.abort_atomic(actor.name)).state
    return await _ends("abort", stage, actor)


async def _rolls_back(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    assert actor.answer is not None
    await actor.client.rollback("t", actor.answer)
    return "rolled back"


async def _settles(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    if words[1] not in ("committed", "aborted"):
        raise Misspelt(f"the word {words[1]!r} is unknown")
    await actor.client.settle_topic("t", stage.actor(words[0]).pointer, committed=words[1] == "committed")
    return "settled"


def _parts(words: list[str]) -> list[Part]:
    """`t: x y u: z` as the parts of a commit."""
    topics: dict[str, list[bytes]] = {}
    topic = ""
    for word in words:
        if word.endswith(":"):
            topic = word[:-1]
        elif not topic:
            raise Misspelt(f"the word {word!r} is unknown; messages stand behind their topic, as in `t: {word}`")
        else:
            topics.setdefault(topic, []).append(word.encode())
    return [Part("default", topic, PublishRequest(said)) for topic, said in topics.items()]


async def _commits(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    """A transaction; or, where messages are named, an atomic commit whose id is the name of who makes it."""
    if not words and not found:
        if actor.pointer:
            return await _ends("commit", stage, actor)
        if actor.name not in stage.atomic:
            raise Misspelt("it has neither begun a transaction nor staged or committed messages")
    stage.atomic.add(actor.name)
    request = CommitRequest(
        "default" if words or found else None, _parts(words), found.get("branch", "").split(",") if "branch" in found else ()
    )
    if "number" in found:
        request.producer, request.sequence_id = found.get("of", "job"), int(found["number"])
        request.incarnation = found.get("incarnation")
        request.refuses_gaps = "gaps" in found
    outcome = await actor.client.commit_atomic(actor.name, request)
    return outcome.state + (f" of {outcome.original}" if outcome.original else "")


async def _stages(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    stage.atomic.add(actor.name)
    await actor.client.begin_atomic("default", id=actor.name, of=found.get("of"))
    for _, topic, request in _parts(words):
        await actor.client.stage(actor.name, topic, 0, request)
    return "staged"


async def _is(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    if actor.pointer:
        return str((await actor.client.transaction_status(actor.pointer)).state)
    outcome = await actor.client.atomic_outcome(actor.name)
    return outcome.state + (f" ({outcome.reason})" if outcome.reason else "")


async def _reads(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    """What is there behind where it stands: committed messages, unless it says otherwise."""
    request = ConsumeRequest(actor.position, inclusive=False, limit=100, isolation="committed" if "all" not in words else None)
    if "within" in found:
        pointer = stage.actor(found["within"]).pointer
        tx = await actor.client.checkpoint_transaction(pointer)
        request.transaction, request.isolation = tx.to_bytes(), None
    if "for" in found:
        request.wait = int(found["for"]) * 1000
    client = actor.retrying(retry=float(found["retry"])) if "retry" in found else actor.client
    polled = await client.poll(found.get("on", "t"), request)
    if polled.position is not None and "again" not in words:
        actor.position = polled.position
    return " ".join(f"{each['offset']}:{each['payload'].decode() or '(empty)'}" for each in polled.messages) or "nothing"


async def _copies(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    """Publishes what a message of `t` says now, and its properties, on another topic."""
    polled = await actor.client.poll("t", ConsumeRequest(None, start_offset=int(words[0]), inclusive=True, limit=1))
    (each,) = polled.messages
    return await _publish(stage, actor, PublishRequest([each["payload"]], properties=[each["properties"]]), found, numbered=False)


async def _restarts(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    actor.position = None
    return ""


async def _subscribes(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    opened = await actor.client.open_subscription("t", words[0])
    actor.epoch, actor.generation = opened.epoch, opened.generation
    return f"at {opened.cursor}" + (f", {opened.lost} lost" if opened.lost else "")


async def _receives(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    asked = ReceiveMessages(epoch=actor.epoch, limit=100)
    polled = await actor.client.receive("t", words[0], asked)
    return " ".join(f"{each['offset']}:{each['payload'].decode()}" for each in polled.messages) or "nothing"


async def _acks(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    asked = Acknowledge(epoch=actor.epoch, generation=actor.generation, offset=int(words[1]))
    return f"at {await actor.client.acknowledge('t', words[0], asked)}"


async def _creates(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    await actor.client.create_topic(words[0], {"check.expected.offsets": True, **dict(word.split("=") for word in words[1:])})
    return ""


async def _deletes(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    await actor.client.delete_topic(words[0])
    return ""


async def _trims(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    return f"begins at {await actor.client.trim_topic('t', int(words[0]))}"


async def _erases(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    await actor.client.erase_message("t", int(words[0]))
    return "erased"


async def _forgets(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    await actor.client.forget_producer("t", words[0])
    return ""


async def _asks_why(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    why = await actor.client.why("t", actor.name, int(words[0]))
    return why.verdict + ("" if why.offset is None else f" at {why.offset}")


async def _sees(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    """How much is held back, and by whose pointer."""
    names = {each.pointer: each.name for each in stage.actors.values() if each.pointer}
    held = [
        f"{each.messages} from {each.first_offset} on under {names[each.write_pointer]}"
        for each in await actor.client.held_on("t")
    ]
    return ", ".join(held) or "nothing held"


async def _checks(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    *_, verification = [each async for each in actor.client.verify("t")]
    return "ok" if verification.ok else f"problems: {verification.problems}"  # type: ignore[union-attr]


async def _grants(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    created = await actor.client.create_token(words[0], words[1:])
    stage.actors[words[0]] = Actor(stage, words[0], created.secret)
    return ""


async def _revokes(stage: Stage, actor: Actor, words: list[str], found: dict[str, str]) -> str:
    (token,) = [each for each in await actor.client.tokens() if each.name == words[0]]
    await actor.client.revoke_token(token.id)
    return ""


ACTORS: dict[str, Verb[Act]] = {
    "opens": Verb(_opens, "refusing", 0, "on"),
    "resumes": Verb(_opens, "refusing", 0, "on"),
    "sends": Verb(_sends, r"\d+(\.\.\d+)?(=.*)?", 1, "on in at key epoch"),
    "publishes": Verb(_publishes, ".+", 1, "on in at key ttl"),
    "begins": Verb(_begins, r"elsewhere|[\d.]+"),
    "stores": Verb(_stores, ".+", 1, "on"),
    "appears": Verb(_appears, options="on"),
    "commits": Verb(_commits, ".+", 0, "number of incarnation branch gaps"),
    "aborts": Verb(_aborts),
    "invalidates": Verb(partial(_ends, "invalidate")),
    "rolls-back": Verb(_rolls_back),
    "settles": Verb(_settles, NAME, 2),
    "stages": Verb(_stages, ".+", 1, "of"),
    "is": Verb(_is),
    "reads": Verb(_reads, "all|again", 0, "on within for retry"),
    "restarts": Verb(_restarts),
    "copies": Verb(_copies, NUMBER, 1, "on"),
    "subscribes": Verb(_subscribes, NAME, 1),
    "receives": Verb(_receives, NAME, 1),
    "acks": Verb(_acks, NAME, 2),
    "creates": Verb(_creates, ".+", 1),
    "deletes": Verb(_deletes, NAME, 1),
    "trims": Verb(_trims, NUMBER, 1),
    "erases": Verb(_erases, NUMBER, 1),
    "forgets": Verb(_forgets, NAME, 1),
    "why": Verb(_asks_why, NUMBER, 1),
    "sees": Verb(_sees),
    "checks": Verb(_checks),
    "grants": Verb(_grants, ".+", 2),
    "revokes": Verb(_revokes, NAME, 1),
}
