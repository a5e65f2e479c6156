"""The bare baseline: the same server, the same group commit, the same rows, and nothing else.

No deduplication, no offsets, no receipts, no checksums: each request's messages become LevelDB rows under a running number. What
oncelog costs on top is measured against this, in the same run on the same machine.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Any

import fastavro
import plyvel
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from oncelog.wire.codec import avro_source
from oncelog.wire.media import ONCELOG_AVRO

_SCHEMA = fastavro.parse_schema(avro_source(ONCELOG_AVRO, "PublishRequest"))


class Log:
    """Rows under a running number; one thread writes all that waits in one synced batch."""

    def __init__(self, path: str) -> None:
        self.db = plyvel.DB(path, create_if_missing=True, write_buffer_size=16 * 2**20)
        self.next = 0
        self.queue: SimpleQueue[tuple[list[tuple[bytes, bytes]], asyncio.Future[None]]] = SimpleQueue()
        self.loop = asyncio.get_running_loop()
        threading.Thread(target=self.write, daemon=True).start()

    def submit(self, payloads: list[bytes]) -> asyncio.Future[None]:
        pack = struct.Struct(">Q").pack
        rows = [(pack(number), payload) for number, payload in enumerate(payloads, self.next)]
        self.next += len(payloads)
        done: asyncio.Future[None] = self.loop.create_future()
        self.queue.put((rows, done))
        return done

    def write(self) -> None:
        while True:
            group = [self.queue.get()]
            try:
                while True:
                    group.append(self.queue.get_nowait())
            except Empty:
                pass
            with self.db.write_batch(transaction=True, sync=True) as batch:
                for rows, _ in group:
                    for key, value in rows:
                        batch.put(key, value)
            self.loop.call_soon_threadsafe(self.written, group)

    @staticmethod
    def written(group: list[Any]) -> None:
        for _, done in group:
            done.set_result(None)


async def serve(path: str, port: int) -> None:
    log = Log(path)

    async def publish(request: Request) -> Response:
        record: Any = fastavro.schemaless_reader(BytesIO(await request.body()), _SCHEMA, None)
        await log.submit(record["messages"])
        return Response(b"\x00")

    app = Starlette(routes=[Route("/publish", publish, methods=["POST"])])
    config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None)
    listener = socket.create_server(("127.0.0.1", port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    import uvloop

    sys.setswitchinterval(0.001)
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
