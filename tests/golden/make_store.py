"""Makes a small store, once for each release: `python -m tests.golden.make_store tests/golden/store_0.1`.

What a later version does with it is in tests/storage/test_upgrade.py. Never made again for a version that is out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.rest.talk import Topic
from tests.world.clock import ManualClock
from tests.world.service import running_service

from oncelog import Client, Consumer, Producer

STORES = {"leveldb": "leveldb", "sqlite": "log.sqlite"}
"""Kind → where it lies in the folder."""


def make(folder: Path) -> None:
    """LevelDB and SQLite, and what was answered, in a file of JSON."""
    told = {}
    for kind, name in STORES.items():
        store = f"{kind}://{(folder / name).absolute()}"
        told[kind] = _fill(store)
        with running_service(store, ManualClock()):
            """Opened once more, LevelDB has a table too, and not a log alone."""
    (folder / "told.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


def _fill(store: str) -> dict[str, object]:
    """The clock stands: what expires is not to depend on when a test runs."""
    with running_service(store, ManualClock(), snapshot_messages=4) as service, Client(service.url) as client:
        secret = client.create_token("ada", ["admin"]).secret
        client = Client(service.url, token=secret)
        client.create_topic("t")
        with Producer("t", name="p", codec="str", client=client) as producer:
            receipts = [producer.send(f"p{number}", key=b"k") for number in range(10)]
        with Producer("t", codec="str", client=client) as unnamed:
            unnamed.send("unnamed")
        with Consumer("t", "s", client=client, start="earliest") as consumer:
            consumer.ack(next(iter(consumer)))
        topic = Topic(service.url, create=False)
        topic.session.headers["Authorization"] = f"Bearer {secret}"
        committed, aborted, pending = (client.start_transaction().write_pointer for _ in range(3))
        topic.publish_under(committed, "committed")
        topic.publish_under(aborted, "aborted")
        client.commit_transaction(committed)
        client.abort_transaction(aborted)
        with client.atomic("group", producer="a", sequence_id=7) as batch:
            batch.send("t", b"atomic")
        topic.publish_under(pending, "pending")
        client.close()
        return {
            "secret": secret,
            "ids": [str(receipt.message_id) for receipt in receipts],
            "committed": committed,
            "aborted": aborted,
            "pending": pending,
        }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir()
    make(target)
