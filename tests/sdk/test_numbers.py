"""Every number that a caller gives is judged where it is given: by its name, before anything is asked of the service."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest
from sqlalchemy import create_engine

import oncelog
from oncelog import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    Client,
    Consumer,
    Outbox,
    OutboxRelay,
    Producer,
    Reader,
    SqlParticipant,
)
from oncelog.errors import InvalidRequest
from oncelog.http.transport import Requests
from oncelog.testing import Recorder
from oncelog.wire.models import Acknowledge
from tests.sdk.test_frames import elsewhere
from tests.world.awaits import event_loop
from tests.world.service import RunningService

pytestmark = pytest.mark.filterwarnings("ignore:.* is called .* now:DeprecationWarning")

NEVER = [True, "1", nan, inf, -inf, 10**30, -(10**30), Decimal(1), timedelta(seconds=1)]
"""No argument takes these."""
ABOVE_ZERO = {
    "ack_interval", "attempts", "batch_max_bytes", "batch_max_messages", "limit", "lock_timeout", "max_bytes", "max_pending",
    "max_pending_bytes", "page_size", "poll_seconds", "takeover_seconds", "ttl", "write_pointer", "write_pointers",
}  # fmt: skip
"""These do not take 0; nor does the ``timeout`` of a client."""
REQUIRED: dict[str, Any] = {
    **dict.fromkeys(["at", "before", "chunk", "first", "sequence_id", "start", "to"], 0),
    **dict.fromkeys(["epoch", "under", "upto", "write_pointer"], 1),
    "asked": Acknowledge(epoch=1),
    "changes": (),
    "committed": True,
    "function": lambda tx: None,
    "outbox": Outbox("o"),
    "rows": [0],
    "topics": {},
    "write_pointers": [1],
    **dict.fromkeys(["payload", "value"], b"x"),
    "values": [b"x"],
}
"""For the arguments without a default, by their names; for others a text."""
NOT_ASKED = {"Receipt", "MessageId"}
"""Values: the SDK alone makes the one; the fields of the other have sizes."""


class Reached(BaseException):
    """Something was asked of the service."""


def numbers_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Its arguments that take a number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return []  # an exception's
    return [each for each in parameters if re.search(r"\b(int|float|Start)\b", str(each.annotation))]


def taking_numbers(kind: type[Any]) -> list[str]:
    """Its public methods that take a number, and what makes one."""
    methods = [name for name, each in inspect.getmembers(kind, callable) if not name.startswith("_") and numbers_of(each)]
    return ["__call__", *methods] if numbers_of(kind) else methods


def wrong(parameter: inspect.Parameter) -> Iterator[Any]:
    """What such an argument is not to be, as it would be given."""
    annotation = str(parameter.annotation)
    above_zero = parameter.name in ABOVE_ZERO or (parameter.name == "timeout" and annotation == "float")
    values = [*NEVER, *([] if "None" in annotation else [None]), *([] if "float" in annotation else [1.5])]
    for value in (*values, *([] if parameter.name == "under" else [-1]), *([0] if above_zero else [])):
        if "Callable" in annotation:
            yield lambda _, value=value: value
        else:
            yield [value] if re.search(r"(Sequence|Collection)\[int", annotation) else value


async def unjudged(one: Any, **more: Any) -> list[str]:
    """The arguments that took what is no number for them, and what came of it. ``more``: is given beside, where it is taken."""
    kind, found = type(one), list[str]()
    for method in taking_numbers(kind):
        function = kind if method == "__call__" else getattr(one, method)
        for parameter in numbers_of(function):
            for value in wrong(parameter):
                came = await came_of(function, parameter.name, value, more)
                if came is not None:
                    found.append(f"{kind.__name__}.{method}({parameter.name}={value!r}): {came}")
    return found


async def came_of(function: Callable[..., Any], name: str, value: Any, more: dict[str, Any]) -> str | None:
    """What came of the call; None: the error that names the argument."""
    parameters = inspect.signature(function).parameters.values()
    given = {each.name: more[each.name] for each in parameters if each.name in more} | {name: value}
    for each in parameters:
        if each.default is each.empty and each.kind is not each.VAR_POSITIONAL and each.name not in given:
            given[each.name] = REQUIRED.get(each.name, "n")
    try:
        answer = function(**given)
        answer = await answer if inspect.isawaitable(answer) else answer
        return repr([*answer] if inspect.isgenerator(answer) else answer)
    except (TypeError, ValueError, InvalidRequest) as error:
        if len(elsewhere(error)) > 1 + hasattr(function, "__deprecated__"):
            return f"{elsewhere(error)}: {error!r}"
        return None if ("start" if name == "to" else name.removesuffix("s")) in str(error) else repr(error)
    except (Exception, Reached) as error:
        return repr(error)


def reached(*_: Any) -> Any:
    raise Reached


def test_every_public_argument_that_takes_a_number_is_judged(house: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    async def swept(ones: list[Any], **given: Any) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(Requests, "_send", reached)
            return [each for one in ones for each in await unjudged(one, **given)]

    async def of_the_loop() -> tuple[list[Any], list[str]]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(AsyncClient(house.url))
            producer = await stack.enter_async_context(AsyncProducer[bytes]("t", name="of-loop", client=client))
            reader, consumer = AsyncReader[bytes]("t", client=client), AsyncConsumer[bytes]("t", "u", client=client)
            ones: list[Any] = [reader, consumer, client.transaction(), client.atomic(), client.atomic_branch("i")]
            for each in ones:
                await stack.enter_async_context(each)
            ones += [client, producer]
            return ones, await swept(ones, client=client, producer=producer, key=b"k")

    engine = create_engine("sqlite://")
    with ExitStack() as stack, event_loop() as loop:
        client = stack.enter_context(Client(house.url))
        client.create_topic("t")
        client.begin_atomic(id="i")
        producer = stack.enter_context(Producer[bytes]("t", name="of-threads", client=client))
        reader, consumer = Reader[bytes]("t", client=client), Consumer[bytes]("t", "s", client=client)
        ones: list[Any] = [reader, consumer, client.transaction(), client.atomic(), client.atomic_branch("i")]
        for each in ones:
            stack.enter_context(each)
        relay, participant = OutboxRelay(Outbox("o"), engine), SqlParticipant(engine, "r")
        ones += [client, producer, relay, participant, Outbox("o"), Recorder(client, "t")]
        others, found = loop.run(of_the_loop())
        found += loop.run(swept(ones, client=client, producer=producer, key=b"k", database=engine))
    kinds = {type(each) for each in (*ones, *others)}
    public = {name: getattr(oncelog, name) for name in oncelog.__all__ if name not in NOT_ASKED}
    assert [name for name, kind in public.items() if inspect.isclass(kind) and kind not in kinds and taking_numbers(kind)] == []
    assert "\n".join(found) == ""


class Planted:
    """Takes numbers, and judges one of them."""

    def __init__(self, linger: float = 0.0, most: int = 1) -> None:
        if type(linger) is not float or not 0 <= linger <= 1:
            raise ValueError("linger is 0 to 1 s")
        self.most = most

    async def wait(self, seconds: float | None = None) -> float:
        return max(0.0, seconds or 0.0)

    def ask(self, offset: int) -> None:
        if offset < 0:
            raise ValueError("that is too small")
        reached()


@pytest.mark.parametrize("planted", ["__call__(most=1.5)", "wait(seconds=nan)", "ask(offset=True)", "ask(offset=-1)"])
def test_the_sweep_finds_what_is_not_judged(planted: str) -> None:
    found = asyncio.run(unjudged(Planted(), offset=0))
    assert any(each.startswith(f"Planted.{planted}") for each in found)
    assert not any("linger" in each for each in found)
