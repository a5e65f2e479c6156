"""A web service that writes to a topic and reads from it, on one event loop.

    pip install fastapi uvicorn
    oncelog serve &
    uvicorn examples.fastapi_service.app:app --port 8000
    curl -d '{"celsius": 20.4}' -H 'content-type: application/json' localhost:8000/readings      # {"offset": 0}
    curl 'localhost:8000/readings?first=0&wait=10'                                 # [{"offset": 0, "celsius": 20.4}]

What the SDK asks of such a service:

* Client and producer are made once, when the service starts, and closed when it stops: leaving the blocks waits for what is
  unsent. A producer that has stopped – it is fenced, or nobody knows what became of a message – sends nothing any more, for good:
  who sent that one is told so, and another producer sends what comes then.
* Each request awaits its own message. What comes while a request to the log is under way goes together in the next one, so that a
  hundred visitors at once cost a few writes, and each is answered when its message is on disk.
* A visitor who hangs up may have the task cancelled, at any await: a message that has its number is on its way all the same, and
  one that has none is not sent. Whoever wants to send it again safely gives it a name of its own: see examples/webhook.
* A reader belongs to one task. To make one for a request costs nothing before it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from oncelog import AsyncClient, AsyncProducer, AsyncReader, OncelogError, Receipt
from oncelog.errors import ProducerStopped

TOPIC = "readings"
LONGEST_SECONDS = 20.0
PATIENCE_SECONDS = 15.0


class Reading(BaseModel):
    """What a visitor has measured."""

    celsius: float


class Stored(Reading):
    """A reading, and where it lies."""

    offset: int


class Sender:
    """Sends with one producer, and with another one where that has stopped."""

    def __init__(self, client: AsyncClient, ends: AsyncExitStack) -> None:
        """``ends``: closes the producers."""
        self._client = client
        self._ends = ends
        self._turn = asyncio.Lock()
        self._producer: AsyncProducer[Reading] | None = None

    async def send(self, reading: Reading) -> Receipt:
        """Raises as `AsyncProducer.send` does."""
        producer = self._producer or await self._instead_of(None)
        try:
            return await producer.send(reading)
        except ProducerStopped:  # before this one was sent
            producer = await self._instead_of(producer)
            return await producer.send(reading)

    async def _instead_of(self, stopped: AsyncProducer[Reading] | None) -> AsyncProducer[Reading]:
        async with self._turn:
            if self._producer is None or self._producer is stopped:
                made = AsyncProducer(TOPIC, client=self._client, codec=Reading, delivery_timeout=PATIENCE_SECONDS)
                self._producer = await self._ends.enter_async_context(made)
            return self._producer


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    """From the start of the service to its end."""
    async with AsyncClient() as client, AsyncExitStack() as ends:
        await client.create_topic(TOPIC, exist_ok=True)
        app.state.client, app.state.sender = client, Sender(client, ends)
        yield


app = FastAPI(lifespan=life)


def client_of(request: Request) -> AsyncClient:
    """The client that lives as long as the service."""
    client: AsyncClient = request.app.state.client
    return client


def sender_of(request: Request) -> Sender:
    """The sender that lives as long as the service."""
    sender: Sender = request.app.state.sender
    return sender


@app.post("/readings", status_code=201)
async def write(reading: Reading, sender: Annotated[Sender, Depends(sender_of)]) -> Stored:
    """Answers when the reading is on disk."""
    receipt = await sender.send(reading)
    assert receipt.offset is not None
    return Stored(celsius=reading.celsius, offset=receipt.offset)


@app.get("/readings")
async def read(
    client: Annotated[AsyncClient, Depends(client_of)],
    first: Annotated[int, Query(ge=0)] = 0,
    wait: Annotated[float, Query(ge=0)] = 0,
) -> list[Stored]:
    """Answers what there is from an offset on, or what comes within ``wait`` seconds."""
    async with AsyncReader(TOPIC, client=client, start=first, codec=Reading) as reader:
        messages = await reader.read(100, timeout=min(wait, LONGEST_SECONDS))
    return [Stored(celsius=message.value.celsius, offset=message.offset) for message in messages]


@app.exception_handler(OncelogError)
async def failed(_: Request, error: OncelogError) -> JSONResponse:
    """Says whether it is certain that nothing was written."""
    return JSONResponse({"code": error.code, "definite": error.definite}, 503)
