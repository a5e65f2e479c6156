"""Clients of a simulated world that may do something only for a while."""

from __future__ import annotations

import asyncio

from oncelog import AsyncClient
from oncelog.errors import OncelogError, Unauthorized
from oncelog.values.receipt import Receipts
from oncelog.wire.requests import PublishRequest
from tests.simulation.worlds import TOPICS, Client, World

ELSEWHERE_SECONDS = 1.0
"""After so long a token that was revoked at one instance is refused at the others."""


class Guest(Client):
    """Publishes with a token until that is revoked: whatever it asks from then on is refused, and is not there."""

    def __init__(self, world: World, name: str, tokens: int) -> None:
        super().__init__(world, name)
        self._tokens, self._revoked = tokens, 0
        self._sent = 0

    async def life(self) -> None:
        async with self.world.client() as root:
            while self._revoked < self._tokens:
                token = await root.create_token(self.name, [f"write:default/{TOPICS[0]}"])
                over = asyncio.Event()
                async with self.world.client(token=token.secret) as client:
                    publishing = asyncio.ensure_future(self._publish(client, over))
                    try:
                        await asyncio.sleep(self.random.expovariate(0.5))
                        await root.revoke_token(token.id)
                        await asyncio.sleep(ELSEWHERE_SECONDS if len(self.world.instances) > 1 else 0)
                        over.set()
                        await publishing
                    finally:
                        publishing.cancel()
                self._revoked += 1

    async def _publish(self, client: AsyncClient, over: asyncio.Event) -> None:
        """Until it is refused."""
        history = self.world.history
        while True:
            said, self._sent = b"%s:%d" % (self.name.encode(), self._sent), self._sent + 1
            group = history.begin(said.decode(), [history.message(TOPICS[0], said)])
            was_over = over.is_set()
            try:
                (receipt,) = Receipts(await client.publish(TOPICS[0], PublishRequest([said])))
            except Unauthorized:
                history.decided(group, "gone")
                return
            except OncelogError as error:
                self.world.met(self.name, error)
                if error.definite:
                    history.decided(group, "gone")
            else:
                assert not was_over, f"{self.name} has published {said!r} with a token that was revoked"
                history.decided(group, "there")
                history.received(group.messages[0], receipt.offset, bytes(receipt.message_id))
            await asyncio.sleep(self.random.expovariate(2))
