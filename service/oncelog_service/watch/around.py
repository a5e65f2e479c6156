"""Asks the other instances over the same store what is wrong with them, and looks for those that are gone without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pydantic import ValidationError

from oncelog.errors import OncelogError
from oncelog.wire.overview import Alarm, Alarms
from oncelog_service.clock import Clock
from oncelog_service.cluster.membership import Membership
from oncelog_service.storage.port import Instance
from oncelog_service.watch.facts import Member

ANSWER_SECONDS = 2.0
"""Until another instance must have said what is wrong with it: it judges that at once, and waits a second at most for others."""
OF_THE_STORE = frozenset({"token_ends", "store_restored"})
"""What all instances say alike, since it is in the store that they share."""

Ask = Callable[[str, str], Awaitable[object]]
"""(URL of an instance, what to get there) → the JSON that it answers. Raises OncelogError."""


class Around(NamedTuple):
    """The other instances, and what they say."""

    members: tuple[Member, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    topics_seen: int = 0


async def look_around(membership: Membership, ask: Ask, clock: Clock) -> Around:
    """Asks all of them at once. Raises StorageUnavailable: the database does not say who is there."""
    instances, held = await membership.overview()
    others = [each for each in instances if each.id != membership.id]
    answers = await asyncio.gather(*(_asked(each, ask, clock) for each in others))
    gone = [Member(id, url, False, leases) for id, url, leases in membership.missing(instances, held)]  # noqa: A001
    return Around(
        (*(member for member, _ in answers), *gone),
        tuple(alarm for _, told in answers if told is not None for alarm in told.alarms),
        sum(told.topics_seen for _, told in answers if told is not None),
    )


async def _asked(instance: Instance, ask: Ask, clock: Clock) -> tuple[Member, Alarms | None]:
    member = Member(instance.id, instance.url, True)
    began_ms = clock.now_ms()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            told = Alarms.model_validate(await ask(instance.url, "/v1/alarms?here=true"))
    except (OncelogError, TimeoutError, ValidationError):
        return member._replace(answers=False), None
    # It looked at its clock between the two: what lies outside of that is the least that they are apart.
    ahead, behind = told.now_ms - clock.now_ms(), began_ms - told.now_ms
    told = told.model_copy(update={"alarms": [each.model_copy(update={"instance": instance.url}) for each in told.alarms]})
    return member._replace(apart_ms=max(ahead, 0) or -max(behind, 0)), told
