"""What importing the SDK loads and what it does not, and what a strict type checker makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import AsyncClient, AsyncProducer, Client, Consumer, Producer, Reader
from tests.docs.pages import ROOT
from tests.patience import PATIENCE

HEAVY = ("sqlalchemy", "pyspark", "uvloop", "plyvel", "typer", "rich", "prometheus_client", "pydantic_settings", "opentelemetry")


def loaded_by(statement: str) -> set[str]:
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    return set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=PATIENCE).stdout))


@pytest.mark.real
def test_importing_the_sdk_loads_nothing_of_the_service_and_no_extra() -> None:
    loaded = loaded_by("import oncelog, threading\noncelog.Producer, oncelog.Client\nassert threading.active_count() == 1")
    assert "oncelog" in loaded
    assert not loaded & {*HEAVY, "oncelog_service", "oncelog_dedup"}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Producer("t", acks="all"), r"^Producer\(\) got an unexpected keyword argument 'acks'"),
        (lambda: Consumer("t"), r"^Consumer\(\) missing 1 required positional argument: 'subscription'"),
        (lambda: Reader("t", group="g"), r"^Reader\(\) got an unexpected"),
        (lambda: Client(servers="localhost"), r"^Client\(\) got an unexpected"),  # type: ignore[call-arg]
        (lambda: AsyncClient(servers="localhost"), r"^AsyncClient\(\) got an unexpected"),  # type: ignore[call-arg]
        (
            lambda: Producer({"bootstrap.servers": "localhost:9092"}),
            r"^Producer\(topic, …\) takes the name of one topic, not a dict$",
        ),
        (lambda: Client().create_topic("t", partitions=3), r"^Client.create_topic\(\) got an unexpected"),  # type: ignore[call-arg]
        (lambda: Client().create_token("t"), r"^Client.create_token\(\) missing 1 required positional argument: 'grants'"),  # type: ignore[call-arg]
        (lambda: Client().all_stats(limit=1), r"^Client.all_stats\(\) got an unexpected"),  # type: ignore[call-arg]
        (lambda: AsyncClient().create_topic("t", partitions=3).send(None), r"^AsyncClient.create_topic\(\) got an unexpected"),  # type: ignore[call-arg]
        (lambda: Client().transaction().send("t", b"", expected_offset=5), r"^TransactionContext.send\(\) got an unexpected"),  # type: ignore[call-arg]
        (lambda: Client().atomic().send("t", b"", topic="u"), r"^AtomicBatch.send\(\) got multiple values for argument 'topic'"),
        (lambda: Client().transaction().start(timeout=1), r"^TransactionContext.start\(\) got an unexpected"),  # type: ignore[call-arg]
        (lambda: Client().atomic_branch(), r"^Client.atomic_branch\(\) missing 1 required"),  # type: ignore[call-arg]
        (lambda: AsyncClient().transaction(short=True), r"^AsyncClient.transaction\(\) got an unexpected"),  # type: ignore[call-arg]
        (lambda: AsyncProducer({}), r"^AsyncProducer\(topic, …\) takes the name of one topic, not a dict$"),
        (lambda: Consumer(["t"], "g"), r"^Consumer\(topic, …\) takes the name of one topic, not a list$"),
    ],
)
def test_what_a_class_does_not_take_is_said_in_its_own_name(make: Any, says: str) -> None:
    """As somebody writes it who comes from another log."""
    with pytest.raises(TypeError, match=says):
        make()


@pytest.mark.real
def test_a_service_over_leveldb_needs_no_sqlalchemy() -> None:
    serving = "import oncelog_service.app, oncelog_service.cli.serve, oncelog_service.cli.stores.verify\n"
    serving += "from oncelog_service.storage.open import store_opener\n"
    assert not loaded_by(f"{serving}store_opener('leveldb:///tmp/nothing')") & {"sqlalchemy", "psycopg", "pyspark"}


@pytest.mark.real
def test_what_needs_sqlalchemy_is_loaded_when_it_is_asked_for() -> None:
    pytest.importorskip("sqlalchemy")
    before = "from oncelog import TransactionAware, TransactionContext; assert 'sqlalchemy' not in sys.modules"
    assert "sqlalchemy" in loaded_by(f"{before}\nfrom oncelog import Checkpoint")


@pytest.mark.real
def test_where_pyarrow_is_missing_spark_finds_no_source_and_no_error() -> None:
    """It looks into every package that is called like this one, and an error in one takes all of them."""
    there = "import pyspark_oncelog; assert {} hasattr(pyspark_oncelog, 'DefaultSource')"
    assert "pyspark" in loaded_by(there.format(""))
    loaded_by("sys.modules['pyarrow'] = None\n" + there.format("not"))


def test_every_public_name_is_there_and_no_other() -> None:
    for name in oncelog.__all__:
        assert getattr(oncelog, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = oncelog.no_such_name


@pytest.mark.real
def test_what_an_extra_is_missing_for_says_which_one() -> None:
    hide = "import sys; sys.modules['sqlalchemy'] = sys.modules['typer'] = None\n"
    for name in ("Checkpoint", "SqlParticipant"):
        line = [sys.executable, "-c", hide + f"from oncelog import {name}"]
        wanted = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert f"{name} needs SQLAlchemy: pip install 'oncelog[sql]'" in wanted.stderr
    line = [sys.executable, "-c", hide + "from oncelog_service.__main__ import main; main()"]
    command = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert command.returncode == 1
    assert command.stderr.startswith("oncelog: typer is not installed")
    assert "pip install 'oncelog[service]'" in command.stderr


# --- types --------------------------------------------------------------------------------------------------------------


PAGES = ("README.md", "docs/quickstart.md", "docs/consumers.md", "docs/outbox.md")

_VALUES = """
from datetime import datetime
from typing import Any, assert_type

