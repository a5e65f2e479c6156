"""A receiver of webhooks: many processes, and each delivery is stored once, by its idempotency key.

    pip install fastapi uvicorn
    oncelog serve &
    uvicorn examples.webhook.app:app --port 8000 --workers 4
    curl -H 'idempotency-key: evt_17' -d '{"paid": 17}' localhost:8000/hook        # 201 {"offset": 0}
    curl -H 'idempotency-key: evt_17' -d '{"paid": 17}' localhost:8000/hook        # 200 {"offset": 0}
    curl -H 'idempotency-key: evt_17' -d '{"paid": 18}' localhost:8000/hook        # 422

Who sends a webhook repeats it until it is answered, to any process. So a producer with sequence ids does not help: nobody numbers
the deliveries, and two processes cannot share a name. Here the *key* decides, across all producers: the message's key is the
idempotency key, and it is published on condition that no message has that key yet (``expected_key_offset=None``). The log judges
that in the step in which it gives the message its place, so of any number that come at once, one wins.

* Who loses is told where the winner lies, and answers that: to the sender both are the same delivery. Where the bodies differ it
  is 422, as the draft of the Idempotency-Key header has it: the sender uses a key twice.
* A lost answer is no special case. The SDK repeats the message under its own number, and is told `duplicate`.
* A key is remembered for ever: neither the topic's TTL nor a restart forgets it. That costs the service memory, 470 bytes a key
  as measured with 300,000 keys of 32 characters; a topic for each month, say, bounds it: then a key counts within its month.
* Where the messages need a key of their own, it goes into a property.
* A sender waits for seconds, so a message is tried for as long (`delivery_timeout`); then the sender comes again. Where it stayed
  unknown what became of one, the producer has stopped for good. The key knows, so another producer goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse

from oncelog import AsyncClient, AsyncProducer, AsyncReader, OncelogError, Receipt
from oncelog.errors import OffsetMismatch, ProducerStopped

TOPIC = "hooks"
PATIENCE_SECONDS = 15.0


class Sender:
    """Sends with one producer, and with another one where that has stopped."""

    def __init__(self, client: AsyncClient, ends: AsyncExitStack) -> None:
        """``ends``: closes the producers."""
        self._client = client
        self._ends = ends
        self._turn = asyncio.Lock()
        self._producer: AsyncProducer[bytes] | None = None

    async def send(self, body: bytes, key: str) -> Receipt:
        """Stores a body whose key is new. Raises as `AsyncProducer.send` does."""
        producer = self._producer or await self._instead_of(None)
        try:
            return await producer.send(body, key=key, expected_key_offset=None)
        except ProducerStopped:  # before this one was sent
            producer = await self._instead_of(producer)
            return await producer.send(body, key=key, expected_key_offset=None)

    async def _instead_of(self, stopped: AsyncProducer[bytes] | None) -> AsyncProducer[bytes]:
        async with self._turn:
            if self._producer is None or self._producer is stopped:
                made = AsyncProducer(TOPIC, client=self._client, delivery_timeout=PATIENCE_SECONDS)
                self._producer = await self._ends.enter_async_context(made)
            return self._producer


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    """From the start of the process to its end."""
    async with AsyncClient() as client, AsyncExitStack() as ends:
        await client.create_topic(TOPIC, {"check.expected.offsets": True}, exist_ok=True)
        app.state.client, app.state.sender = client, Sender(client, ends)
        yield


async def receive(request: Request, idempotency_key: str = Header(max_length=200)) -> JSONResponse:
    """Answers when the delivery is on disk: 201 if it is this one, 200 if it is there already."""
    body = await request.body()
    try:
        receipt = await request.app.state.sender.send(body, idempotency_key)
    except OffsetMismatch as mismatch:
        if mismatch.actual is None or mismatch.condition != "key_offset":
            raise
        if await stored(request.app.state.client, mismatch.actual) not in (body, None):
            return JSONResponse({"error": "this key was used for another body"}, 422)
        return JSONResponse({"offset": mismatch.actual}, 200)
    return JSONResponse({"offset": receipt.offset}, 201)


async def stored(client: AsyncClient, offset: int) -> bytes | None:
    """The body at this offset; None where it has expired, and is not compared."""
    async with AsyncReader(TOPIC, client=client, start=offset, inclusive=True, on_expired="skip") as reader:
        messages = await reader.read(1, timeout=0)
    return messages[0].payload if messages and messages[0].offset == offset else None


async def failed(_: Request, error: Exception) -> JSONResponse:
    """Has the sender come again: under the same key, nothing is stored twice."""
    return JSONResponse({"code": error.code if isinstance(error, OncelogError) else "unknown"}, 503, {"retry-after": "1"})


def receiver() -> FastAPI:
    """One process of the receiver."""
    made = FastAPI(lifespan=life)
    made.post("/hook")(receive)
    made.add_exception_handler(OncelogError, failed)
    return made


app = receiver()
