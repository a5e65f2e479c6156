"""What removes messages in a simulated world, and what is removed there."""

from __future__ import annotations

import asyncio

from oncelog import AsyncClient
from oncelog.errors import MessagesExpired, OffsetOutOfRange
from oncelog.wire.models import TopicAsked
from tests.simulation.pipeline import rows
from tests.simulation.worlds import RECORDS, Client, World


class Keeper(Client):
    """Trims and erases: what it was told is gone is given to nobody who asks from then on."""

    def __init__(self, world: World, name: str, removals: int) -> None:
        super().__init__(world, name)
        self._left = removals

    async def life(self) -> None:
        async with self.world.client() as client:
            while self._left:
                await asyncio.sleep(self.random.expovariate(0.3))
                known = (await client.offsets({RECORDS: TopicAsked()}))[RECORDS]
                if known.earliest < known.stable:
                    offset = self.random.randrange(known.earliest, known.stable)
                    await self.random.choice([self._trim, self._erase, self._erase])(client, offset)
                self._left -= 1

    async def _trim(self, client: AsyncClient, offset: int) -> None:
        before = min(offset, self.world.history.trimmed.get(RECORDS, 0) + 20)
        self.world.history.trims(RECORDS, before)
        earliest = await client.trim_topic(RECORDS, before)
        assert earliest >= before, f"trimmed to {before}, and the log begins at {earliest}"
        self.world.history.gone_below[RECORDS] = max(before, self.world.history.gone_below.get(RECORDS, 0))
        try:
            page = await client.read_columns(RECORDS, 0, before + 1)
        except OffsetOutOfRange:
            return
        assert page.next > before
        assert all(each.offset >= before for each in rows(page)), f"{page} is given, and was trimmed to {before}"

    async def _erase(self, client: AsyncClient, offset: int) -> None:
        self.world.history.erases(RECORDS, offset)
        try:
            await client.erase_message(RECORDS, offset)
            page = await client.read_columns(RECORDS, offset, offset + 1)
        except (MessagesExpired, OffsetOutOfRange):
            return  # it was trimmed
        assert [each.payload for each in rows(page)] in ([], [b""]), f"{page} is given, and {offset} was erased"
        self.world.history.erased.add((RECORDS, offset))