from pydantic import BaseModel
from pyspark.sql import SparkSession

from oncelog import AsyncReader, Client, Consumer, Message, Producer, Reader
from oncelog.codecs import AvroCodec, JsonCodec, PydanticCodec
from oncelog.spark import session


class Flight(BaseModel):
    number: str


class Times:
    def encode(self, value: datetime) -> bytes:
        return value.isoformat().encode()

    def decode(self, data: bytes) -> datetime:
        return datetime.fromisoformat(data.decode())


assert_type(Producer("t"), Producer[bytes])
assert_type(Producer("t", name="p", gaps="refuse", codec="str"), Producer[str])
assert_type(Producer("t", codec=Flight, linger=0.1), Producer[Flight])
assert_type(Producer("t", codec=Times()), Producer[datetime])
assert_type(Producer("t", codec="json"), Producer[Any])
assert_type(Producer("t", codec=PydanticCodec(Flight, read_back=False)), Producer[Flight])
assert_type(Producer("t", codec=JsonCodec()), Producer[Any])
assert_type(Reader("t", codec=AvroCodec({"type": "long"})), Reader[Any])
assert_type(AsyncReader("t", codec={"type": "long"}), AsyncReader[Any])
assert_type(Reader("t", codec="bytes"), Reader[bytes])
assert_type(next(iter(Reader("t", codec=Flight, timeout=0))).value, Flight)
assert_type(Reader("t", codec="str").read(), list[Message[str]])
assert_type(Reader("t", generation=1, on_expired="skip"), Reader[bytes])
Reader("t", on_expired="wait")  # type: ignore[call-overload]
assert_type(Consumer("t", "s", codec=Times(), ack_interval=2).read()[0].value, datetime)
def given_bytes(producer: Producer) -> None:
    producer.send("UA 1545")  # type: ignore[arg-type]


with Producer("t", codec=Flight) as producer:
    producer.send(Flight(number="UA 1545"))
    producer.send("UA 1545")  # type: ignore[arg-type]
    producer.send(Flight(number="UA 1545"), key="k", expected_offset=5)
    producer.send_async(Flight(number="UA 1545"), kye="k")  # type: ignore[call-arg]
Producer("t", lingr=1)  # type: ignore[call-overload]
Producer("t", codec=int)  # type: ignore[call-overload]
with Client() as client, client.atomic(group="g") as batch:
    batch.send("t", "x", codec="str")  # type: ignore[call-arg]
    batch.send("t", b"x")
assert_type(client.atomic_outcome(batch.id).messages, int | None)
assert_type(session(master="local[2]"), SparkSession)
"""


@pytest.mark.real
def test_mypy_strict_knows_the_values_and_accepts_the_first_pages(tmp_path: Path) -> None:
    for page in PAGES:
        blocks = (ROOT / page).read_text("utf-8").split("```python\n")[1:]
        (tmp_path / f"{Path(page).stem}_page.py").write_text("\n".join(block.split("```")[0] for block in blocks), "utf-8")
    (tmp_path / "values.py").write_text(_VALUES, "utf-8")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nwarn_unused_ignores = true\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "mypy.ini",
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "of_users"),
        *(f"{Path(page).stem}_page.py" for page in PAGES),
        "values.py",
    ]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
