"""kill -9 under tasks of one event loop: of the loader and of the service, at any moment; each row is there once, in order."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncelog import Client, Reader
from tests.patience import PATIENCE, until
from tests.world.crash import seeded
from tests.world.service import ServiceProcess

ROWS = 6_000
KILLS = 8
LOADER = f"""
import asyncio, sys
from oncelog import AsyncProducer

async def load():
    async with AsyncProducer("t", name="loader", batch_max_messages=4, delivery_timeout=120) as producer:
        rows = producer.resume(range({ROWS}), sequence_id=lambda row: row)
        waiting = set()
        for row in rows:
            # Tasks that begin in one order take their numbers in it; each awaits its own message.
            waiting.add(asyncio.create_task(producer.send(b"%d" % row, sequence_id=row)))
            if len(waiting) == 64:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        await asyncio.gather(*waiting)

asyncio.run(load())
"""


def test_whatever_is_killed_each_row_is_there_once_and_in_order(tmp_path: Path) -> None:
    with seeded() as random, ServiceProcess(tmp_path / "data") as service, Client(service.url, retry=PATIENCE) as client:
        client.create_topic("t")
        for kill in range(KILLS):
            upto = client.stats("t").upcoming_offset + random.randrange(1, ROWS // KILLS - 100)
            with loading(service) as loader:
                until(lambda upto=upto: client.stats("t").upcoming_offset >= upto)  # type: ignore[misc]
                if kill % 2:
                    service.kill()
                    service.start()
                    time.sleep(random.random() / 10)
                loader.kill()
        with loading(service) as loader:
            assert loader.wait(PATIENCE) == 0
        with Reader("t", client=client, timeout=0) as reader:
            assert [(message.sequence_id, message.payload) for message in reader] == [(row, b"%d" % row) for row in range(ROWS)]
        *_, verification = client.verify("t")
        assert getattr(verification, "ok", False)


@contextmanager
def loading(service: ServiceProcess) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", LOADER], env={**os.environ, "ONCELOG_URL": service.url}) as loader:
        try:
            yield loader
        finally:
            loader.kill()
