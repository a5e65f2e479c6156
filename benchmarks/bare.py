"""The bare baseline: the same server, the same group commit, the same rows, and nothing else.

No deduplication, no offsets, no receipts, no checksums: each request's messages become LevelDB rows under a running number. What
oncelog costs on top is measured against this, in the same run on the same machine.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import sys
import threading
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Any

import fastavro
import plyvel

from oncelog.errors import NotFound
from oncelog.wire.codec import avro_source
from oncelog.wire.media import ONCELOG_AVRO
from oncelog_service.app import listen
from oncelog_service.background import Background
from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.exchange import Admitted, Head
from oncelog_service.rest.server import Server

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


class Bare:
    """Whatever the address, what is posted is a publish."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def admit(self, head: Head, address: object = None) -> Admitted:
        if head.method != "POST":
            raise NotFound
        return Admitted(self._publish, reads=False)

    async def _publish(self, body: bytes) -> Answer:
        record: Any = fastavro.schemaless_reader(BytesIO(body), _SCHEMA, None)
        await self._log.submit(record["messages"])
        return Answer(b"\x00", ONCELOG_AVRO)


async def serve(path: str, port: int) -> None:
    settings, clock = Settings(port=port, store="memory://"), SystemClock()
    server = Server(Bare(Log(path)), settings, Background(clock), clock)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    await server.run(listen(settings), lambda: None, lambda: None)


if __name__ == "__main__":
    import uvloop

    sys.setswitchinterval(0.0002)
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
