"""Reads what is committed from a service of an older version, whose polls do not know how.

It says up to where a topic is stable (``offsets``), and below that a transaction that sees everything which is not rolled back
sees what is committed. So a page that was asked for behind such an answer is cut there: a request more, where a page reaches it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from oncelog.api.api import AnyApi, clock_of
from oncelog.errors import NotFound, NotSupported, OncelogError, TopicNotFound
from oncelog.process.procedures import answer_of
from oncelog.wire.isolation import COMMITTED, Held
from oncelog.wire.models import TopicAsked, TopicOffsets
from oncelog.wire.requests import ConsumeRequest, Polled
from oncelog.wire.transaction import SETTLED

_SEES_SETTLED = SETTLED.to_bytes()
_HELD_SECONDS = 5.0
"""How long one request waits at most where something undecided holds it up, as newer services do (log/read/polls.py)."""


class OlderService:
    """Polls of one topic, there."""

    def __init__(self, client: AnyApi, topic: str, namespace: str) -> None:
        self._client, self._topic, self._namespace = client, topic, namespace
        self._stable: tuple[int | None, int] = None, -1
        """A generation, and an offset up to which it is known to be stable."""
        self.is_replaced = False
        """Whether a newer version has answered."""

    async def poll(self, asked: ConsumeRequest) -> Polled:
        """What a newer service answers to this. Raises NotSupported: the service is older still, and says no stable offsets."""
        clock = clock_of(self._client)
        end = clock.monotonic() + (asked.wait or 0) / 1000
        request = replace(asked, isolation=None, transaction=_SEES_SETTLED, wait=None)
        while True:
            if self._stable[1] < 0:
                await self._ask_stable(None, 0)
            polled = await answer_of(self._client.poll, self._topic, request, self._namespace)
            generation, stable = self._stable
            if generation != polled.generation:
                stable = -1
            below = [each for each in polled.messages if each["offset"] < stable]
            self.is_replaced = polled.isolation is not None
            if len(below) == len(polled.messages) and polled.position is not None:
                return polled._replace(isolation=COMMITTED)
            if below:
                return polled._replace(messages=below, position=below[-1]["id"], isolation=COMMITTED)
            left = max(0.0, end - clock.monotonic())
            wait = min(left, _HELD_SECONDS) if polled.messages else left
            if await self._ask_stable(None if stable < 0 else stable, wait) == (polled.generation, stable):
                held = await self._held() if polled.messages else None
                return Polled([], None, polled.generation, stable, isolation=COMMITTED, held=held)

    async def _ask_stable(self, after: int | None, wait: float) -> tuple[int | None, int]:
        """Ask up to where it is stable, once that is behind ``after`` or the time is over."""
        found = await stable_offsets(self._client, self._topic, self._namespace, after, wait)
        self._stable = found.generation, found.stable
        return self._stable

    async def _held(self) -> Held | None:
        with suppress(OncelogError):  # only who operates may ask
            for each in await answer_of(self._client.held_on, self._topic, self._namespace, 1):
                return Held(each.first_offset, each.write_pointer, each.since_ms, int(clock_of(self._client).time() * 1000))
        return None


async def stable_offsets(client: AnyApi, topic: str, namespace: str, after: int | None = None, wait: float = 0.0) -> TopicOffsets:
    """Up to where a topic is stable, once that is behind ``after`` or the time is over.

    Raises NotSupported: the service is older still.
    """
    try:
        return (await answer_of(client.offsets, {topic: TopicAsked(after=after)}, namespace, wait=wait))[topic]
    except TopicNotFound:
        raise
    except NotFound as error:
        raise NotSupported(
            "this service is of a version that cannot say what is committed: replace it, or read with "
            'isolation="uncommitted", which is given what is not decided or was rolled back, too'
        ) from error
