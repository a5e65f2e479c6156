"""A web service that writes to a topic and reads from it, on one event loop.

    pip install fastapi uvicorn
    oncelog serve &
    uvicorn examples.fastapi_service.app:app --port 8000
    curl -d '{"celsius": 20.4}' -H 'content-type: application/json' localhost:8000/readings      # {"offset": 0}
    curl 'localhost:8000/readings?first=0&wait=10'                                 # [{"offset": 0, "celsius": 20.4}]

What the SDK asks of such a service:

* Client and producer are made once, when the service starts, and closed when it stops: leaving the blocks waits for what is
  unsent.
* Each request awaits its own message. What comes while a request to the log is under way goes together in the next one, so that a
  hundred visitors at once cost a few writes, and each is answered when its message is on disk.
* A visitor who hangs up may have the task cancelled, at any await: a message that has its number is on its way all the same, and
  one that has none is not sent. Whoever wants to send it again safely gives it a name of its own: see examples/webhook.
* A reader belongs to one task. To make one for a request costs nothing before it asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from oncelog import AsyncClient, AsyncProducer, AsyncReader, OncelogError

TOPIC = "readings"
LONGEST_SECONDS = 20.0


class Reading(BaseModel):
    """What a visitor has measured."""

    celsius: float


class Stored(Reading):
    """A reading, and where it lies."""

    offset: int


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    """From the start of the service to its end."""
    async with AsyncClient() as client:
        await client.create_topic(TOPIC, exist_ok=True)
        async with AsyncProducer(TOPIC, client=client, codec=Reading) as producer:
            app.state.client, app.state.producer = client, producer
            yield


app = FastAPI(lifespan=life)


def client_of(request: Request) -> AsyncClient:
    """The client that lives as long as the service."""
    client: AsyncClient = request.app.state.client
    return client


def producer_of(request: Request) -> AsyncProducer[Reading]:
    """The producer that lives as long as the service."""
    producer: AsyncProducer[Reading] = request.app.state.producer
    return producer


@app.post("/readings", status_code=201)
async def write(reading: Reading, producer: Annotated[AsyncProducer[Reading], Depends(producer_of)]) -> Stored:
    """Answers when the reading is on disk."""
    receipt = await producer.send(reading)
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
