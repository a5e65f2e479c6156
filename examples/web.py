"""A web service that writes to a topic and reads from it, on one event loop (Starlette; any framework with a life cycle will do).

    pip install starlette uvicorn
    oncelog serve &
    uvicorn examples.web:app --port 8000
    curl -d '20.4' localhost:8000/readings                   # {"offset": 0}
    curl 'localhost:8000/readings?first=0&wait=10'           # [{"offset": 0, "value": "20.4"}]

What the SDK asks of such a service:

* Client and producer are made once, when the service starts, and closed when it stops: leaving the blocks waits for what is
  unsent.
* Each request awaits its own message. What comes while a request to the log is under way goes together in the next one, so that a
  hundred visitors at once cost a few writes, and each is answered when its message is on disk.
* A visitor who hangs up may have the task cancelled, at any await: a message that has its number is on its way all the same, and
  one that has none is not sent. Whoever wants to send it again safely gives it a name of its own: a key, or a sequence id.
* A reader belongs to one task. To make one for a request costs nothing before it asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncelog import AsyncClient, AsyncProducer, AsyncReader, OncelogError

TOPIC = "readings"
LONGEST_SECONDS = 20.0


@asynccontextmanager
async def life(_: Starlette) -> AsyncIterator[dict[str, Any]]:
    """From the start of the service to its end."""
    async with AsyncClient() as client:
        await client.create_topic(TOPIC, exist_ok=True)
        async with AsyncProducer(TOPIC, client=client, codec="str") as producer:
            yield {"client": client, "producer": producer}


async def write(request: Request) -> JSONResponse:
    """Answers when the reading is on disk."""
    producer: AsyncProducer[str] = request.state.producer
    receipt = await producer.send((await request.body()).decode())
    return JSONResponse({"offset": receipt.offset}, 201)


async def read(request: Request) -> JSONResponse:
    """Answers what there is from an offset on, or what comes within ``wait`` seconds."""
    first, wait = int(request.query_params.get("first", 0)), float(request.query_params.get("wait", 0))
    async with AsyncReader(TOPIC, client=request.state.client, start=first, codec="str") as reader:
        messages = await reader.read(100, timeout=min(wait, LONGEST_SECONDS))
    return JSONResponse([{"offset": message.offset, "value": message.value} for message in messages])


async def failed(_: Request, error: Exception) -> JSONResponse:
    """Says whether it is certain that nothing was written."""
    assert isinstance(error, OncelogError)
    return JSONResponse({"code": error.code, "definite": error.definite}, 503)


app = Starlette(
    routes=[Route("/readings", write, methods=["POST"]), Route("/readings", read)],
    exception_handlers={OncelogError: failed},
    lifespan=life,
)
